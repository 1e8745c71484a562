"""`rpsp sweep` and `rpsp paper`."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.table import Table

from rpsp.cli.printing import (
    console,
    count_runs,
    json_row,
    print_comparison,
    print_json,
    speaker,
    table,
    warn,
    write_rows,
)
from rpsp.errors import RpspError, UsageError
from rpsp.experiments import config as configs
from rpsp.experiments.progress import closing_words
from rpsp.experiments.words import clock

if TYPE_CHECKING:
    from rpsp.experiments.paper import Plan
    from rpsp.experiments.results import Result
    from rpsp.experiments.sweeps import Standing, Sweep
    from rpsp.experiments.workers import Beat, Failure


def sweep(config: configs.SweepConfig) -> None:
    """Run the unfinished runs of a sweep file."""
    from rpsp.experiments.sweeps import Sweep  # loads numpy: start-up time of --help

    grid = Sweep.read(config.file)
    out = Path("runs", grid.name) if config.out is None else Path(config.out)
    print_json(config.json, _run_sweep(grid, out, config, _same_command(config, "sweep", config.file)))


def _same_command(config: configs.SweepConfig | configs.PaperConfig, *command: str) -> str:
    """Return the command that continues this one: the flags that were given, except those about output."""
    words = ["rpsp", *command]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in ("file", "figures", "json", "quiet", "dry_run") and value != field.default:
            flag = "--" + field.name.replace("_", "-")
            words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)


def _run_sweep(
    grid: Sweep, out: Path, config: configs.SweepConfig | configs.PaperConfig, command: str
) -> dict[str, Any]:
    """Run the unfinished runs of a sweep.

    Args:
        grid: the runs.
        out: the directory of all run directories.
        config: the settings of the command. With `dry_run`, only say what there is to do.
        command: the command line that continues this sweep.

    Returns:
        The number of runs by state, and the time expected.

    Raises:
        RpspError: if runs failed, with the highest of their exit codes.
    """
    from rpsp.experiments import sweeps  # loads numpy: start-up time of --help

    backend, workers = sweeps.open_backend(config.backend, config.jobs, config.address)
    jobs = sweeps.prepare(grid, out)
    standings = {job.name: sweeps.standing(job) for job in jobs}
    waiting = [job for job in jobs if not standings[job.name].finished]
    results = _describe(list(standings.values()), workers, out, speaker(config.quiet))
    if config.dry_run or not waiting:
        return results
    try:
        with _sweep_view(standings, workers, config.quiet) as show:
            failed = sweeps.carry_out(waiting, out, backend, show)
    except KeyboardInterrupt as interrupt:
        saved = "all finished iterations are saved"
        if config.backend == "ray":
            saved += " except those of the last seconds"
        interrupt.add_note(f"{saved}; go on with: {command}")
        raise
    results["finished"] = len(jobs) - len(failed)
    results["failed"] = {name: failure.sentence for name, failure in failed.items()}
    if failed:
        print_json(config.json, results)
        raise _failed(failed, len(jobs), command)
    speaker(config.quiet)(f"all {count_runs(len(jobs))} are finished; compare them: rpsp compare {out}")
    return results


def _describe(standings: list[Standing], workers: int, out: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Say how many runs are finished and how long the others will take; return the same for `--json`."""
    from rpsp.experiments import sweeps  # loads numpy: start-up time of --help

    finished = sum(each.finished for each in standings)
    interrupted = sum(each.begun and not each.finished for each in standings)
    waiting = len(standings) - finished
    seconds, from_table = sweeps.remaining_seconds(standings, workers)
    say(
        f"{out}: {count_runs(len(standings))}, {finished} finished, {interrupted} interrupted, "
        f"{waiting - interrupted} to begin"
    )
    if waiting:
        source = "measured on runs in that directory"
        if from_table:
            source = f"the speeds of {count_runs(from_table)} guessed: {sweeps.speed_table()['what']}"
        say(f"about {clock(seconds)} on {workers} core{'s' * (workers > 1)} ({source})")
    return {
        "directory": str(out),
        "runs": len(standings),
        "finished": finished,
        "interrupted": interrupted,
        "expected_seconds": round(seconds, 1),
        "expected_from_table": from_table,
        "failed": {},
    }


