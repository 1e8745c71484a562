"""Simple baselines for predictions: the mean, persistence and autoregression.

They are filters, so that the same functions unroll, forecast and evaluate them.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

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
    """Regression on the last p observations and actions.

        q_t = h_t
        o_t ≈ W_predᵀ [1, h_t, a_t, φ(h_t, a_t)]

    where h_t is the history and φ are additional features. The history has the layout of `windows.history`, including
    padding and the known fraction. In q_0 = 0 the known fraction is 0.
    """

    W_pred: Float[Numbers, "phi obs"]
    """Weights of the prediction."""
    past: int = eqx.field(static=True)
    """p: number of observations and actions in the state."""
    actions: int = eqx.field(static=True)
    """Size of an action."""
    features: FeatureMap = constant()
    """φ."""

    def init(self) -> Float[Array, " q"]:
        """Return q_0 = 0."""
        return jnp.zeros(self.past * (self.W_pred.shape[1] + self.actions) + 1)

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """Append the observation and the action to the history. The first observation fills the whole history."""
        o = observation.shape[0] * self.past
        seen, done, known = q[:o], q[o:-1], q[-1]
        shifted = jnp.concatenate([seen[observation.shape[0] :], observation])
        seen = jnp.where(known == 0, jnp.tile(observation, self.past), shifted)
        done = jnp.concatenate([done[action.shape[0] :], action])
        known = jnp.minimum(known + 1 / self.past, 1.0)
        return jnp.concatenate([seen, done, known[None]])

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """Return W_predᵀ [1, h_t, a_t, φ(h_t, a_t)]."""
        return _inputs(jnp.concatenate([q, action]), self.features) @ self.W_pred


class Nothing(eqx.Module):
    """Feature map without features, for a linear regression."""

    def __call__(self, x: Float[Numbers, "*rows x"]) -> Float[Numbers, "*rows 0"]:
        """Return an array without columns."""
        return x[..., :0]


class Fourier(eqx.Module):
    """Random Fourier features [cos(Ωᵀx), sin(Ωᵀx)]/√n with n frequencies Ω."""

    frequencies: Float[Numbers, "x n"]

    def __call__(self, x: Float[Numbers, "*rows x"]) -> Float[Numbers, "*rows two_n"]:
        """Return [cos(Ωᵀx), sin(Ωᵀx)]/√n."""
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
    """Fit an autoregression by ridge regression from [1, h_t, a_t] to o_t.

    Args:
        batch: training episodes.
        held_out: held-out episodes, on which the ridge is chosen.
        past: number of observations and actions in the history h_t.
        frequencies: number of random Fourier frequencies of additional features. Default: 0 (a linear regression).
        ridges: candidate ridges.
        rng: random generator of the frequencies.
    """
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
    """Create a filter that predicts the previous observation, o_t ≈ o_{t-1}.

    Args:
        observations: size of an observation.
        actions: size of an action.
    """
    return observation_window(1, observations, actions)


def mean_prediction(batch: Batch) -> ObservationWindow:
    """Create a filter that always predicts the mean observation of a batch."""
    mean = flat(batch.observations)[flat(batch.mask)].mean(axis=0)
    W = np.zeros((len(mean) + batch.actions.shape[-1] + 1, len(mean)))
    W[-1] = mean
    return to_float32(ObservationWindow(W, 1))
