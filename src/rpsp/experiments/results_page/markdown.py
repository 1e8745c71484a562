"""Part of the split of a larger module."""

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
    """A table whose first columns are words and whose others are numbers."""
    lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def between(text: str, mark: str, content: str) -> str:
    """A text with what stands between `<!-- mark -->` and `<!-- /mark -->` replaced."""
    before, _, after = text.partition(f"<!-- {mark} -->\n")
    return f"{before}<!-- {mark} -->\n{content}{after[after.index(f'<!-- /{mark} -->') :]}"


def paragraph(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %".replace("-", "−")


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def mean_and_error_text(mean: Any, error: Any) -> str:
    """A mean and its standard error, without a line break between them."""
    return mean_with_error(float(mean), float(error)).replace(" ", "\u00a0")


def seeds_text(values: np.ndarray) -> str:
    """The mean of runs, its standard error, and their number."""
    return f"{mean_and_error_text(*statistics.mean_and_error(values))}\u00a0({len(values)})"


def p_text(value: float) -> str:
    return "–" if np.isnan(value) else "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def code(name: str, label: str) -> str:
    """A curve by its name, and the method that stands for it unless that is its name."""
    return f"`{label}`" if name == label else f"{name} (`{label}`)"
