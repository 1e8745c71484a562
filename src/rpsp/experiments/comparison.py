"""Methods held against each other, task by task: what `rpsp compare` says, as data."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments import statistics
from rpsp.experiments.results import Result
from rpsp.experiments.words import mean_with_error, number

T = TypeVar("T")
K = TypeVar("K")
Metric = Literal["auc", "final"]
METRICS: dict[Metric, Callable[[np.ndarray], statistics.Numbers]] = {
    "auc": statistics.area_under_curve,
    "final": statistics.final_return,
}
METRIC_NAMES: dict[Metric, str] = {"auc": "area under curve", "final": "final return"}


@dataclass(frozen=True)
class Row:
    """A method on a task. What cannot be told, as the error of a single run, is nan."""

    task: str
    method: str
    seeds: int
    unfinished: int
    """How many of the runs have not done all the iterations that were asked for."""
    iterations: int
    """Over how many they are compared."""
    selected_from: int
    """Of how many variants this is the best; 1 where nothing was selected."""
    area: float
    area_error: float
    final: float
    final_error: float
    iqm: float
    """Of the metric; with its 95 % bootstrap interval."""
    iqm_low: float
    iqm_high: float
    steps_to_reach: float
    """The median over runs of the environment steps to reach the threshold; nan where half of them never do."""
    reached: int
    """How many of the runs reach it."""
    against: str = ""
    """The method that the test is against; empty for that one itself."""
    t: float = np.nan
    dof: float = np.nan
    p: float = np.nan
    p_holm: float = np.nan
    """Corrected for the number of methods on the task."""
    improvement: float = np.nan
    """The probability that a run of this method beats one of the other."""


def interval_text(row: Row | Overall) -> str:
    """The interquartile mean with its interval, as tables have it."""
    return f"{number(row.iqm)} [{number(row.iqm_low)}, {number(row.iqm_high)}]"


def row_texts(row: Row) -> dict[str, str]:
    """What a table says of a method on a task, by its columns."""
    return {
        "method": row.method + (f", selected from {row.selected_from}" if row.selected_from > 1 else ""),
        "seeds": f"{row.seeds}" + (f" ({row.unfinished} unfinished)" if row.unfinished else ""),
        "area under curve": mean_with_error(row.area, row.area_error),
        "final return": mean_with_error(row.final, row.final_error),
        "IQM, 95 %": interval_text(row),
    }


@dataclass(frozen=True)
class Overall:
    """A method over all tasks, each task's metric scaled so that its worst run is 0 and its best 1."""

    method: str
    runs: int
    iqm: float
    iqm_low: float
    iqm_high: float


@dataclass(frozen=True)
class Comparison:
    """What `compare` finds."""

    metric: Metric
    candidates: list[Result]
    """The runs that can be compared, cut to equal length within a task."""
    results: list[Result]
    """Those that were compared: the same, unless some were selected."""
    rows: list[Row]
    """By task; the best area under the curve first."""
    overall: list[Overall]
    """Of the methods that every task has; empty unless there are several tasks and methods."""
    warnings: list[str]


