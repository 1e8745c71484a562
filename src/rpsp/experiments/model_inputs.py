"""What `PredictiveStateModel` accepts: whole numbers and fractions of any type, and episodes of any size that fits."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from rpsp.data.episodes import Episode
from rpsp.data.scaling import OneHot, Scaling, fit_scaling, symbols
from rpsp.errors import UsageError
from rpsp.experiments.baselines import RIVAL_PAST
from rpsp.filters.belief import Belief

MAX_HISTORY = 5000  # regressions solve systems of about twice this size; larger ones take minutes and gigabytes


def encodings(belief: Belief, episodes: list[Episode]) -> tuple[Scaling | OneHot, Scaling | OneHot]:
    """Return the encodings of observations and actions that suit a belief: one-hot for symbols, or standardised.

    Args:
        belief: the settings of the filter.
        episodes: the episodes to fit.

    Raises:
        UsageError: if a history has too many numbers.
    """
    observations = np.concatenate([e.observations for e in episodes])
    actions = np.concatenate([e.actions for e in episodes])
    if belief.discrete:
        named = (observations, "observations"), (actions, "actions")
        seen, done = (OneHot(_number_of_symbols(column, name)) for column, name in named)
        return seen, done
    past = max(RIVAL_PAST, getattr(belief, "past", 0))
    if (size := past * (observations.shape[1] + actions.shape[1])) > MAX_HISTORY:
        raise UsageError(
            f"observations: {observations.shape[1]} dimensions over a past of {past} steps give histories of {size} "
            f"numbers, more than {MAX_HISTORY}; select fewer observations, or reduce their dimension, for example by "
            "principal components."
        )
    return fit_scaling(observations), fit_scaling(actions)


def _number_of_symbols(column: np.ndarray, name: str) -> int:
    """Return the largest symbol plus one. Symbols that are missing (NaN) are left out."""
    read = column[~np.isnan(column).any(axis=1)]
    if len(read) == 0:
        raise UsageError(f"{name}: are missing (NaN) at every step; give at least one symbol.")
    return int(symbols(read, name=name).max()) + 1


def as_float(value: Any) -> float:
    """Convert a number of any type (Python, numpy, jax) to a float. Other values give NaN."""
    try:
        return math.nan if isinstance(value, str | bytes | bool | np.bool_) else float(value)
    except (TypeError, ValueError):
        return math.nan


def whole_number(name: str, value: Any, least: int) -> int:
    """Convert a whole number of any type to an int. Raises `UsageError` if it is less than `least`."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < least:
        raise UsageError(f"{name}: {value!r} is not a whole number ≥ {least}.")
    return number
