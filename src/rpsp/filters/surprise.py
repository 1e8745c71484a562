"""Surprise: how improbable readings are, given those before them. Used to detect sensors that fail.

The innovation e = o − mean of a reading has a covariance Σ, both those of the forecast one step ahead. Its squared distance
d² = eᵀ Σ⁻¹ e would have a χ² distribution if everything were Gaussian. Its level is

    L = −log P(χ²_k ≥ d²)

where k is the number of sensors that were read, so that readings with gaps are comparable. The p-value is the share of
levels of held-out steps that are at least as high (conformal). Beyond the highest of them, log p is proportional to L.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rpsp.filters.small_solves import forward
from rpsp.filters.uncertainty import TAILS, WINDOWS, Forecast, GaussianUncertainty, observed_factor


class Innovation(NamedTuple):
    """The innovation of one reading."""

    z: Float[Array, " obs"]
    """e of each sensor in its standard deviations; NaN where it was not read."""
    level: Float[Array, ""]
    """L; NaN if no sensor was read."""


def innovation(forecast: Forecast, observation: Float[Array, " obs"]) -> Innovation:
    """Return the innovation of a reading.

    Args:
        forecast: a forecast from the step before it. Its first step is used.
        observation: the reading, with NaN where sensors were not read.
    """
    mean, covariance = forecast.mean[0], forecast.covariance[0]
    seen = ~jnp.isnan(observation)
    error = jnp.where(seen, jnp.nan_to_num(observation) - mean, 0.0)
    scale, factor = observed_factor(covariance, seen)
    white = forward(factor, error / scale)
    half, count = (white @ white) / 2, jnp.maximum(seen.sum(), 1) / 2
    near = -jnp.log(jnp.maximum(jax.scipy.special.gammaincc(count, half), 1e-30))
    far = half - (count - 1) * jnp.log(jnp.maximum(half, 1e-30)) + jax.scipy.special.gammaln(count)
    level = jnp.where(half > 30.0, far, near)
    return Innovation(jnp.where(seen, error / scale, jnp.nan), jnp.where(seen.any(), level, jnp.nan))


def p_values(
    levels: Float[np.ndarray, "*n"], uncertainty: GaussianUncertainty, window: int = 1
) -> Float[np.ndarray, "*n"]:
    """Return the p-values of levels, or of their means over the last readings. NaN stays NaN.

    Args:
        levels: L, or means of L.
        uncertainty: the predictive distribution, with its calibration.
        window: number of readings of a mean, one of `WINDOWS`.
    """
    quantiles = np.asarray(uncertainty.calibration.surprises, np.float64)[WINDOWS.index(window)]
    known = np.maximum.accumulate(np.concatenate([[0.0], quantiles]))
    logs = np.concatenate([[0.0], np.log(TAILS)])
    inside = np.interp(levels, known, logs)
    beyond = logs[-1] * levels / max(known[-1], 1e-9)
    return np.exp(np.where(levels > known[-1], beyond, inside))


def recent(levels: Float[np.ndarray, " n"], window: int) -> Float[np.ndarray, " n"]:
    """Return the mean of the last `window` levels at every step of an episode; missing ones are left out.

    It is NaN before step `window`, and where all of them are missing.
    """
    known = ~np.isnan(levels)
    sums, counts = (np.cumsum(np.insert(x.astype(np.float64), 0, 0.0)) for x in (np.nan_to_num(levels), known))
    found = np.full(len(levels), np.nan)
    total, count = sums[window:] - sums[:-window], counts[window:] - counts[:-window]
    found[window - 1 :] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return found
