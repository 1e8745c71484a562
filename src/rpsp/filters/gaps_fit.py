"""Fit a filter to episodes with missing readings: fill the gaps, fit, fill them with the fitted filter, and repeat."""

# jax's stubs leave the type of devices unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.data import trees
from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.data.linalg import ridge
from rpsp.data.windows import flat
from rpsp.filters.base import AbstractFilter, compiled_unroll, one_step_error, to_float32
from rpsp.filters.belief import Belief
from rpsp.filters.gaps import GapFilter
from rpsp.filters.marked import MarkedFilter, fit_marked
from rpsp.filters.small_solves import solve
from rpsp.filters.uncertainty import (
    AbstractUncertainty,
    GaussianUncertainty,
    Noise,
    SymbolUncertainty,
    observed_factor,
)
from rpsp.filters.uncertainty_fit import (
    Steps,
    calibrated,
    fit_noise,
    fit_uncertainty,
    in_few_shapes,
    second_moment,
    steps_of,
    uncalibrated,
)


def has_gaps(batch: Batch) -> bool:
    """Return whether a reading is missing."""
    mask = np.asarray(batch.mask)
    return bool(
        np.isnan(np.asarray(batch.observations)[mask]).any()
        or np.isnan(np.asarray(batch.previous_observations)[mask]).any()
    )


def interpolated(batch: Batch) -> Batch:
    """Fill gaps by linear interpolation in time, within an episode; 0, the mean, for a sensor that it never read."""
    observations, first = np.array(batch.observations), np.array(batch.previous_observations)
    for row, last in np.argwhere(np.asarray(batch.ends) & np.asarray(batch.mask)):
        start = last - int(np.argmax(np.asarray(batch.starts)[row, last::-1]))
        whole = np.concatenate([first[row, start : start + 1], observations[row, start : last + 1]])
        for column in whole.T:
            seen = np.flatnonzero(~np.isnan(column))
            column[:] = np.interp(np.arange(len(column)), seen, column[seen]) if len(seen) else 0.0
        first[row, start] = whole[0]
        observations[row, start : last + 1] = whole[1:]
    return with_observations(batch, observations, first)


def with_observations(
    batch: Batch, observations: Float[np.ndarray, "row time obs"], reset: Float[np.ndarray, "row time obs"]
) -> Batch:
    """Return the batch with other observations.

    Args:
        batch: the batch.
        observations: o_t.
        reset: the reset observations, at the first steps of episodes. Elsewhere it is not used.
    """
    before = np.roll(observations, 1, axis=1)
    before = np.where(np.asarray(batch.starts)[..., None], reset, before) * np.asarray(batch.mask)[..., None]
    return replace(batch, observations=observations, previous_observations=before.astype(np.float32), states=None)


def completed(filter: GapFilter, batch: Batch) -> Batch:
    """Fill gaps with what the filter expects, given earlier readings and the others of the same step.

    Expectations outside the range of the readings are clipped to it.
    """
    states = compiled_unroll(filter, batch)
    observations, reset = _complete(filter, states, batch.actions, batch.observations, batch.previous_observations)
    readings = np.asarray(batch.observations)[np.asarray(batch.mask)]
    low, high = np.nanmin(readings, axis=0, initial=0.0), np.nanmax(readings, axis=0, initial=0.0)
    fills = (np.clip(np.nan_to_num(x), low, high) for x in (observations, reset))
    given = batch.observations, batch.previous_observations
    full = [np.where(np.isnan(x), fill, x) for x, fill in zip(given, fills, strict=True)]
    return with_observations(batch, *full)


@eqx.filter_jit
def _complete(
    filter: GapFilter, states: Numbers, actions: Numbers, observations: Numbers, previous: Numbers
) -> tuple[Float[Array, "row time obs"], Float[Array, "row time obs"]]:
    every = jax.vmap(jax.vmap(filter.complete))
    nothing, start = jnp.zeros_like(actions), jnp.broadcast_to(filter.init(), states.shape)
    return every(states, jnp.asarray(actions), jnp.asarray(observations)), every(start, nothing, jnp.asarray(previous))


