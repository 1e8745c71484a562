"""Format numbers and durations. All tables, reports and messages use these functions."""

from __future__ import annotations

import math
from typing import Any


def clock(seconds: float) -> str:
    """Format a duration as 1:02:03, or as 2:03 if it is less than an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def number(value: Any) -> str:
    """Format a number with about three digits and commas for thousands. NaN and infinite values give a dash."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 or value == 0 else f"{value:.3g}"


def mean_with_error(mean: Any, error: Any) -> str:
    """Format a mean and its error, rounded to the same digit.

    The error has two significant digits, and the mean ends at the same digit: `1,620 ± 200`, `46.5 ± 1.8`. A mean has
    at most two decimals if it is 100 or more, and otherwise at most five significant digits: `200.00 ± 0.04`.

    Args:
        mean: a number.
        error: a standard error or standard deviation. If it is NaN, as for a single run, only the mean is shown.

    Returns:
        The text, or a dash if the mean is not a finite number.
    """
    if "–" in (number(mean), number(error)):
        return number(mean)
    if error <= 0:
        return f"{number(mean)} ± 0"
    place = _leading_place(float(f"{error:.1e}"))  # of the rounded error: 9.96 is 10
    decimals = min(1 - place, max(2, 4 - _leading_place(max(abs(mean), error))))
    shown = max(0, decimals)
    return " ± ".join(f"{round(value, decimals) + 0.0:,.{shown}f}" for value in (mean, error))  # + 0.0 turns -0 into 0


def _leading_place(value: float) -> int:
    """Return the exponent of the first digit."""
    return math.floor(math.log10(value))
