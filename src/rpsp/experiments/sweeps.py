"""Sweeps: runs of all combinations of tasks, methods, settings and seeds; their progress and the remaining time.

    tasks = ["Hopper-v5", {env = "Swimmer-v5", obs_noise = 0.1}]
    methods = ["fm2", {method = "rpsp-alt", dimension = 10}]
    seeds = 3                                  # or a list
    iterations = 50                            # any other setting of `rpsp train` applies to all runs
    [grid]                                     # every combination
    learning_rate = [1e-2, 1e-3]

A setting may be given in one place only, so that there are no contradictions. The directory of a run is
DIR/TASK/METHOD/sSEED and depends only on the settings of that run. A sweep can therefore be extended later, and
finished runs remain valid.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import statistics
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rpsp.errors import UsageError
from rpsp.experiments.callbacks.asked_for import asked_for
from rpsp.experiments.cluster import connect, run_there
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.configure import check_names, configured, find_method, read_toml, setting_names
from rpsp.experiments.files import read_json
from rpsp.experiments.labels import flat_settings, method_label, slug, task_label
from rpsp.experiments.methods import METHODS
from rpsp.experiments.plugins import import_plugin, named_modules
from rpsp.experiments.resolve import check, environment_maker, episode_limit, read_config, resolve
from rpsp.experiments.results import seconds_of
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.workers import Beat, Failure, Job, cores, done, run_here

ELSEWHERE = {
    **dict.fromkeys(("env", "envs", "environments", "task"), "use tasks"),
    "method": "use methods",
    "seed": "use seeds",
    "threads": "every run of a sweep has one thread",
    "out": "use --out",
    "config": "the sweep is the configuration",
    "json": "use --json",
    "quiet": "use --quiet",
}
"""Settings of `rpsp train` that a sweep file cannot contain, and the remedy for each."""
AXES = {"tasks": "env", "methods": "method"}
"""The lists of a sweep, and the setting that every entry must contain."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    place: str
    """Path of the run directory, relative to the directory of the sweep."""
    config: TrainConfig
    """The configuration, before it is resolved."""


@dataclass(frozen=True)
class Sweep:
    """A named collection of runs, sorted by seed: the first seed of all tasks and methods comes first."""

    name: str
    runs: tuple[PlannedRun, ...]

    @classmethod
    def read(cls, path: str | Path) -> Sweep:
        """Read a sweep from a TOML file. Raises `UsageError` if it is invalid."""
        return cls.of(read_toml(path), Path(path).stem, f"{path}: ")

    @classmethod
    def of(cls, given: Mapping[str, Any], name: str = "sweep", where: str = "") -> Sweep:
        """Return the sweep with this content.

        Args:
            given: the content, as in a TOML file.
            name: the name of the sweep.
            where: prefix of error messages that says where the content comes from.

        Raises:
            UsageError: if the content is invalid.
        """
        top = _normal(given, where)
        if isinstance(plugin := top.get("plugin"), str):  # other types are rejected below
            import_plugin(plugin)
        known = setting_names(_own_methods(top))
        check_names(top, {*known, *ELSEWHERE, *AXES, "seeds", "grid"}, where)
        for setting in top:
            if setting in ELSEWHERE:
                raise UsageError(f"{where}{setting}: cannot be given in a sweep; {ELSEWHERE[setting]}.")
        axes = {axis: _entries(top.pop(axis, None), axis, setting, known, where) for axis, setting in AXES.items()}
        seeds, grid = _seeds(top.pop("seeds", 1), where), _grid(top.pop("grid", {}), known, where)
        runs: dict[str, TrainConfig] = {}
        points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        for seed, task, method, chosen in itertools.product(seeds, axes["tasks"], axes["methods"], points):
            _check_given_once({"every run": top, "tasks": task, "methods": method, "grid": chosen}, where)
            config = configured({**top, **task, **method, **chosen, "seed": seed}, where)
            place = _run_path(config, task, {**method, **chosen})
            if place in runs:
                one, other = (flat_settings(dataclasses.asdict(c)) for c in (runs[place], config))
                unlike = ", ".join(name for name in one if one[name] != other[name])
                what = f", with a different {unlike}" if unlike else ""
                raise UsageError(f"{where}the run {place} occurs twice{what}; give every run once.")
            runs[place] = config
        return cls(name, tuple(PlannedRun(*run) for run in runs.items()))


