"""Trained agents: `rpsp.load`, `agent.predict`, `agent.evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv

from rpsp.algorithms.policies import Agent
from rpsp.data.episodes import Episode
from rpsp.data.scaling import Encoding, OneHot, Scaling, row_shape
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments import agent_uncertainty
from rpsp.experiments.agent_uncertainty import Surprise
from rpsp.experiments.checkpoints import check_fit
from rpsp.experiments.notebooks import described
from rpsp.experiments.packs import read_pack
from rpsp.experiments.resolve import environment_maker, read_config
from rpsp.experiments.run_directory import RunDirectory, warn
from rpsp.experiments.spaces import Structure, check_spaces, read_spaces, read_structure
from rpsp.filters.uncertainty import GaussianUncertainty
from rpsp.training.acting import lockstep
from rpsp.training.actions import Units, units_of
from rpsp.training.rollouts import Collected, collect

EVALUATING = 1_000_000_000
"""The iteration number from which evaluation derives its seeds. Training never reaches it, so the seeds differ."""


class Before(NamedTuple):
    """What an agent knew before its last observation, and that observation. One row per environment."""

    q: np.ndarray
    """The state of the filter."""
    executed: np.ndarray
    """The action, clipped, in the agent's scaling."""
    seen: np.ndarray
    """The observation that followed, scaled."""
    starts: np.ndarray
    """Whether it is the first one of an episode."""


class ActingState(NamedTuple):
    """State of an agent between two calls of `predict`. All arrays have one row per environment."""

    q: np.ndarray
    """The state of the filter."""
    executed: np.ndarray
    """The last action, clipped, in the agent's scaling."""
    steps: np.ndarray
    """Number of steps since the episode started."""
    episodes: np.ndarray
    """Number of the episode among all episodes this agent has started. The noise of actions derives from it."""
    before: Before | None = None
    """For `surprise`. A state without it can be given to `predict`, too."""


class _Fixed(NamedTuple):
    """What `predict` needs of a filter and a scaling. Equinox takes longer to look it up than the step takes."""

    shape: tuple[int, ...]
    """Shape of an observation."""
    size: int
    """Size of a state."""
    gaps: bool
    """Whether NaN is a missing reading."""
    q0: np.ndarray
    encode: Callable[[np.ndarray], np.ndarray]
    """The scaling of observations."""


