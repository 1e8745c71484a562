"""Read a log, a CSV or Parquet file with one row per step, as episodes.

A row holds what the sensors read and the command that was given after reading them. The next row holds the result. So a
log of n rows is an episode of n − 1 steps; the command of the last row has no result yet, and is kept apart.
"""

# pyarrow has no stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from rpsp.data.episodes import Episode
from rpsp.data.files import read_bytes
from rpsp.errors import FileFormatError, UsageError

SUFFIXES = ".csv", ".tsv", ".txt", ".parquet"
"""Ends of the names of files that are read as logs."""
EMPTY = frozenset({"", "nan", "na", "n/a", "null", "none", "-"})
"""Cells that hold no reading, in lower case."""
TRUTHS = {"true": 1.0, "false": 0.0}
"""Values of switches."""
LATE = 1.5
"""Rows further apart than this many median time steps have a gap between them."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows of a log that follow each other without a gap in time."""

    name: str
    """What the episode column says, or "" without one."""
    row: int
    """Number of its first row in the file; the first row of data is 1."""
    observations: Float[np.ndarray, "rows obs"]
    """Readings, NaN where a cell is empty."""
    actions: Float[np.ndarray, "rows act"]
    """Commands, each given after the readings of its row."""

    def episode(self) -> Episode:
        """Return the segment as an episode, without the last command."""
        return Episode(self.observations, self.actions[:-1])


@dataclass(frozen=True)
class Log:
    """A log that was read."""

    segments: list[Segment]
    """At least one."""
    observations: tuple[str, ...]
    """Names of the columns that are sensors."""
    actions: tuple[str, ...]
    """Names of the columns that are commands."""
    gaps: int
    """Number of gaps in time. A gap ends a segment."""

    def episodes(self) -> list[Episode]:
        """Return the segments as episodes. Those of one row have no step, and are left out.

        Raises:
            UsageError: if no segment has two rows.
        """
        found = [segment.episode() for segment in self.segments if len(segment.actions) > 1]
        if not found:
            raise UsageError("log: no two rows follow each other; an episode needs at least two.")
        return found

    @property
    def missing(self) -> float:
        """Share of the readings that are missing."""
        return float(np.mean(np.isnan(np.concatenate([s.observations for s in self.segments]))))


def is_log(source: str | Path) -> bool:
    """Return whether the name of a file says that it is a log."""
    return Path(source).suffix.lower() in SUFFIXES


def read_log(
    path: str | Path,
    *,
    observations: Sequence[str] | str,
    actions: Sequence[str] | str,
    episode: str | None = None,
    time: str | None = None,
) -> Log:
    """Read a log with one row per step: a CSV file with a line of names, or a Parquet file.

    Args:
        path: the file. Values of a CSV file are separated by commas, semicolons or tabs.
        observations: the columns that are sensors, as a list or as "a,b". An empty cell is a missing reading, NaN.
        actions: the columns that are commands. A row's command is the one given after its readings.
        episode: the column that says to which episode a row belongs. Default: the whole file is one.
        time: the column with the time of a row, as numbers or as dates of ISO 8601. A gap in time ends an episode.

    Returns:
        The log. Its `episodes()` are what `PredictiveStateModel.fit` takes, with `missing="nan"` if readings are missing.

    Raises:
        FileFormatError: if the file cannot be read, or a cell is not a number.
        UsageError: if a column does not exist.
    """
    path = Path(path)
    table = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    sensors, commands = _names(observations, "observations"), _names(actions, "actions")
    if both := [name for name in sensors if name in commands]:
        raise UsageError(f"actions: {both[0]!r} is among the observations, too; name each column once.")
    read = np.stack([_numbers(path, table, name, "observations", gaps=True) for name in sensors], axis=1)
    done = np.stack([_numbers(path, table, name, "actions", gaps=False) for name in commands], axis=1)
    if len(done) == 0:
        raise FileFormatError(f"{path}: has no rows below its names.")
    names = np.zeros(len(done), int) if episode is None else _column(path, table, episode, "episode")
    times = None if time is None else _times(path, table, time)
    segments: list[Segment] = []
    gaps = 0
    for name in dict.fromkeys(names.tolist()):
        rows = np.flatnonzero(names == name)
        parts = [rows] if times is None else _without_gaps(path, rows, times[rows], str(time))
        gaps += len(parts) - 1
        label = "" if episode is None else str(name)
        segments += [Segment(label, int(part[0]) + 1, read[part], done[part]) for part in parts]
    return Log(segments, sensors, commands, gaps)


def _names(given: Sequence[str] | str, field: str) -> tuple[str, ...]:
    """Return the names of columns."""
    names = tuple(name.strip() for name in (given.split(",") if isinstance(given, str) else given))
    if not names or not all(names):
        raise UsageError(f"{field}: {given!r} names no column; give the names of columns, as in --{field} a,b.")
    if len(set(names)) < len(names):
        raise UsageError(f"{field}: {','.join(names)} names a column twice; name each column once.")
    return names


