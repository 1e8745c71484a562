"""Disturbances as Gymnasium wrappers of a single environment. Each is a `Disturbance` of a batch of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from rpsp.envs.disturbances import Delay, Disturbance, Dropout, Latency, Noise, Selection


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
