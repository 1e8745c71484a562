"""Observation and action spaces of a run as JSON, and whether an environment has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv

from rpsp.data.scaling import Encoding, ImageBasis
from rpsp.envs.images import ImageSettings, Pixels
from rpsp.envs.structures import Actions, Observations, images_observed, mask_size, rebuild, symbols_of
from rpsp.envs.structures import describe as describe_space
from rpsp.envs.vector import layouts, observation_names, sensors
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.files import read_json


@dataclass(frozen=True, eq=False)
class Structure:
    """How what an environment gives and takes relates to the rows that its agent reads and writes."""

    observations: Observations | None = None
    """The layout of structured observations; None if they are rows or symbols already."""
    actions: Actions | None = None
    """The layout of structured actions; None if they are rows or symbols already."""
    observed: Sequence[int] | None = None
    """The entries of the layout that the agent reads; None for all."""
    mask: int = 0
    """Number of entries at the end of an observation that are an action mask."""
    names: Sequence[str] | None = None
    """The name of every entry of an observation that the agent reads; None if there are none."""

    @property
    def images(self) -> list[tuple[range, Pixels, str]]:
        """The entries of each image in what the agent reads, how it becomes them, and its name."""
        return [] if self.observations is None else images_observed(self.observations, self.observed)

    def coordinate_names(self, encoding: Encoding) -> list[str] | None:
        """Return names of what `rpsp.data.scaling.coordinates` returns; None if there are none."""
        if self.names is None:
            return None
        found, last = [], 0
        bases = [encoding] if isinstance(encoding, ImageBasis) else getattr(encoding, "parts", ())
        bases = [part for part in bases if isinstance(part, ImageBasis)]
        for (entries, _, name), basis in zip(self.images, bases, strict=True):
            found += self.names[last : entries.start]
            found += [f"{name}, component {i}" for i in range(len(basis.scale))]
            last = entries.stop
        return [*found, *self.names[last:]]

    @property
    def plain(self) -> bool:
        """Whether there is nothing to convert."""
        return self.observations is None and self.actions is None and not self.mask

    @staticmethod
    def of(envs: VectorEnv) -> Structure:
        """Return the structure of these environments."""
        return Structure(*layouts(envs), sensors(envs)[0], mask_size(envs), observation_names(envs))


def describe(envs: VectorEnv) -> dict[str, Any]:
    """Return the spaces of environments, and their structure if they have one, as a JSON object.

    Args:
        envs: the vector environment of a run.
    """
    spaces = {name: getattr(envs, f"single_{name}_space") for name in ("observation", "action")}
    return described(spaces, Structure.of(envs))


def described(spaces: Mapping[str, Any], structure: Structure) -> dict[str, Any]:
    """Return the content of a spaces.json: spaces, and their structure if they have one."""
    found = {name: describe_space(space) for name, space in spaces.items()}
    if structure.plain:
        return found
    own = {"observation": structure.observations, "action": structure.actions}
    return found | {
        "structure": {
            **{name: None if layout is None else describe_space(layout.space) for name, layout in own.items()},
            "observed": None if structure.observed is None else list(structure.observed),
            "mask": structure.mask,
            "names": structure.names,
            **({} if structure.observations is None else {"images": list(structure.observations.settings)}),
        }
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
        if not (isinstance(then, Box) and isinstance(now, Box)) or symbols_of(then) != symbols_of(now):
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
    try:
        return {name: rebuild(content[name]) for name in ("observation", "action")}
    except DAMAGED as error:
        raise FileFormatError(f"{path}: is damaged ({error}).") from error


DAMAGED = KeyError, TypeError, ValueError, AttributeError, OverflowError, AssertionError, IndexError, UsageError
"""What reading a damaged description raises."""


def read_structure(directory: Path) -> Structure:
    """Read the structure of observations and actions of a run from its spaces.json. Raises what `structure_of` does."""
    return structure_of(read_json(directory / "spaces.json"), directory / "spaces.json")


def structure_of(content: Mapping[str, Any], path: Path) -> Structure:
    """Return the structure of observations and actions with the content of a spaces.json.

    Args:
        content: the content of the file.
        path: the file, for error messages.

    Raises:
        FileFormatError: if the content is damaged.
    """
    try:
        given = content.get("structure")
        if given is None:
            return Structure()
        observation, action = (
            None if given[name] is None else rebuild(given[name]) for name in ("observation", "action")
        )
        structure = Structure(
            None if observation is None else Observations(observation, ImageSettings(*given.get("images", ()))),
            None if action is None else Actions(action),
            None if given["observed"] is None else [int(i) for i in given["observed"]],
            int(given["mask"]),
            None if given["names"] is None else [str(name) for name in given["names"]],
        )
        _check_structure(structure, {name: rebuild(content[name]) for name in ("observation", "action")})
        return structure
    except DAMAGED as error:
        raise FileFormatError(f"{path}: is damaged ({error}).") from error


def _check_structure(structure: Structure, spaces: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a structure does not give rows of these spaces."""
    layout, read = structure.observations, spaces["observation"]
    if layout is not None:
        size = len(layout.names) if structure.observed is None else len(structure.observed)
        if any(not 0 <= i < len(layout.names) for i in structure.observed or ()):
            raise ValueError("it observes entries that there are not")
        if read.shape != (size + structure.mask,):
            raise ValueError("observations do not fit their structure")
    if structure.actions is not None and structure.actions.flat != spaces["action"]:
        raise ValueError("actions do not fit their structure")
