"""Sweeps: tasks × methods × settings × seeds as data; what of them is done, and how long the rest will take.

    tasks = ["Hopper-v5", {env = "Swimmer-v5", obs_noise = 0.1}]
    methods = ["fm2", {method = "rpsp-alt", dimension = 10}]
    seeds = 3                                  # or a list
    iterations = 50                            # any other setting of `rpsp train` holds for all runs
    [grid]                                     # every combination
    learning_rate = [1e-2, 1e-3]

A setting stands in one place only, so that nothing contradicts. Every run has its place, DIR/TASK/METHOD/sSEED, which
depends on its own settings alone: a sweep can be extended, and what is done stays done.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import statistics
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rpsp.errors import UsageError
from rpsp.experiments.config import (
    TrainConfig,
    check_names,
    configured,
    find_method,
    import_plugin,
    named_modules,
    read_toml,
    setting_names,
)
from rpsp.experiments.files import read_json
from rpsp.experiments.labels import flat_settings, method_label, slug, task_label
from rpsp.experiments.methods import METHODS
from rpsp.experiments.pool import Beat, Failure, Job, cores, done, run_here
from rpsp.experiments.results import seconds_of

ELSEWHERE = {
    **dict.fromkeys(("env", "envs", "environments", "task"), "tasks names them"),
    "method": "methods names them",
    "seed": "seeds says which",
    "threads": "a sweep gives every run one thread",
    "out": "give --out",
    "config": "the sweep is the configuration",
    "json": "give --json",
    "quiet": "give --quiet",
}
"""Settings of `rpsp train` that do not hold for all runs of a sweep, and what is said instead."""
AXES = {"tasks": "env", "methods": "method"}
"""The lists of a sweep, and the setting that an entry must name."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: its place under the sweep's directory, and its settings as far as they are given."""

    place: str
    config: TrainConfig


@dataclass(frozen=True)
class Sweep:
    """Runs that belong together, the first seed of everything first."""

    name: str
    runs: tuple[PlannedRun, ...]

    @classmethod
    def read(cls, path: str | Path) -> Sweep:
        """The sweep in a TOML file."""
        return cls.of(read_toml(path), Path(path).stem, f"{path}: ")

    @classmethod
    def of(cls, given: Mapping[str, Any], name: str = "sweep", where: str = "") -> Sweep:
        """A sweep from what a file would hold; `where` says in messages where it comes from."""
        top = _normal(given, where)
        check_names(top, {*setting_names(), *ELSEWHERE, *AXES, "seeds", "grid"}, where)
        for setting in top:
            if setting in ELSEWHERE:
                raise UsageError(f"{where}{setting}: is not for a sweep; {ELSEWHERE[setting]}.")
        axes = {axis: _entries(top.pop(axis, None), axis, setting, where) for axis, setting in AXES.items()}
        seeds, grid = _seeds(top.pop("seeds", 1), where), _grid(top.pop("grid", {}), where)
        if isinstance(plugin := top.get("plugin"), str):  # if it is not a text, that is said below
            import_plugin(plugin)
        runs: dict[str, TrainConfig] = {}
        points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        for seed, task, method, chosen in itertools.product(seeds, axes["tasks"], axes["methods"], points):
            _refuse_contradictions({"every run": top, "tasks": task, "methods": method, "grid": chosen}, where)
            config = configured({**top, **task, **method, **chosen, "seed": seed}, where)
            place = _place(config, task, {**method, **chosen})
            if place in runs:
                one, other = (flat_settings(dataclasses.asdict(c)) for c in (runs[place], config))
                unlike = ", ".join(name for name in one if one[name] != other[name])
                what = f", with a different {unlike}" if unlike else ""
                raise UsageError(f"{where}the run {place} is there twice{what}; name every run once.")
            runs[place] = config
        return cls(name, tuple(PlannedRun(*run) for run in runs.items()))


