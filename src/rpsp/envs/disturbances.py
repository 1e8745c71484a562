"""Disturbances between a batch of environments and the agent: masks, noise, latency, dropout and limits of actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray

from rpsp.envs.rows import Bools, Rows
from rpsp.envs.structures import symbols_of
from rpsp.errors import UsageError

Array = NDArray[Any]


class Disturbance:
    """Base class of changes to observations and actions between a batch of environments and the agent.

    In this module, a *reading* is an observation of the environment, and the *delivered* observation is what the agent
    gets.

    Subclasses override `first` and `next`, which change the first reading of an episode and all later ones, or `send`,
    which changes actions. `first` and `next` get only the rows concerned. `delivered_space` and `accepted_space` say
    which spaces the agent gets. This class keeps a random generator per row, separate from that of the environment, and
    the last delivered observations, which finished rows repeat.
    """

    stream: ClassVar[int] = 0
    """Number of the random stream, so that different disturbances with the same seed have different random numbers."""
    draws: ClassVar[bool] = True
    """Whether the disturbance is random. Otherwise generators are not seeded, which saves a sixth of a reset's time."""

    def attach(
        self, num_envs: int, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> gymnasium.Space:
        """Prepare for a batch of environments.

        Args:
            num_envs: number of environments.
            observation_space: observation space of a single environment.
            action_space: action space of a single environment.

        Returns:
            The space of the delivered observations of a single environment.
        """
        space = self.delivered_space(observation_space)
        self._delivered = np.zeros((num_envs, *(space.shape or ())), space.dtype)
        self._generators = [np.random.default_rng() for _ in range(num_envs)]
        self._active: Bools | None = np.zeros(num_envs, np.bool_)
        """True at rows with an episode in progress; None if that is all rows."""
        self._everyone = np.arange(num_envs)
        return space

    def start(self, rows: Rows, seeds: Sequence[int | None], readings: Array) -> Array:
        """Return the delivered observations after a reset.

        Args:
            rows: the rows that were reset.
            seeds: the seed of every row of the batch; None to keep its generator.
            readings: the readings of every row of the batch.
        """
        for row in rows:
            seed = seeds[row]
            if seed is not None and self.draws:
                self._generators[row] = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(self.stream,)))
        if self._active is not None:
            self._active[rows] = True
        self._delivered[rows] = self.first(rows, readings[rows])
        return self._delivered.copy()

    def send(self, actions: Array) -> Array:
        """Return the actions that reach the environments. Default: the actions of the agent."""
        return actions

    def deliver(self, readings: Array, finished: Bools) -> Array:
        """Return the delivered observations after a step.

        Args:
            readings: the readings of every row of the batch.
            finished: True at rows whose episode ended in this step or before.
        """
        if self._active is None:
            self._delivered[:] = self.next(self._everyone, readings)
        else:
            rows = np.flatnonzero(self._active)
            self._delivered[rows] = self.next(rows, readings[rows])
        self._active = ~finished if np.logical_or.reduce(finished) else None
        return self._delivered.copy()

    def delivered_space(self, space: gymnasium.Space) -> gymnasium.Space:
        """Return the space of delivered observations, given the space of readings.

        Raises:
            UsageError: if readings of this space cannot be disturbed in this way.
        """
        return space

    def accepted_space(self, space: gymnasium.Space) -> gymnasium.Space:
        """Return the space of the agent's actions, given that of the environment. Default: the same.

        Raises:
            UsageError: if actions of this space cannot be changed in this way.
        """
        return space

    def first(self, rows: Rows, readings: Array) -> Array:
        """Return what is delivered for the first readings of episodes. Default: as `next`."""
        return self.next(rows, readings)

    def next(self, rows: Rows, readings: Array) -> Array:
        """Return what is delivered for later readings. Default: the readings."""
        return readings


class Selection(Disturbance):
    """Observe only some coordinates.

    Args:
        indices: indices of the coordinates.
    """

    draws = False

    def __init__(self, indices: Sequence[int]) -> None:
        self._indices = list(indices)
        first, count = min(self._indices, default=0), len(self._indices)
        in_a_row = self._indices == list(range(first, first + count))
        self._columns = slice(first, first + count) if in_a_row else self._indices

    def delivered_space(self, space: gymnasium.Space) -> gymnasium.Space:
        """Return the space of the observed coordinates."""
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
        """Select the observed coordinates."""
        return readings[:, self._columns]


