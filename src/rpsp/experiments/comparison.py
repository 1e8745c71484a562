"""Comparison of methods, task by task. This is what `rpsp compare` prints, as data."""

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
    """Results of a method on a task. Values that cannot be computed, such as the error of a single run, are NaN."""

    task: str
    method: str
    seeds: int
    unfinished: int
    """Number of runs that have not completed the requested iterations."""
    iterations: int
    """Number of iterations over which the runs are compared."""
    selected_from: int
    """Number of variants from which this one was selected; 1 without selection."""
    area: float
    area_error: float
    final: float
    final_error: float
    iqm: float
    """Interquartile mean of the metric; `iqm_low` and `iqm_high` bound its 95 % bootstrap interval."""
    iqm_low: float
    iqm_high: float
    steps_to_reach: float
    """Median over runs of the environment steps to reach the threshold; NaN if half of the runs never reach it."""
    reached: int
    """Number of runs that reach the threshold."""
    against: str = ""
    """The reference method of the test; empty for the reference itself."""
    t: float = np.nan
    dof: float = np.nan
    p: float = np.nan
    p_holm: float = np.nan
    """p-value, adjusted for the number of methods on the task."""
    improvement: float = np.nan
    """Probability that a run of this method beats a run of the reference."""


def interval_text(row: Row | Overall) -> str:
    """Format the interquartile mean and its interval."""
    return f"{number(row.iqm)} [{number(row.iqm_low)}, {number(row.iqm_high)}]"


def row_texts(row: Row) -> dict[str, str]:
    """Format a row for tables, by column."""
    return {
        "method": row.method + (f", selected from {row.selected_from}" if row.selected_from > 1 else ""),
        "seeds": f"{row.seeds}" + (f" ({row.unfinished} unfinished)" if row.unfinished else ""),
        "area under curve": mean_with_error(row.area, row.area_error),
        "final return": mean_with_error(row.final, row.final_error),
        "IQM, 95 %": interval_text(row),
    }


@dataclass(frozen=True)
class Overall:
    """Results of a method over all tasks. The metric is scaled for each task from 0 (worst run) to 1 (best run)."""

    method: str
    runs: int
    iqm: float
    iqm_low: float
    iqm_high: float


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`."""

    metric: Metric
    candidates: list[Result]
    """The runs that can be compared, cut to equal length within a task."""
    results: list[Result]
    """The runs that were compared: the candidates, or the selected ones."""
    rows: list[Row]
    """Rows by task, ordered by decreasing area under the curve."""
    overall: list[Overall]
    """The methods that have runs on every task. Empty unless there are several tasks and several such methods."""
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
    """Compare the methods of each task by their runs.

    Args:
        results: results of runs.
        metric: metric to test: area under the curve ("auc") or final return ("final").
        against: reference method of the tests. Default: the method with the largest area under the curve on each task.
        threshold: return to reach, for `Row.steps_to_reach`.
        smooth: number of iterations over which the return is averaged before it is compared with the threshold.
        select: whether to keep only the best variant of each method, the one with the largest mean area under the
            curve.
        family: function from a method's label to the label of which it is a variant. Default: `base_method`.

    Returns:
        The comparison, with warnings about runs that were left out or shortened.

    Raises:
        UsageError: if an argument is invalid, or if no task has runs of the method `against`.
        FileFormatError: if there is no run to compare.
    """
    family = family or base_method
    if threshold is not None and not np.isfinite(threshold):
        raise UsageError(f"threshold: {threshold} is not a finite number.")
    if smooth < 1:
        raise UsageError(f"smooth: {smooth} is not a whole number ≥ 1.")
    kept, warnings = comparable(results)
    if not kept:
        why = " ".join(warnings) or "no results were found; give directories that contain runs of `rpsp train`."
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
            warnings.append(f"{task}: there is no run of {against}, so nothing is tested.")
            rows += described
        else:
            rows += _tested(described, compared[task], metric, reference)
    if not known:
        names = sorted({row.method for row in rows})
        raise UsageError(f"against: {against!r} is not one of the methods: {'; '.join(names)}.")
    chosen = [result for methods in compared.values() for runs in methods.values() for result in runs]
    return Comparison(metric, kept, chosen, rows, _overall(compared, metric, family if select else str), warnings)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by a key. Groups and items keep their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def base_method(label: str) -> str:
    """Return the method of which a label is a variant: "rpsp-alt" for "rpsp-alt, dimension=10"."""
    return label.partition(",")[0]


def comparable(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """Select the results that can be compared and give them equal length within each task.

    Failed runs and runs without a completed iteration are left out. If iterations differ in length, as those of SAC and
    TRPO do, short iterations are merged. Then all runs are cut to the length of the shortest run of their task.

    Returns:
        The results, and a warning for each of these changes.
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
    """Merge short iterations of a task's runs to the length of the longest ones. Return the runs and warnings."""
    samples = [run.settings.get("samples") or 0 for run in runs]
    longest, shortest = max(samples), min(filter(None, samples), default=0)
    if longest == shortest:
        return runs, []
    said = [
        f"{task}: iterations have {shortest} to {longest} steps; short ones are merged, so that all runs are compared "
        "over equally many steps."
    ]
    kept = []
    for run, own in zip(runs, samples, strict=True):
        if 0 < own * len(run.returns) < longest:
            said.append(f"left out: {task}, {run.method}, seed {run.seed}: it has fewer than {longest} steps.")
        else:
            kept.append(run.gathered(longest) if 0 < own < longest else run)
    return kept, said


def unusable(result: Result) -> str:
    """Return the reason why a result cannot be compared; empty if it can."""
    if result.failure or not len(result.returns):
        return result.failure or "no iteration is finished yet."
    return "" if np.isfinite(result.returns).all() else "its returns are not all finite."


def mean_curve(runs: Sequence[Result], name: str, most: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Average a curve over runs, up to the end of the shortest run.

    Args:
        runs: results of runs.
        name: name of the curve, as in `Result`.
        most: maximum number of points. Longer curves are averaged over blocks of iterations.

    Returns:
        Environment steps, the mean of the curve, and its standard error.
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
    """Return the returns of all runs as a matrix."""
    return np.stack([run.returns for run in runs])


def metric_values(runs: Sequence[Result], metric: Metric) -> np.ndarray:
    """Return the metric of each run."""
    return np.asarray(METRICS[metric](_returns(runs)))


def _selected(
    methods: dict[str, list[Result]], family: Callable[[str], str]
) -> tuple[dict[str, list[Result]], dict[str, int]]:
    """Return the best variant of each method, and the number of variants it was selected from."""
    variants: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for label, runs in methods.items():
        variants[family(label)][label] = _returns(runs)
    best = [statistics.select_best(curves) for curves in variants.values()]
    return {name: methods[name] for name, _ in best}, dict(best)


def _describe(runs: list[Result], metric: Metric, threshold: float | None, smooth: int, candidates: int) -> Row:
    """Summarise the runs of a method on a task."""
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
    """Return the method of that name, or its only variant; None if there is neither."""
    found = [m for m in methods if m == name] or [m for m in methods if base_method(m) == name]
    if len(found) > 1:
        raise UsageError(f"against: {name!r} has several variants; name one or --select the best: {'; '.join(found)}.")
    return found[0] if found else None


def _tested(rows: list[Row], methods: dict[str, list[Result]], metric: Metric, reference: str) -> list[Row]:
    """Add Welch tests against the reference to the rows, with p-values adjusted together."""
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
    """Summarise the methods that have runs on every task, ordered by interquartile mean."""
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
