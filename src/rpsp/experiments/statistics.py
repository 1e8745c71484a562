"""Statistics for comparing runs, as functions of arrays. This module does not depend on files or methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr, stdtrit

Numbers = np.ndarray | np.floating[Any]
"""A single number, or one number per entry of the leading axes."""


# ---------------------------------------------------------------------------------------------------------------------
# One run
# ---------------------------------------------------------------------------------------------------------------------


def area_under_curve(returns: Float[np.ndarray, "... iteration"]) -> Numbers:
    """Return the sum of the mean returns over iterations, as defined in the paper."""
    return np.sum(returns, axis=-1)


def final_return(returns: Float[np.ndarray, "... iteration"], last: int = 10) -> Numbers:
    """Return the mean return of the last iterations.

    Args:
        returns: mean return of each iteration.
        last: number of iterations to average. If there are fewer, all are averaged.
    """
    return np.mean(returns[..., -last:], axis=-1)


def samples_to_reach(
    threshold: float,
    steps: Float[np.ndarray, " iteration"],
    returns: Float[np.ndarray, " iteration"],
    window: int = 1,
) -> float:
    """Return the number of environment steps until the mean return first reaches a threshold.

    Args:
        threshold: the return to reach.
        steps: environment steps at the end of each iteration.
        returns: mean return of each iteration.
        window: number of iterations over which the return is averaged.

    Returns:
        The number of steps, or NaN if the threshold is never reached.
    """
    if len(returns) < window:
        return np.nan
    smooth = np.convolve(returns, np.ones(window) / window, mode="valid")
    reached = np.flatnonzero(smooth >= threshold)
    return float(steps[reached[0] + window - 1]) if len(reached) else np.nan


def return_at(
    total: float, steps: Float[np.ndarray, " iteration"], returns: Float[np.ndarray, " iteration"], last: float = 0.1
) -> float:
    """Return the mean return after a number of environment steps.

    Averages the iterations that end within the last fraction of these steps. Use it to compare runs whose iterations
    differ in length, such as those of different libraries.

    Args:
        total: number of environment steps.
        steps: environment steps at the end of each iteration.
        returns: mean return of each iteration.
        last: fraction of `total` to average over.

    Returns:
        The mean return, or NaN if the run has fewer than `total` steps.
    """
    within = (steps > (1 - last) * total) & (steps <= total)
    return float(np.mean(returns[within])) if within.any() and steps[-1] >= total else np.nan


# ---------------------------------------------------------------------------------------------------------------------
# Runs of one method
# ---------------------------------------------------------------------------------------------------------------------


def mean_and_error(values: Float[np.ndarray, "n ..."]) -> tuple[Numbers, Numbers]:
    """Return the mean over runs and its standard error, s / √n. The error is NaN for a single run."""
    n = len(values)
    error = np.std(values, axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full(np.shape(values)[1:], np.nan)
    return np.mean(values, axis=0), error


def iqm(values: Float[np.ndarray, "... n"]) -> Numbers:
    """Return the interquartile mean: the mean without the lowest and the highest ⌊n / 4⌋ values."""
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
    """Compute a percentile bootstrap interval by resampling runs within each stratum.

    Args:
        strata: values of the runs, one array per stratum (task).
        statistic: function of the values of all strata, along the last axis.
        level: confidence level.
        resamples: number of bootstrap samples.
        seed: seed of the random numbers.

    Returns:
        Lower and upper bound. NaN if no stratum has more than one run.
    """
    if max(map(len, strata)) < 2:
        return np.nan, np.nan
    rng = np.random.default_rng(seed)
    drawn = [np.asarray(s)[rng.integers(len(s), size=(resamples, len(s)))] for s in strata]
    low, high = np.quantile(statistic(np.concatenate(drawn, axis=1)), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class Selection(NamedTuple):
    """The selected candidate and the number of candidates."""

    name: str
    candidates: int


def select_best(returns: Mapping[str, Float[np.ndarray, "run iteration"]]) -> Selection:
    """Select the candidate with the largest mean area under the curve, as the paper does. The first one wins a tie."""
    areas = {name: float(np.mean(area_under_curve(curves))) for name, curves in returns.items()}
    return Selection(max(areas, key=lambda name: areas[name]), len(areas))


# ---------------------------------------------------------------------------------------------------------------------
# Two methods
# ---------------------------------------------------------------------------------------------------------------------


def probability_of_improvement(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " m"]) -> float:
    """Return the probability that a run of x beats a run of y, P(x > y) + P(x = y) / 2.

    This is the Mann-Whitney statistic divided by n m.
    """
    difference = np.sign(np.subtract.outer(x, y))
    return float(np.mean(difference + 1) / 2)


class Welch(NamedTuple):
    """Result of Welch's t-test: t statistic, degrees of freedom and two-sided p-value."""

    t: float
    dof: float
    p: float


