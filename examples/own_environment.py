"""An environment of your own: a drone that must hover at a height, and sees its height but not how fast it climbs.

python examples/own_environment.py                                         # trains, then flies in a loop of your own
cd examples && rpsp train own_environment:Hover-v0 --iterations 40         # the same from the shell, by its id
"""

from __future__ import annotations

import gymnasium
import numpy as np
import tyro

import rpsp


class Hover(gymnasium.Env):
    """Thrust against gravity; the reward is 1 at height 0 and falls off around it. Ten metres off, it is lost."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))  # the height; its rate of change stays hidden
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.height, self.climb = self.np_random.uniform(-2, 2, 2)
        return self.observe(), {}

    def step(self, action):
        thrust = 2 * float(action[0]) - 0.5  # gravity and a load, which a thrust of 1/4 holds
        self.climb += 0.1 * (thrust + 0.2 * self.np_random.normal())
        self.height += 0.1 * self.climb
        lost = abs(self.height) > 10
        return self.observe(), float(np.exp(-(self.height**2))), lost, False, {}

    def observe(self):
        return np.array([self.height], np.float32)


gymnasium.register("Hover-v0", Hover, max_episode_steps=100)


def main(iterations: int = 40, out: str | None = None) -> None:
    """Train on Hover-v0, then fly one episode.

    Args:
        iterations: of acting and updating.
        out: the run directory; one under runs/ unless given.
    """
    # A function that makes the environment would do as well: rpsp.train(Hover, max_episode_steps=100).
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
    """What is to be had without any skill."""
    envs = rpsp.make("Hover-v0", num_envs=episodes, seed=0)
    found = rpsp.explore(envs, episodes=episodes, seed=0)
    return float(np.mean([episode.rewards.sum() for episode in found if episode.rewards is not None]))


if __name__ == "__main__":
    tyro.cli(main)
