"""Whole episodes packed into rows with start marks, and means over their steps."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rpsp.data.arrays import Numbers
from rpsp.data.episodes import Episode


class Batch(eqx.Module):
    """Whole episodes packed into rows with start marks: few shapes, and no row per episode.

    Entry t of a row is a step: what was known before it (`previous_observations`,
    `previous_actions`), what was done (`actions`), what came of it
    (`observations`, `rewards`). A state that has filtered in both of the former is the *pre-state* q_t of the step.
    Entries outside `mask` are filler; they carry start marks so that no state drifts there.
    """

    starts: Bool[Numbers, "row time"]
    """True where an episode begins: there q_t = f(q_0, 0, reset observation), elsewhere f(q_{t-1}, a_{t-1}, o_{t-1})."""
    previous_observations: Float[Numbers, "row time obs"]
    """o_{t-1}; at a start the reset observation."""
    previous_actions: Float[Numbers, "row time act"]
    """a_{t-1} as the environment got it (clipped); 0 at a start."""
    drawn_actions: Float[Numbers, "row time act"]
    """a_t as the policy drew it."""
    actions: Float[Numbers, "row time act"]
    """a_t as the environment got it (clipped): what predictions condition on."""
    observations: Float[Numbers, "row time obs"]
    """o_t."""
    rewards: Float[Numbers, "row time"]
    ends: Bool[Numbers, "row time"]
    """True at the last step of an episode."""
    truncated: Bool[Numbers, "row time"]
    """True at the last step of an episode that ran out of time instead of ending."""
    mask: Bool[Numbers, "row time"]
    """True where there is a step at all."""
    states: Float[Numbers, "row time q"] | None = None
    """The pre-states q_t that the agent acted on, where they are known: a rule that leaves the filter alone need not
    compute them again."""

    @property
    def shape(self) -> tuple[int, int]:
        rows, time = self.mask.shape
        return rows, time


def pack(
    episodes: Sequence[Episode],
    *,
    row_length: int | None = None,
    row_multiple: int = 1,
    states: Sequence[Float[np.ndarray, "_ q"]] | None = None,
) -> Batch:
    """Pack whole episodes into rows, longest first, each into the first row with room (first fit).

    `row_length` is at least the longest episode and defaults to it; `row_multiple` rounds the number of rows up, so
    that batches of similar size share one shape and one compilation. `states` are those acted on, an array an episode.
    """
    lengths = np.array([len(episode) for episode in episodes])
    row_length = max(int(lengths.max()), row_length or 0)
    row_of, offset, rows = _first_fit(lengths, row_length)
    rows = -(-rows // row_multiple) * row_multiple
    obs, act = episodes[0].observations.shape[1], episodes[0].actions.shape[1]

    def empty(*last: int, dtype: type = np.float32) -> np.ndarray:
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
    """The episodes of a batch, row by row."""
    episodes = []
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
    """Rows and offsets of episodes of these lengths, longest first into the first row with room; and the row count."""
    room = np.zeros(len(lengths), dtype=np.int64)  # a row not yet opened has no room
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
    """The mean over the steps of a batch; or their sum over the number of marks in `per`, as in per episode."""
    # where before the sum: filler may hold anything, even infinities, and must not take the mean with it.
    return jnp.sum(jnp.where(mask, x, 0.0)) / jnp.maximum(jnp.sum(mask if per is None else per), 1)