ROUNDS = 2
"""Number of fits to gaps that the fitted filter has filled."""
EM_STEPS = 2
"""Number of updates of the noise, given the readings that came."""
MOST = 1 << 14
"""Maximum number of steps that an update of the noise uses."""


def fit_with_gaps(
    belief: Belief, batch: Batch, held_out: Batch, *, rounds: int = ROUNDS, key: PRNGKeyArray
) -> GapFilter:
    """Fit a filter to episodes in which readings are missing.

    The gaps are filled by interpolation, and then `rounds` times by the fitted filter, which is fitted again every time.

    Args:
        belief: the settings of the filter.
        batch: training episodes, with NaN where readings are missing.
        held_out: held-out episodes.
        rounds: number of fits after the first one. Without gaps there is none.
        key: the source of all randomness of the fits.
    """
    both = interpolated(batch), interpolated(held_out)
    found = wrapped(belief.fit(*both, key=key), (batch, held_out), both, belief.discrete)
    for _ in range(rounds if has_gaps(batch) else 0):
        both = completed(found, batch), completed(found, held_out)
        found = wrapped(belief.fit(*both, key=key), (batch, held_out), both, belief.discrete)
    return found


def fit_tolerant(belief: Belief, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> GapFilter | MarkedFilter:
    """Fit a filter that goes on working while readings are missing: a `GapFilter`, or a `MarkedFilter`.

    Args:
        belief: the settings of the filter.
        batch: training episodes, with NaN where readings are missing.
        held_out: held-out episodes.
        key: the source of all randomness of the fits.
    """
    fit = fit_marked if belief.marks else fit_with_gaps
    return fit(belief, batch, held_out, key=key)


def refit_with_gaps(
    belief: Belief, filter: GapFilter, batch: Batch, held_out: Batch, *, key: PRNGKeyArray
) -> GapFilter:
    """Refit a filter to episodes in which readings are missing; the filter in use fills the gaps.

    Args:
        belief: the settings of the filter.
        filter: the filter in use.
        batch: recent training episodes, with NaN where readings are missing.
        held_out: recent held-out episodes.
        key: the source of all randomness of the fit.
    """
    filter = _trusted(filter, held_out)
    both = completed(filter, batch), completed(filter, held_out)
    inner = belief.refit(filter.inner, *both, key=key) or filter.inner
    return wrapped(inner, (batch, held_out), both, belief.discrete)


def wrapped(filter: AbstractFilter, given: tuple[Batch, Batch], full: tuple[Batch, Batch], discrete: bool) -> GapFilter:
    """Fit what a `GapFilter` needs beside its filter.

    The noise is estimated by expectation–maximisation: E[e eᵀ | readings] of all steps, then the noise that has these
    moments, `EM_STEPS` times.

    Args:
        filter: the filter.
        given: training and held-out episodes, with NaN where readings are missing.
        full: the same without gaps.
        discrete: whether observations are symbols.
    """
    reset = np.asarray(full[0].starts) & np.asarray(full[0].mask)
    readings = np.asarray(full[0].previous_observations, np.float64)[reset]
    mean, obs = readings.mean(axis=0), readings.shape[1]
    if discrete:
        empty = np.zeros((obs, obs)), np.zeros((0, obs))
        return to_float32(GapFilter(filter, SymbolUncertainty(), mean, *empty))
    fitted, held = steps_of(filter, *full)
    covariance = second_moment(readings - mean) + 1e-6 * np.eye(obs)
    states = np.asarray(compiled_unroll(filter, full[0]), np.float64)[reset]
    of_states = ridge(np.insert(readings - mean, 0, 1.0, axis=1), states, 1e-3 * len(states))[1:]

    def with_noise(noise: Noise) -> GapFilter:
        uncertainty = uncalibrated(noise, fitted)
        reduced = np.linalg.pinv(np.asarray(uncertainty.propagation.T, np.float64))
        return to_float32(GapFilter(filter, uncertainty, mean, covariance, reduced @ of_states.T))

    found = with_noise(fit_noise(fitted, held))
    for _ in range(EM_STEPS if has_gaps(given[0]) else 0):
        found = with_noise(
            fit_noise(*(_given_readings(found, *each) for each in zip(given, (fitted, held), strict=True)))
        )
    found = _trusted(found, given[1])
    calibration = calibrated(found, _gaussian(found), given[1])
    fully = trees.replace(lambda u: u.calibration, _gaussian(found), calibration)
    return replace(found, uncertainty=fully)


TRUST = 0.0, 0.25, 0.5, 1.0
"""Candidates of `GapFilter.trust`."""


def _trusted(filter: GapFilter, held_out: Batch) -> GapFilter:
    """Return the filter with the trust in its corrections that predicts the readings of held-out episodes best.

    The smallest one counts as best within 1 %, because corrections by an approximation can make a nonlinear filter
    unstable at states that these episodes do not reach.
    """
    if not has_gaps(held_out):
        return filter
    candidates = [replace(filter, trust=jnp.asarray(trust, jnp.float32)) for trust in TRUST]
    errors = [one_step_error(candidate, held_out) for candidate in candidates]
    return next(c for c, error in zip(candidates, errors, strict=True) if not error > 1.01 * min(errors))


def _gaussian(filter: GapFilter) -> GaussianUncertainty:
    assert isinstance(filter.uncertainty, GaussianUncertainty)
    return filter.uncertainty


def _given_readings(filter: GapFilter, batch: Batch, steps: Steps) -> Steps:
    """Return at most `MOST` of these steps, with E[e eᵀ | readings] in the place of the innovations' squares."""
    every = -(-len(steps.states) // MOST)
    mask = flat(batch.mask)
    states, actions, observations = (
        flat(x)[mask][::every] for x in (compiled_unroll(filter, batch), batch.actions, batch.observations)
    )
    moments = in_few_shapes(_moments, filter, _gaussian(filter), states, actions, observations)
    kept = Steps(*(x[::every] for x in steps[:5]))
    return kept._replace(moments=np.asarray(moments, np.float64))


@eqx.filter_jit
def _moments(
    filter: GapFilter, uncertainty: GaussianUncertainty, states: Numbers, actions: Numbers, observations: Numbers
) -> Float[Array, "n obs obs"]:
    def of_one(given: tuple[Array, Array, Array]) -> Array:
        q, action, observation = given
        state, _, P = filter.parts(q)
        seen = ~jnp.isnan(observation)
        S = uncertainty.noise.covariance(state, action)
        scale, factor = observed_factor(uncertainty.propagation.observed(P, S), seen)
        columns = S * jnp.where(seen, 1 / scale, 0.0)
        gain = solve(factor, columns.T).T
        error = jnp.nan_to_num(observation) - filter.inner.predict(state, action)
        e = gain @ jnp.where(seen, error / scale, 0.0)
        return jnp.outer(e, e) + S - gain @ columns.T

    given = jnp.asarray(states), jnp.asarray(actions), jnp.asarray(observations)
    return jax.lax.map(of_one, given, batch_size=1024)


def uncertainty_of(filter: AbstractFilter, batch: Batch, held_out: Batch, *, discrete: bool) -> AbstractUncertainty:
    """Return the predictive distribution of a filter: a `GapFilter`'s own, or one that is fitted here.

    Args:
        filter: the filter.
        batch: training episodes.
        held_out: held-out episodes.
        discrete: whether observations are symbols.
    """
    if isinstance(filter, GapFilter):
        return filter.uncertainty
    return SymbolUncertainty() if discrete else fit_uncertainty(filter, batch, held_out)
