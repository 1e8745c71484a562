"""Learning curves, bar charts and sweeps, drawn from results."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from rpsp.errors import UsageError
from rpsp.experiments.comparison import (
    METRIC_NAMES,
    Comparison,
    Metric,
    Row,
    grouped,
    mean_curve,
    metric_values,
)
from rpsp.experiments.figures.appearance import Style, save, style, styled, styles, subplots
from rpsp.experiments.labels import method_label, slug, task_label, word
from rpsp.experiments.results import Result, varying
from rpsp.experiments.statistics import mean_and_error
from rpsp.experiments.words import number

MOST_POINTS = 60
"""Maximum number of points of a line. Longer curves are averaged over neighbouring iterations."""


@styled
def learning_curves(
    results: Sequence[Result], title: str = "", note: str = "", names: Mapping[str, str] | None = None
) -> Figure:
    """Plot the mean return against environment steps, with one panel per task and one line per method.

    The steps include exploration. A line is the mean over the runs of a method and ends with the shortest run. The band
    is the standard error over runs.

    Args:
        results: results of runs.
        title: title of the figure.
        note: text in small print below the panels.
        names: names to show in the legend instead of the method labels, by label.
    """
    return _over_training(results, ("returns",), "mean return", title, note, names or {})


@styled
def at_a_glance(tasks: Mapping[str, Mapping[str, Sequence[Result]]], methods: Mapping[str, str]) -> Figure:
    """Plot the mean return against environment steps, with all tasks in one row.

    Args:
        tasks: for each task, the runs of each line by the line's name.
        methods: for each name, the method whose style the line has. This is also the order of the legend.
    """
    figure, grid = subplots(1, len(tasks), size=(max(5.2, 2.6 * len(tasks)), 2.9))
    handles = {}
    for axes, (task, lines) in zip(grid[0], tasks.items(), strict=True):
        for name, method in methods.items():
            if name in lines:
                handles[name] = _mean_line(axes, lines[name], "returns", style(method), name)
        axes.set_title(task.removesuffix("-v5"), loc="left")
        _steps_across(axes)
    grid[0, 0].set_ylabel("mean return")
    columns = _legend_columns(list(handles), figure.get_figwidth())
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, fontsize=9)
    return figure


def _mean_line(axes: Axes, runs: Sequence[Result], name: str, look: Style, label: str) -> Any:
    """Draw the mean of a curve over runs with its standard error as a band. Return the line."""
    x, mean, error = mean_curve(runs, name, MOST_POINTS)
    (line,) = axes.plot(x, mean, color=look.colour, ls=(0, look.dash) if look.dash else "-", lw=2.0, label=label)
    if len(runs) > 1:
        axes.fill_between(x, mean - error, mean + error, color=look.colour, alpha=0.18, lw=0)
    return line


def _steps_across(axes: Axes) -> None:
    """Format the x axis as environment steps."""
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="y", alpha=0.25)
    axes.margins(x=0.01)


@styled
def prediction_over_training(results: Sequence[Result], title: str = "", note: str = "") -> Figure:
    """Plot the one-step prediction error of the acting filters against environment steps.

    Thin lines show the error of persistence (no change) on the same episodes.
    """
    curves, note = ("prediction_errors", "persistence_errors"), _notes("thin lines: persistence", note)
    figure = _over_training(results, curves, "squared error / variance", title, note, {})
    for axes in figure.axes:
        axes.set_yscale("log")
    return figure


def _over_training(
    results: Sequence[Result], curves: Sequence[str], what: str, title: str, note: str, names: Mapping[str, str]
) -> Figure:
    """Plot curves against environment steps. The first has the method's style, the others are thin and have no band."""
    tasks = grouped(results, lambda r: r.task)
    looks = styles(r.method for r in results)
    figure, panels = _panels(list(tasks), title, note)
    counts: dict[str, set[int]] = {}
    for axes, runs in zip(panels, tasks.values(), strict=False):
        for method, same in grouped(runs, lambda r: r.method).items():
            if not all(len(run.returns) for run in same):
                continue
            shown = names.get(method, method)
            counts.setdefault(shown, set()).add(len(same))
            _mean_line(axes, same, curves[0], looks[method], shown)
            for name in curves[1:]:
                x, mean, _ = mean_curve(same, name, MOST_POINTS)
                axes.plot(x, mean, color=looks[method].colour, lw=0.8)
        _steps_across(axes)
    for axes in panels[:: _columns(len(panels))]:
        axes.set_ylabel(what)
    _method_legend(figure, panels, counts)
    return figure


