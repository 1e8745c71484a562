"""Part of the split of a larger module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from rpsp.experiments.comparison import Comparison, comparable, compare, grouped, interval_text, mean_curve, row_texts
from rpsp.experiments.figures.appearance import Style, styles
from rpsp.experiments.report.html import (
    ERROR,
    MOST_LISTED,
    STEPS,
    Cell,
    Line,
    Scale,
    chart,
    folded,
    steps_axis,
    swatch,
    table,
    toggle,
    warnings,
)
from rpsp.experiments.results import Result
from rpsp.experiments.words import clock

SHOWN_SINGLES = 12  # runs of a task that are drawn behind their means at once
MOST_SINGLES = 200  # runs of a task that are drawn at all
MOST_POINTS = 250  # of a curve


def many_runs(results: list[Result], doubts: list[str]) -> tuple[str, str, list[str]]:
    """Title, lead and body."""
    tasks = grouped(results, lambda r: r.task)
    looks = styles(result.method for result in results)
    names = list(tasks) if len(tasks) < 4 else [f"{len(tasks)} tasks"]
    failed = [result for result in results if result.failure]
    begun = [result for result in results if len(result.returns) and not result.failure]
    unfinished = [result for result in results if not result.finished and not result.failure]
    kept, said = comparable(begun)
    found = compare(kept) if kept else None
    parts = [warnings([*doubts, *said])]
    for task, runs in tasks.items():
        parts.append(f"<h2>{escape(task)}</h2>")
        parts.append(_summary(task, found, looks))
        parts.append(_curves(task, runs, looks))
    if found is not None and found.overall:
        scaled = "The area under the curve, in each task from its worst run, 0, to its best, 1."
        parts.append(f'<h2>All tasks</h2><p class="note">{scaled}</p>')
        rows = [[_named(o.method, looks), str(o.runs), Cell(interval_text(o), o.iqm)] for o in found.overall]
        parts.append(table(("method", "runs", "IQM, 95 %"), rows, True, "summary"))
    parts.append(_runs("Failed", failed, ("why", lambda r: r.failure)))
    parts.append(_runs("Unfinished", unfinished, ("directory", lambda r: str(r.source))))
    finished = len(results) - len(failed) - len(unfinished)
    told = [f"{finished} finished"] if finished else []
    for what, runs in (("failed", failed), ("unfinished", unfinished)):
        told += [f'<a href="#{what}">{len(runs)} {what}</a>'] if runs else []
    methods = " · ".join(looks) if len(looks) <= 6 else f"{len(looks)} methods"
    lead = f"{', '.join(told)}<br>{escape(methods)}"
    return f"{len(results)} run{'s' * (len(results) > 1)}: {', '.join(names)}", lead, parts


def _named(method: str, looks: dict[str, Style]) -> Cell:
    return Cell(method, mark=swatch(looks[method]))


def _summary(task: str, found: Comparison | None, looks: dict[str, Style]) -> str:
    """What `rpsp compare` says of a task."""
    if found is None or not (rows := [row for row in found.rows if row.task == task]):
        return '<p class="note">There is nothing to compare yet.</p>'
    lines = []
    for row in rows:
        texts = row_texts(row)
        seconds = float(np.mean([r.seconds for r in found.results if (r.task, r.method) == (task, row.method)]))
        sorted_by = row.seeds, row.area, row.final, row.iqm
        cells = [Cell(text, value) for text, value in zip(list(texts.values())[1:], sorted_by, strict=True)]
        lines.append([_named(row.method, looks), *cells, Cell(clock(seconds), seconds)])
    return (
        f'<p class="note">Over {rows[0].iterations} iterations; mean ± standard error over seeds; IQM of the area under the '
        "curve.</p>" + table((*row_texts(rows[0]), "time a run"), lines, True, "summary")
    )


def _curves(task: str, results: Sequence[Result], looks: dict[str, Style]) -> str:
    """Mean curves of the methods, and single runs behind them."""
    begun = [result for result in results if len(result.returns)]
    if not begun:
        return ""
    methods = list(grouped(begun, lambda r: r.method))
    usable = grouped((r for r in begun if not r.failure and np.isfinite(r.returns).all()), lambda r: r.method)

    def line(method: str, name: str, x: Any, y: Any, **more: Any) -> Line:
        return Line(name, methods.index(method), looks[method], _thinned(x), _thinned(y), **more)

    singles = []
    if len(begun) <= MOST_SINGLES and len(begun) > sum(len(runs) == 1 for runs in usable.values()):
        singles = [line(r.method, f"{r.method}, seed {r.seed}", r.steps, r.returns, kind="single") for r in begun]
    means, errors = [], []
    for method, runs in usable.items():
        x, mean, error = mean_curve(runs, "returns")
        means.append(line(method, method, x, mean, error=_thinned(error) if len(runs) > 1 else None))
        for name, kind in (("persistence_errors", "faint"), ("prediction_errors", "line")):
            x, mean, _ = mean_curve(runs, name)
            errors.append(line(method, method + ", persistence" * (kind == "faint"), x, mean, kind=kind))
    x = steps_axis(line.x for line in [*singles, *means])
    stride = max(_stride(len(result.returns)) for result in begun)
    thinned = f"; one iteration in {stride} is drawn" if stride > 1 else ""
    returns = chart(
        "Return",
        [*singles, *means],
        x,
        Scale.around(v for line in [*singles, *means] for v in line.y),
        note=f"mean over an iteration’s episodes; the lines are means over seeds, the bands their standard error{thinned}",
        label=STEPS,
        kind="wide",
    )
    y = Scale.around((v for line in errors for v in line.y), log=True)
    prediction = chart("Prediction error", errors, x, y, note=f"{ERROR}{thinned}", label=STEPS) if errors else ""
    buttons = [toggle(method, i, swatch(looks[method])) for i, method in enumerate(methods)]
    few = len(begun) <= SHOWN_SINGLES
    if singles:
        buttons.append(toggle("single runs", pressed=few))
    means_only = "" if few else " means"
    return (
        f'<section class="env{means_only}" data-task="{escape(task)}"><div class="legend">{"".join(buttons)}</div>'
        f"{returns}{prediction}</section>"
    )


def _stride(length: int) -> int:
    return -(-length // MOST_POINTS)


def _thinned(values: np.ndarray) -> list[float]:
    """So few of the values that a page of many curves opens at once: every n-th, and the last."""
    stride = _stride(len(values))
    return np.append(values[:-1:stride], values[-1:]).tolist()


def _runs(title: str, results: Sequence[Result], last: tuple[str, Callable[[Result], str]]) -> str:
    """Runs by name, and how far they are."""
    if not results:
        return ""
    rows = [
        [
            run_name(r),
            Cell(f"{len(r.returns)} of {r.iterations}", len(r.returns), _progress(len(r.returns), r.iterations)),
            last[1](r),
        ]
        for r in results
    ]
    listed = table(("run", "iterations", last[0]), rows, True, "runs")
    count = f"{len(results)} run{'s' * (len(results) > 1)}"
    shown = folded(title, count, listed, is_open=len(results) <= MOST_LISTED)
    return f'<div id="{title.lower()}">{shown}</div>'


def _progress(done: int, wanted: int) -> str:
    return f'<progress value="{done}" max="{max(wanted, 1)}" aria-hidden="true"></progress>'


def run_name(result: Result) -> str:
    return f"{result.task}, {result.method}, seed {result.seed}"
