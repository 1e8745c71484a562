"""Figures of beliefs: forecasts with error bands, errors by horizon and the meaning of state coordinates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rpsp.data.batches import pack
from rpsp.data.episodes import Episode, as_episodes
from rpsp.data.scaling import OneHot, Scaling, coordinates
from rpsp.experiments.agents import TrainedAgent
from rpsp.experiments.figures.appearance import COLOURS, CYCLE, styled, subplots
from rpsp.experiments.models import PredictiveStateModel
from rpsp.filters.base import compiled_unroll, forecast
from rpsp.filters.evaluation import compiled_forecast


@styled
def error_by_horizon(errors: dict[str, list[float]], title: str = "") -> Figure:
    """Plot the normalised prediction error against the number of steps ahead.

    Args:
        errors: for each predictor, its errors 1, 2, … steps ahead. The first predictor, the model, is drawn with a
            wider line.
        title: title of the figure.
    """
    figure, ((axes,),) = subplots(size=(6.5, 4.0))
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
    """Return the colour of a predictor."""
    return COLOURS.get(name, CYCLE[i % len(CYCLE)])


def _spread(axes: Axes, values: list[float], gap: float = 0.055) -> np.ndarray:
    """Return heights (0 to 1) of labels at these values of a logarithmic axis, moved apart to avoid overlap."""
    low, high = np.log(axes.get_ylim())
    heights = (np.log(values) - low) / (high - low)
    order = np.argsort(heights)
    for below, above in itertools.pairwise(order):
        heights[above] = max(heights[above], heights[below] + gap)
    return heights


class Fan(NamedTuple):
    """Forecasts along an episode, with the observations that followed."""

    truth: Float[np.ndarray, "time_plus_1 obs"]
    predicted: Float[np.ndarray, "n horizon obs"]
    """Entry [t, j] is the prediction of truth[t + 1 + j] given truth[: t + 1]."""
    bands: Float[np.ndarray, "4 n horizon obs"]
    """The 5, 25, 75 and 95 % quantiles of truth − predicted: those of all forecast errors at each horizon, or those of
    the model's distribution."""
    first: int
    """First step of the part to show."""
    length: int
    """Number of steps of the part to show."""

    @property
    def moments(self) -> range:
        """Steps of the shown part from which forecasts are drawn, spaced so that forecasts do not overlap."""
        horizon = self.predicted.shape[1]
        return range(self.first, min(self.first + self.length - horizon, len(self.predicted)), horizon + 2)


