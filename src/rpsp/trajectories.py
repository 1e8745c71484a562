"""Episodes, and batches of whole episodes packed into rows. Knows no features and no environment.

Time, as everywhere in this package: the reset observation is `o_0`; at step t ≥ 1 the agent does `a_t` and then sees
`o_t`. A recorded episode of T steps is therefore T + 1 observations and T actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float

from rpsp.errors import UsageError

if TYPE_CHECKING:
    Numbers = Any  # a static checker cannot follow code that is numpy when fitting and jax when running
else:
    Numbers = np.ndarray | Array
"""What batches and feature maps are made of: numpy while data are packed and fitted, jax inside a compiled function."""
Scalar = float | Float[Array, ""]
"""A setting of an update; an array where several agents that are trained together differ in it."""


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode: T + 1 observations, the reset observation first, and T actions.

    `actions` are those the environment executed (clipped); `drawn` are the policy's own, before clipping, where they
    differ.
    """

    observations: Float[np.ndarray, "time_plus_1 obs"]
    actions: Float[np.ndarray, "time act"]
    rewards: Float[np.ndarray, " time"] | None = None
    drawn: Float[np.ndarray, "time act"] | None = None
    terminated: bool = False
    truncated: bool = True

    def __len__(self) -> int:
        return len(self.actions)


class Batch(eqx.Module):
    """Whole episodes packed into rows with start marks: few shapes, and no row per episode.

    Entry t of a row is a step: what was known before it (`seen`, `executed`), what was done (`actions`), what came of it
    (`observations`, `rewards`). A state that has filtered in `seen` and `executed` is the *pre-state* q_t of the step.
    Entries outside `mask` are filler; they carry start marks so that no state drifts there.
    """

    starts: Bool[Numbers, "row time"]
    """True where an episode begins: there q_t = f(q_0, 0, reset observation), elsewhere f(q_{t-1}, a_{t-1}, o_{t-1})."""
    seen: Float[Numbers, "row time obs"]
    """o_{t-1}; at a start the reset observation."""
    executed: Float[Numbers, "row time act"]
    """a_{t-1} as the environment got it (clipped); 0 at a start."""
    actions: Float[Numbers, "row time act"]
    """a_t as the policy drew it."""
    performed: Float[Numbers, "row time act"]
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


def as_episodes(recordings: Any) -> list[Episode]:
    """Check recorded episodes and give them one form, or say in one sentence which episode is wrong and why.

    A recording is an `Episode` or a pair `(observations, actions)` of arrays of numbers, with one more observation than
    actions. A flat array of length T is read as T one-dimensional readings. Anything at all may be given: it is this
    function that says what is wrong with it.
    """
    if isinstance(recordings, Episode):
        recordings = [recordings]
    if not isinstance(recordings, Iterable):
        raise UsageError(
            f"episodes: expected a list of (observations, actions) pairs, got {type(recordings).__name__}; put the "
            "episodes in a list."
        )
    recordings = list(recordings)
    if not recordings:
        raise UsageError("episodes: the list is empty; give at least one (observations, actions) pair.")
    episodes = []
    for i, recording in enumerate(recordings):
        if isinstance(recording, Episode):
            given = recording.observations, recording.actions
        elif isinstance(recording, (tuple, list)) and len(recording) == 2:
            given = recording
        else:
            raise UsageError(
                f"episodes[{i}]: expected a pair (observations, actions) or an rpsp.Episode, got "
                f"{type(recording).__name__}; if you have one episode, put it in a list."
            )
        observations, actions = (
            as_table(array, f"episodes[{i}].{name}")
            for array, name in zip(given, ("observations", "actions"), strict=True)
        )
        if len(observations) != len(actions) + 1:
            raise UsageError(
                f"episodes[{i}]: {len(observations)} observations and {len(actions)} actions; there must be one more "
                "observation than actions, the reset observation first."
            )
        if len(actions) == 0:
            raise UsageError(f"episodes[{i}]: has no step; leave out episodes without actions.")
        if isinstance(recording, Episode):
            for name in ("rewards", "drawn"):
                beside = getattr(recording, name)
                if beside is not None and len(beside) != len(actions):
                    raise UsageError(f"episodes[{i}].{name}: has {len(beside)} entries for {len(actions)} actions.")
            episodes.append(replace(recording, observations=observations, actions=actions))
        else:
            episodes.append(Episode(observations, actions))
    first = episodes[0]
    for name in ("observations", "actions"):
        width = getattr(first, name).shape[1]
        for i, episode in enumerate(episodes):
            if (other := getattr(episode, name).shape[1]) != width:
                raise UsageError(
                    f"episodes[{i}].{name}: has {other} columns where episodes[0] has {width}; every episode must come "
                    "from the same sensors and actuators."
                )
    return episodes


