"""The door: parse, call, print. Heavy imports happen inside the commands, so that help comes at once."""

from __future__ import annotations

import codecs
import dataclasses
import difflib
import io
import json
import math
import os
import re
import shlex
import signal
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

from rpsp import sentinel
from rpsp.errors import PENDING, RpspError, Terminated, UsageError, refuse_windows
from rpsp.experiments import config as configs

COMMANDS = {
    "train": configs.TrainConfig,
    "resume": configs.ResumeConfig,
    "sweep": configs.SweepConfig,
    "eval": configs.EvalConfig,
    "watch": configs.WatchConfig,
    "export": configs.ExportConfig,
    "fit": configs.FitConfig,
    "inspect": configs.InspectConfig,
    "compare": configs.CompareConfig,
    "paper": configs.PaperConfig,
    "report": configs.ReportConfig,
    "methods": configs.MethodsConfig,
    "doctor": configs.DoctorConfig,
}

DESCRIPTION = "Reinforcement learning when the agent cannot see the whole state: recurrent predictive state policies."


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: 0 ok, 2 usage, 3 bad file, 4 diverged, 5 disk, 6 environment, 130/143 interrupted.

    And 141 where whoever read what is printed has left, as `rpsp train --help | head` does.
    """
    alone = arguments is None  # the process is this command's own
    if alone:
        _print_any_character()
    arguments = sys.argv[1:] if arguments is None else arguments
    # Before numpy is imported: the regressions are small, and two BLAS threads on a busy machine mostly wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if os.getcwd() not in sys.path:  # for a user's own modules; last, so that they hide no other
        sys.path.append(os.getcwd())
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where Ctrl-C is to be ignored
            signal.signal(signal.SIGINT, _interrupt)
        if alone and arguments[:1] in (["train"], ["resume"]):
            sentinel.start()
        if arguments[:1] == ["--version"]:
            from importlib.metadata import version

            return print(f"rpsp {version('rpsp')}")
        refuse_windows()
        command = _parse([*arguments[1:], "--help"] if arguments[:1] in ([], ["help"]) else arguments)
        globals()[next(name for name, cls in COMMANDS.items() if cls is type(command)) + "_command"](command)
    except RpspError as error:
        sentence = f"rpsp: {error}".replace("\n", " ")  # it may quote what others have to say
        print("\n".join([sentence, *_notes(error)]), file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(141)
    except BaseException as error:
        # An import that was cut short may say so in its own way; what came is remembered.
        interrupt = error if isinstance(error, KeyboardInterrupt) else next(iter(PENDING), None)
        if interrupt is None or isinstance(error, SystemExit):
            raise
        what = " ".join(_notes(interrupt)) or "nothing was left half-written."
        print(f"rpsp: interrupted; {what}", file=sys.stderr)
        code = 143 if isinstance(interrupt, Terminated) else 130
        if alone:  # at once: threads of compiled code that was left half-way do not always survive Python's own end
            with suppress(OSError):
                sys.stdout.flush()
            sentinel.dismiss()
            os._exit(code)
        sys.exit(code)
    finally:
        PENDING.clear()  # it is this command's, not that of whatever the program does next
        if alone:
            _flush()
            sentinel.dismiss()


ASCII = {
    "±": "+-", "−": "-", "–": "-", "—": "-", "×": "x", "·": "*", "≥": ">=", "≤": "<=", "≈": "~", "→": "->", "…": "...",
    "’": "'", "µ": "u", "²": "^2", "◆": "*",
}  # fmt: skip
"""What is printed for a character where the output knows only ASCII; Greek letters are spelt out."""


def _print_any_character() -> None:
    """Let stdout and stderr replace characters that their encoding does not have, instead of raising an error."""
    codecs.register_error("rpsp", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in (
            "strict",
            "backslashreplace",
        ):  # Python's defaults
            stream.reconfigure(errors="rpsp")


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """Error handler of a codec: replace a character by ASCII, or by its number if it has no replacement."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    name = unicodedata.name(character, "")
    text = ASCII.get(character) or (name.split()[-1].lower() if name.startswith("GREEK SMALL LETTER ") else None)
    if text is None:
        error.end = error.start + 1
        return codecs.backslashreplace_errors(error)
    return text, error.start + 1