def compare(
    results: Sequence[Result],
    metric: Metric = "auc",
    *,
    against: str | None = None,
    threshold: float | None = None,
    smooth: int = 1,
    select: bool = False,
    family: Callable[[str], str] | None = None,
) -> Comparison:
    """Compare the methods of every task by their runs.

    `against` names the method that the others are tested against, unless given the one of the largest area under the
    curve. With `select`, of the variants of a method only the one of the largest mean area under the curve stays;
    `family` says what a method's label is a variant of, unless given its base method.
    """
    family = family or base_method
    if threshold is not None and not np.isfinite(threshold):
        raise UsageError(f"threshold: {threshold} is not a finite number.")
    if smooth < 1:
        raise UsageError(f"smooth: {smooth} is not a whole number ≥ 1.")
    kept, warnings = comparable(results)
    if not kept:
        why = " ".join(warnings) or "no results were found; give directories that hold runs of `rpsp train`."
        raise FileFormatError(f"there is no run to compare: {why}")
    tasks: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in kept:
        tasks[result.task][result.method].append(result)
    rows, compared, known = [], {}, False
    for task, methods in tasks.items():
        compared[task], candidates = _selected(methods, family) if select else (dict(methods), {})
        described = [
            _describe(runs, metric, threshold, smooth, candidates.get(name, 1)) for name, runs in compared[task].items()
        ]
        described.sort(key=lambda row: -row.area)
        reference = described[0].method if against is None else _find(against, compared[task])
        known |= reference is not None
        if reference is None:
            warnings.append(f"{task}: has no run of {against}; nothing is tested there.")
            rows += described
        else:
            rows += _tested(described, compared[task], metric, reference)
    if not known:
        names = sorted({row.method for row in rows})
        raise UsageError(f"against: {against!r} is not one of the methods here: {'; '.join(names)}.")
    chosen = [result for methods in compared.values() for runs in methods.values() for result in runs]
    return Comparison(metric, kept, chosen, rows, _overall(compared, metric, family if select else str), warnings)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by a key, both in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def base_method(label: str) -> str:
    """The method of which this is a variant: "rpsp-alt" of "rpsp-alt, dimension=10"."""
    return label.partition(",")[0]


