"""Output of the commands: tables, lines, warnings, the JSON line, and characters that a terminal cannot show."""

from __future__ import annotations

import codecs
import dataclasses
import io
import json
import math
import os
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rpsp.experiments.words import number

if TYPE_CHECKING:
    from rpsp.experiments.comparison import Comparison, Overall, Row

MAX_WARNINGS = 20
"""Lines of warnings that are printed; `--json` holds all of them."""


def console() -> Console:
    """Return a console of rich: as wide as the terminal, or 120 columns, since the default of 80 breaks paths."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def table(*columns: str) -> Table:
    """Return an empty table with these column titles; the first column, or all if its title is empty, is left-aligned."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(columns))
    for i, column in enumerate(columns):
        left = i == 0 or columns[0] == ""
        made.add_column(column, justify="left" if left else "right", overflow="fold")  # wrap names, do not cut them
    return made


def speaker(quiet: bool) -> Callable[[str], None]:
    """Return a function that prints a line at once, or does nothing with `--quiet`."""
    return (lambda line: None) if quiet else lambda line: print(line, flush=True)


def warn(warnings: list[str], quiet: bool) -> None:
    """Print warnings to stderr, at most `MAX_WARNINGS` lines."""
    shown = warnings[: MAX_WARNINGS - (len(warnings) > MAX_WARNINGS)]
    more = [f"… and {len(warnings) - len(shown)} more."] if len(shown) < len(warnings) else []
    for line in [] if quiet else [*shown, *more]:
        print(f"warning: {line}", file=sys.stderr, flush=True)


def print_json(wanted: bool, content: dict[str, Any]) -> None:
    """Print the JSON object that `--json` asks for, as one line."""
    if wanted:
        print(json.dumps(content), flush=True)


def count_runs(number: int) -> str:
    """Return "1 run", "2 runs"."""
    return f"{number} run{'s' * (number != 1)}"


# ---------------------------------------------------------------------------------------------------------------------
# Comparisons
# ---------------------------------------------------------------------------------------------------------------------


def print_comparison(found: Comparison, threshold: float | None) -> None:
    """Print one table of scores and one of tests for each task, then a table over all tasks."""
    from rpsp.experiments.comparison import METRIC_NAMES, interval_text  # loads numpy: start-up time of --help

    out, metric = console(), METRIC_NAMES[found.metric]
    for task in dict.fromkeys(row.task for row in found.rows):
        rows = [row for row in found.rows if row.task == task]
        out.print(Text(f"{task}: {rows[0].iterations} iterations; IQM of the {metric}"), style="bold")
        out.print(_scores(rows, threshold))
        if tested := [row for row in rows if row.against]:
            out.print(_tests(tested, metric))
    if found.overall:
        out.print(Text(f"all tasks: {metric}, scaled in each task from 0 (worst run) to 1 (best run)"), style="bold")
        overall = table("method", "runs", "IQM, 95 %")
        for row in found.overall:
            overall.add_row(Text(row.method), str(row.runs), Text(interval_text(row)))
        out.print(overall)


def _scores(rows: list[Row], threshold: float | None) -> Table:
    """Return the scores of each method on one task."""
    from rpsp.experiments.comparison import row_texts  # loads numpy: start-up time of --help

    reaching = [] if threshold is None else [f"steps to {threshold:g}"]
    scores = table(*row_texts(rows[0]), *reaching)
    for row in rows:
        never = "never" if row.reached == 0 else f"{number(row.steps_to_reach)} ({row.reached} of {row.seeds})"
        scores.add_row(*map(Text, row_texts(row).values()), *([never] if reaching else []))
    return scores


def _tests(rows: list[Row], metric: str) -> Table:
    """Return the tests of each method against the reference on one task."""
    tests = table(f"{metric} against", "t", "degrees of freedom", "p", "p, Holm", "P(better)")
    tests.columns[0].header = Text(f"{metric} against {rows[0].against}")
    for row in rows:
        cells = row.t, row.dof, row.p, row.p_holm, row.improvement
        tests.add_row(Text(row.method), *(number(cell) for cell in cells))
    return tests


def json_row(row: Row | Overall) -> dict[str, Any]:
    """Return the fields of a row for JSON and CSV, with None for values that are not finite."""
    values = dataclasses.asdict(row).items()
    return {name: value if isinstance(value, str) or math.isfinite(value) else None for name, value in values}


def write_rows(rows: list[dict[str, Any]], path: str | Path) -> None:
    """Write the rows of a comparison as CSV."""
    from rpsp.experiments.results import write_csv  # loads numpy: start-up time of --help

    write_csv({name: [row[name] for row in rows] for name in rows[0]}, path)


# ---------------------------------------------------------------------------------------------------------------------
# Streams
# ---------------------------------------------------------------------------------------------------------------------

ASCII = {
    "±": "+-", "−": "-", "–": "-", "—": "-", "×": "x", "·": "*", "≥": ">=", "≤": "<=", "≈": "~", "→": "->", "…": "...",
    "’": "'", "µ": "u", "²": "^2", "◆": "*",
}  # fmt: skip
"""Replacements of characters where the output encoding is ASCII; Greek letters are spelt out."""


def replace_unprintable() -> None:
    """Let stdout and stderr replace characters that their encoding does not have, instead of raising an error."""
    codecs.register_error("rpsp", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        # The defaults of Python, the last one in the C locale. Another choice is the user's and stays.
        defaults = ("strict", "backslashreplace", "surrogateescape")
        if isinstance(stream, io.TextIOWrapper) and stream.errors in defaults:
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


def flush() -> None:
    """Flush stdout. If its reader has closed it, drop the rest; otherwise Python would print an error at exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
