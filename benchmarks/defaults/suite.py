"""The suite as data: tasks, each with velocities hidden and with the full state, candidates, and normalised scores."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCALES = HERE.parent / "results" / "defaults_scales.json"
"""Measured returns of random actions and of the controllers, by name of the task."""


@dataclass(frozen=True)
class Task:
    """A task of the suite. `hidden` and `full` are the settings of its two versions."""

    name: str
    env: str
    group: str
    best: float | None
    """The best known return with the full state. None: that of the controller in `environments.py`."""
    versions: Mapping[str, Mapping[str, Any]]

    def score(self, value: float) -> float:
        """Return a return on the scale from 0 (random actions) to 1 (the best known)."""
        scale = scales()[self.name]
        return (value - scale["random"]) / (scale["best"] - scale["random"])


@cache
def scales() -> dict[str, dict[str, float]]:
    return json.loads(SCALES.read_text(encoding="utf-8"))


@cache
def suite() -> tuple[dict[str, Task], dict[str, dict[str, Any]]]:
    """Return the tasks and the candidates of suite.toml by name."""
    content = tomllib.loads((HERE / "suite.toml").read_text(encoding="utf-8"))
    return {row["name"]: _task(row) for row in content["tasks"]}, content["candidates"]


def _task(row: Mapping[str, Any]) -> Task:
    always = {"env": row["env"], **row.get("settings", {})}
    hidden = row.get("hidden", {"observe": "positions"})
    full = row.get("full", {"observe": "all"})
    return Task(
        name=row["name"],
        env=row["env"],
        group=row.get("group", "other"),
        best=row.get("best"),
        versions={"hidden": {**always, **hidden}, "full": {**always, **full}},
    )
