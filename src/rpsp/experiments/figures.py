"""Results to figures; never trains. Colours are safe for the colour-blind and mean the same thing in every figure."""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from PIL import Image

from rpsp.data.batches import pack
from rpsp.data.episodes import Episode, as_episodes
from rpsp.data.scaling import OneHot
from rpsp.errors import StorageError, UsageError
from rpsp.experiments.agents import TrainedAgent
from rpsp.experiments.comparison import METRIC_NAMES, Comparison, Metric, Row, base_method, mean_curve, metric_values
from rpsp.experiments.models import PredictiveStateModel
from rpsp.experiments.results import Result, method_label, slug, task_label, varying, word
from rpsp.experiments.statistics import mean_and_error
from rpsp.experiments.words import number
from rpsp.filters.base import compiled_unroll, forecast
from rpsp.filters.evaluation import compiled_forecast
from rpsp.filters.inference import InferenceFilter
from rpsp.training.loop import Record

T = TypeVar("T")
K = TypeVar("K")

# Okabe and Ito's palette.
COLOURS = {
    "inference": "#0072B2",
    "kernel-bayes": "#D55E00",
    "gru": "#CC79A7",
    "tabular": "#009E73",
    "linear AR(10)": "#E69F00",
    "persistence": "#56B4E9",
    "mean": "#999999",
}

SOLID, DASHED, DOTTED, MIXED, LONG = (), (5.0, 2.0), (1.2, 1.4), (6.0, 1.6, 1.2, 1.6), (11.0, 2.0)
"""Dashes and gaps, in widths of the line."""


class Style(NamedTuple):
    """How a method's curves are drawn, wherever they are drawn."""

    colour: str
    dash: tuple[float, ...] = SOLID


# A colour is a family of methods (or, in the paper's own, an update), its dashes tell the members apart. Four colours
# are of Tol's muted palette, chosen to go with Okabe and Ito's.
METHOD_STYLES = {
    "rpsp-alt": Style("#D55E00"),
    "rpsp-alt+obs": Style("#D55E00", DASHED),
    "rpsp-vrpg": Style("#882255"),
    "rpsp-vrpg+obs": Style("#882255", DASHED),
    "fix-psr": Style("#56B4E9"),
    "reactive-psr": Style("#999933"),
    "random-psr": Style("#888888"),
    "fm1": Style("#E69F00", DOTTED),
    "fm2": Style("#E69F00"),
    "fm5": Style("#E69F00", DASHED),
    "fm2-ppo": Style("#E69F00", MIXED),
    "fm2-sac": Style("#E69F00", LONG),
    "gru16": Style("#CC79A7", DOTTED),
    "gru32": Style("#CC79A7"),
    "gru64": Style("#CC79A7", DASHED),
    "gru128": Style("#CC79A7", MIXED),
    "reg-gru": Style("#332288"),
    "reg-gru-vrpg": Style("#332288", DASHED),
    "rpsi-trpo": Style("#0072B2"),
    "rpsi-alt": Style("#0072B2", DASHED),
    "rpsi-ppo": Style("#0072B2", MIXED),
    "rpsi-sac": Style("#0072B2", LONG),
    "tabular": Style("#009E73"),
    "recurrent-ppo": Style("#000000", DASHED),
}
CYCLE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000"]

STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "svg.hashsalt": "rpsp",  # the same figure gives the same file
}
"""Settings of Matplotlib that hold while a figure of this module is drawn or saved, and are restored afterwards."""
styled = matplotlib.rc_context(STYLE)
"""Decorator for functions that draw."""


def subplots(rows: int = 1, columns: int = 1, *, size: tuple[float, float], sharex: bool = False) -> tuple[Figure, Any]:
    """Create a figure and a `[rows, columns]` grid of axes, without pyplot and whatever back end the user has chosen."""
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, sharex=sharex, squeeze=False)


