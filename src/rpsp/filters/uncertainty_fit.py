"""Fit the predictive distribution of a filter in closed form: regressions on the states that it reaches."""

# scipy has no stubs. jax's stubs leave the type of devices unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ndtri

from rpsp.data import trees
from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.data.linalg import principal_directions, ridge
from rpsp.data.windows import flat, longest_episode, window_index
from rpsp.filters.base import AbstractFilter, compiled_unroll, to_float32
from rpsp.filters.gaps import state_and_covariance, without_gaps
from rpsp.filters.surprise import Innovation, innovation, recent
from rpsp.filters.uncertainty import (
    LEVELS,
    LOG_RANGE,
    TAILS,
    WINDOWS,
    Calibration,
    GaussianUncertainty,
    Noise,
    Propagation,
    gaussian_surprises,
)

COMPONENTS = 20
"""Maximum number of principal components of state and action that the noise depends on."""
REDUCED = 16
"""Maximum number of coordinates in which uncertainty is propagated."""
MEMORY = 30
"""Number of steps without a reading over which the directions of uncertainty are summed."""
HORIZON = 20
"""Number of steps ahead for which forecasts are calibrated."""
RIDGES = (np.inf, 1000.0, 100.0, 10.0)
"""Candidate ridges of the logarithms of variances, chosen on held-out steps. The first is a constant covariance."""
FLOOR = 1e-9
"""Smallest variance of an innovation: the square of the rounding error of float32, for standardised observations."""


class Steps(NamedTuple):
    """Steps of episodes with what the filter made of them, in float64."""

    states: Float[np.ndarray, "n q"]
    """q_t."""
    actions: Float[np.ndarray, "n act"]
    """a_t."""
    innovations: Float[np.ndarray, "n obs"]
    """e_t = o_t − g(q_t, a_t)."""
    later: Float[np.ndarray, "n q"]
    """f(q_t, a_t, o_t)."""
    predicted: Float[np.ndarray, "n obs"]
    """g(q_t, a_t)."""
    moments: Float[np.ndarray, "n obs obs"] | None = None
    """E[e_t e_tᵀ | readings], if some are missing; otherwise it is e_t e_tᵀ."""

    def second_moment(self) -> Float[np.ndarray, "obs obs"]:
        """Return the mean of e eᵀ."""
        if self.moments is not None:
            return self.moments.mean(axis=0)
        return second_moment(self.innovations)

    def squares(self, inverse: Float[np.ndarray, "obs obs"]) -> Float[np.ndarray, "n obs"]:
        """Return the squares of the whitened innovations L⁻¹ e."""
        if self.moments is not None:
            return np.maximum(np.einsum("ij,njk,ik->ni", inverse, self.moments, inverse), 0.0)
        return (self.innovations @ inverse.T) ** 2


def fit_uncertainty(filter: AbstractFilter, batch: Batch, held_out: Batch) -> GaussianUncertainty:
    """Fit the predictive distribution of a filter.

    1. Noise: the covariance of innovations over all steps, and by ridge regression its dependence on the state. The
       ridge is chosen by the likelihood of held-out innovations; it is infinite where data are few.
    2. Propagation: linear regressions of the next state on state, action and innovation, and of the prediction on state
       and action.
    3. Calibration: the errors of forecasts from held-out steps, in standard deviations.

    Args:
        filter: the filter.
        batch: training episodes without missing readings. For others see `gaps_fit`.
        held_out: held-out episodes.
    """
    fitted, held = steps_of(filter, batch, held_out)
    uncertainty = uncalibrated(fit_noise(fitted, held), fitted)
    return trees.replace(lambda u: u.calibration, uncertainty, calibrated(filter, uncertainty, held_out))


def uncalibrated(noise: Noise, fitted: Steps) -> GaussianUncertainty:
    """Return the distribution with this noise, the propagation fitted to these steps, and Gaussian bands."""
    propagation, obs = fit_propagation(fitted, noise), noise.root.shape[0]
    quantiles = np.broadcast_to(ndtri((1 + np.array(LEVELS)) / 2)[None, :, None], (1, len(LEVELS), obs))
    return to_float32(GaussianUncertainty(noise, propagation, Calibration(np.ones((1, obs)), quantiles)))


