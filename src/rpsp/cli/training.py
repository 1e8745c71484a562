"""`rpsp train` and `rpsp resume`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn

from rpsp.cli.printing import console, print_json, speaker, table
from rpsp.experiments import config as configs
from rpsp.experiments.budget import UNLIMITED
from rpsp.experiments.plugins import plugin_flag
from rpsp.experiments.progress import Pace, Show, line
from rpsp.experiments.words import clock

if TYPE_CHECKING:
    from rpsp.experiments.files import Say
    from rpsp.experiments.finished_runs import Run


def train(config: configs.TrainConfig) -> None:
    """Train in a new run directory."""
    from rpsp.experiments import runs  # loads jax: start-up time of --help

    _run(config, lambda say, show: runs.start(config, say, show))


def resume(config: configs.ResumeConfig) -> None:
    """Continue runs from their last checkpoints."""
    from rpsp.experiments import runs  # loads jax: start-up time of --help

    directories = [Path(directory) for directory in config.directories]
    _run(
        config,
        lambda say, show: runs.resume(
            directories,
            say,
            show,
            config.iterations,
            config.plugin,
            config.compilation_cache,
            steps=config.steps,
            minutes=config.minutes,
        ),
    )


def _run(config: configs.TrainConfig | configs.ResumeConfig, run: Callable[[Say, Show], Run]) -> None:
    """Run with a line per iteration, then print the results and where they are."""
    from rpsp.experiments.resolve import read_config  # loads numpy: start-up time of --help

    say = speaker(config.quiet)
    with _progress(config.quiet) as show:
        done = run(say, show)
    results = done.results
    single = "runs" not in results
    if single and not config.quiet and results["iterations"]:
        _print_results(results)
    if not config.quiet:
        from rpsp.experiments.diagnosis import closing_lines  # start-up time of --help: it imports jax

        for sentence in closing_lines(done.runs):
            say(sentence)
    if single:
        plugin = plugin_flag(read_config(done.directory))
        plugin = plugin or (["--plugin", config.plugin] if config.plugin else [])
        words = ["rpsp", "eval", str(done.directory), *plugin]
        say(f"saved {done.directory}; try it: {shlex.join(words)}")
    print_json(config.json, results)


def _print_results(results: dict[str, Any]) -> None:
    """Print the results of one run as a table."""
    rows = {
        "return, mean of the last ten iterations": f"{results['final_return']:.1f}",
        "best iteration": f"{results['best_return']:.1f}",
        "area under the curve": f"{results['area_under_curve']:,.0f}",
        "environment steps": f"{results['samples']:,}",
        "episodes dropped, steps skipped": f"{results['dropped_episodes']}, {results['skipped_steps']:g}",
        "time": clock(results["wall_seconds"]),
    }
    shown = table("", "")
    for row in rows.items():
        shown.add_row(*row)
    console().print(shown)


@contextmanager
def _progress(quiet: bool) -> Iterator[Show]:
    """Yield a function to call with each record: it prints a line per iteration, on a terminal above a progress bar."""

    def plain(record: dict[str, Any], pace: Pace) -> None:
        if "iteration" in record:
            print(line(record, pace), flush=True)

    if quiet:
        yield lambda record, pace: None
    elif not sys.stdout.isatty():
        yield plain
    else:
        columns = (
            BarColumn(),
            TextColumn("{task.fields[share]} iterations"),
            TextColumn("{task.fields[eta]}"),
        )
        with Progress(*columns, console=console(), transient=True) as progress:
            bar = progress.add_task("", total=None, eta="", share="")

            def show(record: dict[str, Any], pace: Pace) -> None:
                if "iteration" in record:
                    progress.console.print(line(record, pace), highlight=False)
                total = None if pace.total == UNLIMITED else pace.total
                progress.update(bar, total=total, completed=pace.done, eta=f"ETA {pace.eta}", share=pace.share.strip())

            yield show
