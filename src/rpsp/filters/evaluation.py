"""How well a filter predicts: errors over the horizon, and R². Arrays in, numbers out."""

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
    """Predictions of the next `horizon` observations from some steps on, beside the truth."""

    predicted: Float[np.ndarray, "n horizon obs"]
    actual: Float[np.ndarray, "n horizon obs"]


def forecasts(filter: AbstractFilter, batch: Batch, horizon: int, *, most: int = 4000, seed: int = 0) -> Forecasts:
    """Forecast from at most `most` steps of a batch, the same ones for every filter, given the actions then done."""
    steps = window_index(batch, 1, horizon - 1).steps
    if len(steps) > most:
        steps = np.sort(np.random.default_rng(seed).choice(steps, most, replace=False))
    ahead = steps[:, None] + np.arange(horizon)
    states = flat(compiled_unroll(filter, batch))[steps]
    predicted = compiled_forecast(filter, states, flat(batch.actions)[ahead])
    return Forecasts(np.asarray(predicted), flat(batch.observations)[ahead])


@eqx.filter_jit
def compiled_forecast(
    filter: AbstractFilter, states: Float[Numbers, "n q"], actions: Float[Numbers, "n horizon act"]
) -> Float[Array, "n horizon obs"]:
    """`forecast` from every row, compiled."""
    return jax.vmap(forecast, in_axes=(None, 0, 0))(filter, states, actions)


def normalised_errors(f: Forecasts) -> Float[np.ndarray, " horizon"]:
    """Mean squared error over variance at every horizon, pooled over observation dimensions: 0 perfect, 1 the mean."""
    squares = np.square(f.predicted - f.actual, dtype=np.float64).mean(axis=(0, 2))
    return squares / np.maximum(f.actual.var(axis=0, dtype=np.float64).mean(axis=-1), 1e-300)


def r_squared(f: Forecasts) -> float:
    """1 − SS_res/SS_tot for every observation dimension at the last horizon, averaged (scikit-learn's convention).

    A dimension that does not vary counts 1 if predicted exactly, else 0.
    """
    predicted, actual = (x[:, -1].astype(np.float64) for x in f)
    residual = np.square(predicted - actual).sum(axis=0)
    total = np.square(actual - actual.mean(axis=0)).sum(axis=0)
    varies = total > 0
    scores = np.where(varies, 1 - residual / np.where(varies, total, 1.0), residual == 0)
    return float(scores.mean())
