"""Tables, paragraphs and numbers as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rpsp.experiments import statistics
from rpsp.experiments.words import mean_with_error

if TYPE_CHECKING:
    pass


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table. The first `left` columns are left-aligned, the others right-aligned."""
    lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def between(text: str, mark: str, content: str) -> str:
    """Replace the text between `<!-- mark -->` and `<!-- /mark -->`."""
    before, _, after = text.partition(f"<!-- {mark} -->\n")
    return f"{before}<!-- {mark} -->\n{content}{after[after.index(f'<!-- /{mark} -->') :]}"


def paragraph(text: str) -> str:
    """Wrap a paragraph at 120 columns."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def percent(value: float) -> str:
    """Format a fraction as a signed percentage."""
    return f"{100 * value:+.1f} %".replace("-", "−")


def plural(count: int, what: str) -> str:
    """Format a count with its noun."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def mean_and_error_text(mean: Any, error: Any) -> str:
    """Format a mean and its standard error, with non-breaking spaces."""
    return mean_with_error(float(mean), float(error)).replace(" ", "\u00a0")


def seeds_text(values: np.ndarray) -> str:
    """Format the mean of runs, its standard error, and the number of runs."""
    return f"{mean_and_error_text(*statistics.mean_and_error(values))}\u00a0({len(values)})"


def p_text(value: float) -> str:
    """Format a p-value."""
    return "–" if np.isnan(value) else "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def code(name: str, label: str) -> str:
    """Format the name of a curve and the label of the method that represents it."""
    return f"`{label}`" if name == label else f"{name} (`{label}`)"
