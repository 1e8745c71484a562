"""Disturbances as Gymnasium wrappers of a single environment. Each uses a `Disturbance` with a batch of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from rpsp.envs.disturbances import Delay, Disturbance, Dropout, Limit, Noise, Selection
from rpsp.envs.silence import Outage, Rate, latency


class _Disturbed(gymnasium.Wrapper, RecordConstructorArgs):
    """Base class: a wrapper of a single environment that applies a `Disturbance`."""

    def __init__(self, env: gymnasium.Env, disturbance: Disturbance, **constructor_args: Any) -> None:
        RecordConstructorArgs.__init__(self, **constructor_args)
        gymnasium.Wrapper.__init__(self, env)
        self._disturbance = disturbance
        self.observation_space = disturbance.attach(1, env.observation_space, env.action_space)
        self.action_space = disturbance.accepted_space(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        reading, info = self.env.reset(seed=seed, options=options)
        return self._disturbance.start(np.array([0]), [seed], np.asarray(reading)[None])[0], info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        sent = self._disturbance.send(np.asarray(action)[None])[0]
        reading, reward, terminated, truncated, info = self.env.step(sent)
        finished = np.array([terminated or truncated])
        return self._disturbance.deliver(np.asarray(reading)[None], finished)[0], reward, terminated, truncated, info


class ObserveOnly(_Disturbed):
    """Observe only some coordinates of a 1-D Box observation.

    Args:
        env: the environment.
        indices: indices of the coordinates.
    """

    def __init__(self, env: gymnasium.Env, indices: Sequence[int]) -> None:
        super().__init__(env, Selection(indices), indices=indices)


class ObservationNoise(_Disturbed):
    """Add independent Gaussian noise to every coordinate of every observation.

    Args:
        env: the environment.
        sigma: standard deviation.
    """

    def __init__(self, env: gymnasium.Env, sigma: float) -> None:
        super().__init__(env, Noise(sigma), sigma=sigma)


class ObservationLatency(_Disturbed):
    """Delay observations. Until the first delayed one arrives, the reset observation is repeated.

    Args:
        env: the environment.
        steps: number of steps; "0-3" or (0, 3) if it is random for every observation.
        mark: whether to deliver NaN in a step in which no newer observation arrives, instead of the last one.
    """

    def __init__(self, env: gymnasium.Env, steps: int | str | tuple[int, int], mark: bool = False) -> None:
        super().__init__(env, latency(steps, mark), steps=steps, mark=mark)


class ActionLatency(_Disturbed):
    """Delay actions. Until the first delayed one takes effect, the null action (see `Delay`) is executed.

    Args:
        env: the environment.
        steps: number of steps.
    """

    def __init__(self, env: gymnasium.Env, steps: int) -> None:
        super().__init__(env, Delay(steps), steps=steps)


class ActionLimit(_Disturbed):
    """Clip actions to ± a limit in the environment's own units. The action space becomes the smaller range.

    Args:
        env: the environment.
        limit: largest absolute value of an action.
    """

    def __init__(self, env: gymnasium.Env, limit: float) -> None:
        super().__init__(env, Limit(limit), limit=limit)


class ObservationDropout(_Disturbed):
    """Drop observations at random and repeat the last delivered one instead. Reset observations are kept.

    Args:
        env: the environment.
        probability: probability that an observation is dropped.
        mark: whether to deliver NaN instead of the last observation.
    """

    def __init__(self, env: gymnasium.Env, probability: float, mark: bool = False) -> None:
        super().__init__(env, Dropout(probability, mark), probability=probability, mark=mark)


class SensorOutage(_Disturbed):
    """Silence single sensors at random, for several steps at a time. Reset observations are kept.

    Args:
        env: the environment.
        probability: probability per step that a sensor that works falls silent.
        steps: number of steps for which it is silent.
        mark: whether to deliver NaN for a silent sensor instead of its last value.
    """

    def __init__(self, env: gymnasium.Env, probability: float, steps: int, mark: bool = False) -> None:
        super().__init__(env, Outage(probability, steps, mark), probability=probability, steps=steps, mark=mark)


class SensorRate(_Disturbed):
    """Read sensors only every n-th step: at the reset, and n, 2n, … steps after it.

    Args:
        env: the environment.
        every: n for all sensors, or the n of some sensors by index. Also as text: "10", or "0:10,3:2".
        mark: whether to deliver NaN between two readings instead of the last one.
    """

    def __init__(self, env: gymnasium.Env, every: int | str | Mapping[int, int], mark: bool = False) -> None:
        super().__init__(env, Rate(every, mark), every=every, mark=mark)
