"""What a report is made of: charts, tables, and the page around them. Knows no runs.

Charts are SVG that is stretched to the page, their labels HTML that is not: readable on a wall and on a phone. The script
reads the numbers it shows off the curves themselves. Whatever is given as text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from string import Template
from typing import NamedTuple

import numpy as np

from rpsp.experiments.figures import Style

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


PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; media-src data:">
$refresh<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
<header><h1>$title</h1><p class="lead">$lead</p></header>
$body
</main>
<script>$script</script>
</body>
</html>
""")

CSS = """
:root { color-scheme: light dark; --paper: #fff; --card: #f6f7f9; --ink: #16191d; --quiet: #626a75; --hair: #dfe3e8;
  --lift: 0%; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #101318; --card: #191d24; --ink: #e8ebef; --quiet: #98a1ad; --hair: #2b313a; --lift: 34%; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2.2rem 1.2rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -.015em; margin: 0; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.2rem 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; overflow-wrap: anywhere; }
.lead { font-size: 1.1rem; color: var(--quiet); margin: .4rem 0 1.6rem; }
.lead b { color: var(--ink); }
.note { color: var(--quiet); margin: .2rem 0 1rem; overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr)); gap: .7rem; margin: 0 0 1.6rem; }
.facts div { background: var(--card); border-radius: .6rem; padding: .6rem .8rem; }
.facts dt { color: var(--quiet); font-size: .82rem; }
.facts dd { margin: 0; font-size: 1.1rem; font-weight: 600; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
.scroll:focus-visible, button:focus-visible, summary:focus-visible { outline: 2px solid #56B4E9; outline-offset: 2px; }
.warnings { border-left: 4px solid #E69F00; background: var(--card); border-radius: 0 .6rem .6rem 0; padding: .6rem 1rem;
  margin: 0 0 1.4rem; overflow-wrap: anywhere; }
.warnings p { margin: .15rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--hair); vertical-align: top; }
th { color: var(--quiet); font-weight: 500; }
.summary { min-width: 100%; }
td, thead th { white-space: nowrap; }
.summary th + th, .summary td + td { text-align: right; padding: .3rem 0 .3rem 1.1rem; }
.runs td { min-width: 7rem; }
.runs td:first-child, .runs td:last-child, .pairs td { white-space: normal; overflow-wrap: anywhere; }
.made { margin-top: 1rem; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; text-align: inherit; }
th[aria-sort] button { color: var(--ink); }
th[aria-sort=descending] button::after { content: " ↓"; }
th[aria-sort=ascending] button::after { content: " ↑"; }
.swatch { width: 24px; height: 6px; margin-right: .5rem; vertical-align: middle; }
progress { width: 5rem; height: .5rem; margin-right: .6rem; accent-color: #0072B2; }
a { color: inherit; }
details { margin-top: 1rem; background: var(--card); border-radius: .6rem; padding: .7rem 1rem; }
details table { margin-top: .6rem; width: 100%; }
summary { cursor: pointer; color: var(--quiet); }
summary b { color: var(--ink); }
code { font-size: .9em; overflow-wrap: anywhere; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1rem; }
.chart { background: var(--card); border-radius: .6rem; margin: 0 0 1rem; padding: .8rem 1rem .6rem; min-width: 0;
  display: flex; flex-direction: column; }
.two .chart { margin: 0; }
figcaption { font-size: .9rem; color: var(--quiet); margin-bottom: .7rem; flex: 1; }
figcaption b { color: var(--ink); margin-right: .35rem; }
.plot { position: relative; height: 13rem; margin-left: 3.1rem; touch-action: pan-y; }
.wide .plot { height: 19rem; }
.low .plot { height: 8.5rem; }
.plot svg { display: block; width: 100%; height: 100%; overflow: hidden; border-bottom: 1px solid var(--quiet); }
.plot span { position: absolute; font-size: .78rem; color: var(--quiet); white-space: nowrap; line-height: 1;
  font-variant-numeric: tabular-nums; }
.left span { right: calc(100% + .5rem); transform: translateY(-50%); }
.below span { top: calc(100% + .45rem); transform: translateX(-50%); }
.label { font-size: .78rem; color: var(--quiet); text-align: center; margin: 1.45rem 0 0 3.1rem; line-height: 1.2; }
path { fill: none; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.grid { stroke: var(--hair); }
.line, .faint, .single, .ahead, .dot { stroke: color-mix(in srgb, var(--c), #fff var(--lift)); }
.line { stroke-width: 2.2px; }
.faint { stroke-width: 1.6px; opacity: .65; }
.single { stroke-width: 1px; opacity: .4; }
.means .single { display: none; }
.ahead { stroke-width: 4.5px; opacity: .75; }
.truth { stroke: var(--ink); stroke-width: 1.5px; }
.refit { stroke: var(--quiet); opacity: .35; }
.band { fill: color-mix(in srgb, var(--c), #fff var(--lift)); stroke: none; opacity: .15; }
.band.inner { opacity: .22; }
.dot { stroke-width: 8px; stroke-linecap: round; }
.hidden { display: none; }
.rule { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--quiet); opacity: .6; pointer-events: none; }
.tip { position: absolute; top: .3rem; z-index: 1; pointer-events: none; background: var(--paper); font-size: .8rem;
  border: 1px solid var(--hair); border-radius: .4rem; padding: .3rem .55rem; box-shadow: 0 2px 10px #0003;
  white-space: nowrap; font-variant-numeric: tabular-nums; }
.tip div { display: flex; justify-content: space-between; gap: .9rem; }
.tip div div { align-items: center; justify-content: flex-start; gap: 0; }
.tip i { display: inline-block; width: .6rem; height: .6rem; border-radius: 50%; margin-right: .4rem;
  background: color-mix(in srgb, var(--c), #fff var(--lift)); }
.legend { display: flex; flex-wrap: wrap; gap: .5rem; margin: .6rem 0 1rem; }
.legend button { font: inherit; font-size: .9rem; color: inherit; background: var(--card); border: 1px solid var(--hair);
  border-radius: 2rem; padding: .25rem .8rem; cursor: pointer; display: flex; align-items: center; text-align: left;
  overflow-wrap: anywhere; }
.legend button[aria-pressed=false] { opacity: .45; text-decoration: line-through; }
.legend svg { flex: none; }
.video { display: block; width: 100%; margin-top: 1rem; border-radius: .6rem; background: var(--card); }
@media (max-width: 34rem) {
  main { padding: 1.4rem .8rem 3rem; } h1 { font-size: 1.5rem; }
  .facts { grid-template-columns: 1fr 1fr; gap: .5rem; } .wide .plot { height: 14rem; }
  .chart { padding: .7rem .8rem .6rem .5rem; }
  .summary td:first-child { white-space: normal; min-width: 7.6rem; } progress { display: none; } }
@media print { details { break-inside: avoid; } .chart { break-inside: avoid; } }
"""