def as_table(array: object, name: str) -> Float[np.ndarray, "n d"]:
    """One array of an episode as a float table, checked."""
    try:
        array = np.asarray(array)
    except ValueError as error:
        raise UsageError(f"{name}: is not a table; every row must have the same length.") from error
    if array.dtype.kind not in "fiub":
        raise UsageError(f"{name}: has dtype {array.dtype}; give real numbers (float or int).")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise UsageError(f"{name}: has shape {array.shape}; give one row per step, [time, size] (flatten images).")
    if array.shape[1] == 0:
        raise UsageError(f"{name}: has shape {array.shape}, no column at all; give at least one sensor and one action.")
    table = array.astype(np.float64)
    if not np.isfinite(table).all():
        row, column = np.argwhere(~np.isfinite(table))[0]
        raise UsageError(
            f"{name}[{row}, {column}]: is {table[row, column]}; drop the episode or repair the reading before fitting."
        )
    return table


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
        seen=empty(obs),
        executed=empty(act),
        actions=empty(act),
        performed=empty(act),
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
        batch.seen[here] = episode.observations[:-1]
        batch.observations[here] = episode.observations[1:]
        batch.executed[row, first + 1 : last] = episode.actions[:-1]
        batch.performed[here] = episode.actions
        batch.actions[here] = episode.actions if episode.drawn is None else episode.drawn
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
        seen = np.concatenate([batch.seen[row, first : first + 1], batch.observations[here]])
        drawn = batch.actions[here]
        episodes.append(Episode(seen, batch.performed[here], batch.rewards[here], drawn, not truncated, truncated))
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


def split(
    episodes: Sequence[Episode], fraction: float, *, rng: np.random.Generator, keep: int = 1
) -> tuple[list[Episode], list[Episode]]:
    """Whole episodes for fitting and for holding out: about `fraction` of the *steps* held out, at least one each.

    The longest episode is never held out: if any is long enough for a window, it is there to be fitted.
    A single episode is cut in two if that leaves `keep` steps to fit: the first part is truncated, the last part ends as
    the episode did. A shorter one serves for both.
    """
    if len(episodes) == 1:
        (episode,) = episodes
        cut = max(keep, round(len(episode) * (1 - fraction)))
        if cut >= len(episode):
            return [episode], [episode]
        return [_part(episode, 0, cut)], [_part(episode, cut, len(episode))]
    lengths = np.array([len(episode) for episode in episodes])
    order = rng.permutation(len(episodes))
    order = np.append(order[order != lengths.argmax()], lengths.argmax())
    before = np.cumsum(lengths[order]) - lengths[order]
    held = before < fraction * lengths.sum()
    held[-1] = False
    return [episodes[i] for i in order[~held]], [episodes[i] for i in order[held]]


def _part(episode: Episode, first: int, last: int) -> Episode:
    """Steps `first` to before `last` as an episode of its own; it is truncated unless it reaches the episode's end."""
    here, whole = slice(first, last), last == len(episode)
    return Episode(
        observations=episode.observations[first : last + 1],
        actions=episode.actions[here],
        rewards=None if episode.rewards is None else episode.rewards[here],
        drawn=None if episode.drawn is None else episode.drawn[here],
        terminated=episode.terminated and whole,
        truncated=episode.truncated or not whole,
    )
