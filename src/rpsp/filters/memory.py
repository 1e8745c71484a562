"""Filters that are not predictive states: a window of observations, and a GRU."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.data.arrays import Numbers
from rpsp.filters.base import AbstractFilter


class ObservationWindow(AbstractFilter):
    """Finite memory: q_t = o_{t-w:t-1}, oldest first, zeros (the mean reading) before the episode began.

    Predicts linearly, o_t ≈ W_predᵀ [q_t, a_t, 1].
    """

    W_pred: Float[Numbers, "q_a_1 obs"]
    window: int = eqx.field(static=True)

    def init(self) -> Float[Array, " q"]:
        return jnp.zeros(self.window * self.W_pred.shape[1])

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        return jnp.concatenate([q, observation])[observation.shape[0] :]

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        return jnp.concatenate([q, action, jnp.ones(1)]) @ self.W_pred


def observation_window(window: int, observations: int, actions: int) -> ObservationWindow:
    """A window that predicts persistence until it is fitted: o_t ≈ o_{t-1}."""
    W = np.zeros((window * observations + actions + 1, observations), np.float32)
    newest = (window - 1) * observations
    W[newest : newest + observations] = np.eye(observations)
    return ObservationWindow(jnp.asarray(W), window)


class GRU(AbstractFilter):
    """A gated recurrent unit over (o_t, a_t); the prediction is linear in its state and the next action."""

    cell: eqx.nn.GRUCell
    decoder: eqx.nn.Linear
    q0: Float[Array, " q"]

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
