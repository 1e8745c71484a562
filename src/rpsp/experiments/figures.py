"""Results to figures; never trains. Colours are safe for the colour-blind and mean the same thing in every figure."""

from __future__ import annotations

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rpsp.experiments.models import PredictiveStateModel
from rpsp.features import OneHot
from rpsp.filters import compiled_unroll, forecast
from rpsp.inference import InferenceFilter
from rpsp.trajectories import Episode, as_episodes

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
CYCLE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000"]

plt.rcParams.update(
    {
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "figure.constrained_layout.use": True,
        "legend.frameon": False,
        "svg.hashsalt": "rpsp",  # the same figure gives the same file
    }
)


def save(figure: Figure, directory: Path, name: str) -> Path:
    """Write a figure as PNG and SVG; the PNG's path."""
    directory.mkdir(parents=True, exist_ok=True)
    figure.savefig(directory / f"{name}.svg", metadata={"Date": None})
    path = directory / f"{name}.png"
    figure.savefig(path, dpi=160)
    plt.close(figure)
    return path


def error_by_horizon(errors: dict[str, list[float]], title: str = "") -> Figure:
    """Normalised error against steps ahead, the model (first) beside the obvious alternatives."""
    figure, axes = plt.subplots(figsize=(6.5, 4.0))
    for i, (name, values) in enumerate(errors.items()):
        steps = np.arange(1, len(values) + 1)
        width = 2.6 if i == 0 else 1.6
        axes.plot(steps, values, color=_colour(name, i), lw=width, marker="o", ms=1.6 * width)
    axes.set_yscale("log")
    axes.set_xlabel("steps ahead")
    axes.set_ylabel("squared error / variance")
    axes.set_xticks(np.arange(1, max(map(len, errors.values())) + 1))
    axes.margins(x=0.02)
    axes.grid(axis="y", alpha=0.25)
    axes.set_title(title, loc="left")
    last = [max(values[-1], 1e-12) for values in errors.values()]
    for i, (name, height) in enumerate(zip(errors, _spread(axes, last), strict=True)):
        axes.text(1.02, height, name, transform=axes.transAxes, va="center", color=_colour(name, i))
    return figure


def _colour(name: str, i: int) -> str:
    return COLOURS.get(name, CYCLE[i % len(CYCLE)])


def _spread(axes: Axes, values: list[float], gap: float = 0.055) -> np.ndarray:
    """Heights (0 to 1) for labels at these values of a logarithmic axis, moved apart until none overlap."""
    low, high = np.log(axes.get_ylim())
    heights = (np.log(values) - low) / (high - low)
    order = np.argsort(heights)
    for below, above in itertools.pairwise(order):
        heights[above] = max(heights[above], heights[below] + gap)
    return heights


