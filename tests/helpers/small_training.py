"""A small environment, filters and settings to train on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit
from jax.flatten_util import ravel_pytree

from rpsp.data.batches import Batch
from rpsp.envs.make import make
from rpsp.filters.belief import Belief
from rpsp.filters.memory import observation_window
from rpsp.training.state import TrainingSettings

LIMIT = 20


class Drift(gymnasium.Env):
    """A point pushed about in the plane, near 0 to be rewarded; an episode ends sooner the further away it gets."""

    observation_space: gymnasium.Space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space: gymnasium.Space = Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = self.np_random.normal(size=2)
        return self.x.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.x = 0.9 * self.x + [0.3 * float(action[0]), 0.1] + 0.05 * self.np_random.normal(size=2)
        ended = self.np_random.random() < 0.05 + 0.05 * abs(self.x[0])
        return self.x.copy(), 1.0 - abs(self.x[0]), bool(ended), False, {}


def drifting(rows: int = 3) -> Any:
    return make(lambda: TimeLimit(Drift(), LIMIT), rows)


SETTINGS = TrainingSettings(samples=60, exploration_episodes=8)


@dataclass(frozen=True, eq=False)
class Made(Belief):
    """A belief whose filter is made by a function."""

    make: Callable[[Batch, Batch, Any], Any]

    def fit(self, batch: Batch, held_out: Batch, *, key: Any) -> Any:
        return self.make(batch, held_out, key)


window = Made(lambda batch, held_out, key: predicting(jax.random.normal(key, (6, 2))))
"""The last two observations; it predicts at random."""


def predicting(W_pred: Any) -> Any:
    return eqx.tree_at(lambda f: f.W_pred, observation_window(2, 2, 1), jnp.asarray(W_pred))


def numbers(tree: Any) -> np.ndarray:
    return np.asarray(ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0])