def welch(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " m"]) -> Welch:
    """Test whether two samples with unequal variances have equal means (Welch's two-sided t-test).

    t = (x̄ - ȳ) / √(a + b) with a = s_x² / n and b = s_y² / m. The degrees of freedom are
    (a + b)² / (a² / (n - 1) + b² / (m - 1)).

    Args:
        x: n values, with mean x̄ and variance s_x².
        y: m values, with mean ȳ and variance s_y².

    Returns:
        The test. All fields are NaN if a sample has a single value. If both variances are zero, p is 0 for different
        means and 1 for equal means.
    """
    if min(len(x), len(y)) < 2:
        return Welch(np.nan, np.nan, np.nan)
    difference, error, dof = _difference(x, y)
    if error == 0:
        return Welch(np.inf * np.sign(difference), len(x) + len(y) - 2, 0.0) if difference else Welch(0.0, np.nan, 1.0)
    t = difference / error
    return Welch(t, dof, float(2 * stdtr(dof, -abs(t))))


def welch_greater(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " m"], by: float = 0.0) -> float:
    """Return the p-value of Welch's one-sided test that the mean of x exceeds the mean of y by more than `by`.

    p = P(T ≥ t) with t = (x̄ - ȳ - by) / √(s_x² / n + s_y² / m) and the degrees of freedom of `welch`.

    Args:
        x: n values.
        y: m values.
        by: the difference of the means under the null hypothesis. With -δ this is a test that x is not lower than y by
            δ or more.

    Returns:
        The p-value; NaN if a sample has a single value. If both variances are zero, p is 0, 0.5 or 1 if x̄ - ȳ is
        greater than, equal to, or less than `by`.
    """
    if min(len(x), len(y)) < 2:
        return np.nan
    difference, error, dof = _difference(x, y)
    if error == 0:
        return float(0.5 - 0.5 * np.sign(difference - by))
    return float(stdtr(dof, -(difference - by) / error))


def _difference(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Return the difference of the means, its standard error and the degrees of freedom (NaN without variance)."""
    a, b = (float(np.var(v, ddof=1)) / len(v) for v in (x, y))
    dof = (a + b) ** 2 / (a**2 / (len(x) - 1) + b**2 / (len(y) - 1)) if a + b else np.nan
    return float(np.mean(x) - np.mean(y)), float(np.sqrt(a + b)), dof


def welch_interval(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " m"], level: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of x̄ - ȳ that belongs to Welch's test. NaN if a sample has a single value."""
    if min(len(x), len(y)) < 2:
        return np.nan, np.nan
    difference, error, dof = _difference(x, y)
    half = error * float(stdtrit(dof, (1 + level) / 2)) if error else 0.0
    return difference - half, difference + half


def holm(p: Float[np.ndarray, " test"]) -> Float[np.ndarray, " test"]:
    """Adjust p-values for multiple tests (Holm's step-down method).

    The i-th smallest of m p-values is multiplied by m - i (i from 0), limited to 1, and never falls below the adjusted
    value of a smaller one. NaN values are not counted as tests.
    """
    corrected = np.full(np.shape(p), np.nan)
    made = np.flatnonzero(~np.isnan(p))
    order = made[np.argsort(p[made], kind="stable")]
    corrected[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)))
    return corrected
