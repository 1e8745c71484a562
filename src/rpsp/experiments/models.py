"""`PredictiveStateModel`: fit a belief to recorded episodes, filter, predict, score, save and load."""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat, SupportsIndex

import jax
import numpy as np
from jaxtyping import Float

from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode, as_episodes, as_table, split
from rpsp.data.scaling import OneHot, Scaling, fit_scaling, symbols
from rpsp.data.windows import longest_episode
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.checkpoints import check_fit, encoded_size, read_tree, write_tree
from rpsp.experiments.compilation import compilation_cached
from rpsp.filters.base import AbstractFilter, compiled_unroll
from rpsp.filters.evaluation import compiled_forecast, forecasts, normalised_errors, r_squared
from rpsp.filters.inference import InferenceFilter, InferenceSettings, fit_inference, refit_inference
from rpsp.filters.memory import GRU
from rpsp.filters.refinement import RefinementSettings, refine
from rpsp.filters.rivals import fit_autoregression, mean_prediction, persistence
from rpsp.filters.tabular import TabularSettings, fit_tabular
from rpsp.filters.two_stage import TwoStageSettings, fit_two_stage


@dataclasses.dataclass(frozen=True)
class GRUSettings:
    """The recurrent rival, trained by backpropagation through time alone."""

    size: int = 32
    """Hidden units."""


class Kind(NamedTuple):
    """One kind of model: its settings, how it is fitted, and how it is refined unless told otherwise."""

    settings: type
    fit: Callable[[Batch, Batch, Any, np.random.Generator, jax.Array], AbstractFilter]
    refinement: RefinementSettings


def _fit_gru(batch: Batch, held_out: Batch, s: GRUSettings, rng: np.random.Generator, key: jax.Array) -> GRU:
    return GRU(s.size, batch.observations.shape[-1], batch.actions.shape[-1], key=key)


NONE, SOME = RefinementSettings(epochs=0), RefinementSettings()

KINDS: dict[str, Kind] = {
    "inference": Kind(InferenceSettings, lambda b, h, s, rng, key: fit_inference(b, h, s, rng=rng), NONE),
    "kernel-bayes": Kind(TwoStageSettings, lambda b, h, s, rng, key: fit_two_stage(b, s, rng=rng), SOME),
    "gru": Kind(GRUSettings, _fit_gru, RefinementSettings(epochs=60)),
    "tabular": Kind(TabularSettings, lambda b, h, s, rng, key: fit_tabular(b, h, s), NONE),
}
"""The kinds of model, as data: a user's own kind is another row."""