def style(method: str, i: int = 0) -> Style:
    """A method's own style; the i-th of a cycle for a user's method, which the map does not know.

    A variant, as in "rpsp-alt, refits", has its method's colour and a line of dots and dashes.
    """
    name, _, variant = method.partition(",")
    if name not in METHOD_STYLES:
        return Style(CYCLE[i % len(CYCLE)], MIXED)
    return METHOD_STYLES[name]._replace(dash=MIXED) if variant else METHOD_STYLES[name]


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """How all methods of a figure are drawn: as ever, and variants in shades and dashes that no other has."""
    looks = {method: style(method, i) for i, method in enumerate(dict.fromkeys(methods))}
    taken = {look for method, look in looks.items() if method in METHOD_STYLES}
    for method in looks:
        if method not in METHOD_STYLES and base_method(method) in METHOD_STYLES:
            own = np.array(to_rgb(looks[method].colour))
            for (to, amount), dash in zip(SHADES, itertools.cycle(DASHES), strict=False):
                looks[method] = Style(to_hex(((1 - amount) * own + amount * to).tolist()).upper(), dash)
                if looks[method] not in taken:
                    break
            taken.add(looks[method])
    return looks


SHADES = ((0.0, 0.0), (0.0, 0.4), (1.0, 0.4), (0.0, 0.65), (1.0, 0.65), (0.0, 0.2), (1.0, 0.2), (0.0, 0.5))
"""What a variant's colour is mixed with, black or white, and how much of it."""
DASHES = (MIXED, DASHED, DOTTED)
COLOURS_KEPT = 96


@styled
def save(figure: Figure, directory: Path, name: str, width: int | None = None) -> Path:
    """Write a figure as PNG and SVG; the PNG's path. With a width, in pixels at most, as a PNG of few colours alone."""
    path = directory / f"{name}.png"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if width is not None:
            with io.BytesIO() as drawn:
                figure.savefig(drawn, dpi=min(160, width / figure.get_figwidth()))
                with Image.open(drawn) as image:
                    image.convert("RGB").quantize(COLOURS_KEPT, Image.Quantize.FASTOCTREE).save(path, optimize=True)
        else:
            figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
            figure.savefig(path, dpi=160)
    except OSError as error:
        raise StorageError(f"{path}: the figure could not be written ({error.strerror}).") from error
    return path


@styled
def error_by_horizon(errors: dict[str, list[float]], title: str = "") -> Figure:
    """Normalised error against steps ahead, the model (first) beside the obvious alternatives."""
    figure, ((axes,),) = subplots(size=(6.5, 4.0))
    for i, (name, values) in enumerate(errors.items()):
        steps = np.arange(1, len(values) + 1)
        width = 2.6 if i == 0 else 1.6
        axes.plot(steps, values, color=_colour(name, i), lw=width, marker="o", ms=1.6 * width)
    axes.set_yscale("log")
    axes.set_xlabel("steps ahead")
    axes.set_ylabel("squared error / variance")
    axes.set_xticks(np.arange(1, max(map(len, errors.values())) + 1))
    axes.margins(x=0.02)
    axes.grid(axis="y", alpha=0.25)
    axes.set_title(title, loc="left")
    last = [max(values[-1], 1e-12) for values in errors.values()]
    for i, (name, height) in enumerate(zip(errors, _spread(axes, last), strict=True)):
        axes.text(1.02, height, name, transform=axes.transAxes, va="center", color=_colour(name, i))
    return figure


def _colour(name: str, i: int) -> str:
    return COLOURS.get(name, CYCLE[i % len(CYCLE)])


def _spread(axes: Axes, values: list[float], gap: float = 0.055) -> np.ndarray:
    """Heights (0 to 1) for labels at these values of a logarithmic axis, moved apart until none overlap."""
    low, high = np.log(axes.get_ylim())
    heights = (np.log(values) - low) / (high - low)
    order = np.argsort(heights)
    for below, above in itertools.pairwise(order):
        heights[above] = max(heights[above], heights[below] + gap)
    return heights


MOST_POINTS = 60
"""Of a line; longer curves are averaged over neighbouring iterations: those of SAC are of one episode each."""


