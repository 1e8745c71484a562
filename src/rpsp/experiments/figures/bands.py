"""Figures of predictive distributions: a log and its continuation, and whether bands contain what they claim."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from rpsp.experiments.figures.appearance import CYCLE, styled, subplots

SHOWN = 6
"""Largest number of observations in one figure."""


@styled
def continuation(
    readings: Float[np.ndarray, "rows obs"],
    known: int,
    mean: Float[np.ndarray, "horizon obs"],
    band: tuple[Float[np.ndarray, "horizon obs"], Float[np.ndarray, "horizon obs"]],
    names: list[str],
    level: float,
    title: str = "",
) -> Figure:
    """Plot the end of a recording and its forecast.

    Args:
        readings: all readings, NaN where nothing was read.
        known: number of rows that the forecast is based on.
        mean: the forecast of the rows after them.
        band: lower and upper ends.
        names: names of the observations. The first six are drawn.
        level: share of readings that the bands contain.
        title: title of the figure.
    """
    names = names[:SHOWN]
    figure, grid = subplots(len(names), size=(8.0, 1.0 + 1.7 * len(names)), sharex=True)
    first = max(0, known - max(40, 3 * len(mean)))
    before, ahead = np.arange(first, known), np.arange(known, known + len(mean))
    for i, (axes, name) in enumerate(zip(grid[:, 0], names, strict=True)):
        axes.axvline(known - 0.5, color="0.8", lw=1, zorder=0)
        axes.fill_between(
            ahead, band[0][:, i], band[1][:, i], color=CYCLE[0], alpha=0.25, lw=0, label=f"{level:.0%} band"
        )
        axes.plot(ahead, mean[:, i], color=CYCLE[0], lw=1.8, label="forecast")
        axes.plot(before, readings[before, i], color="black", lw=1.4, label="read")
        later = readings[ahead, i]
        if not np.isnan(later).all():
            axes.plot(ahead, later, "o", color="black", ms=3, label="read, but not known to the forecast")
        axes.set_ylabel(name)
    grid[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, fontsize=9)
    grid[-1, 0].set_xlabel("row of the episode")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


@styled
def calibration(
    levels: list[float], coverage: Float[np.ndarray, "horizon level"], horizons: list[int], title: str = ""
) -> Figure:
    """Plot the share of readings in the bands against the share that the bands should contain.

    Args:
        levels: the shares that the bands should contain.
        coverage: the shares that they contain, for each horizon.
        horizons: the numbers of steps ahead.
        title: title of the figure.
    """
    figure, ((axes,),) = subplots(size=(5.0, 4.4))
    axes.plot([0, 1], [0, 1], color="0.7", lw=1, label="as claimed")
    for i, (horizon, shares) in enumerate(zip(horizons, coverage, strict=True)):
        label = f"{horizon} step{'s' * (horizon > 1)} ahead"
        axes.plot(levels, shares, color=CYCLE[i % len(CYCLE)], lw=1.8, marker="o", ms=4, label=label)
    axes.set_xlabel("share that a band should contain")
    axes.set_ylabel("share of readings in the band")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.legend(fontsize=9)
    axes.set_title(title, loc="left")
    return figure
