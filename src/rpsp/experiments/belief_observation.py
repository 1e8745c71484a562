"""The predictive state as observation, so that a policy without memory of any library can be trained on it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from jaxtyping import Bool, Float

from rpsp.data.scaling import Encoding, OneHot, row_shape
from rpsp.errors import UsageError
from rpsp.experiments.agents import TrainedAgent
from rpsp.experiments.models import PredictiveStateModel
from rpsp.training.acting import tracking
from rpsp.training.actions import units_of


class BeliefTracker:
    """The states of a fitted filter in several environments, one row each.

    Args:
        model: a fitted `PredictiveStateModel`, or an agent that `rpsp.load` returns, of which only the filter is used.
        observation_space: the space of one environment's observations.
        action_space: the space of one environment's actions.
        rows: number of environments.

    Raises:
        UsageError: if the model is not fitted, or was fitted to other observations or actions.
    """

    def __init__(
        self,
        model: PredictiveStateModel | TrainedAgent,
        observation_space: Space[Any],
        action_space: Space[Any],
        rows: int = 1,
    ):
        units = units_of(action_space)
        self._first = int(getattr(observation_space, "start", 0))
        if isinstance(model, TrainedAgent):
            self._filter, self._seen = model.agent.filter, model.scaling
            self._done, size = model.units.encode, model.units.size
        elif isinstance(model, PredictiveStateModel):
            self._filter, self._seen = model.fitted, model.observations
            done = model.actions
            # A model is fitted to executed actions in the environment's own units, and symbols from 0.
            self._done = (
                units.encode if isinstance(done, OneHot) else lambda a: done.encode(units.decode(units.encode(a)))
            )
            size = done.size if isinstance(done, OneHot) else len(done.mean)
        else:
            raise UsageError(
                f"model: is a {type(model).__name__}; give a fitted rpsp.PredictiveStateModel, or an agent that rpsp.load "
                "returns."
            )
        self.rows = rows
        self._check("observations", observation_space, _size(self._seen))
        self._check("actions", action_space, size)
        self._update = tracking(self._filter)
        self._q0 = np.asarray(self._filter.init(), np.float32)
        self._q = np.broadcast_to(self._q0, (rows, len(self._q0)))
        self._nothing = np.zeros((rows, size), np.float32)
        view = self._filter.view
        self._view = None if view is None else np.asarray(view, np.float32)

    @property
    def size(self) -> int:
        """Number of coordinates of a belief."""
        return len(self._q0) if self._view is None else self._view.shape[1]

    @property
    def beliefs(self) -> Float[np.ndarray, "row q"]:
        """What a policy sees of the states: all coordinates, unless the filter shows only some."""
        return np.array(self._q if self._view is None else self._q @ self._view)

    def begin(self, observations: Any, starts: Bool[np.ndarray, " row"] | None = None) -> Float[np.ndarray, "row q"]:
        """Start episodes.

        Args:
            observations: one observation per row. Those of rows that do not start are not used.
            starts: the rows in which an episode starts. Default: all.

        Returns:
            The beliefs of all rows.
        """
        starts = np.ones(self.rows, np.bool_) if starts is None else starts
        if starts.any():
            started = self._update(self._q, self._nothing, self._encoded(observations, starts), starts)
            self._q = np.where(starts[:, None], started, self._q)
        return self.beliefs

    def advance(self, actions: Any, observations: Any) -> Float[np.ndarray, "row q"]:
        """Update the states.

        Args:
            actions: the actions in the environment's own units, one per row.
            observations: the observations that followed them.

        Returns:
            The beliefs of all rows.
        """
        done = np.asarray(self._done(np.asarray(actions).reshape(self.rows, -1)), np.float32)
        nobody = np.zeros(self.rows, np.bool_)
        self._q = self._update(self._q, done, self._encoded(observations, ~nobody), nobody)
        return self.beliefs

    def _encoded(self, observations: Any, used: Bool[np.ndarray, " row"]) -> np.ndarray:
        readings = np.asarray(observations, np.float64).reshape(self.rows, -1) - self._first
        readings = np.where(used[:, None], readings, 0.0)
        return self._seen.encode(readings).astype(np.float32)

    def _check(self, name: str, space: Space[Any], size: int) -> None:
        if isinstance(space, Discrete):
            given = int(space.n) if isinstance(self._seen, OneHot) or name == "actions" else 1
        else:
            given = int(np.prod(space.shape or ()))
        if given != size:
            raise UsageError(
                f"env: its {name} have size {given}, but the model was fitted to {name} of size {size}; give the "
                "environment of the recordings, with the same selection of observations."
            )


def _size(encoding: Encoding) -> int:
    return encoding.size if isinstance(encoding, OneHot) else row_shape(encoding)[0]


class BeliefObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observe the predictive state of a fitted model instead of the environment's observation.

    The state summarises all observations and actions so far, so a policy without memory can be trained on it. It is
    the state that `model.filter` and the agents of this library compute.

    Args:
        env: a single environment, with the observations that the model was fitted to.
        model: a fitted `PredictiveStateModel`, or an agent that `rpsp.load` returns, of which only the filter is used.
        keep_observation: whether to append the environment's observation (one-hot if it is a symbol).

    Raises:
        UsageError: if the model is not fitted, or was fitted to other observations or actions.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        model: PredictiveStateModel | TrainedAgent,
        *,
        keep_observation: bool = False,
    ):
        super().__init__(env)
        self._tracker = BeliefTracker(model, env.observation_space, env.action_space)
        self._keep = keep_observation
        extra = 0
        if keep_observation:
            space = env.observation_space
            extra = int(space.n) if isinstance(space, Discrete) else int(np.prod(space.shape or ()))
        self.observation_space = Box(-np.inf, np.inf, (self._tracker.size + extra,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and return the state after its first observation."""
        reading, info = self.env.reset(seed=seed, options=options)
        return self._seen(self._tracker.begin(reading), reading), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and return the state after the new observation."""
        reading, reward, terminated, truncated, info = self.env.step(action)
        return self._seen(self._tracker.advance(action, reading), reading), reward, terminated, truncated, info

    def _seen(self, beliefs: np.ndarray, reading: Any) -> Float[np.ndarray, " x"]:
        if not self._keep:
            return beliefs[0]
        space = self.env.observation_space
        shown = np.eye(int(space.n))[reading - space.start] if isinstance(space, Discrete) else np.ravel(reading)
        return np.concatenate([beliefs[0], shown]).astype(np.float32)
