"""What runs came to, read from their files: curves, settings, versions. Imports and executes nothing that a file names.

A run is told by its configuration alone. Its task is the environment and what differs from plain sensors, as in
"Hopper-v5, obs_noise=0.1"; its method is a row of the table and what differs from that row's defaults, as in
"rpsp-alt, dimension=10". Runs of the same task and method are the seeds of one thing and may be averaged.

    runs/NAME/{config.json, versions.json, metrics.jsonl, failure.txt}      a run directory, as `rpsp train` leaves it
    NAME.result.json                                                       the same in one small file: `write_result`
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import hashlib
import io
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from rpsp.data.files import read_bytes, write_bytes
from rpsp.envs.tasks import TASKS
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.config import Sensors, usual_samples
from rpsp.experiments.files import read_json
from rpsp.experiments.methods import METHODS

CURVES = {
    "steps": "total_samples",
    "returns": "mean_return",
    "prediction_errors": "prediction_error",
    "persistence_errors": "persistence_error",
}
"""The curves of a result, and what their values are called in a line of metrics.jsonl."""

SUFFIX = ".result.json"
UNLABELLED = {
    "env", "method", "seed", "seeds", "iterations", "device", "threads", "step_timeout", "out", "config", "plugin",
    "tensorboard", "compilation_cache", "json", "quiet",
}  # fmt: skip
"""What tells no two methods apart: names, lengths, and how and where a run was computed."""


@dataclass(frozen=True, eq=False)
class Result:
    """What one run came to."""

    task: str
    method: str
    seed: int
    settings: dict[str, Any]
    """Every setting by its flat name, as it was resolved."""
    versions: dict[str, str]
    steps: Float[np.ndarray, " iteration"]
    """Environment steps up to the end of every iteration, exploration included."""
    returns: Float[np.ndarray, " iteration"]
    """Mean return of the episodes of every iteration."""
    prediction_errors: Float[np.ndarray, " iteration"]
    persistence_errors: Float[np.ndarray, " iteration"]
    iterations: int
    """How many were asked for."""
    finished: bool
    """Whether they were all done."""
    failure: str
    """Why the run failed, in one sentence; empty if it did not."""
    seconds: float
    """Time spent, over all the processes that worked on it."""
    source: Path
    """The run directory or the file."""

    def cut(self, iterations: int) -> Result:
        """The first so many iterations alone."""
        return dataclasses.replace(self, **{name: getattr(self, name)[:iterations] for name in CURVES})

    def gathered(self, samples: int) -> Result:
        """Short iterations put together to some of so many steps each: means of their curves. What is left over goes.

        An iteration that lies in two of them counts in both by its share: five of 4000 steps make two of 10 000.
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


# ---------------------------------------------------------------------------------------------------------------------
# Labels
# ---------------------------------------------------------------------------------------------------------------------


def flat_settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config.json, or of `dataclasses.asdict(config)`, by their flat names; tuples as lists."""
    flat = {**content, **content.get("sensors", {}), **content.get("settings", {})}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in flat.items() if k not in ("sensors", "settings")}


def task_label(settings: Mapping[str, Any], also: Iterable[str] = ()) -> str:
    """The environment and how it is sensed, where not plainly, as in "Hopper-v5, obs_noise=0.1"; and what `also` names."""
    observe = settings.get("observe")
    # An explicitly given default counts as default.
    if observe in ("all", "positions") and observe == ("positions" if settings["env"] in TASKS else "all"):
        settings = {**settings, "observe": None}
    return _label(settings, "env", _plain_sensors(), also)


def method_label(settings: Mapping[str, Any], also: Iterable[str] = ()) -> str:
    """The method and where it differs from its defaults, as in "rpsp-alt, dimension=10"; and what `also` names.

    The defaults of a user's own method are not known without importing it: only what `also` names is told. Of a row that
    has its own number of steps an iteration, others are told.
    """
    row, samples = METHODS.get(settings["method"]), settings.get("samples")
    if row is not None and row.samples is not None and samples is not None:
        limit = settings.get("max_episode_steps")
        usual = usual_samples(settings.get("env"), row, limit if isinstance(limit, int) else 1000)
        also = also if samples == usual else dict.fromkeys([*also, "samples"])
    return _label(settings, "method", _defaults(settings["method"]), also)


def slug(label: str) -> str:
    """A label as (part of) a file's name: nothing in it can lead elsewhere, and no two labels become one."""
    safe = re.sub(r"[^A-Za-z0-9.=+_-]+", "-", label.replace(", ", "__")).strip(".-")[:100]
    if safe and safe.replace("__", ", ") == label:
        return safe
    return f"{safe}-{hashlib.sha256(label.encode()).hexdigest()[:6]}".lstrip("-")