def prediction_fan(
    model: PredictiveStateModel,
    episodes: list[Episode],
    horizon: int = 10,
    names: list[str] | None = None,
    title: str = "",
) -> Figure:
    """What the belief expected, against what happened: forecasts from several moments of the longest episode.

    The bands hold 50 % and 90 % of all forecast errors at that distance over the episodes given.
    """
    episodes = as_episodes(episodes)
    shown = max(episodes, key=len)
    if isinstance(model.observations, OneHot):
        return _symbol_forecasts(model, shown, title)
    horizon = max(1, min(horizon, len(shown) // 2))
    long_enough = [e for e in episodes if len(e) >= horizon][:50]
    residuals = [_windows(e.observations, horizon) - model.predict(e.observations, e.actions, horizon)
                 for e in long_enough]  # fmt: skip
    bands = np.quantile(np.concatenate(residuals), [0.05, 0.25, 0.75, 0.95], axis=0)
    predicted, truth = model.predict(shown.observations, shown.actions, horizon), shown.observations
    first, length = _interesting(truth, horizon)
    dims = sorted(np.argsort(-truth[first : first + length].std(axis=0), kind="stable")[:4].tolist())
    figure, grid = plt.subplots(len(dims), 1, figsize=(8.0, 1.0 + 1.7 * len(dims)), sharex=True, squeeze=False)
    times = np.arange(first, min(first + length, len(truth)))
    for axes, dim in zip(grid[:, 0], dims, strict=True):
        axes.plot(times, truth[times, dim], color="black", lw=1.4, label="what happened")
        for i, t in enumerate(range(first, min(first + length - horizon, len(predicted)), horizon + 2)):
            # Drawn from the last reading on, where nothing is uncertain yet.
            ahead = t + np.arange(horizon + 1)
            centre = np.append(truth[t, dim], predicted[t, :, dim])
            for low, high, alpha in ((0, 3, 0.15), (1, 2, 0.3)):
                lower, upper = (centre + np.append(0, bands[i, :, dim]) for i in (low, high))
                axes.fill_between(ahead, lower, upper, color=CYCLE[0], alpha=alpha, lw=0)
            axes.plot(
                ahead, centre, color=CYCLE[0], lw=1.8, label="forecast, with 50 % and 90 % bands" if i == 0 else None
            )
            axes.plot(t, truth[t, dim], "o", color=CYCLE[1], ms=5, label="last reading known" if i == 0 else None)
        axes.set_ylabel(_name(model, names, dim))
    grid[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, fontsize=9)
    grid[-1, 0].set_xlabel("step")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def coordinate_meaning(
    model: PredictiveStateModel, episodes: list[Episode], names: list[str] | None = None, title: str = ""
) -> Figure:
    """What each state coordinate means: how the expected future changes when it grows by one standard deviation.

    ∂E[o_{t:t+7}]/∂q_i under null actions at the mean state, times the coordinate's spread; observations are in standard
    deviations. The six coordinates that matter most are shown.
    """
    filter, batch = model.fitted, model.encode(episodes)
    states = np.asarray(compiled_unroll(filter, batch))[np.asarray(batch.mask)]
    null = jnp.zeros((8, batch.performed.shape[-1]))
    effects = jax.jacobian(lambda q: forecast(filter, q, null))(jnp.asarray(states.mean(axis=0)))
    effects = np.asarray(effects) * states.std(axis=0)  # [steps ahead, observation, coordinate]
    strongest = np.argsort(-np.square(effects).sum(axis=(0, 1)), kind="stable")[:6]
    figure, grid = plt.subplots(2, 3, figsize=(9.0, 5.2), sharex=True, squeeze=False)
    for axes, i in zip(grid.flat, np.sort(strongest), strict=False):
        for dim in range(min(effects.shape[1], len(CYCLE))):
            axes.plot(
                np.arange(1, len(effects) + 1),
                effects[:, dim, i],
                color=CYCLE[dim],
                lw=1.8,
                label=_name(model, names, dim),
            )
        axes.axhline(0, color="0.7", lw=0.8, zorder=0)
        youth = isinstance(filter, InferenceFilter) and i == filter.size - 1
        axes.set_title("youth of the belief, 1/t" if youth else f"coordinate {i}", loc="left")
    for axes in list(grid.flat)[len(strongest) :]:
        axes.set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("steps ahead")
    for axes in grid[:, 0]:
        axes.set_ylabel("change expected (sd)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _symbol_forecasts(model: PredictiveStateModel, episode: Episode, title: str) -> Figure:
    """The probability of every symbol before it is seen, and the symbol that came."""
    length = min(len(episode), 60)
    probabilities = model.predict(episode.observations, episode.actions)[:length, 0]
    figure, axes = plt.subplots(figsize=(8.0, 1.5 + 0.25 * probabilities.shape[1]))
    image = axes.imshow(probabilities.T, aspect="auto", origin="lower", cmap="Blues", vmin=0, vmax=1)
    axes.plot(episode.observations[1 : length + 1, 0], "o", color=CYCLE[1], ms=4, label="what happened")
    axes.set_xlabel("step")
    axes.set_ylabel("symbol")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=9)
    figure.colorbar(image, label="probability expected")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _name(model: PredictiveStateModel, names: list[str] | None, dim: int) -> str:
    return names[dim] if names else f"{'symbol' if model.kind == 'tabular' else 'observation'} {dim}"


def _windows(observations: np.ndarray, horizon: int) -> np.ndarray:
    """The truth in the layout of `PredictiveStateModel.predict`."""
    starts = np.arange(len(observations) - horizon)
    return observations[starts[:, None] + 1 + np.arange(horizon)]


def _interesting(observations: np.ndarray, horizon: int) -> tuple[int, int]:
    """The first step and length of a stretch worth showing: of about eight forecasts, where most happens."""
    length = min(len(observations), 8 * (horizon + 2))
    scale = observations.std(axis=0) + 1e-12
    movement = np.abs(np.diff(observations, axis=0) / scale).sum(axis=1)
    inside = np.convolve(movement, np.ones(max(1, length - 1)), mode="valid")
    return int(inside.argmax()) if len(inside) else 0, length
