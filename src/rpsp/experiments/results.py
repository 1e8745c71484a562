"""Results of runs, read from their files: curves, settings and versions.

The configuration alone identifies a run. Its task is the environment plus what differs from plain sensors, as in
"Hopper-v5, obs_noise=0.1"; its method is a row of the table plus what differs from that row's defaults, as in
"rpsp-alt, dimension=10". Runs of the same task and method are seeds of one experiment and may be averaged. Nothing that a
file names is imported or executed.

    runs/NAME/{config.json, versions.json, metrics.jsonl, failure.txt}      a run directory written by `rpsp train`
    results/TASK/METHOD/SEED.json                                           the same in one small file: `write_result`
    results/NAME.result.json                                               such a file as rpsp 0.4.0 wrote it
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from rpsp.data.files import read_bytes, write_bytes
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.budget import UNLIMITED, Budget
from rpsp.experiments.files import read_json
from rpsp.experiments.labels import (
    defaults_of,
    flat_settings,
    method_label,
    plain_sensors,
    printable,
    slug,
    task_label,
    value_of,
)
from rpsp.experiments.methods import METHODS
from rpsp.experiments.upgrade import upgraded

CURVES = {
    "steps": "total_samples",
    "returns": "mean_return",
    "prediction_errors": "prediction_error",
    "persistence_errors": "persistence_error",
}
"""The curves of a result, and the names of their values in metrics.jsonl."""

RESULT_FILE = re.compile(r"-?[0-9]+\.json|.+\.result\.json")
"""Names of result files: SEED.json, and NAME.result.json as of rpsp 0.4.0."""
UNLABELLED = {
    "env", "method", "seed", "seeds", "iterations", "steps", "minutes", "device", "threads", "step_timeout", "out",
    "config", "plugin", "tensorboard", "logger", "eval_every", "eval_episodes", "stop_at_return", "max_hours",
    "chosen", "compilation_cache", "json", "quiet",
}  # fmt: skip
"""Settings that do not distinguish methods: names, lengths, and how and where a run was computed."""


@dataclass(frozen=True, eq=False)
class Result:
    """The result of one run."""

    task: str
    method: str
    seed: int
    settings: dict[str, Any]
    """All settings by their flat name, with defaults filled in."""
    versions: dict[str, str]
    steps: Float[np.ndarray, " iteration"]
    """Environment steps at the end of each iteration, including exploration."""
    returns: Float[np.ndarray, " iteration"]
    """Mean return of the episodes of each iteration."""
    prediction_errors: Float[np.ndarray, " iteration"]
    persistence_errors: Float[np.ndarray, " iteration"]
    iterations: int
    """Number of iterations requested."""
    finished: bool
    """Whether all requested iterations are done."""
    failure: str
    """Why the run failed, in one sentence; empty if it did not fail."""
    seconds: float
    """Computing time, summed over all processes that worked on the run."""
    source: Path
    """The run directory or the result file."""

    def cut(self, iterations: int) -> Result:
        """Return the result with only the first iterations."""
        return dataclasses.replace(self, **{name: getattr(self, name)[:iterations] for name in CURVES})

    def gathered(self, samples: int) -> Result:
        """Merge short iterations into iterations of `samples` steps by averaging their curves. A remainder is dropped.

        An iteration that overlaps two merged iterations counts in both in proportion: five iterations of 4000 steps
        make two of 10 000.
        """
        own = self.settings["samples"]
        ends = samples * np.arange(1, len(self.returns) * own // samples + 1)
        measure = math.gcd(own, samples)

        def means(curve: np.ndarray) -> np.ndarray:
            shares = np.repeat(curve, own // measure)[: len(ends) * (samples // measure)]
            return shares.reshape(len(ends), -1).mean(axis=1)

        curves = {name: means(getattr(self, name)) for name in CURVES if name != "steps"}
        curves["steps"] = np.interp(ends, own * np.arange(len(self.steps) + 1), np.append(0, self.steps))
        return dataclasses.replace(
            self, settings={**self.settings, "samples": samples}, iterations=self.iterations * own // samples, **curves
        )


def _labelled(results: list[Result]) -> list[Result]:
    """Extend the labels so that runs with different settings have different labels and are never averaged."""
    tasks: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        tasks[result.task].append(result)
    labelled = []
    for runs in tasks.values():
        limits = varying(runs, ["max_episode_steps"])  # a different time limit makes a different task
        methods: dict[tuple[str, str], list[Result]] = defaultdict(list)
        for run in runs:
            methods[task_label(run.settings, limits), run.method].append(run)
        for (task, _), same in methods.items():
            also = [name for name in varying(same) if name not in limits]
            if limits or also:
                same = [dataclasses.replace(r, task=task, method=method_label(r.settings, also)) for r in same]
            labelled += same
    return labelled


def varying(results: Sequence[Result], names: Iterable[str] = ()) -> list[str]:
    """Return the settings in which these runs differ.

    Args:
        results: results of runs.
        names: settings to check. Default: all settings that can distinguish methods.
    """
    defaults = plain_sensors() | defaults_of(results[0].settings["method"])
    found = []
    for name in names or dict.fromkeys(n for r in results for n in r.settings if n not in UNLABELLED):
        first = value_of(results[0].settings, name, defaults)
        if any(value_of(result.settings, name, defaults) != first for result in results):
            found.append(name)
    return found


def read_results(paths: Iterable[str | Path]) -> tuple[list[Result], list[str]]:
    """Read all results in and below directories and files.

    A damaged run is left out. If there are two runs of the same task, method and seed, the longer one is used, or the
    newer one if they are equally long.

    Args:
        paths: run directories, result files, or directories that contain them.

    Returns:
        The results sorted by task, method and seed, and a warning for each problem.
    """
    results, warnings = [], []
    for source in {os.path.abspath(source): source for source in _sources(paths)}.values():
        try:
            results.append(read_result(source))
        except FileFormatError as error:
            warnings.append(f"left out: {error}")
    kept: dict[tuple[str, str, int], Result] = {}
    for result in _labelled(results):
        name = (result.task, result.method, result.seed)
        if name in kept:
            taken, other = sorted((kept[name], result), key=_age, reverse=True)
            warnings.append(
                f"{result.task}, {result.method}, seed {result.seed} exists twice: {taken.source} is used, "
                f"{other.source} is not."
            )
            result = taken
        kept[name] = result
    mixed = {" with ".join(f"{name} {v}" for name, v in _pair(r).items()) for r in kept.values()} - {""}
    if len(mixed) > 1:
        warnings.append(f"results of different versions are mixed: {', '.join(sorted(mixed))}.")
    return [kept[name] for name in sorted(kept)], warnings


def read_result(source: Path) -> Result:
    """Read one run directory or result file.

    The labels are based on this run alone. `read_results` extends them where runs differ in other settings.

    Raises:
        FileFormatError: if it is not the result of an `rpsp train` run.
    """
    try:
        if source.is_file():
            content = read_json(source)
            settings, versions, failure, seconds = (content[k] for k in ("settings", "versions", "failure", "seconds"))
            curves = {name: np.array(content[name], float) for name in CURVES if name != "steps"}
            curves["steps"] = np.cumsum(np.array(content["samples"], float))
        else:
            content = read_json(source / "config.json")
            if not isinstance(content, dict):
                raise ValueError("config.json holds no JSON object")
            settings = flat_settings(content)
            versions = read_json(source / "versions.json") if (source / "versions.json").exists() else {}
            failed, metrics = source / "failure.txt", source / "metrics.jsonl"
            failure = read_bytes(failed).decode(errors="replace").strip() if failed.exists() else ""
            curves, seconds = _read_metrics(read_bytes(metrics) if metrics.exists() else b"", metrics)
        if (row := METHODS.get(settings["method"])) is not None:
            settings = upgraded(settings, row.known)
        if {curve.shape for curve in curves.values()} != {(len(curves["returns"]),)}:
            raise ValueError("its curves differ in length")
        budget, done = Budget.of({**settings, "iterations": int(settings["iterations"])}), len(curves["returns"])
        finished = budget.spent(done, int(curves["steps"][-1]) if done else 0, float(seconds))
        iterations = budget.iterations
        if finished or iterations == UNLIMITED:
            iterations = min(done, iterations)
        return Result(
            task=task_label(settings),
            method=method_label(settings),
            seed=int(settings["seed"]),
            settings=settings,
            versions=dict(versions),
            iterations=iterations,
            finished=finished,
            failure="" if finished else printable(failure),
            seconds=float(seconds),
            source=source,
            **curves,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FileFormatError(f"{source}: is not the result of an `rpsp train` run ({what}).") from error


def _sources(paths: Iterable[str | Path]) -> Iterator[Path]:
    """Yield all run directories and result files."""
    for path in paths:
        if Path(path).is_file():
            yield Path(path)
        elif not Path(path).is_dir():
            raise UsageError(
                f"directories: {str(path)!r} does not exist; give run directories, or one that contains them."
            )
        for directory, within, files in os.walk(path):
            if "config.json" in files and not {"metrics.jsonl", "failure.txt"}.isdisjoint(files):
                within.clear()
                yield Path(directory)
            else:
                within[:] = sorted(name for name in within if name != "checkpoints" and not name.startswith("."))
                yield from (Path(directory, name) for name in sorted(files) if RESULT_FILE.fullmatch(name))


_WANTED: tuple[str, ...] = (
    "mean_return", "total_samples", "persistence_error", "prediction_error", "steps_per_second",
)  # fmt: skip
"""Values read from the record of an iteration, in the order in which training writes them."""
_near = r"[^\n]*?".join(rf'"{name}": ([^,}}\s]+)' for name in _WANTED[:-1])
_LINE = re.compile(rf'{_near}[^\n]*"{_WANTED[-1]}": ([^,}}\s]+)'.encode())


def _read_metrics(data: bytes, path: Path) -> tuple[dict[str, np.ndarray], float]:
    """Return the curves in metrics.jsonl and the computing time in seconds. An incomplete last line is ignored.

    A regular expression extracts the values, which takes a third of the time of parsing each line as JSON. If it does
    not match every line, the lines are parsed as JSON, which gives a precise error message.
    """
    data = data[: data.rfind(b"\n") + 1]
    first, _, rest = data.partition(b"\n")
    before = {} if not first or b'"iteration"' in first else _record(first, path, 1)
    body = rest if before else data
    found = _LINE.findall(body)
    try:
        if len(found) != body.count(b"\n"):
            raise ValueError
        rows = [float(value) for values in found for value in values]
    except ValueError:
        rows = [value for i, line in enumerate(body.splitlines(), 1 + bool(before)) for value in _parsed(line, path, i)]
    columns = dict(zip(_WANTED, np.array(rows, float).reshape(-1, len(_WANTED)).T, strict=True))
    began = seconds_of(before)
    speed, steps = (
        columns["steps_per_second"],
        np.append(before.get("exploration_samples", 0), columns["total_samples"]),
    )
    seconds = np.divide(steps[1:] - steps[:-1], speed, out=np.zeros_like(speed), where=speed > 0).sum()
    return {curve: columns[name] for curve, name in CURVES.items()}, began + float(seconds)


def seconds_of(record: Mapping[str, float | int]) -> float:
    """Return the computing time of an iteration or of the initialisation."""
    return sum((value for name, value in record.items() if name.endswith("_seconds")), 0.0)


def _parsed(line: bytes, path: Path, number: int) -> list[float]:
    """Parse one line of metrics.jsonl and return the values of `_WANTED`."""
    try:
        record = _record(line, path, number)
        return [float(record[name]) for name in _WANTED]
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: line {number} is not the record of an iteration ({error}).") from error


def _record(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """Parse one line of metrics.jsonl as a JSON object."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise FileFormatError(f"{path}: line {number} is damaged ({error}).") from error
    if not isinstance(record, dict):
        raise FileFormatError(f"{path}: line {number} is damaged (no JSON object).")
    return record