def _flush() -> None:
    """Print what is still to be printed, unless there is nobody to read it: Python's own end would complain."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(arguments: list[str]) -> Any:
    """The command with its settings. A mistake, of which tyro draws a box of many lines, becomes one sentence."""
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UsageError(
            f"there is no command {arguments[0]!r}{hint}; the commands are {', '.join(COMMANDS)}; see `rpsp --help`."
        )
    if sum(argument.partition("=")[0] == "--plugin" for argument in arguments) > 1:
        raise UsageError("plugin: is given more than once; give several modules as --plugin first,second.")
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(_commands(arguments), prog="rpsp", description=DESCRIPTION, args=arguments)
    except SystemExit as exit:
        if not exit.code:  # help was asked for
            raise
        raise UsageError(_sentence(said.getvalue(), arguments)) from None


def _sentence(box: str, arguments: list[str]) -> str:
    """What is wrong and what was perhaps meant, of a box with sections between rules; not what is told at length."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│ ") for line in box.splitlines() if line[:1] not in "╭╰"]
    sections = [part.strip() for part in re.split(r"\n *[─-]{9,}\n", "\n".join(lines))]
    if "╭" not in box and len(sections) > 1:  # where there are only letters, its title is a section of its own
        sections = sections[1:]
    command = " ".join(["rpsp", *(name for name in arguments[:1] if name in COMMANDS)])
    if ours := _not_a_number(sections, arguments) or _another_commands(sections, command):
        return f"{ours}; see `{command} --help`."
    told = [sections[0].partition("\n\n")[0]]
    told += [" ".join(s.splitlines()[:2]) for s in sections[1:] if s.startswith("Perhaps you meant")][:1]
    told += [s for s in sections[1:] if s.startswith("Available subcommands")]
    text = "; ".join(" ".join(part.split()).rstrip(".") for part in told)
    return f"{text[:MOST_LETTERS]}; see `{command} --help`."


MOST_LETTERS = 500
NUMBERS = {"INT": "whole number", "FLOAT": "number"}
"""What tyro calls them, and people."""


def _not_a_number(sections: list[str], arguments: list[str]) -> str | None:
    """Of a flag that wants a number, or several, and got something else."""
    wrong = re.match(r"Error parsing (--[\w-]+):", sections[0])
    form = re.search(r"--[\w-]+ (.+)", "\n".join(sections[1:2]))
    kind = next((word for mark, word in NUMBERS.items() if form and mark in form[1]), None)
    if wrong is None or form is None or kind is None:
        return None
    flag = wrong[1]
    several = f"list of {kind}s, as in {flag} 1 2" if "[" in form[1] else kind
    return f"{flag[2:].replace('-', '_')}: {_value(flag, arguments)!r} is not a {several}"


def _another_commands(sections: list[str], command: str) -> str | None:
    """Of a flag that only other commands have."""
    typed = re.match(r"Unrecognized[^:]*:\s*(--[\w-]+)", sections[0])
    meant = next((s for s in sections[1:] if s.startswith("Perhaps you meant")), "")
    offered = re.findall(r"^(--[\w-]+)", meant, re.MULTILINE)
    if typed is None or typed[1] not in offered[:1]:
        return None
    homes = dict.fromkeys(re.findall(r"in (rpsp \w+) --help", meant))
    return f"{typed[1]} is no option of `{command}`; it is one of {', '.join(f'`{home}`' for home in homes)}"


def _notes(error: BaseException) -> list[str]:
    """What was added to an error on its way: how to go on."""
    return getattr(error, "__notes__", [])


