"""Recordings: what goes in comes out, and foreign or damaged files get one sentence."""

from __future__ import annotations

import numpy as np
import pytest

import rpsp
from rpsp.errors import FileFormatError, StorageError, UsageError


def _episodes():
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((n + 1, 3)), rng.standard_normal((n, 2))) for n in (4, 1, 7)]


def test_round_trip(tmp_path):
    rpsp.save_episodes(tmp_path / "data.npz", _episodes())
    for (observations, actions), episode in zip(_episodes(), rpsp.load_episodes(tmp_path / "data.npz"), strict=True):
        np.testing.assert_array_equal(episode.observations, observations)
        np.testing.assert_array_equal(episode.actions, actions)


def test_nothing_is_overwritten(tmp_path):
    rpsp.save_episodes(tmp_path / "data.npz", _episodes())
    before = (tmp_path / "data.npz").read_bytes()
    with pytest.raises(StorageError, match=r"exists already"):
        rpsp.save_episodes(tmp_path / "data.npz", _episodes()[:1])
    assert (tmp_path / "data.npz").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["data.npz"]
    with pytest.raises(UsageError, match=r"does not end in .npz"):
        rpsp.save_episodes(tmp_path / "data.csv", _episodes())


def _write(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_foreign_and_damaged_files(tmp_path):
    with pytest.raises(FileFormatError, match=r"no such file"):
        rpsp.load_episodes(tmp_path / "missing.npz")
    (tmp_path / "text.npz").write_text("hello", encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"not an .npz recording"):
        rpsp.load_episodes(tmp_path / "text.npz")
    (tmp_path / "log.csv").write_text("1,2\n3,4\n", encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"is a log, whose columns must be named.*rpsp fit .*read_log") as caught:
        rpsp.load_episodes(tmp_path / "log.csv")
    assert "again" not in str(caught.value)
    with pytest.raises(FileFormatError, match=r"has no array 'actions'"):
        rpsp.load_episodes(_write(tmp_path / "half.npz", observations=np.zeros((3, 1)), lengths=np.array([2])))
    with pytest.raises(FileFormatError, match=r"need 2 actions and 3 observations; it has 2 and 5"):
        rpsp.load_episodes(
            _write(tmp_path / "odd.npz", observations=np.zeros((5, 1)), actions=np.zeros((2, 1)), lengths=np.array([2]))
        )
    # An array of objects would need pickle: refused, never run.
    with pytest.raises(FileFormatError):
        rpsp.load_episodes(
            _write(
                tmp_path / "pickle.npz",
                observations=np.array([{}, {}], dtype=object),
                actions=np.zeros((1, 1)),
                lengths=np.array([1]),
            )
        )
    rpsp.save_episodes(tmp_path / "data.npz", _episodes())
    whole = (tmp_path / "data.npz").read_bytes()
    (tmp_path / "data.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError):
        rpsp.load_episodes(tmp_path / "data.npz")


def test_minari_round_trip(tmp_path, monkeypatch):
    pytest.importorskip("minari", reason="the minari extra is not installed")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    rpsp.save_episodes("minari:test/spring-v0", _episodes())
    again = rpsp.load_episodes("minari:test/spring-v0")
    for (observations, actions), episode in zip(_episodes(), again, strict=True):
        np.testing.assert_allclose(episode.observations, observations)
        np.testing.assert_allclose(episode.actions, actions)
    with pytest.raises(StorageError, match=r"exists already"):
        rpsp.save_episodes("minari:test/spring-v0", _episodes())
    with pytest.raises(FileFormatError, match=r"no such data set"):
        rpsp.load_episodes("minari:test/none-v0")


def test_minari_missing_says_what_to_install(monkeypatch):
    import builtins

    real = builtins.__import__

    def without_minari(name, *args, **kwargs):
        if name == "minari":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_minari)
    with pytest.raises(UsageError, match=r"rpsp\[minari\]"):
        rpsp.load_episodes("minari:some/data-v0")
