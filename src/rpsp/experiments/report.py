"""Runs to one HTML page that needs nothing else: no network, no fonts, no libraries. Never trains.

A run alone gets its facts, its curves, forecasts of its belief and its video. Of several the page shows what `rpsp compare`
says of them, mean curves task by task, what failed, and where settings and versions differ.
"""

from __future__ import annotations

import base64
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from rpsp.data.files import read_bytes, write_bytes
from rpsp.data.scaling import OneHot
from rpsp.errors import FileFormatError, RpspError, UsageError
from rpsp.experiments.agents import load
from rpsp.experiments.comparison import Comparison, comparable, compare, interval_text, mean_curve, row_texts
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.figures import COLOURS, CYCLE, Fan, Style, agent_fan, grouped, iterations, refits, style, styles
from rpsp.experiments.files import Say, read_json
from rpsp.experiments.report_page import (
    Cell,
    Line,
    Scale,
    across,
    area,
    chart,
    folded,
    frame,
    swatch,
    table,
    toggle,
    up,
)
from rpsp.experiments.resolve import read_config
from rpsp.experiments.results import Result, read_results, word
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.run_writer import summary
from rpsp.experiments.words import clock, mean_with_error, number
from rpsp.experiments.workers import is_locked
from rpsp.training.loop import Record

DETAILED = 4  # runs of which forecasts and videos are shown; of more none are, for each takes seconds
SHOWN_SINGLES = 12  # runs of a task that are drawn behind their means at once
MOST_SINGLES = 200  # runs of a task that are drawn at all
MOST_POINTS = 250  # of a curve
MOST_LISTED = 10  # sentences, or runs, that are listed unfolded
MOST_PANELS = 12  # of the dimensions of an observation
EMBEDDED = 4_000_000  # bytes of video that the page carries itself
VIDEOS = {".gif": "image/gif", ".mp4": "video/mp4", ".webm": "video/webm"}


def write_report(
    directories: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    detailed: bool = True,
    refresh: float | None = None,
    say: Say = lambda line: None,
) -> tuple[Path, list[Result]]:
    """Write the page of all runs in and under these directories; where it is, and what they came to.

    Unless `out` says where, it is report.html in the innermost directory that holds them all. What takes seconds, the
    forecasts, is only there if `detailed`. With `refresh` the page loads itself again after so many seconds.
    """
    if not directories:
        raise UsageError("directories: none is given; name the run directories, as in `rpsp report runs/demo`.")
    path = _beside(directories) if out is None else Path(out)
    if path.is_dir():
        raise UsageError(f"out: {str(path)!r} is a directory; give the name of the page, as in report.html.")
    results, doubts = read_results(directories)
    if not results:
        why = " ".join(doubts) or "no run of `rpsp train` is there that has come past its initialisation."
        raise FileFormatError(f"{', '.join(map(str, directories))}: {why}")
    write_bytes(path, page(results, doubts, path.parent, detailed, refresh, say).encode())
    return path, results


def watch_report(
    directories: Sequence[str | Path], out: str | Path | None, every: float, say: Say
) -> tuple[Path, list[Result]]:
    """Write the page again and again, until every run has ended and nothing is at work in the directories."""
    if not 0.1 <= every < math.inf:
        raise UsageError(f"every: {every:g} is not a number of seconds ≥ 0.1.")
    said = ""
    try:
        while True:
            ended = False
            try:
                path, results = write_report(directories, out, detailed=False, refresh=every)
                finished, failed = sum(r.finished for r in results), sum(bool(r.failure) for r in results)
                ended = finished + failed == len(results) and not _at_work(directories, results)
                words = f"wrote {path}: {len(results)} runs begun, {finished} finished, {failed} failed"
            except FileFormatError as error:
                words = f"nothing to show yet: {error}"
            if words != said:  # a line for what is new, not for every writing
                say(f"{time.strftime('%H:%M:%S')}  {words}")
                said = words
            if ended:
                return write_report(directories, out, say=say)
            time.sleep(every)
    except KeyboardInterrupt as interrupt:
        try:
            path, _ = write_report(directories, out, detailed=False)  # one that does not load itself again
            interrupt.add_note(f"{path} shows how far the runs are.")
        except RpspError:
            interrupt.add_note("there was nothing to show yet.")
        raise


def _at_work(directories: Sequence[str | Path], results: Sequence[Result]) -> bool:
    """Whether a process holds one of the directories, or one between them and the runs, as a sweep does."""
    places = {Path(directory) for directory in directories}
    for result in results:
        above = [result.source, *result.source.parents]
        places.update(above[: next((i for i, path in enumerate(above) if path in places), 0)])
    return any(map(is_locked, places))


