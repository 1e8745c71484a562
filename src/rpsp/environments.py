"""Environments as the learner meets them: partly observed, disturbed, and many at once.

`make` turns any Gymnasium id or factory into a `gymnasium.vector.VectorEnv`. On its way to the agent a reading passes,
in this order,

    environment → FailureGuard → ObserveOnly → ObservationNoise → ObservationLatency → ObservationDropout → agent

as in a robot: the sensors that exist, their noise, the time their signal takes, and what is lost on the way. An action
passes `ActionLatency`. Each of these is also an ordinary Gymnasium wrapper for a single environment.

Every disturbance is written once, as a `Disturbance` of a batch; the wrapper of a single environment is that with a
batch of one. So a wrapped single environment and row i of a wrapped batch give the same numbers for the same seed.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import numbers
import operator
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NoReturn

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rpsp.errors import FAILED_SHARE, EnvironmentFailure, RpspError, UsageError
from rpsp.mujoco_batch import (
    BATCHED_IDS,
    Bools,
    MujocoBatch,
    Rows,
    Seeds,
    diverged,
    row_seeds,
    rows_to_reset,
    simulation_of,
    unusable,
)
from rpsp.patience import Overdue, Patience

Array = NDArray[Any]


@dataclass(frozen=True)
class Task:
    """One of the paper's tasks and how the paper trains on it.

    The agent sees the positions and no velocity. Which observations are positions is read from the environment's own
    `observation_structure` (see `make`), so no mask is listed here.
    """

    id: str
    max_episode_steps: int
    batch_samples: int
    """Environment steps per iteration."""
    exploration_episodes: int
    iterations: int


TASKS: Mapping[str, Task] = {
    task.id: task
    for task in (
        # 2 000 is in the authors' settings; the paper's text says 10 000.
        Task("InvertedPendulum-v5", 200, batch_samples=2_000, exploration_episodes=100, iterations=200),
        Task("Swimmer-v5", 500, batch_samples=10_000, exploration_episodes=50, iterations=500),
        Task("Hopper-v5", 1000, batch_samples=10_000, exploration_episodes=100, iterations=500),
        Task("Walker2d-v5", 1000, batch_samples=10_000, exploration_episodes=100, iterations=500),
    )
}

# MuJoCo's environments say themselves which observations are positions; classic control does not.
_CLASSIC_POSITIONS: Mapping[str, tuple[int, ...]] = {
    "CartPole": (0, 2),
    "MountainCar": (0,),
    "MountainCarContinuous": (0,),
    "Pendulum": (0, 1),
    "Acrobot": (0, 1, 2, 3),
}


# ---------------------------------------------------------------------------------------------------------------------
# Disturbances of a batch
# ---------------------------------------------------------------------------------------------------------------------


class Disturbance:
    """What happens to readings and actions between a batch of environments and the agent.

    Subclasses say what becomes of the first reading of an episode and of each later one, given only the rows it
    concerns, and of actions. This class keeps what they share: a random stream per row, apart from the environment's
    own, and the readings last delivered, which is what a finished row goes on showing.
    """

    stream: ClassVar[int] = 0
    """Tells the random streams of different disturbances with the same seed apart."""
    draws: ClassVar[bool] = True
    """Whether there is anything random in it: to seed a generator takes a sixth of a reset."""

    def attach(
        self, num_envs: int, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> gymnasium.Space:
        """Get ready for a batch of environments with these (single) spaces; returns the space of what is delivered."""
        space = self.delivered_space(observation_space)
        self._delivered = np.zeros((num_envs, *(space.shape or ())), space.dtype)
        self._generators = [np.random.default_rng() for _ in range(num_envs)]
        self._active: Bools | None = np.zeros(num_envs, np.bool_)
        """The rows whose episodes go on; None where that is all of them."""
        self._everyone = np.arange(num_envs)
        return space

    def start(self, rows: Rows, seeds: Sequence[int | None], readings: Array) -> Array:
        """Deliver after a reset of these rows; `readings` and `seeds` have an entry for every row of the batch."""
        for row in rows:
            seed = seeds[row]
            if seed is not None and self.draws:
                self._generators[row] = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(self.stream,)))
        if self._active is not None:
            self._active[rows] = True
        self._delivered[rows] = self.first(rows, readings[rows])
        return self._delivered.copy()

    def send(self, actions: Array) -> Array:
        """The actions that reach the environments: those of the agent, unless a subclass says otherwise."""
        return actions

    def deliver(self, readings: Array, finished: Bools) -> Array:
        """Deliver after a step; `finished` marks the rows whose episode has ended with it or before."""
        if self._active is None:
            self._delivered[:] = self.next(self._everyone, readings)
        else:
            rows = np.flatnonzero(self._active)
            self._delivered[rows] = self.next(rows, readings[rows])
        self._active = ~finished if np.logical_or.reduce(finished) else None
        return self._delivered.copy()

    def delivered_space(self, space: gymnasium.Space) -> gymnasium.Space:
        """The space of what is delivered, given that of the readings; raises where they cannot be disturbed so."""
        return space

    def first(self, rows: Rows, readings: Array) -> Array:
        """What becomes of an episode's first reading: delivered like any other, unless a subclass says otherwise."""
        return self.next(rows, readings)

    def next(self, rows: Rows, readings: Array) -> Array:
        """What becomes of a later reading."""
        return readings


