"""What happens to readings and actions between a batch of environments and the agent: masks, noise, latency, loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from rpsp.envs.mujoco_batch import Bools, Rows
from rpsp.errors import UsageError

Array = NDArray[Any]


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
