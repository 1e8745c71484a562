"""What objects look like in a notebook: small HTML tables and curves, and the curve of a run while it trains."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rpsp.experiments.words import clock, number

WIDTH, HEIGHT, MARGIN = 420, 130, 44
COLOUR = "#0072B2"
PERIOD = 0.5
"""Seconds between two drawings of a live curve."""
MOST_POINTS = 400
"""Maximum number of points of a curve. Longer ones are thinned."""


def curve(x: Sequence[float], y: Sequence[float], across: str, up: str, *, log: bool = False) -> str:
    """Return a curve as SVG.

    Args:
        x: positions. Points whose y is not finite are left out.
        y: values.
        across: label of the horizontal axis.
        up: label of the vertical axis.
        log: whether the vertical axis is logarithmic. Values ≤ 0 are then left out.
    """
    points = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b) and (b > 0 or not log)]
    points = points[:: max(1, len(points) // MOST_POINTS)]
    if not points:
        return ""
    heights = [math.log(b) if log else b for _, b in points]
    left, right, low, high = points[0][0], points[-1][0], min(heights), max(heights)
    wide, tall = (right - left) or 1.0, (high - low) or 1.0
    places = [
        f"{MARGIN + (a - left) / wide * (WIDTH - MARGIN - 8):.1f},{HEIGHT - 24 - (h - low) / tall * (HEIGHT - 36):.1f}"
        for (a, _), h in zip(points, heights, strict=True)
    ]
    top, bottom = (number(math.exp(v) if log else v) for v in (high, low))
    label = 'fill="currentColor" font-size="11" opacity="0.75" text-anchor="{}" x="{}" y="{}"'.format
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(up)}" '
        'style="font-family:sans-serif;max-width:100%">'
        f'<polyline fill="none" stroke="{COLOUR}" stroke-width="2" points="{" ".join(places)}"/>'
        f"<text {label('end', MARGIN - 4, 16)}>{top}</text><text {label('end', MARGIN - 4, HEIGHT - 22)}>{bottom}</text>"
        f"<text {label('start', MARGIN, HEIGHT - 6)}>{number(left)}</text>"
        f"<text {label('end', WIDTH - 8, HEIGHT - 6)}>{number(right)} {escape(across)}</text></svg>"
    )


def described(title: str, rows: Mapping[str, str], *drawings: str) -> str:
    """Return a title, a table of two columns, and drawings."""
    cells = "".join(
        f'<tr><td style="text-align:left;opacity:0.75">{escape(name)}</td>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in rows.items()
    )
    return f"<div><b>{escape(title)}</b><table>{cells}</table>{''.join(drawings)}</div>"


def run_html(results: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """Return what a finished run looks like.

    Args:
        results: the content of its results.json.
        records: the metrics of its iterations.
    """
    rows = {
        "return, last ten iterations": number(results["final_return"]),
        "best iteration": number(results["best_return"]),
        "environment steps": f"{results['samples']:,}",
        "time": clock(results.get("wall_seconds", 0)),
        "directory": str(results["directory"]),
    }
    if results.get("best_eval_return") is not None:
        rows["best evaluation"] = number(results["best_eval_return"])
    return described(f"{results['method']} on {results['env']}, seed {results['seed']}", rows, returns(records))


def returns(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the learning curve of a run as SVG."""
    steps = [float(r["total_samples"]) for r in records]
    return curve(steps, [float(r["mean_return"]) for r in records], "steps", "mean return")


def model_html(kind: str, errors: Mapping[str, Sequence[float]], fitted: bool, sizes: Mapping[str, str]) -> str:
    """Return what a predictive-state model looks like.

    Args:
        kind: the kind of its belief.
        errors: held-out errors over the horizon, of the model and the baselines.
        fitted: whether it is fitted.
        sizes: further rows.
    """
    rows = dict(sizes) if fitted else {"state": "not fitted yet"}
    rows |= {f"one-step error, {name}": f"{values[0]:.2g}" for name, values in errors.items() if len(values)}
    own = errors.get(kind, ())
    drawn = (
        curve(range(1, len(own) + 1), own, "steps ahead", "squared error / variance", log=True) if len(own) > 1 else ""
    )
    return described(f"PredictiveStateModel({kind!r})", rows, drawn)


# ---------------------------------------------------------------------------------------------------------------------
# While it trains
# ---------------------------------------------------------------------------------------------------------------------


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class LiveCurve:
    """The curve of a run in a notebook, drawn again while it trains.

    Args:
        title: the first line.
    """

    def __init__(self, title: str):
        from IPython.display import HTML, display  # only in a notebook # pyright: ignore[reportMissingImports]

        self._title, self._html = title, HTML
        self._records: list[Mapping[str, Any]] = []
        self._handle: Any = display(HTML(described(title, {"state": "exploring"})), display_id=True)
        self._drawn = time.monotonic()

    def show(self, record: Mapping[str, Any], text: str) -> None:
        """Add the record of an iteration.

        Args:
            record: the record.
            text: the progress as one line.
        """
        self._records.append(record)
        if time.monotonic() >= self._drawn + PERIOD:
            self.draw(text)

    def draw(self, text: str) -> None:
        """Draw the curve again."""
        self._drawn = time.monotonic()
        rows = {"latest": " ".join(text.split())} if text else {}
        self._handle.update(self._html(described(self._title, rows, returns(self._records))))
