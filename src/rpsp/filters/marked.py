"""Missing readings as additional inputs: a filter that gets the last reading of every sensor and marks of what is new.

This is how windows and recurrent networks, which have no predictive distribution, are told what is missing.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.filters.base import AbstractFilter
from rpsp.filters.belief import Belief


class MarkedFilter(AbstractFilter):
    """A filter of the last readings and of marks.

        q_t = [x_t, l_{t-1}]
        l_t = o_t where it was read, otherwise l_{t-1}
        x_{t+1} = f(x_t, a_t, [l_t, read_t])

    where f is the update of the wrapped filter and read_t is 1 for sensors that were read and 0 for the others. l_0 is 0,
    the mean of scaled observations.
    """

    inner: AbstractFilter
    """The wrapped filter, of observations [l_t, read_t]."""
    sensors: int = eqx.field(static=True)
    """Number of sensors."""

    def init(self) -> Float[Array, " q"]:
        """Return q_0 of the wrapped filter, followed by zeros."""
        return jnp.concatenate([self.inner.init(), jnp.zeros(self.sensors)])

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """Complete the observation by the last readings, and update the wrapped filter with it and with the marks."""
        n, read = self.inner.size, ~jnp.isnan(observation)
        latest = jnp.where(read, jnp.nan_to_num(observation), q[n:])
        given = jnp.concatenate([latest, read.astype(latest.dtype)])
        return jnp.concatenate([self.inner.update(q[:n], action, given), latest])

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """Predict with the wrapped filter."""
        return self.inner.predict(q[: self.inner.size], action)[: self.sensors]

    @property
    def view(self) -> Float[Numbers, "q x"]:
        """Policies see what they see of the wrapped filter."""
        return hiding(self.inner, self.sensors)

    @property
    def accepts_gaps(self) -> bool:
        """True."""
        return True

    @property
    def baseline_view(self) -> Float[Numbers, "q x"]:
        """Baselines see the state of the wrapped filter."""
        return np.eye(self.inner.size + self.sensors, self.inner.size, dtype=np.float32)

    def exported(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the arrays of act.py's `marked`: those of the wrapped filter."""
        kind, arrays = self.inner.exported()
        return f"marked {kind}", arrays


def hiding(inner: AbstractFilter, hidden: int) -> Float[np.ndarray, "q x"]:
    """Return the view of a filter followed by coordinates that policies do not see.

    Args:
        inner: the filter.
        hidden: number of coordinates after its own.
    """
    shown = np.eye(inner.size, dtype=np.float32) if inner.view is None else np.asarray(inner.view)
    return np.pad(shown, [(0, hidden), (0, 0)])


def with_marks(batch: Batch) -> Batch:
    """Return the batch with the observations that the wrapped filter of a `MarkedFilter` gets."""
    observations, before = np.asarray(batch.observations), np.asarray(batch.previous_observations)
    starts, latest = np.asarray(batch.starts), np.zeros_like(before[:, 0])
    filled, filled_before = np.empty_like(observations), np.empty_like(before)
    for t in range(before.shape[1]):
        latest = np.where(starts[:, t, None], 0.0, latest)
        filled_before[:, t] = latest = np.where(np.isnan(before[:, t]), latest, before[:, t])
        filled[:, t] = np.where(np.isnan(observations[:, t]), latest, observations[:, t])

    def marked(filled: np.ndarray, given: np.ndarray) -> np.ndarray:
        return np.concatenate([filled, ~np.isnan(given)], axis=-1).astype(np.float32)

    observations, before = marked(filled, observations), marked(filled_before, before)
    return replace(batch, observations=observations, previous_observations=before, states=None)


def fit_marked(belief: Belief, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> MarkedFilter:
    """Fit a filter to episodes with missing readings, of which it is told by marks.

    Args:
        belief: the settings of the wrapped filter.
        batch: training episodes, with NaN where readings are missing.
        held_out: held-out episodes.
        key: the source of all randomness of the fit.
    """
    sensors = batch.observations.shape[-1]
    return MarkedFilter(belief.fit(with_marks(batch), with_marks(held_out), key=key), sensors)