def _interrupt(number: int, frame: Any) -> None:
    if _importing(frame):  # a compiled module that is cut short may take Python down with it: once more, a moment later
        again = threading.Timer(0.05, os.kill, (os.getpid(), number))
        again.daemon = True
        return again.start()
    PENDING.append(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
    sys.unraisablehook = _said_later
    raise PENDING[-1]


def _importing(frame: Any) -> bool:
    """Whether this command is in the middle of an import."""
    while frame is not None and frame.f_code is not main.__code__:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _said_later(lost: Any) -> None:
    """What Python has to say where something raised is lost; an interruption is not, the run will see to it."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)


def _commands(arguments: list[str]) -> Any:
    """The union of all commands; `train` with the defaults of the method and of the file that are named."""
    subcommands = {name: tyro.conf.subcommand(name) for name in COMMANDS}
    if arguments[:1] == ["train"]:
        subcommands["train"] = tyro.conf.subcommand("train", default=_train_defaults(arguments))
    kinds = tuple(Annotated[cls, subcommands[name]] for name, cls in COMMANDS.items())
    return Union[kinds]  # noqa: UP007 - made of a list


def _value(flag: str, arguments: list[str]) -> str | None:
    """What was given for a flag."""
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(flag + "="):
            return argument.removeprefix(flag + "=")
    return None


def _train_defaults(arguments: list[str]) -> configs.TrainConfig:
    """What holds where no flag is given: the file's settings, and for the rest those of the method."""
    file = _value("--config", arguments)
    given = {} if file is None else configs.read_toml(file)
    plugin = _value("--plugin", arguments) or given.get("plugin")
    if isinstance(plugin, str):  # in a file it may be anything, which is said below
        configs.import_plugin(plugin)
    if (method := _value("--method", arguments)) is not None:
        given["method"] = method
    return configs.configured(given, "" if file is None else f"{file}: ")


def train_command(config: configs.TrainConfig) -> None:
    from rpsp.experiments import runs

    _closing(config, lambda say, show: runs.start(config, say, show))


def resume_command(config: configs.ResumeConfig) -> None:
    from rpsp.experiments import runs

    _closing(
        config,
        lambda say, show: runs.resume(
            [Path(directory) for directory in config.directories],
            say,
            show,
            config.iterations,
            config.plugin,
            config.compilation_cache,
        ),
    )


def _closing(config: Any, run: Any) -> None:
    """Run with a live view, then say what came of it."""
    from rpsp.experiments.resolve import read_config
    from rpsp.experiments.words import clock

    say = _speaker(config.quiet)
    with _live(config.quiet) as show:
        done = run(say, show)
    results = done.results
    if not config.quiet and "runs" not in results and results["iterations"]:
        table = _table("", "")
        rows = {
            "return, mean of the last ten iterations": f"{results['final_return']:.1f}",
            "best iteration": f"{results['best_return']:.1f}",
            "area under the curve": f"{results['area_under_curve']:,.0f}",
            "environment steps": f"{results['samples']:,}",
            "episodes dropped, steps skipped": f"{results['dropped_episodes']}, {results['skipped_steps']:g}",
            "time": clock(results["wall_seconds"]),
        }
        for row in rows.items():
            table.add_row(*row)
        _console().print(table)
    if "runs" not in results:
        named = configs.plugin_flag(read_config(done.directory))
        named = named or (["--plugin", config.plugin] if config.plugin else [])
        words = ["rpsp", "eval", str(done.directory), *named]
        say(f"saved {done.directory}; try it: {shlex.join(words)}")
    _print_json(config.json, results)


@contextmanager
def _live(quiet: bool) -> Iterator[Any]:
    """What is called with every record: a line an iteration, above a progress bar where there is a terminal."""
    from rpsp.experiments.runs import line

    if quiet:
        yield lambda record, pace: None
    elif not sys.stdout.isatty():
        yield lambda record, pace: print(line(record, pace), flush=True) if "iteration" in record else None
    else:
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            BarColumn(),
            TextColumn("{task.completed}/{task.total} iterations"),
            TextColumn("{task.fields[eta]}"),
        )
        with Progress(*columns, console=_console(), transient=True) as progress:
            bar = progress.add_task("", total=None, eta="")

            def show(record: dict[str, Any], pace: Any) -> None:
                if "iteration" in record:
                    progress.console.print(line(record, pace), highlight=False)
                progress.update(bar, total=pace.total, completed=pace.done, eta=f"ETA {pace.eta}")

            yield show


