"""Logs: rows become episodes as the page of recordings says, and every odd file gets one sentence."""

from __future__ import annotations

import numpy as np
import pytest

import rpsp
from rpsp.errors import FileFormatError, UsageError

COLUMNS = {"observations": ["a", "b"], "actions": "u"}


def _write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_rows_become_episodes(tmp_path, delimiter):
    text = "run,a,u,b\none,1,10,2\none,3,20,\none,5,30,NaN\ntwo,7,40,8\ntwo,9,50,10\n".replace(",", delimiter)
    log = rpsp.read_log(_write(tmp_path / "log.csv", "\ufeff" + text), **COLUMNS, episode="run")
    first, second = log.episodes()
    np.testing.assert_array_equal(first.observations, [[1, 2], [3, np.nan], [5, np.nan]])
    np.testing.assert_array_equal(first.actions, [[10], [20]])
    np.testing.assert_array_equal(second.observations, [[7, 8], [9, 10]])
    np.testing.assert_array_equal(second.actions, [[40]])
    assert [s.name for s in log.segments] == ["one", "two"] and [s.row for s in log.segments] == [1, 4]
    assert log.missing == 0.2


def test_rows_of_episodes_may_alternate(tmp_path):
    text = "run,a,u,b\n1,1,0,1\n2,10,0,1\n1,2,0,1\n2,20,0,1\n"
    log = rpsp.read_log(_write(tmp_path / "log.csv", text), **COLUMNS, episode="run")
    assert [e.observations[:, 0].tolist() for e in log.episodes()] == [[1, 2], [10, 20]]


@pytest.mark.parametrize("as_dates", [False, True])
def test_a_gap_in_time_ends_an_episode(tmp_path, as_dates):
    seconds = [0, 1, 2, 3, 10, 11, 12, 30]
    times = [f"2026-01-31T12:00:{s:02}" if as_dates else str(s) for s in seconds]
    rows = [f"{t},{i},0,{i}" for i, t in enumerate(times)]
    log = rpsp.read_log(_write(tmp_path / "log.csv", "t,a,u,b\n" + "\n".join(rows)), **COLUMNS, time="t")
    assert log.gaps == 2 and len(log.segments) == 3
    assert [e.observations[:, 0].tolist() for e in log.episodes()] == [
        [0, 1, 2, 3],
        [4, 5, 6],
    ]  # a row alone has no step


def test_parquet_is_read_as_csv_is(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"a": [1.5, None, 3.0], "b": [True, False, True], "u": [0, 1, 2]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "log.parquet")
    (episode,) = rpsp.read_log(tmp_path / "log.parquet", **COLUMNS).episodes()
    np.testing.assert_array_equal(episode.observations, [[1.5, 1], [np.nan, 0], [3, 1]])
    with pytest.raises(FileFormatError, match="not a Parquet file"):
        rpsp.read_log(_write(tmp_path / "odd.parquet", "a,b,u\n"), **COLUMNS)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("a,b,u\n1,2,3\n1,x,3\n", FileFormatError, r"row 2, column 'b': 'x' is not a number; leave the cell empty"),
        ("a;b;u\n1,5;2;3\n", FileFormatError, r"row 1, column 'a': '1,5' is not a number; use a decimal point"),
        ("a,b,u\n1,inf,3\n", FileFormatError, r"row 1, column 'b': is infinite"),
        ("a,b,u\n1,2,\n", FileFormatError, r"row 1, column 'u': is empty, but commands must be known"),
        ("a,b,u\n1,2\n", FileFormatError, r"row 1: has 2 values for 3 names"),
        ("a,b,a\n1,2,3\n", FileFormatError, r"more than one column 'a'"),
        ("", FileFormatError, r"no line of names"),
        ("a,b,u\n", FileFormatError, r"no rows"),
        ("a,bb,u\n1,2,3\n", UsageError, r"observations: .* has no column 'b'; did you mean 'bb'\?"),
    ],
)
def test_odd_files_get_one_sentence(tmp_path, text, error, message):
    with pytest.raises(error, match=message):
        rpsp.read_log(_write(tmp_path / "log.csv", text), **COLUMNS)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ((0, 1, 1), r"row 3, column 't': the time is the same as that of the row before"),
        ((0, 2, 1), r"row 3, column 't': the time is not after"),
        (("0", "1", "noon"), r"row 1, column 't': '0' is neither a number nor a date"),
    ],
)
def test_times_must_increase(tmp_path, times, message):
    text = "t,a,u,b\n" + "\n".join(f"{t},1,0,1" for t in times)
    with pytest.raises(FileFormatError, match=message):
        rpsp.read_log(_write(tmp_path / "log.csv", text), **COLUMNS, time="t")


def test_columns_are_named_once_and_episodes_have_steps(tmp_path):
    path = _write(tmp_path / "log.csv", "a,b,u\n1,2,3\n")
    with pytest.raises(UsageError, match=r"actions: 'a' is among the observations"):
        rpsp.read_log(path, observations="a,b", actions="a")
    with pytest.raises(UsageError, match=r"observations: a,a names a column twice"):
        rpsp.read_log(path, observations="a,a", actions="u")
    with pytest.raises(UsageError, match=r"names no column"):
        rpsp.read_log(path, observations="a,", actions="u")
    with pytest.raises(UsageError, match=r"needs at least two"):
        rpsp.read_log(path, **COLUMNS).episodes()
