"""Windows against an obvious reference that walks over each episode by itself."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import rpsp.data.windows
from rpsp.data.batches import pack
from rpsp.data.episodes import Episode
from rpsp.data.windows import flat, future_mask, histories, since_start, stack_future, steps_left, window_index
from rpsp.errors import UsageError

LENGTHS = st.lists(st.integers(1, 15), min_size=1, max_size=8)
WIDTH = 2  # observation columns; actions have one


def episodes_of(lengths: list[int]) -> list[Episode]:
    """Every entry unique, so that one number tells episode and time: 100·(episode + 1) + time."""
    return [
        Episode(
            100.0 * (i + 1) + np.arange(n + 1)[:, None] + np.array([0.0, 0.5]),
            -100.0 * (i + 1) - np.arange(1, n + 1)[:, None],
        )
        for i, n in enumerate(lengths)
    ]


def reference(episode: Episode, past: int, future: int, padded: bool) -> dict[float, dict[str, np.ndarray]]:
    """The windows of every step t = 1 … T that has them, keyed by o_t's first column. o[t], a[t] are o_t, a_t."""
    o = dict(enumerate(episode.observations))
    a = dict(enumerate(episode.actions, start=1))
    out = {}
    for t in range(1, len(episode) + 1):
        if t + future > len(episode) or (not padded and t - past < 1):
            continue
        before = range(t - past, t)
        history = [o[max(s, 0)] for s in before] + [a.get(s, np.zeros(1)) for s in before]
        if padded:
            history.append(np.array([min(t, past) / past]))
        out[o[t][0]] = {
            "history": np.concatenate(history),
            "observation": o[t],
            "action": a[t],
            "future_observations": np.concatenate([o[s] for s in range(t, t + future)]),
            "future_actions": np.concatenate([a[s] for s in range(t, t + future)]),
            "shifted_observations": np.concatenate([o[s] for s in range(t + 1, t + future + 1)]),
            "shifted_actions": np.concatenate([a[s] for s in range(t + 1, t + future + 1)]),
        }
    return out


@given(LENGTHS, st.integers(1, 6), st.integers(1, 6), st.booleans(), st.none() | st.integers(1, 40))
def test_windows_equal_the_reference(lengths, past, future, padded, row_length):
    assume(max(lengths) >= future + 1 + (0 if padded else past))
    episodes = episodes_of(lengths)
    expected = {}
    for episode in episodes:
        expected.update(reference(episode, past, future, padded))
    index = window_index(pack(episodes, row_length=row_length), past, future, padded=padded)
    w = index.cut(index.steps)
    assert len(index) == len(expected)
    assert set(w.observation[:, 0]) == set(expected)
    for row, key in enumerate(w.observation[:, 0]):
        for name, value in expected[key].items():
            np.testing.assert_array_equal(getattr(w, name)[row], value, err_msg=name)
    for name in expected[key]:
        assert getattr(w, name).dtype == np.float64


@given(LENGTHS, st.integers(1, 6), st.integers(1, 6))
def test_no_window_crosses_an_episode(lengths, past, future):
    assume(max(lengths) > future)
    index = window_index(pack(episodes_of(lengths), row_length=40), past, future)
    w = index.cut(index.steps)
    episode = w.observation[:, :1] // 100
    for part in (w.future_observations, w.shifted_observations, w.history[:, : past * WIDTH]):
        assert (part // 100 == episode).all()
    for part in (w.future_actions, w.shifted_actions):
        assert (-part // 100 == episode).all()
    done = -w.history[:, past * WIDTH : -1]
    assert ((done // 100 == episode) | (done == 0)).all()


@given(LENGTHS, st.integers(1, 20), st.integers(1, 30), st.booleans())
def test_too_short_says_what_to_change(lengths, past, future, padded):
    needed = future + 1 + (0 if padded else past)
    batch = pack(episodes_of(lengths), row_length=50)
    if max(lengths) >= needed:
        assert len(window_index(batch, past, future, padded=padded))
        return
    with pytest.raises(UsageError) as caught:
        window_index(batch, past, future, padded=padded)
    sentence = str(caught.value)
    assert f"longest has {max(lengths)} steps" in sentence
    assert f"future of {future}" in sentence and f"needs {needed}" in sentence
    assert padded or f"past of {past}" in sentence
    remedy = re.search(r"future=(\d+)", sentence)
    if padded and max(lengths) > 1:
        assert remedy
    if remedy:  # and the remedy works
        assert len(window_index(batch, past, int(remedy[1]), padded=padded))


@given(LENGTHS)
def test_positions_in_an_episode(lengths):
    batch = pack(episodes_of(lengths), row_length=20)
    mask = flat(batch.mask)
    code = flat(batch.observations)[mask][:, 0]
    length = np.array(lengths)[(code // 100).astype(int) - 1]
    np.testing.assert_array_equal(since_start(batch)[mask], code % 100 - 1)
    np.testing.assert_array_equal(steps_left(batch)[mask], length - code % 100)


@given(LENGTHS, st.integers(1, 6))
def test_padded_histories_of_every_step(lengths, past):
    episodes = episodes_of(lengths)
    expected = {}
    for episode in episodes:
        # A window that looks one step further ahead than it must: lengthen the episode by the step it then lacks.
        longer = Episode(np.vstack([episode.observations, [[0, 0]]]), np.vstack([episode.actions, [[0]]]))
        expected.update(reference(longer, past, 1, padded=True))
    batch = pack(episodes)
    ((steps, h),) = histories(batch, past)
    assert len(steps) == sum(lengths) == len(expected)
    for row, key in zip(h, flat(batch.observations)[steps][:, 0], strict=True):
        np.testing.assert_array_equal(row, expected[key]["history"])


@given(LENGTHS, st.integers(1, 6))
def test_stacked_futures(lengths, future):
    batch = pack(episodes_of(lengths), row_length=20)
    stacked, inside = stack_future(batch.observations, future), future_mask(batch, future)
    code = batch.observations[..., 0]
    for row, t in np.argwhere(batch.mask):
        i, step = int(code[row, t]) // 100 - 1, int(code[row, t]) % 100
        assert inside[row, t] == (step + future - 1 <= lengths[i])
        if inside[row, t]:
            np.testing.assert_array_equal(stacked[row, t, :, 0], code[row, t] + np.arange(future))
    assert not inside[~batch.mask].any()


def test_chunks_and_samples_are_the_same_windows(monkeypatch):
    index = window_index(pack(episodes_of([9, 15, 4, 12])), 3, 2)
    whole = index.cut(index.steps)
    monkeypatch.setattr(rpsp.data.windows, "CHUNK", 7)
    chunks = list(index.chunks())
    assert max(len(steps) for steps, _ in chunks) == 7
    np.testing.assert_array_equal(np.concatenate([steps for steps, _ in chunks]), index.steps)
    for name in ("history", "future_observations", "shifted_actions"):
        np.testing.assert_array_equal(np.concatenate([getattr(w, name) for _, w in chunks]), getattr(whole, name))
    few = index.sample(5, rng=np.random.default_rng(0)).observation
    assert len(np.unique(few, axis=0)) == 5
    assert set(few[:, 0]) <= set(whole.observation[:, 0])
    assert len(index.sample(10**6, rng=np.random.default_rng(0)).observation) == len(index)
