"""`PredictiveStateModel`: fit a filter to recorded episodes; filter, predict, score, save and load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode, as_episodes, as_table, split
from rpsp.data.scaling import OneHot, Scaling
from rpsp.errors import UsageError
from rpsp.experiments import forecasting
from rpsp.experiments.baselines import errors_beside_baselines
from rpsp.experiments.compilation import compilation_cached
from rpsp.experiments.configure import find_belief, with_settings
from rpsp.experiments.forecasting import Surprise
from rpsp.experiments.model_files import Contents, Stored, file_of_this_version, read_model, write_model
from rpsp.experiments.model_inputs import as_float, encodings, whole_number
from rpsp.experiments.notebooks import model_html
from rpsp.filters.base import AbstractFilter, compiled_unroll
from rpsp.filters.belief import Belief
from rpsp.filters.evaluation import compiled_forecast, forecasts, normalised_errors, r_squared
from rpsp.filters.gaps import GapFilter
from rpsp.filters.gaps_fit import ROUNDS, completed, fit_with_gaps, refit_with_gaps, uncertainty_of
from rpsp.filters.uncertainty import AbstractUncertainty


class PredictiveStateModel:
    """A filter fitted to recorded episodes, with the interface of scikit-learn.

    An episode is a pair `(observations, actions)` with one more observation than actions, the reset observation first.

    Args:
        kind: "inference" (ours: the state update is regressed directly), "kernel-bayes" (the paper's: two-stage
            regression, then refinement), "gru" (backpropagation through time), "tabular" (discrete data: Bayes rule),
            your own as "package.module:attribute", or an instance of `rpsp.Belief`.
        seed: seed of the fit and of the held-out split.
        held_out: fraction of the data that is held out, between 0 and 1.
        missing: "nan": an observation that is NaN is a missing reading, and the model goes on without it. Default: NaN
            is a fault, and refused.
        gate: with missing="nan", readings that are further than this many standard deviations from their expectation
            count as missing. Default: none.
        **settings: settings of the belief by name (`past`, `future`, `dimension`, `epochs`, …).

    Raises:
        UsageError: if a setting is unknown or invalid.
    """

    def __init__(
        self,
        kind: str | Belief = "inference",
        *,
        seed: int = 0,
        held_out: SupportsFloat = 0.2,
        missing: str | None = None,
        gate: SupportsFloat | None = None,
        **settings: Any,
    ):
        self.belief = with_settings(find_belief(kind), settings)
        self.kind = self.belief.kind
        self.seed, self.held_out = whole_number("seed", seed, 0), as_float(held_out)
        if not 0 < self.held_out < 1:
            raise UsageError(f"held_out: {held_out!r} is not a fraction between 0 and 1; a usual value is 0.2.")
        if missing not in (None, "nan"):
            raise UsageError(f"missing: {missing!r} is not known; give 'nan', or None if no reading is missing.")
        self.missing = missing
        self.gate = None if gate is None else as_float(gate)
        if self.gate is not None and not self.gate > 0:
            raise UsageError(f"gate: {gate!r} is not a number above 0; give standard deviations, such as 6.")
        if self.gate is not None and missing is None:
            raise UsageError("gate: outliers count as missing, so it needs missing='nan'.")
        self._filter: AbstractFilter | None = None
        self._uncertainty: AbstractUncertainty | None = None
        self.errors: dict[str, list[float]] = {}
        """Held-out normalised errors over the horizon, of this model and the baselines. Set by `fit`."""

    @compilation_cached()
    def fit(self, episodes: Sequence[Any]) -> PredictiveStateModel:
        """Fit the model to episodes.

        A fraction of the episodes is held out. It is used to choose hyperparameters, and then to measure `errors` of
        the model and of the baselines.

        Args:
            episodes: a sequence of episodes.

        Returns:
            This model.

        Raises:
            UsageError: if the episodes are invalid.
        """
        episodes = self._episodes(episodes)
        self.observations, self.actions = encodings(self.belief, episodes)
        rng, batch, held = self._split(episodes)
        key = jax.random.key(self.seed)
        if self.missing is None:
            filter = self.belief.fit(batch, held, key=key)
        else:
            filter = fit_with_gaps(self.belief, batch, held, rounds=ROUNDS, key=key)
        return self._with_filter(filter, batch, held, rng)

    @compilation_cached()
    def refit(self, episodes: Sequence[Any]) -> PredictiveStateModel:
        """Refit the model to new episodes in closed form. The meaning of the state's coordinates does not change.

        Anything that uses the states (a policy, a plot, a log) therefore remains valid. Only for beliefs that keep their
        coordinates, such as "inference".

        Args:
            episodes: a sequence of episodes.

        Returns:
            This model.

        Raises:
            UsageError: if the model is of another kind, or not fitted.
        """
        if not self.belief.keeps_coordinates:
            raise UsageError(f"refit: a {self.kind} model cannot keep its coordinates; call fit(episodes) instead.")
        rng, batch, held = self._split(self._episodes(episodes))
        filter, key = self.fitted, jax.random.key(self.seed)
        if isinstance(filter, GapFilter):
            filter = refit_with_gaps(self.belief, filter, batch, held, key=key)
        else:
            filter = self.belief.refit(filter, batch, held, key=key) or filter
        return self._with_filter(filter, batch, held, rng)

    def _with_filter(
        self, filter: AbstractFilter, batch: Batch, held: Batch, rng: np.random.Generator
    ) -> PredictiveStateModel:
        """Take a fitted filter, and fit its uncertainty and the baselines."""
        full = (completed(filter, batch), completed(filter, held)) if isinstance(filter, GapFilter) else None
        errors = errors_beside_baselines(self.kind, filter, batch, held, rng=rng, full=full)
        self._uncertainty = uncertainty_of(filter, batch, held, discrete=self.belief.discrete)
        if isinstance(filter, GapFilter) and self.gate is not None:
            filter = replace(filter, gate=jnp.asarray(self.gate, jnp.float32))
        self._filter, self.errors = filter, errors
        return self

    def _episodes(self, episodes: Any) -> list[Episode]:
        """Validate recorded episodes."""
        return as_episodes(episodes, gaps=self.missing is not None)

    def _split(self, episodes: list[Episode]) -> tuple[np.random.Generator, Batch, Batch]:
        """Encode episodes and split them.

        Returns:
            A random generator with the model's seed, the batch to fit, and the held-out batch.
        """
        rng = np.random.default_rng(self.seed)
        train, held = split(self._encode(episodes), self.held_out, rng=rng, keep=self.belief.min_length)
        return rng, pack(train), pack(held)

    def filter(self, observations: Any, actions: Any) -> Float[np.ndarray, "time_plus_1 q"]:
        """Compute the state after each observation of an episode.

        Args:
            observations: T + 1 observations, the reset observation first.
            actions: the T actions between them.

        Returns:
            The states. Row t depends on `observations[: t + 1]` and `actions[: t]`.
        """
        batch = self._batch(observations, actions)
        # The batch has one more step. The state before that step is the state after the last observation.
        return np.asarray(compiled_unroll(self.fitted, batch))[0, : len(np.asarray(observations))]

    def predict(
        self,
        observations: Any,
        actions: Any,
        horizon: SupportsIndex = 1,
        *,
        return_std: bool = False,
        return_cov: bool = False,
    ) -> Any:
        """Predict the observations of an episode from every step of it.

        Use `forecast` to predict beyond the last observation.

        Args:
            observations: T + 1 observations, the reset observation first.
            actions: the T actions between them.
            horizon: number of steps to predict.
            return_std: whether to return standard deviations, too.
            return_cov: whether to return the covariances of the observations of a step, too.

        Returns:
            An array `[T − horizon + 1, horizon, obs]`. Entry `[t, j]` predicts `observations[t + 1 + j]`, given
            `observations[: t + 1]` and `actions[: t + 1 + j]`. With `return_std`, a pair of such arrays. With `return_cov`,
            the second array is `[T − horizon + 1, horizon, obs, obs]`.

        Raises:
            UsageError: if `horizon` is larger than the number of actions, or the model is not fitted.
        """
        _check_one(return_std, return_cov)
        states, ahead, count = self._each_step(observations, actions, horizon)
        if not (return_std or return_cov):
            predicted = np.asarray(compiled_forecast(self.fitted, states, ahead))
            return self.observations.decode(predicted[:count])
        return self._moments(states, ahead, count, return_std)

    def predict_interval(
        self, observations: Any, actions: Any, horizon: SupportsIndex = 1, level: float = 0.9
    ) -> tuple[Float[np.ndarray, "n horizon obs"], Float[np.ndarray, "n horizon obs"]]:
        """Return bands that contain a fraction `level` of the observations, for predictions as those of `predict`.

        Their widths are calibrated on held-out episodes, for every horizon and observation.

        Args:
            observations: T + 1 observations, the reset observation first.
            actions: the T actions between them.
            horizon: number of steps to predict.
            level: the fraction, between 0 and 1.

        Returns:
            The lower and the upper ends, each `[T − horizon + 1, horizon, obs]`.

        Raises:
            UsageError: if the level is not between 0 and 1, or the model is one of symbols.
        """
        predicted, covariance = self.predict(observations, actions, horizon, return_cov=True)
        return forecasting.band(self.uncertainty, predicted, covariance, level)

    def sample(
        self, observations: Any, actions: Any, horizon: SupportsIndex = 1, n: SupportsIndex = 100, *, seed: int = 0
    ) -> Float[np.ndarray, "samples n horizon obs"]:
        """Draw possible futures from every step of an episode. Every observation is drawn given those before it.

        Args:
            observations: T + 1 observations, the reset observation first.
            actions: the T actions between them.
            horizon: number of steps.
            n: number of futures.
            seed: seed of the draws.

        Returns:
            An array `[n, T − horizon + 1, horizon, obs]`, indexed as the predictions of `predict`.
        """
        number = whole_number("n", n, 1)
        states, ahead, count = self._each_step(observations, actions, horizon)
        drawn = forecasting.samples(
            self.uncertainty, self.fitted, states, ahead, number, jax.random.key(whole_number("seed", seed, 0))
        )
        return self.observations.decode(np.asarray(drawn)[:, :count])

    def log_likelihood(self, episodes: Sequence[Any]) -> float:
        """Return the mean logarithm of the density of a step's observation, given all earlier ones.

        For symbols, it is that of the probability.

        Args:
            episodes: a sequence of episodes.
        """
        return forecasting.log_likelihood(self.uncertainty, self.fitted, self.encode(episodes), self.observations)

    def surprise(self, observations: Any, actions: Any) -> Surprise:
        """Return how improbable every reading of an episode is, given those before it.

        Args:
            observations: T + 1 observations, the reset observation first.
            actions: the T actions between them.

        Returns:
            Row t is about `observations[t + 1]`.

        Raises:
            UsageError: if the model is one of symbols, or not fitted.
        """
        uncertainty = forecasting.gaussian(self.uncertainty, "surprise")
        history = self._history(observations, actions)
        return forecasting.surprise(uncertainty, self.fitted, history)

    def coverage(
        self, episodes: Sequence[Any], levels: Sequence[float] = (0.5, 0.8, 0.9, 0.95), horizon: SupportsIndex = 10
    ) -> Float[np.ndarray, "horizon level"]:
        """Return the share of readings that the bands of `predict_interval` contain.

        Args:
            episodes: a sequence of episodes.
            levels: the shares that the bands should contain.
            horizon: largest number of steps ahead.

        Returns:
            An array `[horizon, level]`. The share is over all steps and observations.

        Raises:
            UsageError: if a level is not between 0 and 1, no episode is long enough, or the model is one of symbols.
        """
        uncertainty = forecasting.gaussian(self.uncertainty, "coverage")
        known = [forecasting.checked_level(level) for level in levels]
        batch = self.encode(episodes)
        return forecasting.coverage(uncertainty, self.fitted, batch, known, whole_number("horizon", horizon, 1))

    @property
    def uncertainty(self) -> AbstractUncertainty:
        """The predictive distribution of the filter. Raises `UsageError` before `fit`, and for files of 0.4.0."""
        self.fitted  # noqa: B018 - report "not fitted" first
        if self._uncertainty is None:
            raise UsageError("model: its file was written by version 0.4.0, without uncertainty; fit it again.")
        return self._uncertainty

    def _each_step(self, observations: Any, actions: Any, horizon: Any) -> tuple[Any, np.ndarray, int]:
        """Return the states after every observation of an episode, the actions that follow, and how many are wanted."""
        horizon = whole_number("horizon", horizon, 1)
        batch = self._batch(observations, actions)
        steps = len(np.asarray(actions))
        if horizon > steps:
            raise UsageError(
                f"horizon: {horizon} is more than the {steps} actions of the episode; choose a smaller value, or use "
                "forecast(observations, actions, future_actions) to predict beyond the last observation."
            )
        # Predict from every step, including the last ones that lack actions, so that all episodes of a bucket have the
        # same shape and are compiled once.
        ahead = np.minimum(np.arange(batch.shape[1])[:, None] + np.arange(horizon), batch.shape[1] - 1)
        return compiled_unroll(self.fitted, batch)[0], np.asarray(batch.actions)[0][ahead], steps - horizon + 1

    def _moments(self, states: Any, ahead: np.ndarray, count: int, std: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return means with standard deviations or covariances, in the units of the observations."""
        found = forecasting.moments(self.uncertainty, self.fitted, states, ahead)
        mean, covariance = forecasting.in_units(*found, self.observations)
        mean, covariance = mean[:count], covariance[:count]
        return mean, forecasting.standard_deviations(covariance) if std else covariance

    def forecast(
        self,
        observations: Any,
        actions: Any,
        future_actions: Any,
        *,
        return_std: bool = False,
        return_cov: bool = False,
    ) -> Any:
        """Predict the observations that follow a recorded history, one for each future action.

        Args:
            observations: T + 1 observations, the reset observation first. T may be 0.
            actions: the T actions between them.
            future_actions: the actions to take after the last observation, at least one.
            return_std: whether to return standard deviations, too.
            return_cov: whether to return the covariances of the observations of a step, too.

        Returns:
            Row j predicts the observation after `future_actions[j]`. It uses the whole history and
            `future_actions[: j + 1]`. For a tabular model, a row is a probability distribution over symbols. With
            `return_std` or `return_cov`, a pair as that of `predict`.

        Raises:
            UsageError: if the numbers of observations and actions do not match, or the model is not fitted.
        """
        _check_one(return_std, return_cov)
        history = self._history(observations, actions)
        future = as_table(future_actions, "future_actions")
        if len(future) == 0:
            raise UsageError("future_actions: is empty; give one action for each observation to predict.")
        self._match("future_actions", future, self.actions)
        states = compiled_unroll(self.fitted, forecasting.one_row(history))[0]
        encoded = self.actions.encode(future).astype(np.float32)
        padding = np.zeros((forecasting.bucket(len(future)) - len(future), encoded.shape[1]), np.float32)
        ahead, last = np.concatenate([encoded, padding])[None], states[len(history)][None]
        if return_std or return_cov:
            mean, spread = self._moments(last, ahead, 1, return_std)
            return mean[0, : len(future)], spread[0, : len(future)]
        predicted = np.asarray(compiled_forecast(self.fitted, last, ahead))
        return self.observations.decode(predicted[0, : len(future)])

    def forecast_interval(
        self, observations: Any, actions: Any, future_actions: Any, level: float = 0.9
    ) -> tuple[Float[np.ndarray, "horizon obs"], Float[np.ndarray, "horizon obs"]]:
        """Return bands as those of `predict_interval`, for the predictions of `forecast`.

        Args:
            observations: T + 1 observations, the reset observation first. T may be 0.
            actions: the T actions between them.
            future_actions: the actions to take after the last observation, at least one.
            level: the fraction of observations in the bands, between 0 and 1.

        Returns:
            The lower and the upper ends, each `[horizon, obs]`.
        """
        mean, covariance = self.forecast(observations, actions, future_actions, return_cov=True)
        return forecasting.band(self.uncertainty, mean, covariance, level)

    def score(self, episodes: Sequence[Any], horizon: SupportsIndex = 1) -> float:
        """Return R² of the predictions `horizon` steps ahead, as in scikit-learn.

        1 is a perfect prediction. 0 is as good as the mean.
        """
        batch = self.encode(episodes)
        return r_squared(forecasts(self.fitted, batch, whole_number("horizon", horizon, 1)))

    def normalised_errors(self, episodes: Sequence[Any], horizon: SupportsIndex = 10) -> Float[np.ndarray, " horizon"]:
        """Return the mean squared error divided by the variance, for 1 to `horizon` steps ahead.

        0 is a perfect prediction. 1 is as good as the mean.
        """
        batch = self.encode(episodes)
        return normalised_errors(forecasts(self.fitted, batch, whole_number("horizon", horizon, 1)))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the model to a safetensors file, atomically and without pickle.

        Args:
            path: the path of the file.
            overwrite: whether an existing file may be replaced.

        Raises:
            StorageError: if the file exists and `overwrite` is False, or it cannot be written.
            UsageError: if a file cannot represent the model.
        """
        arguments = {"seed": self.seed, "held_out": self.held_out, "missing": self.missing, "gate": self.gate}
        contents = Contents(self.fitted, self.observations, self.actions, self._uncertainty)
        write_model(Path(path), Stored(self.belief, arguments, contents, self.errors), overwrite=overwrite)

    @staticmethod
    def load(path: str | Path) -> PredictiveStateModel:
        """Read a model that `save` wrote. The module of a belief of your own must be imported already.

        Raises:
            FileFormatError: if the file is damaged, or not such a model.
        """
        with file_of_this_version(path):
            belief, arguments, contents, errors = read_model(Path(path))
            model = PredictiveStateModel(belief, **arguments)
            model._filter, model.observations, model.actions, model._uncertainty = contents
            model.errors = errors
        return model

    def _repr_html_(self) -> str:
        fitted = self._filter is not None
        sizes = {"state dimensions": str(self._filter.size)} if self._filter is not None else {}
        return model_html(self.kind, self.errors, fitted, sizes)

    @property
    def fitted(self) -> AbstractFilter:
        """The fitted filter, which works on encoded observations and actions. Raises `UsageError` before `fit`."""
        if self._filter is None:
            raise UsageError("model: is not fitted yet; call fit(episodes) first, or PredictiveStateModel.load(path).")
        return self._filter

    def encode(self, episodes: Sequence[Any]) -> Batch:
        """Encode episodes (standardised or one-hot) and pack them into a batch."""
        return pack(self._encode(self._episodes(episodes)))

    def _encode(self, episodes: list[Episode]) -> list[Episode]:
        self._match("observations", episodes[0].observations, self.observations)
        self._match("actions", episodes[0].actions, self.actions)
        observed, done = self.observations.encode, self.actions.encode  # once: Equinox wraps a method at every access
        return [Episode(observed(e.observations), done(e.actions)) for e in episodes]

    def _match(self, name: str, given: np.ndarray, encoding: Scaling | OneHot) -> None:
        expected = 1 if isinstance(encoding, OneHot) else len(encoding.mean)
        if given.shape[1] != expected:
            raise UsageError(f"{name}: has {given.shape[1]} columns, but the model was fitted to {expected}.")

    def _batch(self, observations: Any, actions: Any) -> Batch:
        """Return one episode as a batch of one row, with one additional step."""
        return forecasting.one_row(self._history(observations, actions))

    def _history(self, observations: Any, actions: Any) -> Episode:
        """Check one episode and encode it. It may consist of the reset observation only."""
        self.fitted  # noqa: B018 - report "not fitted" before any problem with shapes
        seen = as_table(observations, "observations", gaps=self.missing is not None)
        done = as_table(actions, "actions")
        if len(seen) != len(done) + 1:
            remedy = "the reset observation comes first."
            if 0 < len(seen) <= len(done):
                known = len(seen) - 1
                remedy = (
                    "to predict beyond the last observation, use forecast(observations, "
                    f"actions[:{known}], actions[{known}:])."
                )
            raise UsageError(
                f"observations: {len(seen)} observations and {len(done)} actions are given, but there must be one more "
                f"observation than actions; {remedy}"
            )
        if len(done) == 0:
            done = np.zeros((0, 1 if isinstance(self.actions, OneHot) else len(self.actions.mean)))
        (episode,) = self._encode([Episode(seen, done)])
        return episode


def _check_one(return_std: bool, return_cov: bool) -> None:
    if return_std and return_cov:
        raise UsageError(
            "return_std: give either return_std or return_cov; the former are roots of the latter's diagonal."
        )