def _normal(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise UsageError(f"{where}{given!r} is not a table of settings.")
    return {str(name).replace("-", "_"): value for name, value in given.items()}


def _entries(given: Any, axis: str, setting: str, where: str) -> list[dict[str, Any]]:
    """The settings of every entry of a list; a text alone names the task or the method."""
    if not isinstance(given, list | tuple) or not given:
        raise UsageError(f'{where}{axis}: {given!r} is not a list with something in it, as in {axis} = ["…", "…"].')
    entries = []
    for entry in given:
        settings = {setting: entry} if isinstance(entry, str) else _normal(entry, f"{where}{axis}: ")
        check_names(settings, setting_names(), f"{where}{axis}: ")
        if setting not in settings:
            raise UsageError(f"{where}{axis}: {entry!r} names no {setting}.")
        for name in settings:
            if name in ELSEWHERE and name != setting:
                raise UsageError(f"{where}{axis}: {name}: is not for an entry; {ELSEWHERE[name]}.")
        if settings in entries:
            raise UsageError(f"{where}{axis}: {entry!r} is there twice; name every run once.")
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
        raise UsageError(f"{where}seeds: {given!r} names a seed twice; name every run once.")
    return seeds


def _grid(given: Any, where: str) -> dict[str, list[Any]]:
    grid = _normal(given, f"{where}grid: ")
    check_names(grid, setting_names(), f"{where}grid: ")
    for name, values in grid.items():
        if name in ELSEWHERE:
            raise UsageError(f"{where}grid: {name}: is not for a grid; {ELSEWHERE[name]}.")
        if not isinstance(values, list | tuple) or not values:
            raise UsageError(f"{where}grid: {name}: {values!r} is not a list of values to try.")
    return grid


def _refuse_contradictions(places: Mapping[str, Mapping[str, Any]], where: str) -> None:
    for (one, here), (other, there) in itertools.combinations(places.items(), 2):
        for name in here:
            if name in there:
                raise UsageError(
                    f"{where}{name}: is given for {one} ({here[name]!r}) and in {other} ({there[name]!r}); say it once."
                )


def _place(config: TrainConfig, task: Iterable[str], method: Iterable[str]) -> str:
    """TASK/METHOD/sSEED. Labels tell what differs from defaults; amounts have none yet, so they are told where given."""
    settings = flat_settings(dataclasses.asdict(config))
    amounts = {"samples", "exploration_episodes", "exploration_samples", "max_episode_steps", "num_envs"}
    if config.method not in METHODS:  # a user's own, whose defaults labels do not know
        amounts |= set(flat_settings({"settings": dataclasses.asdict(config.settings)}))
    labels = (
        task_label(settings, [name for name in task if name in amounts]),
        method_label(settings, [name for name in method if name in amounts]),
    )
    return "/".join([*map(slug, labels), f"s{config.seed}"])


# ---------------------------------------------------------------------------------------------------------------------
# What is there already
# ---------------------------------------------------------------------------------------------------------------------


class Standing(NamedTuple):
    """How far a run has come."""

    job: Job
    done: int
    """Iterations."""
    finished: bool
    begun: bool
    """Whether there is a checkpoint to go on from."""
    speed: Speed | None
    """As measured so far."""
    last_return: float | None

    @property
    def left(self) -> int:
        """Iterations still to do."""
        return max(0, (self.job.config.iterations or 0) - self.done)


class Speed(NamedTuple):
    """What a run takes on one core."""

    initial_seconds: float
    """For exploration, fitting and compiling."""
    iteration_seconds: float


def prepare(sweep: Sweep, out: Path) -> list[Job]:
    """Every run as a job, its settings checked and resolved; one that is there already with others is refused."""
    from rpsp.experiments.resolve import check, environment_maker, resolve

    @cache
    def resolved(config: TrainConfig) -> TrainConfig:
        make_envs = environment_maker(config)
        if make_envs is None:
            raise UsageError(f"env: {config.env!r} is not a Gymnasium id.")
        check(config)
        return resolve(config, make_envs)

    jobs = []
    for place, config in ((run.place, run.config) for run in sweep.runs):
        directory = out / place
        full = resolved(dataclasses.replace(config, seed=0))
        full = dataclasses.replace(full, seed=config.seed, threads=1, out=str(directory))
        _refuse_another(directory, full)
        jobs.append(Job(place, directory, full))
    return jobs


FREE = {
    "iterations", "out", "threads", "step_timeout", "device", "plugin", "tensorboard", "json", "quiet", "config", "seeds",
    "compilation_cache",
}  # fmt: skip
"""Settings in which a run may differ from what the sweep says now."""


def _refuse_another(directory: Path, config: TrainConfig) -> None:
    from rpsp.experiments.resolve import read_config
    from rpsp.experiments.run_directory import RunDirectory

    if not (directory / "config.json").exists():
        return
    known = named_modules(config.plugin, config.method, config.env)
    there, here = (flat_settings(dataclasses.asdict(c)) for c in (read_config(directory, known), config))
    for name, value in here.items():
        if name not in FREE and there[name] != value:
            raise UsageError(
                f"{name}: {str(directory)!r} was begun with {there[name]!r}, the sweep says {value!r}; choose another "
                "--out, or remove that directory."
            )
    done = RunDirectory(directory).numbers()
    if done and config.iterations is not None and done[-1] > config.iterations:
        raise UsageError(
            f"iterations: {done[-1]} are done already in {str(directory)!r}, more than {config.iterations}; ask for at "
            f"least {done[-1]}, or choose another --out."
        )


def standing(job: Job) -> Standing:
    """What the run's files say."""
    from rpsp.experiments.run_directory import RunDirectory

    files = RunDirectory(job.directory)
    records, speed = files.metrics(), None
    initial, iterations = ([r for r in records if ("iteration" in r) is later] for later in (False, True))
    if initial and iterations:
        first, typical = seconds_of(iterations[0]), statistics.median(map(seconds_of, iterations))
        speed = Speed(seconds_of(initial[0]) + max(0.0, first - typical), typical)  # the first iteration compiles
    finished = len(iterations) == job.config.iterations and done(job)
    last = iterations[-1]["mean_return"] if iterations else None
    return Standing(job, len(iterations), finished, bool(files.numbers()), speed, last)


# ---------------------------------------------------------------------------------------------------------------------
# Doing it
# ---------------------------------------------------------------------------------------------------------------------

Backend = Callable[[Sequence[Job]], Generator[Beat, None, None]]
"""What does jobs and tells about it as it goes."""


def open_backend(name: str, workers: int | None = None, address: str | None = None) -> tuple[Backend, int]:
    """What does the runs, on this machine or on a Ray cluster; and how many it does at a time."""
    if workers is not None and workers < 1:
        raise UsageError(f"jobs: {workers} is not a whole number ≥ 1.")
    if name == "ray":
        from rpsp.experiments.cluster import connect, run_there

        there = connect(address)
        return lambda jobs: run_there(jobs, workers), min(there, workers or there)
    if address is not None:
        raise UsageError(f"address: {address!r} is that of a Ray cluster; give --backend ray as well.")
    here = workers or len(cores())
    return lambda jobs: run_here(jobs, here), here


def carry_out(
    jobs: Sequence[Job], out: Path, backend: Backend, show: Callable[[Beat], None] = lambda beat: None
) -> dict[str, Failure]:
    """Do these jobs; those that failed, and why. The others are done all the same."""
    from rpsp.experiments.run_directory import RunDirectory

    failed = {}
    with RunDirectory(out).locked(), closing(backend(jobs)) as beats:
        for beat in beats:
            failed |= {job.name: failure for job, failure in beat.ended if failure is not None}
            show(beat)
    return failed


# ---------------------------------------------------------------------------------------------------------------------
# How long it will take
# ---------------------------------------------------------------------------------------------------------------------


def remaining_seconds(standings: Sequence[Standing], workers: int) -> tuple[float, int]:
    """How long the unfinished runs will take on so many cores; and for how many of them that is a guess.

    A run is expected to take what others of its task and method took so far; where there are none, what the table says.
    """
    known: dict[str, list[Speed]] = {}
    for each in standings:
        if each.speed is not None:
            known.setdefault(_group(each.job), []).append(each.speed)
    from_table, ends = 0, [0.0] * max(1, workers)
    # Those at work first, then in the order in which they are taken.
    for each in sorted(standings, key=lambda each: not each.begun):
        if each.finished:
            continue
        measured = known.get(_group(each.job))
        from_table += measured is None
        initial, iteration = map(statistics.fmean, zip(*(measured or [expected_speed(each.job.config)]), strict=True))
        seconds = speed_table()["start_seconds"] + (0.0 if each.begun else initial) + each.left * iteration
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends), from_table


def _group(job: Job) -> str:
    """Task and method."""
    return job.name.rpartition("/")[0]


def expected_speed(config: TrainConfig) -> Speed:
    """From speeds measured on one core on Hopper-v5 (speeds.json), scaled by samples; the slowest for a method unknown."""
    rows = speed_table()["rows"]
    method = find_method(config.method)
    row = rows.get(f"{method.belief}, {method.update}") or max(rows.values(), key=lambda r: r["seconds_per_1000_steps"])
    return Speed(row["initial_seconds"], row["seconds_per_1000_steps"] * (config.samples or 0) / 1000)


@cache
def speed_table() -> dict[str, Any]:
    """What `python -m benchmarks.speeds` measured."""
    return read_json(Path(__file__).with_name("speeds.json"))
