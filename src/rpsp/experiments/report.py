"""Run directories to one HTML page that needs nothing else: no network, no fonts, no libraries. Never trains.

Charts are SVG that is stretched to the page, their labels HTML that is not: readable on a wall and on a phone. The script
reads the numbers it shows off the curves themselves. Whatever comes from a file is escaped.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from rpsp.errors import FileFormatError, RpspError, UsageError
from rpsp.experiments.agents import load
from rpsp.experiments.checkpoints import read_bytes, write_bytes
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.figures import COLOURS, CYCLE, SOLID, Fan, Style, agent_fan, iterations, refits, style
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.runner import read_json
from rpsp.experiments.runs import clock, number, read_config, summary
from rpsp.features import OneHot
from rpsp.training import Record

DETAILED = 4  # of how many runs the forecasts and the video are shown
MOST_PANELS = 12  # of the dimensions of an observation
EMBEDDED = 4_000_000  # bytes of video that the page carries itself
VIDEOS = {".gif": "image/gif", ".mp4": "video/mp4", ".webm": "video/webm"}


def write_report(directories: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page of some runs to `out`, or to report.html in the innermost directory that holds them all."""
    if not directories:
        raise UsageError("directories: none is given; name the run directories, as in `rpsp report runs/demo`.")
    found = [FoundRun.read(own) for directory in directories for own in _runs_in(Path(directory))]
    common = os.path.commonpath([Path(directory).absolute() for directory in directories])
    path = _near(Path(common)) / "report.html" if out is None else Path(out)
    if path.is_dir():
        raise UsageError(f"out: {str(path)!r} is a directory; give the name of the page, as in report.html.")
    write_bytes(path, page(found, path.parent).encode())
    return path