def _age(result: Result) -> tuple[int, float]:
    """Return a sort key: length of the run, then modification time."""
    metrics = result.source / "metrics.jsonl"
    return len(result.returns), (metrics if metrics.exists() else result.source).stat().st_mtime


def _pair(result: Result) -> dict[str, str]:
    """Return the versions of rpsp and jax, if known."""
    return {name: result.versions[name] for name in ("rpsp", "jax") if name in result.versions}


def write_result(result: Result, directory: str | Path) -> Path:
    """Write a result as one small file, its curves rounded: returns to 5 significant digits, errors to 3.

    A file of the same run that rpsp 0.4.0 wrote (TASK__METHOD__sSEED.result.json) is replaced.

    Args:
        result: the result of one run.
        directory: where to write; made if it does not exist.

    Returns:
        The path of the file: directory/TASK/METHOD/SEED.json.
    """
    task, method = slug(result.task), slug(result.method)
    path = Path(directory, task, method, f"{result.seed}.json")
    content = {
        "settings": {
            k: v for k, v in result.settings.items() if k not in ("out", "json", "quiet", "config", "compilation_cache")
        },
        "versions": result.versions,
        "failure": result.failure,
        "seconds": round(result.seconds, 1),
        "samples": np.diff(result.steps, prepend=0).astype(int).tolist(),
        "returns": _rounded(result.returns, 5),
        "prediction_errors": _rounded(result.prediction_errors, 3),
        "persistence_errors": _rounded(result.persistence_errors, 3),
    }
    lines = [f'"{name}": {json.dumps(value, separators=(",", ":"))}' for name, value in content.items()]
    write_bytes(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    with suppress(OSError):
        Path(directory, f"{task}__{method}__s{result.seed}.result.json").unlink()
    return path


def _rounded(values: np.ndarray, digits: int) -> list[float | None]:
    """Round to significant digits. NaN and infinite values become None, because JSON has no number for them."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in values.tolist()]


def long_table(results: Sequence[Result]) -> dict[str, list[Any]]:
    """Return all iterations of all results as the columns of one long table."""
    lengths = [len(result.returns) for result in results]
    table = {
        name: [getattr(r, name) for r, n in zip(results, lengths, strict=True) for _ in range(n)]
        for name in ("task", "method", "seed")
    }
    table["iteration"] = [i for n in lengths for i in range(n)]
    table["steps"] = [int(step) for r in results for step in r.steps]
    for column, name in (("return", "returns"), *((name[:-1], name) for name in CURVES if name.endswith("_errors"))):
        table[column] = [value for r in results for value in getattr(r, name).tolist()]
    return table


def write_csv(table: Mapping[str, Sequence[Any]], path: str | Path) -> None:
    """Write the columns of a table as CSV. NaN values are left empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table)
    for row in zip(*table.values(), strict=True):
        writer.writerow(None if value != value else value for value in row)  # NaN is not equal to itself
    write_bytes(Path(path), file.getvalue().encode())


def write_parquet(table: Mapping[str, Sequence[Any]], path: str | Path) -> None:
    """Write the columns of a table as Parquet. Requires the extra `parquet`.

    Raises:
        UsageError: if pyarrow is not installed.
    """
    try:
        import pyarrow  # optional extra # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # optional extra # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError("parquet: pyarrow is not installed; `pip install rpsp[parquet]`, or use --csv.") from error
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(dict(table)), buffer)
    write_bytes(Path(path), buffer.getvalue())