class Noise(Disturbance):
    """Add independent Gaussian noise to every coordinate of every reading, including the first.

    Args:
        sigma: standard deviation.
        units: if given, one factor per coordinate by which the standard deviation is multiplied.
    """

    stream = 1

    def __init__(self, sigma: float, units: Array | None = None) -> None:
        if not 0 <= sigma < np.inf:
            field = "obs_noise (the sigma of ObservationNoise)" if units is None else "relative_noise"
            raise UsageError(f"{field} must be 0 or more, got {sigma}; give a standard deviation such as 0.1")
        self._sigma = sigma if units is None else sigma * units

    def delivered_space(self, space: gymnasium.Space) -> gymnasium.Space:
        """Return an unbounded space of floats."""
        box = _require_box(space, "obs_noise")
        # Noisy observations can leave the bounds, and noisy integers are no integers.
        dtype = box.dtype if np.issubdtype(box.dtype, np.floating) else np.float64
        return Box(-np.inf, np.inf, box.shape, dtype)

    def next(self, rows: Rows, readings: Array) -> Array:
        """Add noise."""
        noise = [self._generators[row].standard_normal(readings.shape[1]) for row in rows]
        return readings + self._sigma * np.reshape(noise, readings.shape)  # reshape also handles zero rows


class Latency(Disturbance):
    """Delay observations. Until the first delayed one arrives, the reset observation is repeated.

    Args:
        steps: number of steps.
    """

    draws = False

    def __init__(self, steps: int) -> None:
        self._steps = _checked_steps("obs_latency (the steps of ObservationLatency)", steps)

    def attach(
        self, num_envs: int, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> gymnasium.Space:
        """Create the queue of delayed readings."""
        space = super().attach(num_envs, observation_space, action_space)
        self._on_the_way = np.repeat(self._delivered[:, None], self._steps, axis=1)
        return space

    def first(self, rows: Rows, readings: Array) -> Array:
        """Fill the queue with the reset observation, and deliver it."""
        self._on_the_way[rows] = readings[:, None]
        return readings

    def next(self, rows: Rows, readings: Array) -> Array:
        """Append the readings to the queue, and deliver its first ones."""
        return _through(self._on_the_way, rows, readings)


class Delay(Disturbance):
    """Delay actions. Until the first delayed one takes effect, the null action is executed.

    The null action is the middle of the action range, or 0 in unbounded coordinates. It is 0 once actions are scaled to
    [-1, 1]. Symbols have their first value.

    Args:
        steps: number of steps.
    """

    draws = False

    def __init__(self, steps: int) -> None:
        self._steps = _checked_steps("act_latency (the steps of ActionLatency)", steps)

    def attach(
        self, num_envs: int, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> gymnasium.Space:
        """Create the queue of delayed actions."""
        self._null = _null_action(action_space)
        # The widest NumPy type, so that actions are not rounded in the queue.
        self._on_the_way = np.zeros((num_envs, self._steps, *self._null.shape), np.result_type(self._null, np.int64))
        return super().attach(num_envs, observation_space, action_space)

    def first(self, rows: Rows, readings: Array) -> Array:
        """Fill the queue with the null action. Readings are not changed."""
        self._on_the_way[rows] = self._null
        return readings

    def send(self, actions: Array) -> Array:
        """Append the actions to the queue, and send its first ones."""
        rows = self._everyone if self._active is None else np.flatnonzero(self._active)
        sent = actions.copy()
        sent[rows] = _through(self._on_the_way, rows, actions[rows])
        return sent


class Limit(Disturbance):
    """Clip actions to ± a limit in the environment's own units. The agent's action space is the smaller range.

    Coordinates without bounds get these bounds.

    Args:
        limit: largest absolute value of an action.
    """

    draws = False

    def __init__(self, limit: float) -> None:
        if not 0 < limit < np.inf:
            raise UsageError(
                f"action_limit (the limit of ActionLimit) must be greater than 0 and finite, got {limit}; give the "
                "largest absolute value of an action, or leave it out"
            )
        self.limit = limit
        """Largest absolute value of an action."""

    def accepted_space(self, space: gymnasium.Space) -> gymnasium.Space:
        """Return the smaller range. Raises `UsageError` if there is none."""
        if not isinstance(space, Box) or symbols_of(space) or not np.issubdtype(space.dtype, np.floating):
            raise UsageError(
                f"action_limit={self.limit:g} needs actions that are real numbers in a Box, this environment's are in "
                f"{space}; leave it out"
            )
        low, high = np.maximum(space.low, -self.limit), np.minimum(space.high, self.limit)
        if not (low < high).all():
            raise UsageError(
                f"action_limit={self.limit:g} leaves no range of the actions of this environment, which are in {space}; "
                "give a larger limit"
            )
        return Box(low.astype(space.dtype), high.astype(space.dtype), dtype=np.dtype(space.dtype).type)

    def attach(
        self, num_envs: int, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> gymnasium.Space:
        """Remember the range of actions."""
        accepted = self.accepted_space(action_space)
        assert isinstance(accepted, Box)
        self._low, self._high = accepted.low, accepted.high
        return super().attach(num_envs, observation_space, action_space)

    def send(self, actions: Array) -> Array:
        """Clip the actions."""
        return np.clip(actions, self._low, self._high)


class Dropout(Disturbance):
    """Drop whole readings at random and repeat the last delivered observation instead. Reset observations are kept.

    Args:
        probability: probability that a reading is dropped.
        mark: whether to deliver NaN instead of the last observation.
    """

    stream = 2

    def __init__(self, probability: float, mark: bool = False) -> None:
        if not 0 <= probability < 1:
            raise UsageError(
                f"dropout (the probability of ObservationDropout) must be at least 0 and below 1, got {probability}; "
                "give the fraction of readings to lose, such as 0.1"
            )
        self._probability, self._mark = probability, mark

    def delivered_space(self, space: gymnasium.Space) -> gymnasium.Space:
        """Return the space of readings; of floats if dropped ones are marked by NaN."""
        return marked_space(space) if self._mark else space

    def first(self, rows: Rows, readings: Array) -> Array:
        """Deliver the reset observation, which is never dropped."""
        return readings

    def next(self, rows: Rows, readings: Array) -> Array:
        """Drop readings at random."""
        lost = np.array([self._generators[row].random() < self._probability for row in rows], np.bool_)
        # The trailing axes are those of an observation: one for a Box, none for a Discrete space.
        instead = np.nan if self._mark else self._delivered[rows]
        return np.where(lost.reshape(-1, *[1] * (readings.ndim - 1)), instead, readings)


def _through(on_the_way: Array, rows: Rows, entering: Array) -> Array:
    """Append one item per row to the queue `on_the_way[row]`, and remove and return the first item."""
    queues = np.concatenate((on_the_way[rows], entering[:, None]), axis=1)
    on_the_way[rows] = queues[:, 1:]
    return queues[:, 0]


def _checked_steps(field: str, steps: Any) -> int:
    if not isinstance(steps, int | np.integer) or steps < 0:
        raise UsageError(f"{field} must be a whole number, 0 or more, got {steps!r}; give the number of steps")
    return int(steps)


def _require_box(space: gymnasium.Space, field: str) -> Box:
    if isinstance(space, Box) and len(space.shape) == 1:
        return space
    raise UsageError(f"{field} needs observations in a 1-D Box, this environment's are in {space}; leave it out")


def marked_space(space: gymnasium.Space) -> Box:
    """Return a space of floats, for readings that are NaN where they are missing.

    Raises:
        UsageError: if readings are not numbers in a 1-D Box.
    """
    box = _require_box(space, "missing='nan'")
    # Integers have no NaN.
    dtype = box.dtype if np.issubdtype(box.dtype, np.floating) else np.float64
    return Box(box.low.astype(dtype), box.high.astype(dtype), dtype=dtype)


def _null_action(space: gymnasium.Space) -> Array:
    if isinstance(space, Discrete):
        return np.asarray(space.start)
    if isinstance(space, MultiDiscrete):
        return np.zeros(space.shape, space.dtype)
    if not isinstance(space, Box):
        raise UsageError(f"act_latency needs actions in a Box or a Discrete space, this environment's are in {space}")
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    low, high = np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 0.0)
    null = (low + high) / 2
    null[len(null) - len(symbols_of(space)) :] = 0.0  # the first value of each symbol
    return null
