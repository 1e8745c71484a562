"""Search spaces as data: for each setting, the values to try. The space of a method has those settings that it has."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rpsp.errors import UsageError
from rpsp.experiments.configure import check_names
from rpsp.experiments.methods import Method
from rpsp.experiments.settings import checked


@dataclass(frozen=True)
class Range:
    """All numbers between two bounds."""

    low: float | int
    high: float | int
    log: bool = False
    """Whether ratios count, not differences."""
    whole: bool = False

    def suggest(self, trial: Any, name: str) -> Any:
        """Return the value of a trial."""
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def stored(self, value: Any) -> Any:
        """Return a value as a study stores it; None if it is not in the space."""
        inside = isinstance(value, int | float) and self.low <= value <= self.high
        return (int(value) if self.whole else float(value)) if inside else None


@dataclass(frozen=True)
class Choice:
    """One of some values. A study stores them as JSON, because they may be lists or None."""

    values: tuple[Any, ...]

    def suggest(self, trial: Any, name: str) -> Any:
        """Return the value of a trial."""
        return json.loads(trial.suggest_categorical(name, [json.dumps(value) for value in self.values]))

    def stored(self, value: Any) -> Any:
        """Return a value as a study stores it; None if it is not in the space."""
        text = json.dumps(value)
        return text if text in [json.dumps(known) for known in self.values] else None


Values = Range | Choice
SPACE: dict[str, Values] = {
    # the loop and the policy
    "hidden": Choice(((16,), (32,), (64,), (64, 64), (128, 128))),
    "log_std": Range(-2.0, 0.5),
    "discount": Choice((0.9, 0.95, 0.98, 0.99, 0.995)),
    # beliefs
    "past": Range(2, 30, log=True, whole=True),
    "future": Range(1, 8, whole=True),
    "dimension": Range(5, 60, log=True, whole=True),
    "ridge": Range(1e-6, 1e-1, log=True),
    "window": Range(1, 10, whole=True),
    "units": Choice((16, 32, 64, 128)),
    # algorithms
    "learning_rate": Range(1e-4, 3e-2, log=True),
    "max_kl": Range(2e-3, 0.1, log=True),
    "policy_rate": Range(1.0, 30.0, log=True),
    "prediction_weight": Range(0.1, 10.0, log=True),
    "gae": Choice((0.9, 0.95, 0.98, 1.0)),
    "clip": Range(0.1, 0.4),
    "passes": Range(3, 30, log=True, whole=True),
    "minibatch": Choice((64, 128, 256, 512)),
    "entropy_weight": Choice((0.0, 1e-3, 1e-2)),
    "target_rate": Range(1e-3, 3e-2, log=True),
    "ratio": Range(0.25, 4.0, log=True),
}
"""The values that are tried if nothing else is given, by the name of the setting."""


def space_of(method: Method, given: Mapping[str, Any] | None = None) -> dict[str, Values]:
    """Return the search space of a method.

    Args:
        method: the method.
        given: the space of a file, by name: a list of values, or a table with `low` and `high`, and `log = true` if
            ratios count. Default: the settings of the method that are in `SPACE`. A setting that the row has switched
            off, such as a `dimension` of None, is left out.

    Raises:
        UsageError: if the method has no such setting, or the values are invalid.
    """
    if given is None:
        found = {name: values for name, values in SPACE.items() if name in method.known}
        return {name: values for name, values in found.items() if _applies(method.known[name].value, values)}
    if not isinstance(given, Mapping) or not given:
        raise UsageError(f"space: {given!r} is not a table of settings, such as learning_rate = [1e-3, 1e-2].")
    names = {name.replace("-", "_"): values for name, values in given.items()}
    check_names(names, set(method.known), "space: ")
    return {name: _values(name, values, method.known[name].type) for name, values in names.items()}


def _applies(value: Any, values: Values) -> bool:
    """Return whether a default space fits a setting whose value in the row is this one."""
    if isinstance(values, Choice):
        return value is not None
    return isinstance(value, int | float) and (value > 0 or not values.log)


def _values(name: str, given: Any, kind: Any) -> Values:
    """Return the values of a file for one setting."""
    if isinstance(given, Mapping):
        unknown = set(given) - {"low", "high", "log"}
        low, high, log = given.get("low"), given.get("high"), given.get("log", False)
        bounds = [checked(f"space: {name}", bound, float) for bound in (low, high)]
        if unknown or not isinstance(log, bool) or not bounds[0] < bounds[1] or (log and bounds[0] <= 0):
            raise UsageError(
                f"space: {name}: {dict(given)!r} is no range; give low < high, and log = true only if low is positive."
            )
        for bound in (low, high):
            checked(f"space: {name}", bound, kind)
        whole = all(isinstance(bound, int) for bound in (low, high)) and not math.isclose(bounds[0], bounds[1])
        return Range(bounds[0], bounds[1], log, whole)
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) < 2:
        raise UsageError(
            f"space: {name}: {given!r} is neither a list of two values or more, nor a table of low and high."
        )
    return Choice(tuple(checked(f"space: {name}", value, kind) for value in given))