class PredictiveStateModel:
    """A belief fitted to recorded episodes, with scikit-learn's habits.

    `kind` is "inference" (ours: the state update regressed directly), "kernel-bayes" (the paper's: two-stage
    regression, then refinement), "gru" (backpropagation through time) or "tabular" (symbols: Bayes rule). Any setting
    of the kind can be given by name (`past`, `future`, `dimension`, …); `epochs` sets how long it is refined.

    An episode is a pair `(observations, actions)` with one more observation than actions, the reset observation first.
    """

    def __init__(self, kind: str = "inference", *, seed: int = 0, held_out: SupportsFloat = 0.2, **settings: Any):
        self.kind = _one_of("kind", kind, KINDS)
        self.seed, self.held_out = _count("seed", seed, 0), _real(held_out)
        if not 0 < self.held_out < 1:
            raise UsageError(f"held_out: {held_out!r} is not a fraction between 0 and 1; 0.2 is usual.")
        self.refinement = KINDS[kind].refinement
        if (epochs := settings.pop("epochs", None)) is not None:
            self.refinement = dataclasses.replace(self.refinement, epochs=_count("epochs", epochs, 0))
        self.settings = _settings(KINDS[kind].settings, settings)
        self._filter: AbstractFilter | None = None
        self.errors: dict[str, list[float]] = {}
        """Held-out normalised errors over the horizon, of this model and of its rivals; filled by `fit`."""

    @compilation_cached()
    def fit(self, episodes: Sequence[Any]) -> PredictiveStateModel:
        """Fit to episodes; part of them are held out to choose, and then to measure `errors`, of model and rivals."""
        episodes = as_episodes(episodes)
        self.observations, self.actions = self._encodings(episodes)
        rng, batch, held = self._split(episodes)
        key, refine_key = jax.random.split(jax.random.key(self.seed))
        filter = KINDS[self.kind].fit(batch, held, self.settings, rng, key)
        if self.refinement.epochs:
            filter = refine(filter, batch, held, self.refinement, key=refine_key).filter
        self._filter = filter
        self.errors = self._compare(batch, held, rng)
        return self

    @compilation_cached()
    def refit(self, episodes: Sequence[Any]) -> PredictiveStateModel:
        """Fit again to new episodes, in closed form, keeping what every coordinate of the state means.

        What was built on the states (a policy, a display, a stored log) stays valid. Only for kind "inference".
        """
        if not isinstance(self.fitted, InferenceFilter):
            raise UsageError(f"refit: a {self.kind} model has no coordinates to keep; call fit(episodes) instead.")
        rng, batch, held = self._split(as_episodes(episodes))
        self._filter = refit_inference(self.fitted, batch, held, self.settings, rng=rng)
        self.errors = self._compare(batch, held, rng)
        return self

    def _split(self, episodes: list[Episode]) -> tuple[np.random.Generator, Batch, Batch]:
        """The generator of this model's seed, and episodes in its units: those to fit and those held out."""
        rng = np.random.default_rng(self.seed)
        keep = getattr(self.settings, "future", 0) + 1
        train, held = split(self._encode(episodes), self.held_out, rng=rng, keep=keep)
        return rng, pack(train), pack(held)

    def filter(self, observations: Any, actions: Any) -> Float[np.ndarray, "time_plus_1 q"]:
        """The state after each observation: entry t knows `observations[: t + 1]` and `actions[: t]`."""
        batch = self._batch(observations, actions)
        # One step more, whose outcome nobody needs: its pre-state is the state after the last observation.
        return np.asarray(compiled_unroll(self.fitted, batch))[0, : len(np.asarray(observations))]

    def predict(
        self, observations: Any, actions: Any, horizon: SupportsIndex = 1
    ) -> Float[np.ndarray, "n horizon obs"]:
        """Forecasts `[T − horizon + 1, horizon, obs]` of an episode of T actions.

        Entry `[t, j]` predicts `observations[t + 1 + j]` knowing `observations[: t + 1]` and the actions up to then.
        Use `forecast` to predict beyond the last observation.
        """
        horizon = _count("horizon", horizon, 1)
        batch = self._batch(observations, actions)
        steps = len(np.asarray(actions))
        if horizon > steps:
            raise UsageError(
                f"horizon: {horizon} is more than the episode's {steps} actions; choose a smaller one, or use "
                "forecast(observations, actions, future_actions) to predict beyond the last observation."
            )
        # From every entry of the row, though those at its end lack actions: one shape for all episodes in a bucket.
        ahead = np.minimum(np.arange(batch.shape[1])[:, None] + np.arange(horizon), batch.shape[1] - 1)
        states = compiled_unroll(self.fitted, batch)[0]
        predicted = np.asarray(compiled_forecast(self.fitted, states, np.asarray(batch.actions)[0][ahead]))
        return self.observations.decode(predicted[: steps - horizon + 1])

    def forecast(self, observations: Any, actions: Any, future_actions: Any) -> Float[np.ndarray, "horizon obs"]:
        """Predict the observations that follow a recorded history, one for each future action.

        Args:
            observations: T + 1 observations, the reset observation first; T may be 0.
            actions: the T actions between them.
            future_actions: the actions to take after the last observation, at least one.

        Returns:
            Row j predicts the observation after `future_actions[j]`. It uses the whole history and
            `future_actions[: j + 1]`. For a tabular model, a row is a distribution over symbols.

        Raises:
            UsageError: the numbers of observations and actions do not match, or the model is not fitted.
        """
        history = self._history(observations, actions)
        future = as_table(future_actions, "future_actions")
        if len(future) == 0:
            raise UsageError("future_actions: is empty; give one action for each observation to predict.")
        self._match("future_actions", future, self.actions)
        states = compiled_unroll(self.fitted, _one_row(history))[0]
        encoded = self.actions.encode(future).astype(np.float32)
        padding = np.zeros((_bucket(len(future)) - len(future), encoded.shape[1]), np.float32)
        ahead = np.concatenate([encoded, padding])[None]
        predicted = np.asarray(compiled_forecast(self.fitted, states[len(history)][None], ahead))
        return self.observations.decode(predicted[0, : len(future)])

    def score(self, episodes: Sequence[Any], horizon: SupportsIndex = 1) -> float:
        """R² of the prediction `horizon` steps ahead: 1 is perfect, 0 the mean (scikit-learn's convention)."""
        batch = self.encode(episodes)
        return r_squared(forecasts(self.fitted, batch, _count("horizon", horizon, 1)))

    def normalised_errors(self, episodes: Sequence[Any], horizon: SupportsIndex = 10) -> Float[np.ndarray, " horizon"]:
        """Mean squared error over variance at every horizon up to `horizon`: 0 is perfect, 1 the mean."""
        batch = self.encode(episodes)
        return normalised_errors(forecasts(self.fitted, batch, _count("horizon", horizon, 1)))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the model to one safetensors file (no pickle), atomically."""
        extra = {
            "kind": self.kind,
            "seed": self.seed,
            "held_out": self.held_out,
            "settings": dataclasses.asdict(self.settings),
            "epochs": self.refinement.epochs,
            "errors": self.errors,
        }
        write_tree(Path(path), (self.fitted, self.observations, self.actions), extra, overwrite=overwrite)

    @staticmethod
    def load(path: str | Path) -> PredictiveStateModel:
        """Read a model that `save` wrote."""
        tree, extra = read_tree(Path(path))
        try:
            model = PredictiveStateModel(
                extra["kind"],
                seed=extra["seed"],
                held_out=extra["held_out"],
                epochs=extra["epochs"],
                **{k: tuple(v) if isinstance(v, list) else v for k, v in extra["settings"].items()},
            )
            model._filter, model.observations, model.actions = tree
            model.errors = {str(name): [float(e) for e in errors] for name, errors in extra["errors"].items()}
            check_fit(model.fitted, model.observations, encoded_size(model.actions))
        except (UsageError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise FileFormatError(f"{path}: is not a model that this version of rpsp can use ({error}).") from error
        return model

    @property
    def fitted(self) -> AbstractFilter:
        """The filter itself, in the model's own units."""
        if self._filter is None:
            raise UsageError("model: is not fitted yet; call fit(episodes) first, or PredictiveStateModel.load(path).")
        return self._filter

    def _encodings(self, episodes: list[Episode]) -> tuple[Scaling | OneHot, Scaling | OneHot]:
        observations = np.concatenate([e.observations for e in episodes])
        actions = np.concatenate([e.actions for e in episodes])
        if self.kind == "tabular":
            named = (observations, "observations"), (actions, "actions")
            seen, done = (OneHot(int(symbols(column, name=name).max()) + 1) for column, name in named)
            return seen, done
        past = max(RIVAL_PAST, getattr(self.settings, "past", 0))
        if (size := past * (observations.shape[1] + actions.shape[1])) > MAX_HISTORY:
            raise UsageError(
                f"observations: {observations.shape[1]} dimensions over a past of {past} steps make histories of {size} "
                f"numbers, more than {MAX_HISTORY}; select sensors, or reduce them first (principal components)."
            )
        return fit_scaling(observations), fit_scaling(actions)

    def encode(self, episodes: Sequence[Any]) -> Batch:
        """Episodes in the model's own units (standardised, or one-hot), packed into a batch."""
        return pack(self._encode(as_episodes(episodes)))

    def _encode(self, episodes: list[Episode]) -> list[Episode]:
        self._match("observations", episodes[0].observations, self.observations)
        self._match("actions", episodes[0].actions, self.actions)
        observed, done = self.observations.encode, self.actions.encode  # looked up once: Equinox wraps what it returns
        return [Episode(observed(e.observations), done(e.actions)) for e in episodes]

    def _match(self, name: str, given: np.ndarray, encoding: Scaling | OneHot) -> None:
        expected = 1 if isinstance(encoding, OneHot) else len(encoding.mean)
        if given.shape[1] != expected:
            raise UsageError(f"{name}: has {given.shape[1]} columns, the model was fitted to {expected}.")

    def _batch(self, observations: Any, actions: Any) -> Batch:
        """One episode as a batch of one row, followed by one step whose outcome is unknown."""
        return _one_row(self._history(observations, actions))

    def _history(self, observations: Any, actions: Any) -> Episode:
        """Check one episode and encode it. It may consist of the reset observation alone."""
        self.fitted  # noqa: B018 - say "not fitted" before anything about shapes
        seen, done = as_table(observations, "observations"), as_table(actions, "actions")
        if len(seen) != len(done) + 1:
            remedy = "the reset observation comes first."
            if 0 < len(seen) <= len(done):
                known = len(seen) - 1
                remedy = (
                    "to predict beyond the last observation, use forecast(observations, "
                    f"actions[:{known}], actions[{known}:])."
                )
            raise UsageError(
                f"observations: {len(seen)} observations and {len(done)} actions are given, and there must be one more "
                f"observation than actions; {remedy}"
            )
        if len(done) == 0:
            done = np.zeros((0, 1 if isinstance(self.actions, OneHot) else len(self.actions.mean)))
        (episode,) = self._encode([Episode(seen, done)])
        return episode

    def _compare(self, batch: Batch, held: Batch, rng: np.random.Generator) -> dict[str, list[float]]:
        """Held-out normalised errors over the horizon, beside the obvious alternatives."""
        horizon = min(10, longest_episode(held))
        rivals: dict[str, AbstractFilter] = {
            self.kind: self.fitted,
            f"linear AR({RIVAL_PAST})": fit_autoregression(batch, held, past=RIVAL_PAST, rng=rng),
            "persistence": persistence(batch.previous_observations.shape[-1], batch.actions.shape[-1]),
            "mean": mean_prediction(batch),
        }
        return {
            name: [float(e) for e in normalised_errors(forecasts(filter, held, horizon))]
            for name, filter in rivals.items()
        }


