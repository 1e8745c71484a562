"""Part of the split of a larger module."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

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
"""Dashes and gaps, in widths of the line."""


class Style(NamedTuple):
    """How a method's curves are drawn, wherever they are drawn."""

    colour: str
    dash: tuple[float, ...] = SOLID


# A colour is a family of methods (or, in the paper's own, an update), its dashes tell the members apart. Four colours
# are of Tol's muted palette, chosen to go with Okabe and Ito's.
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
    "fm2-ppo": Style("#E69F00", MIXED),
    "fm2-sac": Style("#E69F00", LONG),
    "gru16": Style("#CC79A7", DOTTED),
    "gru32": Style("#CC79A7"),
    "gru64": Style("#CC79A7", DASHED),
    "gru128": Style("#CC79A7", MIXED),
    "reg-gru": Style("#332288"),
    "reg-gru-vrpg": Style("#332288", DASHED),
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
    "svg.hashsalt": "rpsp",  # the same figure gives the same file
}
"""Settings of Matplotlib that hold while a figure of this module is drawn or saved, and are restored afterwards."""
styled = matplotlib.rc_context(STYLE)
"""Decorator for functions that draw."""


def subplots(rows: int = 1, columns: int = 1, *, size: tuple[float, float], sharex: bool = False) -> tuple[Figure, Any]:
    """Create a figure and a `[rows, columns]` grid of axes, without pyplot and whatever back end the user has chosen."""
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, sharex=sharex, squeeze=False)


def style(method: str, i: int = 0) -> Style:
    """A method's own style; the i-th of a cycle for a user's method, which the map does not know.

    A variant, as in "rpsp-alt, refits", has its method's colour and a line of dots and dashes.
    """
    name, _, variant = method.partition(",")
    if name not in METHOD_STYLES:
        return Style(CYCLE[i % len(CYCLE)], MIXED)
    return METHOD_STYLES[name]._replace(dash=MIXED) if variant else METHOD_STYLES[name]


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """How all methods of a figure are drawn: as ever, and variants in shades and dashes that no other has."""
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
"""What a variant's colour is mixed with, black or white, and how much of it."""
DASHES = (MIXED, DASHED, DOTTED)
COLOURS_KEPT = 96


@styled
def save(figure: Figure, directory: Path, name: str, width: int | None = None) -> Path:
    """Write a figure as PNG and SVG; the PNG's path. With a width, in pixels at most, as a PNG of few colours alone."""
    path = directory / f"{name}.png"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if width is not None:
            with io.BytesIO() as drawn:
                figure.savefig(drawn, dpi=min(160, width / figure.get_figwidth()))
                with Image.open(drawn) as image:
                    image.convert("RGB").quantize(COLOURS_KEPT, Image.Quantize.FASTOCTREE).save(path, optimize=True)
        else:
            figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
            figure.savefig(path, dpi=160)
    except OSError as error:
        raise StorageError(f"{path}: the figure could not be written ({error.strerror}).") from error
    return path
