"""The part of a report about several runs: comparison, mean curves, failed and unfinished runs."""

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

SHOWN_SINGLES = 12
"""Individual runs are shown by default if a task has at most this many."""
MOST_SINGLES = 200
"""Individual runs are not drawn at all if a task has more than this many."""
MOST_POINTS = 250
"""Maximum number of points of a curve."""


def many_runs(results: list[Result], doubts: list[str]) -> tuple[str, str, list[str]]:
    """Return title, lead and body."""
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
        scaled = "Area under the curve, scaled for each task from 0 (its worst run) to 1 (its best run)."
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
    """Return a table cell with the name of a method and a sample of its line."""
    return Cell(method, mark=swatch(looks[method]))


def _summary(task: str, found: Comparison | None, looks: dict[str, Style]) -> str:
    """Return the table that `rpsp compare` prints for a task."""
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
        f'<p class="note">Over {rows[0].iterations} iterations. Mean ± standard error over seeds. '
        "The IQM is of the area under the curve.</p>"
        + table((*row_texts(rows[0]), "time per run"), lines, True, "summary")
    )


def _curves(task: str, results: Sequence[Result], looks: dict[str, Style]) -> str:
    """Return the charts of a task: mean curves of the methods, with individual runs behind them."""
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
    thinned = f"; one in {stride} iterations is drawn" if stride > 1 else ""
    returns = chart(
        "Return",
        [*singles, *means],
        x,
        Scale.around(v for line in [*singles, *means] for v in line.y),
        note=f"mean over the episodes of an iteration; lines are means over seeds, bands standard errors{thinned}",
        label=STEPS,
        kind="wide",
    )
    y = Scale.around((v for line in errors for v in line.y), log=True)
    prediction = chart("Prediction error", errors, x, y, note=f"{ERROR}{thinned}", label=STEPS) if errors else ""
    buttons = [toggle(method, i, swatch(looks[method])) for i, method in enumerate(methods)]
    few = len(begun) <= SHOWN_SINGLES
    if singles:
        buttons.append(toggle("individual runs", pressed=few))
    means_only = "" if few else " means"
    return (
        f'<section class="env{means_only}" data-task="{escape(task)}"><div class="legend">{"".join(buttons)}</div>'
        f"{returns}{prediction}</section>"
    )


def _stride(length: int) -> int:
    """Return the step between drawn points of a curve of this length."""
    return -(-length // MOST_POINTS)


def _thinned(values: np.ndarray) -> list[float]:
    """Return every n-th value and the last one, so that pages with many curves load quickly."""
    stride = _stride(len(values))
    return np.append(values[:-1:stride], values[-1:]).tolist()


def _runs(title: str, results: Sequence[Result], last: tuple[str, Callable[[Result], str]]) -> str:
    """Return a table of runs and their progress."""
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
    """Return a progress bar."""
    return f'<progress value="{done}" max="{max(wanted, 1)}" aria-hidden="true"></progress>'


def run_name(result: Result) -> str:
    """Return the name of a run: task, method and seed."""
    return f"{result.task}, {result.method}, seed {result.seed}"