SCRIPT = """
'use strict';
const number = v => Math.abs(v) >= 1e4 ? Math.round(v).toLocaleString('en') :
  v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(1) : String(+v.toPrecision(4));
// As mean_with_error of runs.py: the error has two digits, and the mean ends at the same digit.
const withError = (mean, error) => {
  if (!(error > 0)) return number(mean);
  if (Math.abs(mean) < 1e-3) return number(mean) + ' ± ' + number(+error.toPrecision(2));
  const place = value => Math.floor(Math.log10(value));
  const most = Math.max(2, 4 - place(Math.max(Math.abs(mean), error)));
  const decimals = Math.min(1 - place(+error.toPrecision(2)), most), unit = 10 ** Math.max(0, -decimals);
  const shown = Math.max(0, decimals), options = {minimumFractionDigits: shown, maximumFractionDigits: shown};
  const rounded = v => (+(v / unit).toFixed(shown) * unit + 0).toLocaleString('en', options);
  return rounded(mean) + ' ± ' + rounded(error);
};
const element = (parent, name, kind, text) => {
  const made = parent.appendChild(document.createElement(name));
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
};
const read = path => path.getAttribute('d').split(/[ML]/).slice(1).map(p => p.split(' ').map(parseFloat));
for (const plot of document.querySelectorAll('.plot')) {
  const value = (name, at) => {
    const [low, high, log] = plot.dataset[name].split(' ').map(Number);
    return log ? low * (high / low) ** at : low + (high - low) * at;
  };
  const parse = () => [...plot.querySelectorAll('path[data-name]')].map(path => {
    const points = read(path);
    const band = plot.querySelector('.band[data-group="' + path.dataset.group + '"]');
    const edge = band && path.classList.contains('line') ? read(band) : [];
    points.forEach((point, i) => point[2] = edge.length === 2 * points.length ? edge[edge.length - 1 - i][1] : NaN);
    return {path, points, single: path.classList.contains('single'), reach: 12 + 500 / points.length};
  }).filter(curve => curve.points.length);
  let curves;
  if (!plot.querySelector('path[data-name]')) continue;
  const rule = element(plot, 'div', 'rule hidden'), tip = element(plot, 'div', 'tip hidden');
  const leave = () => { rule.classList.add('hidden'); tip.classList.add('hidden'); };
  const move = event => {
    const box = plot.querySelector('svg').getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * 1000, y = (event.clientY - box.top) / box.height * 1000;
    const near = [], off = curve => Math.abs(curve.point[1] - y);
    curves ??= parse();
    for (const {path, points, reach, single} of curves) {
      if (getComputedStyle(path).display === 'none') continue;
      const point = points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
      if (Math.abs(point[0] - x) <= reach) near.push({path, point, single});
    }
    near.sort((a, b) => off(a) - off(b));
    const shown = near.filter(curve => !curve.single).slice(0, 8).concat(near.filter(curve => curve.single).slice(0, 1));
    if (!shown.length) return leave();
    const at = shown[0].point[0];
    tip.replaceChildren();
    element(tip, 'div', '', plot.parentNode.querySelector('.label').textContent.split(',')[0] + ' ' +
      number(Math.round(value('x', at / 1000))));
    for (const {path, point} of shown.sort((a, b) => a.point[1] - b.point[1])) {
      const row = element(tip, 'div'), name = element(row, 'div');
      element(name, 'i').style.setProperty('--c', getComputedStyle(path).getPropertyValue('--c'));
      name.append(path.dataset.name);
      const middle = value('y', 1 - point[1] / 1000), error = value('y', 1 - point[2] / 1000) - middle;
      element(row, 'b', '', withError(middle, error));
    }
    rule.classList.remove('hidden'); tip.classList.remove('hidden');
    rule.style.left = at / 10 + '%';
    const beside = at / 1000 * box.width + (at < 500 ? 10 : -10 - tip.offsetWidth);
    tip.style.left = Math.max(6 - box.left, Math.min(beside, box.width - tip.offsetWidth)) + 'px';
  };
  plot.addEventListener('pointermove', move);
  plot.addEventListener('pointerdown', move);
  plot.addEventListener('pointerleave', leave);
}
const place = 'rpsp ' + location.pathname;
let turned = {};
try { turned = JSON.parse(sessionStorage.getItem(place)) || {}; } catch { }  // not where storage is forbidden
for (const button of document.querySelectorAll('button[aria-pressed]')) {
  const section = button.closest('.env'), {group} = button.dataset, name = section.dataset.task + '|' + button.textContent;
  const turn = shown => {
    button.setAttribute('aria-pressed', shown);
    if (group === undefined) section.classList.toggle('means', !shown);
    else for (const path of section.querySelectorAll('.plot [data-group="' + group + '"]'))
      path.classList.toggle('hidden', !shown);
  };
  if (name in turned) turn(turned[name]);
  button.addEventListener('click', () => {
    turn(turned[name] = button.getAttribute('aria-pressed') !== 'true');
    try { sessionStorage.setItem(place, JSON.stringify(turned)); } catch { }
  });
}
for (const button of document.querySelectorAll('th button'))
  button.addEventListener('click', () => {
    const cell = button.parentNode, body = cell.closest('table').tBodies[0];
    const sign = cell.getAttribute('aria-sort') === 'descending' ? 1 : -1;
    for (const other of cell.parentNode.cells) other.removeAttribute('aria-sort');
    cell.setAttribute('aria-sort', sign > 0 ? 'ascending' : 'descending');
    const key = row => row.cells[cell.cellIndex].dataset.value ?? row.cells[cell.cellIndex].textContent;
    const order = (a, b) => a === b ? 0 : a === 'nan' ? sign : b === 'nan' ? -sign :
      a - b || (isNaN(a - b) ? a.localeCompare(b) : 0);
    body.append(...[...body.rows].sort((a, b) => sign * order(key(a), key(b))));
  });
"""
