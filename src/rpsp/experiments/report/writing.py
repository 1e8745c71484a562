"""Part of the split of a larger module."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rpsp.data.files import read_bytes, write_bytes
from rpsp.errors import FileFormatError, RpspError, UsageError
from rpsp.experiments.comparison import grouped
from rpsp.experiments.files import Say
from rpsp.experiments.labels import word
from rpsp.experiments.pool import held
from rpsp.experiments.report.html import (
    folded,
    frame,
    table,
)
from rpsp.experiments.report.many_runs import many_runs, run_name
from rpsp.experiments.report.one_run import EXPECTS, LATER, belief_section, one_run, video_section
from rpsp.experiments.results import Result, read_results

DETAILED = 4  # runs of which forecasts and videos are shown; of more none are, for each takes seconds


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
    return any(map(held, places))


def _beside(directories: Sequence[str | Path]) -> Path:
    """report.html in the innermost directory that holds all of these, as one would type it here."""
    inside = [Path(path).absolute().parent if Path(path).is_file() else Path(path).absolute() for path in directories]
    common = Path(os.path.commonpath(inside)) / "report.html"
    return common.relative_to(Path.cwd()) if common.is_relative_to(Path.cwd()) else common


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
    title, lead, parts = one_run(results[0], doubts) if alone else many_runs(results, doubts)
    if refresh is not None:
        lead += f"<br>As of {time.strftime('%H:%M:%S')}; loads itself again every {refresh:g} s."
    runs = [result for result in results if result.source.is_dir()]
    if 0 < len(runs) <= DETAILED:
        parts.append(f'<h2>What the belief expects</h2><p class="note">{EXPECTS if detailed else LATER}</p>')
        for run in runs if detailed else []:
            heading = "" if alone else f"<h3>{escape(run_name(run))}</h3>"
            parts.append(f"{heading}{belief_section(run.source, say)}{video_section(run.source, beside)}")
    parts.append(_differences("Settings", results, "settings", "what was asked for, and what was filled in"))
    parts.append(_differences("Versions", results, "versions", "bits are promised within one set of them"))
    command = results[0].source / "command.txt"
    if alone and command.exists():
        made = escape(read_bytes(command).decode(errors="replace").strip())
        parts.append(f'<p class="note made">Made by <code>{made}</code></p>')
    return frame(title, lead, "\n".join(filter(None, parts)), refresh)


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


UNSHOWN = {"json", "quiet", "out", "seeds", "config", "compilation_cache"}  # settings that tell nothing about a run
LABELS = {"env", "method", "seed"}  # settings by which runs are named
