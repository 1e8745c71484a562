"""Predictive distributions: the mean and the covariance of the next observations, for every filter.

What a filter cannot predict one step ahead, its *innovation*, is enough to know how uncertain later predictions are. With
q the state, a the action, o the observation, and g and f the prediction and the update of the filter,

    o_t     = g(q_t, a_t) + e_t,         e_t ~ N(0, S(q_t, a_t))
    q_{t+1} = f(q_t, a_t, o_t)

`Noise` is S, regressed on the state. `Propagation` is a linear approximation of how an innovation changes the state and
later predictions. It gives the covariance of forecasts, and it corrects the state after missing readings (`gaps`). Both
are exact for linear-Gaussian systems. `Calibration` corrects the widths of the bands on held-out episodes.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# scipy has no stubs.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.special import gammainccinv, ndtri

from rpsp.data.arrays import Numbers
from rpsp.filters.base import AbstractFilter, constant
from rpsp.filters.small_solves import cholesky, forward


class Forecast(NamedTuple):
    """The distribution of the next h observations, each by its own mean and covariance."""

    mean: Float[Array, "h obs"]
    covariance: Float[Array, "h obs obs"]


class AbstractUncertainty(eqx.Module):
    """How far observations are from a filter's predictions. Methods process one trajectory, as those of filters do.

    `q` is the state of the filter and `P` the covariance of its reduced coordinates, [r, r]: zeros, `certain()`, unless
    readings are missing.
    """

    @abc.abstractmethod
    def certain(self) -> Float[Array, "r r"]:
        """Return P = 0, for a state that is based on readings without gaps."""

    @abc.abstractmethod
    def forecast(
        self, filter: AbstractFilter, q: Float[Array, " q"], P: Float[Array, "r r"], actions: Float[Array, "h act"]
    ) -> Forecast:
        """Return mean and covariance of o_t, o_{t+1}, …, given the actions of these steps.

        Args:
            filter: the filter.
            q: the state q_t.
            P: the covariance of its reduced coordinates.
            actions: a_t, a_{t+1}, …
        """

    @abc.abstractmethod
    def log_density(self, forecast: Forecast, observation: Float[Array, " obs"]) -> Float[Array, ""]:
        """Return the log-density of the coordinates of o_t that are not NaN, given the first step of a forecast."""

    @abc.abstractmethod
    def draw(self, forecast: Forecast, *, key: PRNGKeyArray) -> Float[Array, " obs"]:
        """Draw o_t from the first step of a forecast."""

    def sample(
        self,
        filter: AbstractFilter,
        q: Float[Array, " q"],
        P: Float[Array, "r r"],
        actions: Float[Array, "h act"],
        *,
        key: PRNGKeyArray,
    ) -> Float[Array, "h obs"]:
        """Draw one future: every observation is drawn given those before it, with which the filter is updated.

        Args:
            filter: the filter.
            q: the state q_t.
            P: the covariance of its reduced coordinates.
            actions: a_t, a_{t+1}, …
            key: random key.
        """

        def advance(q: Array, given: tuple[Array, Array]) -> tuple[Array, Array]:
            action, key = given
            drawn = self.draw(self.forecast(filter, q, self.certain(), action[None]), key=key)
            return filter.update(q, action, drawn), drawn

        state_key, *keys = jax.random.split(key, len(actions) + 1)
        return jax.lax.scan(advance, self.perturbed(q, P, key=state_key), (actions, jnp.stack(keys)))[1]

    def perturbed(self, q: Float[Array, " q"], P: Float[Array, "r r"], *, key: PRNGKeyArray) -> Float[Array, " q"]:
        """Draw a state from N(q, P). Default: the state, which is certain."""
        return q


class SymbolUncertainty(AbstractUncertainty):
    """Distribution of symbols, as one-hot vectors, for filters that predict their probabilities. Exact for tables."""

    def certain(self) -> Float[Array, "r r"]:
        """Return an empty array: a probability table contains its uncertainty."""
        return jnp.zeros((0, 0))

    def forecast(self, filter: AbstractFilter, q: Array, P: Array, actions: Array) -> Forecast:
        """Return the probabilities p of the symbols, and diag(p) − p pᵀ."""

        def advance(q: Array, action: Array) -> tuple[Array, Array]:
            p = probabilities(filter.predict(q, action))
            return filter.update(q, action, p), p

        p = jax.lax.scan(advance, q, actions)[1]
        return Forecast(p, jnp.eye(p.shape[1]) * p[:, None, :] - p[:, :, None] * p[:, None, :])

    def log_density(self, forecast: Forecast, observation: Array) -> Float[Array, ""]:
        """Return log p of the symbol that occurred; 0 if it is missing."""
        seen = jnp.nan_to_num(observation)
        return jnp.where(jnp.isnan(observation).any(), 0.0, jnp.log(jnp.maximum(seen @ forecast.mean[0], 1e-12)))

    def draw(self, forecast: Forecast, *, key: PRNGKeyArray) -> Float[Array, " obs"]:
        """Draw a symbol, as a one-hot vector."""
        p = forecast.mean[0]
        return jax.nn.one_hot(jax.random.categorical(key, jnp.log(jnp.maximum(p, 1e-30))), p.shape[0])


def probabilities(p: Float[Array, " symbols"]) -> Float[Array, " symbols"]:
    """Clip predictions to ≥ 0 and normalise them."""
    p = jnp.maximum(p, 0.0)
    total = p.sum()
    return jnp.where(total > 1e-12, p / jnp.where(total > 1e-12, total, 1.0), 1.0 / p.shape[0])


class Noise(eqx.Module):
    """Covariance of the innovations, given state and action.

        S(q, a) = L diag(v) Lᵀ,  v = exp(clip(Wᵀ φ(q, a)))

    where L diag(1) Lᵀ is the covariance over all steps, and φ = [1, z, z² − 1] with z the clipped principal components of
    [q, a]. With W = 0 the covariance is constant. It is positive definite for every W.
    """

    root: Float[Numbers, "obs obs"] = constant()
    """L."""
    inverse: Float[Numbers, "obs obs"] = constant()
    """L⁻¹."""
    W: Float[Numbers, "phi obs"] = constant()
    """Weights of the logarithms of variances."""
    mean: Float[Numbers, " q_a"] = constant()
    """Mean of [q, a]."""
    projection: Float[Numbers, "q_a z"] = constant()
    """Maps [q, a] − mean to z, before clipping."""

    def features(self, q: Float[Numbers, "*n q"], action: Float[Numbers, "*n act"]) -> Float[Numbers, "*n phi"]:
        """Return φ(q, a). Works on NumPy and JAX arrays."""
        xp = q.__array_namespace__()
        z = xp.clip((xp.concat([q, action], axis=-1) - self.mean) @ self.projection, -CLIP, CLIP)
        return xp.concat([xp.ones_like(q[..., :1]), z, z**2 - 1], axis=-1)

    def variances(self, q: Float[Array, " q"], action: Float[Array, " act"]) -> Float[Array, " obs"]:
        """Return v, the variances of the whitened innovation L⁻¹ e."""
        return jnp.exp(jnp.clip(self.features(q, action) @ self.W, -LOG_RANGE, LOG_RANGE))

    def covariance(self, q: Float[Array, " q"], action: Float[Array, " act"]) -> Float[Array, "obs obs"]:
        """Return S(q, a)."""
        return (self.root * self.variances(q, action)) @ self.root.T


CLIP = 4.0
"""Inputs of `Noise` are clipped to this many standard deviations: its squares must not explode far from the data."""
LOG_RANGE = 6.0
"""Variances differ from their mean by at most a factor of exp(6) = 400."""


class Propagation(eqx.Module):
    """Linear approximation of how uncertainty moves, in r coordinates x = Tᵀ q of the state.

        Cov(o) = C P Cᵀ + S
        P'     = A P Aᵀ + B S Bᵀ               if the reading is missing

    where P is the covariance of x. `gaps` has the case that some sensors were read.
    """

    A: Float[Numbers, "r r"] = constant()
    """∂x_{t+1}/∂x_t if the filter is updated with its own prediction."""
    B: Float[Numbers, "r obs"] = constant()
    """∂x_{t+1}/∂o_t."""
    C: Float[Numbers, "obs r"] = constant()
    """∂g/∂x_t."""
    T: Float[Numbers, "q r"] = constant()
    """Directions of the state that innovations move, orthonormal."""
    limit: Float[Numbers, " r"] = constant()
    """Largest accepted standard deviations of x."""

    def observed(self, P: Float[Array, "r r"], S: Float[Array, "obs obs"]) -> Float[Array, "obs obs"]:
        """Return Cov(o) = C P Cᵀ + S."""
        return self.C @ P @ self.C.T + S

    def missed(self, P: Float[Array, "r r"], S: Float[Array, "obs obs"]) -> Float[Array, "r r"]:
        """Return P' after a step without a reading."""
        return self.bounded(self.A @ P @ self.A.T + self.B @ S @ self.B.T)

    def bounded(self, P: Float[Array, "r r"]) -> Float[Array, "r r"]:
        """Return P, symmetric, with standard deviations of at most `limit`. It stays positive semi-definite."""
        shrink = jnp.minimum(1.0, self.limit / jnp.sqrt(jnp.maximum(jnp.diagonal(P), 1e-30)))
        return (P + P.T) / 2 * shrink[:, None] * shrink