def _label(settings: Mapping[str, Any], name: str, defaults: Mapping[str, Any], also: Iterable[str]) -> str:
    told = [k for k, default in defaults.items() if settings.get(k, default) != default]
    told += [k for k in also if k not in told]
    return _printable(", ".join([str(settings[name]), *(f"{k}={word(_value(settings, k, defaults))}" for k in told)]))


def _printable(text: str) -> str:
    """In one line, without what would move a terminal's cursor: the text is of a file."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _value(settings: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> Any:
    """A setting; one that was not known yet when the run was made has its default."""
    return settings.get(name, defaults.get(name))


def word(value: Any) -> str:
    """A setting's value as labels have it."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "/".join(map(word, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


@functools.cache
def _plain_sensors() -> dict[str, Any]:
    return dataclasses.asdict(Sensors())


@functools.cache
def _defaults(method: str) -> dict[str, Any]:
    row = METHODS.get(method)
    return {} if row is None else flat_settings(dataclasses.asdict(row.settings()))


def _labelled(results: list[Result]) -> list[Result]:
    """Results whose labels tell apart whatever else varies: unlike runs are never averaged."""
    tasks: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        tasks[result.task].append(result)
    labelled = []
    for runs in tasks.values():
        limits = varying(runs, ["max_episode_steps"])  # with another limit it is another task
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
    """The settings in which these runs differ, of those named, or else of all that make a difference."""
    defaults = _plain_sensors() | _defaults(results[0].settings["method"])
    found = []
    for name in names or dict.fromkeys(n for r in results for n in r.settings if n not in UNLABELLED):
        first = _value(results[0].settings, name, defaults)
        if any(_value(result.settings, name, defaults) != first for result in results):
            found.append(name)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