def comparable(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """The results that can be compared, of equal length within a task; and a sentence for what was done to get there.

    Failed runs and those without a single iteration are left out. Where iterations are of unequal length, as SAC's and
    TRPO's, short ones are put together; then all are cut to the shortest run of their task.
    """
    warnings, tasks = [], defaultdict(list)
    for result in results:
        if why := unusable(result):
            warnings.append(f"left out: {result.task}, {result.method}, seed {result.seed}: {why}")
        else:
            tasks[result.task].append(result)
    kept = []
    for task, runs in tasks.items():
        runs, said = _of_equal_iterations(task, runs)
        warnings += said
        lengths = [len(run.returns) for run in runs]
        if min(lengths) < max(lengths):
            warnings.append(
                f"{task}: the runs have {min(lengths)} to {max(lengths)} iterations; they are compared over the first "
                f"{min(lengths)}."
            )
        kept += [run.cut(min(lengths)) for run in runs]
    return kept, warnings


def _of_equal_iterations(task: str, runs: list[Result]) -> tuple[list[Result], list[str]]:
    """Runs of a task whose iterations have as many environment steps as the longest, and what was done to them."""
    samples = [run.settings.get("samples") or 0 for run in runs]
    longest, shortest = max(samples), min(filter(None, samples), default=0)
    if longest == shortest:
        return runs, []
    said = [
        f"{task}: iterations have {shortest} to {longest} steps; short ones are put together, so that all runs are compared "
        "over as many steps."
    ]
    kept = []
    for run, own in zip(runs, samples, strict=True):
        if 0 < own * len(run.returns) < longest:
            said.append(f"left out: {task}, {run.method}, seed {run.seed}: it has not done {longest} steps yet.")
        else:
            kept.append(run.gathered(longest) if 0 < own < longest else run)
    return kept, said


def unusable(result: Result) -> str:
    """Why a result cannot be compared; empty if it can."""
    if result.failure or not len(result.returns):
        return result.failure or "no iteration is done yet."
    return "" if np.isfinite(result.returns).all() else "its returns are not all finite."


def mean_curve(runs: Sequence[Result], name: str, most: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Environment steps, the mean of a curve over runs, and its standard error; as far as the shortest run goes.

    A curve of more than `most` points is averaged over as many iterations at a time as leave no more.
    """
    length = min(len(run.returns) for run in runs)
    block = 1 if most is None else -(-length // most)
    edges = np.arange(0, length, block)

    def blocks(curve: np.ndarray) -> np.ndarray:
        return np.add.reduceat(curve[:length], edges) / np.diff(edges, append=length)

    steps = np.mean([blocks(run.steps) for run in runs], axis=0)
    mean, error = statistics.mean_and_error(np.stack([blocks(getattr(run, name)) for run in runs]))
    return steps, np.asarray(mean), np.asarray(error)


def _returns(runs: Sequence[Result]) -> np.ndarray:
    return np.stack([run.returns for run in runs])


def metric_values(runs: Sequence[Result], metric: Metric) -> np.ndarray:
    """The metric of every run."""
    return np.asarray(METRICS[metric](_returns(runs)))


def _selected(
    methods: dict[str, list[Result]], family: Callable[[str], str]
) -> tuple[dict[str, list[Result]], dict[str, int]]:
    """The best variant of every method, and from how many."""
    variants: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for label, runs in methods.items():
        variants[family(label)][label] = _returns(runs)
    best = [statistics.select_best(curves) for curves in variants.values()]
    return {name: methods[name] for name, _ in best}, dict(best)


def _describe(runs: list[Result], metric: Metric, threshold: float | None, smooth: int, candidates: int) -> Row:
    (area, area_error), (final, final_error) = (statistics.mean_and_error(metric_values(runs, m)) for m in METRICS)
    values = metric_values(runs, metric)
    low, high = statistics.bootstrap_interval([values])
    reached = np.array(
        [
            np.nan if threshold is None else statistics.samples_to_reach(threshold, r.steps, r.returns, smooth)
            for r in runs
        ]
    )
    median = float(np.median(np.where(np.isnan(reached), np.inf, reached)))
    return Row(
        task=runs[0].task,
        method=runs[0].method,
        seeds=len(runs),
        unfinished=sum(not run.finished for run in runs),
        iterations=len(runs[0].returns),
        selected_from=candidates,
        area=float(area),
        area_error=float(area_error),
        final=float(final),
        final_error=float(final_error),
        iqm=float(statistics.iqm(values)),
        iqm_low=low,
        iqm_high=high,
        steps_to_reach=median if np.isfinite(median) else np.nan,
        reached=int(np.isfinite(reached).sum()),
    )


def _find(name: str, methods: dict[str, list[Result]]) -> str | None:
    """The method of that name, or its only variant."""
    found = [m for m in methods if m == name] or [m for m in methods if base_method(m) == name]
    if len(found) > 1:
        raise UsageError(f"against: {name!r} has several variants, name one or --select the best: {'; '.join(found)}.")
    return found[0] if found else None


def _tested(rows: list[Row], methods: dict[str, list[Result]], metric: Metric, reference: str) -> list[Row]:
    """The rows with their Welch tests against one of them, corrected together."""
    values = {name: metric_values(runs, metric) for name, runs in methods.items()}
    others = [row for row in rows if row.method != reference]
    tests = [statistics.welch(values[row.method], values[reference]) for row in others]
    corrected = statistics.holm(np.array([test.p for test in tests], float))
    tested = {
        row.method: dataclasses.replace(
            row,
            against=reference,
            **test._asdict(),
            p_holm=float(p),
            improvement=statistics.probability_of_improvement(values[row.method], values[reference]),
        )
        for row, test, p in zip(others, tests, corrected, strict=True)
    }
    return [tested.get(row.method, row) for row in rows]


def _overall(tasks: dict[str, dict[str, list[Result]]], metric: Metric, family: Callable[[str], str]) -> list[Overall]:
    """The methods that every task has, by their interquartile mean; runs are resampled within tasks."""
    if len(tasks) < 2:
        return []
    scores: dict[str, list[np.ndarray]] = defaultdict(list)
    for methods in tasks.values():
        values = {family(name): metric_values(runs, metric) for name, runs in methods.items()}
        every = np.concatenate(list(values.values()))
        spread = float(np.ptp(every)) or 1.0
        for name, own in values.items():
            scores[name].append((own - every.min()) / spread)
    common = {name: strata for name, strata in scores.items() if len(strata) == len(tasks)}
    rows = [
        Overall(
            name,
            sum(map(len, strata)),
            float(statistics.iqm(np.concatenate(strata))),
            *statistics.bootstrap_interval(strata),
        )
        for name, strata in common.items()
    ]
    return sorted(rows, key=lambda row: -row.iqm) if len(rows) > 1 else []