def _normal(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise UsageError(f"{where}{given!r} is not a table of settings.")
    return {str(name).replace("-", "_"): value for name, value in given.items()}


def _own_methods(top: Mapping[str, Any]) -> list[str]:
    """Return the methods of a sweep that the user has defined, as package.module:attribute."""
    entries = given if isinstance(given := top.get("methods"), list | tuple) else []
    names = [entry.get("method") if isinstance(entry, Mapping) else entry for entry in entries]
    return [name for name in names if isinstance(name, str) and ":" in name]


def _entries(given: Any, axis: str, setting: str, known: Collection[str], where: str) -> list[dict[str, Any]]:
    """Return the settings of every entry of a list. An entry that is a string names the task or the method."""
    if not isinstance(given, list | tuple) or not given:
        raise UsageError(f'{where}{axis}: {given!r} is not a list with entries; write {axis} = ["…", "…"].')
    entries = []
    for entry in given:
        settings = {setting: entry} if isinstance(entry, str) else _normal(entry, f"{where}{axis}: ")
        check_names(settings, known, f"{where}{axis}: ")
        if setting not in settings:
            raise UsageError(f"{where}{axis}: {entry!r} names no {setting}.")
        for name in settings:
            if name in ELSEWHERE and name != setting:
                raise UsageError(f"{where}{axis}: {name}: cannot be given in an entry; {ELSEWHERE[name]}.")
        if settings in entries:
            raise UsageError(f"{where}{axis}: {entry!r} occurs twice; give every run once.")
        entries.append(settings)
    return entries


def _seeds(given: Any, where: str) -> Sequence[int]:
    whole = isinstance(given, int) and not isinstance(given, bool)
    seeds = range(given) if whole else given
    if (
        not isinstance(seeds, range | list | tuple)
        or not seeds
        or any(isinstance(s, bool) or not isinstance(s, int) or s < 0 for s in seeds)
    ):
        raise UsageError(f"{where}seeds: {given!r} is neither a whole number ≥ 1 nor a list of seeds ≥ 0.")
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"{where}seeds: {given!r} contains a seed twice; give every run once.")
    return seeds


def _grid(given: Any, known: Collection[str], where: str) -> dict[str, list[Any]]:
    grid = _normal(given, f"{where}grid: ")
    check_names(grid, known, f"{where}grid: ")
    for name, values in grid.items():
        if name in ELSEWHERE:
            raise UsageError(f"{where}grid: {name}: cannot be given in a grid; {ELSEWHERE[name]}.")
        if not isinstance(values, list | tuple) or not values:
            raise UsageError(f"{where}grid: {name}: {values!r} is not a list of values to try.")
    return grid


def _check_given_once(places: Mapping[str, Mapping[str, Any]], where: str) -> None:
    for (one, here), (other, there) in itertools.combinations(places.items(), 2):
        for name in here:
            if name in there:
                raise UsageError(
                    f"{where}{name}: is given for {one} ({here[name]!r}) and in {other} ({there[name]!r}); give one."
                )


def _run_path(config: TrainConfig, task: Iterable[str], method: Iterable[str]) -> str:
    """Return the path TASK/METHOD/sSEED of a run.

    Labels contain the settings that differ from their defaults. The defaults of amounts are not known before they are
    resolved, so labels contain amounts if they are given.
    """
    settings = flat_settings(dataclasses.asdict(config))
    amounts = {"samples", "exploration_episodes", "exploration_samples", "max_episode_steps", "num_envs"}
    if config.method not in METHODS:  # a user's own method, whose defaults the labels do not know
        amounts |= set(flat_settings({"settings": dataclasses.asdict(config.settings)}))
    labels = (
        task_label(settings, [name for name in task if name in amounts]),
        method_label(settings, [name for name in method if name in amounts]),
    )
    return "/".join([*map(slug, labels), f"s{config.seed}"])


