"""Observation and action spaces of a run as JSON, and whether an environment has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.files import read_json


def describe_space(space: Any) -> dict[str, Any]:
    """Return a Box or Discrete space as a JSON object. Infinite bounds become null."""
    if hasattr(space, "n"):
        return {"n": int(space.n), "start": int(space.start)}
    bounds = {"low": space.low, "high": space.high}
    return {name: [None if math.isinf(x) else float(x) for x in bound] for name, bound in bounds.items()} | {
        "dtype": str(space.dtype)
    }


def check_spaces(kept: Mapping[str, Any], envs: Any) -> None:
    """Check that environments have the spaces that a run was trained with.

    Observations must have the same shape. Actions must also have the same bounds, because the policy's actions are
    scaled to them. Discrete spaces must be equal.

    Args:
        kept: the spaces of the run, as `read_spaces` returns them.
        envs: the vector environment to check.

    Raises:
        UsageError: if a space does not match.
    """
    for name, then in kept.items():
        now = getattr(envs, f"single_{name}_space")
        if hasattr(then, "n") or hasattr(now, "n"):
            alike = then == now
        else:
            bounds = ("low", "high") if name == "action" else ()
            alike = then.shape == now.shape and all(
                np.allclose(getattr(then, bound), getattr(now, bound)) for bound in bounds
            )
        if not alike:
            raise UsageError(
                f"env: its {name} space is {now}, but the run was trained with {then}; restore the environment, or "
                "train a new run."
            )


def read_spaces(directory: Path) -> dict[str, Any]:
    """Read the observation and action spaces of a run from its spaces.json.

    Raises:
        FileFormatError: if the file is missing or damaged.
    """
    return spaces_of(read_json(directory / "spaces.json"), directory / "spaces.json")


def spaces_of(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the observation and action spaces with the content of a spaces.json.

    Args:
        content: the content of the file.
        path: the file, for error messages.

    Raises:
        FileFormatError: if the content is damaged.
    """

    def rebuilt(space: Any) -> Any:
        if "n" in space:
            return Discrete(space["n"], start=space["start"])
        if np.dtype(space["dtype"]).kind not in "biuf":
            raise ValueError(f"dtype {space['dtype']} is not numeric")
        low, high = (
            np.array([infinite if x is None else x for x in space[name]], space["dtype"])
            for name, infinite in (("low", -np.inf), ("high", np.inf))
        )
        return Box(low, high, dtype=np.dtype(space["dtype"]).type)

    try:
        return {name: rebuilt(content[name]) for name in ("observation", "action")}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, AssertionError) as error:
        raise FileFormatError(f"{path}: is damaged ({error}).") from error