@styled
def bars(rows: Sequence[Row], metric: Metric = "auc", title: str = "", note: str = "") -> Figure:
    """Plot one bar per method with its standard error, with one panel per task.

    Stars mark significant differences from the reference method, which is marked with a diamond.

    Args:
        rows: rows of a comparison.
        metric: metric to show.
        title: title of the figure.
        note: text in small print below the panels.
    """
    tasks = grouped(rows, lambda row: row.task)
    looks = styles(row.method for row in rows)
    tested = any(row.against for row in rows)
    stars = "*, **, ***: p < 0.05, 0.01, 0.001 against ◆ (Welch, Holm)" if tested else ""
    note = _notes(stars, "standard errors, (runs)", note)
    lines = max(sum(1 + len(row.method) // 32 for row in shown) for shown in tasks.values())
    figure, panels = _panels(list(tasks), title, note, 0.3 * lines + 1.0)
    most = max(map(len, tasks.values()))
    for axes, shown in zip(panels, tasks.values(), strict=False):
        places = most - 1 - np.arange(len(shown))  # bars have the same thickness in all panels
        values, errors = np.array(
            [(r.area, r.area_error) if metric == "auc" else (r.final, r.final_error) for r in shown]
        ).T
        ends = values + np.where(values >= 0, 1, -1) * np.nan_to_num(errors)
        axes.barh(places, values, color=[looks[r.method].colour for r in shown], height=0.72)
        axes.errorbar(values, places, xerr=errors, fmt="none", ecolor="black", elinewidth=1.2, capsize=3)
        references = {r.against for r in shown} - {""}
        for place, end, row in zip(places, ends, shown, strict=True):
            mark = "◆" if row.method in references else "*" * sum(row.p_holm < level for level in (0.05, 0.01, 0.001))
            side = 1 if end >= 0 else -1
            axes.annotate(mark, (end, place), (5 * side, -1), textcoords="offset points", va="center",
                          ha="left" if side > 0 else "right")  # fmt: skip
        axes.set_yticks(places, [_wrapped(f"{row.method} ({row.seeds})", 32) for row in shown], fontsize=9)
        axes.axvline(0, color="0.3", lw=0.8)
        axes.margins(x=0.12)
        axes.set_ylim(-0.5, most - 0.5)
        axes.set_xlabel(METRIC_NAMES[metric])
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.tick_params(axis="y", length=0)
    return figure


@styled
def sweep(
    results: Sequence[Result], settings: Sequence[str], metric: Metric = "auc", title: str = "", note: str = ""
) -> Figure:
    """Plot the effect of one or two settings.

    For one setting there is one panel per task and one line per method, with standard errors. For two settings there is
    one heat map per task and method. The runs of a panel are compared over the iterations that all of them have.

    Args:
        results: results of runs that differ in these settings.
        settings: names of one or two settings.
        metric: metric to show.
        title: title of the figure.
        note: text in small print below the panels.

    Raises:
        UsageError: if there are not one or two settings, or if the runs also differ in other settings.
    """
    if len(settings) not in (1, 2):
        raise UsageError(f"settings: {', '.join(settings) or 'none'}; give one or two settings to plot.")

    def method(result: Result) -> str:
        return method_label(_without(result, settings))

    def panel(result: Result) -> str:
        task = task_label(_without(result, settings))
        return task if len(settings) == 1 else f"{task}: {method(result)}"

    groups = grouped(results, panel)
    figure, panels = _panels(list(groups), title, note)
    ticks = [_in_order(r.settings.get(name) for r in results) for name in settings]
    looks, counts = styles(map(method, results)), {}
    for axes, runs in zip(panels, groups.values(), strict=True):
        runs = [run.cut(min(len(r.returns) for r in runs)) for run in runs]
        axes.set_xlabel(settings[0])
        axes.set_xticks(range(len(ticks[0])), ticks[0])
        if len(settings) == 2:
            image = _heat_map(axes, ticks, _cells(runs, settings), metric)
            axes.set_ylabel(settings[1])
            figure.colorbar(image, ax=axes, label=METRIC_NAMES[metric], format=EngFormatter(sep=""))
            continue
        for name, same in grouped(runs, method).items():
            cells = _cells(same, settings)
            places = [i for i, tick in enumerate(ticks[0]) if (tick,) in cells]
            found = [mean_and_error(metric_values(cells[(ticks[0][i],)], metric)) for i in places]
            colour, dash = looks[name]
            axes.errorbar(
                places, *np.array(found).T, color=colour, ls=(0, dash) if dash else "-", lw=1.8, marker="o", capsize=3,
                label=name,
            )  # fmt: skip
            counts.setdefault(name, set()).update(map(len, cells.values()))
        axes.set_ylabel(METRIC_NAMES[metric])
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(axis="y", alpha=0.25)
        axes.margins(x=0.08)
    if counts:
        _method_legend(figure, panels, counts)
    return figure


Cells = dict[tuple[str, ...], list[Result]]
"""The runs for each combination of values of the settings."""


def _heat_map(axes: Axes, ticks: Sequence[Sequence[str]], cells: Cells, metric: Metric) -> Any:
    """Draw the mean of each cell as a colour and a number. Cells without runs stay empty."""
    means = np.full((len(ticks[1]), len(ticks[0])), np.nan)
    for (x, y), runs in cells.items():
        means[ticks[1].index(y), ticks[0].index(x)] = metric_values(runs, metric).mean()
    image = axes.imshow(means, origin="lower", aspect="auto", cmap="cividis")
    light = np.asarray(image.norm(means)) > 0.6
    for j, i in np.argwhere(np.isfinite(means)).tolist():
        colour = "black" if light[j, i] else "white"
        axes.text(i, j, number(means[j, i]), ha="center", va="center", color=colour, fontsize=9)
    axes.set_yticks(range(len(ticks[1])), ticks[1])
    return image


def _cells(runs: Sequence[Result], settings: Sequence[str]) -> Cells:
    """Group runs by the values of the settings."""
    cells = grouped(runs, lambda r: tuple(word(r.settings.get(name)) for name in settings))
    for same in cells.values():
        if others := varying(same):
            raise UsageError(f"settings: the runs differ in {', '.join(others)} as well as in {', '.join(settings)}.")
    return cells


def _without(result: Result, settings: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a result except the given ones."""
    return {name: value for name, value in result.settings.items() if name not in settings}


def draw_comparison(found: Comparison, directory: str | Path, note: str = "") -> list[Path]:
    """Draw and save all figures of a comparison as PNG and SVG.

    If the variants of a method differ in one or two settings, a figure of the effect of these settings is added.

    Returns:
        The paths of the PNG files.
    """
    drawn = {
        "learning": learning_curves(found.results, note=note),
        "prediction": prediction_over_training(found.results, note=note),
        found.metric: bars(found.rows, found.metric, note=note),
    }
    swept: dict[tuple[str, ...], list[Result]] = {}
    for runs in grouped(found.candidates, lambda r: (r.settings["env"], r.settings["method"])).values():
        swept.setdefault(tuple(varying(runs)), []).extend(runs)
    for names, runs in swept.items():
        if len(names) in (1, 2):
            drawn["sweep_" + "_".join(map(slug, names))] = sweep(runs, names, found.metric, note=note)
    return [save(figure, Path(directory), name) for name, figure in drawn.items()]


def _in_order(values: Iterable[Any]) -> list[str]:
    """Return the distinct values of a setting as words, numbers sorted by size."""

    def order(value: Any) -> tuple[bool, float, str]:
        return (False, float(value), "") if isinstance(value, int | float) else (True, 0.0, word(value))

    return list(dict.fromkeys(map(word, sorted(values, key=order))))


def _notes(*notes: str) -> str:
    """Join the notes that are not empty."""
    return "; ".join(filter(None, notes))


def _wrapped(label: str, width: int) -> str:
    """Wrap a label, and escape dollar signs so that they do not start a formula."""
    return textwrap.fill(label, width, break_on_hyphens=False).replace("$", r"\$")


def _columns(panels: int) -> int:
    """Return the number of columns for a number of panels."""
    return panels if panels < 4 else 2 if panels == 4 else 3


def _panels(names: Sequence[str], title: str, note: str, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """Create a figure with one panel per name, a title above and a note in small print below."""
    n = max(1, len(names))
    columns = min(n, _columns(n))
    rows = -(-n // columns)
    size = (6.5, max(4.0, height)) if n == 1 else (4.6 * columns, height * rows)
    figure, grid = subplots(rows, columns, size=size)
    panels = list(grid.flat)
    for axes in panels[n:]:
        axes.set_visible(False)
    for axes, name in zip(panels, names, strict=False):
        axes.set_title(_wrapped(title if n == 1 and title else name, 60 if n == 1 else 40), loc="left")
    if n > 1:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    note = textwrap.fill(note, int(14 * figure.get_figwidth()))  # about 14 characters of small print per inch
    room = (0.1 + 0.15 * (1 + note.count("\n"))) / figure.get_figheight() if note else 0.0
    figure.set_layout_engine("constrained", rect=(0, room, 1, 1 - room), wspace=0.06)
    if note:
        figure.text(0.99, 0.03 / figure.get_figheight(), note, ha="right", va="bottom", fontsize=8, color="0.4")
    return figure, panels[:n]


def _method_legend(figure: Figure, panels: Sequence[Axes], counts: Mapping[str, set[int]]) -> None:
    """Add one legend for all panels. The labels include the number of runs."""
    handles = {name: h for axes in panels for h, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels = []
    for name in handles:
        low, high = min(counts[name]), max(counts[name])
        runs = f"{low}" if low == high else f"{low} to {high}"
        labels.append(_wrapped(name if high == 1 else f"{name} ({runs} runs)", 75))
    if len(panels) == 1 and 0 < len(labels) <= 4:  # a larger legend would cover the lines
        panels[0].legend(handles.values(), labels, loc="best", fontsize=9)
    elif labels:
        columns = _legend_columns(labels, figure.get_figwidth())
        figure.set_figheight(figure.get_figheight() + 0.19 * -(-len(labels) // columns))
        figure.legend(handles.values(), labels, loc="outside lower center", ncols=columns, fontsize=9)


def _legend_columns(labels: Sequence[str], inches: float) -> int:
    """Estimate the number of columns in which a legend fits, with about equally many entries each."""

    def width(columns: int) -> float:
        return sum(0.6 + 0.075 * max(map(len, column)) for column in np.array_split(labels, columns))

    most = next((n for n in range(len(labels), 1, -1) if width(n) < inches), 1)
    rows = -(-len(labels) // most)
    return -(-len(labels) // rows)
