"""Environments of one step-counting kind, one for each structure of spaces."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

LIMIT = 8

NESTED = Dict(
    {
        "imu": Dict({"gyro": Box(-1, 1, (3,)), "acc": Box(-2, 2, (2, 2), np.float64)}),
        "gear": Discrete(3, start=1),
        "flags": MultiBinary(2),
        "pair": Tuple((Discrete(2), Box(-1, 1, ()))),
    }
)
STEERING = Dict({"steer": Box(-2.0, 2.0, (2,)), "gear": Discrete(3, start=1), "lights": MultiBinary(2)})

STRUCTURES: dict[str, tuple[Space[Any], Space[Any], int]] = {
    "numbers": (Box(-1, 1, (2,)), Box(-1, 1, (1,)), 0),
    "dict": (Dict({"b": Box(-1, 1, (2,)), "a": Box(0, 9, (1,))}), Box(-1, 1, (1,)), 0),
    "tuple": (Tuple((Box(-1, 1, (2,)), Discrete(2))), Box(-1, 1, (1,)), 0),
    "nested dict": (NESTED, Box(-1, 1, (1,)), 0),
    "multi-discrete": (MultiDiscrete([2, 3]), Discrete(2), 0),
    "multi-binary": (MultiBinary((2, 2)), Discrete(2), 0),
    "grid": (Box(-1, 1, (2, 3)), Discrete(2, start=5), 0),
    "multi-discrete actions": (Box(-1, 1, (2,)), MultiDiscrete([2, 3]), 0),
    "multi-binary actions": (Box(-1, 1, (2,)), MultiBinary(3), 0),
    "dict actions": (Box(-1, 1, (2,)), STEERING, 0),
    "images": (Dict({"camera": Box(0, 255, (16, 16, 3), np.uint8), "speed": Box(-1, 1, (1,))}), Box(-1, 1, (1,)), 0),
    "masked": (Tuple((Discrete(4), Box(-1, 1, (1,)))), Discrete(3), 3),
    "masked symbols": (NESTED, MultiDiscrete([2, 3]), 5),
}
"""For each structure: observation space, action space, size of the action mask."""


class Structured(gymnasium.Env[Any, Any]):
    """Samples its observations, rewards nothing but the time, and refuses actions that are not in its space or forbidden.

    Args:
        kind: a key of `STRUCTURES`.
    """

    def __init__(self, kind: str):
        self.observation_space, self.action_space, self.masked = STRUCTURES[kind]
        self.count, self.mask = 0, np.ones(self.masked, np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        if self.masked:
            first = [0] if isinstance(self.action_space, Discrete) else [0, 2]
            assert self.mask[np.add(first, action)].all(), (action, self.mask)
        self.count += 1
        return self.observation_space.sample(), 1.0, self.count >= LIMIT, False, self._info()

    def _info(self) -> dict[str, Any]:
        if not self.masked:
            return {}
        self.mask = (self.np_random.random(self.masked) < 0.5).astype(np.int8)
        self.mask[[0, -1]] = 1
        return {"action_mask": self.mask}


def register() -> list[str]:
    """Register an environment for each structure, and return their ids."""
    ids = []
    for kind in STRUCTURES:
        ids.append(f"Structured-{kind.replace(' ', '-')}-v0")
        if ids[-1] not in gymnasium.registry:
            gymnasium.register(ids[-1], Structured, max_episode_steps=LIMIT, kwargs={"kind": kind})
    return ids