@styled
def learning_curves(
    results: Sequence[Result], title: str = "", note: str = "", names: Mapping[str, str] | None = None
) -> Figure:
    """Mean return over environment steps, exploration included: a panel a task, a line a method, the mean of its runs.

    The band is the standard error over runs; where some have come less far, the line ends with the shortest. The note
    stands below in small print; `names` says what methods are called in the legend, where not by their labels.
    """
    return _over_training(results, ("returns",), "mean return", title, note, names or {})


@styled
def at_a_glance(tasks: Mapping[str, Mapping[str, Sequence[Result]]], methods: Mapping[str, str]) -> Figure:
    """Mean return over environment steps: all tasks in a row, a line a name, drawn as the method that is given for it."""
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
    """The mean of a curve over runs, its standard error as a band; returns the line."""
    x, mean, error = mean_curve(runs, name, MOST_POINTS)
    (line,) = axes.plot(x, mean, color=look.colour, ls=(0, look.dash) if look.dash else "-", lw=2.0, label=label)
    if len(runs) > 1:
        axes.fill_between(x, mean - error, mean + error, color=look.colour, alpha=0.18, lw=0)
    return line


def _steps_across(axes: Axes) -> None:
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="y", alpha=0.25)
    axes.margins(x=0.01)


@styled
def prediction_over_training(results: Sequence[Result], title: str = "", note: str = "") -> Figure:
    """The one-step error of the beliefs that acted, beside that of persistence on the same episodes (thin)."""
    curves, note = ("prediction_errors", "persistence_errors"), _notes("thin lines: persistence", note)
    figure = _over_training(results, curves, "squared error / variance", title, note, {})
    for axes in figure.axes:
        axes.set_yscale("log")
    return figure


