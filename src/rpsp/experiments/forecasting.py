"""Predictive distributions of a fitted model: arrays of encoded states and actions to moments, bands and samples."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.data.scaling import OneHot, Scaling
from rpsp.data.windows import flat, window_index
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, compiled_unroll
from rpsp.filters.gaps import state_and_covariance, without_gaps
from rpsp.filters.surprise import p_values, recent
from rpsp.filters.uncertainty import WINDOWS, AbstractUncertainty, GaussianUncertainty
from rpsp.filters.uncertainty_fit import innovations_of


def one_row(history: Episode) -> Batch:
    """Return a batch of one episode and one additional step.

    Unrolling gives the state before each step. The additional step gives the state after the last observation.
    """
    longer = Episode(
        np.concatenate([history.observations, history.observations[-1:]]),
        np.concatenate([history.actions, np.zeros((1, history.actions.shape[1]))]),
    )
    return pack([longer], row_length=bucket(len(longer)))


def bucket(length: int) -> int:
    """Round a length up to a power of two, at least 32, so that episodes of similar length are compiled once."""
    return 1 << max(5, (length - 1).bit_length())


@eqx.filter_jit
def moments(
    uncertainty: AbstractUncertainty,
    filter: AbstractFilter,
    states: Float[Numbers, "n q"],
    actions: Float[Numbers, "n h act"],
) -> tuple[Float[Array, "n h obs"], Float[Array, "n h obs obs"]]:
    """Return means and covariances of the next h observations from n states. Compiled."""
    inner = without_gaps(filter)

    def of_one(given: tuple[Array, Array]) -> tuple[Array, Array]:
        q, P = state_and_covariance(filter, uncertainty, given[0])
        found = uncertainty.forecast(inner, q, P, given[1])
        return found.mean, found.covariance

    return jax.lax.map(of_one, (jnp.asarray(states), jnp.asarray(actions)), batch_size=256)


@eqx.filter_jit
def samples(
    uncertainty: AbstractUncertainty,
    filter: AbstractFilter,
    states: Float[Numbers, "n q"],
    actions: Float[Numbers, "n h act"],
    number: int,
    key: PRNGKeyArray,
) -> Float[Array, "number n h obs"]:
    """Draw `number` futures from each of n states. Compiled."""
    inner = without_gaps(filter)

    def of_one(q: Array, actions: Array, key: PRNGKeyArray) -> Array:
        state, P = state_and_covariance(filter, uncertainty, q)
        return uncertainty.sample(inner, state, P, actions, key=key)

    keys = jax.random.split(key, (number, len(states)))
    return jax.vmap(jax.vmap(of_one), in_axes=(None, None, 0))(jnp.asarray(states), jnp.asarray(actions), keys)


def log_likelihood(
    uncertainty: AbstractUncertainty, filter: AbstractFilter, batch: Batch, encoding: Scaling | OneHot
) -> float:
    """Return the mean log-density of the readings of a step, given the past, in the units of the observations.

    Args:
        uncertainty: the distribution.
        filter: the filter.
        batch: encoded episodes.
        encoding: the scaling of the observations.
    """
    mask = np.asarray(batch.mask)
    found = _log_densities(uncertainty, filter, compiled_unroll(filter, batch), batch.actions, batch.observations)
    total = np.asarray(found, np.float64)[mask]
    if isinstance(encoding, Scaling):
        total = total - (~np.isnan(np.asarray(batch.observations)[mask])) @ np.log(encoding.scale)
    return float(total.mean())


@eqx.filter_jit
def _log_densities(
    uncertainty: AbstractUncertainty, filter: AbstractFilter, states: Numbers, actions: Numbers, observations: Numbers
) -> Float[Array, "row time"]:
    inner = without_gaps(filter)

    def of_one(q: Array, action: Array, observation: Array) -> Array:
        state, P = state_and_covariance(filter, uncertainty, q)
        return uncertainty.log_density(uncertainty.forecast(inner, state, P, action[None]), observation)

    return jax.vmap(jax.vmap(of_one))(jnp.asarray(states), jnp.asarray(actions), jnp.asarray(observations))


def coverage(
    uncertainty: GaussianUncertainty, filter: AbstractFilter, batch: Batch, levels: list[float], horizon: int
) -> Float[np.ndarray, "horizon level"]:
    """Return the share of readings in the bands, over all steps of a batch and all observations.

    Args:
        uncertainty: the distribution.
        filter: the filter.
        batch: encoded episodes.
        levels: the shares that bands should contain.
        horizon: number of steps ahead, from 1.
    """
    steps = window_index(batch, 1, horizon - 1).steps
    steps = steps[:: -(-len(steps) // 4000)]
    ahead = steps[:, None] + np.arange(horizon)
    mean, covariance = moments(
        uncertainty, filter, flat(compiled_unroll(filter, batch))[steps], flat(batch.actions)[ahead]
    )
    ratios = np.abs(flat(batch.observations)[ahead] - np.asarray(mean)) / standard_deviations(np.asarray(covariance))
    known = ~np.isnan(ratios)
    shares = [(ratios <= uncertainty.half_widths(level, horizon)) & known for level in levels]
    return np.stack([inside.sum(axis=(0, 2)) / known.sum(axis=(0, 2)) for inside in shares], axis=1)


class Surprise(NamedTuple):
    """How improbable readings are, given those before them."""

    z: Float[np.ndarray, "n obs"]
    """Reading minus expectation, in standard deviations of each sensor; NaN where it was not read."""
    p: Float[np.ndarray, " n"]
    """p-value of the readings of a step: the share of held-out steps that are at least as surprising."""
    recent: Float[np.ndarray, " n"]
    """p-value of the last ten readings together; NaN during the first nine steps."""
    still: Int[np.ndarray, "n obs"]
    """Number of steps for which each sensor has repeated the same reading. Sensors with noise do not."""


def surprise(uncertainty: GaussianUncertainty, filter: AbstractFilter, history: Episode) -> Surprise:
    """Return the surprise of all readings of an encoded episode but the first."""
    batch, steps = one_row(history), len(history)
    found = innovations_of(filter, uncertainty, compiled_unroll(filter, batch), batch.actions, batch.observations)
    levels = np.asarray(found.level, np.float64)[0, :steps]
    z, p = np.asarray(found.z, np.float64)[0, :steps], p_values(levels, uncertainty)
    window = WINDOWS[-1]
    means = recent(levels, window) if steps >= window else np.full(steps, np.nan)
    return Surprise(z, p, p_values(means, uncertainty, window), _still(history.observations))


def _still(observations: Float[np.ndarray, "n_1 obs"]) -> Int[np.ndarray, "n obs"]:
    """Return for how many steps each sensor has repeated its reading, after each step but the reset."""
    found = np.zeros((len(observations) - 1, observations.shape[1]), np.int64)
    count = np.zeros(observations.shape[1], np.int64)
    for t, same in enumerate(observations[1:] == observations[:-1]):
        count = np.where(same, count + 1, 0)
        found[t] = count
    return found


def gaussian(uncertainty: AbstractUncertainty, what: str) -> GaussianUncertainty:
    """Return the uncertainty. Raises `UsageError` if it is one of symbols."""
    if not isinstance(uncertainty, GaussianUncertainty):
        raise UsageError(f"{what}: is defined for numbers; for symbols use the probabilities that predict returns.")
    return uncertainty


def in_units(
    mean: Array, covariance: Array, encoding: Scaling | OneHot
) -> tuple[Float[np.ndarray, "*n obs"], Float[np.ndarray, "*n obs obs"]]:
    """Return means and covariances in the units of the observations, in float64."""
    found, spread = np.asarray(mean, np.float64), np.asarray(covariance, np.float64)
    if isinstance(encoding, OneHot):
        return found, spread
    return encoding.decode(found), spread * np.outer(encoding.scale, encoding.scale)


def standard_deviations(covariance: Float[np.ndarray, "*n obs obs"]) -> Float[np.ndarray, "*n obs"]:
    """Return the square roots of the diagonals."""
    return np.sqrt(np.maximum(np.diagonal(covariance, axis1=-2, axis2=-1), 0.0))


def band(
    uncertainty: AbstractUncertainty, mean: np.ndarray, covariance: np.ndarray, level: object
) -> tuple[Float[np.ndarray, "*n h obs"], Float[np.ndarray, "*n h obs"]]:
    """Return the lower and the upper end of the bands that contain a fraction `level` of the observations.

    Args:
        uncertainty: the distribution, with its calibration.
        mean: means, the last but one axis is the horizon.
        covariance: their covariances.
        level: the fraction.

    Raises:
        UsageError: if the level is not between 0 and 1, or the observations are symbols.
    """
    number = checked_level(level)
    if not isinstance(uncertainty, GaussianUncertainty):
        raise UsageError("level: symbols have no intervals; use predict, which returns the probability of each symbol.")
    half = uncertainty.half_widths(number, mean.shape[-2]) * standard_deviations(covariance)
    return mean - half, mean + half


def checked_level(level: object) -> float:
    """Return a level as a float. Raises `UsageError` if it is not between 0 and 1."""
    number = float(level) if isinstance(level, int | float | np.number) and not isinstance(level, bool) else np.nan
    if not 0 < number < 1:
        raise UsageError(f"level: {level!r} is not between 0 and 1 (both excluded); a usual value is 0.9.")
    return number
