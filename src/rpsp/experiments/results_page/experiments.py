"""One section of the page per experiment, with figures and tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.figure import Figure

from rpsp.experiments.comparison import Row, compare
from rpsp.experiments.figures.curves import bars, learning_curves
from rpsp.experiments.paper.curves import Curve, Found
from rpsp.experiments.paper.tables import (
    EXPERIMENTS,
    PEERS,
    Experiment,
    candidates,
    label_of,
    labels_of,
    task_labels,
)
from rpsp.experiments.results_page.markdown import (
    code,
    mean_and_error_text,
    p_text,
    paragraph,
    percent,
    plural,
    table,
)
from rpsp.experiments.results_page.tables import SELECTED, from_several


def experiment_section(name: str, found: Found, figures: dict[str, Callable[[], Figure]]) -> str:
    """Return the section of an experiment and add its figures; empty if there is no curve."""
    experiment = EXPERIMENTS[name]
    curves = {select: _curves(experiment, found, select) for select in (False, True)}
    changes = _changes(experiment, found)
    if not curves[True] or (experiment.changes and not changes):
        return ""
    parts = [f"## {name}: {experiment.about}\n", _absent(experiment, curves[True])]
    for select, shown in curves.items():
        if not shown or (select and not from_several(shown)):
            continue
        if select:
            parts.append(f"{SELECTED}\n")
        if not select or {c.label for c in shown} != {c.label for c in curves[False]}:
            figure = f"results/{name}{'_selected' * select}"
            figures[figure] = _bars(shown) if changes else _lines(shown)
            what = "Area under curve" if changes else "Mean return over environment steps"
            parts.append(f"![{what}: {experiment.about}](figures/{figure}.png)\n")
        parts.append(changes or _rows(shown))
    return "\n".join(filter(None, parts))


def _lines(curves: Sequence[Curve]) -> Callable[[], Figure]:
    """Return a function that draws learning curves. A curve has the style of its first candidate."""
    looks = {curve.name: labels_of(curve.name)[0] for curve in curves}
    runs = [dataclasses.replace(run, method=looks[curve.name]) for curve in curves for run in curve.runs]
    return partial(learning_curves, runs, names={label: name for name, label in looks.items()})


def _bars(curves: Sequence[Curve]) -> Callable[[], Figure]:
    """Return a function that draws a bar chart."""
    return partial(bars, compare([run for curve in curves for run in curve.runs]).rows)


def _curves(experiment: Experiment, found: Found, select: bool) -> list[Curve]:
    """Return all curves of an experiment. Other libraries are shown only beside curves of this one."""
    curves = []
    for task in task_labels(experiment):
        own = [c for name in candidates(experiment) if (c := found.curve(task, name, select))]
        curves += own + [c for name in experiment.peers if own and (c := found.curve(task, name))]
    return curves


def _absent(experiment: Experiment, curves: Sequence[Curve]) -> str:
    """Return a sentence about the curves for which there are no results."""
    there = {(curve.runs[0].task, curve.name) for curve in curves}
    names = [*candidates(experiment), *experiment.peers]
    absent = {task: [n for n in names if (task, n) not in there] for task in task_labels(experiment)}
    told = [
        f"{task}: " + ("all" if len(own) == len(names) else ", ".join(f"`{name}`" for name in own))
        for task, own in absent.items()
        if own
    ]
    return paragraph(f"No results yet for {'; '.join(told)}.") if told else ""


def _rows(curves: Sequence[Curve]) -> str:
    """Return one table per task with tests against the best curve.

    Other libraries are left out, because their iterations are not comparable.
    """
    parts = []
    for task in dict.fromkeys(curve.runs[0].task for curve in curves):
        chosen = {c.label: c for c in curves if c.runs[0].task == task and c.name not in PEERS}
        rows = compare([run for curve in chosen.values() for run in curve.runs]).rows
        lines = []
        for row in rows:
            curve = chosen[row.method]
            several = f", of {curve.candidates}" if curve.candidates > 1 else ""
            lines.append([code(curve.name, curve.label) + several, *_numbers(row, curve), p_text(row.p_holm)])
        parts.append(f"**{task}**, compared over {plural(rows[0].iterations, 'iteration')}:\n")
        parts.append(table(["", *NUMBERS, "p against the best (Holm)"], lines))
    return "\n".join(parts)


NUMBERS = "seeds × iterations", "area under curve", "final return"


def _numbers(row: Row, curve: Curve) -> list[str]:
    """Format the numbers of a row: seeds and iterations, area under the curve, final return."""
    values = mean_and_error_text(row.area, row.area_error), mean_and_error_text(row.final, row.final_error)
    return [f"{row.seeds} × {curve.iterations}", *values]


def _changes(experiment: Experiment, found: Found) -> str:
    """Return one table per task with the effect of each change, tested against the method without it."""
    parts = []
    for task in task_labels(experiment):
        lines, told = [], ("", 0)
        for question, methods in experiment.changes.items():
            labels = [label_of(method) for method in methods]
            curves = {label: curve for label in labels if (curve := found.curve(task, label))}
            if labels[0] not in curves or len(curves) < 2:
                continue
            rows = compare([run for curve in curves.values() for run in curve.runs], against=labels[0]).rows
            base, *others = sorted(rows, key=lambda row: labels.index(row.method))
            if told != (base.method, base.iterations):
                told = base.method, base.iterations
                over = f"*over {plural(base.iterations, 'iteration')}*"
                lines.append([over, f"`{base.method}`", *_numbers(base, curves[base.method]), "", ""])
            for row in others:
                change = percent(row.area / base.area - 1) if base.area > 0 else ""
                numbers = _numbers(row, curves[row.method])
                lines.append([question, f"`{row.method}`", *numbers, change, p_text(row.p_holm)])
                question = ""
        if lines:
            parts += [f"**{task}**:\n", table(["setting", "", *NUMBERS, "change of area", "p (Holm)"], lines, 2)]
    return "\n".join(parts)