def fan(predict: Callable[[Episode, int], np.ndarray], episodes: Sequence[Episode], horizon: int = 10) -> Fan:
    """Compute forecasts in the longest episode, and quantiles of the forecast errors over episodes.

    Args:
        predict: function `predict(episode, horizon)` that returns predictions in the layout of `Fan.predicted`.
        episodes: episodes. Error quantiles use the first 50 that are long enough.
        horizon: number of steps to predict. At most half the longest episode is used.
    """
    shown = max(episodes, key=len)
    horizon = max(1, min(horizon, len(shown) // 2))
    residuals = [
        _windows(e.observations, horizon) - predict(e, horizon) for e in [e for e in episodes if len(e) >= horizon][:50]
    ]
    predicted = predict(shown, horizon)
    quantiles = np.nanquantile(np.concatenate(residuals), [0.05, 0.25, 0.75, 0.95], axis=0)
    bands = np.broadcast_to(quantiles[:, None], (4, *predicted.shape))
    return Fan(shown.observations, predicted, bands, *_interesting(shown.observations, horizon))


def model_fan(model: PredictiveStateModel, episodes: Sequence[Episode], horizon: int = 10) -> Fan:
    """Compute the forecasts of a fitted model in the longest episode, with the bands of its predictive distribution.

    Args:
        model: a fitted model of numbers.
        episodes: episodes, with NaN where readings are missing.
        horizon: number of steps to predict. At most half the longest episode is used.
    """
    shown = max(episodes, key=len)
    given = shown.observations, shown.actions, max(1, min(horizon, len(shown) // 2))
    predicted = model.predict(*given)
    (low, high), (lower, upper) = (model.predict_interval(*given, level) for level in (0.9, 0.5))
    bands = np.stack([low, lower, upper, high]) - predicted
    return Fan(shown.observations, predicted, bands, *_interesting(shown.observations, given[2]))


def agent_forecasts(agent: TrainedAgent, row_length: int) -> Callable[[Episode, int], np.ndarray]:
    """Return the function `predict(episode, horizon)` of a trained agent's filter.

    Args:
        agent: the trained agent.
        row_length: length of the longest episode. All episodes are padded to it, so that the filter is compiled once.

    Returns:
        A function for episodes that are scaled as the agent's inputs. Entry [t, j] of its result predicts observation
        t + 1 + j given the actions that were executed, in the same scale.
    """

    def predict(episode: Episode, horizon: int) -> np.ndarray:
        batch = pack([episode], row_length=row_length)  # a fixed shape avoids recompilation
        ahead = np.minimum(np.arange(row_length)[:, None] + np.arange(horizon), row_length - 1)
        states = compiled_unroll(agent.agent.filter, batch)[0]
        predicted = compiled_forecast(agent.agent.filter, states, np.asarray(batch.actions)[0][ahead])
        return np.asarray(predicted, np.float64)[: len(episode) - horizon + 1]

    return predict


def agent_fan(agent: TrainedAgent, episodes: Sequence[Episode], horizon: int = 10) -> Fan:
    """Compute the forecasts of a trained agent's filter, in the units of the task.

    Args:
        agent: the trained agent.
        episodes: episodes returned by `agent.evaluate`.
        horizon: number of steps to predict.
    """
    forecasts = agent_forecasts(agent, max(map(len, episodes)))
    found = fan(forecasts, episodes, horizon)
    if isinstance(agent.scaling, OneHot):
        return found
    units = coordinates(agent.scaling)
    assert isinstance(units, Scaling)
    decode = units.decode
    return found._replace(truth=decode(found.truth), predicted=decode(found.predicted), bands=found.bands * units.scale)


@styled
def prediction_fan(
    model: PredictiveStateModel | TrainedAgent,
    episodes: list[Episode],
    horizon: int = 10,
    names: list[str] | None = None,
    title: str = "",
) -> Figure:
    """Plot forecasts from several steps of the longest episode, compared with what happened.

    The bands of a model are those of its distribution. Those of an agent contain 50 % and 90 % of all forecast errors at
    each horizon over the given episodes.

    Args:
        model: a fitted model or a trained agent.
        episodes: recordings for a model, episodes returned by `evaluate` for a trained agent.
        horizon: number of steps to predict.
        names: names of the observations.
        title: title of the figure.
    """
    if isinstance(model, TrainedAgent):
        found = agent_fan(model, episodes, horizon)
        if isinstance(model.scaling, OneHot):
            return _symbol_forecasts(found.predicted[:, 0], found.truth.argmax(axis=1), title)
        names = names or list(model.coordinate_names or ()) or [f"observation {i}" for i in range(found.truth.shape[1])]
        return _draw_fan(found, names, title)
    episodes = as_episodes(episodes, gaps=model.missing is not None)
    if isinstance(model.observations, OneHot):
        shown = max(episodes, key=len)
        return _symbol_forecasts(
            model.predict(shown.observations, shown.actions)[:, 0], shown.observations[:, 0], title
        )
    found = model_fan(model, episodes, horizon)
    return _draw_fan(found, [_name(model, names, i) for i in range(found.truth.shape[1])], title)


def _draw_fan(found: Fan, names: list[str], title: str) -> Figure:
    """Draw the forecasts of the four observations that vary most."""
    truth, predicted, bands, first, length = found
    horizon = predicted.shape[1]
    dims = sorted(np.argsort(-np.nanstd(truth[first : first + length], axis=0), kind="stable")[:4].tolist())
    figure, grid = subplots(len(dims), size=(8.0, 1.0 + 1.7 * len(dims)), sharex=True)
    times = np.arange(first, min(first + length, len(truth)))
    for axes, dim in zip(grid[:, 0], dims, strict=True):
        axes.plot(times, truth[times, dim], color="black", lw=1.4, label="what happened")
        for i, t in enumerate(found.moments):
            # A forecast starts at the last observation, where the error is zero.
            ahead = t + np.arange(horizon + 1)
            centre = np.append(truth[t, dim], predicted[t, :, dim])
            for low, high, alpha in ((0, 3, 0.25), (1, 2, 0.45)):
                lower, upper = (centre + np.append(0, bands[k, t, :, dim]) for k in (low, high))
                axes.fill_between(ahead, lower, upper, color=CYCLE[0], alpha=alpha, lw=0)
            axes.plot(
                ahead, centre, color=CYCLE[0], lw=1.8, label="forecast, with 50 % and 90 % bands" if i == 0 else None
            )
            axes.plot(t, truth[t, dim], "o", color=CYCLE[1], ms=5, label="last reading known" if i == 0 else None)
        axes.set_ylabel(names[dim])
    grid[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, fontsize=9)
    grid[-1, 0].set_xlabel("step")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


SMALLEST_EFFECT = 1e-3
"""Coordinates with an effect smaller than this fraction of the largest one are not drawn: it would be noise."""


@styled
def coordinate_meaning(
    model: PredictiveStateModel, episodes: list[Episode], names: list[str] | None = None, title: str = ""
) -> Figure:
    """Plot how the expected future changes when a state coordinate grows by one standard deviation.

    Shows ∂E[o_{t:t+7}]/∂q_i under null actions at the mean state, multiplied by the standard deviation of q_i.
    Observations are in standard deviations. The six coordinates with the largest effect are shown.

    Args:
        model: a fitted model.
        episodes: recordings from which the mean and the standard deviation of the state are computed.
        names: names of the observations.
        title: title of the figure.
    """
    filter, batch = model.fitted, model.encode(episodes)
    states = np.asarray(compiled_unroll(filter, batch))[np.asarray(batch.mask)]
    null = jnp.zeros((8, batch.actions.shape[-1]))
    effects = jax.jacobian(lambda q: forecast(filter, q, null))(jnp.asarray(states.mean(axis=0)))
    effects = np.asarray(effects) * states.std(axis=0)  # [steps ahead, observation, coordinate]
    sizes = np.square(effects).sum(axis=(0, 1))
    strongest = np.argsort(-sizes, kind="stable")[:6]
    strongest = strongest[sizes[strongest] > SMALLEST_EFFECT**2 * sizes.max()]
    rows = 1 if len(strongest) <= 3 else 2
    figure, grid = subplots(rows, 3, size=(9.0, 0.6 + 2.3 * rows))
    for axes, i in zip(grid.flat, np.sort(strongest), strict=False):
        for dim in range(min(effects.shape[1], len(CYCLE))):
            axes.plot(
                np.arange(1, len(effects) + 1),
                effects[:, dim, i],
                color=CYCLE[dim],
                lw=1.8
                + 1.2 * (min(effects.shape[1], len(CYCLE)) - 1 - dim) / len(CYCLE),  # lines that coincide stay visible
                ls="-" if dim % 2 == 0 else (0, (4, 2)),
                label=_name(model, names, dim),
            )
        axes.axhline(0, color="0.7", lw=0.8, zorder=0)
        axes.set_title(filter.coordinate_name(int(i)) or f"coordinate {i}", loc="left")
    for axes in list(grid.flat)[len(strongest) :]:
        axes.set_visible(False)
    for axes in list(grid.flat)[: len(strongest)][-3:]:  # the lowest panel of each column
        axes.set_xlabel("steps ahead")
    for axes in grid[:, 0]:
        axes.set_ylabel("change expected (sd)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _symbol_forecasts(probabilities: Float[np.ndarray, "n symbol"], symbols: np.ndarray, title: str) -> Figure:
    """Draw the predicted probability of each symbol, and the symbol that occurred."""
    length = min(len(probabilities), 60)
    probabilities = probabilities[:length]
    figure, ((axes,),) = subplots(size=(8.0, 1.5 + 0.25 * probabilities.shape[1]))
    image = axes.imshow(probabilities.T, aspect="auto", origin="lower", cmap="Blues", vmin=0, vmax=1)
    axes.plot(symbols[1 : length + 1], "o", color=CYCLE[1], ms=4, label="what happened")
    axes.set_xlabel("step")
    axes.set_ylabel("symbol")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=9)
    figure.colorbar(image, label="probability expected")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _name(model: PredictiveStateModel, names: list[str] | None, dim: int) -> str:
    """Return the name of an observation."""
    return names[dim] if names else f"{'symbol' if model.belief.discrete else 'observation'} {dim}"


def _windows(observations: np.ndarray, horizon: int) -> np.ndarray:
    """Return the true observations in the layout of `PredictiveStateModel.predict`."""
    starts = np.arange(len(observations) - horizon)
    return observations[starts[:, None] + 1 + np.arange(horizon)]


def _interesting(observations: np.ndarray, horizon: int) -> tuple[int, int]:
    """Return start and length of the part to show: about eight forecasts, where the observations move most."""
    length = min(len(observations), 8 * (horizon + 2))
    scale = np.nanstd(observations, axis=0) + 1e-12
    movement = np.nansum(np.abs(np.diff(observations, axis=0) / scale), axis=1)
    inside = np.convolve(movement, np.ones(max(1, length - 1)), mode="valid")
    return int(inside.argmax()) if len(inside) else 0, length