class Selection(Disturbance):
    """Only some coordinates are observed."""

    draws = False

    def __init__(self, indices: Sequence[int]) -> None:
        self._indices = list(indices)
        first, count = min(self._indices, default=0), len(self._indices)
        in_a_row = self._indices == list(range(first, first + count))
        self._columns = slice(first, first + count) if in_a_row else self._indices

    def delivered_space(self, space: gymnasium.Space) -> gymnasium.Space:
        box = _require_box(space, "observe")
        size = box.shape[0]
        wrong = [index for index in self._indices if not 0 <= index < size]
        if wrong or not self._indices:
            raise UsageError(
                f"observe={','.join(map(str, self._indices))!r} does not fit an observation of {size} numbers; "
                f"give one or more indices from 0 to {size - 1}"
            )
        return Box(box.low[self._indices], box.high[self._indices], dtype=box.dtype)

    def next(self, rows: Rows, readings: Array) -> Array:
        return readings[:, self._columns]


class Noise(Disturbance):
    """Every coordinate of every reading, the first included, gets independent N(0, sigma²) noise; of `units`, if given."""

    stream = 1

    def __init__(self, sigma: float, units: Array | None = None) -> None:
        if not 0 <= sigma < np.inf:
            field = "obs_noise (the sigma of ObservationNoise)" if units is None else "relative_noise"
            raise UsageError(f"{field} must be 0 or more, got {sigma}; give a standard deviation such as 0.1")
        self._sigma = sigma if units is None else sigma * units

    def delivered_space(self, space: gymnasium.Space) -> gymnasium.Space:
        box = _require_box(space, "obs_noise")
        # Noise respects no bounds, and a noisy integer is none.
        dtype = box.dtype if np.issubdtype(box.dtype, np.floating) else np.float64
        return Box(-np.inf, np.inf, box.shape, dtype)

    def next(self, rows: Rows, readings: Array) -> Array:
        noise = [self._generators[row].standard_normal(readings.shape[1]) for row in rows]
        return readings + self._sigma * np.reshape(noise, readings.shape)  # reshaped, because there may be no rows