@dataclass(eq=False)
class TrainedAgent:
    """A filter and a policy, with the scaling of observations and actions they were trained with."""

    agent: Agent
    scaling: Encoding
    units: Units
    make_envs: Callable[..., VectorEnv] | None = None
    """Function `make_envs(num_envs)` that makes environments like those of the training."""
    checkpoint: int | None = None
    """Number of iterations the agent was trained for."""
    seed: int = 0
    """Seed of the noise in stochastic actions."""
    first: int = 0
    """The smallest value of a Discrete observation space."""
    spaces: Mapping[str, Space] = field(default_factory=dict)
    """The spaces of observations and actions in training, if known."""
    structure: Structure = field(default_factory=Structure)
    """The structure of observations and actions in the environment."""
    _begun: int = field(default=0, repr=False)
    fitted_uncertainty: GaussianUncertainty | None = field(default=None, repr=False)
    """The predictive distribution of the filter, once it is fitted."""
    _compiled: dict[bool, Callable[..., Any]] = field(default_factory=dict, repr=False)

    def predict(
        self,
        observation: Any,
        state: ActingState | None = None,
        episode_start: Any = True,
        deterministic: bool = True,
        action_mask: Any = None,
    ) -> tuple[Any, ActingState]:
        """Choose an action for an observation. The interface is that of Stable-Baselines3.

        Args:
            observation: one observation of the environment, or a batch: every array in it has one row per environment.
                Flat rows, as `rpsp.make` delivers them, are accepted too.
            state: the state that the last call returned. None at the first call.
            episode_start: whether a new episode starts, for all environments or for each.
            deterministic: whether to take the most probable action instead of sampling.
            action_mask: `info["action_mask"]`, for an agent that was trained with masks; one row per environment for a
                batch.

        Returns:
            The environment's own action, or a batch of them; and the state for the next call.

        Raises:
            UsageError: if a shape is wrong, the observation is NaN or infinite, or the state is of another agent.
        """
        if not self.structure.plain:
            observation = self._row(observation, action_mask)
        elif action_mask is not None:
            raise UsageError("action_mask: this agent was trained without action masks; leave it out.")
        action, state = self.act(observation, state, episode_start, deterministic)
        own = self.structure.actions
        return (action if own is None else own.unflatten(action)), state

    def _row(self, observation: Any, action_mask: Any) -> np.ndarray:
        """Return a structured observation and a mask as the rows that the agent reads."""
        layout, masked = self.structure.observations, self.structure.mask
        batch = None if layout is None else layout.batch_of(observation)
        flat = isinstance(observation, np.ndarray) and observation.shape[-1:] == (len(self.structure.names or ()),)
        if batch is None and flat and action_mask is None:
            return observation  # rows that rpsp.make delivered
        if layout is not None:
            observation = layout.flatten(observation, batch or ())
            if self.structure.observed is not None:
                observation = observation[..., list(self.structure.observed)]
        if not masked:
            return observation
        if action_mask is None:
            raise UsageError("action_mask: is missing; this agent was trained with masks, give info['action_mask'].")
        parts = action_mask if isinstance(action_mask, tuple) else [action_mask]
        seen = self._numbers_of(observation)
        mask = np.concatenate([np.reshape(part, (*seen.shape[:-1], -1)) for part in parts], axis=-1)
        if mask.shape[-1] != masked:
            raise UsageError(f"action_mask: has {mask.shape[-1]} entries; give {masked}, one for each action.")
        return np.concatenate((seen, mask != 0), axis=-1)

    def _numbers_of(self, observation: Any) -> np.ndarray:
        """Return flat observations before their mask: numbers, or one-hot vectors of a symbol."""
        given = _numbers(observation)
        size = len(self.structure.names or ()) - self.structure.mask
        if self.structure.observations is None and given.shape[-1:] != (size,):
            raise UsageError(
                f"observation: has shape {given.shape}; give {size} numbers, or one such row per environment."
            )
        return given

    def act(
        self,
        observation: Any,
        state: ActingState | None = None,
        episode_start: Any = True,
        deterministic: bool = True,
    ) -> tuple[Any, ActingState]:
        """Choose a flat action for a flat observation: what `predict` does in an environment of `rpsp.make`.

        Args:
            observation: one observation, or an array with one row per environment.
            state: the state that the last call returned. None at the first call.
            episode_start: whether a new episode starts, for all environments or for each.
            deterministic: whether to take the most probable action instead of sampling.

        Returns:
            The action, or one row per environment; and the state for the next call.

        Raises:
            UsageError: if a shape is wrong, the state is of another agent, or the observation is infinite, or NaN for an
                agent that was not trained with missing readings.
        """
        readings = _numbers(observation) - self.first
        fixed = self._fixed
        shape = fixed.shape
        single = readings.shape == shape
        if not single and readings.shape[1:] != shape:
            raise UsageError(
                f"observation: has shape {readings.shape}; give shape {shape}, or one such row per environment."
            )
        if readings.size == 0:
            raise UsageError(f"observation: is empty, with shape {readings.shape}; give at least one row.")
        self._check_finite(readings, observation)
        rows = 1 if single else len(readings)
        seen = fixed.encode(readings.reshape(rows, -1)).astype(np.float32)
        starts = np.asarray(episode_start, bool)
        if starts.size not in (1, rows):
            raise UsageError(f"episode_start: has {starts.size} environments, but the observation has {rows}.")
        starts = np.broadcast_to(starts.reshape(-1), rows) | (state is None)
        if state is None:
            q = np.broadcast_to(fixed.q0, (rows, fixed.size))
            nothing = np.zeros(rows, np.int64)
            state = ActingState(q, np.zeros((rows, self.units.size), np.float32), nothing, nothing)
        self._check_state(state)
        if len(state.q) != rows:
            raise UsageError(f"state: has {len(state.q)} environments, the observation has {rows}; start with None.")
        steps = np.where(starts, 0, state.steps)
        episodes = np.where(starts, self._begun + np.cumsum(starts) - 1, state.episodes)
        self._begun += int(starts.sum())
        noise = state.executed if deterministic else self._noise(episodes, steps)
        q, drawn = self._acting(deterministic)(state.q, state.executed, seen, starts, noise)
        executed = self.units.clip(drawn)
        action = self.units.decode(executed)
        before = Before(state.q, state.executed, seen, starts)
        return (action[0] if single else action), ActingState(q, executed, steps + 1, episodes, before)

    @property
    def coordinate_names(self) -> list[str] | None:
        """Names of the observations in figures: of an image, those of its coordinates. None if there are none."""
        return self.structure.coordinate_names(self.scaling)

    @cached_property
    def _fixed(self) -> _Fixed:
        filter, scaling = self.agent.filter, self.scaling
        q0 = np.asarray(filter.init(), np.float32)
        if isinstance(scaling, OneHot):
            return _Fixed((), filter.size, filter.accepts_gaps, q0, scaling.encode)
        if not isinstance(scaling, Scaling):
            return _Fixed(row_shape(scaling), filter.size, filter.accepts_gaps, q0, scaling.encode)
        mean, scale = np.asarray(scaling.mean), np.asarray(scaling.scale)
        return _Fixed(mean.shape, filter.size, filter.accepts_gaps, q0, lambda x: (x - mean) / scale)

    def _check_finite(self, readings: np.ndarray, observation: Any) -> None:
        """Raise `UsageError` if an observation is infinite, or NaN for an agent that was not trained to miss readings."""
        gaps = self._fixed.gaps
        if np.isinf(readings).any() or (not gaps and np.isnan(readings).any()):
            raise UsageError(
                f"observation: {np.asarray(observation).tolist()} contains NaN or infinite values, from which the "
                "filter cannot recover; repeat the last finite observation instead"
                + (
                    ", or give NaN, which means that the reading is missing."
                    if gaps
                    else ", or train with --missing nan."
                )
            )

    def _check_state(self, state: Any) -> None:
        """Raise `UsageError` if a state was not returned by `predict` of an agent with the same dimensions."""
        if not isinstance(state, ActingState):
            raise UsageError(
                f"state: is a {type(state).__name__}; give the state that the last call of predict returned, or None "
                "to start."
            )
        sizes = np.shape(state.q)[1:], np.shape(state.executed)[1:]
        if sizes != ((self._fixed.size,), (self.units.size,)):
            raise UsageError(
                f"state: belongs to another agent: its q has shape {sizes[0]} and its action {sizes[1]}, but this "
                f"agent has ({self._fixed.size},) and ({self.units.size},); keep one state per agent, "
                "and start with None."
            )

    def _acting(self, deterministic: bool) -> Callable[..., Any]:
        if deterministic not in self._compiled:
            self._compiled[deterministic] = lockstep(self.agent, deterministic)
        return self._compiled[deterministic]

    def _noise(self, episodes: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return the noise of every row. It depends on episode and step only, not on the order of calls."""
        where = zip(episodes.tolist(), steps.tolist(), strict=True)
        streams = (np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=at)) for at in where)
        return np.concatenate([self.units.noise(stream, 1) for stream in streams]).astype(np.float32)

    def expect(self, state: ActingState, *, return_std: bool = False) -> Any:
        """Return E[o | q, a], the expected next observation after the action that was just chosen.

        Args:
            state: the state that `predict` returned.
            return_std: whether to return standard deviations, too. The first call fits them (`calibrate`).

        Returns:
            One row per environment, in the scale of the environment's observations. With `return_std`, a pair of such
            arrays.
        """
        self._check_state(state)
        if return_std:
            uncertainty = self.uncertainty
            mean, std = agent_uncertainty.expected(self.agent.filter, uncertainty, state.q, state.executed)
            assert isinstance(self.scaling, Scaling)  # otherwise there is no uncertainty
            return self.scaling.decode(mean), std * self.scaling.scale
        predicted = jax.vmap(self.agent.filter.predict)(jnp.asarray(state.q), jnp.asarray(state.executed))
        return self.scaling.decode(np.asarray(predicted, np.float64))

    def surprise(self, state: ActingState) -> Surprise:
        """Return how improbable the last observation is, given those before it, with its p-value.

        The first call fits the predictive distribution (`calibrate`).

        Args:
            state: the state that `predict` returned for the observation.

        Raises:
            UsageError: if the state was not returned by `predict`, or observations are symbols.
        """
        self._check_state(state)
        if state.before is None:
            raise UsageError("state: does not contain the last observation; give the state that predict returned.")
        q, executed, seen, starts = state.before
        found = agent_uncertainty.surprise(self.agent.filter, self.uncertainty, q, executed, seen)
        return Surprise(np.where(starts[:, None], np.nan, found.z), np.where(starts, np.nan, found.p))

    def calibrate(self, episodes: list[Episode] | None = None) -> GaussianUncertainty:
        """Fit the predictive distribution of the filter to episodes of this agent.

        It is done when it is needed first, in the agent's own environments. An agent that was trained with missing readings
        has one already.

        Args:
            episodes: episodes that `evaluate` returned, at least two. Default: some are played, with seeds of their own.
        """
        envs = self.environments(10) if episodes is None and self.make_envs is not None else None
        try:
            self.fitted_uncertainty = agent_uncertainty.fitted_uncertainty(self.agent, self.scaling, envs, episodes)
        finally:
            if envs is not None:
                envs.close()
        return self.fitted_uncertainty

    @property
    def uncertainty(self) -> GaussianUncertainty:
        """The predictive distribution of the filter. Fitted at first use."""
        return self.calibrate() if self.fitted_uncertainty is None else self.fitted_uncertainty

    def evaluate(
        self, episodes: int = 10, *, seed: int = 0, deterministic: bool = True, envs: VectorEnv | None = None
    ) -> Collected:
        """Play whole episodes. Their seeds differ from those of the training.

        Args:
            episodes: number of episodes.
            seed: seed of the episodes.
            deterministic: whether to take the most probable action instead of sampling.
            envs: a vector environment. Default: environments like those of the training.

        Returns:
            The episodes, their returns, and the number of dropped episodes.

        Raises:
            UsageError: if the spaces of `envs` are not those of the training.
        """
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

    def _repr_html_(self) -> str:
        rows = {
            "filter": f"{type(self.agent.filter).__name__}, {self.agent.filter.size} state dimensions",
            "policy": type(self.agent.policy).__name__,
            **{f"{name}s": str(space) for name, space in self.spaces.items()},
            "trained for": f"{self.checkpoint} iterations, seed {self.seed}",
        }
        return described("TrainedAgent", rows)

    def environments(self, count: int, **given: Any) -> VectorEnv:
        """Return a vector environment like that of the training, with `count` environments."""
        if self.make_envs is None:
            raise UsageError("envs: the environment of this agent is not known; pass envs=rpsp.make(...).")
        envs = self.make_envs(count, **given)
        check_spaces(self.spaces, envs)
        return envs


def _numbers(observation: Any) -> np.ndarray:
    """Convert an observation to an array of floats."""
    try:
        given = np.asarray(observation)
        if given.dtype.kind not in "USmMc":  # text, times and complex numbers
            return given.astype(np.float64)
    except (TypeError, ValueError):  # a dict, a ragged list, …
        pass
    raise UsageError(
        f"observation: {str(observation)[:100]!r} ({type(observation).__name__}) is not an array of numbers; give the "
        "observation as one array."
    )


def load(
    directory: str | Path, checkpoint: str | int = "last", *, say: Callable[[str], None] | None = None
) -> TrainedAgent:
    """Load the agent of a run directory, or of a file that `rpsp pack` wrote.

    Args:
        directory: a run directory of `rpsp train`, or a file of `rpsp pack`.
        checkpoint: "last", "best", or a number of iterations. "last" is the newest checkpoint that is not damaged.
        say: called with a sentence for every damaged checkpoint that is skipped. Default: issue a warning.

    Raises:
        FileFormatError: if it is neither a run directory nor a packed agent, or is damaged.
        UsageError: if there is no such checkpoint.
    """
    path = Path(directory)
    if path.is_file():
        return _packed(path, checkpoint)
    config = read_config(path)
    agent, scaling, number = RunDirectory(path).agent(checkpoint, say or warn)
    spaces = read_spaces(path)
    first, units = int(getattr(spaces["observation"], "start", 0)), units_of(spaces["action"])
    try:
        check_fit(agent.filter, scaling, units.size, agent.policy)
    except ValueError as error:
        raise FileFormatError(f"{path}: spaces.json does not fit checkpoint {number} ({error}).") from error
    of_the_run = number, config.seed, first, spaces, read_structure(path)
    return TrainedAgent(agent, scaling, units, environment_maker(config), *of_the_run)


def _packed(path: Path, checkpoint: str | int) -> TrainedAgent:
    """Load the agent of a file that `rpsp pack` wrote. It has only one checkpoint."""
    pack = read_pack(path)
    if checkpoint not in ("last", "best", pack.checkpoint):
        raise UsageError(f"checkpoint: {checkpoint!r} is not {pack.checkpoint}, the only one in {path}.")
    first, units = int(getattr(pack.spaces["observation"], "start", 0)), units_of(pack.spaces["action"])
    make_envs, seed = environment_maker(pack.config), pack.config.seed
    of_the_run = pack.checkpoint, seed, first, pack.spaces, pack.structure
    return TrainedAgent(pack.agent, pack.scaling, units, make_envs, *of_the_run)