# ---------------------------------------------------------------------------------------------------------------------
# What there is to show
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FoundRun:
    """What the files of a run say."""

    directory: Path
    config: TrainConfig
    metrics: list[Record]
    results: dict[str, Any]
    versions: dict[str, Any]
    command: str

    @staticmethod
    def read(directory: Path) -> FoundRun:
        config = read_config(directory)
        metrics = RunDirectory(directory).metrics()
        try:
            results = summary(config, directory, metrics)
        except (KeyError, TypeError) as error:
            raise FileFormatError(f"{directory / 'metrics.jsonl'}: is not of an `rpsp train` run ({error}).") from error
        known = _optional(directory / "results.json")
        if isinstance(evaluation := known.get("evaluation"), dict):
            results["evaluation"] = evaluation
        command = directory / "command.txt"
        return FoundRun(
            directory,
            config,
            metrics,
            results,
            _optional(directory / "versions.json"),
            read_bytes(command).decode(errors="replace").strip() if command.exists() else "",
        )

    @property
    def records(self) -> list[Record]:
        return iterations(self.metrics)

    @property
    def seconds(self) -> float:
        """Time spent, over all the processes that worked on it."""
        return sum((v for r in self.metrics for name, v in r.items() if name.endswith("_seconds")), 0.0)

    @property
    def facts(self) -> dict[str, str]:
        """The row of the summary table."""
        results, wanted = self.results, self.config.iterations
        done = results["iterations"]
        evaluation = results.get("evaluation", {})
        return {
            "environment": str(results["env"]),
            "method": results["method"],
            "seed": str(results["seed"]),
            "iterations": f"{done}" if done == wanted else f"{done} of {wanted}, unfinished",
            "evaluation": f"{number(evaluation.get('mean_return'))} ± {number(evaluation.get('std_return'))}"
            if evaluation
            else "–",
            "final return": number(results["final_return"]),
            "best return": number(results["best_return"]),
            "area under curve": number(results["area_under_curve"]),
            "environment steps": f"{results['samples']:,}",
            "time": clock(self.seconds),
            "dropped episodes": f"{results['dropped_episodes']:,}",
            "skipped steps": f"{results['skipped_steps']:,.0f}",
        }

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its flat name, those that only concern printing left out."""
        flat = dataclasses.asdict(self.config)
        flat |= flat.pop("sensors") | flat.pop("settings")
        return {name: value for name, value in flat.items() if name not in ("json", "quiet", "out", "seeds", "config")}


def _runs_in(directory: Path) -> list[Path]:
    """The directory itself, or those in it where it holds the runs of several seeds."""
    within = sorted(path.parent for path in directory.glob("*/config.json"))
    if within:
        return within
    if not (directory / "config.json").is_file():
        raise FileFormatError(f"{directory}: holds no config.json; give a run directory of `rpsp train`.")
    return [directory]


def _near(path: Path) -> Path:
    """The path as one would type it here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _optional(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing if there is none."""
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: holds no JSON object.")
    return content


# ---------------------------------------------------------------------------------------------------------------------
# Charts
# ---------------------------------------------------------------------------------------------------------------------


class Scale(NamedTuple):
    """One axis: from numbers to 0 … 1."""

    low: float
    high: float
    log: bool = False

    @staticmethod
    def around(values: Iterable[float], log: bool = False, zero: bool = False) -> Scale:
        """An axis that holds all of these that are finite; from zero on if told, or if that is not far away."""
        finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0 if log else 0.0]
        low, high = min(finite), max(finite)
        if log:
            return Scale(low / 1.3, high * 1.3, True)
        if zero or 0 < low < 0.4 * high:
            low = min(low, 0.0)
        margin = 0.04 * (high - low) or max(1e-9, 0.1 * abs(high)) or 1.0
        return Scale(low if low == 0 else low - margin, high + margin)

    def at(self, value: float) -> float:
        return float(self.positions([value])[0])

    def positions(self, values: Sequence[float]) -> np.ndarray:
        """Where on the axis these lie; what cannot be drawn is not finite."""
        with np.errstate(invalid="ignore", divide="ignore"):
            low, high, at = (np.log(v) if self.log else np.asarray(v, float) for v in (self.low, self.high, values))
            return (at - low) / (high - low)

    def ticks(self) -> list[tuple[float, str]]:
        """About five places on the axis, and what is written there."""
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            powers = range(first, last + 1, max(1, -(-(last - first) // 5)))
            if len(powers) > 1:
                return [(self.at(10.0**p), f"10{str(p).translate(_SUPERSCRIPT)}") for p in powers]
            return [(self.at(v), f"{v:.2g}") for v in (self.low * 1.05, self.high / 1.05)]
        raw = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw)
        values = [k * step for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [(self.at(v), _tick(v, step)) for v in values]


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _tick(value: float, step: float) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if step >= unit / 10 and abs(value) >= unit:
            return f"{value / unit:g}{letter}"
    decimals = max(0, -math.floor(math.log10(step)))
    return f"{value:.{decimals}f}".replace("-", "−") if decimals <= 4 else f"{value:.1e}"


class Line(NamedTuple):
    """A curve of a chart."""

    name: str
    group: int
    """What it is shown and hidden with."""
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    kind: str = "line"
    """Its class in the style sheet."""


def chart(
    title: str,
    lines: Sequence[Line],
    x: Scale,
    y: Scale,
    *,
    note: str = "",
    label: str = "",
    marks: str = "",
    kind: str = "",
) -> str:
    """One chart: curves over marks that lie beneath them."""
    across, up = x.ticks(), y.ticks()
    grid = "".join(f'<path class="grid" d="M0 {_y(at)}H1000"/>' for at, _ in up)
    curves = "".join(_curve(line, x, y) for line in lines)
    left = "".join(f'<span style="top:{100 - 100 * at:.2f}%">{escape(text)}</span>' for at, text in up)
    below = "".join(f'<span style="left:{100 * at:.2f}%">{escape(text)}</span>' for at, text in across)
    data = f'data-x="{x.low:g} {x.high:g} {x.log:d}" data-y="{y.low!r} {y.high!r} {y.log:d}"'
    return (
        f'<figure class="chart {kind}"><figcaption><b>{escape(title)}</b> {escape(note)}</figcaption>'
        f'<div class="plot" {data}><div class="left">{left}</div>'
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">'
        f'{grid}{marks}{curves}</svg><div class="below">{below}</div></div>'
        f'<div class="label">{escape(label)}</div></figure>'
    )


def _curve(line: Line, x: Scale, y: Scale) -> str:
    dash = "".join(f"{2.2 * length:g} " for length in line.style.dash).strip()
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path class="{line.kind}" data-name="{escape(line.name)}" data-group="{line.group}" '
        f'style="--c:{line.style.colour}"{dashed} d="{_path(line.x, line.y, x, y)}"/>'
    )


def _path(xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale) -> str:
    """The points, joined where they are neighbours and can be drawn."""
    points = np.stack([x.positions(xs), 1 - y.positions(ys)], axis=1)
    drawn = np.asarray(np.isfinite(points).all(axis=1))
    first = drawn & ~np.append(False, drawn[:-1])
    rounded = np.round(1000 * np.clip(points[drawn], -9, 9), 1).tolist()
    pens = np.where(first, "M", "L")[drawn].tolist()
    return "".join(f"{pen}{across:g} {up:g}" for pen, (across, up) in zip(pens, rounded, strict=True))


def _area(
    xs: Sequence[float], lower: Sequence[float], upper: Sequence[float], x: Scale, y: Scale, colour: str, kind: str
) -> str:
    if not np.isfinite([*lower, *upper]).all():
        return ""
    path = _path([*xs, *reversed(xs)], [*lower, *reversed(upper)], x, y)
    return f'<path class="{kind}" style="--c:{colour}" d="{path}Z"/>' if path else ""


def _x(at: float) -> str:
    return f"{1000 * min(max(at, -9.0), 9.0):.1f}".removesuffix(".0")


def _y(at: float) -> str:
    return f"{1000 - 1000 * min(max(at, -9.0), 9.0):.1f}".removesuffix(".0")


# ---------------------------------------------------------------------------------------------------------------------
# The parts of the page
# ---------------------------------------------------------------------------------------------------------------------


def page(runs: list[FoundRun], beside: Path) -> str:
    """The whole page; links are relative to the directory `beside`."""
    alone = len(runs) == 1
    names = sorted({str(run.config.env) for run in runs})
    title = f"{names[0]}, {runs[0].config.method}" if alone else f"{len(runs)} runs: {', '.join(names)}"
    parts = [_headline(runs[0]) if alone else _summary_table(runs)]
    for env in names:
        parts.append(_training(env, [run for run in runs if str(run.config.env) == env], alone))
    few = f" Shown for the first {DETAILED} runs." if len(runs) > DETAILED else ""
    parts.append(f'<h2>What the belief expects</h2><p class="note">{EXPECTS}{few}</p>')
    for run in runs[:DETAILED]:
        heading = "" if alone else f"<h3>{escape(run.directory.name)}</h3>"
        parts.append(f"{heading}{_belief(run)}{_episode(run, beside)}")
    parts.append(_table("Settings", [run.settings for run in runs], "what was asked for, and what was filled in"))
    parts.append(_table("Versions", [run.versions for run in runs], "bits are promised within one set of them"))
    if alone and runs[0].command:
        parts.append(f"<p class=note>Made by <code>{escape(runs[0].command)}</code></p>")
    counts = Counter(run.config.method for run in runs)
    lead = _lead(runs[0]) if alone else escape(", ".join(f"{n} × {method}" for method, n in counts.items()))
    return PAGE.substitute(title=escape(title), lead=lead, body="\n".join(parts), style=CSS, script=SCRIPT)


def _lead(run: FoundRun) -> str:
    """The run in one sentence."""
    facts, evaluation = run.facts, run.results.get("evaluation")
    done = f"{facts['environment steps']} environment steps in {facts['iterations']} iterations"
    if run.results["iterations"] != run.config.iterations:
        done = f"{facts['environment steps']} environment steps, {facts['iterations']}"
    if not evaluation:
        return escape(f"{done}.")
    how = "deterministic " if evaluation.get("deterministic") else ""
    return escape(f"{done}; then {evaluation.get('episodes')} {how}episodes of evaluation: ") + (
        f"<b>{escape(facts['evaluation'])}</b>."
    )


def _headline(run: FoundRun) -> str:
    shown = [(name, value) for name, value in run.facts.items() if name not in ("environment", "method")]
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown)
    return f'<dl class="facts">{cells}</dl>'


def _summary_table(runs: list[FoundRun]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in runs[0].facts)
    rows = "".join(
        f'<tr title="{escape(str(run.directory))}">'
        + "".join(f"<td>{escape(value)}</td>" for value in run.facts.values())
        + "</tr>"
        for run in runs
    )
    return f'<div class="scroll"><table class="summary"><tr>{head}</tr>{rows}</table></div>'


def _training(env: str, runs: list[FoundRun], alone: bool) -> str:
    """The curves of the runs in one environment."""
    heading = "" if alone else f"<h2>{escape(env)}</h2>"
    begun = [run for run in runs if run.records]
    if not begun:
        return f'{heading}<p class="note">No iteration is finished yet.</p>'
    methods = list(dict.fromkeys(run.config.method for run in begun))
    by_method = len(methods) > 1 or alone
    keys = methods if by_method else [run.directory.name for run in begun]

    def look(run: FoundRun) -> tuple[int, Style]:
        i = keys.index(run.config.method if by_method else run.directory.name)
        return i, style(keys[i], i) if by_method else Style(CYCLE[i % len(CYCLE)], SOLID)

    def lines(name: str, kind: str = "line", word: str = "") -> list[Line]:
        return [
            Line(
                word if alone and word else run.directory.name + (f", {word}" if kind == "faint" else ""),
                look(run)[0],
                Style(COLOURS["persistence"]) if alone and kind == "faint" else look(run)[1],
                _column(run.records, "total_samples"),
                _column(run.records, name),
                kind,
            )
            for run in begun
        ]

    x = Scale(0.0, max(max(_column(run.records, "total_samples")) for run in begun))
    returns = lines("mean_return", word="mean return")
    y = Scale.around(v for line in returns for v in line.y)
    band = ""
    if alone:
        mean, spread = returns[0].y, _column(begun[0].records, "std_return")
        lower, upper = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
        band = _area(returns[0].x, lower, upper, x, y, returns[0].style.colour, "band")
    learning = chart(
        "Return",
        returns,
        x,
        y,
        marks=band,
        note="mean over an iteration’s episodes, as the agent explored"
        + ("; the band is their standard deviation" if alone else ""),
        label="environment steps, exploration included",
        kind="wide",
    )
    errors = [*lines("persistence_error", "faint", "persistence"), *lines("prediction_error", word="the belief")]
    y = Scale.around((v for line in errors for v in line.y), log=True)
    refitted = "".join(
        f'<path class="refit" d="M{_x(x.at(at))} 0V1000"/>' for run in begun[:1] if alone for at in refits(run.records)
    )
    prediction = chart(
        "Prediction error",
        errors,
        x,
        y,
        marks=refitted,
        note="one step ahead, squared, over variance; the pale line is persistence (nothing changes)"
        + ("; grey: the belief was refitted" if refitted else ""),
        label="environment steps",
    )
    moved = lines("whole_kl", word="KL")
    kl = chart(
        "Policy change",
        moved,
        x,
        Scale.around((v for line in moved for v in line.y), zero=True),
        note="KL of filter and policy together, old to new, in one iteration",
        label="environment steps",
    )
    legend = "" if alone else _legend([(key, look(run)[1]) for key, run in _firsts(keys, begun, by_method)])
    return f'<section class="env">{heading}{legend}{learning}<div class="two">{prediction}{kl}</div></section>'


def _firsts(keys: list[str], runs: list[FoundRun], by_method: bool) -> list[tuple[str, FoundRun]]:
    """Every entry of the legend with a run that belongs to it."""
    return [(key, next(r for r in runs if key == (r.config.method if by_method else r.directory.name))) for key in keys]


def _legend(entries: list[tuple[str, Style]]) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-group="{i}" style="--c:{look.colour}">'
        f'<svg viewBox="0 0 24 6"><path class="line" d="M0 3H24" '
        f'stroke-dasharray="{" ".join(f"{2 * d:g}" for d in look.dash)}"/></svg>{escape(name)}</button>'
        for i, (name, look) in enumerate(entries)
    )
    return f'<div class="legend">{buttons}</div>'


def _column(records: Sequence[Record], name: str) -> list[float]:
    values = (record.get(name) for record in records)
    return [float(v) if isinstance(v, int | float) else math.nan for v in values]


EXPECTS = (
    "From each dot on the belief sees nothing more and says, given the actions, what the next readings will be (coloured). "
    "The thin line is what happened; the bands hold 50 % and 90 % of the errors in five episodes."
)


def _belief(run: FoundRun) -> str:
    """Forecasts of the last checkpoint's belief in an episode of its own, against what happened."""
    try:
        found, symbols = _forecasts(run)
    except RpspError as error:
        return f'<p class="note">No forecasts: {escape(str(error))}</p>'
    if symbols:
        return f'<div class="two">{_symbol_panel(found)}</div>'
    names = observation_names(run.config, found.truth.shape[1])
    colour = style(run.config.method).colour
    panels = "".join(_fan_panel(found, dim, name, colour) for dim, name in enumerate(names[:MOST_PANELS]))
    return f'<div class="two">{panels}</div>'


def _forecasts(run: FoundRun) -> tuple[Fan, bool]:
    """Forecasts in the middle of an episode, and whether they are of symbols."""
    agent = load(run.directory)
    # With the noise of training, without which little happens; as far ahead as a state is fitted to predict.
    episodes = agent.evaluate(5, deterministic=False).episodes
    found = agent_fan(agent, episodes, run.config.settings.future or 5)
    middle = max(0, (len(found.truth) - found.length) // 2)
    return found._replace(first=middle), isinstance(agent.scaling, OneHot)


def _fan_panel(fan: Fan, dim: int, name: str, colour: str) -> str:
    """Forecasts of one dimension."""
    horizon, last = fan.predicted.shape[1], min(fan.first + fan.length, len(fan.truth)) - 1
    truth, times = fan.truth[:, dim], np.arange(fan.first, last + 1)
    shown = truth[times]
    middle, half = (shown.max() + shown.min()) / 2, max(shown.max() - shown.min(), 1e-6) / 2
    x, y = Scale(fan.first, max(last, fan.first + 1)), Scale(middle - 1.25 * half, middle + 1.25 * half)
    marks, steps, expected = [], [], []
    for t in fan.moments:
        ahead = (t + np.arange(horizon + 1.0)).tolist()
        centre = np.append(truth[t], fan.predicted[t, :, dim])
        for low, high, kind in ((0, 3, "band"), (1, 2, "band inner")):
            lower, upper = ((centre + np.append(0, fan.bands[i, :, dim])).tolist() for i in (low, high))
            marks.append(_area(ahead, lower, upper, x, y, colour, kind))
        steps += [*ahead, math.nan]
        expected += [*centre.tolist(), math.nan]
    dots = "".join(
        f'<path class="dot" style="--c:{colour}" d="M{_x(x.at(float(t)))} {_y(y.at(float(truth[t])))}h0"/>'
        for t in fan.moments
    )
    lines = [
        Line("forecast", 0, Style(colour), steps, expected, "ahead"),
        Line("what happened", 0, Style("var(--ink)"), times.astype(float).tolist(), shown.tolist(), "truth"),
    ]
    return chart(name, lines, x, y, marks="".join(marks) + dots, label="step", kind="low")


def _symbol_panel(fan: Fan) -> str:
    """The probability of every symbol before it came."""
    steps = min(60, len(fan.predicted))
    count = fan.truth.shape[1]
    x, y = Scale(0, steps), Scale(0, count)
    width, height = 1000 / steps, 1000 / count
    cells = "".join(
        f'<rect x="{t * width:.1f}" y="{1000 - (s + 1) * height:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{CYCLE[0]}" fill-opacity="{min(max(float(fan.predicted[t, 0, s]), 0), 1):.2f}"/>'
        for t in range(steps)
        for s in range(count)
    )
    came = fan.truth[1 : steps + 1].argmax(axis=1)
    dots = "".join(
        f'<path class="dot" style="--c:{CYCLE[1]}" d="M{(t + 0.5) * width:.1f} {1000 - (s + 0.5) * height:.1f}h0"/>'
        for t, s in enumerate(came.tolist())
    )
    note = "darker is more probable; dots are those that came"
    return chart("Symbols", [], x, y, marks=cells + dots, note=note, label="step")


OBSERVATIONS = {
    "InvertedPendulum": ("cart position", "pole angle"),
    "Swimmer": ("front angle", "first joint", "second joint"),
    "Hopper": ("height", "torso angle", "thigh angle", "leg angle", "foot angle"),
    "Walker2d": (
        "height", "torso angle", "right thigh", "right leg", "right foot", "left thigh", "left leg", "left foot",
    ),
}  # fmt: skip
"""What the positions of the paper's tasks are called."""


def observation_names(config: TrainConfig, count: int) -> list[str]:
    """A word for every observation that the agent gets."""
    known = OBSERVATIONS.get((config.env or "").rpartition("-v")[0], ())
    observe = config.sensors.observe or "positions"
    indices = range(count) if observe in ("positions", "all") else [int(i) for i in observe.split(",")]
    return [known[i] if i < len(known) else f"observation {i}" for i in indices][:count]


def _episode(run: FoundRun, beside: Path) -> str:
    """The newest video of the run."""
    files = [f for f in run.directory.glob("video/*") if f.suffix in VIDEOS and f.is_file()]
    if not files:
        return ""
    file = max(files, key=lambda f: f.stat().st_mtime)
    if file.stat().st_size >= EMBEDDED:
        link = escape(quote(os.path.relpath(file, beside)))
        return f'<p>An episode: <a href="{link}">{escape(file.name)}</a> ({file.stat().st_size / 1e6:.0f} MB)</p>'
    kind = VIDEOS[file.suffix]
    data = f"data:{kind};base64,{base64.b64encode(read_bytes(file)).decode()}"
    if kind.startswith("image"):
        return f'<img class="video" alt="an episode of the trained agent" src="{data}">'
    return f'<video class="video" controls autoplay muted loop playsinline src="{data}"></video>'


def _table(title: str, columns: list[dict[str, Any]], about: str) -> str:
    """Names and values, folded away; where runs differ, all of the values."""
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = []
    for name in names:
        values = list(dict.fromkeys(_plain(column.get(name)) for column in columns))
        mixed = ' class="mixed"' if len(values) > 1 else ""
        rows.append(f"<tr{mixed}><th>{escape(name)}</th><td>{escape(' · '.join(values))}</td></tr>")
    if not rows:
        return ""
    table = f"<table>{''.join(rows)}</table>"
    return f"<details><summary><b>{escape(title)}</b> {escape(about)}</summary>{table}</details>"


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# ---------------------------------------------------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------------------------------------------------

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; media-src data:">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
<header><h1>$title</h1><p class="lead">$lead</p></header>
$body
</main>
<script>$script</script>
</body>
</html>
""")

CSS = """
:root { color-scheme: light dark; --paper: #fff; --card: #f6f7f9; --ink: #16191d; --quiet: #626a75; --hair: #dfe3e8;
  --lift: 0%; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #101318; --card: #191d24; --ink: #e8ebef; --quiet: #98a1ad; --hair: #2b313a; --lift: 34%; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2.2rem 1.2rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -.015em; margin: 0; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.2rem 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; overflow-wrap: anywhere; }
.lead { font-size: 1.1rem; color: var(--quiet); margin: .4rem 0 1.6rem; }
.lead b { color: var(--ink); }
.note { color: var(--quiet); margin: .2rem 0 1rem; overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr)); gap: .7rem; margin: 0 0 1.6rem; }
.facts div { background: var(--card); border-radius: .6rem; padding: .6rem .8rem; }
.facts dt { color: var(--quiet); font-size: .82rem; }
.facts dd { margin: 0; font-size: 1.1rem; font-weight: 600; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--hair); vertical-align: top; }
th { color: var(--quiet); font-weight: 500; }
.summary th { vertical-align: bottom; }
.summary td { white-space: nowrap; }
details { margin-top: 1rem; background: var(--card); border-radius: .6rem; padding: .7rem 1rem; }
details table { margin-top: .6rem; width: 100%; }
details td { overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--quiet); }
summary b { color: var(--ink); }
.mixed td { font-weight: 600; }
code { font-size: .9em; overflow-wrap: anywhere; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1rem; }
.chart { background: var(--card); border-radius: .6rem; margin: 0 0 1rem; padding: .8rem 1rem .6rem; min-width: 0;
  display: flex; flex-direction: column; }
