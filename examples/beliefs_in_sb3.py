"""Train stable-baselines3's PPO, which has no memory, on a predictive state. Needs `pip install rpsp[peers]`.

    python beliefs_in_sb3.py --steps 20000

The environment hides velocities. A belief is fitted once to random actions; `BeliefObservation` then shows its state
instead of the observation. `evaluate_policy` of stable-baselines3 evaluates PPO, and an agent of rpsp as well.
"""

from __future__ import annotations

import argparse

import gymnasium
from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.env_util import make_vec_env  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.evaluation import evaluate_policy  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.vec_env import VecNormalize  # pyright: ignore[reportMissingImports]

import rpsp
from rpsp.wrappers import BeliefObservation, ObserveOnly

TASK, POSITIONS = "InvertedPendulum-v5", [0, 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--iterations", type=int, default=5)
    given = parser.parse_args()

    envs = rpsp.make(TASK, num_envs=10, observe="positions", seed=0)
    model = rpsp.PredictiveStateModel("inference").fit(rpsp.explore(envs, samples=2000, seed=0))

    def make() -> gymnasium.Env:
        return BeliefObservation(ObserveOnly(gymnasium.make(TASK, max_episode_steps=200), POSITIONS), model)

    rows = VecNormalize(make_vec_env(make, n_envs=4, seed=0), norm_reward=False)
    ppo = PPO("MlpPolicy", rows, n_steps=256, seed=0, device="cpu").learn(given.steps)
    rows.training = False
    mean, _ = evaluate_policy(ppo, rows, n_eval_episodes=10)
    print(f"PPO of stable-baselines3 on a predictive state: {mean:.1f}")

    agent = rpsp.train(TASK, observe="positions", iterations=given.iterations, verbose=False).agent
    plain = make_vec_env(lambda: ObserveOnly(gymnasium.make(TASK, max_episode_steps=200), POSITIONS), n_envs=2, seed=0)
    mean, _ = evaluate_policy(agent, plain, n_eval_episodes=10)
    print(f"an agent of rpsp, evaluated by stable-baselines3: {mean:.1f}")


if __name__ == "__main__":
    main()
