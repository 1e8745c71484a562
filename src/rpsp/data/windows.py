"""Past, future and shifted windows of a batch. The only file that writes t + k.

At step t the past is `o_{t-p:t-1}, a_{t-p:t-1}` (the paper's h_t), the future `o_{t:t+k-1}, a_{t:t+k-1}`, the shifted
future `o_{t+1:t+k}, a_{t+1:t+k}`. No window crosses an episode's boundary. At an episode's start the past is padded on
the left with the reset observation and null actions, and the fraction known becomes a feature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from rpsp.data.batches import Batch
from rpsp.errors import UsageError

CHUNK = 16_384  # steps handled at once when statistics are summed: bounds memory whatever the number of samples


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of some steps of a batch, one row per step; windows are flattened oldest first."""

    history: Float[np.ndarray, "n history"]
    """[o_{t-p:t-1}, a_{t-p:t-1}, fraction known (only if padded)]"""
    observation: Float[np.ndarray, "n obs"]
    action: Float[np.ndarray, "n act"]
    future_observations: Float[np.ndarray, "n k_obs"]
    future_actions: Float[np.ndarray, "n k_act"]
    shifted_observations: Float[np.ndarray, "n k_obs"]
    shifted_actions: Float[np.ndarray, "n k_act"]


@dataclass(frozen=True, eq=False)
class WindowIndex:
    """Where windows can be cut from a batch; `cut` cuts them in float64, `chunks` a bounded number at a time."""

    batch: Batch
    past: int
    future: int
    padded: bool
    steps: Int[np.ndarray, " n"]
    """Flat positions (row · time) of the steps that have every window."""
    since_start: Int[np.ndarray, " row_time"]
    """For every flat position, the number of steps of its episode before it."""

    def __len__(self) -> int:
        return len(self.steps)

    def cut(self, steps: Int[np.ndarray, " m"]) -> Windows:
        previous = flat(self.batch.previous_observations), flat(self.batch.previous_actions)
        observations, actions = flat(self.batch.observations), flat(self.batch.actions)
        ahead = steps[:, None] + np.arange(self.future + 1)
        return Windows(
            history=history(*previous, steps, self.since_start[steps], self.past, self.padded),
            observation=observations[steps].astype(np.float64),
            action=actions[steps].astype(np.float64),
            future_observations=_side_by_side(observations, ahead[:, :-1]),
            future_actions=_side_by_side(actions, ahead[:, :-1]),
            shifted_observations=_side_by_side(observations, ahead[:, 1:]),
            shifted_actions=_side_by_side(actions, ahead[:, 1:]),
        )

    def chunks(self) -> Iterator[tuple[Int[np.ndarray, " m"], Windows]]:
        """All windows, a bounded number at a time, with the flat positions of their steps."""
        for steps in chunked(self.steps):
            yield steps, self.cut(steps)

    def sample(self, most: int, *, rng: np.random.Generator) -> Windows:
        """Windows of at most `most` steps drawn without replacement: for kernel widths and projections."""
        if len(self.steps) <= most:
            return self.cut(self.steps)
        return self.cut(np.sort(rng.choice(self.steps, most, replace=False)))


def window_index(batch: Batch, past: int, future: int, *, padded: bool = True) -> WindowIndex:
    """Find the steps that have a past of `past` (padded at an episode's start if `padded`) and `future` + 1 steps ahead."""
    since, left = since_start(batch), steps_left(batch)
    enough = flat(batch.mask) & (left >= future)
    if not padded:
        enough &= since >= past
    steps = np.flatnonzero(enough)
    if len(steps) == 0:
        longest = longest_episode(batch)
        needed = future + 1 if padded else past + future + 1
        remedy = f"future={longest - 1}" if padded and longest > 1 else "a smaller past and future, or padded windows"
        raise UsageError(
            f"episodes: the longest has {longest} steps, and a future of {future}"
            + ("" if padded else f" with an unpadded past of {past}")
            + f" needs {needed}; bring longer episodes or choose {remedy}."
        )
    return WindowIndex(batch, past, future, padded, steps, since)


def longest_episode(batch: Batch) -> int:
    """Steps of the longest episode."""
    return int((since_start(batch) + 1).max(initial=0, where=flat(batch.mask)))


def since_start(batch: Batch) -> Int[np.ndarray, " row_time"]:
    """For every position, how many steps of its episode came before it."""
    position = np.arange(batch.mask.size)
    return position - np.maximum.accumulate(np.where(flat(batch.starts), position, 0))


def steps_left(batch: Batch) -> Int[np.ndarray, " row_time"]:
    """For every position, how many steps of its episode come after it."""
    position = np.arange(batch.mask.size)
    last = np.where(flat(batch.ends), position, batch.mask.size)
    return np.minimum.accumulate(last[::-1])[::-1] - position


def history(
    previous_observations: Float[np.ndarray, "row_time obs"],
    previous_actions: Float[np.ndarray, "row_time act"],
    steps: Int[np.ndarray, " n"],
    since: Int[np.ndarray, " n"],
    past: int,
    padded: bool,
) -> Float[np.ndarray, "n history"]:
    """h_t: the last `past` observations and actions before each step, padded at an episode's start."""
    back = np.arange(past - 1, -1, -1)
    # Positions before the start all point at the start, whose previous observation is the reset observation and whose
    # previous action is 0.
    behind = steps[:, None] - np.minimum(back, since[:, None])
    parts = [_side_by_side(previous_observations, behind), _side_by_side(previous_actions, behind)]
    if padded:
        parts.append(np.minimum(since[:, None] + 1, past) / past)
    return np.concatenate(parts, axis=1)


def histories(batch: Batch, past: int) -> Iterator[tuple[Int[np.ndarray, " m"], Float[np.ndarray, "m history"]]]:
    """The padded h_t of every step of a batch, a bounded number at a time, with the steps' flat positions."""
    since, previous = since_start(batch), (flat(batch.previous_observations), flat(batch.previous_actions))
    for steps in chunked(np.flatnonzero(flat(batch.mask))):
        yield steps, history(*previous, steps, since[steps], past, padded=True)


def chunked(steps: Int[np.ndarray, " n"]) -> Iterator[Int[np.ndarray, " m"]]:
    """Positions, a bounded number at a time."""
    for first in range(0, len(steps), CHUNK):
        yield steps[first : first + CHUNK]


def future_mask(batch: Batch, future: int) -> Bool[np.ndarray, "row time"]:
    """True where `future` steps, this one included, lie inside the episode."""
    return (flat(batch.mask) & (steps_left(batch) >= future - 1)).reshape(batch.shape)


def stack_future(array: np.ndarray, future: int) -> np.ndarray:
    """[row, time, d] → [row, time, future, d]: entry (t, j) is step t + j; beyond the row's end its last entry."""
    time = array.shape[1]
    return array[:, np.minimum(np.arange(time)[:, None] + np.arange(future), time - 1)]


def flat(array) -> np.ndarray:
    """[row, time, …] → [row · time, …]."""
    array = np.asarray(array)
    return array.reshape(-1, *array.shape[2:])


def _side_by_side(array: np.ndarray, index: np.ndarray) -> Float[np.ndarray, "n _"]:
    """Gather [n, window] positions of [row_time, d] and lay each window out as one row of float64."""
    return array[index].reshape(len(index), -1).astype(np.float64)
