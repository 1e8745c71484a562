"""The part of a report about a single run: facts, curves, forecasts of its belief, and its video."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from rpsp.data.files import read_bytes
from rpsp.data.scaling import OneHot
from rpsp.errors import FileFormatError, RpspError
from rpsp.experiments.agents import load
from rpsp.experiments.diagnosis import diagnose
from rpsp.experiments.figures.appearance import COLOURS, CYCLE, Style, style
from rpsp.experiments.figures.forecasts import Fan, agent_fan
from rpsp.experiments.files import Say, read_json
from rpsp.experiments.report.html import (
    ERROR,
    STEPS,
    Line,
    Scale,
    across,
    area,
    chart,
    steps_axis,
    up,
    warnings,
)
from rpsp.experiments.resolve import read_config
from rpsp.experiments.results import Result
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.run_writer import summary
from rpsp.experiments.sensor_names import observation_names
from rpsp.experiments.words import clock, mean_with_error, number
from rpsp.training.loop import Record

MOST_PANELS = 12
"""Maximum number of observations whose forecasts are shown."""
EMBEDDED = 4_000_000
"""Videos smaller than this many bytes are embedded in the page. Larger ones are linked."""
VIDEOS = {".gif": "image/gif", ".mp4": "video/mp4", ".webm": "video/webm"}


def one_run(result: Result, doubts: list[str]) -> tuple[str, str, list[str]]:
    """Return title, lead and body."""
    metrics = RunDirectory(result.source).metrics()
    records, known = iterations(metrics), _optional(result.source / "results.json").get("evaluation")
    evaluation = known if isinstance(known, dict) else {}
    try:
        facts = _facts(result, summary(result.settings, result.source, metrics), evaluation)
    except (KeyError, TypeError) as error:
        raise FileFormatError(
            f"{result.source / 'metrics.jsonl'}: is not from an `rpsp train` run ({error})."
        ) from error
    done = f"{facts['environment steps']} environment steps"
    done += f" in {facts['iterations']} iterations" if result.finished else f", {facts['iterations']}"
    lead = escape(f"{done}.")
    if evaluation:
        how = "deterministic " if evaluation.get("deterministic") else ""
        lead = escape(f"{done}; then {evaluation.get('episodes')} {how}evaluation episodes: ")
        lead += f"<b>{escape(facts['evaluation'])}</b>."
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    failure = [f"Failed: {result.failure}"] if result.failure else []
    parts = [
        warnings([*failure, *doubts]),
        f'<dl class="facts">{cells}</dl>',
        _training(records, result.method),
        _diagnosis(result.source),
    ]
    return f"{result.task}, {result.method}", lead, parts


def _optional(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file, or an empty dictionary if the file does not exist."""
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: holds no JSON object.")
    return content


def _facts(result: Result, came_to: dict[str, Any], evaluation: dict[str, Any]) -> dict[str, str]:
    """Return the facts at the top of the page as text, by name."""
    done = len(result.returns)
    return {
        "seed": str(result.seed),
        "iterations": f"{done}" if result.finished else f"{done} of {result.iterations}, unfinished",
        "evaluation": mean_with_error(evaluation.get("mean_return"), evaluation.get("std_return")),
        "final return": number(came_to["final_return"]),
        "best return": number(came_to["best_return"]),
        "area under curve": number(came_to["area_under_curve"]),
        "environment steps": f"{came_to['samples']:,}",
        "time": clock(result.seconds),
        "dropped episodes": f"{came_to['dropped_episodes']:,}",
        "skipped steps": f"{came_to['skipped_steps']:,.0f}",
    }


def _diagnosis(directory: Path) -> str:
    """Return what `rpsp diagnose` finds, as a section."""
    try:
        found = diagnose(directory)
    except RpspError as error:
        return f'<h2>Diagnosis</h2><p class="note">None: {escape(str(error))}</p>'
    if not found.findings:
        return f"<h2>Diagnosis</h2><p>Nothing wrong found: {escape(found.summary)}</p>"
    first, *others = found.findings
    parts = [
        f"<p><b>{escape(first.title)}:</b> {escape(first.problem)} Try: {escape(first.remedy)}</p>",
        f"<p><code>{escape(first.command)}</code></p>",
        *(f'<p class="note">Also: {escape(finding.problem)}</p>' for finding in others),
    ]
    return f"<h2>Diagnosis</h2>{''.join(parts)}"


def _training(records: Sequence[Record], method: str) -> str:
    """Return the charts of return, prediction error and policy change."""
    if not records:
        return '<p class="note">No iteration is finished yet.</p>'
    # One run needs no dashes to be told from others.
    steps, look = _column(records, "total_samples"), Style(style(method).colour)

    def line(name: str, label: str, own: Style = look, kind: str = "line", error: list[float] | None = None) -> Line:
        return Line(label, 0, own, steps, _column(records, name), kind, error)

    x = steps_axis([steps])
    returns = line("mean_return", "mean return", error=_column(records, "std_return"))
    learning = chart(
        "Return",
        [returns],
        x,
        Scale.around(returns.y),
        note="mean over the episodes of an iteration, with exploration noise; the band is their standard deviation",
        label=STEPS,
        kind="wide",
    )
    persistence = line("persistence_error", "persistence", Style(COLOURS["persistence"]), "faint")
    errors = [persistence, line("prediction_error", "the belief")]
    refitted = "".join(f'<path class="refit" d="M{across(x.at(at))} 0V1000"/>' for at in refits(records))
    prediction = chart(
        "Prediction error",
        errors,
        x,
        Scale.around((v for line in errors for v in line.y), log=True),
        marks=refitted,
        note=ERROR + ("; grey lines: refits of the filter" if refitted else ""),
        label="environment steps",
    )
    moved = line("whole_kl", "KL")
    kl = chart(
        "Policy change",
        [moved],
        x,
        Scale.around(moved.y, zero=True),
        note="KL divergence of filter and policy together, old to new, per iteration",
        label="environment steps",
    )
    return f'{learning}<div class="two">{prediction}{kl}</div>'


