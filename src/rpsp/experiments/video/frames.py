"""Frames of a video: the scene, and plots of observations and forecasts next to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont

from rpsp.experiments.figures.appearance import CYCLE

Picture = UInt8[np.ndarray, "_ _ 3"]

HEIGHT, SCENE, PLOTS = 576, 576, 704
"""Height, and widths of scene and plots, in pixels. Multiples of 16, as encoders require."""
PAST, HORIZON = 40, 15
"""Number of steps shown before and after the present."""
MOST_PLOTS = 6
"""Maximum number of observations plotted."""


@dataclass(frozen=True, eq=False)
class Watched:
    """An episode with all data for drawing."""

    observations: Float[np.ndarray, "steps_1 obs"]
    """In the units of the environment; symbols as one-hot vectors."""
    forecasts: Float[np.ndarray, "steps horizon obs"]
    """Expected observations after each step."""
    half_widths: Float[np.ndarray, "steps horizon obs"] | None
    """Half the width of the 90 % bands of the forecasts; None if there are none."""
    p_values: Float[np.ndarray, " steps"] | None
    """p-value of each observation, given those before it; None if there is none."""
    rewards: Float[np.ndarray, " steps"]
    shown: range
    """The steps that become frames."""
    scenes: list[Picture] | None
    """Rendered scenes of these steps, with the ghost if there is one; None if the environment cannot be rendered."""
    caption: str
    """Explanation of the ghost; empty if there is none."""
    limits: Float[np.ndarray, "obs 2"]
    """Range of the vertical axis for each observation."""
    names: list[str]
    """Names of the observations."""
    frames_per_second: float


def pictures(episode: Watched, title: str = "") -> Iterator[Picture]:
    """Yield the frames of the video."""
    plots = Plots(episode, title)
    for i, step in enumerate(episode.shown):
        drawn = plots.at(step)
        if episode.scenes is not None:
            drawn = np.concatenate([_fitted(episode.scenes[i], episode.caption), drawn], axis=1)
        yield drawn


class Plots:
    """Plots of past observations and of forecasts, with the present at a fixed place.

    The static background is drawn once. Each frame draws only the lines over it.
    """

    def __init__(self, episode: Watched, title: str = ""):
        self.episode = episode
        self.returns = np.concatenate([[0.0], np.cumsum(episode.rewards)])
        spread = np.nanstd(episode.observations, axis=0) / np.ptp(episode.limits, axis=1)
        self.dims = sorted(np.argsort(-spread, kind="stable")[:MOST_PLOTS].tolist())
        columns = 1 if len(self.dims) <= 4 else 2
        rows = -(-len(self.dims) // columns)
        self.figure = Figure(figsize=(PLOTS / 100, HEIGHT / 100), dpi=100)
        self.figure.set_layout_engine("none")
        self.canvas = FigureCanvasAgg(self.figure)
        margins = {"left": 0.095, "bottom": 0.085, "right": 0.97, "top": 0.83, "wspace": 0.22}
        grid = self.figure.add_gridspec(rows, columns, **margins, hspace=0.22 + 0.06 * rows)
        self.lines = []
        for place, dim in enumerate(self.dims):
            column, row = divmod(place, rows)
            axes = self.figure.add_subplot(grid[row, column])
            self.lines.append(self._axes(axes, dim))
            lowest = row == rows - 1 or dim == self.dims[-1]
            axes.tick_params(labelbottom=lowest)
            axes.set_xlabel("steps from now" if lowest else "", fontsize=9, color="0.3", loc="right")
        self.figure.text(0.02, 0.965, title, fontsize=12, fontweight="bold", va="center")
        self.clock = self.figure.text(0.02, 0.03, "", fontsize=10, ha="left", va="center", animated=True)
        seen, band, ghost, after = self.lines[0][:4]
        shown = {"observed": seen, "forecast": ghost, "observed later": after}
        if episode.half_widths is not None:
            shown = {"observed": seen, "forecast": ghost, "90 % band": band, "observed later": after}
        self.figure.legend(
            list(shown.values()),
            list(shown),
            loc="center left",
            bbox_to_anchor=(0.01, 0.91),
            ncols=len(shown),
            fontsize=9.5,
            frameon=False,
            handlelength=1.6,
            columnspacing=1.4,
        )
        self.canvas.draw()
        self.still = self.canvas.copy_from_bbox(self.figure.bbox)

    def _axes(self, axes: Any, dim: int) -> list[Any]:
        """Set up the axes of one observation. Return its lines."""
        axes.set_xlim(-PAST, HORIZON + 0.5)
        axes.set_ylim(*self.episode.limits[dim])
        axes.axvspan(0, HORIZON + 0.5, color=CYCLE[0], alpha=0.06, lw=0)
        axes.axvline(0, color="0.65", lw=1)
        axes.set_xticks([*range(-PAST, 1, 10), HORIZON])
        axes.set_xticklabels([*map(str, range(-PAST, 0, 10)), "now", f"+{HORIZON}"])
        axes.locator_params(axis="y", nbins=4)
        axes.tick_params(labelsize=8, colors="0.35", length=2)
        axes.grid(axis="y", alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("0.75")
        axes.set_title(self.episode.names[dim], fontsize=9.5, loc="left", pad=3, color="0.2")
        seen = axes.plot([], [], color="0.1", lw=1.8, animated=True)[0]
        halo = axes.fill_between([0, 0], [0, 0], [0, 0], color=CYCLE[0], alpha=0.2, lw=0, animated=True)
        ghost = axes.plot([], [], color=CYCLE[0], lw=2, marker="o", ms=3, animated=True)[0]
        after = axes.plot([], [], color="0.1", lw=1.1, ls=(0, (2, 2)), alpha=0.55, animated=True)[0]
        now = axes.plot([], [], "o", color=CYCLE[1], ms=6, animated=True)[0]
        return [seen, halo, ghost, after, now]

    def at(self, step: int) -> Picture:
        """Return the plots at a step of the episode."""
        self.canvas.restore_region(self.still)
        observations = self.episode.observations
        first, last = max(0, step - PAST), min(len(observations), step + HORIZON + 1)
        for dim, (seen, halo, ghost, after, now) in zip(self.dims, self.lines, strict=True):
            seen.set_data(np.arange(first, step + 1) - step, observations[first : step + 1, dim])
            low, high = self.episode.limits[dim]
            far = 3 * (high - low)  # diverging forecasts leave the plot
            expected = np.clip(self.episode.forecasts[step, :, dim], low - far, high + far)
            expected = np.append(observations[step, dim], expected)
            if self.episode.half_widths is not None:
                half = np.append(0.0, np.minimum(self.episode.half_widths[step, :, dim], far))
                ahead = np.arange(HORIZON + 1)
                halo.set_verts([_outline(ahead, expected - half, expected + half)])
            ghost.set_data(np.arange(1, HORIZON + 1), expected[1:])
            after.set_data(np.arange(last - step), observations[step:last, dim])
            now.set_data([0], observations[step : step + 1, dim])
            for line in (halo, ghost, after, seen, now):
                line.axes.draw_artist(line)
        clock = f"step {step}    return {self.returns[step]:.1f}"
        if self.episode.p_values is not None and not np.isnan(p := self.episode.p_values[step]):
            clock += f"    surprise p = {p:.2g}"
        self.clock.set_text(clock)
        self.figure.draw_artist(self.clock)
        return np.asarray(self.canvas.buffer_rgba())[..., :3].copy()


def _outline(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the corners of a band."""
    known = ~np.isnan(low + high)
    x, low, high = x[known], low[known], high[known]
    return np.stack([np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]])], axis=1)


def _fitted(scene: Picture, caption: str = "") -> Picture:
    """Resize a scene to its place on a white background, and add the caption."""
    factor = min(SCENE / scene.shape[1], HEIGHT / scene.shape[0])
    size = round(scene.shape[1] * factor), round(scene.shape[0] * factor)
    place = Image.new("RGB", (SCENE, HEIGHT), "white")
    place.paste(Image.fromarray(scene).resize(size), ((SCENE - size[0]) // 2, (HEIGHT - size[1]) // 2))
    if caption:
        font = ImageFont.truetype(findfont("DejaVu Sans"), 20)  # readable in a gif, which has half the size
        ImageDraw.Draw(place).text((14, 10), caption, "white", font, stroke_width=2, stroke_fill="black")
    return np.asarray(place)
