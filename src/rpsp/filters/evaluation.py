"""Evaluation of predictions: errors by horizon, and R²."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.data.windows import flat, window_index
from rpsp.filters.base import AbstractFilter, compiled_unroll, forecast


class Forecasts(NamedTuple):
    """Predictions of the next `horizon` observations from n steps, and the actual observations."""

    predicted: Float[np.ndarray, "n horizon obs"]
    actual: Float[np.ndarray, "n horizon obs"]


def forecasts(
    filter: AbstractFilter,
    batch: Batch,
    horizon: int,
    *,
    most: int = 4000,
    seed: int = 0,
    actual: Float[Numbers, "row time obs"] | None = None,
) -> Forecasts:
    """Forecast the next observations from several steps of a batch, given the executed actions.

    The choice of steps does not depend on the filter, so that filters are compared on the same steps.

    Args:
        filter: the filter.
        batch: the episodes.
        horizon: number of steps to predict.
        most: maximum number of steps to forecast from, drawn at random.
        seed: seed of this draw.
        actual: what to compare with. Default: the observations of the batch.

    Raises:
        UsageError: if no episode has `horizon` steps.
    """
    steps = window_index(batch, 1, horizon - 1).steps
    if len(steps) > most:
        steps = np.sort(np.random.default_rng(seed).choice(steps, most, replace=False))
    ahead = steps[:, None] + np.arange(horizon)
    states = flat(compiled_unroll(filter, batch))[steps]
    predicted = compiled_forecast(filter, states, flat(batch.actions)[ahead])
    return Forecasts(np.asarray(predicted), flat(batch.observations if actual is None else actual)[ahead])


@eqx.filter_jit
def compiled_forecast(
    filter: AbstractFilter, states: Float[Numbers, "n q"], actions: Float[Numbers, "n horizon act"]
) -> Float[Array, "n horizon obs"]:
    """Apply `forecast` to every row. Compiled."""
    return jax.vmap(forecast, in_axes=(None, 0, 0))(filter, states, actions)


def normalised_errors(f: Forecasts) -> Float[np.ndarray, " horizon"]:
    """Return the mean squared error divided by the variance, for every horizon.

    Both are averaged over observation dimensions. 0 is a perfect prediction, 1 is as good as predicting the mean.
    Readings that are missing (NaN) are left out.
    """
    squares = np.square(f.predicted - f.actual, dtype=np.float64)
    if np.isnan(squares).any():
        variances = np.nanvar(f.actual, axis=0, dtype=np.float64)
        return np.nanmean(squares, axis=(0, 2)) / np.maximum(np.nanmean(variances, axis=-1), 1e-300)
    return squares.mean(axis=(0, 2)) / np.maximum(f.actual.var(axis=0, dtype=np.float64).mean(axis=-1), 1e-300)


def r_squared(f: Forecasts) -> float:
    """Return R² at the last horizon, averaged over observation dimensions, as in scikit-learn.

        R² = 1 − SS_res/SS_tot

    where SS_res is the sum of squared errors and SS_tot the sum of squared deviations from the mean. A constant
    dimension scores 1 if it is predicted exactly, otherwise 0. Readings that are missing (NaN) are left out.
    """
    predicted, actual = (x[:, -1].astype(np.float64) for x in f)
    residual: np.ndarray = np.nansum(np.square(predicted - actual), axis=0)
    total: np.ndarray = np.nansum(np.square(actual - np.nanmean(actual, axis=0)), axis=0)
    varies = total > 0
    scores = np.where(varies, 1 - residual / np.where(varies, total, 1.0), residual == 0)
    return float(scores.mean())