RIVAL_PAST = 10  # steps that the autoregression beside every model sees
MAX_HISTORY = 5000  # regressions solve systems of about twice this size: beyond it minutes and gigabytes


def _settings(cls: type, given: dict[str, Any]) -> Any:
    """The settings of a kind. Numbers of numpy become Python's own, which a saved model can hold as JSON."""
    known = {field.name: field for field in dataclasses.fields(cls)}
    for name in given:
        _one_of("setting", name, known)
    return cls(**{name: _setting(name, value, known[name].default) for name, value in given.items()})


def _setting(name: str, value: Any, default: Any) -> Any:
    """A value as the type of its default."""
    if isinstance(default, bool):
        if not isinstance(value, bool | np.bool_):
            raise UsageError(f"{name}: {value!r} is not True or False; the default is {default}.")
        return bool(value)
    if isinstance(default, int) or (default is None and value is not None):
        return _count(name, value, 1)
    if isinstance(default, float):
        if not (number := _real(value)) >= 0:
            raise UsageError(f"{name}: {value!r} is not a number ≥ 0; the default is {default}.")
        return number
    if isinstance(default, tuple):
        numbers = tuple(map(_real, value)) if isinstance(value, list | tuple | np.ndarray) else ()
        if not numbers or not all(number >= 0 for number in numbers):
            raise UsageError(f"{name}: {value!r} is not a list of numbers ≥ 0; the default is {default}.")
        return numbers
    return value


def _real(value: Any) -> float:
    """A number of any type (Python, numpy, jax) as a float; NaN for anything else."""
    try:
        return math.nan if isinstance(value, str | bytes | bool | np.bool_) else float(value)
    except (TypeError, ValueError):
        return math.nan


def _count(name: str, value: Any, least: int) -> int:
    """A whole number of any type as an int."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < least:
        raise UsageError(f"{name}: {value!r} is not a whole number ≥ {least}.")
    return number


def _one_of(field: str, value: str, allowed: Any) -> str:
    if value not in allowed:
        near = difflib.get_close_matches(str(value), list(allowed), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UsageError(f"{field}: {value!r} is not one of {', '.join(allowed)}{hint}.")
    return value


def _one_row(history: Episode) -> Batch:
    """A batch of one episode with one more step, so that the state after its last observation is a pre-state."""
    longer = Episode(
        np.concatenate([history.observations, history.observations[-1:]]),
        np.concatenate([history.actions, np.zeros((1, history.actions.shape[1]))]),
    )
    return pack([longer], row_length=_bucket(len(longer)))


def _bucket(length: int) -> int:
    """The next length of a few: episodes of similar length share one compilation."""
    return 1 << max(5, (length - 1).bit_length())
