"""Packing finds every step back; bad recordings get a sentence that names the place; splits are of whole episodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpsp.data.batches import pack, unpack
from rpsp.data.episodes import Episode, as_episodes, split
from rpsp.errors import UsageError

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=12)


def numbered(lengths: list[int], obs: int = 1, act: int = 1) -> list[Episode]:
    """Episodes whose every entry is unique: 1000·(episode + 1) + time, plus a fraction for the column."""
    episodes = []
    for i, steps in enumerate(lengths):
        o = 1000.0 * (i + 1) + np.arange(steps + 1)[:, None] + np.arange(obs) / 8
        a = -1000.0 * (i + 1) - np.arange(1, steps + 1)[:, None] - np.arange(act) / 8
        episodes.append(
            Episode(o, a, rewards=a[:, 0] / 2, drawn_actions=a + 0.0625, terminated=i % 3 == 0, truncated=i % 3 == 1)
        )
    return episodes


@given(LENGTHS, st.none() | st.integers(1, 30), st.integers(1, 5))
def test_unpacking_gives_the_episodes_back(lengths, row_length, row_multiple):
    given = {e.observations[0, 0]: e for e in numbered(lengths, 2, 1)}
    found = unpack(pack(list(given.values()), row_length=row_length, row_multiple=row_multiple))
    assert len(found) == len(given)
    for episode in found:
        expected = given[episode.observations[0, 0]]
        for name in ("observations", "actions", "rewards", "drawn_actions"):
            np.testing.assert_array_equal(getattr(episode, name), getattr(expected, name))
        assert episode.truncated == (expected.truncated and not expected.terminated) != episode.terminated


@given(LENGTHS, st.integers(1, 3), st.integers(1, 2), st.none() | st.integers(1, 30), st.integers(1, 5))
def test_packing_keeps_every_step_once(lengths, obs, act, row_length, row_multiple):
    episodes = numbered(lengths, obs, act)
    batch = pack(episodes, row_length=row_length, row_multiple=row_multiple)
    rows, time = batch.shape
    assert time == max(max(lengths), row_length or 0)
    assert rows % row_multiple == 0
    found = set()
    for row, t in np.argwhere(batch.mask):
        code = int(batch.previous_observations[row, t, 0])
        i, step = code // 1000 - 1, code % 1000
        episode = episodes[i]
        assert (i, step) not in found
        found.add((i, step))
        np.testing.assert_array_equal(batch.previous_observations[row, t], episode.observations[step])
        np.testing.assert_array_equal(batch.observations[row, t], episode.observations[step + 1])
        np.testing.assert_array_equal(
            batch.previous_actions[row, t], episode.actions[step - 1] if step else np.zeros(act)
        )
        np.testing.assert_array_equal(batch.actions[row, t], episode.actions[step])
        np.testing.assert_array_equal(batch.drawn_actions[row, t], episode.drawn_actions[step])
        assert batch.rewards[row, t] == episode.rewards[step]
        assert batch.starts[row, t] == (step == 0)
        last = step == len(episode) - 1
        assert batch.ends[row, t] == last
        assert batch.truncated[row, t] == (last and i % 3 == 1)
        if not last:  # an episode lies in one piece
            assert batch.previous_observations[row, t + 1, 0] == code + 1
    assert found == {(i, step) for i, steps in enumerate(lengths) for step in range(steps)}
    filler = ~batch.mask
    assert batch.starts[filler].all()
    assert not batch.ends[filler].any() and not batch.truncated[filler].any()
    for x in (
        batch.previous_observations,
        batch.previous_actions,
        batch.drawn_actions,
        batch.actions,
        batch.observations,
        batch.rewards,
    ):
        assert not x[filler].any()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_first_fit_wastes_less_than_half(lengths):
    """No two rows could be one: what opened the later one did not fit in the earlier."""
    batch = pack(numbered(lengths))
    used = np.sort(batch.mask.sum(axis=1))
    assert used[0] > 0
    if len(used) > 1:
        assert used[0] + used[1] > batch.shape[1]
    assert batch.shape[0] <= 2 * sum(lengths) / batch.shape[1] + 1


def test_terminated_beats_truncated():
    episode = Episode(np.zeros((3, 1)), np.zeros((2, 1)), terminated=True, truncated=True)
    batch = pack([episode])
    assert batch.ends[0, 1] and not batch.truncated[0, 1]


def test_as_episodes_gives_one_form():
    flat, table = as_episodes([(np.arange(4), [True, False, True]), Episode(np.zeros((3, 1)), np.ones((2, 1)))])
    assert flat.observations.shape == (4, 1) and flat.actions.shape == (3, 1)
    assert flat.observations.dtype == flat.actions.dtype == np.float64
    assert len(table) == 2
    kept = Episode(
        np.zeros((3, 1)), np.ones((2, 1)), rewards=np.ones(2), drawn_actions=np.zeros((2, 1)), terminated=True
    )
    (again,) = as_episodes(kept)
    assert again.rewards is kept.rewards and again.drawn_actions is kept.drawn_actions and again.terminated


def pair(steps: int = 3, obs: int = 2, act: int = 1) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((steps + 1, obs)), np.zeros((steps, act))


def spoiled(value: float) -> list:
    observations, actions = pair()
    observations[2, 1] = value
    return [pair(), (observations, actions)]


BAD = {
    "empty": ([], ["episodes: the list is empty"]),
    "mixed observations": ([pair(obs=2), pair(obs=3)], ["episodes[1].observations", "3 columns", "has 2"]),
    "mixed actions": ([pair(), pair(), pair(act=4)], ["episodes[2].actions", "4 columns", "has 1"]),
    "nan": (spoiled(np.nan), ["episodes[1].observations[2, 1]", "nan"]),
    "inf": (spoiled(-np.inf), ["episodes[1].observations[2, 1]", "-inf"]),
    "strings": ([(np.array([["a"], ["b"]]), np.zeros((1, 1)))], ["episodes[0].observations", "<U1"]),
    "complex": ([(np.zeros((2, 1)), np.zeros((1, 1), complex))], ["episodes[0].actions", "complex128"]),
    "objects": ([(np.array([[None], [1]]), np.zeros((1, 1)))], ["episodes[0].observations", "object"]),
    "ragged": ([([[1.0, 2.0], [3.0]], np.zeros((1, 1)))], ["episodes[0].observations", "same length"]),
    "lengths": ([(np.zeros((3, 1)), np.zeros((3, 1)))], ["episodes[0]", "3 observations and 3 actions", "one more"]),
    "no steps": ([(np.zeros((1, 1)), np.zeros((0, 1)))], ["episodes[0]", "no step"]),
    "3-D": ([(np.zeros((4, 2, 2)), np.zeros((3, 1)))], ["episodes[0].observations", "(4, 2, 2)", "flatten"]),
    "scalar": ([(1.0, np.zeros((3, 1)))], ["episodes[0].observations", "()"]),
    "no columns": ([(np.zeros((4, 0)), np.zeros((3, 1)))], ["episodes[0].observations", "(4, 0)"]),
    "not a pair": ([pair(), np.zeros((4, 2))], ["episodes[1]", "ndarray", "put it in a list"]),
    "triple": ([(*pair(), 1)], ["episodes[0]", "tuple"]),
    "not in a list": (pair(), ["episodes[0]", "put it in a list"]),
    "not a list at all": (7, ["episodes", "int"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_recordings_are_named(name):
    recordings, fragments = BAD[name]
    with pytest.raises(UsageError) as caught:
        as_episodes(recordings)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith(".")
    for fragment in fragments:
        assert fragment in sentence
    assert caught.value.exit_code == 2


@given(st.lists(st.integers(1, 12), min_size=2, max_size=12), st.floats(0.05, 0.9), st.integers(0, 5))
def test_split_keeps_episodes_whole(lengths, fraction, seed):
    episodes = numbered(lengths)
    kept, held = split(episodes, fraction, rng=np.random.default_rng(seed))
    assert sorted(map(id, kept + held)) == sorted(map(id, episodes))
    assert kept and held
    assert max(map(len, kept)) == max(lengths)  # the longest is there to be fitted
    steps = sum(map(len, held))
    assert steps - max(lengths) < fraction * sum(lengths) + 1e-9  # one episode at most goes beyond the fraction
    if len(kept) > 1:
        assert steps >= fraction * sum(lengths) - 1e-9


@given(st.integers(2, 40), st.floats(0.05, 0.9))
def test_a_single_episode_is_cut(steps, fraction):
    (episode,) = numbered([steps])
    (head,), (tail,) = split([episode], fraction, rng=np.random.default_rng(0))
    if head is tail:  # too short to be cut
        assert round(steps * (1 - fraction)) >= steps
        return
    assert len(head) + len(tail) == steps
    np.testing.assert_array_equal(np.concatenate([head.actions, tail.actions]), episode.actions)
    np.testing.assert_array_equal(np.concatenate([head.observations, tail.observations[1:]]), episode.observations)
    assert head.observations[-1, 0] == tail.observations[0, 0]


@pytest.mark.parametrize("terminated", [True, False])
def test_the_parts_of_a_single_episode_keep_all_that_it_holds(terminated):
    rng = np.random.default_rng(0)
    observations, actions, drawn = rng.normal(size=(11, 2)), rng.normal(size=(10, 1)), rng.normal(size=(10, 1))
    episode = Episode(observations, actions, rng.normal(size=10), drawn, terminated, not terminated)
    (head,), (tail,) = split([episode], 0.3, rng=rng)
    assert (len(head), len(tail)) == (7, 3)
    for name in ("actions", "rewards", "drawn_actions"):
        parts = [getattr(part, name) for part in (head, tail)]
        np.testing.assert_array_equal(np.concatenate(parts), getattr(episode, name))
    assert (head.terminated, head.truncated) == (False, True)
    assert (tail.terminated, tail.truncated) == (terminated, not terminated)


def test_rewards_must_match_the_actions():
    with pytest.raises(UsageError, match=r"episodes\[0\].rewards: has 3 entries for 2 actions"):
        as_episodes([_with_rewards(3)])
    assert as_episodes([_with_rewards(2)])[0].rewards is not None


def _with_rewards(count: int) -> Episode:
    """An episode of two steps with so many rewards; built past the checker, which would object first."""
    episode = Episode(np.zeros((3, 1)), np.zeros((2, 1)))
    object.__setattr__(episode, "rewards", np.zeros(count))
    return episode
