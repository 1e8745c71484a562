"""Arrays in, numbers out: what a comparison of runs rests on. Knows no files and no methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr, stdtrit

Numbers = np.ndarray | np.floating[Any]
"""One number, or one for each of what was given."""


# ---------------------------------------------------------------------------------------------------------------------
# Of one run
# ---------------------------------------------------------------------------------------------------------------------


def area_under_curve(returns: Float[np.ndarray, "... iteration"]) -> Numbers:
    """As in the paper: the sum over iterations of the mean return."""
    return np.sum(returns, axis=-1)


def final_return(returns: Float[np.ndarray, "... iteration"], last: int = 10) -> Numbers:
    """The mean over the last ten iterations, or however many there are."""
    return np.mean(returns[..., -last:], axis=-1)


def samples_to_reach(
    threshold: float,
    steps: Float[np.ndarray, " iteration"],
    returns: Float[np.ndarray, " iteration"],
    window: int = 1,
) -> float:
    """Environment steps until the mean return over `window` iterations first reaches a threshold; nan if it never does."""
    if len(returns) < window:
        return np.nan
    smooth = np.convolve(returns, np.ones(window) / window, mode="valid")
    reached = np.flatnonzero(smooth >= threshold)
    return float(steps[reached[0] + window - 1]) if len(reached) else np.nan


def return_at(
    total: float, steps: Float[np.ndarray, " iteration"], returns: Float[np.ndarray, " iteration"], last: float = 0.1
) -> float:
    """The mean return of the iterations that end within the last tenth of so many environment steps; nan if too few were
    done.

    For runs whose iterations differ in length, as those of different libraries.
    """
    within = (steps > (1 - last) * total) & (steps <= total)
    return float(np.mean(returns[within])) if within.any() and steps[-1] >= total else np.nan


# ---------------------------------------------------------------------------------------------------------------------
# Of the runs of a method
# ---------------------------------------------------------------------------------------------------------------------


def mean_and_error(values: Float[np.ndarray, "n ..."]) -> tuple[Numbers, Numbers]:
    """The mean over runs and its standard error, s / √n, which one run does not tell (nan)."""
    n = len(values)
    error = np.std(values, axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full(np.shape(values)[1:], np.nan)
    return np.mean(values, axis=0), error


def iqm(values: Float[np.ndarray, "... n"]) -> Numbers:
    """The interquartile mean: without the lowest and the highest quarter, rounded down."""
    n = np.shape(values)[-1]
    out = n // 4
    return np.mean(np.sort(values, axis=-1)[..., out : n - out], axis=-1)


def bootstrap_interval(
    strata: Sequence[Float[np.ndarray, " _"]],
    statistic: Callable[[np.ndarray], Numbers] = iqm,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """A percentile interval of a statistic of all values, by resampling runs within each stratum (a task).

    A single run in every stratum has nothing to resample: the interval is nan.
    """
    if max(map(len, strata)) < 2:
        return np.nan, np.nan
    rng = np.random.default_rng(seed)
    drawn = [np.asarray(s)[rng.integers(len(s), size=(resamples, len(s)))] for s in strata]
    low, high = np.quantile(statistic(np.concatenate(drawn, axis=1)), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class Selection(NamedTuple):
    """What a selection chose, and from how many."""

    name: str
    candidates: int


def select_best(returns: Mapping[str, Float[np.ndarray, "run iteration"]]) -> Selection:
    """The paper's model selection: the candidate whose mean area under the curve is highest; the first, on a tie."""
    areas = {name: float(np.mean(area_under_curve(curves))) for name, curves in returns.items()}
    return Selection(max(areas, key=lambda name: areas[name]), len(areas))


# ---------------------------------------------------------------------------------------------------------------------
# Of one method against another
# ---------------------------------------------------------------------------------------------------------------------


def probability_of_improvement(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " m"]) -> float:
    """How often a run of x beats a run of y, P(x > y) + P(x = y) / 2: the Mann-Whitney statistic over n m."""
    difference = np.sign(np.subtract.outer(x, y))
    return float(np.mean(difference + 1) / 2)


class Welch(NamedTuple):
    """Welch's t-test of equal means."""

    t: float
    dof: float
    p: float


def welch(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " m"]) -> Welch:
    """Welch's t-test: two samples of unequal variances, two-sided. With a single run on a side there is none (nan).

    t = (x̄ - ȳ) / √(a + b) with a = s_x² / n, b = s_y² / m, and (a + b)² / (a² / (n - 1) + b² / (m - 1)) degrees of
    freedom. Runs that do not vary at all differ for certain or not at all.
    """
    if min(len(x), len(y)) < 2:
        return Welch(np.nan, np.nan, np.nan)
    difference, error, dof = _difference(x, y)
    if error == 0:
        return Welch(np.inf * np.sign(difference), len(x) + len(y) - 2, 0.0) if difference else Welch(0.0, np.nan, 1.0)
    t = difference / error
    return Welch(t, dof, float(2 * stdtr(dof, -abs(t))))


def _difference(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Of the means, its standard error, and the degrees of freedom (nan where nothing varies)."""
    a, b = (float(np.var(v, ddof=1)) / len(v) for v in (x, y))
    dof = (a + b) ** 2 / (a**2 / (len(x) - 1) + b**2 / (len(y) - 1)) if a + b else np.nan
    return float(np.mean(x) - np.mean(y)), float(np.sqrt(a + b)), dof


def welch_interval(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " m"], level: float = 0.95) -> tuple[float, float]:
    """The interval of x̄ - ȳ that Welch's test does not reject; nan with a single run on a side."""
    if min(len(x), len(y)) < 2:
        return np.nan, np.nan
    difference, error, dof = _difference(x, y)
    half = error * float(stdtrit(dof, (1 + level) / 2)) if error else 0.0
    return difference - half, difference + half


def holm(p: Float[np.ndarray, " test"]) -> Float[np.ndarray, " test"]:
    """Holm's correction: p-values that may each be held against the level, however many tests there are.

    The i-th smallest of m becomes its product with m - i (i from 0), and no less than any smaller one's. A test that
    could not be made (nan) is not counted.
    """
    corrected = np.full(np.shape(p), np.nan)
    made = np.flatnonzero(~np.isnan(p))
    order = made[np.argsort(p[made], kind="stable")]
    corrected[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)))
    return corrected
