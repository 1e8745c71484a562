"""Filters that are not predictive states: windows of observations and actions, and a GRU."""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.data.linalg import principal_directions
from rpsp.filters.base import AbstractFilter, constant, reached, to_float64
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
        """Return the array of act.py's `window`: which entries of [q_t, a_t, o_t] make q_{t+1}."""
        return "window", {"kept": _kept(self.window, 0, self.W_pred)}

    def exported_prediction(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the arrays of act.py's `linear`."""
        W = np.asarray(self.W_pred, np.float64)
        return "linear", {"pred_W": W[:-1], "pred_b": W[-1]}

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


class MaskMemory(AbstractFilter):
    """The action mask of the moment, which is the end of the newest observation. Policies read it from the state.

    It predicts nothing: use it as the second filter of a `Concatenated`.
    """

    mask: int = eqx.field(static=True)
    """Size of the mask."""
    observations: int = eqx.field(static=True)
    """Size of an observation."""
    actions: int = eqx.field(static=True)
    """Size of an action."""

    def init(self) -> Float[Array, " q"]:
        """Return zeros."""
        return jnp.zeros(self.mask)

    def exported(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the array of act.py's `window`: which entries of [q_t, a_t, o_t] make q_{t+1}."""
        last = self.mask + self.actions + self.observations
        return "window", {"kept": np.arange(last - self.mask, last)}

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """Return the end of the observation."""
        return observation[-self.mask :]

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """Return zeros."""
        return jnp.zeros(self.observations)


def _kept(window: int, actions: int, W_pred: Numbers) -> np.ndarray:
    """Return which entries of [q_t, a_t, o_t] make q_{t+1}, where q_t has `window` blocks of actions and observations.

    Args:
        window: number of blocks.
        actions: number of entries of an action that a block has: all or none.
        W_pred: weights of the prediction, from [q_t, a_t, 1] to o_t.
    """
    q_a_1, observations = map(int, W_pred.shape)
    size = window * (actions + observations)
    of_an_action = q_a_1 - 1 - size
    older = np.arange(actions + observations, size)
    return np.concatenate([older, size + np.arange(actions), size + of_an_action + np.arange(observations)])


class HistoryWindow(AbstractFilter):
    """Finite memory of observations and actions.

        q_t = [a_{t-w}, o_{t-w}, …, a_{t-1}, o_{t-1}]
        o_t ≈ W_predᵀ [q_t, a_t, 1]

    Before the beginning of the episode, observations and actions are 0. Policies see q_t, or Pᵀ q_t if P is given.
    """

    W_pred: Float[Numbers, "q_a_1 obs"]
    """Weights of the prediction."""
    window: int = eqx.field(static=True)
    """w: number of steps."""
    actions: int = eqx.field(static=True)
    """Size of the actions in the window; 0 for observations alone."""
    P: Float[Numbers, "q x"] | None = constant()
    """Projection of what policies see; None: the whole window."""

    def init(self) -> Float[Array, " q"]:
        """Return zeros."""
        return jnp.zeros(self.window * (self.actions + self.W_pred.shape[1]))

    @property
    def view(self) -> Float[Numbers, "q x"] | None:
        """P."""
        return self.P

    def exported(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the array of act.py's `window`: which entries of [q_t, a_t, o_t] make q_{t+1}."""
        return "window", {"kept": _kept(self.window, self.actions, self.W_pred)}

    def exported_prediction(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the arrays of act.py's `linear`."""
        W = np.asarray(self.W_pred, np.float64)
        return "linear", {"pred_W": W[:-1], "pred_b": W[-1]}

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """Append the newest action and observation, and drop the oldest."""
        newest = jnp.concatenate([action[: self.actions], observation])
        return jnp.concatenate([q, newest])[newest.shape[0] :]

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """Return W_predᵀ [q_t, a_t, 1]."""
        return jnp.concatenate([q, action, jnp.ones(1)]) @ self.W_pred


def history_window(window: int, observations: int, actions: int, *, with_actions: bool = True) -> HistoryWindow:
    """Create a window of observations and actions that predicts the previous observation until it is trained.

    Args:
        window: number of steps in the state.
        observations: size of an observation.
        actions: size of an action.
        with_actions: whether the state contains actions.
    """
    own = actions if with_actions else 0
    size = window * (own + observations)
    W = np.zeros((size + actions + 1, observations), np.float32)
    W[size - observations : size] = np.eye(observations)
    return HistoryWindow(jnp.asarray(W), window, own, None)


@dataclass(frozen=True)
class FiniteMemory(Belief):
    """Finite memory: the last observations, with or without actions, as they are or compressed to principal components."""

    kind: ClassVar[str] = "finite-memory"
    marks: ClassVar[bool] = True

    window: int = 2
    """Number of observations."""
    actions: bool = False
    """Whether the window also contains the actions."""
    dimension: int | None = None
    """Number of principal components of the window that the policy sees, fitted once. Default: the window as it is."""

    def __post_init__(self) -> None:
        """Check the settings."""
        check_at_least(self, 1, "window", "dimension")

    @property
    def predictive(self) -> bool:
        """False."""
        return False

    def fit(self, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> ObservationWindow | HistoryWindow:
        """Return a window for observations and actions of this size. Only a compressed one is fitted, by PCA."""
        sizes = self.window, batch.observations.shape[-1], batch.actions.shape[-1]
        if not self.actions and self.dimension is None:
            return observation_window(*sizes)
        filter = history_window(*sizes, with_actions=self.actions)
        if self.dimension is None:
            return filter
        P = principal_directions(reached(filter, batch), self.dimension).scaled
        return replace(filter, P=jnp.asarray(P, jnp.float32))


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

    def exported_prediction(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the arrays of act.py's `linear`."""
        decoder = to_float64(self).decoder
        assert decoder.bias is not None  # always set by GRU
        return "linear", {"pred_W": np.asarray(decoder.weight).T, "pred_b": np.asarray(decoder.bias)}

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
    marks: ClassVar[bool] = True

    units: int = 32
    """Number of hidden units."""
    epochs: int = 60
    """Number of epochs of training to predict, by backpropagation through time."""

    def __post_init__(self) -> None:
        """Check the settings."""
        check_at_least(self, 1, "units")
        check_at_least(self, 0, "epochs")

    @property
    def predictive(self) -> bool:
        """Whether it is trained to predict."""
        return self.epochs > 0

    def fit(self, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> AbstractFilter:
        """Draw random weights, then train them to predict."""
        refine_key, drawn = jax.random.split(key)
        filter = GRU(self.units, batch.observations.shape[-1], batch.actions.shape[-1], key=drawn)
        return refined(filter, batch, held_out, self.epochs, key=refine_key)