EXPECTS = (
    "Coloured lines are forecasts of the next observations, given the observations up to the dot and the actions after "
    "it. The thin line is what happened. The bands contain 50 % and 90 % of the errors in five episodes."
)
LATER = "Shown when the runs have ended, or by <code>rpsp report</code> without <code>--watch</code>."


def belief_section(directory: Path, say: Say) -> str:
    """Return charts of forecasts of the last checkpoint's belief, compared with what happened."""
    damaged: list[str] = []
    try:
        config = read_config(directory)
        found, symbols, known = _forecasts(directory, getattr(config.settings, "future", 5), damaged.append)
    except RpspError as error:
        return f'<p class="note">No forecasts: {escape(str(error))}</p>'
    for sentence in damaged:
        say(sentence)
    notes = "".join(f'<p class="note">{escape(sentence)}</p>' for sentence in damaged)
    if symbols:
        return f'{notes}<div class="two">{_symbol_panel(found)}</div>'
    names = known or observation_names(config, found.truth.shape[1])
    colour = style(config.method).colour
    panels = "".join(_fan_panel(found, dim, name, colour) for dim, name in enumerate(names[:MOST_PANELS]))
    return f'{notes}<div class="two">{panels}</div>'


def _forecasts(directory: Path, horizon: int, say: Say) -> tuple[Fan, bool, list[str] | None]:
    """Return forecasts where an episode moves most, whether the observations are symbols, and their names if known."""
    agent = load(directory, say=say)
    # With exploration noise, because deterministic episodes may show little movement. The horizon is the one that the
    # state is fitted to predict, if it is fitted to predict one.
    episodes = agent.evaluate(5, deterministic=False).episodes
    found = agent_fan(agent, episodes, horizon)
    return found, isinstance(agent.scaling, OneHot), agent.coordinate_names


def _fan_panel(fan: Fan, dim: int, name: str, colour: str) -> str:
    """Return the chart of forecasts of one observation."""
    horizon, last = fan.predicted.shape[1], min(fan.first + fan.length, len(fan.truth)) - 1
    truth, times = fan.truth[:, dim], np.arange(fan.first, last + 1)
    shown = truth[times]
    x, y = Scale(fan.first, max(last, fan.first + 1)), Scale(*_panel_range(fan, dim, shown))
    marks, steps, expected = [], [], []
    for t in fan.moments:
        ahead = (t + np.arange(horizon + 1.0)).tolist()
        centre = np.append(truth[t], fan.predicted[t, :, dim])
        for low, high, kind in ((0, 3, "band"), (1, 2, "band inner")):
            lower, upper = ((centre + np.append(0, fan.bands[i, t, :, dim])).tolist() for i in (low, high))
            marks.append(area(ahead, lower, upper, x, y, colour, kind))
        steps += [*ahead, math.nan]
        expected += [*centre.tolist(), math.nan]
    dots = "".join(
        f'<path class="dot" style="--c:{colour}" d="M{across(x.at(float(t)))} {up(y.at(float(truth[t])))}h0"/>'
        for t in fan.moments
    )
    lines = [
        Line("forecast", 0, Style(colour), steps, expected, "ahead"),
        Line("what happened", 0, Style("var(--ink)"), times.astype(float).tolist(), shown.tolist(), "truth"),
    ]
    return chart(name, lines, x, y, marks="".join(marks) + dots, label="step", kind="low")


def _panel_range(fan: Fan, dim: int, shown: np.ndarray) -> tuple[float, float]:
    """Return a range of values that contains what happened, the forecasts, and 90 % of the ends of their bands.

    Forecasts that diverge do not count beyond three times the range of what happened.
    """
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    forecasts = fan.predicted[list(fan.moments), :, dim]
    ends = np.concatenate([forecasts + fan.bands[i][list(fan.moments), :, dim] for i in (0, 3)])
    if ends.size:
        far = 3 * max(high - low, float(np.nanmedian(np.abs(ends - np.nanmedian(ends)))), 1e-6)
        bottom = min(float(np.nanmin(forecasts)), float(np.nanquantile(ends, 0.05)))
        top = max(float(np.nanmax(forecasts)), float(np.nanquantile(ends, 0.95)))
        low, high = max(min(low, bottom), low - far), min(max(high, top), high + far)
    margin = 0.05 * max(high - low, 1e-6)
    return low - margin, high + margin


def _symbol_panel(fan: Fan) -> str:
    """Return the chart of predicted probabilities of symbols."""
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
    note = "darker is more probable; dots are the symbols that occurred"
    return chart("Symbols", [], x, y, marks=cells + dots, note=note, label="step")


def video_section(directory: Path, beside: Path) -> str:
    """Return the newest video of a run, embedded or linked."""
    files = [f for f in directory.glob("video/*") if f.suffix in VIDEOS and f.is_file()]
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


def _column(records: Sequence[Record], name: str) -> list[float]:
    """Return one quantity of all records. Missing values are NaN."""
    values = (record.get(name) for record in records)
    return [float(v) if isinstance(v, int | float) else math.nan for v in values]


def iterations(metrics: Sequence[Record]) -> list[Record]:
    """Return the records of iterations, without the record of the initialisation."""
    return [record for record in metrics if "iteration" in record]


def refits(records: Sequence[Record]) -> list[float]:
    """Return the numbers of environment steps at which a refitted filter started to act."""
    return [float(r["total_samples"] - r["samples"]) for r in records if r.get("refit_accepted") == 1.0]
