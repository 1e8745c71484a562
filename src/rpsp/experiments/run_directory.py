"""A training run on disk: its checkpoints and metrics.

    runs/NAME/
      config.json  command.txt  versions.json
      metrics.jsonl                        one line per iteration, truncated to the checkpoint on resume
      checkpoints/000120/{state.safetensors, manifest.json}

If the process is killed at any time, the directory is consistent up to the last checkpoint. A checkpoint is written to
a temporary directory, synchronised to disk and then renamed. The number in its name is the number of finished
iterations. In iteration n, counted from 0, the agent of checkpoint n acts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rpsp.algorithms.base import AbstractAlgorithm
from rpsp.data.files import PART, read_bytes, write_bytes, write_through
from rpsp.errors import FileFormatError, StorageError, UsageError, refuse_windows
from rpsp.experiments.checkpoint_files import checkpoint_files, parse_checkpoint, read_training
from rpsp.experiments.locks import LOCK, locked
from rpsp.training.state import Record, Training

refuse_windows()

KEEP = 3  # number of latest checkpoints to keep, in addition to the best one


def skipped(complaint: str) -> str:
    """Return the message for a damaged checkpoint that is skipped. `complaint` says what is wrong with it."""
    return f"skipped a damaged checkpoint: {complaint}"


def warn(sentence: str) -> None:
    """Issue a Python warning."""
    warnings.warn(sentence, stacklevel=3)


class RunDirectory:
    """The files of one run.

    Args:
        path: the run directory. It is created when it is locked or written to.
    """

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics_file = path / "metrics.jsonl"
        self._known: tuple[int, dict[int, float], dict[int, float]] = (0, {}, {})
        """The size of metrics.jsonl when it was last read, the returns and the evaluations in it."""

    # -----------------------------------------------------------------------------------------------------------------
    # Metrics
    # -----------------------------------------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        """Append a record to metrics.jsonl. The line is on disk when this returns."""
        line = (json.dumps(record) + "\n").encode()
        returns, evaluations = self.returns(), self.evaluations()
        try:
            with self.metrics_file.open("ab") as file:
                write_through(file, line)
        except OSError as error:
            raise StorageError(
                f"{self.metrics_file}: {len(line)} bytes could not be written ({error.strerror})."
            ) from error
        returns.update(_returns(record))
        evaluations.update(_evaluations(record))
        self._known = self._size(), returns, evaluations

    def metrics(self) -> list[Record]:
        """Return all records. Reading stops at the first damaged line, for example one truncated by a crash."""
        if not self.metrics_file.exists():
            return []
        records = []
        for line in read_bytes(self.metrics_file).decode(errors="replace").splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(record, dict) or not all(isinstance(value, int | float) for value in record.values()):
                break
            if not isinstance(record.get("iteration", 0), int):
                break
            records.append(record)
        return records

    def cut_back(self, iterations: int) -> int:
        """Remove the records of iterations that are not in the checkpoint.

        Args:
            iterations: number of iterations to keep. A negative number also removes the record of the initialisation.

        Returns:
            The number of iterations that are left. It is less than `iterations` if the file was damaged.
        """
        kept = [r for r in self.metrics() if r.get("iteration", -1) < iterations]
        write_bytes(self.metrics_file, "".join(json.dumps(r) + "\n" for r in kept).encode())
        return sum("iteration" in r for r in kept)

    def returns(self) -> dict[int, float]:
        """Return the mean return of every iteration."""
        return self._read()[1]

    def evaluations(self) -> dict[int, float]:
        """Return the mean returns of evaluations by the number of the checkpoint that was evaluated."""
        return self._read()[2]

    def _read(self) -> tuple[int, dict[int, float], dict[int, float]]:
        """Read metrics.jsonl if its size has changed."""
        if self._known[0] != (size := self._size()):
            returns: dict[int, float] = {}
            evaluations: dict[int, float] = {}
            for record in self.metrics():
                returns |= _returns(record)
                evaluations |= _evaluations(record)
            self._known = size, returns, evaluations
        return self._known

    def _size(self) -> int:
        return self.metrics_file.stat().st_size if self.metrics_file.exists() else 0

    # -----------------------------------------------------------------------------------------------------------------
    # Checkpoints
    # -----------------------------------------------------------------------------------------------------------------

    def save(self, training: Training) -> Path:
        """Write a checkpoint atomically. Then remove the checkpoints that are neither recent nor the best."""
        final = self.write_checkpoint(f"{training.iteration:06d}", checkpoint_files(training))
        self.keep({*self.numbers()[-KEEP:], self.best()})
        return final

    def write_checkpoint(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write the files of a checkpoint atomically.

        Args:
            name: the name of its directory.
            files: the content of each file by name.

        Returns:
            The path of the checkpoint.

        Raises:
            StorageError: if it cannot be written.
        """
        final = self.checkpoints / name
        temporary = self.checkpoints / f".{name}.{os.getpid()}"
        try:
            temporary.mkdir(parents=True, exist_ok=True)
            for part, data in files.items():
                with (temporary / part).open("wb") as file:
                    write_through(file, data)
            _sync_directory(temporary)
            self._remove(final)
            os.replace(temporary, final)
            _sync_directory(self.checkpoints)
        except OSError as error:
            size = sum(map(len, files.values()))
            raise StorageError(f"{final}: {size} bytes could not be written ({error.strerror}).") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return final

    def restore(self, algorithm: AbstractAlgorithm) -> tuple[Training, list[str]] | None:
        """Read the newest checkpoint that is not damaged.

        Args:
            algorithm: the algorithm of the run.

        Returns:
            The training state, and a sentence for every damaged checkpoint that was skipped. None if there is no
            checkpoint.

        Raises:
            FileFormatError: if all checkpoints are damaged.
        """
        complaints: list[str] = []
        for number in reversed(self.numbers()):
            try:
                return self.read(number, algorithm), complaints
            except FileFormatError as error:
                complaints.append(str(error))
        if complaints:
            raise FileFormatError(f"{self.checkpoints}: no checkpoint can be read; for the newest: {complaints[0]}")
        return None

    def read(self, number: int, algorithm: AbstractAlgorithm) -> Training:
        """Read and check one checkpoint. The algorithm's memory gets the structure that `algorithm.init` returns.

        Raises:
            FileFormatError: if the checkpoint is damaged or belongs to another method.
        """
        return read_training(self._place(number), algorithm)

    def agent(self, which: str | int = "last", say: Callable[[str], None] = warn) -> tuple[Any, Any, int]:
        """Read the agent of a checkpoint.

        Args:
            which: "last", "best" or the number of a checkpoint. "last" is the newest that is not damaged.
            say: called with a sentence for every damaged checkpoint that is skipped. Default: issue a warning.

        Returns:
            The agent, the scaling of its observations, and the number of the checkpoint.

        Raises:
            FileFormatError: if there is no checkpoint, or none that can be read.
            UsageError: if there is no checkpoint of that name.
        """
        numbers = self.numbers()
        if not numbers:
            raise FileFormatError(f"{self.path}: contains no checkpoint; give the directory of an `rpsp train` run.")
        if which == "last":
            complaints: list[str] = []
            for number in reversed(numbers):
                try:
                    _, (agent, scaling, *_), _ = self._parse(number)
                except FileFormatError as error:
                    if number == numbers[0]:
                        raise
                    complaints.append(str(error))
                    continue
                for complaint in complaints:  # only now: if no checkpoint can be read, none was skipped
                    say(skipped(complaint))
                return agent, scaling, number
        number = self.best() if which == "best" else which
        if number is None:
            number = numbers[-1]
        if number not in numbers:
            raise UsageError(f"checkpoint: {which!r} is not one of last, best, {', '.join(map(str, numbers))}.")
        _, (agent, scaling, *_), _ = self._parse(int(number))
        return agent, scaling, int(number)

    def numbers(self) -> list[int]:
        """Return the numbers of the existing checkpoints, oldest first."""
        if not self.checkpoints.is_dir():
            return []
        return sorted(int(p.name) for p in self.checkpoints.iterdir() if re.fullmatch("[0-9]{6,9}", p.name))

    def best(self) -> int | None:
        """Return the number of the existing checkpoint with the best agent, or None if no return is known.

        It is the one with the highest return of an evaluation. Without evaluations, it is the one whose agent had the
        highest mean return during training.
        """
        for returns in (self.evaluations(), self.returns()):
            if known := [n for n in self.numbers() if n in returns]:
                return max(known, key=lambda n: returns[n])
        return None

    def _place(self, number: int) -> Path:
        return self.checkpoints / f"{number:06d}"

    def _parse(self, number: int) -> tuple[Path, Any, dict[str, Any]]:
        return parse_checkpoint(self._place(number))

    def keep(self, numbers: Collection[int | None]) -> None:
        """Remove all checkpoints except these."""
        for number in self.numbers():
            if number not in numbers:
                with suppress(OSError):
                    self._remove(self._place(number))

    def _remove(self, checkpoint: Path) -> None:
        """Remove a checkpoint atomically, so that a killed process leaves no partial checkpoint."""
        if checkpoint.exists():
            gone = self.checkpoints / f".{checkpoint.name}.{os.getpid()}.gone"
            os.replace(checkpoint, gone)
            shutil.rmtree(gone, ignore_errors=True) if gone.is_dir() else gone.unlink()

    def clean(self) -> None:
        """Remove partially written files of a crash. Removes only files that this class names, no user's files."""
        for folder, pattern in ((self.checkpoints, PARTIAL_CHECKPOINT), (self.path, PARTIAL_FILE)):
            for left in folder.glob(".*"):
                if pattern.fullmatch(left.name):
                    shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)

    def discard(self, keep_directory: bool) -> None:
        """Remove the files of a run that failed before its first checkpoint.

        Other files are kept, and so is the directory that contains them.

        Args:
            keep_directory: keep the directory even if it is empty now, because it existed before the run.
        """
        folders = self.checkpoints, self.path / "tensorboard"
        with suppress(OSError):
            self.clean()
        for path in (*(self.path / name for name in (*FILES, LOCK)), *folders[1].glob("events.out.tfevents.*")):
            with suppress(OSError):
                path.unlink()
        for folder in folders if keep_directory else (*folders, self.path):
            with suppress(OSError):  # it does not exist, or is not empty
                folder.rmdir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory. The lock is released at the end of the context, or when the process ends.

        Raises:
            InUse: if another process has locked the directory.
            StorageError: if the directory cannot be written to.
        """
        with locked(self.path):
            yield


FILES = (
    "command.txt", "config.json", "failure.txt", "logs.json", "metrics.jsonl", "report.html", "results.json", "spaces.json",
    "versions.json",
)  # fmt: skip
"""The files of a run directory, apart from checkpoints, figures and videos."""
PARTIAL_FILE = re.compile(rf"\.({'|'.join(map(re.escape, FILES))})\.[a-z0-9_]{{8}}{re.escape(PART)}")
PARTIAL_CHECKPOINT = re.compile(r"\.[0-9]{6,9}\.[0-9]+(\.gone)?")
"""Temporary names that `write_bytes`, `write_checkpoint` and `_remove` use."""


def _returns(record: Record) -> dict[int, float]:
    """Return the mean return of a record by iteration. Empty for the record of the initialisation."""
    return {int(record["iteration"]): record["mean_return"]} if {"iteration", "mean_return"} <= record.keys() else {}


def _evaluations(record: Record) -> dict[int, float]:
    """Return the return of the evaluation after an iteration by checkpoint. Empty if there was none."""
    if not {"iteration", "eval_return"} <= record.keys():
        return {}
    return {int(record["iteration"]) + 1: float(record["eval_return"])}


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
