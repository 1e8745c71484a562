"""Labels of tasks and methods, derived from the settings of a run alone.

The label of a task is the environment and the sensor settings that differ from their defaults, as in
"Hopper-v5, obs_noise=0.1". Arguments of the environment are named like settings. The label of a method is its row in the
methods table and the settings that differ from the defaults of that row, as in "rpsp-alt, dimension=10". Runs with the
same labels differ only in their seed and can be averaged.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rpsp.envs.tasks import TASKS
from rpsp.experiments.config import Sensors
from rpsp.experiments.configure import usual_samples
from rpsp.experiments.env_args import parsed
from rpsp.experiments.methods import METHODS
from rpsp.experiments.upgrade import IN_0_4_0


def flat_settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the content of a config.json, or of `dataclasses.asdict(config)`. Tuples become lists."""
    flat = {**content, **content.get("sensors", {}), **content.get("settings", {})}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in flat.items() if k not in ("sensors", "settings")}


def task_label(settings: Mapping[str, Any], also: Iterable[str] = ()) -> str:
    """Return the label of a task.

    Args:
        settings: flat settings of a run.
        also: names of settings to include even if they have their default.
    """
    if settings.get("observe") == ("positions" if settings["env"] in TASKS else "all"):
        settings = {**settings, "observe": None}  # an explicitly given default counts as default
    defaults = {name: default for name, default in plain_sensors().items() if name != "env_args"}
    arguments = parsed(settings.get("env_args") or [])
    return printable(
        ", ".join([_label(settings, "env", defaults, also), *(f"{k}={word(v)}" for k, v in arguments.items())])
    )


def method_label(settings: Mapping[str, Any], also: Iterable[str] = ()) -> str:
    """Return the label of a method.

    The defaults of a user-defined method are unknown without importing it, so its label includes only the settings in
    `also`. If a row of the methods table defines its own number of steps per iteration, other numbers are included.

    Args:
        settings: flat settings of a run.
        also: names of settings to include even if they have their default.
    """
    row, samples = METHODS.get(settings["method"]), settings.get("samples")
    if row is not None and row.samples is not None and samples is not None:
        limit = settings.get("max_episode_steps")
        usual = usual_samples(settings.get("env"), row, limit if isinstance(limit, int) else 1000)
        also = also if samples == usual else dict.fromkeys([*also, "samples"])
    return _label(settings, "method", defaults_of(settings["method"]), also)


def slug(label: str) -> str:
    """Turn a label into part of a file name. Different labels give different, safe names."""
    safe = re.sub(r"[^A-Za-z0-9.=+_-]+", "-", label.replace(", ", "__")).strip(".-")[:100]
    if safe and safe.replace("__", ", ") == label:
        return safe
    return f"{safe}-{hashlib.sha256(label.encode()).hexdigest()[:6]}".lstrip("-")


def _label(settings: Mapping[str, Any], name: str, defaults: Mapping[str, Any], also: Iterable[str]) -> str:
    """Return the value of the setting `name`, followed by the settings that differ from the defaults."""
    told = [k for k, default in defaults.items() if settings.get(k, default) != default]
    told += [k for k in also if k not in told]
    return printable(", ".join([str(settings[name]), *(f"{k}={word(value_of(settings, k, defaults))}" for k in told)]))


def printable(text: str) -> str:
    """Replace non-printable characters by spaces, because text from a file could contain terminal control sequences."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def value_of(settings: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> Any:
    """Return a setting, or its default if the run was made before the setting existed."""
    return settings.get(name, defaults.get(name))


def word(value: Any) -> str:
    """Format the value of a setting for a label."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "/".join(map(word, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


@functools.cache
def plain_sensors() -> dict[str, Any]:
    """Return the default sensor settings."""
    return flat_settings(dataclasses.asdict(Sensors()))


@functools.cache
def defaults_of(method: str) -> dict[str, Any]:
    """Return the default settings of a method; empty for a user-defined method.

    The settings of 0.4.0 come first, in its order, so that labels and the directories named after them stay the same.
    """
    row = METHODS.get(method)
    if row is None:
        return {}
    found = flat_settings(dataclasses.asdict(row.settings()))
    return {name: found[name] for name in IN_0_4_0 if name in found} | found
