"""Part of the split of a larger module."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rpsp.envs.tasks import TASKS
from rpsp.experiments.config import Sensors, usual_samples
from rpsp.experiments.methods import METHODS


def flat_settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config.json, or of `dataclasses.asdict(config)`, by their flat names; tuples as lists."""
    flat = {**content, **content.get("sensors", {}), **content.get("settings", {})}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in flat.items() if k not in ("sensors", "settings")}


def task_label(settings: Mapping[str, Any], also: Iterable[str] = ()) -> str:
    """The environment and how it is sensed, where not plainly, as in "Hopper-v5, obs_noise=0.1"; and what `also` names."""
    if settings.get("observe") == ("positions" if settings["env"] in TASKS else "all"):
        settings = {**settings, "observe": None}  # an explicitly given default counts as default
    return _label(settings, "env", plain_sensors(), also)


def method_label(settings: Mapping[str, Any], also: Iterable[str] = ()) -> str:
    """The method and where it differs from its defaults, as in "rpsp-alt, dimension=10"; and what `also` names.

    The defaults of a user's own method are not known without importing it: only what `also` names is told. Of a row that
    has its own number of steps an iteration, others are told.
    """
    row, samples = METHODS.get(settings["method"]), settings.get("samples")
    if row is not None and row.samples is not None and samples is not None:
        limit = settings.get("max_episode_steps")
        usual = usual_samples(settings.get("env"), row, limit if isinstance(limit, int) else 1000)
        also = also if samples == usual else dict.fromkeys([*also, "samples"])
    return _label(settings, "method", defaults_of(settings["method"]), also)


def slug(label: str) -> str:
    """A label as (part of) a file's name: nothing in it can lead elsewhere, and no two labels become one."""
    safe = re.sub(r"[^A-Za-z0-9.=+_-]+", "-", label.replace(", ", "__")).strip(".-")[:100]
    if safe and safe.replace("__", ", ") == label:
        return safe
    return f"{safe}-{hashlib.sha256(label.encode()).hexdigest()[:6]}".lstrip("-")


def _label(settings: Mapping[str, Any], name: str, defaults: Mapping[str, Any], also: Iterable[str]) -> str:
    told = [k for k, default in defaults.items() if settings.get(k, default) != default]
    told += [k for k in also if k not in told]
    return printable(", ".join([str(settings[name]), *(f"{k}={word(value_of(settings, k, defaults))}" for k in told)]))


def printable(text: str) -> str:
    """In one line, without what would move a terminal's cursor: the text is of a file."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def value_of(settings: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> Any:
    """A setting; one that was not known yet when the run was made has its default."""
    return settings.get(name, defaults.get(name))


def word(value: Any) -> str:
    """A setting's value as labels have it."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "/".join(map(word, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


@functools.cache
def plain_sensors() -> dict[str, Any]:
    return dataclasses.asdict(Sensors())


@functools.cache
def defaults_of(method: str) -> dict[str, Any]:
    row = METHODS.get(method)
    return {} if row is None else flat_settings(dataclasses.asdict(row.settings()))