def sweep_command(config: configs.SweepConfig) -> None:
    from rpsp.experiments.sweeps import Sweep

    sweep = Sweep.read(config.file)
    out = Path("runs", sweep.name) if config.out is None else Path(config.out)
    _print_json(config.json, run_sweep(sweep, out, config, _again(config, "sweep", config.file)))


def _again(config: Any, *command: str) -> str:
    """The command that goes on with what this one began: the flags that were given, but those that concern printing."""
    words = ["rpsp", *command]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in ("file", "figures", "json", "quiet", "dry_run") and value != field.default:
            flag = "--" + field.name.replace("_", "-")
            words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)


def run_sweep(sweep: Any, out: Path, config: Any, go_on: str) -> dict[str, Any]:
    """Do what is unfinished of a sweep, or with `config.dry_run` say what that is; `go_on` is the command to do it with."""
    from rpsp.experiments import sweeps
    from rpsp.experiments.words import clock

    backend, workers = sweeps.open_backend(config.backend, config.jobs, config.address)
    jobs = sweeps.prepare(sweep, out)
    standings = {job.name: sweeps.standing(job) for job in jobs}
    waiting = [job for job in jobs if not standings[job.name].finished]
    interrupted = [job for job in waiting if standings[job.name].begun]
    seconds, from_table = sweeps.remaining_seconds(list(standings.values()), workers)
    say = _speaker(config.quiet)
    say(
        f"{out}: {_runs(len(jobs))}, {len(jobs) - len(waiting)} finished, {len(interrupted)} interrupted, "
        f"{len(waiting) - len(interrupted)} to begin"
    )
    if waiting:
        source = "measured on runs in that directory"
        if from_table:
            source = f"the speeds of {_runs(from_table)} guessed: {sweeps.speed_table()['what']}"
        say(f"about {clock(seconds)} on {workers} core{'s' * (workers > 1)} ({source})")
    results = {
        "directory": str(out),
        "runs": len(jobs),
        "finished": len(jobs) - len(waiting),
        "interrupted": len(interrupted),
        "expected_seconds": round(seconds, 1),
        "expected_from_table": from_table,
        "failed": {},
    }
    if config.dry_run or not waiting:
        return results
    try:
        with _sweep_view(standings, workers, config.quiet) as show:
            failed = sweeps.carry_out(waiting, out, backend, show)
    except KeyboardInterrupt as interrupt:
        saved = "all finished iterations are saved"
        if config.backend == "ray":
            saved += " but those of the last seconds"
        interrupt.add_note(f"{saved}; go on with: {go_on}")
        raise
    results["finished"] = len(jobs) - len(failed)
    results["failed"] = {name: failure.sentence for name, failure in failed.items()}
    if failed:
        _print_json(config.json, results)
        error = RpspError(f"{len(failed)} of {_runs(len(jobs))} failed; try them again with: {go_on}")
        error.exit_code = max(failure.code for failure in failed.values())
        for name, sentence in results["failed"].items():
            error.add_note(f"{name}: {sentence}")
        raise error
    say(f"all {_runs(len(jobs))} are finished; compare them: rpsp compare {out}")
    return results