def _failed(failed: dict[str, Failure], runs: int, command: str) -> RpspError:
    """Return the error of a sweep with failed runs; its notes name each run."""
    error = RpspError(f"{len(failed)} of {count_runs(runs)} failed; try them again with: {command}")
    error.exit_code = max(failure.code for failure in failed.values())
    for name, failure in failed.items():
        error.add_note(f"{name}: {failure.sentence}")
    return error


# ---------------------------------------------------------------------------------------------------------------------
# Progress of a sweep
# ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def _sweep_view(standings: dict[str, Standing], workers: int, quiet: bool) -> Iterator[Callable[[Beat], None]]:
    """Yield a function to call with each beat of a sweep: it prints a line per ended run, on a terminal above a table."""
    progress = _Progress(standings, workers)

    def plain(beat: Beat) -> None:
        if beat.ended:
            progress.print_ended(beat)

    if quiet:
        yield lambda beat: None
    elif not sys.stdout.isatty():
        yield plain
    else:
        shown_at = 0.0
        with Live(console=progress.console, transient=True, auto_refresh=False) as live:

            def show(beat: Beat) -> None:
                nonlocal shown_at
                if not beat.ended and time.monotonic() < shown_at + 1:
                    return
                progress.print_ended(beat)
                live.update(progress.working(beat), refresh=True)
                shown_at = time.monotonic()

            yield show


class _Progress:
    """Shows the runs of a sweep while they train.

    Args:
        standings: the state of each run by its name; kept up to date.
        workers: runs at a time, for the remaining time.
    """

    def __init__(self, standings: dict[str, Standing], workers: int) -> None:
        self.standings, self.workers, self.console = standings, workers, console()

    def print_ended(self, beat: Beat) -> None:
        """Read the state of the runs again, and print a line for each run that has ended."""
        from rpsp.experiments.sweeps import standing  # loads numpy: start-up time of --help

        for job in (*beat.working, *(job for job, _ in beat.ended)):
            self.standings[job.name] = standing(job)
        for job, failure in beat.ended:
            words = closing_words(job.directory) if failure is None else f"failed: {failure.sentence}"
            self.console.print(f"{job.name}: {words}  ({self._summary()})", markup=False, soft_wrap=True)

    def working(self, beat: Beat) -> Table:
        """Return a table of the runs that are being trained."""
        shown = table(self._summary(), "iterations", "return", "ETA")
        for each in (self.standings[job.name] for job in beat.working):
            left = "" if each.speed is None else clock(each.left * each.speed.iteration_seconds)
            last = "" if each.last_return is None else f"{each.last_return:.1f}"
            shown.add_row(each.job.name, f"{each.done}/{each.job.config.iterations}", last, left)
        return shown

    def _summary(self) -> str:
        from rpsp.experiments.sweeps import remaining_seconds  # loads numpy: start-up time of --help

        finished = sum(each.finished for each in self.standings.values())
        eta = clock(remaining_seconds(list(self.standings.values()), self.workers)[0])
        return f"{finished}/{len(self.standings)} runs, ETA {eta}"


# ---------------------------------------------------------------------------------------------------------------------
# The paper's experiments
# ---------------------------------------------------------------------------------------------------------------------


def paper(config: configs.PaperConfig) -> None:
    """Run the paper's experiments and draw their figures, or list them."""
    from rpsp.experiments import paper as experiments  # loads numpy: start-up time of --help
    from rpsp.experiments.results import read_results  # loads numpy: start-up time of --help

    out, listed = Path(config.out), config.list or (not config.figures and config.page is None)
    if config.readme is not None and config.page is None:
        raise UsageError(f"readme: {config.readme!r} shows a part of --page; give that too.")
    protocol = experiments.PROTOCOLS[config.protocol]
    every = list(experiments.EXPERIMENTS) if protocol is experiments.EQUAL else experiments.find(["all"])
    names = every if listed else experiments.find(config.figures, protocol)
    plans = [
        experiments.plan(name, config.seeds, config.scale, config.select, config.device, protocol) for name in names
    ]
    kept = []
    if plans and config.results is not None and Path(config.results).exists():
        kept = read_results([config.results])[0]
    left = experiments.together(plans, kept)
    if listed:
        print_json(config.json, {"experiments": _list_experiments(plans, left, out, config)})
        return
    content: dict[str, Any] = {"directory": str(out)}
    try:
        if kept and not config.draw:
            wanted = len(experiments.together(plans).runs)
            done = wanted - len(left.runs)
            speaker(config.quiet)(f"{config.results}: {done} of {count_runs(wanted)} are there already")
        if left.runs and not config.draw:
            content |= _run_sweep(left, out, config, _same_command(config, "paper", *config.figures))
    finally:  # also after an interrupted sweep
        if not config.dry_run:
            _keep_results(out, config.results)
    if not config.dry_run:
        content |= _show_results(plans, out, config)
    print_json(config.json, content)


