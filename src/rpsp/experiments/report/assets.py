"""Page template, style sheet and script of a report."""

from __future__ import annotations

from string import Template

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
// The same as mean_with_error in words.py: the error has two digits, and the mean ends at the same digit.
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
try { turned = JSON.parse(sessionStorage.getItem(place)) || {}; } catch { }  // storage may be disabled
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
