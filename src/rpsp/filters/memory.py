"""Filters that are not predictive states: an observation window and a GRU."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.data.arrays import Numbers
from rpsp.filters.base import AbstractFilter


class ObservationWindow(AbstractFilter):
    """Finite memory: the state is the window of the last w observations.

        q_t = o_{t-w:t-1}
        o_t ≈ W_predᵀ [q_t, a_t, 1]

    Observations are ordered from oldest to newest. Before the beginning of the episode they are 0, the mean of scaled
    observations.
    """

    W_pred: Float[Numbers, "q_a_1 obs"]
    """Weights of the prediction."""
    window: int = eqx.field(static=True)
    """w: number of observations."""

    def init(self) -> Float[Array, " q"]:
        return jnp.zeros(self.window * self.W_pred.shape[1])

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        return jnp.concatenate([q, observation])[observation.shape[0] :]

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        return jnp.concatenate([q, action, jnp.ones(1)]) @ self.W_pred


def observation_window(window: int, observations: int, actions: int) -> ObservationWindow:
    """Create an observation window that predicts the previous observation, o_t ≈ o_{t-1}, until it is trained.

    Args:
        window: number of observations in the state.
        observations: size of an observation.
        actions: size of an action.
    """
    W = np.zeros((window * observations + actions + 1, observations), np.float32)
    newest = (window - 1) * observations
    W[newest : newest + observations] = np.eye(observations)
    return ObservationWindow(jnp.asarray(W), window)


class GRU(AbstractFilter):
    """Gated recurrent unit with input (o_t, a_t). The prediction is linear in the state and the action.

    Args:
        size: number of units.
        observations: size of an observation.
        actions: size of an action.
        key: random key of the initial weights.
    """

    cell: eqx.nn.GRUCell
    decoder: eqx.nn.Linear
    """Maps [q_t, a_t] to the prediction of o_t."""
    q0: Float[Array, " q"]
    """q_0."""

    def __init__(self, size: int, observations: int, actions: int, *, key: PRNGKeyArray):
        cell_key, decoder_key = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(observations + actions, size, key=cell_key)
        self.decoder = eqx.nn.Linear(size + actions, observations, key=decoder_key)
        self.q0 = jnp.zeros(size)

    def init(self) -> Float[Array, " q"]:
        return self.q0

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        return self.cell(jnp.concatenate([observation, action]), q)

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        return self.decoder(jnp.concatenate([q, action]))
