"""Filters that are not predictive states: an observation window and a GRU."""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.filters.base import AbstractFilter, to_float64
from rpsp.filters.belief import Belief, check_at_least
from rpsp.filters.refinement import refined


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
        """Return q_0 = 0."""
        return jnp.zeros(self.window * self.W_pred.shape[1])

    def exported(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the name of act.py's `window`, which needs no arrays."""
        return "window", {}

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """Append the observation to the window, and remove the oldest one."""
        return jnp.concatenate([q, observation])[observation.shape[0] :]

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """Return W_predᵀ [q_t, a_t, 1]."""
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


@dataclass(frozen=True)
class FiniteMemory(Belief):
    """Finite memory: the last observations. There is nothing to fit."""

    kind: ClassVar[str] = "finite-memory"

    window: int = 2
    """Number of observations."""

    def __post_init__(self) -> None:
        """Check the settings."""
        check_at_least(self, 1, "window")

    def fit(self, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> ObservationWindow:
        """Return a window for observations and actions of this size."""
        return observation_window(self.window, batch.observations.shape[-1], batch.actions.shape[-1])


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
        """Return q_0, a parameter."""
        return self.q0

    def exported(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the arrays of act.py's `gru`.

        Equinox adds bias_n only to the state's part of the third gate, before the reset gate is applied.
        """
        cell = to_float64(self).cell
        assert cell.bias is not None and cell.bias_n is not None  # always set by GRU
        b_state = np.concatenate([np.zeros(2 * cell.hidden_size), cell.bias_n])
        weights = {"W_input": cell.weight_ih, "b_input": cell.bias, "W_state": cell.weight_hh, "b_state": b_state}
        return "gru", {name: np.asarray(x) for name, x in weights.items()}

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """Return the next state of the recurrent unit."""
        return self.cell(jnp.concatenate([observation, action]), q)

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """Return the linear prediction from [q_t, a_t]."""
        return self.decoder(jnp.concatenate([q, action]))


@dataclass(frozen=True)
class Recurrent(Belief):
    """A `GRU`. Unless `epochs` is 0, it is first trained to predict (the paper's reg_GRU)."""

    kind: ClassVar[str] = "gru"

    units: int = 32
    """Number of hidden units."""
    epochs: int = 60
    """Number of epochs of training to predict, by backpropagation through time."""

    def __post_init__(self) -> None:
        """Check the settings."""
        check_at_least(self, 1, "units")
        check_at_least(self, 0, "epochs")

    def fit(self, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> AbstractFilter:
        """Draw random weights, then train them to predict."""
        refine_key, drawn = jax.random.split(key)
        filter = GRU(self.units, batch.observations.shape[-1], batch.actions.shape[-1], key=drawn)
        return refined(filter, batch, held_out, self.epochs, key=refine_key)