def steps_of(filter: AbstractFilter, *batches: Batch) -> list[Steps]:
    """Return all steps of each batch, with the predictions and the updates of a filter. Compiles one program for all."""
    parts = [[flat(x)[flat(b.mask)] for x in (compiled_unroll(filter, b), b.actions, b.observations)] for b in batches]
    states, actions, observations = (np.concatenate(x) for x in zip(*parts, strict=True))
    predicted, later = (x.astype(np.float64) for x in in_few_shapes(_moved, filter, states, actions, observations))
    whole = Steps(states.astype(np.float64), actions.astype(np.float64), observations - predicted, later, predicted)
    cuts = np.cumsum([len(part[0]) for part in parts])[:-1]
    return [Steps(*each) for each in zip(*(np.split(x, cuts) for x in whole[:5]), strict=True)]


def in_few_shapes(compiled: Callable[..., Any], *given: Any) -> Any:
    """Call a compiled function of one row per step, with as many rows as the next power of two, and cut the result.

    So a refit, which has another number of steps, needs no new compilation.

    Args:
        compiled: the function.
        given: its arguments. Arrays of numpy have one row per step; the others are passed on.
    """
    rows = next(len(x) for x in given if isinstance(x, np.ndarray))
    more = (1 << max(10, (rows - 1).bit_length())) - rows
    wide = [
        np.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1), mode="edge") if isinstance(x, np.ndarray) else x for x in given
    ]
    return trees.map(lambda x: np.asarray(x)[:rows], compiled(*wide))