def paper_command(config: configs.PaperConfig) -> None:
    from rpsp.experiments import paper
    from rpsp.experiments.results import read_results, write_result

    out, listed = Path(config.out), config.list or (not config.figures and config.page is None)
    if config.readme is not None and config.page is None:
        raise UsageError(f"readme: {config.readme!r} shows a part of --page; give that too.")
    names = list(paper.EXPERIMENTS) if listed else paper.find(config.figures)
    plans = [paper.plan(name, config.seeds, config.scale, config.select, config.device) for name in names]
    kept = []
    if plans and config.results is not None and Path(config.results).exists():
        kept = read_results([config.results])[0]
    left = paper.together(plans, kept)
    if listed:
        _print_json(config.json, {"experiments": _list_experiments(plans, left, out, config)})
        return
    content: dict[str, Any] = {"directory": str(out)}
    try:
        if kept and not config.draw:
            wanted = len(paper.together(plans).runs)
            _speaker(config.quiet)(f"{config.results}: {wanted - len(left.runs)} of {_runs(wanted)} are there already")
        if left.runs and not config.draw:
            content |= run_sweep(left, out, config, _again(config, "paper", *config.figures))
    finally:  # also of what is finished of an interrupted sweep
        if config.results is not None and out.exists() and not config.dry_run:
            for result in read_results([out])[0]:
                if result.finished:
                    write_result(result, config.results)
    if not config.dry_run:
        source = Path(config.results or out)
        results, doubts = read_results([source]) if source.exists() else ([], [])
        _warn(doubts, config.quiet)
        content["experiments"] = {plan.name: _show_experiment(plan, results, out, config) for plan in plans}
        if config.page is not None:
            from rpsp.experiments import results_page

            readme = None if config.readme is None else Path(config.readme)
            content["page"] = list(map(str, results_page.write(results, Path(config.page), readme, config.scale)))
            for path in content["page"]:
                _speaker(config.quiet)(f"wrote {path}")
    _print_json(config.json, content)


def _list_experiments(plans: list[Any], left: Any, out: Path, config: configs.PaperConfig) -> dict[str, Any]:
    """A row for each: how many runs it has, how many are finished, how long those that are `left` will take."""
    from rpsp.experiments import sweeps
    from rpsp.experiments.words import clock

    backend = sweeps.open_backend(config.backend, config.jobs, config.address)
    standings = {job.name: sweeps.standing(job) for job in sweeps.prepare(left, out)}
    table, rows = _table("", "figure", "what it shows", "runs", "finished", "time left"), {}
    for plan in plans:
        own = [standings[run.place] for run in plan.runs if run.place in standings]
        seconds, _ = sweeps.remaining_seconds(own, backend[1])
        rows[plan.name] = {
            "about": plan.experiment.about,
            "runs": len(plan.runs),
            "finished": len(plan.runs) - sum(not each.finished for each in own),
            "expected_seconds": round(seconds, 1),
        }
        table.add_row(
            "ours" if plan.experiment.ours else "",
            plan.name,
            plan.experiment.about,
            f"{len(plan.runs)}",
            f"{rows[plan.name]['finished']}",
            clock(seconds),
        )
    say = _speaker(config.quiet)
    if not config.quiet:
        _console().print(table)
    total, _ = sweeps.remaining_seconds(list(standings.values()), backend[1])
    unfinished = sum(not each.finished for each in standings.values())
    say(
        f"{_runs(unfinished)} to do, some of them in several figures: {clock(total)} on {backend[1]} cores; "
        "begin with, say: rpsp paper c --seeds 3 --scale 0.1"
    )
    return rows


def _show_experiment(plan: Any, results: list[Any], out: Path, config: configs.PaperConfig) -> dict[str, Any]:
    """Print, draw and write what is finished of one experiment."""
    from rpsp.experiments import paper

    say = _speaker(config.quiet)
    runs = paper.finished(plan, results)
    say(f"{plan.name}: {plan.experiment.about}; {len(runs)} of {_runs(len(plan.runs))} finished")
    shown: dict[str, Any] = {"runs": len(plan.runs), "finished": len(runs)}
    if not runs:
        return shown
    found = paper.judge(plan, runs)
    _warn(found.warnings, config.quiet)
    if not config.quiet:
        _print_comparison(found, None)
    rows, path = list(map(_known, found.rows)), out / "tables" / f"{plan.name}.csv"
    drawn = paper.draw(plan, found, paper.peers(plan.experiment, results), out / "figures")
    _write_rows(rows, path)
    shown |= {"rows": rows, "table": str(path), "figures": list(map(str, drawn))}
    for path in (shown["table"], *shown["figures"]):
        say(f"wrote {path}")
    return shown