def _csv(path: Path) -> dict[str, list[Any]]:
    """Read a CSV file as columns of text."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: is not text in UTF-8; save it as CSV in UTF-8.") from error
    head = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=head.count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True) if row]
    except csv.Error as error:
        raise FileFormatError(f"{path}: is not a table of values separated by {delimiter!r} ({error}).") from error
    names = [name.strip() for name in rows[0]] if rows else []
    if not any(names):
        raise FileFormatError(f"{path}: has no line of names at its top; add one, as in time,sensor,command.")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise FileFormatError(f"{path}: has more than one column {twice[0]!r}; give each a name of its own.")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(names):
            raise FileFormatError(f"{path}, row {number}: has {len(row)} values for {len(names)} names.")
    return {name: [row[i].strip() for row in rows[1:]] for i, name in enumerate(names)}


def _parquet(path: Path) -> dict[str, list[Any]]:
    """Read a Parquet file as columns of Python values."""
    try:
        import pyarrow.parquet  # optional extra # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError("parquet: pyarrow is not installed; pip install 'rpsp[parquet]'.") from error
    data = read_bytes(path)
    try:
        table: Any = pyarrow.parquet.read_table(io.BytesIO(data))  # pyright: ignore[reportUnknownMemberType]
        names: list[str] = table.column_names
        return {name: table[name].to_pylist() for name in names}
    except (OSError, ValueError, KeyError, NotImplementedError, MemoryError) as error:
        raise FileFormatError(f"{path}: is not a Parquet file, or is damaged ({error}).") from error


def _column(path: Path, table: dict[str, list[Any]], name: str, field: str) -> np.ndarray:
    """Return a column as an array of text."""
    if name not in table:
        close = difflib.get_close_matches(name, table, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(table)}."
        raise UsageError(f"{field}: {path} has no column {name!r}; {remedy}")
    return np.array(["" if value is None else str(value) for value in table[name]], dtype=object)


def _numbers(
    path: Path, table: dict[str, list[Any]], name: str, field: str, *, gaps: bool
) -> Float[np.ndarray, " rows"]:
    """Return a column as numbers, with NaN for empty cells if `gaps`.

    Raises:
        FileFormatError: if a cell is not a finite number.
    """
    texts = _column(path, table, name, field)
    found = np.empty(len(texts))
    for i, text in enumerate(texts):
        if text.lower() in EMPTY:
            if not gaps:
                raise FileFormatError(
                    f"{path}, row {i + 1}, column {name!r}: is empty, but commands must be known; fill in the one in force."
                )
            found[i] = np.nan
            continue
        try:
            found[i] = TRUTHS[text.lower()] if text.lower() in TRUTHS else float(text)
        except ValueError as error:
            remedy = "use a decimal point." if "," in text else "leave the cell empty if nothing was read."
            raise FileFormatError(
                f"{path}, row {i + 1}, column {name!r}: {text!r} is not a number; {remedy}"
            ) from error
        if np.isinf(found[i]):
            raise FileFormatError(f"{path}, row {i + 1}, column {name!r}: is infinite; leave the cell empty.")
    return found


def _times(path: Path, table: dict[str, list[Any]], name: str) -> Float[np.ndarray, " rows"]:
    """Return the times of the rows in seconds, or in the unit of the column if it has numbers."""
    texts = _column(path, table, name, "time")
    try:
        return np.array([float(text) for text in texts])
    except ValueError:
        pass
    found = np.empty(len(texts))
    for i, text in enumerate(texts):
        try:
            found[i] = datetime.fromisoformat(text).timestamp()
        except ValueError as error:
            raise FileFormatError(
                f"{path}, row {i + 1}, column {name!r}: {text!r} is neither a number nor a date as 2026-01-31T12:00:00."
            ) from error
    return found


def _without_gaps(path: Path, rows: np.ndarray, times: Float[np.ndarray, " rows"], name: str) -> list[np.ndarray]:
    """Split the rows of an episode where more than `LATE` median time steps lie between two.

    Raises:
        FileFormatError: if times do not increase.
    """
    steps = np.diff(times)
    if (wrong := np.flatnonzero(~(steps > 0))).size:
        row = int(rows[wrong[0] + 1])
        how = "is the same as" if steps[wrong[0]] == 0 else "is not after"
        raise FileFormatError(
            f"{path}, row {row + 1}, column {name!r}: the time {how} that of the row before; sort the rows by time, and "
            "remove duplicates (or name the column of episodes)."
        )
    return np.split(rows, np.flatnonzero(steps > LATE * np.median(steps)) + 1) if len(steps) else [rows]
