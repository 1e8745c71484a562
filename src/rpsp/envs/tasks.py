"""The tasks of the paper and its training settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A task of the paper and its training settings.

    The agent observes positions but no velocities. Which observations are positions is read from the environment's
    `observation_structure` (see `make`), so it is not listed here.
    """

    id: str
    """Gymnasium id."""
    max_episode_steps: int
    """Time limit of an episode."""
    batch_samples: int
    """Environment steps per iteration."""
    exploration_episodes: int
    """Number of episodes with random actions before training."""
    iterations: int
    """Number of training iterations."""


TASKS: Mapping[str, Task] = {
    task.id: task
    for task in (
        # 2 000 is the value in the authors' settings. The text of the paper says 10 000.
        Task("InvertedPendulum-v5", 200, batch_samples=2_000, exploration_episodes=100, iterations=200),
        Task("Swimmer-v5", 500, batch_samples=10_000, exploration_episodes=50, iterations=500),
        Task("Hopper-v5", 1000, batch_samples=10_000, exploration_episodes=100, iterations=500),
        Task("Walker2d-v5", 1000, batch_samples=10_000, exploration_episodes=100, iterations=500),
    )
}


# Indices of positions in classic control tasks. MuJoCo environments have this information themselves.
_CLASSIC_POSITIONS: Mapping[str, tuple[int, ...]] = {
    "CartPole": (0, 2),
    "MountainCar": (0,),
    "MountainCarContinuous": (0,),
    "Pendulum": (0, 1),
    "Acrobot": (0, 1, 2, 3),
}
