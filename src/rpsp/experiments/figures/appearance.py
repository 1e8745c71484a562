"""Colours, line styles and saving, shared by all figures.

The colours can be told apart by colour-blind readers. A method has the same colour and dashes in every figure.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

from rpsp.errors import StorageError
from rpsp.experiments.comparison import base_method

# Okabe and Ito's palette.
COLOURS = {
    "inference": "#0072B2",
    "kernel-bayes": "#D55E00",
    "gru": "#CC79A7",
    "tabular": "#009E73",
    "linear AR(10)": "#E69F00",
    "persistence": "#56B4E9",
    "mean": "#999999",
}

SOLID, DASHED, DOTTED, MIXED, LONG = (), (5.0, 2.0), (1.2, 1.4), (6.0, 1.6, 1.2, 1.6), (11.0, 2.0)
"""Dash patterns: lengths of dashes and gaps in units of the line width."""


class Style(NamedTuple):
    """Colour and dashes of a method's curves, used in every figure."""

    colour: str
    dash: tuple[float, ...] = SOLID


# A colour stands for a family of methods (for the paper's methods: an algorithm); dashes tell the members apart. Six
# colours come from Tol's muted palette, chosen to match Okabe and Ito's.
METHOD_STYLES = {
    "rpsp-alt": Style("#D55E00"),
    "rpsp-alt+obs": Style("#D55E00", DASHED),
    "rpsp-vrpg": Style("#882255"),
    "rpsp-vrpg+obs": Style("#882255", DASHED),
    "fix-psr": Style("#56B4E9"),
    "reactive-psr": Style("#999933"),
    "random-psr": Style("#888888"),
    "fm1": Style("#E69F00", DOTTED),
    "fm2": Style("#E69F00"),
    "fm5": Style("#E69F00", DASHED),
    "fm1-vrpg": Style("#117733", DOTTED),
    "fm2-vrpg": Style("#117733"),
    "fm5-vrpg": Style("#117733", DASHED),
    "fm10a": Style("#DDCC77"),
    "fm10a-pca": Style("#DDCC77", DASHED),
    "fm2-ppo": Style("#E69F00", MIXED),
    "fm2-sac": Style("#E69F00", LONG),
    "gru16": Style("#CC79A7", DOTTED),
    "gru32": Style("#CC79A7"),
    "gru64": Style("#CC79A7", DASHED),
    "gru128": Style("#CC79A7", MIXED),
    "gru-sac": Style("#CC79A7", LONG),
    "reg-gru": Style("#332288"),
    "reg-gru-vrpg": Style("#332288", DASHED),
    "rpsr-alt": Style("#44AA99"),
    "rpsi-trpo": Style("#0072B2"),
    "rpsi-alt": Style("#0072B2", DASHED),
    "rpsi-ppo": Style("#0072B2", MIXED),
    "rpsi-sac": Style("#0072B2", LONG),
    "tabular": Style("#009E73"),
    "recurrent-ppo": Style("#000000", DASHED),
}
CYCLE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000"]

STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "svg.hashsalt": "rpsp",  # makes SVG files reproducible
}
"""Matplotlib settings applied while a figure is drawn or saved, and restored afterwards."""
styled = matplotlib.rc_context(STYLE)
"""Decorator that applies `STYLE` while a drawing function runs."""


def subplots(rows: int = 1, columns: int = 1, *, size: tuple[float, float], sharex: bool = False) -> tuple[Figure, Any]:
    """Create a figure with a grid of axes, without pyplot and independent of the user's back end.

    Args:
        rows: number of rows.
        columns: number of columns.
        size: width and height in inches.
        sharex: whether all axes share the x axis.

    Returns:
        The figure and a `[rows, columns]` array of axes.
    """
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, sharex=sharex, squeeze=False)


def style(method: str, i: int = 0) -> Style:
    """Return the style of one method.

    Args:
        method: label of the method. A variant such as `"rpsp-alt, refits"` has the colour of its method and mixed
            dashes.
        i: position in the colour cycle, used for methods that are not in `METHOD_STYLES`.
    """
    name, _, variant = method.partition(",")
    if name not in METHOD_STYLES:
        return Style(CYCLE[i % len(CYCLE)], MIXED)
    return METHOD_STYLES[name]._replace(dash=MIXED) if variant else METHOD_STYLES[name]


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """Return a distinct style for each method of a figure.

    Known methods keep their style. Variants of a known method get a shade of its colour and dashes that no other method
    of the figure has.
    """
    looks = {method: style(method, i) for i, method in enumerate(dict.fromkeys(methods))}
    taken = {look for method, look in looks.items() if method in METHOD_STYLES}
    for method in looks:
        if method not in METHOD_STYLES and base_method(method) in METHOD_STYLES:
            own = np.array(to_rgb(looks[method].colour))
            for (to, amount), dash in zip(SHADES, itertools.cycle(DASHES), strict=False):
                looks[method] = Style(to_hex(((1 - amount) * own + amount * to).tolist()).upper(), dash)
                if looks[method] not in taken:
                    break
            taken.add(looks[method])
    return looks


SHADES = ((0.0, 0.0), (0.0, 0.4), (1.0, 0.4), (0.0, 0.65), (1.0, 0.65), (0.0, 0.2), (1.0, 0.2), (0.0, 0.5))
"""Shades of a variant's colour: the colour it is mixed with (0 is black, 1 is white) and in what proportion."""
DASHES = (MIXED, DASHED, DOTTED)
COLOURS_KEPT = 96
"""Number of colours in the palette of a PNG with a limited width."""


@styled
def save(
    figure: Figure,
    directory: Path,
    name: str,
    width: int | None = None,
    formats: Sequence[Literal["png", "svg"]] = ("png", "svg"),
) -> Path:
    """Write a figure to disk.

    Args:
        figure: the figure.
        directory: directory to write to. It is created if it does not exist.
        name: file name without suffix.
        width: largest width in pixels. If given, only a PNG with a small palette is written, which keeps the file
            small.
        formats: file formats to write if no width is given.

    Returns:
        The path of the first file written.

    Raises:
        StorageError: if a file could not be written.
    """
    path = directory / f"{name}.{'png' if width is not None else formats[0]}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if width is not None:
            with io.BytesIO() as drawn:
                figure.savefig(drawn, dpi=min(160, width / figure.get_figwidth()))
                with Image.open(drawn) as image:
                    image.convert("RGB").quantize(COLOURS_KEPT, Image.Quantize.FASTOCTREE).save(path, optimize=True)
        else:
            for format in formats:
                options: dict[str, Any] = {"metadata": {"Date": None}} if format == "svg" else {"dpi": 160}
                figure.savefig(directory / f"{name}.{format}", **options)
    except OSError as error:
        raise StorageError(f"{path}: the figure could not be written ({error.strerror}).") from error
    return path