class Latency(Disturbance):
    """Readings arrive `steps` steps late; until the first can, the reset's reading is repeated."""

    draws = False

    def __init__(self, steps: int) -> None:
        self._steps = _checked_steps("obs_latency (the steps of ObservationLatency)", steps)

    def attach(
        self, num_envs: int, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> gymnasium.Space:
        space = super().attach(num_envs, observation_space, action_space)
        self._on_the_way = np.repeat(self._delivered[:, None], self._steps, axis=1)
        return space

    def first(self, rows: Rows, readings: Array) -> Array:
        self._on_the_way[rows] = readings[:, None]
        return readings

    def next(self, rows: Rows, readings: Array) -> Array:
        return _through(self._on_the_way, rows, readings)


class Delay(Disturbance):
    """Actions take effect `steps` steps late; until the first can, the null action does.

    The null action is the middle of the range (0 where it is unbounded): 0 once actions are scaled to [-1, 1].
    Of a `Discrete` space it is the first action.
    """

    draws = False

    def __init__(self, steps: int) -> None:
        self._steps = _checked_steps("act_latency (the steps of ActionLatency)", steps)

    def attach(
        self, num_envs: int, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> gymnasium.Space:
        self._null = _null_action(action_space)
        # As wide as numpy goes, so that waiting does not round an action.
        self._on_the_way = np.zeros((num_envs, self._steps, *self._null.shape), np.result_type(self._null, np.int64))
        return super().attach(num_envs, observation_space, action_space)

    def first(self, rows: Rows, readings: Array) -> Array:
        self._on_the_way[rows] = self._null
        return readings

    def send(self, actions: Array) -> Array:
        rows = self._everyone if self._active is None else np.flatnonzero(self._active)
        sent = actions.copy()
        sent[rows] = _through(self._on_the_way, rows, actions[rows])
        return sent


class Dropout(Disturbance):
    """Each reading but a reset's is lost with this probability, as a whole; the last one delivered then stands in."""

    stream = 2

    def __init__(self, probability: float) -> None:
        if not 0 <= probability < 1:
            raise UsageError(
                f"dropout (the probability of ObservationDropout) must be at least 0 and below 1, got {probability}; "
                "give the fraction of readings to lose, such as 0.1"
            )
        self._probability = probability

    def first(self, rows: Rows, readings: Array) -> Array:
        return readings

    def next(self, rows: Rows, readings: Array) -> Array:
        lost = np.array([self._generators[row].random() < self._probability for row in rows], np.bool_)
        # The trailing axes are those of an observation: one, or none for a Discrete space.
        return np.where(lost.reshape(-1, *[1] * (readings.ndim - 1)), self._delivered[rows], readings)


def _through(on_the_way: Array, rows: Rows, entering: Array) -> Array:
    """Put one item per row at the end of its queue, `on_the_way[row]`, and take the first one out."""
    queues = np.concatenate((on_the_way[rows], entering[:, None]), axis=1)
    on_the_way[rows] = queues[:, 1:]
    return queues[:, 0]


def _checked_steps(field: str, steps: Any) -> int:
    if not isinstance(steps, int | np.integer) or steps < 0:
        raise UsageError(f"{field} must be a whole number, 0 or more, got {steps!r}; give how many steps late")
    return int(steps)


def _require_box(space: gymnasium.Space, field: str) -> Box:
    if isinstance(space, Box) and len(space.shape) == 1:
        return space
    raise UsageError(f"{field} needs observations in a 1-D Box, this environment's are in {space}; leave it out")


def _null_action(space: gymnasium.Space) -> Array:
    if isinstance(space, Discrete):
        return np.asarray(space.start)
    if not isinstance(space, Box):
        raise UsageError(f"act_latency needs actions in a Box or a Discrete space, this environment's are in {space}")
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    low, high = np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 0.0)
    return (low + high) / 2


# ---------------------------------------------------------------------------------------------------------------------
# Wrappers of a single environment
# ---------------------------------------------------------------------------------------------------------------------


class _Disturbed(gymnasium.Wrapper, RecordConstructorArgs):
    """A single environment under a `Disturbance` of a batch of one."""

    def __init__(self, env: gymnasium.Env, disturbance: Disturbance, **constructor_args: Any) -> None:
        RecordConstructorArgs.__init__(self, **constructor_args)
        gymnasium.Wrapper.__init__(self, env)
        self._disturbance = disturbance
        self.observation_space = disturbance.attach(1, env.observation_space, env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        reading, info = self.env.reset(seed=seed, options=options)
        return self._disturbance.start(np.array([0]), [seed], np.asarray(reading)[None])[0], info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        sent = self._disturbance.send(np.asarray(action)[None])[0]
        reading, reward, terminated, truncated, info = self.env.step(sent)
        finished = np.array([terminated or truncated])
        return self._disturbance.deliver(np.asarray(reading)[None], finished)[0], reward, terminated, truncated, info


class ObserveOnly(_Disturbed):
    """Shows only the coordinates `indices` of a 1-D Box observation."""

    def __init__(self, env: gymnasium.Env, indices: Sequence[int]) -> None:
        super().__init__(env, Selection(indices), indices=indices)


class ObservationNoise(_Disturbed):
    """Adds independent Gaussian noise of standard deviation `sigma` to every coordinate of every observation."""

    def __init__(self, env: gymnasium.Env, sigma: float) -> None:
        super().__init__(env, Noise(sigma), sigma=sigma)


class ObservationLatency(_Disturbed):
    """Delivers observations `steps` steps late; the reset's observation is repeated until then."""

    def __init__(self, env: gymnasium.Env, steps: int) -> None:
        super().__init__(env, Latency(steps), steps=steps)


class ActionLatency(_Disturbed):
    """Executes actions `steps` steps late; the null action (see `Delay`) is executed until then."""

    def __init__(self, env: gymnasium.Env, steps: int) -> None:
        super().__init__(env, Delay(steps), steps=steps)


class ObservationDropout(_Disturbed):
    """Loses each observation, but not a reset's, with this probability; the last delivered one is repeated instead."""

    def __init__(self, env: gymnasium.Env, probability: float) -> None:
        super().__init__(env, Dropout(probability), probability=probability)


class FailureGuard(gymnasium.Wrapper, RecordConstructorArgs):
    """Ends an episode whose simulation has diverged, instead of letting its numbers reach the learner.

    MuJoCo resets a diverged simulation silently, which would teach the agent that catastrophe leads back to the start.
    A step with a number that is not finite, with a MuJoCo warning, or after which time has run backwards returns the
    last good observation, reward 0, `truncated=True` and `info["failed"]=True`; all others `info["failed"]=False`.

    An ended episode stays ended: until the next reset, steps do nothing and return its last observation with reward 0.

    With `ends_raising` set, an exception in a step ends the episode in the same way, and `info["raised"]` says what was
    raised. The environment is then made anew before the next episode, if `factory` is given.
    """

    def __init__(self, env: gymnasium.Env, factory: Callable[[], gymnasium.Env] | None = None) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._factory = factory
        self._broken = False
        self._form_checked = False
        self.ends_raising = False
        """Whether an exception in a step ends the episode as failed instead of being raised."""
        self._ended: tuple[bool, bool, dict[str, Any]] | None = None
        self.failure = ""
        """The first number that was not finite, in words."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._broken and self._factory is not None:
            fresh = self._factory()
            if fresh.unwrapped is not self.unwrapped:
                with suppress(Exception, SystemExit):  # it is broken already
                    self.env.close()
            self.env = fresh
        self._broken = False
        observation, info = self.env.reset(seed=seed, options=options)
        info = {**info, "failed": False}
        self._check(observation)
        if unusable(np.atleast_1d(observation), 0.0):
            raise EnvironmentFailure(
                f"{type(self.unwrapped).__name__} was reset to an observation that is not finite, {observation}; check "
                "its reset"
            )
        simulation = simulation_of(self.env)
        # Copied here and below, because an environment may write its next observation into the same array.
        self._last, self._time = copy(observation), simulation.time if simulation else 0.0
        self._ended = None
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._ended is not None:
            return copy(self._last), 0.0, *self._ended
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except (Exception, SystemExit) as error:
            if not self.ends_raising or isinstance(error, RpspError) or self._is_malformed(error):
                raise
            self._broken, self._ended = True, (False, True, {"failed": True})
            return copy(self._last), 0.0, False, True, {"failed": True, "raised": _described(error)}
        self._check(observation)
        terminated, truncated = bool(terminated), bool(truncated)  # environments return numpy's as well
        failed = bool(unusable(np.atleast_1d(observation), float(reward)))
        if failed and not self.failure:
            wrong = [(f"observation {i}", x) for i, x in enumerate(np.atleast_1d(observation)) if not np.isfinite(x)]
            self.failure = "{} was {}".format(*[*wrong, ("the reward", reward)][0])
        if simulation := simulation_of(self.env):
            failed |= bool(diverged(simulation.warning.number, self._time, simulation.time))
            self._time = simulation.time
        if failed:
            observation, reward, terminated, truncated = copy(self._last), 0.0, False, True
        self._last = copy(observation)
        self._ended = (terminated, truncated, {"failed": failed}) if terminated or truncated else None
        return observation, reward, terminated, truncated, {**info, "failed": failed}

    def _is_malformed(self, error: BaseException) -> bool:
        """Whether an error comes from the form of what the environment returns, which no new episode would change."""
        if self._form_checked or not isinstance(error, TypeError | ValueError | AssertionError):
            return False
        self._form_checked = True
        with suppress(Exception, SystemExit):
            return _malformed(self.env) is not None
        return False

    def _check(self, observation: Any) -> None:
        """Refuse what no reader of the space could expect; numbers beyond the bounds of a Box are let through."""
        space = self.observation_space
        if np.shape(observation) != space.shape or (isinstance(space, Discrete) and not space.contains(observation)):
            raise UsageError(
                f"{type(self.unwrapped).__name__} returned the observation {_short(observation)} of shape "
                f"{np.shape(observation)}, and its observation_space is {_short(space)}; let the two agree"
            )


# ---------------------------------------------------------------------------------------------------------------------
# Vector environments
# ---------------------------------------------------------------------------------------------------------------------


class SerialBatch(SyncVectorEnv):
    """Gymnasium's `SyncVectorEnv` of guarded environments, without autoreset, in which finished rows wait for a reset.

    It behaves as `MujocoBatch` does; `SyncVectorEnv` itself would refuse to be stepped while a row is finished.
    """

    def __init__(self, factories: Sequence[Callable[[], gymnasium.Env]], patience: Patience | None = None) -> None:
        guarded = [partial(_guarded, factory, patience or Patience()) for factory in factories]
        super().__init__(guarded, autoreset_mode=AutoresetMode.DISABLED)
        if len({id(env.unwrapped) for env in self.envs}) < len(self.envs):
            raise UsageError(
                f"env: the function that makes environments returned the same {self.envs[0].unwrapped} twice, and several "
                "are stepped side by side; let it make a new one at every call"
            )
        self.spec = self.envs[0].spec
        self.observation_structure: Mapping[str, int] | None = getattr(
            self.envs[0].unwrapped, "observation_structure", None
        )

    @property
    def failure(self) -> str:
        """A first number that was not finite, in words; empty if there was none."""
        return next((env.failure for env in self.envs if isinstance(env, FailureGuard) and env.failure), "")

    def end_raising_episodes(self, wanted: bool) -> None:
        """Set whether an exception in a step ends that row's episode as failed instead of being raised."""
        for env in self.envs:
            assert isinstance(env, FailureGuard)
            env.ends_raising = wanted

    def step(self, actions: Any) -> tuple[Any, Array, Bools, Bools, dict[str, Any]]:
        # This is the record by which Gymnasium asserts that no finished row is stepped; FailureGuard makes it harmless.
        self._autoreset_envs[:] = False
        return super().step(actions)


def _guarded(factory: Callable[[], gymnasium.Env], patience: Patience) -> FailureGuard:
    with patience:
        return FailureGuard(factory(), factory)


class DisturbedBatch(VectorWrapper):
    """A vector environment under a `Disturbance`, the wrappers above for many environments at once.

    The vector environment must leave resets to its user (`AutoresetMode.DISABLED`), or first observations could not be
    told from later ones; `Autoreset` goes outside.
    """

    def __init__(self, env: VectorEnv, disturbance: Disturbance) -> None:
        super().__init__(env)
        if env.metadata.get("autoreset_mode") != AutoresetMode.DISABLED:
            raise UsageError(
                f"a disturbance cannot wrap a vector environment with {env.metadata.get('autoreset_mode')}; "
                "make it with AutoresetMode.DISABLED and wrap Autoreset around the result"
            )
        self._disturbance = disturbance
        self.single_observation_space = disturbance.attach(
            self.num_envs, env.single_observation_space, env.single_action_space
        )
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        seeds, rows = row_seeds(seed, self.num_envs), rows_to_reset(options, self.num_envs)
        readings, infos = _reset(self.env, seeds, options)
        return self._disturbance.start(rows, seeds, readings), infos

    def step(self, actions: Any) -> tuple[Array, Array, Bools, Bools, dict[str, Any]]:
        readings, rewards, terminated, truncated, infos = self.env.step(self._disturbance.send(np.asarray(actions)))
        delivered = self._disturbance.deliver(readings, terminated | truncated)
        return delivered, rewards, terminated, truncated, infos


def sensors(envs: VectorEnv) -> tuple[Sequence[int] | None, int]:
    """Which coordinates of the environment's own observation are delivered (None for all), and how many steps late."""
    indices, late = None, 0
    while isinstance(envs, VectorWrapper):
        if isinstance(envs, DisturbedBatch):
            disturbance = envs._disturbance
            indices = disturbance._indices if isinstance(disturbance, Selection) else indices
            late += disturbance._steps if isinstance(disturbance, Latency) else 0
        envs = envs.env
    return indices, late


class Autoreset(VectorWrapper):
    """Gymnasium's autoreset modes for a vector environment without one, in which finished rows wait.

    NEXT_STEP restarts a row in the step after its last; SAME_STEP in the same step, with the last observation in
    `infos["final_obs"]` and the step's infos in `infos["final_info"]`. The infos of the resets are not passed on.
    """

    def __init__(self, env: VectorEnv, mode: AutoresetMode | str = AutoresetMode.NEXT_STEP) -> None:
        super().__init__(env)
        self._mode = _autoreset_mode(mode)
        self.metadata = env.metadata | {"autoreset_mode": self._mode}
        self._finished = np.zeros(self.num_envs, np.bool_)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self._finished[rows_to_reset(options, self.num_envs)] = False
        return _reset(self.env, seed, options)

    def step(self, actions: Any) -> tuple[Array, Array, Bools, Bools, dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        finished = terminated | truncated
        if self._mode == AutoresetMode.NEXT_STEP:
            restart = self._finished
            terminated, truncated = terminated & ~restart, truncated & ~restart
            self._finished = finished & ~restart
        elif self._mode == AutoresetMode.SAME_STEP:
            restart = finished
        else:
            restart = np.zeros_like(finished)
        if restart.any():
            if self._mode == AutoresetMode.SAME_STEP:
                final = np.full(self.num_envs, None, dtype=object)
                for row in np.flatnonzero(restart):
                    final[row] = observations[row]
                infos |= {"final_obs": final, "_final_obs": restart, "final_info": dict(infos), "_final_info": restart}
            infos["failed"] = infos["failed"] & ~restart
            observations, _ = _reset(self.env, None, {"reset_mask": restart})
        return observations, rewards, terminated, truncated, infos


def without_autoreset(envs: VectorEnv) -> VectorEnv:
    """Return the same environments with resets left to the caller.

    Args:
        envs: vector environments from `make`, in any autoreset mode, or any others that do not reset themselves.

    Returns:
        A view of the same simulations whose autoreset mode is DISABLED; `envs` itself if that is its mode.

    Raises:
        UsageError: the environments reset themselves in a way that cannot be switched off.
    """
    if envs.metadata.get("autoreset_mode") == AutoresetMode.DISABLED:
        return envs
    if isinstance(envs, Autoreset):
        return envs.env
    if isinstance(envs, _Front) and isinstance(envs.env, Autoreset):
        return _Front(envs.env.env, envs._name, None, envs._patience)
    name = "the environment" if envs.spec is None else envs.spec.id
    raise UsageError(f"envs: {name} resets by itself; make it with autoreset_mode=AutoresetMode.DISABLED.")


RAISED = Exception, SystemExit, Overdue
"""What counts as a failure of an environment. SystemExit does: only the command itself may end the process so."""


class _Front(VectorWrapper):
    """What `make` adds last: the seed of a first reset without one, a limit on how long an environment may take over a
    call, and its name on what it raises."""

    def __init__(self, env: VectorEnv, name: str, seed: int | None, patience: Patience) -> None:
        super().__init__(env)
        self._name, self._first_seed, self._patience = name, seed, patience

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        seeds = row_seeds(self._first_seed if seed is None else seed, self.num_envs)
        self._first_seed = None
        rows_to_reset(options, self.num_envs)  # refused here, a bad mask is not blamed on the environment
        with _blaming(self._name, "being reset", self), self._patience:
            # Gymnasium takes the mask out of the options it is given; the caller's stay as they are.
            return _reset(self.env, seeds, None if options is None else dict(options))

    def step(self, actions: Any) -> tuple[Array, Array, Bools, Bools, dict[str, Any]]:
        try:  # instead of `with _blaming`, which takes longer
            with self._patience:
                return self.env.step(actions)
        except RAISED as error:
            _blame(error, self._name, "being stepped", self)

    def malformed(self) -> str | None:
        """What is wrong with the form of what the environments return; found out by trying, so only once they raised."""
        batch = self.unwrapped
        if not isinstance(batch, SerialBatch):
            return None
        try:
            with self._patience:
                return _malformed(batch.envs[0])
        except (Exception, SystemExit):  # another reason then, and the environment has given it already
            return None

    def close(self, **kwargs: Any) -> None:
        with _blaming(self._name, "being closed"), self._patience:
            self.env.close(**kwargs)


def _reset(envs: Any, seed: Seeds, options: dict[str, Any] | None) -> tuple[Array, dict[str, Any]]:
    """`envs.reset` with a seed per row, which all of Gymnasium's take although `VectorEnv` is annotated for one."""
    return envs.reset(seed=seed, options=options)


@contextmanager
def _blaming(name: str, doing: str, envs: _Front | None = None) -> Iterator[None]:
    try:
        yield
    except RAISED as error:
        _blame(error, name, doing, envs)


def _blame(error: BaseException, name: str, doing: str, envs: _Front | None = None) -> NoReturn:
    """Say which environment raised what, when and where; or, if that is the reason, what is wrong with its methods.

    Errors that say so already pass.
    """
    if isinstance(error, RpspError):
        raise error
    if isinstance(error, Overdue):
        raise EnvironmentFailure(
            f"{name} took longer than its step_timeout over {doing}; give it more if it needs more, or find out why it hangs"
        ) from error
    if envs is not None and isinstance(error, TypeError | ValueError | AssertionError) and (wrong := envs.malformed()):
        raise UsageError(f"{name}: {wrong}") from error
    raise EnvironmentFailure(
        f"{name} raised {_described(error, doing)}; check that it runs under Gymnasium alone"
    ) from error


def _described(error: BaseException, doing: str = "") -> str:
    """The type of an error, its message and where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    when = f" while {doing}" if doing else ""
    return f"{type(error).__name__}{when}: {error} ({place.filename}, line {place.lineno})"


RETURNED = {"reset": ("observation", "info"), "step": ("observation", "reward", "terminated", "truncated", "info")}
"""What the methods of an environment return, by Gymnasium's agreement."""


def _malformed(env: gymnasium.Env) -> str | None:
    """What is wrong with the form of what an environment returns, or else one of the wrappers around it."""
    if isinstance(env, gymnasium.Wrapper) and (inside := _malformed(env.env)):
        return inside
    takes = inspect.signature(env.reset).parameters
    missing = [name for name in ("seed", "options") if name not in takes]
    if missing and all(parameter.kind is not parameter.VAR_KEYWORD for parameter in takes.values()):
        form = "def reset(self, *, seed=None, options=None)"
        return f"{type(env).__name__}.reset takes no {' and no '.join(missing)}; let it be {form}"
    for method, names in RETURNED.items():
        returned: Any = env.reset(seed=0) if method == "reset" else env.step(env.action_space.sample())
        call, form = f"{type(env).__name__}.{method}", ", ".join(names)
        if not isinstance(returned, tuple) or len(returned) != len(names):
            many = f"{len(returned)} values" if isinstance(returned, tuple) else f"one {type(returned).__name__}"
            return f"{call} returned {many}; let it return {form}"
        values = dict(zip(names, returned, strict=True))
        if not isinstance(values["info"], dict):
            return f"{call} returned the info {_short(values['info'])}; let it be a dictionary"
        if not isinstance(np.asarray(values.get("reward", 0.0))[()], numbers.Real):
            return f"{call} returned the reward {_short(values['reward'])}; let it be one number, as float(reward)"
    return None


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else f"{text[:119]}…"


# ---------------------------------------------------------------------------------------------------------------------
# make
# ---------------------------------------------------------------------------------------------------------------------


def make(
    id: str | Callable[[], gymnasium.Env],
    num_envs: int = 1,
    *,
    observe: str | Sequence[int] | NDArray[np.integer[Any]] | None = None,
    obs_noise: float | None = None,
    relative_noise: float = 0.0,
    obs_latency: int | None = None,
    act_latency: int = 0,
    dropout: float = 0.0,
    noise: float | None = None,
    latency: int | None = None,
    max_episode_steps: int | None = None,
    seed: int | None = None,
    threads: int | None = None,
    step_timeout: float = 0.0,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    **env_kwargs: Any,
) -> VectorEnv:
    """Make a vector environment, partly observed and disturbed as asked.

    `infos["failed"]` tells at every step which rows ended because the simulation failed (see `FailureGuard`). As in
    Gymnasium, a finished row starts its next episode in the following step. With `AutoresetMode.DISABLED` finished rows
    wait for `reset(seed=[...], options={"reset_mask": mask})`, which restarts the masked rows only.

    Args:
        id: a Gymnasium id, also as `module:Env-v0`, or a function without arguments that makes an environment.
        num_envs: how many environments.
        observe: what the agent sees: "all", "positions", or indices as a sequence or as in "0,1,2".
            Unless given, the positions in the paper's tasks and everything elsewhere.
        obs_noise: standard deviation of Gaussian noise on every observation.
        relative_noise: the same in units of each coordinate's own standard deviation over 2000 random steps.
        obs_latency: how many steps observations are late.
        act_latency: how many steps actions are late.
        dropout: the probability that an observation is lost and the one before it repeated.
        noise: short for `obs_noise`.
        latency: short for `obs_latency`.
        max_episode_steps: when an episode is truncated; the paper's limit in its tasks, elsewhere the environment's.
        seed: the seed of the first reset that is not given one; row i gets seed + i.
        threads: how many threads step the physics of a batched MuJoCo task; every core unless given.
        step_timeout: seconds after which a step, a reset or the making of one environment is given up as hanging (see
            `rpsp.patience`); 0 for never.
        autoreset_mode: what happens to finished rows, as in Gymnasium; DISABLED leaves resets to the caller.
            Default: NEXT_STEP.
        **env_kwargs: what the environment itself takes.
    """
    _check_at_least("num_envs", num_envs, 1)
    if max_episode_steps is not None:
        _check_at_least("max_episode_steps", max_episode_steps, 1)
    if seed is not None:
        _check_at_least("seed", seed, 0)
    if not 0 <= step_timeout < np.inf:
        raise UsageError(f"step_timeout must be 0 or more, got {step_timeout}; give seconds, or 0 for no limit")
    mode, patience = _autoreset_mode(autoreset_mode), Patience(step_timeout)
    amounts: dict[Callable[[Any], Disturbance], Any] = {
        Noise: _either("obs_noise", obs_noise, "noise", noise),
        Latency: _either("obs_latency", obs_latency, "latency", latency),
        Delay: act_latency,
        Dropout: dropout,
    }
    if relative_noise and amounts[Noise]:
        raise UsageError(f"obs_noise={amounts[Noise]} and relative_noise={relative_noise}: give only one of them")
    disturbances = [kind(amount) for kind, amount in amounts.items() if amount]

    spec = _find_spec(id) if isinstance(id, str) else None
    name = "the environment" if spec is None else spec.id
    with _blaming(name, "being made"):
        envs = _batch(id, spec, num_envs, max_episode_steps, threads, patience, env_kwargs)
    try:
        _check_spaces(name, envs)
        visible = _visible(observe, envs)
        if relative_noise:
            with _blaming(name, "being made"):
                alone = _batch(id, spec, 1, max_episode_steps, threads, patience, env_kwargs)
            # In front of it, so that an environment that raises or hangs here is treated as in a rollout.
            with closing(_Front(alone, name, None, patience)) as front:
                units = _spread(front, name)
            disturbances.insert(0, Noise(relative_noise, units if visible is None else units[list(visible)]))
        if visible is not None:
            disturbances.insert(0, Selection(visible))
        for disturbance in disturbances:
            envs = DisturbedBatch(envs, disturbance)
    except Exception:
        envs.close()
        raise
    if mode != AutoresetMode.DISABLED:
        envs = Autoreset(envs, mode)
    # Nobody watches the clock over a fixed amount of arithmetic, which cannot hang.
    return _Front(envs, name, seed, Patience() if isinstance(envs.unwrapped, MujocoBatch) else patience)


def _batch(
    id: str | Callable[[], gymnasium.Env],
    spec: EnvSpec | None,
    num_envs: int,
    max_episode_steps: int | None,
    threads: int | None,
    patience: Patience,
    env_kwargs: dict[str, Any],
) -> MujocoBatch | SerialBatch:
    """The undisturbed environments: in threads where we know the task, else one after another."""
    if spec is None:
        if not callable(id):
            raise UsageError(
                f"id must be a Gymnasium id or a function that makes an environment, as in lambda: MyEnv(), got {id!r}"
            )
        if env_kwargs:
            raise UsageError(f"{', '.join(env_kwargs)} cannot be passed on to a factory; let it set them itself")
        limited = partial(_limited, id, max_episode_steps)
        return SerialBatch([limited] * num_envs, patience)
    own_id = spec.id.removeprefix("rpsp/")
    if max_episode_steps is None and own_id in TASKS:
        max_episode_steps = TASKS[own_id].max_episode_steps
    # The batch cannot be rendered; Gymnasium's own environments can.
    if own_id in BATCHED_IDS and env_kwargs.get("render_mode") is None:
        return MujocoBatch(own_id, num_envs, max_episode_steps=max_episode_steps, threads=threads, **env_kwargs)
    factory = partial(gymnasium.make, spec, max_episode_steps=max_episode_steps, **env_kwargs)
    return SerialBatch([factory] * num_envs, patience)


def _spread(envs: VectorEnv, name: str, steps: int = 2000) -> Array:
    """Measure the standard deviation of every coordinate of an environment's readings under random actions.

    The same every time. Episodes in which the environment raises are counted as in a rollout.
    """
    _require_box(envs.single_observation_space, "relative_noise")
    if isinstance(envs.unwrapped, SerialBatch):
        envs.unwrapped.end_raising_episodes(True)
    envs.action_space.seed(0)
    readings, ended, episodes, raised = [], True, 0, 0
    for number in range(steps):
        if ended:
            first, _ = envs.reset(seed=number, options={"reset_mask": np.ones(1, np.bool_)})
            readings.append(first[0])
            episodes += 1
        reading, _, terminated, truncated, infos = envs.step(envs.action_space.sample())
        ended = bool(terminated[0] | truncated[0])
        readings.append(reading[0])
        if "raised" in infos:
            raised += 1
            if raised > max(2, FAILED_SHARE * episodes):
                raise EnvironmentFailure(
                    f"{name} raised {infos['raised'][0]} while relative_noise was measured, in {raised} of {episodes} "
                    "episodes; check that it runs under Gymnasium alone"
                )
    return np.std(readings, axis=0)


def _limited(factory: Callable[[], gymnasium.Env], max_episode_steps: int | None) -> gymnasium.Env:
    env = factory()
    return env if max_episode_steps is None else gymnasium.wrappers.TimeLimit(env, max_episode_steps)


def _find_spec(id: str) -> EnvSpec:
    module, _, name = id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(name)
    except ImportError as error:
        raise UsageError(f"id={id!r} names a module that cannot be imported ({error}); check its spelling") from error
    except gymnasium.error.Error as error:
        by_lower = {known.lower(): known for known in gymnasium.registry}
        near = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower)]
        own = "one of your own is named module:Env-v0, or its module by --plugin"
        if module:
            near, own = [f"{module}:{known}" for known in near], f"{module} registers its own when it is imported"
        listed = "gymnasium.pprint_registry() lists the known ones; " + own
        remedy = f"did you mean {' or '.join(near)}? ({own})" if near else listed
        raise UsageError(f"id={id!r} is not a registered environment; {remedy}") from error


def _check_spaces(name: str, envs: VectorEnv) -> None:
    remedies = {
        "observation": "wrap it in gymnasium.wrappers.FlattenObservation where it is made or registered",
        "action": "wrap it in gymnasium.wrappers.TransformAction where it is made or registered",
    }
    spaces = {"observation": envs.single_observation_space, "action": envs.single_action_space}
    for kind, space in spaces.items():
        if isinstance(space, Discrete) or (isinstance(space, Box) and len(space.shape) == 1 and space.shape[0] > 0):
            continue
        remedy = remedies[kind]
        if kind == "observation" and len(space.shape or ()) > 1:
            remedy = (
                "compute a few numbers of such images or tables in a wrapper (gymnasium.wrappers.TransformObservation)"
            )
        raise UsageError(
            f"the {kind}s of {name} are in {_short(space)}, not one or more numbers in a 1-D Box or a Discrete space; "
            f"{remedy}"
        )


def _visible(
    observe: str | Sequence[int] | NDArray[np.integer[Any]] | None, envs: MujocoBatch | SerialBatch
) -> Sequence[int] | None:
    """The indices that `observe` stands for; None for everything."""
    id = "" if envs.spec is None else envs.spec.id.removeprefix("rpsp/")
    if observe is None:
        observe = "positions" if id in TASKS else "all"
    if not isinstance(observe, str):
        return observed_indices(observe)
    if observe == "all":
        return None
    if observe != "positions":
        try:
            return [int(index) for index in observe.split(",")]
        except ValueError as error:
            raise UsageError(f"observe={observe!r} is not understood; give all, positions, or as in 0,1,2") from error
    if envs.observation_structure is not None:
        return range(envs.observation_structure["qpos"])  # they come first
    if (family := id.rpartition("-v")[0]) in _CLASSIC_POSITIONS:
        return _CLASSIC_POSITIONS[family]
    raise UsageError(
        f"observe='positions' is not known for {id or 'this environment'}; give the indices, as in observe='0,1'"
    )


def observed_indices(observe: Any) -> list[int]:
    """Return the indices in a sequence of whole numbers, Python's or numpy's.

    Raises:
        UsageError: `observe` is no sequence, or holds something else.
    """
    try:
        indices = list(observe)
        if any(isinstance(index, bool) for index in indices):
            raise TypeError
        return [operator.index(index) for index in indices]
    except TypeError:
        raise UsageError(
            f"observe={_short(observe)} is not understood; give all, positions, or indices, as in '0,1,2' or [0, 1, 2]"
        ) from None


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        known = ", ".join(repr(one.value) for one in AutoresetMode)
        raise UsageError(f"autoreset_mode={mode!r} is not one of Gymnasium's; give {known}") from error


def _check_at_least(field: str, value: Any, least: int) -> None:
    if not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{field} must be a whole number, {least} or more, got {value!r}")


def _either(field: str, value: Any, short: str, short_value: Any) -> Any:
    """The value under whichever of its two names it was given; 0 if under neither."""
    if value is not None and short_value is not None:
        raise UsageError(f"{field}={value} and {short}={short_value} mean the same; give only one of them")
    return value if value is not None else short_value if short_value is not None else 0


# ---------------------------------------------------------------------------------------------------------------------
# Registration: gymnasium.make_vec("rpsp/Hopper-v5", num_envs=100)
# ---------------------------------------------------------------------------------------------------------------------


def _registered_batch(
    id: str, num_envs: int = 1, *, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP, **kwargs: Any
) -> VectorEnv:
    """A `MujocoBatch` as Gymnasium makes its own: with autoreset in the next step."""
    return Autoreset(MujocoBatch(id, num_envs, **kwargs), autoreset_mode)


def _register() -> None:
    for id in BATCHED_IDS:
        if f"rpsp/{id}" in gymnasium.registry:  # this module was imported before, under a test's reload
            continue
        spec = gymnasium.spec(id)
        gymnasium.register(
            f"rpsp/{id}",
            entry_point=spec.entry_point,
            vector_entry_point=partial(_registered_batch, id),
            max_episode_steps=spec.max_episode_steps,
            reward_threshold=spec.reward_threshold,
        )


_register()