def _beside(directories: Sequence[str | Path]) -> Path:
    """report.html in the innermost directory that holds all of these, as one would type it here."""
    inside = [Path(path).absolute().parent if Path(path).is_file() else Path(path).absolute() for path in directories]
    common = Path(os.path.commonpath(inside)) / "report.html"
    return common.relative_to(Path.cwd()) if common.is_relative_to(Path.cwd()) else common


# ---------------------------------------------------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------------------------------------------------


def page(
    results: list[Result],
    doubts: list[str],
    beside: Path,
    detailed: bool,
    refresh: float | None = None,
    say: Say = lambda line: None,
) -> str:
    """The whole page; links are relative to the directory `beside`."""
    alone = len(results) == 1 and results[0].source.is_dir()
    title, lead, parts = _one_run(results[0], doubts) if alone else _many_runs(results, doubts)
    if refresh is not None:
        lead += f"<br>As of {time.strftime('%H:%M:%S')}; loads itself again every {refresh:g} s."
    runs = [result for result in results if result.source.is_dir()]
    if 0 < len(runs) <= DETAILED:
        parts.append(f'<h2>What the belief expects</h2><p class="note">{EXPECTS if detailed else LATER}</p>')
        for run in runs if detailed else []:
            heading = "" if alone else f"<h3>{escape(_run_name(run))}</h3>"
            parts.append(f"{heading}{_belief(run.source, say)}{_episode(run.source, beside)}")
    parts.append(_differences("Settings", results, "settings", "what was asked for, and what was filled in"))
    parts.append(_differences("Versions", results, "versions", "bits are promised within one set of them"))
    command = results[0].source / "command.txt"
    if alone and command.exists():
        made = escape(read_bytes(command).decode(errors="replace").strip())
        parts.append(f'<p class="note made">Made by <code>{made}</code></p>')
    return frame(title, lead, "\n".join(filter(None, parts)), refresh)