def read_results(paths: Iterable[str | Path]) -> tuple[list[Result], list[str]]:
    """Every result in and under these directories and files, by task, method and seed; and a sentence for each doubt.

    A damaged run is left out. Of two runs of the same task, method and seed the longer is taken, on a tie the later.
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
                f"{result.task}, {result.method}, seed {result.seed} is there twice: {taken.source} is taken, "
                f"{other.source} is not."
            )
            result = taken
        kept[name] = result
    mixed = {" with ".join(f"{name} {v}" for name, v in _pair(r).items()) for r in kept.values()} - {""}
    if len(mixed) > 1:
        warnings.append(f"results of different versions are mixed: {', '.join(sorted(mixed))}.")
    return [kept[name] for name in sorted(kept)], warnings


def read_result(source: Path) -> Result:
    """What one run directory or one result file holds; its labels tell no more than its own settings."""
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
        if {curve.shape for curve in curves.values()} != {(len(curves["returns"]),)}:
            raise ValueError("its curves differ in length")
        iterations = int(settings["iterations"])
        finished = len(curves["returns"]) >= iterations
        return Result(
            task=task_label(settings),
            method=method_label(settings),
            seed=int(settings["seed"]),
            settings=settings,
            versions=dict(versions),
            iterations=iterations,
            finished=finished,
            failure="" if finished else _printable(failure),
            seconds=float(seconds),
            source=source,
            **curves,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FileFormatError(f"{source}: is not the result of an `rpsp train` run ({what}).") from error


def _sources(paths: Iterable[str | Path]) -> Iterator[Path]:
    """The run directories and result files that there are."""
    for path in paths:
        if Path(path).is_file():
            yield Path(path)
        elif not Path(path).is_dir():
            raise UsageError(
                f"directories: {str(path)!r} does not exist; give run directories, or one that holds them."
            )
        for directory, within, files in os.walk(path):
            if "config.json" in files and not {"metrics.jsonl", "failure.txt"}.isdisjoint(files):
                within.clear()
                yield Path(directory)
            else:
                within[:] = sorted(name for name in within if name != "checkpoints" and not name.startswith("."))
                yield from (Path(directory, name) for name in sorted(files) if name.endswith(SUFFIX))


_WANTED: tuple[str, ...] = (
    "mean_return", "total_samples", "persistence_error", "prediction_error", "steps_per_second",
)  # fmt: skip
"""What is read of an iteration, in the order in which `training` writes it."""
_near = r"[^\n]*?".join(rf'"{name}": ([^,}}\s]+)' for name in _WANTED[:-1])
_LINE = re.compile(rf'{_near}[^\n]*"{_WANTED[-1]}": ([^,}}\s]+)'.encode())


def _read_metrics(data: bytes, path: Path) -> tuple[dict[str, np.ndarray], float]:
    """The curves in metrics.jsonl, and the seconds spent; a last line that was cut off is not one.

    The few numbers wanted are picked out of the bytes, which takes a third of the time of reading every line as JSON.
    Where they are not found in every line, it is read as JSON after all, which tells what is wrong.
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
    """What an iteration, or the beginning, took."""
    return sum((value for name, value in record.items() if name.endswith("_seconds")), 0.0)


def _parsed(line: bytes, path: Path, number: int) -> list[float]:
    """What is wanted of a line of any layout."""
    try:
        record = _record(line, path, number)
        return [float(record[name]) for name in _WANTED]
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: line {number} is not of an iteration ({error}).") from error


def _record(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise FileFormatError(f"{path}: line {number} is damaged ({error}).") from error
    if not isinstance(record, dict):
        raise FileFormatError(f"{path}: line {number} is damaged (no JSON object).")
    return record


def _age(result: Result) -> tuple[int, float]:
    metrics = result.source / "metrics.jsonl"
    return len(result.returns), (metrics if metrics.exists() else result.source).stat().st_mtime


def _pair(result: Result) -> dict[str, str]:
    return {name: result.versions[name] for name in ("rpsp", "jax") if name in result.versions}


# ---------------------------------------------------------------------------------------------------------------------
# Writing
# ---------------------------------------------------------------------------------------------------------------------


def write_result(result: Result, directory: str | Path) -> Path:
    """Keep a result as one small file, its curves rounded: returns to 5 significant digits, errors to 3."""
    path = Path(directory) / f"{slug(result.task)}__{slug(result.method)}__s{result.seed}{SUFFIX}"
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
    return path


def _rounded(values: np.ndarray, digits: int) -> list[float | None]:
    """To so many significant digits; what is not finite has no number in JSON."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in values.tolist()]


def long_table(results: Sequence[Result]) -> dict[str, list[Any]]:
    """Every iteration of every result, as the columns of one long table."""
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
    """The columns of a table as CSV; a number that is not known is left empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table)
    for row in zip(*table.values(), strict=True):
        writer.writerow(None if value != value else value for value in row)  # nan is not itself
    write_bytes(Path(path), file.getvalue().encode())


def write_parquet(table: Mapping[str, Sequence[Any]], path: str | Path) -> None:
    """The columns of a table as Parquet (extra `parquet`)."""
    try:
        import pyarrow  # optional extra # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # optional extra # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError("parquet: pyarrow is not installed; `pip install rpsp[parquet]`, or use --csv.") from error
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(dict(table)), buffer)
    write_bytes(Path(path), buffer.getvalue())
