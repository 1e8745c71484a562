"""The report page of a study: parallel coordinates, importances, the comparison on new seeds, and all trials."""

from __future__ import annotations

import io
import json
import math
import re
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from rpsp.data.files import write_bytes
from rpsp.experiments.figures.appearance import styled, subplots
from rpsp.experiments.labels import word
from rpsp.experiments.report.html import Cell, frame, table
from rpsp.experiments.tuning.spaces import Range, Values
from rpsp.experiments.tuning.study import Study
from rpsp.experiments.words import mean_with_error, number

PAGE = "report.html"


def write_page(study: Study, compared: dict[str, Any] | None) -> Path:
    """Write the report page of a study to its directory.

    Args:
        study: the study.
        compared: the comparison on new seeds, as `Study.verify` returns it.
    """
    found, config = study.complete(), study.plan.config
    states = [t.state.name.lower() for t in study.study.trials]
    lead = f"<p>{escape(config.env or '')}, {escape(config.method)}: {len(states)} trials"
    for name in ("complete", "pruned", "fail"):
        lead += f", {states.count(name)} {name}" if name in states else ""
    lead += f"; {len(study.plan.seeds)} seeds a trial, {study.stages[-1]} iterations.</p>"
    parts = [_best(study, compared)] if found else []
    if len(found) > 1:
        parts.append(
            "<h2>Settings and returns</h2><p>One line per trial, from its setting to its return; trials that were pruned "
            f"are pale.</p>{_drawn(coordinates(study))}"
        )
    if importances := study.importances():
        parts.append(
            "<h2>What matters</h2><p>Share of the variance of returns that a setting explains (PED-ANOVA, of all trials "
            f"that were not pruned).</p>{_drawn(bars(importances))}"
        )
    parts.append(f"<h2>Trials</h2>{_trials(study)}")
    path = study.out / PAGE
    write_bytes(path, frame(f"Tuning {config.method} on {config.env}", lead, "\n".join(parts)).encode())
    return path


def _best(study: Study, compared: dict[str, Any] | None) -> str:
    best = study.complete()[0]
    usual = next((t for t in study.complete() if t.user_attrs.get("default")), None)
    text = f"<h2>The best setting</h2><p>Trial {best.number}: return {number(best.value)}"
    text += f", the default setting {number(usual.value)}" if usual is not None else ""
    text += ". The best of many is partly luck: compare on new seeds.</p>"
    if compared is not None:
        text += (
            f"<p>On {len(compared['seeds'])} new seeds: best {number(compared['best'])}, default "
            f"{number(compared['default'])}, difference {mean_with_error(compared['difference'], compared['error'])} "
            "(standard error).</p>"
        )
    file = study.out / "best.toml"
    return text + (f"<pre>{escape(file.read_text(encoding='utf8'))}</pre>" if file.exists() else "")


def _trials(study: Study) -> str:
    names = list(study.plan.space)
    rows = []
    for trial in study.study.trials:
        value = _latest(trial)
        state = "default" if trial.user_attrs.get("default") else trial.state.name.lower()
        setting = study.setting(trial) if trial.params else {}
        cells = [Cell(word(_text(setting.get(name))), _sort_key(setting.get(name))) for name in names]
        rows.append([Cell(str(trial.number), trial.number), state, Cell(number(value), value), *cells])
    return table(["trial", "state", "return", *names], rows, sortable=True)


def _latest(trial: Any) -> float:
    """Return the value of a trial, or that of its last stage."""
    reached = trial.intermediate_values
    return trial.value if trial.value is not None else (reached[max(reached)] if reached else math.nan)


def _text(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _sort_key(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _drawn(figure: Figure) -> str:
    """Return a figure as SVG within the page."""
    with io.StringIO() as file:
        figure.savefig(file, format="svg", metadata={"Date": None})
        text = re.sub("<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    return f'<div class="scroll">{text[text.index("<svg") :]}</div>'


def _places(values: Values, chosen: list[Any]) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Return the heights of values on an axis from 0 to 1, and the labels of the axis."""
    if isinstance(values, Range):
        move = np.log if values.log else np.asarray
        low, high = float(move(values.low)), float(move(values.high))
        at = [
            (float(move(v)) - low) / (high - low) if v is not None and (v > 0 or not values.log) else 0.0
            for v in chosen
        ]
        return np.clip(at, 0, 1), [(0.0, f"{values.low:.3g}"), (1.0, f"{values.high:.3g}")]
    known = [json.dumps(value) for value in values.values]
    heights = dict(zip(known, np.linspace(0, 1, len(known)), strict=True))
    labels = [(float(height), word(value)) for height, value in zip(heights.values(), values.values, strict=True)]
    return np.array([heights.get(json.dumps(v), 0.0) for v in chosen]), labels


@styled
def coordinates(study: Study) -> Figure:
    """Draw the settings and the return of every trial as a line over parallel axes."""
    trials = [t for t in study.study.trials if t.params and (t.value is not None or t.intermediate_values)]
    settings = [study.setting(t) for t in trials]
    names = list(study.plan.space)
    figure, ((axes,),) = subplots(size=(max(6.0, 1.2 * len(names) + 2), 4.2))
    done = np.array([t.state.name == "COMPLETE" for t in trials])
    returns = np.array([_latest(t) for t in trials])
    low, high = returns[done].min(), returns[done].max()
    heights = []
    for x, name in enumerate(names):
        at, labels = _places(study.plan.space[name], [s[name] for s in settings])
        heights.append(at)
        axes.axvline(x, color="0.8", lw=1)
        for height, label in labels:
            axes.text(x + 0.03, height, label, fontsize=8, va="center", color="0.35")
    heights.append(np.clip((returns - low) / ((high - low) or 1.0), 0, 1))
    axes.axvline(len(names), color="0.8", lw=1)
    for height, label in ((0.0, number(float(low))), (1.0, number(float(high)))):
        axes.text(len(names) + 0.03, height, label, fontsize=8, va="center", color="0.35")
    lines, colours = np.array(heights).T, colormaps["viridis"]
    for i in np.argsort(heights[-1]):
        look = (
            {"color": colours(0.9 * heights[-1][i]), "alpha": 0.85, "lw": 1.4}
            if done[i]
            else {"color": "0.88", "lw": 0.8}
        )
        axes.plot(range(len(names) + 1), lines[i], zorder=2 if done[i] else 1, **look)
    axes.set_xticks(range(len(names) + 1), [*names, "return"], rotation=30, ha="right", fontsize=9)
    axes.set_yticks([])
    axes.set_xlim(-0.1, len(names) + 0.5)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure


@styled
def bars(importances: dict[str, float]) -> Figure:
    """Draw the importance of every setting as a bar."""
    names = sorted(importances, key=lambda name: importances[name])
    figure, ((axes,),) = subplots(size=(6.0, 0.6 + 0.3 * len(names)))
    axes.barh(range(len(names)), [importances[name] for name in names], color="#0072B2", height=0.6)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("share of the variance")
    return figure
