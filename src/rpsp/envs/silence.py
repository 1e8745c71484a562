"""Disturbances of single sensors and of transmission: slow sensors, outages, and latency that differs between readings.

With `mark`, what is missing is delivered as NaN. Otherwise the last delivered value is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from rpsp.envs.disturbances import Array, Disturbance, Latency, _checked_steps, _require_box, marked_space
from rpsp.envs.rows import Rows
from rpsp.errors import UsageError


class Rate(Disturbance):
    """Read sensors only every n-th step: at the reset, and n, 2n, … steps after it.

    Args:
        every: n for all sensors, or the n of some sensors by index. Also as text: "10", or "0:10,3:2".
        mark: whether to deliver NaN between two readings instead of the last one.
    """

    draws = False

    def __init__(self, every: int | str | Mapping[int, int], mark: bool = False) -> None:
        self._given, self._mark = parsed_rate(every), mark

    def attach(
        self, num_envs: int, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> gymnasium.Space:
        """Prepare the clock of every row, and n for every sensor."""
        size = _require_box(observation_space, "sensor_rate").shape[0]
        given = dict.fromkeys(range(size), self._given) if isinstance(self._given, int) else self._given
        if wrong := [i for i in given if i >= size]:
            raise UsageError(
                f"sensor_rate: there is no sensor {wrong[0]}, the observation has {size} numbers; "
                f"give indices from 0 to {size - 1}"
            )
        self._every = np.array([given.get(i, 1) for i in range(size)])
        self._clocks = np.zeros(num_envs, np.int64)
        return super().attach(num_envs, observation_space, action_space)

    def delivered_space(self, space: gymnasium.Space) -> gymnasium.Space:
        """Return the space of readings; of floats if missing ones are marked by NaN."""
        return marked_space(space) if self._mark else space

    def first(self, rows: Rows, readings: Array) -> Array:
        """Deliver the reset observation."""
        self._clocks[rows] = 0
        return readings

    def next(self, rows: Rows, readings: Array) -> Array:
        """Deliver what is due."""
        self._clocks[rows] += 1
        due = self._clocks[rows, None] % self._every == 0
        return np.where(due, readings, np.nan if self._mark else self._delivered[rows])


class Outage(Disturbance):
    """Silence single sensors at random, for several steps at a time. Reset observations are kept.

    Args:
        probability: probability per step that a sensor that works falls silent.
        steps: number of steps for which it is silent.
        mark: whether to deliver NaN for a silent sensor instead of its last value.
    """

    stream = 3

    def __init__(self, probability: float, steps: int, mark: bool = False) -> None:
        if not 0 <= probability < 1:
            raise UsageError(
                f"outage: the probability must be at least 0 and below 1, got {probability}; give probability and "
                "number of steps, such as 0.01:20"
            )
        self._probability, self._steps, self._mark = probability, _checked_steps("outage: the duration", steps), mark

    def attach(
        self, num_envs: int, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> gymnasium.Space:
        """Prepare the number of silent steps that every sensor has left."""
        self._left = np.zeros((num_envs, _require_box(observation_space, "outage").shape[0]), np.int64)
        return super().attach(num_envs, observation_space, action_space)

    def delivered_space(self, space: gymnasium.Space) -> gymnasium.Space:
        """Return the space of readings; of floats if missing ones are marked by NaN."""
        return marked_space(space) if self._mark else space

    def first(self, rows: Rows, readings: Array) -> Array:
        """Deliver the reset observation. All sensors work."""
        self._left[rows] = 0
        return readings

    def next(self, rows: Rows, readings: Array) -> Array:
        """Silence sensors at random."""
        drawn = np.reshape([self._generators[row].random(readings.shape[1]) for row in rows], readings.shape)
        left = self._left[rows]
        left = np.where((left == 0) & (drawn < self._probability), self._steps, left)
        self._left[rows] = np.maximum(left - 1, 0)
        return np.where(left > 0, np.nan if self._mark else self._delivered[rows], readings)


class RandomLatency(Disturbance):
    """Delay every observation by its own random number of steps. The agent gets the newest one that has arrived.

    An observation that arrives after a newer one is not delivered. The reset observation is not delayed.

    Args:
        least: smallest number of steps.
        most: largest number of steps. All numbers between the two are equally probable.
        mark: whether to deliver NaN in a step in which no newer observation arrives, instead of the last one.
    """

    stream = 4

    def __init__(self, least: int, most: int, mark: bool = False) -> None:
        self._least, self._most = (_checked_steps("obs_latency", steps) for steps in (least, most))
        if least > most:
            raise UsageError(f"obs_latency: {least}-{most} ends before it begins; give the smaller number first")
        self._mark = mark

    @property
    def usual(self) -> int:
        """The mean latency, rounded down."""
        return (self._least + self._most) // 2

    def attach(
        self, num_envs: int, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> gymnasium.Space:
        """Prepare the observations on the way."""
        space = super().attach(num_envs, observation_space, action_space)
        slots = self._most + 1
        self._numbers = np.zeros((num_envs, slots), np.int64)
        """Number of the step in which the observation in this slot was made."""
        self._arrivals = np.zeros((num_envs, slots), np.int64)
        self._on_the_way = np.repeat(self._delivered[:, None], slots, axis=1)
        self._clocks, self._newest = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        return space

    def delivered_space(self, space: gymnasium.Space) -> gymnasium.Space:
        """Return the space of readings; of floats if missing ones are marked by NaN."""
        return marked_space(space) if self._mark else space

    def first(self, rows: Rows, readings: Array) -> Array:
        """Deliver the reset observation."""
        for one in (self._numbers, self._arrivals, self._clocks, self._newest):
            one[rows] = 0
        return readings

    def next(self, rows: Rows, readings: Array) -> Array:
        """Send the readings on their way, and deliver the newest of those that have arrived."""
        self._clocks[rows] += 1
        now = self._clocks[rows]
        late = np.array([self._generators[row].integers(self._least, self._most + 1) for row in rows], np.int64)
        slot = now % (self._most + 1)
        self._numbers[rows, slot], self._arrivals[rows, slot] = now, now + late
        self._on_the_way[rows, slot] = readings
        new = (self._arrivals[rows] <= now[:, None]) & (self._numbers[rows] > self._newest[rows, None])
        found = np.where(new, self._numbers[rows], 0)
        best = found.argmax(axis=1)
        came = new[np.arange(len(rows)), best]
        self._newest[rows] = np.maximum(self._newest[rows], found.max(axis=1, initial=0))
        came = came.reshape(-1, *[1] * (readings.ndim - 1))
        return np.where(came, self._on_the_way[rows, best], np.nan if self._mark else self._delivered[rows])


# ---------------------------------------------------------------------------------------------------------------------
# Settings as text
# ---------------------------------------------------------------------------------------------------------------------


def parsed_rate(given: Any) -> int | dict[int, int]:
    """Return the n of `Rate`: one for all sensors, or by index. Raises `UsageError` if it is not understood."""
    if isinstance(given, Mapping):
        given = ",".join(f"{i}:{n}" for i, n in given.items())
    text = str(given).replace(" ", "")
    if re.fullmatch(r"[0-9]+", text) and int(text) > 0:
        return int(text)
    if re.fullmatch(r"[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*", text):
        found = {int(i): int(n) for i, n in (one.split(":") for one in text.split(","))}
        if all(n > 0 for n in found.values()):
            return found
    raise UsageError(
        f"sensor_rate: {given!r} is not understood; give 10 to read all sensors every 10 steps, or 0:10,3:2 to read "
        "sensor 0 every 10 and sensor 3 every 2 steps"
    )


def parsed_outage(given: Any) -> tuple[float, int]:
    """Return probability and duration of `Outage` from "P:L" or a pair. Raises `UsageError` if not understood."""
    text = given if isinstance(given, str) else ":".join(map(str, given)) if isinstance(given, Sequence) else ""
    probability, _, steps = text.replace(" ", "").partition(":")
    try:
        return float(probability), int(steps)
    except ValueError:
        raise UsageError(
            f"outage: {given!r} is not understood; give the probability per step that a sensor falls silent and the "
            "number of steps for which it is silent, such as 0.01:20"
        ) from None


def parsed_latency(given: Any) -> tuple[int, int]:
    """Return the smallest and the largest latency, from a number, "0-3" or a pair.

    Raises:
        UsageError: if it is not understood.
    """
    if isinstance(given, str) and (match := re.fullmatch(r" *([0-9]+) *(?:- *([0-9]+) *)?", given)):
        least, most = match.groups()
        return int(least), int(most or least)
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2:
        least, most = (_checked_steps("obs_latency (the steps of ObservationLatency)", steps) for steps in given)
        return least, most
    steps = _checked_steps("obs_latency (the steps of ObservationLatency)", given)
    return steps, steps


def latency(given: Any, mark: bool = False) -> Disturbance:
    """Return the disturbance of a latency: `Latency` if it is fixed, otherwise `RandomLatency`.

    Args:
        given: the latency, as in `parsed_latency`.
        mark: as in `RandomLatency`. A fixed latency marks nothing.
    """
    least, most = parsed_latency(given)
    return Latency(least) if least == most else RandomLatency(least, most, mark)


def as_text(name: str, given: Any) -> Any:
    """Return a setting of this module as the text or number that configurations hold.

    Args:
        name: "obs_latency", "outage" or "sensor_rate".
        given: its value. None is returned as it is.
    """
    if given is None or isinstance(given, str | int):
        return given
    if name == "outage":
        return "{:g}:{}".format(*parsed_outage(given))
    if name == "obs_latency" and isinstance(given, Sequence):
        return "{}-{}".format(*parsed_latency(given))
    if name == "sensor_rate" and isinstance(found := parsed_rate(given), dict):
        return ",".join(f"{i}:{n}" for i, n in found.items())
    return given