def _runs(number: int) -> str:
    return f"{number} run{'s' * (number != 1)}"


@contextmanager
def _sweep_view(standings: dict[str, Any], workers: int, quiet: bool) -> Iterator[Any]:
    """What is called with every beat of a sweep: a line for a run that ended, under it what is at work on a terminal."""
    import time

    from rpsp.experiments.runs import closing_words
    from rpsp.experiments.sweeps import remaining_seconds, standing
    from rpsp.experiments.words import clock

    console, looked = _console(), 0.0

    def look(beat: Any) -> None:
        for job in (*beat.working, *(job for job, _ in beat.ended)):
            standings[job.name] = standing(job)

    def summary() -> str:
        finished = sum(each.finished for each in standings.values())
        eta = clock(remaining_seconds(list(standings.values()), workers)[0])
        return f"{finished}/{len(standings)} runs, ETA {eta}"

    def tell(beat: Any) -> None:
        for job, failure in beat.ended:
            words = closing_words(job.directory) if failure is None else f"failed: {failure.sentence}"
            console.print(f"{job.name}: {words}  ({summary()})", markup=False, soft_wrap=True)

    def plain(beat: Any) -> None:
        if beat.ended:
            look(beat)
            tell(beat)

    if quiet:
        yield lambda beat: None
    elif not sys.stdout.isatty():
        yield plain
    else:
        from rich.live import Live

        with Live(console=console, transient=True, auto_refresh=False) as live:

            def show(beat: Any) -> None:
                nonlocal looked
                if not beat.ended and time.monotonic() < looked + 1:
                    return
                look(beat)
                tell(beat)
                table = _table(summary(), "iterations", "return", "ETA")
                for each in (standings[job.name] for job in beat.working):
                    left = "" if each.speed is None else clock(each.left * each.speed.iteration_seconds)
                    last = "" if each.last_return is None else f"{each.last_return:.1f}"
                    table.add_row(each.job.name, f"{each.done}/{each.job.config.iterations}", last, left)
                live.update(table, refresh=True)
                looked = time.monotonic()

            yield show


def eval_command(config: configs.EvalConfig) -> None:
    from rpsp.experiments import runs
    from rpsp.experiments.words import mean_with_error

    configs.import_plugin(config.plugin)
    say = _speaker(config.quiet)
    results = runs.evaluate(
        Path(config.directory), config.episodes, config.checkpoint, config.seed, not config.stochastic, say
    )
    say(
        f"return {mean_with_error(results['mean_return'], results['std_return'])} (standard deviation) over "
        f"{results['episodes']} episodes of {results['mean_length']:.0f} steps, checkpoint {results['checkpoint']}"
    )
    _print_json(config.json, results)


def compare_command(config: configs.CompareConfig) -> None:
    from rpsp.experiments.comparison import compare
    from rpsp.experiments.results import long_table, read_results, write_csv, write_parquet

    say = _speaker(config.quiet)
    runs, doubts = read_results(config.directories)
    _warn(doubts, config.quiet)  # before anything that may go wrong because of them
    found = compare(
        runs,
        config.metric,
        against=config.against,
        threshold=config.threshold,
        smooth=config.smooth,
        select=config.select,
    )
    _warn(found.warnings, config.quiet)
    if not config.quiet:
        _print_comparison(found, config.threshold)
    content = {
        "runs": len(runs),
        "metric": config.metric,
        "rows": list(map(_known, found.rows)),
        "overall": list(map(_known, found.overall)),
        "warnings": [*doubts, *found.warnings],
    }
    if config.table is not None:
        _write_rows(content["rows"], config.table)
    if config.csv is not None:
        write_csv(long_table(runs), config.csv)
    if config.parquet is not None:
        write_parquet(long_table(runs), config.parquet)
    for path in filter(None, (config.table, config.csv, config.parquet)):
        say(f"wrote {path}")
    if config.figures is not None:
        from rpsp.experiments.figures import draw_comparison

        content["figures"] = [str(path) for path in draw_comparison(found, config.figures)]
        for path in content["figures"]:
            say(f"drew {path}")
    _print_json(config.json, content)


