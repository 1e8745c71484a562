"""Batches of whole episodes packed into rows, and means over their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rpsp.data import trees
from rpsp.data.arrays import Numbers
from rpsp.data.episodes import Episode


class Batch(eqx.Module):
    """Whole episodes packed into rows, with a flag at the first step of each.

    A row can hold several episodes, so that batches have few different shapes and functions are compiled less often.

    Entry t of a row is one step. It holds what the agent knew before the step (`previous_observations`,
    `previous_actions`), the action (`actions`) and its outcome (`observations`, `rewards`). The state q_t after the
    filter update with `previous_observations` and `previous_actions` is called the *pre-state* of the step.

    Entries outside `mask` are padding. Their `starts` flag is True, so that filter states are reset there and stay
    bounded.
    """

    starts: Bool[Numbers, "row time"]
    """True at the first step of an episode, where q_t = f(q_0, 0, reset observation). Elsewhere
    q_t = f(q_{t-1}, a_{t-1}, o_{t-1}), with f the filter update."""
    previous_observations: Float[Numbers, "row time obs"]
    """o_{t-1}; the reset observation at the first step of an episode."""
    previous_actions: Float[Numbers, "row time act"]
    """a_{t-1} as executed by the environment (clipped); 0 at the first step of an episode."""
    drawn_actions: Float[Numbers, "row time act"]
    """a_t as drawn by the policy, before clipping."""
    actions: Float[Numbers, "row time act"]
    """a_t as executed by the environment (clipped). Predictions are conditioned on it."""
    observations: Float[Numbers, "row time obs"]
    """o_t."""
    rewards: Float[Numbers, "row time"]
    """r_t; 0 if the episodes have no rewards."""
    ends: Bool[Numbers, "row time"]
    """True at the last step of an episode."""
    truncated: Bool[Numbers, "row time"]
    """True at the last step of an episode that was truncated (time limit) and not terminated."""
    mask: Bool[Numbers, "row time"]
    """True at steps, False at padding."""
    states: Float[Numbers, "row time q"] | None = None
    """The pre-states q_t that the agent acted on, or None if unknown. Algorithms that do not change the filter use them
    instead of filtering the batch again."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and steps per row."""
        rows, time = self.mask.shape
        return rows, time


def pack(
    episodes: Sequence[Episode],
    *,
    row_length: int | None = None,
    row_multiple: int = 1,
    states: Sequence[Float[np.ndarray, "_ q"]] | None = None,
) -> Batch:
    """Pack whole episodes into the rows of a batch.

    Episodes are packed longest first, each into the first row with enough space (first fit).

    Args:
        episodes: episodes with the same observation and action sizes.
        row_length: steps per row. Default, and minimum: the length of the longest episode.
        row_multiple: the number of rows is rounded up to a multiple of this, so that batches of similar size have the
            same shape and share one compiled function.
        states: the pre-states that the agent acted on, one array per episode.

    Returns:
        The batch, with NumPy arrays.
    """
    lengths = np.array([len(episode) for episode in episodes])
    row_length = max(int(lengths.max()), row_length or 0)
    row_of, offset, rows = _first_fit(lengths, row_length)
    rows = -(-rows // row_multiple) * row_multiple
    obs, act = episodes[0].observations.shape[1], episodes[0].actions.shape[1]

    def empty(*last: int, dtype: type[Any] = np.float32) -> np.ndarray:
        return np.zeros((rows, row_length, *last), dtype)

    batch = Batch(
        starts=empty(dtype=bool),
        previous_observations=empty(obs),
        previous_actions=empty(act),
        drawn_actions=empty(act),
        actions=empty(act),
        observations=empty(obs),
        rewards=empty(),
        ends=empty(dtype=bool),
        truncated=empty(dtype=bool),
        mask=empty(dtype=bool),
        states=None if states is None else empty(states[0].shape[1]),
    )
    for i, (episode, row, first) in enumerate(zip(episodes, row_of, offset, strict=True)):
        last = first + len(episode)
        here = (row, slice(first, last))
        batch.previous_observations[here] = episode.observations[:-1]
        batch.observations[here] = episode.observations[1:]
        batch.previous_actions[row, first + 1 : last] = episode.actions[:-1]
        batch.actions[here] = episode.actions
        batch.drawn_actions[here] = episode.actions if episode.drawn_actions is None else episode.drawn_actions
        if episode.rewards is not None:
            batch.rewards[here] = episode.rewards
        batch.starts[row, first] = True
        batch.ends[row, last - 1] = True
        batch.truncated[row, last - 1] = episode.truncated and not episode.terminated
        batch.mask[here] = True
        if states is not None and batch.states is not None:
            batch.states[here] = states[i]
    batch.starts[~batch.mask] = True
    return batch


def unpack(batch: Batch) -> list[Episode]:
    """Return the episodes of a batch, row by row."""
    episodes: list[Episode] = []
    for row, last in np.argwhere(batch.ends & batch.mask):
        first = last - np.argmax(batch.starts[row, last::-1])
        here = (row, slice(first, last + 1))
        truncated = bool(batch.truncated[row, last])
        observations = np.concatenate([batch.previous_observations[row, first : first + 1], batch.observations[here]])
        drawn_actions = batch.drawn_actions[here]
        episodes.append(
            Episode(observations, batch.actions[here], batch.rewards[here], drawn_actions, not truncated, truncated)
        )
    return episodes


def _first_fit(lengths: np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the row and offset of each episode by first fit, longest first, and the number of rows."""
    room = np.zeros(len(lengths), dtype=np.int64)  # free steps per row; 0 in rows not yet in use
    row_of, offset = np.zeros(len(lengths), dtype=np.int64), np.zeros(len(lengths), dtype=np.int64)
    rows = 0
    for i in np.argsort(-lengths, kind="stable"):
        row = int(np.argmax(room[:rows] >= lengths[i])) if rows else 0
        if rows == 0 or room[row] < lengths[i]:
            row, rows = rows, rows + 1
            room[row] = row_length
        row_of[i], offset[i] = row, row_length - room[row]
        room[row] -= lengths[i]
    return row_of, offset, rows


Steps = Float[Array, "row time"]


def masked_mean(
    x: Steps, mask: Bool[Array, "row time"], *, per: Bool[Array, "row time"] | None = None
) -> Float[Array, ""]:
    """Return the mean of `x` over the steps of a batch.

    Args:
        x: a value per step.
        mask: True at steps, False at padding.
        per: if given, the sum over steps is divided by the number of True entries here instead of the number of steps.
            `per=batch.ends` gives the mean per episode.
    """
    # Select before summing: padding may hold any value, even NaN or infinite ones, which a product with 0 would keep.
    return jnp.sum(jnp.where(mask, x, 0.0)) / jnp.maximum(jnp.sum(mask if per is None else per), 1)


def padded(batch: Batch, rows: int) -> Batch:
    """Return the batch with rows of filler up to `rows`."""
    missing = rows - batch.shape[0]
    padded = trees.map(lambda x: np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)), batch)
    padded.starts[~padded.mask] = True
    return padded
