"""Figures of predictive distributions: a log and its continuation, and whether bands contain what they claim."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from rpsp.experiments.figures.appearance import CYCLE, styled, subplots
from rpsp.experiments.forecasting import Surprise

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


@styled
def surprise(found: Surprise, names: list[str], title: str = "") -> Figure:
    """Plot the surprise of an episode's readings over time: p-values above, z-scores of the sensors below.

    Args:
        found: what `PredictiveStateModel.surprise` returns.
        names: names of the observations. The six with the largest z-scores are drawn.
        title: title of the figure.
    """
    figure, grid = subplots(2, size=(8.0, 4.6), sharex=True)
    top, low = grid[:, 0]
    times = np.arange(1, len(found.p) + 1)
    top.semilogy(times, np.maximum(found.p, LEAST_P), "o", color="0.6", ms=2.5, label="of one step")
    top.semilogy(times, np.maximum(found.recent, LEAST_P), color=CYCLE[0], lw=1.8, label="of the last ten steps")
    top.axhline(0.01, color=CYCLE[1], lw=1, label="p = 0.01")
    top.set_ylim(LEAST_P / 2, 2)
    top.set_ylabel("p-value")
    top.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, fontsize=9)
    most = np.nanmax(np.abs(found.z), axis=0, initial=0.0)
    for i, dim in enumerate(sorted(np.argsort(-most, kind="stable")[:SHOWN].tolist())):
        low.plot(times, found.z[:, dim], color=CYCLE[i % len(CYCLE)], lw=1.2, label=names[dim])
    low.set_ylabel("z-score")
    low.set_xlabel("step")
    low.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


LEAST_P = 1e-6
"""p-values are drawn at this value if they are smaller."""
