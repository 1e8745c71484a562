"""Past, future and shifted windows of a batch. All index arithmetic with t + k is in this module.

At step t, with past length p and future length k:

- the past is `o_{t-p:t-1}, a_{t-p:t-1}` (the paper's history h_t),
- the future is `o_{t:t+k-1}, a_{t:t+k-1}`,
- the shifted future is `o_{t+1:t+k}, a_{t+1:t+k}`.

Windows never cross the boundary of an episode. At the beginning of an episode the past is padded on the left with the
reset observation and null actions, and the fraction of the past that is known is added as a feature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.errors import UsageError

CHUNK = 16_384  # steps processed at once when statistics are summed; bounds memory for any number of steps


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of some steps of a batch, one row per step. Windows are flattened, oldest entry first."""

    history: Float[np.ndarray, "n history"]
    """h_t = [o_{t-p:t-1}, a_{t-p:t-1}, known fraction (only if padded)]."""
    observation: Float[np.ndarray, "n obs"]
    """o_t."""
    action: Float[np.ndarray, "n act"]
    """a_t."""
    future_observations: Float[np.ndarray, "n k_obs"]
    """o_{t:t+k-1}."""
    future_actions: Float[np.ndarray, "n k_act"]
    """a_{t:t+k-1}."""
    shifted_observations: Float[np.ndarray, "n k_obs"]
    """o_{t+1:t+k}."""
    shifted_actions: Float[np.ndarray, "n k_act"]
    """a_{t+1:t+k}."""


@dataclass(frozen=True, eq=False)
class WindowIndex:
    """The steps of a batch that have complete windows, and methods to extract the windows."""

    batch: Batch
    past: int
    """p: length of the past."""
    future: int
    """k: length of the future."""
    padded: bool
    """Whether the past is padded at the beginning of an episode."""
    steps: Int[np.ndarray, " n"]
    """Positions of the steps that have all windows, in the flattened [row · time] axis."""
    since_start: Int[np.ndarray, " row_time"]
    """For every flat position, the number of earlier steps of the same episode."""

    def __len__(self) -> int:
        return len(self.steps)

    def cut(self, steps: Int[np.ndarray, " m"]) -> Windows:
        """Return the windows of the given flat positions, in float64."""
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
        """Iterate over all windows in chunks of bounded size, with the flat positions of their steps."""
        for steps in chunked(self.steps):
            yield steps, self.cut(steps)

    def sample(self, most: int, *, rng: np.random.Generator) -> Windows:
        """Return the windows of at most `most` steps, drawn without replacement. Used to fit widths and projections."""
        if len(self.steps) <= most:
            return self.cut(self.steps)
        return self.cut(np.sort(rng.choice(self.steps, most, replace=False)))


def window_index(batch: Batch, past: int, future: int, *, padded: bool = True) -> WindowIndex:
    """Find the steps of a batch that have complete windows.

    A step needs `future` later steps in its episode, for the shifted future.

    Args:
        batch: the episodes.
        past: length of the past.
        future: length of the future.
        padded: pad the past at the beginning of an episode. If False, steps with fewer than `past` earlier steps are
            left out.

    Raises:
        UsageError: if no step has complete windows.
    """
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
    """Return the number of steps of the longest episode."""
    return int((since_start(batch) + 1).max(initial=0, where=flat(batch.mask)))


def since_start(batch: Batch) -> Int[np.ndarray, " row_time"]:
    """Return, for every flat position, the number of earlier steps of the same episode."""
    starts = flat(batch.starts)
    position = np.arange(len(starts))
    return position - np.maximum.accumulate(np.where(starts, position, 0))


def steps_left(batch: Batch) -> Int[np.ndarray, " row_time"]:
    """Return, for every flat position, the number of later steps of the same episode."""
    ends = flat(batch.ends)
    position = np.arange(len(ends))
    last = np.where(ends, position, len(ends))
    return np.minimum.accumulate(last[::-1])[::-1] - position


def history(
    previous_observations: Float[np.ndarray, "row_time obs"],
    previous_actions: Float[np.ndarray, "row_time act"],
    steps: Int[np.ndarray, " n"],
    since: Int[np.ndarray, " n"],
    past: int,
    padded: bool,
) -> Float[np.ndarray, "n history"]:
    """Return the history h_t of each step: the last `past` observations and actions before it.

    Args:
        previous_observations: `Batch.previous_observations`, flattened.
        previous_actions: `Batch.previous_actions`, flattened.
        steps: flat positions of the steps.
        since: number of earlier steps of the episode, for each of `steps`.
        past: length of the history.
        padded: append the known fraction, min(since + 1, past) / past.
    """
    back = np.arange(past - 1, -1, -1)
    # Positions before the first step of the episode refer to the first step. Its previous observation is the reset
    # observation and its previous action is 0, which is the padding.
    behind = steps[:, None] - np.minimum(back, since[:, None])
    parts = [_side_by_side(previous_observations, behind), _side_by_side(previous_actions, behind)]
    if padded:
        parts.append(np.minimum(since[:, None] + 1, past) / past)
    return np.concatenate(parts, axis=1)


def histories(batch: Batch, past: int) -> Iterator[tuple[Int[np.ndarray, " m"], Float[np.ndarray, "m history"]]]:
    """Iterate over the padded histories h_t of all steps in chunks of bounded size, with the flat positions."""
    since, previous = since_start(batch), (flat(batch.previous_observations), flat(batch.previous_actions))
    for steps in chunked(np.flatnonzero(flat(batch.mask))):
        yield steps, history(*previous, steps, since[steps], past, padded=True)


def chunked(steps: Int[np.ndarray, " n"]) -> Iterator[Int[np.ndarray, " m"]]:
    """Iterate over positions in chunks of bounded size."""
    for first in range(0, len(steps), CHUNK):
        yield steps[first : first + CHUNK]


def future_mask(batch: Batch, future: int) -> Bool[np.ndarray, "row time"]:
    """Return a mask of the steps from which `future` steps, this one included, are inside the episode."""
    return (flat(batch.mask) & (steps_left(batch) >= future - 1)).reshape(batch.shape)


def stack_future(array: np.ndarray, future: int) -> np.ndarray:
    """Stack the next `future` steps of each step: [row, time, d] → [row, time, future, d].

    Entry (t, j) is step t + j. Beyond the end of a row it is the last step of the row.
    """
    time: int = array.shape[1]
    return array[:, np.minimum(np.arange(time)[:, None] + np.arange(future), time - 1)]


def flat(array: Numbers) -> np.ndarray:
    """Merge the first two axes: [row, time, …] → [row · time, …]."""
    return np.asarray(array).reshape(-1, *array.shape[2:])


def _side_by_side(array: np.ndarray, index: np.ndarray) -> Float[np.ndarray, "n _"]:
    """Gather the [n, window] positions of a [row_time, d] array and flatten each window to one row, in float64."""
    return array[index].reshape(len(index), -1).astype(np.float64)
