"""How many random episodes end before their limit, with white and with pink noise: benchmarks/results/exploration.json.

python -m benchmarks.defaults.exploration
"""

from __future__ import annotations

from benchmarks.defaults.__main__ import write
from benchmarks.defaults.suite import SCALES
from rpsp.data.episodes import Episode
from rpsp.envs.make import make
from rpsp.training.rollouts import explore

TASKS = {"MountainCarContinuous-v0": 999, "Acrobot-v1": 500, "MountainCar-v0": 200}
"""Tasks whose episodes end early only at the goal, and the limits of their episodes."""
EPISODES = 100


def main() -> None:
    rows = []
    for env, limit in TASKS.items():
        envs = make(env, num_envs=50, seed=0)
        # Every second episode of an exploration with pink noise is white.
        found = explore(envs, seed=100, episodes=2 * EPISODES, pink_noise=1.0)
        envs.close()
        rows.append(
            {"env": env, "episodes": EPISODES, "white": early(found[::2], limit), "pink": early(found[1::2], limit)}
        )
        print(rows[-1], flush=True)
    write(SCALES.with_name("exploration.json"), rows)


def early(episodes: list[Episode], limit: int) -> int:
    return sum(len(episode) < limit for episode in episodes)


if __name__ == "__main__":
    main()
