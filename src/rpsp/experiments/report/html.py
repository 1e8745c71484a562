"""Part of the split of a larger module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from rpsp.experiments.figures.appearance import Style
from rpsp.experiments.report.assets import CSS, PAGE, SCRIPT

MOST_LISTED = 10  # sentences, or runs, that are listed unfolded


# ---------------------------------------------------------------------------------------------------------------------
# Charts
# ---------------------------------------------------------------------------------------------------------------------


class Scale(NamedTuple):
    """One axis: from numbers to 0 … 1."""

    low: float
    high: float
    log: bool = False

    @staticmethod
    def around(values: Iterable[float], log: bool = False, zero: bool = False) -> Scale:
        """An axis that holds all of these that are finite; from zero on if told, or if that is not far away."""
        finite = [v for v in values if abs(v) < 1e300 and (v > 0 or not log)] or [1.0 if log else 0.0]
        low, high = min(finite), max(finite)
        if log:
            return Scale(low / 1.3, high * 1.3, True)
        if zero or 0 < low < 0.4 * high:
            low = min(low, 0.0)
        margin = 0.04 * (high - low) or max(1e-9, 0.1 * abs(high)) or 1.0
        return Scale(low if low == 0 else low - margin, high + margin)

    def at(self, value: float) -> float:
        return float(self.positions([value])[0])

    def positions(self, values: Sequence[float]) -> np.ndarray:
        """Where on the axis these lie; what cannot be drawn is not finite."""
        with np.errstate(invalid="ignore", divide="ignore"):
            low, high, at = (np.log(v) if self.log else np.asarray(v, float) for v in (self.low, self.high, values))
            return (at - low) / (high - low)

    def ticks(self) -> list[tuple[float, str]]:
        """About five places on the axis, and what is written there."""
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
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if step >= unit / 10 and abs(value) >= unit:
            return f"{value / unit:g}{letter}"
    decimals = max(0, -math.floor(math.log10(step)))
    return f"{value:.{decimals}f}".replace("-", "−") if decimals <= 4 else f"{value:.1e}"


class Line(NamedTuple):
    """A curve of a chart."""

    name: str
    group: int
    """What it is shown and hidden with."""
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    kind: str = "line"
    """Its class in the style sheet."""
    error: Sequence[float] | None = None
    """How far the band around it reaches; a number that is not finite has none."""


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
    """One chart: curves over marks that lie beneath them."""
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
    dash = "".join(f"{2.2 * length:g} " for length in line.style.dash).strip()
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path class="{line.kind}" data-name="{escape(line.name)}" data-group="{line.group}" '
        f'style="--c:{line.style.colour}"{dashed} d="{_path(line.x, line.y, x, y)}"/>'
    )


def _band(line: Line, x: Scale, y: Scale) -> str:
    if line.error is None:
        return ""
    mean, error = np.asarray(line.y), np.asarray(line.error)
    return area(line.x, (mean - error).tolist(), (mean + error).tolist(), x, y, line.style.colour, "band", line.group)


def _path(xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale) -> str:
    """The points, joined where they are neighbours and can be drawn."""
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
    """What lies between two curves."""
    if not np.isfinite([*lower, *upper]).all():
        return ""
    path = _path([*xs, *reversed(xs)], [*lower, *reversed(upper)], x, y)
    return f'<path class="{kind}" data-group="{group}" style="--c:{colour}" d="{path}Z"/>' if path else ""


def across(at: float) -> str:
    """Where on the axis, as the drawing has it."""
    return f"{1000 * min(max(at, -9.0), 9.0):.1f}".removesuffix(".0")


def up(at: float) -> str:
    """The same for the axis that goes up."""
    return f"{1000 - 1000 * min(max(at, -9.0), 9.0):.1f}".removesuffix(".0")


def swatch(look: Style) -> str:
    """A piece of a line."""
    dash = " ".join(f"{2 * length:g}" for length in look.dash)
    return (
        f'<svg class="swatch" viewBox="0 0 24 6" aria-hidden="true"><path class="line" style="--c:{look.colour}" '
        f'stroke-dasharray="{dash}" d="M0 3H24"/></svg>'
    )


def toggle(text: str, group: int | None = None, mark: str = "", pressed: bool = True) -> str:
    """A button that shows and hides the curves of a group, or else all single runs, within its section."""
    which = "" if group is None else f' data-group="{group}"'
    return f'<button type="button" aria-pressed="{str(pressed).lower()}"{which}>{mark}{escape(text)}</button>'


# ---------------------------------------------------------------------------------------------------------------------
# Tables
# ---------------------------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """Of a table."""

    text: str
    value: float | None = None
    """What it is sorted by, where not by its text."""
    mark: str = ""
    """HTML before the text."""


def table(head: Sequence[str], rows: Iterable[Sequence[Cell | str]], sortable: bool = False, kind: str = "") -> str:
    """A table that scrolls within itself; sortable by a click on its head."""
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
    text, value, mark = Cell(cell) if isinstance(cell, str) else cell
    sorted_by = "" if value is None else f' data-value="{value:g}"'
    return f"<td{sorted_by}>{mark}{escape(text)}</td>"


def folded(title: str, about: str, body: str, is_open: bool = False) -> str:
    """What is shown when asked for."""
    shown = " open" if is_open else ""
    return f"<details{shown}><summary><b>{escape(title)}</b> {escape(about)}</summary>{body}</details>"


# ---------------------------------------------------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------------------------------------------------


def frame(title: str, lead: str, body: str, refresh: float | None = None) -> str:
    """The whole page; the lead and the body are HTML. With `refresh` it loads itself again after so many seconds."""
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{max(1, round(refresh))}">\n'
    return PAGE.substitute(title=escape(title), lead=lead, body=body, refresh=again, style=CSS, script=SCRIPT)


def warnings(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    lines = [f"<p>{escape(sentence)}</p>" for sentence in sentences]
    if more := lines[MOST_LISTED:]:
        lines[MOST_LISTED:] = [folded(f"{len(more)} more", "", "".join(more))]
    return f'<div class="warnings" role="note">{"".join(lines)}</div>'


def steps_axis(curves: Iterable[Sequence[float]]) -> Scale:
    return Scale(0.0, max([1.0, *(step for steps in curves for step in steps if abs(step) < 1e300)]))


STEPS = "environment steps, exploration included"
ERROR = "one step ahead, squared, over variance; the pale line is persistence (nothing changes)"