def _warnings(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    lines = [f"<p>{escape(sentence)}</p>" for sentence in sentences]
    if more := lines[MOST_LISTED:]:
        lines[MOST_LISTED:] = [folded(f"{len(more)} more", "", "".join(more))]
    return f'<div class="warnings" role="note">{"".join(lines)}</div>'


def _run_name(result: Result) -> str:
    return f"{result.task}, {result.method}, seed {result.seed}"


UNSHOWN = {"json", "quiet", "out", "seeds", "config", "compilation_cache"}  # settings that tell nothing about a run
LABELS = {"env", "method", "seed"}  # settings by which runs are named


def _differences(title: str, results: Sequence[Result], what: str, about: str) -> str:
    """Settings, or versions: those in common once, the others as columns."""
    groups = grouped(results, lambda r: (r.task, r.method))
    names = list(dict.fromkeys(name for result in results for name in getattr(result, what) if name not in UNSHOWN))
    values = {name: [word(getattr(result, what).get(name)) for result in results] for name in names}
    common = [[name, values[name][0]] for name in names if len(set(values[name])) == 1]
    unlike = [name for name in names if len(set(values[name])) > 1 and name not in LABELS]
    body = table(("name", "value"), common, kind="pairs") if common else ""
    if unlike:
        rows = [
            [*group, *(" · ".join(dict.fromkeys(word(getattr(r, what).get(name)) for r in runs)) for name in unlike)]
            for group, runs in groups.items()
        ]
        body = f"<h3>Different</h3>{table(('task', 'method', *unlike), rows)}<h3>In common</h3>{body}"
    return folded(title, about + (f"; {len(unlike)} not in common" if unlike else ""), body) if names else ""


def _column(records: Sequence[Record], name: str) -> list[float]:
    values = (record.get(name) for record in records)
    return [float(v) if isinstance(v, int | float) else math.nan for v in values]


def _steps_axis(curves: Iterable[Sequence[float]]) -> Scale:
    return Scale(0.0, max([1.0, *(step for steps in curves for step in steps if abs(step) < 1e300)]))


STEPS = "environment steps, exploration included"
ERROR = "one step ahead, squared, over variance; the pale line is persistence (nothing changes)"


# ---------------------------------------------------------------------------------------------------------------------
# Many runs
# ---------------------------------------------------------------------------------------------------------------------


def _many_runs(results: list[Result], doubts: list[str]) -> tuple[str, str, list[str]]:
    """Title, lead and body."""
    tasks = grouped(results, lambda r: r.task)
    looks = styles(result.method for result in results)
    names = list(tasks) if len(tasks) < 4 else [f"{len(tasks)} tasks"]
    failed = [result for result in results if result.failure]
    begun = [result for result in results if len(result.returns) and not result.failure]
    unfinished = [result for result in results if not result.finished and not result.failure]
    kept, said = comparable(begun)
    found = compare(kept) if kept else None
    parts = [_warnings([*doubts, *said])]
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
    x = _steps_axis(line.x for line in [*singles, *means])
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
            _run_name(r),
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


# ---------------------------------------------------------------------------------------------------------------------
# A run alone
# ---------------------------------------------------------------------------------------------------------------------


def _one_run(result: Result, doubts: list[str]) -> tuple[str, str, list[str]]:
    """Title, lead and body."""
    metrics = RunDirectory(result.source).metrics()
    records, known = iterations(metrics), _optional(result.source / "results.json").get("evaluation")
    evaluation = known if isinstance(known, dict) else {}
    try:
        facts = _facts(result, summary(result.settings, result.source, metrics), evaluation)
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{result.source / 'metrics.jsonl'}: is not of an `rpsp train` run ({error}).") from error
    done = f"{facts['environment steps']} environment steps"
    done += f" in {facts['iterations']} iterations" if result.finished else f", {facts['iterations']}"
    lead = escape(f"{done}.")
    if evaluation:
        how = "deterministic " if evaluation.get("deterministic") else ""
        lead = escape(f"{done}; then {evaluation.get('episodes')} {how}episodes of evaluation: ")
        lead += f"<b>{escape(facts['evaluation'])}</b>."
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    failure = [f"Failed: {result.failure}"] if result.failure else []
    parts = [_warnings([*failure, *doubts]), f'<dl class="facts">{cells}</dl>', _training(records, result.method)]
    return f"{result.task}, {result.method}", lead, parts


def _optional(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing if there is none."""
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: holds no JSON object.")
    return content


def _facts(result: Result, came_to: dict[str, Any], evaluation: dict[str, Any]) -> dict[str, str]:
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


def _training(records: Sequence[Record], method: str) -> str:
    """The curves of a run."""
    if not records:
        return '<p class="note">No iteration is finished yet.</p>'
    steps, look = _column(records, "total_samples"), style(method)

    def line(name: str, label: str, own: Style = look, kind: str = "line", error: list[float] | None = None) -> Line:
        return Line(label, 0, own, steps, _column(records, name), kind, error)

    x = _steps_axis([steps])
    returns = line("mean_return", "mean return", error=_column(records, "std_return"))
    learning = chart(
        "Return",
        [returns],
        x,
        Scale.around(returns.y),
        note="mean over an iteration’s episodes, as the agent explored; the band is their standard deviation",
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
        note=ERROR + ("; grey: the belief was refitted" if refitted else ""),
        label="environment steps",
    )
    moved = line("whole_kl", "KL")
    kl = chart(
        "Policy change",
        [moved],
        x,
        Scale.around(moved.y, zero=True),
        note="KL of filter and policy together, old to new, in one iteration",
        label="environment steps",
    )
    return f'{learning}<div class="two">{prediction}{kl}</div>'


# ---------------------------------------------------------------------------------------------------------------------
# What the belief of a run expects, and its video
# ---------------------------------------------------------------------------------------------------------------------

EXPECTS = (
    "From each dot on the belief sees nothing more and says, given the actions, what the next readings will be (coloured). "
    "The thin line is what happened; the bands hold 50 % and 90 % of the errors in five episodes."
)
LATER = "This is shown once the runs have ended, and by <code>rpsp report</code> without <code>--watch</code>."


def _belief(directory: Path, say: Say) -> str:
    """Forecasts of the last checkpoint's belief in an episode of its own, against what happened."""
    damaged: list[str] = []
    try:
        config = read_config(directory)
        found, symbols = _forecasts(directory, config.settings.future or 5, damaged.append)
    except RpspError as error:
        return f'<p class="note">No forecasts: {escape(str(error))}</p>'
    for sentence in damaged:
        say(sentence)
    notes = "".join(f'<p class="note">{escape(sentence)}</p>' for sentence in damaged)
    if symbols:
        return f'{notes}<div class="two">{_symbol_panel(found)}</div>'
    names = observation_names(config, found.truth.shape[1])
    colour = style(config.method).colour
    panels = "".join(_fan_panel(found, dim, name, colour) for dim, name in enumerate(names[:MOST_PANELS]))
    return f'{notes}<div class="two">{panels}</div>'


def _forecasts(directory: Path, horizon: int, say: Say) -> tuple[Fan, bool]:
    """Forecasts in the middle of an episode, and whether they are of symbols."""
    agent = load(directory, say=say)
    # With the noise of training, without which little happens; as far ahead as a state is fitted to predict.
    episodes = agent.evaluate(5, deterministic=False).episodes
    found = agent_fan(agent, episodes, horizon)
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


def _episode(directory: Path, beside: Path) -> str:
    """The newest video of a run."""
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