def _keep_results(out: Path, into: str | None) -> None:
    """Write the results of all finished runs under `out` to the directory of `--results`, if there is one."""
    from rpsp.experiments.results import read_results, write_result  # loads numpy: start-up time of --help

    if into is None or not out.exists():
        return
    for result in read_results([out])[0]:
        if result.finished:
            write_result(result, into)


def _list_experiments(plans: list[Plan], left: Sweep, out: Path, config: configs.PaperConfig) -> dict[str, Any]:
    """Print how many runs each experiment has, how many are finished, and how long the runs in `left` will take."""
    from rpsp.experiments import sweeps  # loads numpy: start-up time of --help

    _, workers = sweeps.open_backend(config.backend, config.jobs, config.address)
    standings = {job.name: sweeps.standing(job) for job in sweeps.prepare(left, out)}
    shown, rows = table("", "figure", "what it shows", "runs", "finished", "time left"), {}
    for plan in plans:
        own = [standings[run.place] for run in plan.runs if run.place in standings]
        seconds, _ = sweeps.remaining_seconds(own, workers)
        rows[plan.name] = {
            "about": plan.experiment.about,
            "runs": len(plan.runs),
            "finished": len(plan.runs) - sum(not each.finished for each in own),
            "expected_seconds": round(seconds, 1),
        }
        shown.add_row(
            "ours" if plan.experiment.ours else "",
            plan.name,
            plan.experiment.about,
            f"{len(plan.runs)}",
            f"{rows[plan.name]['finished']}",
            clock(seconds),
        )
    if not config.quiet:
        console().print(shown)
    total, _ = sweeps.remaining_seconds(list(standings.values()), workers)
    unfinished = sum(not each.finished for each in standings.values())
    speaker(config.quiet)(
        f"{count_runs(unfinished)} to do, some of them in several figures: {clock(total)} on {workers} cores; "
        "start with, for example: rpsp paper c --seeds 3 --scale 0.1"
    )
    return rows


def _show_results(plans: list[Plan], out: Path, config: configs.PaperConfig) -> dict[str, Any]:
    """Print and draw the finished runs of each experiment, and write the page of `--page`."""
    from rpsp.experiments import results_page  # loads numpy: start-up time of --help
    from rpsp.experiments.results import read_results  # loads numpy: start-up time of --help

    source = Path(config.results or out)
    results, doubts = read_results([source]) if source.exists() else ([], [])
    warn(doubts, config.quiet)
    content: dict[str, Any] = {
        "experiments": {plan.name: _show_experiment(plan, results, out, config) for plan in plans}
    }
    if config.page is not None:
        readme = None if config.readme is None else Path(config.readme)
        content["page"] = list(map(str, results_page.write(results, Path(config.page), readme, config.scale)))
        for path in content["page"]:
            speaker(config.quiet)(f"wrote {path}")
    return content


def _show_experiment(plan: Plan, results: list[Result], out: Path, config: configs.PaperConfig) -> dict[str, Any]:
    """Print, draw and write the finished runs of one experiment."""
    from rpsp.experiments import paper as experiments  # loads numpy: start-up time of --help

    say = speaker(config.quiet)
    runs = experiments.finished(plan, results)
    say(f"{plan.name}: {plan.experiment.about}; {len(runs)} of {count_runs(len(plan.runs))} finished")
    shown: dict[str, Any] = {"runs": len(plan.runs), "finished": len(runs)}
    if not runs:
        return shown
    found = experiments.judge(plan, runs)
    warn(found.warnings, config.quiet)
    if not config.quiet:
        print_comparison(found, None)
    rows, path = list(map(json_row, found.rows)), out / "tables" / f"{plan.file_name}.csv"
    drawn = experiments.draw(plan, found, experiments.peers(plan.experiment, results), out / "figures")
    write_rows(rows, path)
    shown |= {"rows": rows, "table": str(path), "figures": list(map(str, drawn))}
    for path in (shown["table"], *shown["figures"]):
        say(f"wrote {path}")
    return shown
