"""The paper's tasks and how the paper trains on them. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
