"""Write a report about all runs in some directories."""

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
from rpsp.experiments.locks import is_locked
from rpsp.experiments.report.html import (
    folded,
    frame,
    table,
)
from rpsp.experiments.report.many_runs import many_runs, run_name
from rpsp.experiments.report.one_run import EXPECTS, LATER, belief_section, one_run, video_section
from rpsp.experiments.results import Result, read_results

DETAILED = 4
"""Forecasts and videos are shown for at most this many runs, because each takes seconds."""


def write_report(
    directories: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    detailed: bool = True,
    refresh: float | None = None,
    say: Say = lambda line: None,
) -> tuple[Path, list[Result]]:
    """Write a report about all runs in and below some directories.

    Args:
        directories: run directories, result files, or directories that contain them.
        out: path of the page. Default: `report.html` in the innermost directory that contains all of `directories`.
        detailed: whether to include forecasts, which take seconds to compute.
        refresh: if given, the browser reloads the page after this many seconds.
        say: callback for messages.

    Returns:
        The path of the page and the results shown on it.

    Raises:
        UsageError: if no directory is given, or if `out` is a directory.
        FileFormatError: if there is no run to show.
    """
    if not directories:
        raise UsageError("directories: none given; name the run directories, as in `rpsp report runs/demo`.")
    path = _beside(directories) if out is None else Path(out)
    if path.is_dir():
        raise UsageError(f"out: {str(path)!r} is a directory; give the name of the page, as in report.html.")
    results, doubts = read_results(directories)
    if not results:
        why = " ".join(doubts) or "there is no run of `rpsp train` that has finished its initialisation."
        raise FileFormatError(f"{', '.join(map(str, directories))}: {why}")
    write_bytes(path, page(results, doubts, path.parent, detailed, refresh, say).encode())
    return path, results


def watch_report(
    directories: Sequence[str | Path], out: str | Path | None, every: float, say: Say
) -> tuple[Path, list[Result]]:
    """Rewrite a report at regular intervals until all runs have ended.

    The last version of the page includes forecasts and does not reload itself.

    Args:
        directories: run directories, result files, or directories that contain them.
        out: path of the page. See `write_report`.
        every: seconds between two versions, at least 0.1.
        say: callback for messages.

    Returns:
        The path of the page and the results shown on it.
    """
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
                words = f"wrote {path}: {len(results)} runs started, {finished} finished, {failed} failed"
            except FileFormatError as error:
                words = f"nothing to show yet: {error}"
            if words != said:  # print a line only when something has changed
                say(f"{time.strftime('%H:%M:%S')}  {words}")
                said = words
            if ended:
                return write_report(directories, out, say=say)
            time.sleep(every)
    except KeyboardInterrupt as interrupt:
        try:
            path, _ = write_report(directories, out, detailed=False)  # without automatic reload
            interrupt.add_note(f"{path} shows how far the runs are.")
        except RpspError:
            interrupt.add_note("There was nothing to show yet.")
        raise


def _at_work(directories: Sequence[str | Path], results: Sequence[Result]) -> bool:
    """Return whether a process has locked one of the directories, or one between them and the runs, as a sweep does."""
    places = {Path(directory) for directory in directories}
    for result in results:
        above = [result.source, *result.source.parents]
        places.update(above[: next((i for i, path in enumerate(above) if path in places), 0)])
    return any(map(is_locked, places))


def _beside(directories: Sequence[str | Path]) -> Path:
    """Return the default path of the page, relative to the working directory where possible."""
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
    """Return the HTML of the page. Links are relative to the directory `beside`."""
    alone = len(results) == 1 and results[0].source.is_dir()
    title, lead, parts = one_run(results[0], doubts) if alone else many_runs(results, doubts)
    if refresh is not None:
        lead += f"<br>As of {time.strftime('%H:%M:%S')}; reloads every {refresh:g} s."
    runs = [result for result in results if result.source.is_dir()]
    if 0 < len(runs) <= DETAILED:
        parts.append(f'<h2>Forecasts of the belief</h2><p class="note">{EXPECTS if detailed else LATER}</p>')
        for run in runs if detailed else []:
            heading = "" if alone else f"<h3>{escape(run_name(run))}</h3>"
            parts.append(f"{heading}{belief_section(run.source, say)}{video_section(run.source, beside)}")
    parts.append(_differences("Settings", results, "settings", "given values and defaults"))
    parts.append(
        _differences("Versions", results, "versions", "results are reproducible bit by bit only with the same versions")
    )
    command = results[0].source / "command.txt"
    if alone and command.exists():
        made = escape(read_bytes(command).decode(errors="replace").strip())
        parts.append(f'<p class="note made">Command: <code>{made}</code></p>')
    return frame(title, lead, "\n".join(filter(None, parts)), refresh)


def _differences(title: str, results: Sequence[Result], what: str, about: str) -> str:
    """Return a table of settings or versions: common values once, differing values as columns.

    A setting differs if the methods that have it differ in its value.
    """

    def values(name: str, runs: Sequence[Result]) -> list[str]:
        entries = [getattr(run, what) for run in runs]
        return list(dict.fromkeys(word(found.get(name)) for found in entries if what == "versions" or name in found))

    groups = grouped(results, lambda r: (r.task, r.method))
    names = dict.fromkeys(name for result in results for name in getattr(result, what) if name not in UNSHOWN)
    found = {name: values(name, results) for name in names}
    common = [[name, words[0]] for name, words in found.items() if len(words) == 1]
    unlike = [name for name, words in found.items() if len(words) > 1 and name not in LABELS]
    body = table(("name", "value"), common, kind="pairs") if common else ""
    if unlike:
        rows = [[*group, *(" · ".join(values(name, runs)) or "–" for name in unlike)] for group, runs in groups.items()]
        body = f"<h3>Different</h3>{table(('task', 'method', *unlike), rows)}<h3>In common</h3>{body}"
    return folded(title, about + (f"; {len(unlike)} differ" if unlike else ""), body) if names else ""


UNSHOWN = {"chosen", "json", "quiet", "out", "seeds", "config", "compilation_cache"}
"""Settings that are not shown because they do not affect the result."""
LABELS = {"env", "method", "seed"}
"""Settings that are already part of a run's name."""
