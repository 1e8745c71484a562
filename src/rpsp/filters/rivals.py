"""The obvious alternatives that a belief must beat: the mean, persistence, autoregression. All of them are filters.

Being filters, they go through the same unrolling, forecasting and scoring as everything else.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.data.linalg import NormalEquations
from rpsp.data.windows import flat, histories
from rpsp.filters.base import AbstractFilter, constant, one_step_error, to_float32
from rpsp.filters.features import FeatureMap, fourier, kernel_width
from rpsp.filters.memory import ObservationWindow, observation_window


class Autoregression(AbstractFilter):
    """q_t = h_t, the last p observations and actions; o_t ≈ W_predᵀ [1, h_t, a_t, φ(h_t, a_t)].

    The state is laid out as in `windows.history`, padding and known fraction included; q_0 = 0 has nothing known.
    """

    W_pred: Float[Numbers, "phi obs"]
    past: int = eqx.field(static=True)
    actions: int = eqx.field(static=True)
    features: FeatureMap = constant()

    def init(self) -> Float[Array, " q"]:
        return jnp.zeros(self.past * (self.W_pred.shape[1] + self.actions) + 1)

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        o = observation.shape[0] * self.past
        seen, done, known = q[:o], q[o:-1], q[-1]
        shifted = jnp.concatenate([seen[observation.shape[0] :], observation])
        seen = jnp.where(known == 0, jnp.tile(observation, self.past), shifted)
        done = jnp.concatenate([done[action.shape[0] :], action])
        known = jnp.minimum(known + 1 / self.past, 1.0)
        return jnp.concatenate([seen, done, known[None]])

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        return _inputs(jnp.concatenate([q, action]), self.features) @ self.W_pred


class Nothing(eqx.Module):
    """No features beyond the linear ones."""

    def __call__(self, x: Float[Numbers, "*rows x"]) -> Float[Numbers, "*rows 0"]:
        return x[..., :0]


class Fourier(eqx.Module):
    """[cos(Ωᵀx), sin(Ωᵀx)]/√n."""

    frequencies: Float[Numbers, "x n"]

    def __call__(self, x: Float[Numbers, "*rows x"]) -> Float[Numbers, "*rows two_n"]:
        return fourier(x, self.frequencies)


def _inputs(x: Float[Numbers, "*rows x"], features: FeatureMap) -> Float[Numbers, "*rows phi"]:
    xp = x.__array_namespace__()
    return xp.concat([xp.ones_like(x[..., :1]), x, features(x)], axis=-1)


def fit_autoregression(
    batch: Batch,
    held_out: Batch,
    *,
    past: int = 10,
    frequencies: int = 0,
    ridges: tuple[float, ...] = (1e-4, 1e-2, 1.0),
    rng: np.random.Generator,
) -> Autoregression:
    """Ridge from [1, h_t, a_t] (and Fourier features of it) to o_t; the ridge is chosen on held-out episodes."""
    actions, observations = flat(batch.actions).astype(np.float64), flat(batch.observations).astype(np.float64)
    features: FeatureMap = Nothing()
    equations = None
    for steps, h in histories(batch, past):
        x = np.concatenate([h, actions[steps]], axis=1)
        if equations is None:
            if frequencies:
                width = kernel_width(x, 95.0, rng=rng)
                features = Fourier(rng.standard_normal((x.shape[1], frequencies)) / width)
            equations = NormalEquations(_inputs(x[:1], features).shape[1], observations.shape[1])
        equations.add(_inputs(x, features), observations[steps])
    assert equations is not None  # a batch has at least one step
    fitted = [to_float32(Autoregression(equations.solve(r), past, actions.shape[1], features)) for r in ridges]
    return min(fitted, key=lambda filter: one_step_error(filter, held_out))


def persistence(observations: int, actions: int) -> ObservationWindow:
    """o_t ≈ o_{t-1}."""
    return observation_window(1, observations, actions)


def mean_prediction(batch: Batch) -> ObservationWindow:
    """o_t ≈ the mean observation."""
    mean = flat(batch.observations)[flat(batch.mask)].mean(axis=0)
    W = np.zeros((len(mean) + batch.actions.shape[-1] + 1, len(mean)))
    W[-1] = mean
    return to_float32(ObservationWindow(W, 1))