# ---------------------------------------------------------------------------------------------------------------------
# Progress
# ---------------------------------------------------------------------------------------------------------------------


class Standing(NamedTuple):
    """Progress of a run."""

    job: Job
    done: int
    """Number of finished iterations."""
    finished: bool
    begun: bool
    """Whether there is a checkpoint to resume from."""
    speed: Speed | None
    """Measured speed; None if no iteration is finished."""
    last_return: float | None
    """Mean return of the last iteration; None if there is none."""

    @property
    def left(self) -> int:
        """Number of remaining iterations."""
        return max(0, (self.job.config.iterations or 0) - self.done)


class Speed(NamedTuple):
    """Duration of the parts of a run on one core."""

    initial_seconds: float
    """Exploration, fitting and compilation."""
    iteration_seconds: float
    """One iteration."""


def prepare(sweep: Sweep, out: Path) -> list[Job]:
    """Return the jobs of a sweep, with checked and resolved settings.

    Args:
        sweep: the sweep.
        out: the directory of all runs.

    Raises:
        UsageError: if settings are invalid, or differ from those of an existing run directory.
    """
    limits: dict[Any, int | None] = {}  # making environments takes most of the time of a large sweep's preparation

    @cache
    def resolved(config: TrainConfig) -> TrainConfig:
        make_envs = environment_maker(config)
        if make_envs is None:
            raise UsageError(f"env: {config.env!r} is not a Gymnasium id.")
        check(config)
        asked_for(config)
        same_envs = config.env, config.max_episode_steps, config.sensors

        def remembered(make_envs: Callable[..., Any]) -> int | None:
            if same_envs not in limits:
                limits[same_envs] = episode_limit(make_envs)
            return limits[same_envs]

        return resolve(config, make_envs, remembered)

    jobs = []
    for place, config in ((run.place, run.config) for run in sweep.runs):
        directory = out / place
        full = resolved(dataclasses.replace(config, seed=0))
        full = dataclasses.replace(full, seed=config.seed, threads=1, out=str(directory))
        _check_existing(directory, full)
        jobs.append(Job(place, directory, full))
    return jobs


FREE = {
    "iterations", "steps", "minutes", "out", "threads", "step_timeout", "device", "plugin", "tensorboard", "logger",
    "eval_every", "eval_episodes", "json", "quiet", "config", "seeds", "compilation_cache",
}  # fmt: skip
"""Settings that may differ between an existing run directory and the sweep."""


def _check_existing(directory: Path, config: TrainConfig) -> None:
    """Raise `UsageError` if a run directory exists and its settings differ from the sweep's."""
    if not (directory / "config.json").exists():
        return
    known = named_modules(config.plugin, config.method, config.env)
    there, here = (flat_settings(dataclasses.asdict(c)) for c in (read_config(directory, known), config))
    for name, value in here.items():
        if name not in FREE and there[name] != value:
            raise UsageError(
                f"{name}: {str(directory)!r} was started with {there[name]!r}, but the sweep has {value!r}; choose "
                "another --out, or remove that directory."
            )
    done = RunDirectory(directory).numbers()
    if done and config.steps is None and config.iterations is not None and done[-1] > config.iterations:
        raise UsageError(
            f"iterations: {config.iterations} is less than the {done[-1]} already done in {str(directory)!r}; give at "
            f"least {done[-1]}, or choose another --out."
        )


def standing(job: Job) -> Standing:
    """Read the progress of a run from its files."""
    files = RunDirectory(job.directory)
    records, speed = files.metrics(), None
    initial, iterations = ([r for r in records if ("iteration" in r) is later] for later in (False, True))
    if initial and iterations:
        first, typical = seconds_of(iterations[0]), statistics.median(map(seconds_of, iterations))
        speed = Speed(seconds_of(initial[0]) + max(0.0, first - typical), typical)  # the first iteration compiles
    finished = done(job) and read_json(job.directory / "results.json")["iterations"] == len(iterations)
    last = iterations[-1]["mean_return"] if iterations else None
    return Standing(job, len(iterations), finished, bool(files.numbers()), speed, last)


