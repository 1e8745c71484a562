"""A trained agent as a user meets it: `rpsp.load`, `agent.predict`, `agent.evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv

from rpsp.algorithms.policies import Agent
from rpsp.data.scaling import OneHot, Scaling
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.checkpoints import check_fit
from rpsp.experiments.place import check_spaces, read_spaces
from rpsp.training.acting import lockstep
from rpsp.training.actions import ActionRange, ActionSymbols, units_of
from rpsp.training.rollouts import Collected, collect

EVALUATING = 1_000_000_000
"""The iteration whose seeds evaluation takes: no training gets there."""


class ActingState(NamedTuple):
    """What an agent carries from one call of `predict` to the next."""

    q: np.ndarray
    """The belief, a row an environment."""
    executed: np.ndarray
    """The last action, clipped, in the agent's own units."""
    steps: np.ndarray
    """Steps since the episode began."""
    episodes: np.ndarray
    """The number of the episode, of all that this agent has begun: its noise derives from that."""


@dataclass(eq=False)
class TrainedAgent:
    """A filter and a policy with the units they were trained in."""

    agent: Agent
    scaling: Scaling | OneHot
    units: ActionRange | ActionSymbols
    make_envs: Callable[..., VectorEnv] | None = None
    """Environments like those it was trained in: `make_envs(num_envs)`."""
    checkpoint: int | None = None
    """How many iterations of training it has had."""
    seed: int = 0
    """Of the noise in actions that are not deterministic."""
    first: int = 0
    """The first symbol of a Discrete space of observations."""
    spaces: Mapping[str, Space] = field(default_factory=dict)
    """Of the observations and actions it was trained with, where they are known."""
    _begun: int = field(default=0, repr=False)
    _compiled: dict[bool, Callable[..., Any]] = field(default_factory=dict, repr=False)

    def predict(
        self,
        observation: Any,
        state: ActingState | None = None,
        episode_start: Any = True,
        deterministic: bool = True,
    ) -> tuple[Any, ActingState]:
        """The action for an observation, and the state to give back with the next one (Stable-Baselines3's habit).

        One observation or a row for each of several environments; `episode_start` says where a new episode begins. The
        state carries the belief and the last action, so nothing else need be remembered.
        """
        readings = _numbers(observation) - self.first
        shape = () if isinstance(self.scaling, OneHot) else self.scaling.mean.shape
        single = readings.shape == shape
        if not single and readings.shape[1:] != shape:
            raise UsageError(
                f"observation: has shape {readings.shape}; give {shape}, or a row of that for each of many."
            )
        if readings.size == 0:
            raise UsageError(f"observation: has shape {readings.shape}, no environment at all; give at least one row.")
        if not np.isfinite(readings).all():
            raise UsageError(
                f"observation: {np.asarray(observation).tolist()} is not finite, and no belief would recover from it; "
                "repeat the last good reading instead."
            )
        rows = 1 if single else len(readings)
        seen = self.scaling.encode(readings.reshape(rows, -1)).astype(np.float32)
        starts = np.asarray(episode_start, bool)
        if starts.size not in (1, rows):
            raise UsageError(f"episode_start: is of {starts.size} environments, the observation of {rows}.")
        starts = np.broadcast_to(starts.reshape(-1), rows) | (state is None)
        if state is None:
            q = np.broadcast_to(np.asarray(self.agent.filter.init(), np.float32), (rows, self.agent.filter.size))
            nothing = np.zeros(rows, np.int64)
            state = ActingState(q, np.zeros((rows, self.units.size), np.float32), nothing, nothing)
        self._check_state(state)
        if len(state.q) != rows:
            raise UsageError(f"state: is of {len(state.q)} environments, the observation of {rows}; begin with None.")
        steps = np.where(starts, 0, state.steps)
        episodes = np.where(starts, self._begun + np.cumsum(starts) - 1, state.episodes)
        self._begun += int(starts.sum())
        noise = state.executed if deterministic else self._noise(episodes, steps)
        q, drawn = self._acting(deterministic)(state.q, state.executed, seen, starts, noise)
        executed = self.units.clip(drawn)
        action = self.units.decode(executed)
        return (action[0] if single else action), ActingState(q, executed, steps + 1, episodes)

    def _check_state(self, state: Any) -> None:
        """Check that a state is one that `predict` of an agent of these sizes returned."""
        if not isinstance(state, ActingState):
            raise UsageError(
                f"state: a {type(state).__name__} is given; give the state that the last call of predict returned, or "
                "None to begin."
            )
        sizes = np.shape(state.q)[1:], np.shape(state.executed)[1:]
        if sizes != ((self.agent.filter.size,), (self.units.size,)):
            raise UsageError(
                f"state: belongs to another agent: its belief has shape {sizes[0]} and its action {sizes[1]}, those of this "
                f"agent have ({self.agent.filter.size},) and ({self.units.size},); keep one state for each agent, and begin "
                "with None."
            )

    def _acting(self, deterministic: bool) -> Callable[..., Any]:
        if deterministic not in self._compiled:
            self._compiled[deterministic] = lockstep(self.agent, deterministic)
        return self._compiled[deterministic]

    def _noise(self, episodes: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Of every row its own, whatever order they are asked for in: a function of episode and step."""
        where = zip(episodes.tolist(), steps.tolist(), strict=True)
        streams = (np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=at)) for at in where)
        return np.concatenate([self.units.noise(stream, 1) for stream in streams]).astype(np.float32)

    def expect(self, state: ActingState) -> np.ndarray:
        """E[o | q, a]: what the agent expects to observe next, after the action it has just chosen; in the task's units."""
        self._check_state(state)
        predicted = jax.vmap(self.agent.filter.predict)(jnp.asarray(state.q), jnp.asarray(state.executed))
        return self.scaling.decode(np.asarray(predicted, np.float64))

    def evaluate(
        self, episodes: int = 10, *, seed: int = 0, deterministic: bool = True, envs: VectorEnv | None = None
    ) -> Collected:
        """Whole episodes, as in training but with other seeds; deterministic unless told."""
        own = envs is None
        if envs is None:
            envs = self.environments(min(10, episodes))
        else:
            check_spaces(self.spaces, envs)
        try:
            return collect(
                self.agent,
                envs,
                scaling=self.scaling,
                episodes=episodes,
                seed=seed,
                iteration=EVALUATING,
                deterministic=deterministic,
            )
        finally:
            if own:
                envs.close()

    def environments(self, count: int, **given: Any) -> VectorEnv:
        """So many environments like those it was trained in."""
        if self.make_envs is None:
            raise UsageError("envs: this agent does not know its environment; pass envs=rpsp.make(...).")
        envs = self.make_envs(count, **given)
        check_spaces(self.spaces, envs)
        return envs


def _numbers(observation: Any) -> np.ndarray:
    """An observation as an array of floats."""
    try:
        given = np.asarray(observation)
        if given.dtype.kind not in "USmMc":  # text, times and complex numbers
            return given.astype(np.float64)
    except (TypeError, ValueError):  # a dict, a ragged list, …
        pass
    raise UsageError(
        f"observation: {str(observation)[:100]!r} ({type(observation).__name__}) is not an array of numbers; give the "
        "readings as one array, and flatten dicts as in training."
    )


def load(
    directory: str | Path, checkpoint: str | int = "last", *, say: Callable[[str], None] | None = None
) -> TrainedAgent:
    """Load the agent of a run directory.

    Args:
        directory: a run directory of `rpsp train`.
        checkpoint: "last", "best", or a number of iterations. "last" is the newest checkpoint that is not damaged.
        say: called with a sentence for every damaged checkpoint that is skipped. Default: issue a warning.
    """
    from rpsp.experiments.resolve import environment_maker, read_config
    from rpsp.experiments.run_directory import RunDirectory, warn

    path = Path(directory)
    config = read_config(path)
    agent, scaling, number = RunDirectory(path).agent(checkpoint, say or warn)
    spaces = read_spaces(path)
    first, units = int(getattr(spaces["observation"], "start", 0)), units_of(spaces["action"])
    try:
        check_fit(agent.filter, scaling, units.size, agent.policy)
    except ValueError as error:
        raise FileFormatError(f"{path}: spaces.json is not of its checkpoint {number} ({error}).") from error
    return TrainedAgent(agent, scaling, units, environment_maker(config), number, config.seed, first, spaces)
