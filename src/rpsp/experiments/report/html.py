"""Building blocks of a report: charts, tables, and the page around them. This module does not depend on runs.

Charts are SVG stretched to the width of the page. Their labels are HTML, which is not stretched and stays readable on
screens of any size. The script reads the values it displays from the paths of the curves. All text arguments are
escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from rpsp.experiments.figures.appearance import Style
from rpsp.experiments.report.assets import CSS, PAGE, SCRIPT

MOST_LISTED = 10
"""Longer lists are folded after this many items."""


# ---------------------------------------------------------------------------------------------------------------------
# Charts
# ---------------------------------------------------------------------------------------------------------------------


class Scale(NamedTuple):
    """An axis: maps values to the range 0 to 1."""

    low: float
    high: float
    log: bool = False

    @staticmethod
    def around(values: Iterable[float], log: bool = False, zero: bool = False) -> Scale:
        """Create an axis that contains all finite values.

        Args:
            values: values to show. Values ≤ 0 are ignored on a logarithmic axis.
            log: whether the axis is logarithmic.
            zero: whether the axis includes zero. It always does if zero is close to the values.
        """
        finite = [v for v in values if abs(v) < 1e300 and (v > 0 or not log)] or [1.0 if log else 0.0]
        low, high = min(finite), max(finite)
        if log:
            return Scale(low / 1.3, high * 1.3, True)
        if zero or 0 < low < 0.4 * high:
            low = min(low, 0.0)
        margin = 0.04 * (high - low) or max(1e-9, 0.1 * abs(high)) or 1.0
        return Scale(low if low == 0 else low - margin, high + margin)

    def at(self, value: float) -> float:
        """Return the position of one value."""
        return float(self.positions([value])[0])

    def positions(self, values: Sequence[float]) -> np.ndarray:
        """Return the positions of values. They are NaN or infinite for values that cannot be drawn."""
        with np.errstate(invalid="ignore", divide="ignore"):
            low, high, at = (np.log(v) if self.log else np.asarray(v, float) for v in (self.low, self.high, values))
            return (at - low) / (high - low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return positions and labels of about five ticks."""
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            powers = range(first, last + 1, max(1, -(-(last - first) // 5)))
            if len(powers) > 1:
                return [(self.at(10.0**p), f"10{str(p).translate(_SUPERSCRIPT)}") for p in powers]
            return [(self.at(v), f"{v:.2g}") for v in (self.low * 1.05, self.high / 1.05)]
        raw = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw)
        values = [k * step for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [(self.at(v), _tick(v, step)) for v in values]


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _tick(value: float, step: float) -> str:
    """Format the label of a tick."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if step >= unit / 10 and abs(value) >= unit:
            return f"{value / unit:g}{letter}"
    decimals = max(0, -math.floor(math.log10(step)))
    return f"{value:.{decimals}f}".replace("-", "−") if decimals <= 4 else f"{value:.1e}"


class Line(NamedTuple):
    """A curve of a chart."""

    name: str
    group: int
    """Curves and bands of a group are shown and hidden together."""
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    kind: str = "line"
    """Class in the style sheet."""
    error: Sequence[float] | None = None
    """Half the height of the band around the curve. There is no band where the value is not finite."""


def chart(
    title: str,
    lines: Sequence[Line],
    x: Scale,
    y: Scale,
    *,
    note: str = "",
    label: str = "",
    marks: str = "",
    kind: str = "",
) -> str:
    """Return a chart.

    Args:
        title: title of the chart.
        lines: curves.
        x: horizontal axis.
        y: vertical axis.
        note: explanation after the title.
        label: label of the horizontal axis.
        marks: SVG drawn below the curves.
        kind: class in the style sheet.
    """
    below, left = x.ticks(), y.ticks()
    grid = "".join(f'<path class="grid" d="M0 {up(at)}H1000"/>' for at, _ in left)
    curves = "".join(_band(line, x, y) for line in lines) + "".join(_curve(line, x, y) for line in lines)
    beside = "".join(f'<span style="top:{100 - 100 * at:.2f}%">{escape(text)}</span>' for at, text in left)
    under = "".join(f'<span style="left:{100 * at:.2f}%">{escape(text)}</span>' for at, text in below)
    data = f'data-x="{x.low:g} {x.high:g} {x.log:d}" data-y="{y.low!r} {y.high!r} {y.log:d}"'
    return (
        f'<figure class="chart {kind}"><figcaption><b>{escape(title)}</b> {escape(note)}</figcaption>'
        f'<div class="plot" {data}><div class="left">{beside}</div>'
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">'
        f'{grid}{marks}{curves}</svg><div class="below">{under}</div></div>'
        f'<div class="label">{escape(label)}</div></figure>'
    )


def _curve(line: Line, x: Scale, y: Scale) -> str:
    """Return the SVG path of a curve."""
    dash = "".join(f"{2.2 * length:g} " for length in line.style.dash).strip()
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path class="{line.kind}" data-name="{escape(line.name)}" data-group="{line.group}" '
        f'style="--c:{line.style.colour}"{dashed} d="{_path(line.x, line.y, x, y)}"/>'
    )


def _band(line: Line, x: Scale, y: Scale) -> str:
    """Return the SVG path of a curve's band, or an empty string if it has none."""
    if line.error is None:
        return ""
    mean, error = np.asarray(line.y), np.asarray(line.error)
    return area(line.x, (mean - error).tolist(), (mean + error).tolist(), x, y, line.style.colour, "band", line.group)


def _path(xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale) -> str:
    """Return SVG path data through the points. Points that cannot be drawn interrupt the path."""
    points = np.stack([x.positions(xs), 1 - y.positions(ys)], axis=1)
    drawn = np.asarray(np.isfinite(points).all(axis=1))
    first = drawn & ~np.append(False, drawn[:-1])
    rounded = np.round(1000 * np.clip(points[drawn], -9, 9), 1).tolist()
    pens = np.where(first, "M", "L")[drawn].tolist()
    return "".join(f"{pen}{right:g} {down:g}" for pen, (right, down) in zip(pens, rounded, strict=True))


def area(
    xs: Sequence[float],
    lower: Sequence[float],
    upper: Sequence[float],
    x: Scale,
    y: Scale,
    colour: str,
    kind: str,
    group: int = 0,
) -> str:
    """Return the SVG path of the area between two curves, or an empty string if a value is not finite."""
    if not np.isfinite([*lower, *upper]).all():
        return ""
    path = _path([*xs, *reversed(xs)], [*lower, *reversed(upper)], x, y)
    return f'<path class="{kind}" data-group="{group}" style="--c:{colour}" d="{path}Z"/>' if path else ""


def across(at: float) -> str:
    """Return the SVG x coordinate of a position on the horizontal axis."""
    return f"{1000 * min(max(at, -9.0), 9.0):.1f}".removesuffix(".0")


def up(at: float) -> str:
    """Return the SVG y coordinate of a position on the vertical axis."""
    return f"{1000 - 1000 * min(max(at, -9.0), 9.0):.1f}".removesuffix(".0")


def swatch(look: Style) -> str:
    """Return a short sample of a line."""
    dash = " ".join(f"{2 * length:g}" for length in look.dash)
    return (
        f'<svg class="swatch" viewBox="0 0 24 6" aria-hidden="true"><path class="line" style="--c:{look.colour}" '
        f'stroke-dasharray="{dash}" d="M0 3H24"/></svg>'
    )


def toggle(text: str, group: int | None = None, mark: str = "", pressed: bool = True) -> str:
    """Return a button that shows and hides curves within its section: those of a group, or all individual runs."""
    which = "" if group is None else f' data-group="{group}"'
    return f'<button type="button" aria-pressed="{str(pressed).lower()}"{which}>{mark}{escape(text)}</button>'


# ---------------------------------------------------------------------------------------------------------------------
# Tables
# ---------------------------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A table cell."""

    text: str
    value: float | None = None
    """Sort key. Default: the text."""
    mark: str = ""
    """HTML before the text."""


def table(head: Sequence[str], rows: Iterable[Sequence[Cell | str]], sortable: bool = False, kind: str = "") -> str:
    """Return a table that scrolls horizontally. If sortable, a click on a column head sorts it."""
    heads = "".join(
        f'<th scope="col"><button type="button">{escape(name)}</button></th>'
        if sortable
        else f"<th>{escape(name)}</th>"
        for name in head
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" aria-label="a table" tabindex="0"><table class="{kind}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell | str) -> str:
    """Return the HTML of a cell."""
    text, value, mark = Cell(cell) if isinstance(cell, str) else cell
    sorted_by = "" if value is None else f' data-value="{value:g}"'
    return f"<td{sorted_by}>{mark}{escape(text)}</td>"


def folded(title: str, about: str, body: str, is_open: bool = False) -> str:
    """Return a section that can be opened and closed."""
    shown = " open" if is_open else ""
    return f"<details{shown}><summary><b>{escape(title)}</b> {escape(about)}</summary>{body}</details>"


# ---------------------------------------------------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------------------------------------------------


def frame(title: str, lead: str, body: str, refresh: float | None = None) -> str:
    """Return the whole page.

    Args:
        title: title of the page.
        lead: HTML of the introduction.
        body: HTML of the content.
        refresh: if given, the browser reloads the page after this many seconds.
    """
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{max(1, round(refresh))}">\n'
    return PAGE.substitute(title=escape(title), lead=lead, body=body, refresh=again, style=CSS, script=SCRIPT)


def warnings(sentences: Sequence[str]) -> str:
    """Return a box with warnings. Long lists are folded."""
    if not sentences:
        return ""
    lines = [f"<p>{escape(sentence)}</p>" for sentence in sentences]
    if more := lines[MOST_LISTED:]:
        lines[MOST_LISTED:] = [folded(f"{len(more)} more", "", "".join(more))]
    return f'<div class="warnings" role="note">{"".join(lines)}</div>'


def steps_axis(curves: Iterable[Sequence[float]]) -> Scale:
    """Return an axis for environment steps that starts at zero."""
    return Scale(0.0, max([1.0, *(step for steps in curves for step in steps if abs(step) < 1e300)]))


STEPS = "environment steps, including exploration"
ERROR = "one-step squared error / variance; the pale line is persistence (no change)"