def _over_training(
    results: Sequence[Result], curves: Sequence[str], what: str, title: str, note: str, names: Mapping[str, str]
) -> Figure:
    """Curves over environment steps, the first in the method's own line, any other thin and without a band."""
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
    """What every method came to, a panel a task, with standard errors; stars tell what differs from the reference."""
    tasks = grouped(rows, lambda row: row.task)
    looks = styles(row.method for row in rows)
    tested = any(row.against for row in rows)
    stars = "*, **, ***: p < 0.05, 0.01, 0.001 against ◆ (Welch, Holm)" if tested else ""
    note = _notes(stars, "standard errors, (runs)", note)
    lines = max(sum(1 + len(row.method) // 32 for row in shown) for shown in tasks.values())
    figure, panels = _panels(list(tasks), title, note, 0.3 * lines + 1.0)
    most = max(map(len, tasks.values()))
    for axes, shown in zip(panels, tasks.values(), strict=False):
        places = most - 1 - np.arange(len(shown))  # bars of all panels are equally thick
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
    """What one setting does (a panel a task, a line a method, standard errors), or two (a heat map a task and method).

    Runs of a panel are compared over as many iterations as the shortest has.
    """
    if len(settings) not in (1, 2):
        raise UsageError(f"settings: {', '.join(settings) or 'none'}; a figure shows what one or two of them do.")

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
"""The runs for every combination of some settings' values."""


def _heat_map(axes: Axes, ticks: Sequence[Sequence[str]], cells: Cells, metric: Metric) -> Any:
    """The mean of every cell, as a colour and as a number; empty where there is no run."""
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
    cells = grouped(runs, lambda r: tuple(word(r.settings.get(name)) for name in settings))
    for same in cells.values():
        if others := varying(same):
            raise UsageError(f"settings: the runs differ in {', '.join(others)} as well as in {', '.join(settings)}.")
    return cells


def _without(result: Result, settings: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in result.settings.items() if name not in settings}


def draw_comparison(found: Comparison, directory: str | Path, note: str = "") -> list[Path]:
    """Every figure of a comparison, as PNG and SVG; the paths of the PNGs.

    Settings in which the variants of a method differ, one or two, get a figure of what they do.
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


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by a key, both in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _in_order(values: Iterable[Any]) -> list[str]:
    """The different values of a setting as words, numbers by size."""

    def order(value: Any) -> tuple[bool, float, str]:
        return (False, float(value), "") if isinstance(value, int | float) else (True, 0.0, word(value))

    return list(dict.fromkeys(map(word, sorted(values, key=order))))


def _notes(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _wrapped(label: str, width: int) -> str:
    """A label in as many lines as it takes; a dollar in it is no formula."""
    return textwrap.fill(label, width, break_on_hyphens=False).replace("$", r"\$")


def _columns(panels: int) -> int:
    return panels if panels < 4 else 2 if panels == 4 else 3


def _panels(names: Sequence[str], title: str, note: str, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, with a title above and a note below, in small print."""
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
    note = textwrap.fill(note, int(14 * figure.get_figwidth()))  # so many letters of small print are an inch
    room = (0.1 + 0.15 * (1 + note.count("\n"))) / figure.get_figheight() if note else 0.0
    figure.set_layout_engine("constrained", rect=(0, room, 1, 1 - room), wspace=0.06)
    if note:
        figure.text(0.99, 0.03 / figure.get_figheight(), note, ha="right", va="bottom", fontsize=8, color="0.4")
    return figure, panels[:n]


def _method_legend(figure: Figure, panels: Sequence[Axes], counts: Mapping[str, set[int]]) -> None:
    """One legend for all panels, which also says of how many runs a line is the mean."""
    handles = {name: h for axes in panels for h, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels = []
    for name in handles:
        low, high = min(counts[name]), max(counts[name])
        runs = f"{low}" if low == high else f"{low} to {high}"
        labels.append(_wrapped(name if high == 1 else f"{name} ({runs} runs)", 75))
    if len(panels) == 1 and 0 < len(labels) <= 4:  # more would lie on the lines
        panels[0].legend(handles.values(), labels, loc="best", fontsize=9)
    elif labels:
        columns = _legend_columns(labels, figure.get_figwidth())
        figure.set_figheight(figure.get_figheight() + 0.19 * -(-len(labels) // columns))
        figure.legend(handles.values(), labels, loc="outside lower center", ncols=columns, fontsize=9)


def _legend_columns(labels: Sequence[str], inches: float) -> int:
    """In how many columns a legend of small print about fits."""

    def width(columns: int) -> float:
        return sum(0.6 + 0.075 * max(map(len, column)) for column in np.array_split(labels, columns))

    return next((n for n in range(len(labels), 1, -1) if width(n) < inches), 1)


def iterations(metrics: Sequence[Record]) -> list[Record]:
    """The records of iterations, without that of the initialisation."""
    return [record for record in metrics if "iteration" in record]


def refits(records: Sequence[Record]) -> list[float]:
    """The environment steps at which a refitted filter began to act."""
    return [float(r["total_samples"] - r["samples"]) for r in records if r.get("refit_accepted") == 1.0]


class Fan(NamedTuple):
    """Forecasts all along an episode, beside what happened."""

    truth: Float[np.ndarray, "time_plus_1 obs"]
    predicted: Float[np.ndarray, "n horizon obs"]
    """Entry [t, j] was expected of truth[t + 1 + j] when truth[: t + 1] had been seen."""
    bands: Float[np.ndarray, "4 horizon obs"]
    """The 5, 25, 75 and 95 % quantiles of all forecast errors at that distance."""
    first: int
    """Where the stretch worth showing begins."""
    length: int
    """Of that stretch."""

    @property
    def moments(self) -> range:
        """The moments of the stretch from which forecasts are shown, so that none overlap."""
        horizon = self.predicted.shape[1]
        return range(self.first, min(self.first + self.length - horizon, len(self.predicted)), horizon + 2)


def fan(predict: Callable[[Episode, int], np.ndarray], episodes: Sequence[Episode], horizon: int = 10) -> Fan:
    """The forecasts that `predict(episode, horizon)` gives in the longest episode, and its errors in all of them."""
    shown = max(episodes, key=len)
    horizon = max(1, min(horizon, len(shown) // 2))
    residuals = [
        _windows(e.observations, horizon) - predict(e, horizon) for e in [e for e in episodes if len(e) >= horizon][:50]
    ]
    bands = np.quantile(np.concatenate(residuals), [0.05, 0.25, 0.75, 0.95], axis=0)
    return Fan(shown.observations, predict(shown, horizon), bands, *_interesting(shown.observations, horizon))


def agent_forecasts(agent: TrainedAgent, row_length: int) -> Callable[[Episode, int], np.ndarray]:
    """`predict(episode, horizon)` of a trained agent's belief, for episodes in its own units of at most `row_length` steps.

    Entry [t, j] predicts observation t + 1 + j, in the agent's own units as well, given the actions then done.
    """

    def predict(episode: Episode, horizon: int) -> np.ndarray:
        batch = pack([episode], row_length=row_length)  # one shape for all episodes
        ahead = np.minimum(np.arange(row_length)[:, None] + np.arange(horizon), row_length - 1)
        states = compiled_unroll(agent.agent.filter, batch)[0]
        predicted = compiled_forecast(agent.agent.filter, states, np.asarray(batch.actions)[0][ahead])
        return np.asarray(predicted, np.float64)[: len(episode) - horizon + 1]

    return predict


def agent_fan(agent: TrainedAgent, episodes: Sequence[Episode], horizon: int = 10) -> Fan:
    """What a trained agent's belief expected in episodes that `agent.evaluate` gave, in the task's own units."""
    forecasts = agent_forecasts(agent, max(map(len, episodes)))
    found = fan(forecasts, episodes, horizon)
    if isinstance(agent.scaling, OneHot):
        return found
    decode = agent.scaling.decode
    return found._replace(
        truth=decode(found.truth), predicted=decode(found.predicted), bands=found.bands * agent.scaling.scale
    )


@styled
def prediction_fan(
    model: PredictiveStateModel | TrainedAgent,
    episodes: list[Episode],
    horizon: int = 10,
    names: list[str] | None = None,
    title: str = "",
) -> Figure:
    """What the belief expected, against what happened: forecasts from several moments of the longest episode.

    The bands hold 50 % and 90 % of all forecast errors at that distance over the episodes given: recordings for a model,
    what its `evaluate` gave for a trained agent.
    """
    if isinstance(model, TrainedAgent):
        found = agent_fan(model, episodes, horizon)
        if isinstance(model.scaling, OneHot):
            return _symbol_forecasts(found.predicted[:, 0], found.truth.argmax(axis=1), title)
        return _draw_fan(found, names or [f"observation {i}" for i in range(found.truth.shape[1])], title)
    episodes = as_episodes(episodes)
    if isinstance(model.observations, OneHot):
        shown = max(episodes, key=len)
        return _symbol_forecasts(
            model.predict(shown.observations, shown.actions)[:, 0], shown.observations[:, 0], title
        )
    found = fan(lambda e, horizon: model.predict(e.observations, e.actions, horizon), episodes, horizon)
    return _draw_fan(found, [_name(model, names, i) for i in range(found.truth.shape[1])], title)


def _draw_fan(found: Fan, names: list[str], title: str) -> Figure:
    truth, predicted, bands, first, length = found
    horizon = predicted.shape[1]
    dims = sorted(np.argsort(-truth[first : first + length].std(axis=0), kind="stable")[:4].tolist())
    figure, grid = subplots(len(dims), size=(8.0, 1.0 + 1.7 * len(dims)), sharex=True)
    times = np.arange(first, min(first + length, len(truth)))
    for axes, dim in zip(grid[:, 0], dims, strict=True):
        axes.plot(times, truth[times, dim], color="black", lw=1.4, label="what happened")
        for i, t in enumerate(found.moments):
            # Drawn from the last reading on, where nothing is uncertain yet.
            ahead = t + np.arange(horizon + 1)
            centre = np.append(truth[t, dim], predicted[t, :, dim])
            for low, high, alpha in ((0, 3, 0.15), (1, 2, 0.3)):
                lower, upper = (centre + np.append(0, bands[i, :, dim]) for i in (low, high))
                axes.fill_between(ahead, lower, upper, color=CYCLE[0], alpha=alpha, lw=0)
            axes.plot(
                ahead, centre, color=CYCLE[0], lw=1.8, label="forecast, with 50 % and 90 % bands" if i == 0 else None
            )
            axes.plot(t, truth[t, dim], "o", color=CYCLE[1], ms=5, label="last reading known" if i == 0 else None)
        axes.set_ylabel(names[dim])
    grid[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, fontsize=9)
    grid[-1, 0].set_xlabel("step")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


@styled
def coordinate_meaning(
    model: PredictiveStateModel, episodes: list[Episode], names: list[str] | None = None, title: str = ""
) -> Figure:
    """What each state coordinate means: how the expected future changes when it grows by one standard deviation.

    ∂E[o_{t:t+7}]/∂q_i under null actions at the mean state, times the coordinate's spread; observations are in standard
    deviations. The six coordinates that matter most are shown.
    """
    filter, batch = model.fitted, model.encode(episodes)
    states = np.asarray(compiled_unroll(filter, batch))[np.asarray(batch.mask)]
    null = jnp.zeros((8, batch.actions.shape[-1]))
    effects = jax.jacobian(lambda q: forecast(filter, q, null))(jnp.asarray(states.mean(axis=0)))
    effects = np.asarray(effects) * states.std(axis=0)  # [steps ahead, observation, coordinate]
    strongest = np.argsort(-np.square(effects).sum(axis=(0, 1)), kind="stable")[:6]
    rows = 1 if len(strongest) <= 3 else 2
    figure, grid = subplots(rows, 3, size=(9.0, 0.6 + 2.3 * rows))
    for axes, i in zip(grid.flat, np.sort(strongest), strict=False):
        for dim in range(min(effects.shape[1], len(CYCLE))):
            axes.plot(
                np.arange(1, len(effects) + 1),
                effects[:, dim, i],
                color=CYCLE[dim],
                lw=1.8,
                label=_name(model, names, dim),
            )
        axes.axhline(0, color="0.7", lw=0.8, zorder=0)
        youth = isinstance(filter, InferenceFilter) and i == filter.size - 1
        axes.set_title("youth of the belief, 1/t" if youth else f"coordinate {i}", loc="left")
    for axes in list(grid.flat)[len(strongest) :]:
        axes.set_visible(False)
    for axes in list(grid.flat)[: len(strongest)][-3:]:  # the lowest of every column
        axes.set_xlabel("steps ahead")
    for axes in grid[:, 0]:
        axes.set_ylabel("change expected (sd)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _symbol_forecasts(probabilities: Float[np.ndarray, "n symbol"], symbols: np.ndarray, title: str) -> Figure:
    """The probability of every symbol before it is seen, and the symbol that came."""
    length = min(len(probabilities), 60)
    probabilities = probabilities[:length]
    figure, ((axes,),) = subplots(size=(8.0, 1.5 + 0.25 * probabilities.shape[1]))
    image = axes.imshow(probabilities.T, aspect="auto", origin="lower", cmap="Blues", vmin=0, vmax=1)
    axes.plot(symbols[1 : length + 1], "o", color=CYCLE[1], ms=4, label="what happened")
    axes.set_xlabel("step")
    axes.set_ylabel("symbol")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=9)
    figure.colorbar(image, label="probability expected")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _name(model: PredictiveStateModel, names: list[str] | None, dim: int) -> str:
    return names[dim] if names else f"{'symbol' if model.kind == 'tabular' else 'observation'} {dim}"


def _windows(observations: np.ndarray, horizon: int) -> np.ndarray:
    """The truth in the layout of `PredictiveStateModel.predict`."""
    starts = np.arange(len(observations) - horizon)
    return observations[starts[:, None] + 1 + np.arange(horizon)]


def _interesting(observations: np.ndarray, horizon: int) -> tuple[int, int]:
    """The first step and length of a stretch worth showing: of about eight forecasts, where most happens."""
    length = min(len(observations), 8 * (horizon + 2))
    scale = observations.std(axis=0) + 1e-12
    movement = np.abs(np.diff(observations, axis=0) / scale).sum(axis=1)
    inside = np.convolve(movement, np.ones(max(1, length - 1)), mode="valid")
    return int(inside.argmax()) if len(inside) else 0, length
