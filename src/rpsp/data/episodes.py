"""Recorded episodes: the data class, validation, and the split into training and held-out data.

Time index, as in the whole package: `o_0` is the reset observation. At step t ≥ 1 the agent executes `a_t` and then
observes `o_t`. An episode of T steps therefore has T + 1 observations and T actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from rpsp.errors import UsageError


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode of T steps."""

    observations: Float[np.ndarray, "time_plus_1 obs"]
    """T + 1 observations, the reset observation first."""
    actions: Float[np.ndarray, "time act"]
    """T actions as executed by the environment (clipped)."""
    rewards: Float[np.ndarray, " time"] | None = None
    """T rewards, or None if they were not recorded."""
    drawn_actions: Float[np.ndarray, "time act"] | None = None
    """T actions as drawn by the policy, before clipping. None if they are the same as `actions`."""
    terminated: bool = False
    """Whether the episode reached a terminal state."""
    truncated: bool = True
    """Whether the episode was cut off, for example by a time limit."""

    def __len__(self) -> int:
        return len(self.actions)


def as_episodes(recordings: Any, *, gaps: bool = False) -> list[Episode]:
    """Validate recorded episodes and convert them to a list of `Episode`.

    Args:
        recordings: a list whose items are `Episode` objects or pairs `(observations, actions)` of numeric arrays, with
            one more observation than actions. A 1-D array of length T is read as T one-dimensional observations or
            actions. Objects of any other type are accepted and raise a `UsageError` that explains the problem.
        gaps: whether observations may be NaN, which means that a reading is missing.

    Returns:
        The episodes, with observations and actions as 2-D float64 arrays.

    Raises:
        UsageError: if a recording has the wrong type or shape, holds NaN or infinite values, or differs in size from
            the first one. The message names the episode.
    """
    if isinstance(recordings, Episode):
        recordings = [recordings]
    if not isinstance(recordings, Iterable):
        raise UsageError(
            f"episodes: expected a list of (observations, actions) pairs, got {type(recordings).__name__}; put the "
            "episodes in a list."
        )
    given = list(cast("Iterable[Any]", recordings))
    if not given:
        raise UsageError("episodes: the list is empty; give at least one (observations, actions) pair.")
    episodes = [_as_episode(recording, f"episodes[{i}]", gaps) for i, recording in enumerate(given)]
    for name in ("observations", "actions"):
        width = getattr(episodes[0], name).shape[1]
        for i, episode in enumerate(episodes):
            if (other := getattr(episode, name).shape[1]) != width:
                raise UsageError(
                    f"episodes[{i}].{name}: has {other} columns where episodes[0] has {width}; every episode must come "
                    "from the same sensors and actuators."
                )
    return episodes


def _as_episode(recording: Any, place: str, gaps: bool) -> Episode:
    """Validate one recording and convert it to an `Episode`. `place` is what error messages call it."""
    kind = type(recording).__name__
    if isinstance(recording, Episode):
        given = recording.observations, recording.actions
    elif isinstance(recording, (tuple, list)) and len(cast("Sequence[Any]", recording)) == 2:
        given = cast("Sequence[Any]", recording)
    else:
        raise UsageError(
            f"{place}: expected a pair (observations, actions) or an rpsp.Episode, got {kind}; if you have one "
            "episode, put it in a list."
        )
    observations, actions = (
        as_table(array, f"{place}.{name}", gaps=gaps and name == "observations")
        for array, name in zip(given, ("observations", "actions"), strict=True)
    )
    if len(observations) != len(actions) + 1:
        raise UsageError(
            f"{place}: {len(observations)} observations and {len(actions)} actions; there must be one more observation than "
            "actions, the reset observation first."
        )
    if len(actions) == 0:
        raise UsageError(f"{place}: has no steps; leave out episodes without actions.")
    if not isinstance(recording, Episode):
        return Episode(observations, actions)
    for name in ("rewards", "drawn_actions"):
        beside = getattr(recording, name)
        if beside is not None and len(beside) != len(actions):
            raise UsageError(f"{place}.{name}: has {len(beside)} entries for {len(actions)} actions.")
    return replace(recording, observations=observations, actions=actions)


def as_table(array: object, name: str, *, gaps: bool = False) -> Float[np.ndarray, "n d"]:
    """Validate one array of an episode and convert it to a 2-D float64 array.

    Args:
        array: anything that NumPy can convert. A 1-D array becomes one column.
        name: how error messages refer to the array.
        gaps: whether values may be NaN, which means that a reading is missing.

    Raises:
        UsageError: if the array is not a numeric table with at least one column and only finite values.
    """
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
        raise UsageError(f"{name}: has shape {array.shape}, without columns; give at least one sensor and one action.")
    table = array.astype(np.float64)
    wrong = np.isinf(table) if gaps else ~np.isfinite(table)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        remedy = "drop the episode or repair the reading before fitting"
        if np.isnan(table[row, column]) and not name.endswith("actions"):
            remedy += ", or give missing='nan' if it means that the reading is missing"
        raise UsageError(f"{name}[{row}, {column}]: is {table[row, column]}; {remedy}.")
    return table


def split(
    episodes: Sequence[Episode], fraction: float, *, rng: np.random.Generator, keep: int = 1
) -> tuple[list[Episode], list[Episode]]:
    """Split episodes into training and held-out data.

    Episodes stay whole. The longest one is always used for training, so that training has a complete window if any
    episode has one.

    A single episode is cut in two. The first part, for training, is marked as truncated; the second part ends as the
    episode did. If the cut would leave no held-out step, the same episode is used for both.

    Args:
        episodes: at least one episode.
        fraction: approximate share of the *steps* that are held out. Each part gets at least one episode.
        rng: random generator that chooses the held-out episodes.
        keep: minimum number of training steps when a single episode is cut.

    Returns:
        The training episodes and the held-out episodes.
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
    """Return steps `first` to `last` (exclusive) as an episode. It is truncated unless it contains the last step."""
    here, whole = slice(first, last), last == len(episode)
    return Episode(
        observations=episode.observations[first : last + 1],
        actions=episode.actions[here],
        rewards=None if episode.rewards is None else episode.rewards[here],
        drawn_actions=None if episode.drawn_actions is None else episode.drawn_actions[here],
        terminated=episode.terminated and whole,
        truncated=episode.truncated or not whole,
    )