def _write_rows(rows: list[dict[str, Any]], path: str | Path) -> None:
    """The rows of a comparison as CSV."""
    from rpsp.experiments.results import write_csv

    write_csv({name: [row[name] for row in rows] for name in rows[0]}, path)


def _known(row: Any) -> dict[str, Any]:
    """A row as JSON has it: null for what is not finite."""
    values = dataclasses.asdict(row).items()
    return {name: value if isinstance(value, str) or math.isfinite(value) else None for name, value in values}


def _warn(warnings: list[str], quiet: bool) -> None:
    """Plain lines beside the output, not too many: --json has them all."""
    shown = warnings[: MOST_WARNINGS - (len(warnings) > MOST_WARNINGS)]
    more = [f"… and {len(warnings) - len(shown)} more."] if len(shown) < len(warnings) else []
    for line in [] if quiet else [*shown, *more]:
        print(f"warning: {line}", file=sys.stderr, flush=True)


MOST_WARNINGS = 20


def _print_comparison(found: Any, threshold: float | None) -> None:
    """A table a task, then its tests; at last all tasks together."""
    from rich.text import Text

    from rpsp.experiments.comparison import METRIC_NAMES, interval_text, row_texts
    from rpsp.experiments.words import number

    console, metric = _console(), METRIC_NAMES[found.metric]
    reaching = [] if threshold is None else [f"steps to {threshold:g}"]
    for task in dict.fromkeys(row.task for row in found.rows):
        rows = [row for row in found.rows if row.task == task]
        console.print(Text(f"{task}: {rows[0].iterations} iterations; IQM of the {metric}"), style="bold")
        table = _table(*row_texts(rows[0]), *reaching)
        for row in rows:
            never = "never" if row.reached == 0 else f"{number(row.steps_to_reach)} ({row.reached} of {row.seeds})"
            table.add_row(*map(Text, row_texts(row).values()), *([never] if reaching else []))
        console.print(table)
        if tested := [row for row in rows if row.against]:
            table = _table(f"{metric} against", "t", "degrees of freedom", "p", "p, Holm", "P(better)")
            table.columns[0].header = Text(f"{metric} against {tested[0].against}")
            for row in tested:
                cells = row.t, row.dof, row.p, row.p_holm, row.improvement
                table.add_row(Text(row.method), *(number(cell) for cell in cells))
            console.print(table)
    if found.overall:
        console.print(Text(f"all tasks: {metric}, in each task from its worst run, 0, to its best, 1"), style="bold")
        table = _table("method", "runs", "IQM, 95 %")
        for row in found.overall:
            table.add_row(Text(row.method), str(row.runs), Text(interval_text(row)))
        console.print(table)


def report_command(config: configs.ReportConfig) -> None:
    from rpsp.experiments.report import watch_report, write_report

    configs.import_plugin(config.plugin)
    say = _speaker(config.quiet)
    if config.watch:
        path, results = watch_report(config.directories, config.out, config.every, say)
    else:
        path, results = write_report(config.directories, config.out, say=say)
        say(f"wrote {path}")
    counts = {"runs": len(results), "finished": sum(r.finished for r in results)}
    _print_json(config.json, {"directories": list(config.directories), "report": str(path), **counts})


def watch_command(config: configs.WatchConfig) -> None:
    if sys.platform == "linux":
        os.environ.setdefault("MUJOCO_GL", "egl")  # before mujoco is imported: to render without a screen
    from rpsp.experiments.video import watch

    configs.import_plugin(config.plugin)
    say = _speaker(config.quiet)
    results = watch(Path(config.directory), config.checkpoint, config.seed, config.steps, config.format, say)
    say(f"an episode of {results['steps']} steps, return {results['return']:.2f}")
    say(f"drew {results['video']}")
    _print_json(config.json, results)


