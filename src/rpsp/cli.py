"""The door: parse, call, print. Heavy imports happen inside the commands, so that help comes at once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from rpsp.errors import RpspError
from rpsp.experiments.config import DoctorConfig, FitConfig, InspectConfig

Command = (
    Annotated[FitConfig, tyro.conf.subcommand("fit")]
    | Annotated[InspectConfig, tyro.conf.subcommand("inspect")]
    | Annotated[DoctorConfig, tyro.conf.subcommand("doctor")]
)

DESCRIPTION = "Reinforcement learning when the agent cannot see the whole state: recurrent predictive state policies."


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit: 0 ok, 2 usage, 3 bad file, 4 diverged, 5 disk, 6 environment, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Before numpy is imported: the regressions are small, and two BLAS threads on a busy machine mostly wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("MUJOCO_GL", "egl")
    command = tyro.cli(
        Command,  # pyright: ignore[reportArgumentType] - a union of annotated types is what tyro takes for subcommands
        prog="rpsp",
        description=DESCRIPTION,
        args=arguments or ["--help"],
    )
    try:
        {FitConfig: fit, InspectConfig: inspect, DoctorConfig: doctor}[type(command)](command)
    except RpspError as error:
        print(f"rpsp: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("rpsp: interrupted; nothing was left half-written.", file=sys.stderr)
        sys.exit(130)


def fit(config: FitConfig) -> None:
    from rpsp.experiments import runner

    say = _speaker(config.quiet)
    results = runner.fit(config, say)
    directory = Path(results["directory"])
    if not config.quiet:
        _print_errors(results["errors"])
    say(f"saved {directory / 'model.safetensors'}")
    if config.inspect:
        results["figures"] = [str(path) for path in runner.inspect(directory)]
        for path in results["figures"]:
            say(f"drew {path}")
    else:
        say(f"look at it: rpsp inspect {directory}")
    _print_json(config.json, results)


def inspect(config: InspectConfig) -> None:
    from rpsp.experiments import runner

    say = _speaker(config.quiet)
    paths = [str(path) for path in runner.inspect(Path(config.directory), config.horizon)]
    for path in paths:
        say(f"drew {path}")
    _print_json(config.json, {"directory": config.directory, "figures": paths})


def doctor(config: DoctorConfig) -> None:
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

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 or columns[0] == "" else "right")
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