.two .chart { margin: 0; }
figcaption { font-size: .9rem; color: var(--quiet); margin-bottom: .7rem; flex: 1; }
figcaption b { color: var(--ink); margin-right: .35rem; }
.plot { position: relative; height: 13rem; margin-left: 3.1rem; touch-action: pan-y; }
.wide .plot { height: 19rem; }
.low .plot { height: 8.5rem; }
.plot svg { display: block; width: 100%; height: 100%; overflow: hidden; border-bottom: 1px solid var(--quiet); }
.plot span { position: absolute; font-size: .78rem; color: var(--quiet); white-space: nowrap; line-height: 1;
  font-variant-numeric: tabular-nums; }
.left span { right: calc(100% + .5rem); transform: translateY(-50%); }
.below span { top: calc(100% + .45rem); transform: translateX(-50%); }
.label { font-size: .78rem; color: var(--quiet); text-align: center; margin: 1.45rem 0 0 3.1rem; line-height: 1.2; }
path { fill: none; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.grid { stroke: var(--hair); }
.line, .faint, .ahead, .dot { stroke: color-mix(in srgb, var(--c), #fff var(--lift)); }
.line { stroke-width: 2.2px; }
.faint { stroke-width: 1.6px; opacity: .65; }
.ahead { stroke-width: 4.5px; opacity: .75; }
.truth { stroke: var(--ink); stroke-width: 1.5px; }
.refit { stroke: var(--quiet); opacity: .35; }
.band { fill: color-mix(in srgb, var(--c), #fff var(--lift)); stroke: none; opacity: .15; }
.band.inner { opacity: .22; }
.dot { stroke-width: 8px; stroke-linecap: round; }
.hidden { display: none; }
.rule { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--quiet); opacity: .6; pointer-events: none; }
.tip { position: absolute; top: .3rem; z-index: 1; pointer-events: none; background: var(--paper); font-size: .8rem;
  border: 1px solid var(--hair); border-radius: .4rem; padding: .3rem .55rem; box-shadow: 0 2px 10px #0003;
  white-space: nowrap; font-variant-numeric: tabular-nums; }
.tip div { display: flex; justify-content: space-between; gap: .9rem; }
.tip div div { align-items: center; justify-content: flex-start; gap: 0; }
.tip i { display: inline-block; width: .6rem; height: .6rem; border-radius: 50%; margin-right: .4rem;
  background: color-mix(in srgb, var(--c), #fff var(--lift)); }
.legend { display: flex; flex-wrap: wrap; gap: .5rem; margin: .6rem 0 1rem; }
.legend button { font: inherit; font-size: .9rem; color: inherit; background: var(--card); border: 1px solid var(--hair);
  border-radius: 2rem; padding: .25rem .8rem; cursor: pointer; display: flex; align-items: center; gap: .5rem; }
.legend button[aria-pressed=false] { opacity: .45; text-decoration: line-through; }
.legend svg { width: 24px; height: 6px; }
.video { display: block; width: 100%; margin-top: 1rem; border-radius: .6rem; background: var(--card); }
@media (max-width: 34rem) {
  main { padding: 1.4rem .8rem 3rem; } h1 { font-size: 1.5rem; }
  .facts { grid-template-columns: 1fr 1fr; gap: .5rem; } .wide .plot { height: 14rem; }
  .chart { padding: .7rem .8rem .6rem .5rem; } }
@media print { details { break-inside: avoid; } .chart { break-inside: avoid; } }
"""

SCRIPT = """
'use strict';
const number = v => Math.abs(v) >= 1e4 ? Math.round(v).toLocaleString('en') :
  v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(1) : String(+v.toPrecision(4));
const element = (parent, name, kind, text) => {
  const made = parent.appendChild(document.createElement(name));
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
};
for (const plot of document.querySelectorAll('.plot')) {
  const value = (name, at) => {
    const [low, high, log] = plot.dataset[name].split(' ').map(Number);
    return log ? low * (high / low) ** at : low + (high - low) * at;
  };
  const curves = [...plot.querySelectorAll('path[data-name]')].map(path => {
    const points = path.getAttribute('d').split(/[ML]/).slice(1).map(p => p.split(' ').map(Number));
    return {path, points, reach: 12 + 500 / Math.max(1, points.length)};
  }).filter(curve => curve.points.length);
  if (!curves.length) continue;
  const rule = element(plot, 'div', 'rule hidden'), tip = element(plot, 'div', 'tip hidden');
  const leave = () => { rule.classList.add('hidden'); tip.classList.add('hidden'); };
  const move = event => {
    const box = plot.querySelector('svg').getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * 1000, y = (event.clientY - box.top) / box.height * 1000;
    const near = [];
    for (const {path, points, reach} of curves) {
      if (path.classList.contains('hidden')) continue;
      const point = points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
      if (Math.abs(point[0] - x) <= reach) near.push({path, point});
    }
    if (!near.length) return leave();
    near.sort((a, b) => Math.abs(a.point[1] - y) - Math.abs(b.point[1] - y));
    const at = near[0].point[0];
    tip.replaceChildren();
    element(tip, 'div', '', plot.parentNode.querySelector('.label').textContent.split(',')[0] + ' ' +
      number(Math.round(value('x', at / 1000))));
    for (const {path, point} of near.slice(0, 8).sort((a, b) => a.point[1] - b.point[1])) {
      const row = element(tip, 'div'), name = element(row, 'div');
      element(name, 'i').style.setProperty('--c', getComputedStyle(path).getPropertyValue('--c'));
      name.append(path.dataset.name);
      element(row, 'b', '', number(value('y', 1 - point[1] / 1000)));
    }
    rule.style.left = at / 10 + '%';
    tip.style.left = at < 500 ? 'calc(' + at / 10 + '% + .6rem)' : 'auto';
    tip.style.right = at < 500 ? 'auto' : 'calc(' + (100 - at / 10) + '% + .6rem)';
    rule.classList.remove('hidden'); tip.classList.remove('hidden');
  };
  plot.addEventListener('pointermove', move);
  plot.addEventListener('pointerdown', move);
  plot.addEventListener('pointerleave', leave);
}
for (const button of document.querySelectorAll('.legend button'))
  button.addEventListener('click', () => {
    const shown = button.getAttribute('aria-pressed') !== 'true';
    button.setAttribute('aria-pressed', shown);
    for (const path of button.closest('.env').querySelectorAll('.plot [data-group="' + button.dataset.group + '"]'))
      path.classList.toggle('hidden', !shown);
  });
"""
