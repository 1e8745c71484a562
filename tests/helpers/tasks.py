"""Small tasks and a method of one's own, as a user would write them; `tasks:Drift-v0` names one in any command."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Sequence, Text

from rpsp.algorithms.trpo import Trpo
from rpsp.experiments.methods import Method
from rpsp.filters.base import AbstractFilter
from rpsp.filters.belief import Belief


class Drift(gymnasium.Env):
    """A point pushed about in the plane, near 0 to be rewarded; an episode ends sooner the further away it gets.

    In the environment, BREAK_AFTER makes it raise and NAN_AFTER return NaN once, after so many steps of the process.
    """

    observation_space: gymnasium.Space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space: gymnasium.Space = Box(-2.0, 2.0, (1,), np.float32)
    steps: ClassVar[int] = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = self.np_random.normal(size=2)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Drift.steps += 1
        if Drift.steps > int(os.environ.get("BREAK_AFTER", "1000000000")):
            raise RuntimeError("the gearbox is gone")
        self.x = 0.9 * self.x + [0.3 * self.push(action), 0.1] + 0.05 * self.np_random.normal(size=2)
        if Drift.steps == int(os.environ.get("NAN_AFTER", "-1")):
            self.x = self.x * np.nan
        ended = self.np_random.random() < 0.05 + 0.05 * abs(self.x[0])
        return self.observe(), 1.0 - abs(self.x[0]), bool(ended), False, {}

    def push(self, action: Any) -> float:
        return float(action[0])

    def observe(self) -> Any:
        return self.x.copy()


class InADict(Drift):
    observation_space = Dict({"words": Text(5)})


class AnImage(Drift):
    observation_space = Box(0, 255, (4, 8, 8, 3), np.uint8)


class ManyActions(Drift):
    action_space = Sequence(Discrete(3))


class WholeActions(Drift):
    action_space = Box(0, 5, (1,), np.int64)


class Unbounded(Drift):
    """Is never played: SAC, for which it is here, refuses it before."""

    action_space = Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        raise AssertionError("it was played")


class Seedless(Drift):
    def reset(self) -> tuple[Any, dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().reset()


class Corridor(gymnasium.Env):
    """Five cells: +1 at the right end, −1 at the left. Seen is only how far the nearer end is; symbols start at 1."""

    observation_space: gymnasium.Space = Discrete(3, start=1)
    action_space: gymnasium.Space = Discrete(2, start=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(1, 4))
        return 1 + min(self.cell, 4 - self.cell), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.cell += 1 if action == 2 else -1
        ended = self.cell in (0, 4)
        reward = (1.0 if self.cell == 4 else -1.0) if ended else 0.0
        return 1 + min(self.cell, 4 - self.cell), reward, ended, False, {}


gymnasium.register("Drift-v0", Drift, max_episode_steps=20)
gymnasium.register("Endless-v0", Drift)
gymnasium.register("InADict-v0", InADict, max_episode_steps=20)
gymnasium.register("AnImage-v0", AnImage, max_episode_steps=20)
gymnasium.register("ManyActions-v0", ManyActions, max_episode_steps=20)
gymnasium.register("WholeActions-v0", WholeActions, max_episode_steps=20)
gymnasium.register("Unbounded-v0", Unbounded, max_episode_steps=20)
gymnasium.register("Seedless-v0", Seedless, max_episode_steps=20)
gymnasium.register("Corridor-v0", Corridor, max_episode_steps=12)


class Trace(AbstractFilter):
    """A user's own filter: an exponential average of what was seen."""

    q0: jax.Array
    decay: jax.Array

    def init(self) -> jax.Array:
        return self.q0

    def update(self, q: jax.Array, action: jax.Array, observation: jax.Array) -> jax.Array:
        return self.decay * q + (1 - self.decay) * observation

    def predict(self, q: jax.Array, action: jax.Array) -> jax.Array:
        return q


@dataclass(frozen=True)
class Tracing(Belief):
    """A user's own belief."""

    decay: float = 0.5
    """Weight of the previous average."""

    def fit(self, batch: Any, held_out: Any, *, key: Any) -> Trace:
        return Trace(jnp.zeros(batch.observations.shape[-1]), jnp.asarray(self.decay))


tracing = Method("tracing", Tracing(), Trpo(max_kl=0.02), "a user's own")