@eqx.filter_jit
def _moved(
    filter: AbstractFilter, q: Float[Numbers, "n q"], a: Float[Numbers, "n act"], o: Float[Numbers, "n obs"]
) -> tuple[Float[Array, "n obs"], Float[Array, "n q"]]:
    """Return the predictions g(q, a) and the next states f(q, a, o). Processes 1024 steps at a time."""

    def of_one(given: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        q, a, o = given
        return filter.predict(q, a), filter.update(q, a, o)

    return jax.lax.map(of_one, (jnp.asarray(q), jnp.asarray(a), jnp.asarray(o)), batch_size=1024)


# ---------------------------------------------------------------------------------------------------------------------
# Noise
# ---------------------------------------------------------------------------------------------------------------------


def fit_noise(fitted: Steps, held: Steps) -> Noise:
    """Fit the covariance of innovations as a function of state and action.

    The logarithms of the variances are linear in the features. Starting from log-squares, the weights take steps of
    Fisher scoring,

        W ← W + (ΦᵀΦ + ridge)⁻¹ (Φᵀ(z²/v − 1) − ridge W)

    where z are whitened innovations and v their variances. Half of ΦᵀΦ is the Fisher information, whatever W is.

    Args:
        fitted: steps to fit.
        held: held-out steps, to choose the ridge.
    """
    values, vectors = np.linalg.eigh(fitted.second_moment())
    values = np.maximum(values, FLOOR)
    root, inverse = vectors * np.sqrt(values), (vectors / np.sqrt(values)).T
    x = np.concatenate([fitted.states, fitted.actions], axis=1)
    mean, spread = x.mean(axis=0), x.std(axis=0)
    scale = 1 / np.where(spread > 1e-6, spread, np.inf)
    components = principal_directions((x - mean) * scale, COMPONENTS)
    projection = scale[:, None] * components.directions / np.sqrt(np.maximum(components.variances, 1e-3))
    noise = Noise(root, inverse, np.zeros((1 + 2 * projection.shape[1], len(values))), mean, projection)
    Phi, squares = noise.features(fitted.states, fitted.actions), fitted.squares(inverse)
    held_Phi, held_squares = noise.features(held.states, held.actions), held.squares(inverse)
    candidates = [_log_variances(Phi, squares, r) for r in RIDGES if r == np.inf or len(Phi) > 10 * Phi.shape[1]]

    def loss(W: np.ndarray) -> float:
        logs = np.clip(held_Phi @ W, -LOG_RANGE, LOG_RANGE)
        return float(np.mean(logs + held_squares * np.exp(-logs)))

    losses = [loss(W) for W in candidates]
    best = int(np.argmax(np.array(losses) <= min(losses) + 1e-3))  # the simplest of those that are nearly the best
    return trees.replace(lambda n: n.W, noise, candidates[best])


def second_moment(x: Float[np.ndarray, "n obs"]) -> Float[np.ndarray, "obs obs"]:
    """Return the mean of x xᵀ."""
    return x.T @ x / max(1, len(x))


def _log_variances(Phi: np.ndarray, squares: np.ndarray, strength: float) -> Float[np.ndarray, "phi obs"]:
    """Return the weights of the logarithms of variances; only a constant, 0, for an infinite ridge."""
    weights = np.zeros((Phi.shape[1], squares.shape[1]))
    if np.isinf(strength):
        return weights
    penalty = np.full(len(weights), strength)
    penalty[0] = 0.0
    A = Phi.T @ Phi
    A[np.diag_indices_from(A)] += np.maximum(penalty, 1e-9 * np.trace(A) / len(A))
    weights = np.linalg.solve(A, Phi.T @ np.log(squares + 1e-4))

    def ratios() -> np.ndarray:
        return squares * np.exp(-np.clip(Phi @ weights, -LOG_RANGE, LOG_RANGE))

    for _ in range(4):
        weights[0] += np.log(np.mean(ratios(), axis=0) + 1e-12)  # the mean of z²/v is 1
        surprise = np.minimum(ratios(), 20.0) - 1  # limits the effect of outliers
        weights += np.linalg.solve(A, Phi.T @ surprise - penalty[:, None] * weights)
    weights[0] += np.log(np.mean(ratios(), axis=0) + 1e-12)
    return weights


# ---------------------------------------------------------------------------------------------------------------------
# Propagation
# ---------------------------------------------------------------------------------------------------------------------


def fit_propagation(fitted: Steps, noise: Noise) -> Propagation:
    """Fit the linear approximation of update and prediction, and the directions that innovations move.

    The next state is regressed on [1, q_t, a_t, L⁻¹e_t], the prediction on [1, q_t, a_t]. Innovations are uncorrelated
    with the state, so that their effect is well determined even where they are small.

    Args:
        fitted: steps to fit.
        noise: the noise, with L.
    """
    n, q = fitted.states.shape
    act = fitted.actions.shape[1]
    white = fitted.innovations @ np.asarray(noise.inverse).T
    ones = np.ones((n, 1))
    spread = np.maximum(fitted.states.std(axis=0), 1e-9)
    states = (fitted.states - fitted.states.mean(axis=0)) / spread  # so that one ridge suits all coordinates
    inputs = np.concatenate([ones, states, fitted.actions], axis=1)
    W = ridge(np.concatenate([inputs, white], axis=1), fitted.later / spread, 1e-6 * n)
    A, B = W[1 : 1 + q].T, W[1 + q + act :].T @ np.asarray(noise.inverse)
    C = ridge(inputs, fitted.predicted, 1e-6 * n)[1 : 1 + q].T
    S = np.asarray(noise.root) @ np.asarray(noise.root).T
    effect, total = B @ S @ B.T, np.zeros((q, q))
    for _ in range(MEMORY):
        total += effect
        effect = A @ effect @ A.T
        effect *= min(1.0, 1e3 / max(np.trace(effect), 1e-300))  # an approximation may be unstable
    values, vectors = np.linalg.eigh(total)
    # x = Uᵀ D⁻¹ (q − mean) in standardised coordinates: T = D U maps x back, and U is orthonormal there. The number of
    # directions is that of every refit. Those that innovations do not move are 0.
    U = (vectors * (values > 1e-7 * values[-1]))[:, -REDUCED:]
    limit = np.maximum((states @ U).std(axis=0), 0.1)  # without any reading, a state is as uncertain as it varies
    return Propagation(A=U.T @ A @ U, B=U.T @ B, C=C @ U, T=spread[:, None] * U, limit=limit)


# ---------------------------------------------------------------------------------------------------------------------
# Calibration
# ---------------------------------------------------------------------------------------------------------------------


def calibrated(
    filter: AbstractFilter, uncertainty: GaussianUncertainty, batch: Batch, *, most: int = 4000
) -> Calibration:
    """Calibrate forecasts on held-out episodes: the corrections for which bands contain the fractions that they claim.

    Args:
        filter: the filter.
        uncertainty: the distribution. Its own calibration is not used.
        batch: held-out episodes.
        most: maximum number of steps to forecast from, at equal distances.
    """
    horizon = min(HORIZON, longest_episode(batch))
    steps = window_index(batch, 1, horizon - 1).steps
    steps = steps[:: -(-len(steps) // most)]
    ahead = steps[:, None] + np.arange(horizon)
    states = flat(compiled_unroll(filter, batch))[steps]
    found = in_few_shapes(_forecasts, uncertainty, filter, states, flat(batch.actions)[ahead])
    mean, std = (x.astype(np.float64) for x in found)
    ratios = np.abs(flat(batch.observations)[ahead] - mean) / std
    unseen = np.isnan(ratios).all(axis=0)  # a sensor without any reading in these episodes keeps Gaussian bands
    ratios[:, unseen] = np.abs(np.random.default_rng(0).standard_normal((len(ratios), int(unseen.sum()))))
    factors = np.maximum(np.sqrt(np.nanmean(ratios**2, axis=0)), 1e-6)
    quantiles = np.nanquantile(ratios / factors, LEVELS, axis=0, method="higher").transpose(1, 0, 2)
    found = to_float32(Calibration(factors, quantiles))
    corrected = trees.replace(lambda u: u.calibration, uncertainty, found)
    return to_float32(Calibration(factors, quantiles, _surprises(filter, corrected, batch)))


def _surprises(
    filter: AbstractFilter, uncertainty: GaussianUncertainty, batch: Batch
) -> Float[np.ndarray, "window tail"]:
    """Return the quantiles of the surprise of held-out readings; those of Gaussian innovations for too few of them."""
    found = levels_of(filter, uncertainty, batch)
    starts = np.asarray(batch.starts) | ~np.asarray(batch.mask)
    cuts = [np.append(np.flatnonzero(row), len(row)) for row in starts]
    parts = [row[a:b] for row, at in zip(found, cuts, strict=True) for a, b in itertools.pairwise(at)]
    quantiles = gaussian_surprises()
    for i, window in enumerate(WINDOWS):
        means = np.concatenate([recent(part, window) for part in parts if len(part) >= window] or [np.zeros(0)])
        means = means[~np.isnan(means)]
        enough = np.array(TAILS) * len(means) >= 5  # an empirical quantile needs some readings beyond it
        if enough.any():
            tails = np.array(TAILS)[enough]
            quantiles[i, enough] = np.quantile(means, 1 - tails, method="higher")
            ratio = quantiles[i, enough][-1] / gaussian_surprises()[i, enough][-1]
            quantiles[i, ~enough] = gaussian_surprises()[i, ~enough] * max(ratio, 1.0)
    return quantiles


def levels_of(filter: AbstractFilter, uncertainty: GaussianUncertainty, batch: Batch) -> Float[np.ndarray, "row time"]:
    """Return the levels of surprise of all readings of a batch; NaN at padding, and where nothing was read."""
    found = innovations_of(filter, uncertainty, compiled_unroll(filter, batch), batch.actions, batch.observations)
    return np.where(np.asarray(batch.mask), np.asarray(found.level, np.float64), np.nan)


@eqx.filter_jit
def innovations_of(
    filter: AbstractFilter, uncertainty: GaussianUncertainty, states: Numbers, actions: Numbers, observations: Numbers
) -> Innovation:
    """Return the innovations of all steps of a batch, given the states before them. Compiled."""
    inner = without_gaps(filter)

    def of_one(q: Array, action: Array, observation: Array) -> Innovation:
        state, P = state_and_covariance(filter, uncertainty, q)
        return innovation(uncertainty.forecast(inner, state, P, action[None]), observation)

    given = jnp.asarray(states), jnp.asarray(actions), jnp.asarray(observations)
    return jax.vmap(jax.vmap(of_one))(*given)


@eqx.filter_jit
def _forecasts(
    uncertainty: GaussianUncertainty,
    filter: AbstractFilter,
    states: Float[Numbers, "n q"],
    actions: Float[Numbers, "n h act"],
) -> tuple[Float[Array, "n h obs"], Float[Array, "n h obs"]]:
    """Return means and standard deviations of forecasts before calibration."""
    inner = without_gaps(filter)

    def of_one(given: tuple[Array, Array]) -> tuple[Array, Array]:
        q, P = state_and_covariance(filter, uncertainty, given[0])
        mean, covariance = uncertainty.raw(inner, q, P, given[1])
        return mean, jnp.sqrt(jnp.maximum(jnp.diagonal(covariance, axis1=1, axis2=2), 1e-30))

    return jax.lax.map(of_one, (jnp.asarray(states), jnp.asarray(actions)), batch_size=512)
