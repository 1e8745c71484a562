"""Your own environment: a drone that must hover at a given height and observes its height, but not its velocity.

python examples/own_environment.py                                         # train, then use the agent in a loop
cd examples && rpsp train own_environment:Hover-v0 --iterations 40         # the same from the shell
"""

from __future__ import annotations

import gymnasium
import numpy as np
import tyro

import rpsp


class Hover(gymnasium.Env):
    """Thrust against gravity. The reward is 1 at height 0 and decreases around it; the episode ends beyond 10 m."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))  # the height; the velocity is hidden
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.height, self.climb = self.np_random.uniform(-2, 2, 2)
        return self.observe(), {}

    def step(self, action):
        thrust = 2 * float(action[0]) - 0.5  # gravity and load; an action of 1/4 balances them
        self.climb += 0.1 * (thrust + 0.2 * self.np_random.normal())
        self.height += 0.1 * self.climb
        lost = abs(self.height) > 10
        return self.observe(), float(np.exp(-(self.height**2))), lost, False, {}

    def observe(self):
        return np.array([self.height], np.float32)


gymnasium.register("Hover-v0", Hover, max_episode_steps=100)


def main(iterations: int = 40, out: str | None = None) -> None:
    """Train on Hover-v0, then run one episode.

    Args:
        iterations: Number of training iterations.
        out: Run directory. Default: a new directory under runs/.
    """
    # A function that creates the environment works as well: rpsp.train(Hover, max_episode_steps=100).
    run = rpsp.train("Hover-v0", iterations=iterations, out=out)
    agent = rpsp.load(run.directory)

    env = gymnasium.make("Hover-v0")
    observation, _ = env.reset(seed=1)
    state, total, done = None, 0.0, False
    while not done:
        action, state = agent.predict(observation, state=state, episode_start=state is None)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, done = total + float(reward), terminated or truncated
    print(f"return {total:.0f} of at most 100; at the end the height is {observation[0]:+.2f}")

    returns = [agent.evaluate(20).returns.mean(), random_return(20)]
    print("mean return of 20 episodes: {:.0f}, of random thrust {:.0f}".format(*returns))


def random_return(episodes: int) -> float:
    """Return the mean return of random actions."""
    envs = rpsp.make("Hover-v0", num_envs=episodes, seed=0)
    found = rpsp.explore(envs, episodes=episodes, seed=0)
    return float(np.mean([episode.rewards.sum() for episode in found if episode.rewards is not None]))


if __name__ == "__main__":
    tyro.cli(main)