def export_command(config: configs.ExportConfig) -> None:
    from rpsp.experiments.export import export

    configs.import_plugin(config.plugin)
    say = _speaker(config.quiet)
    results = export(Path(config.directory), config.checkpoint, config.out, config.onnx, say)
    say(
        f"compared over {results['steps']} steps in {results['episodes']} episodes: the actions differ from the agent's by "
        f"at most {results['largest_difference']:.1e} of half their range ({results['largest_difference_of_a_step']:.1e} "
        f"within a step); {results['microseconds_per_step']:.0f} µs a step"
    )
    if config.onnx:
        say(f"policy.onnx differs from that by at most {results['largest_difference_of_onnx']:.1e}, run by onnxruntime")
    say(f"wrote {results['directory']}: policy.npz, and act.py, which needs numpy alone and says how it is used")
    _print_json(config.json, results)


def methods_command(config: configs.MethodsConfig) -> None:
    from rpsp.experiments.methods import METHODS

    table = _table("", "method", "filter", "update", "what it is")
    rows = []
    for row in METHODS.values():
        # A row that a program has added may have functions for their names.
        parts = {name: getattr(part := getattr(row, name), "__name__", str(part)) for name in ("belief", "update")}
        rows.append(dataclasses.asdict(row) | {"defaults": dict(row.defaults)} | parts)
        table.add_row("ours" if row.ours else "", row.name, *parts.values(), row.about)
    _console().print(table)
    _print_json(config.json, {"methods": rows})


def fit_command(config: configs.FitConfig) -> None:
    from rpsp.experiments import fitting

    say = _speaker(config.quiet)
    results = fitting.fit(config, say)
    directory = Path(results["directory"])
    if not config.quiet:
        _print_errors(results["errors"])
    say(f"saved {directory / 'model.safetensors'}")
    if config.inspect:
        results["figures"] = [str(path) for path in fitting.inspect(directory)]
        for path in results["figures"]:
            say(f"drew {path}")
    else:
        say(f"look at it: rpsp inspect {directory}")
    _print_json(config.json, results)


def inspect_command(config: configs.InspectConfig) -> None:
    from rpsp.experiments import fitting

    say = _speaker(config.quiet)
    paths = [str(path) for path in fitting.inspect(Path(config.directory), config.horizon)]
    for path in paths:
        say(f"drew {path}")
    _print_json(config.json, {"directory": config.directory, "figures": paths})


def doctor_command(config: configs.DoctorConfig) -> None:
    from rpsp.experiments.doctor import examine

    report = examine()
    table = _table("", "what", "found")
    for section, findings in report.items():
        for i, (name, found) in enumerate(findings.items()):
            table.add_row(section if i == 0 else "", name, "—" if found is None else str(found))
    _console().print(table)
    _print_json(config.json, report)


def _print_errors(errors: dict[str, list[float]]) -> None:
    """Normalised held-out errors, one row a predictor, a few horizons as columns; the best of each in bold."""
    horizons = [h for h in (1, 2, 3, 5, 10) if h <= min(map(len, errors.values()))]
    table = _table("squared error / variance", *(f"{h} step{'s' * (h > 1)}" for h in horizons))
    best = {h: min(values[h - 1] for values in errors.values()) for h in horizons}
    for name, values in errors.items():
        cells = [f"{values[h - 1]:.2g}" for h in horizons]
        table.add_row(
            name,
            *(
                f"[bold]{cell}[/bold]" if values[h - 1] == best[h] else cell
                for h, cell in zip(horizons, cells, strict=True)
            ),
        )
    _console().print(table)


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(columns))
    for i, column in enumerate(columns):
        left = i == 0 or columns[0] == ""
        table.add_column(column, justify="left" if left else "right", overflow="fold")  # cut short, a name is no name
    return table


def _console() -> Any:
    from rich.console import Console

    # Without a terminal rich wraps at 80 columns, which breaks paths; plain lines are left as they are.
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def _speaker(quiet: bool) -> Any:
    return (lambda line: None) if quiet else lambda line: print(line, flush=True)


def _print_json(wanted: bool, content: dict[str, Any]) -> None:
    if wanted:
        print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main()