# ---------------------------------------------------------------------------------------------------------------------
# Execution
# ---------------------------------------------------------------------------------------------------------------------

Backend = Callable[[Sequence[Job]], Generator[Beat, None, None]]
"""A function that runs jobs and yields progress reports."""


def open_backend(name: str, workers: int | None = None, address: str | None = None) -> tuple[Backend, int]:
    """Open the backend that executes runs.

    Args:
        name: "local" or "ray".
        workers: number of runs at the same time. Default: one for each core.
        address: address of the Ray cluster.

    Returns:
        The backend, and the number of runs that it executes at the same time.

    Raises:
        UsageError: if an argument is invalid, or the cluster does not answer.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"jobs: {workers} is not a whole number ≥ 1.")
    if name == "ray":
        there = connect(address)
        return lambda jobs: run_there(jobs, workers), min(there, workers or there)
    if address is not None:
        raise UsageError(f"address: {address!r} is only used with a Ray cluster; also give --backend ray.")
    here = workers or len(cores())
    return lambda jobs: run_here(jobs, here), here


def carry_out(
    jobs: Sequence[Job], out: Path, backend: Backend, show: Callable[[Beat], None] = lambda beat: None
) -> dict[str, Failure]:
    """Execute jobs. If one fails, the others continue.

    Args:
        jobs: the jobs.
        out: the directory of the sweep. It is locked during execution.
        backend: executes the jobs.
        show: called with every progress report.

    Returns:
        The failures by the names of their jobs.
    """
    failed = {}
    with RunDirectory(out).locked(), closing(backend(jobs)) as beats:
        for beat in beats:
            failed |= {job.name: failure for job, failure in beat.ended if failure is not None}
            show(beat)
    return failed


# ---------------------------------------------------------------------------------------------------------------------
# Remaining time
# ---------------------------------------------------------------------------------------------------------------------


def remaining_seconds(standings: Sequence[Standing], workers: int) -> tuple[float, int]:
    """Estimate the remaining time of all runs.

    The expected speed of a run is the mean of the measured runs of the same task and method. If there are none, it is
    taken from the table in speeds.json.

    Args:
        standings: the progress of all runs.
        workers: number of runs at the same time.

    Returns:
        The remaining seconds, and the number of unfinished runs whose speed is taken from the table.
    """
    known: dict[str, list[Speed]] = {}
    for each in standings:
        if each.speed is not None:
            known.setdefault(_group(each.job), []).append(each.speed)
    from_table, ends = 0, [0.0] * max(1, workers)
    # Started runs first, then the others in the order in which they will be started.
    for each in sorted(standings, key=lambda each: not each.begun):
        if each.finished:
            continue
        measured = known.get(_group(each.job))
        from_table += measured is None
        initial, iteration = map(statistics.fmean, zip(*(measured or [expected_speed(each.job.config)]), strict=True))
        seconds = speed_table()["start_seconds"] + (0.0 if each.begun else initial) + each.left * iteration
        seconds = min(seconds, 60 * (each.job.config.minutes or math.inf))
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends), from_table


def _group(job: Job) -> str:
    """Return the part of a job's name with task and method."""
    return job.name.rpartition("/")[0]


def expected_speed(config: TrainConfig) -> Speed:
    """Return the expected speed of a run from the table in speeds.json, measured on one core on Hopper-v5.

    The duration of an iteration is proportional to its samples. For an unknown method, the slowest row is used.
    """
    rows = speed_table()["rows"]
    method = find_method(config.method)
    row = rows.get(method.composition) or max(rows.values(), key=lambda r: r["seconds_per_1000_steps"])
    return Speed(row["initial_seconds"], row["seconds_per_1000_steps"] * (config.samples or 0) / 1000)


@cache
def speed_table() -> dict[str, Any]:
    """Return the table of speeds that `python -m benchmarks.speeds` measured."""
    return read_json(Path(__file__).with_name("speeds.json"))
