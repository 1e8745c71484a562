"""Recorded episodes: their form, their checks, and a split into data for fitting and held-out data.

Time, as everywhere in this package: the reset observation is `o_0`; at step t ≥ 1 the agent does `a_t` and then sees
`o_t`. A recorded episode of T steps is therefore T + 1 observations and T actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from rpsp.errors import UsageError


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode: T + 1 observations, the reset observation first, and T actions.

    `actions` are those the environment executed (clipped); `drawn_actions` are the policy's own, before clipping, where they
    differ.
    """

    observations: Float[np.ndarray, "time_plus_1 obs"]
    actions: Float[np.ndarray, "time act"]
    rewards: Float[np.ndarray, " time"] | None = None
    drawn_actions: Float[np.ndarray, "time act"] | None = None
    terminated: bool = False
    truncated: bool = True

    def __len__(self) -> int:
        return len(self.actions)


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
            for name in ("rewards", "drawn_actions"):
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
        drawn_actions=None if episode.drawn_actions is None else episode.drawn_actions[here],
        terminated=episode.terminated and whole,
        truncated=episode.truncated or not whole,
    )
