"""Write a configuration as a command: the flags that differ from the defaults, with some settings changed."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from rpsp.experiments.budget import UNLIMITED
from rpsp.experiments.config import Sensors, TrainConfig
from rpsp.experiments.configure import find_method, usual_samples
from rpsp.experiments.resolve import FACTORY


def train_command(config: TrainConfig, **changes: Any) -> str:
    """Return the command that trains as a resolved configuration says, with some settings changed.

    Sizes that depend on the machine, and the output directory, are left out. For an environment made by a function, the
    command is a line of Python.

    Args:
        config: the resolved configuration.
        **changes: new values by name. None: leave the setting out. Settings that a changed method does not have are
            left out.
    """
    method = find_method(changes.get("method", config.method))
    given = _different(config.sensors, Sensors()) | _different(config.settings, find_method(config.method).settings())
    own = {f.name for f in dataclasses.fields(Sensors)}
    given = {name: value for name, value in given.items() if name in own or name in method.known}
    if config.seed:
        given["seed"] = config.seed
    same = method.name == config.method
    limit = config.max_episode_steps or 1000
    if same and config.samples != usual_samples(config.env, method, limit):
        given["samples"] = config.samples
    if config.plugin is not None:
        given["plugin"] = config.plugin
    given |= _budget(config, same)
    given = {"method": method.name} | given
    given = {name: value for name, value in (given | changes).items() if value is not None}
    if config.env == FACTORY:
        words = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"rpsp.train(make_env, {words})"
    words = ["rpsp", "train", str(config.env)]
    for name, value in given.items():
        words += flag(name, value)
    return shlex.join(words)


def flag(name: str, value: Any) -> list[str]:
    """Return a setting as words of a command line."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    several = value if isinstance(value, tuple) else (value,)
    return [f"--{dashed}", *(f"{v:g}" if isinstance(v, float) else str(v) for v in several)]


def _different(part: Any, default: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from the default."""
    values = ((f.name, getattr(part, f.name)) for f in dataclasses.fields(part))
    return {name: value for name, value in values if value != getattr(default, name)}


def _budget(config: TrainConfig, same: bool) -> dict[str, Any]:
    """Return the budget as settings. Iterations of another method have another length, so steps are given instead."""
    if config.steps is not None or config.minutes is not None:
        return {"steps": config.steps, "minutes": config.minutes}
    if config.iterations in (None, UNLIMITED):
        return {}
    if same:
        return {"iterations": config.iterations}
    return {"steps": (config.iterations or 1) * (config.samples or 1) + (config.exploration_samples or 0)}