class Calibration(eqx.Module):
    """Corrections of the forecasts' standard deviations on held-out episodes, for each horizon and coordinate."""

    factors: Float[Numbers, "h obs"] = constant()
    """Root mean square of (o − mean)/σ. Standard deviations are multiplied by it."""
    quantiles: Float[Numbers, "h level obs"] = constant()
    """Quantiles of |o − mean|/σ at `LEVELS`, with the corrected σ: half the width of the bands (split conformal)."""
    surprises: Float[Numbers, "window tail"] = constant(default_factory=lambda: gaussian_surprises())
    """Levels of surprise (`surprise`) that a share `TAILS` of steps exceeds; of means over the last `WINDOWS` readings."""


LEVELS = (*np.arange(0.05, 0.95, 0.05).round(2).tolist(), 0.95, 0.975, 0.99, 0.995)
"""Levels at which quantiles of errors are kept. Bands of other levels are interpolated."""


TAILS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""Shares of steps whose surprise is higher than the levels that are kept."""
WINDOWS = 1, 10
"""Numbers of readings over which surprise is averaged."""


def gaussian_surprises() -> Float[np.ndarray, "window tail"]:
    """Return the levels that belong to Gaussian innovations: L is exponential, a mean of n is a Gamma variable over n."""
    return np.stack([gammainccinv(n, TAILS) / n for n in WINDOWS]).astype(np.float32)


class GaussianUncertainty(AbstractUncertainty):
    """Gaussian distributions of observations that are numbers."""

    noise: Noise
    propagation: Propagation
    calibration: Calibration

    def certain(self) -> Float[Array, "r r"]:
        """Return P = 0."""
        r = self.propagation.A.shape[0]
        return jnp.zeros((r, r))

    def forecast(self, filter: AbstractFilter, q: Array, P: Array, actions: Array) -> Forecast:
        """Return `raw` with covariances that are corrected by `calibration`."""
        mean, covariance = self.raw(filter, q, P, actions)
        factors = self.factors(len(actions))
        return Forecast(mean, covariance * factors[:, :, None] * factors[:, None, :])

    def raw(self, filter: AbstractFilter, q: Array, P: Array, actions: Array) -> Forecast:
        """Return the means of `rpsp.filters.base.forecast`, and the covariances of `propagation`."""

        def advance(carry: tuple[Array, Array], action: Array) -> tuple[tuple[Array, Array], Forecast]:
            q, P = carry
            expected, S = filter.predict(q, action), self.noise.covariance(q, action)
            found = Forecast(expected, self.propagation.observed(P, S))
            return (filter.update(q, action, expected), self.propagation.missed(P, S)), found

        return jax.lax.scan(advance, (q, P), actions)[1]

    def factors(self, horizon: int) -> Float[Array, "h obs"]:
        """Return the corrections for 1 to `horizon` steps ahead. Beyond the calibrated ones, the last is repeated."""
        known = jnp.asarray(self.calibration.factors)
        return known[jnp.minimum(jnp.arange(horizon), len(known) - 1)]

    def half_widths(self, level: float, horizon: int) -> Float[np.ndarray, "h obs"]:
        """Return half the width of the bands that contain a fraction `level` of observations, in standard deviations.

        Args:
            level: between 0 and 1.
            horizon: number of steps ahead.
        """
        quantiles = np.asarray(self.calibration.quantiles, np.float64)
        # Gaussian half-widths make interpolation nearly linear, also beyond the last level.
        gaussian, wanted = ndtri((1 + np.array(LEVELS)) / 2), float(ndtri((1 + level) / 2))
        if wanted >= gaussian[-1]:
            found = quantiles[:, -1] * wanted / gaussian[-1]
        else:
            grid, values = np.append(0.0, gaussian), np.insert(quantiles, 0, 0.0, axis=1)
            i = int(np.searchsorted(grid, wanted, side="right")) - 1
            share = (wanted - grid[i]) / (grid[i + 1] - grid[i])
            found = values[:, i] + share * (values[:, i + 1] - values[:, i])
        return found[np.minimum(np.arange(horizon), len(found) - 1)]

    def exported(self) -> dict[str, np.ndarray]:
        """Return the arrays of act.py's `noise`, and of the calibration one step ahead."""
        noise, known = self.noise, self.calibration
        arrays = {f"noise_{name}": getattr(noise, name) for name in ("root", "W", "mean", "projection")}
        arrays |= {"factors": known.factors[0], "surprises": known.surprises[0], "tails": np.array(TAILS)}
        return {name: np.asarray(x, np.float64) for name, x in arrays.items()}

    def log_density(self, forecast: Forecast, observation: Array) -> Float[Array, ""]:
        """Return log N(o; mean, covariance) of the coordinates that are not NaN."""
        seen = ~jnp.isnan(observation)
        error = jnp.where(seen, jnp.nan_to_num(observation) - forecast.mean[0], 0.0)
        scale, factor = observed_factor(forecast.covariance[0], seen)
        white = forward(factor, error / scale)
        logs = jnp.log(scale) + jnp.log(jnp.diagonal(factor)) + 0.5 * jnp.log(2 * jnp.pi)
        return -0.5 * white @ white - jnp.where(seen, logs, 0.0).sum()

    def draw(self, forecast: Forecast, *, key: PRNGKeyArray) -> Float[Array, " obs"]:
        """Draw from N(mean, covariance)."""
        scale, factor = observed_factor(forecast.covariance[0], jnp.ones(forecast.mean.shape[1], bool))
        return forecast.mean[0] + scale * (factor @ jax.random.normal(key, forecast.mean.shape[1:]))

    def perturbed(self, q: Array, P: Array, *, key: PRNGKeyArray) -> Float[Array, " q"]:
        """Draw a state from N(q, T P Tᵀ)."""
        values, vectors = jnp.linalg.eigh(P)
        drawn = vectors @ (jnp.sqrt(jnp.maximum(values, 0.0)) * jax.random.normal(key, values.shape))
        return q + self.propagation.T @ drawn


def observed_factor(
    covariance: Float[Array, "obs obs"], seen: Float[Array, " obs"] | Array
) -> tuple[Float[Array, " obs"], Float[Array, "obs obs"]]:
    """Factorise the covariance of the coordinates that were read. The others count as independent with variance 1.

    Correlations get a ridge of 1e-5, so that a singular covariance in float32 has a factor, too.

    Args:
        covariance: of all coordinates.
        seen: which coordinates were read.

    Returns:
        The standard deviations s, and the lower factor F of the correlations: s F Fᵀ s is the covariance.
    """
    scale = jnp.where(seen, jnp.sqrt(jnp.maximum(jnp.diagonal(covariance), 1e-12)), 1.0)
    both = jnp.outer(seen, seen)
    correlation = jnp.where(both, covariance / jnp.outer(scale, scale), 0.0) / (1 + RIDGE)
    return scale, cholesky(correlation * (1 - jnp.eye(len(scale))) + jnp.eye(len(scale)))


RIDGE = 1e-5
