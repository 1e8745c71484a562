"""PPO of stable-baselines3 on our predictive state as observation. Needs `pip install rpsp[peers]`.

    python -m benchmarks.belief_ppo Hopper-v5 --steps 1000000 --seed 0 --out benchmarks/results/belief_ppo

The inference filter is fitted once to 20,000 random steps, which count as steps. PPO has no memory. Ten environments, 256
steps of each in a batch, normalised beliefs and rewards; otherwise stable-baselines3's defaults. With `--log-std -1` the
policy starts with a standard deviation of about a third instead of 1, as our PPO methods do. The curve is that of
`benchmarks.recurrent_ppo`: the mean return during learning of the episodes that ended within every 10,000 steps. The
file is written anew at each of them. With `--stack N`, the peer: PPO on the last N observations instead.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import rpsp
from benchmarks.recurrent_ppo import ENVIRONMENTS, EVERY, sb3_environment
from rpsp.envs import make as environments
from rpsp.wrappers import BeliefTracker

EXPLORATION = 20_000
BATCH = 256
"""Steps of each environment in a batch."""


def fitted(task: str, seed: int) -> tuple[rpsp.PredictiveStateModel, int]:
    """Return a model of random behaviour, and the number of steps that it was fitted to."""
    envs = environments.make(task, ENVIRONMENTS, observe="positions", threads=1, autoreset_mode="Disabled")
    episodes = rpsp.explore(envs, samples=EXPLORATION, seed=seed)
    envs.close()
    return rpsp.PredictiveStateModel("inference", seed=seed).fit(episodes), sum(map(len, episodes))


def believing(rows: Any, model: rpsp.PredictiveStateModel) -> Any:
    """Return an environment of sb3 whose observations are beliefs."""
    from gymnasium.spaces import Box
    from stable_baselines3.common.vec_env import VecEnvWrapper  # pyright: ignore[reportMissingImports]

    tracker = BeliefTracker(model, rows.observation_space, rows.action_space, rows.num_envs)

    class Beliefs(VecEnvWrapper):
        def __init__(self) -> None:
            super().__init__(rows, Box(-np.inf, np.inf, (tracker.size,), np.float32))
            self.actions = np.zeros(0)

        def reset(self) -> np.ndarray:
            return tracker.begin(self.venv.reset())

        def step_async(self, actions: np.ndarray) -> None:
            self.actions = actions
            self.venv.step_async(actions)

        def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
            first, rewards, done, infos = self.venv.step_wait()
            last = first.copy()
            for row in np.flatnonzero(done):
                last[row] = infos[row]["terminal_observation"]
            beliefs = tracker.advance(self.actions, last)
            for row in np.flatnonzero(done):
                infos[row]["terminal_observation"] = beliefs[row]
            return tracker.begin(first, done), rewards, done, infos

    return Beliefs()


def train(task: str, steps: int, seed: int, out: Path, stack: int = 0, log_std: float = 0.0) -> Path:
    """Train for a number of steps, exploration included, and return the file of the curve."""
    import stable_baselines3  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.callbacks import BaseCallback  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.vec_env import (  # pyright: ignore[reportMissingImports]
        VecFrameStack,
        VecMonitor,
        VecNormalize,
    )

    torch.set_num_threads(1)
    began, explored = time.perf_counter(), 0
    rows = VecMonitor(sb3_environment(task, 1000 * seed))
    if stack:
        rows = VecFrameStack(rows, stack)
    else:
        model, explored = fitted(task, seed)
        rows = believing(rows, model)
    envs = VecNormalize(rows)
    policy = {"log_std_init": log_std}
    ppo = stable_baselines3.PPO("MlpPolicy", envs, device="cpu", seed=seed, n_steps=BATCH, policy_kwargs=policy)
    what = f"stack{stack}" if stack else "belief"
    path = out / f"{task}-{what}-s{seed}.json"
    curve: dict[str, list[float]] = {"steps": [], "returns": []}

    class Curve(BaseCallback):
        ended: list[float] = []  # noqa: RUF012 - one callback per process

        def _on_step(self) -> bool:
            self.ended += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            done = explored + self.num_timesteps
            if done >= (len(curve["steps"]) + 1 + explored // EVERY) * EVERY:
                latest = np.mean(self.ended) if self.ended else curve["returns"][-1] if curve["returns"] else 0.0
                curve["steps"].append(done)
                curve["returns"].append(round(float(latest), 1))
                self.ended.clear()
                keep()
            return True

    def keep() -> None:
        versions = {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}
        facts = {"env": task, "observe": what, "seed": seed, "log_std": log_std, "exploration_steps": explored}
        facts |= {"versions": versions, "final_return": round(float(np.mean(curve["returns"][-10:])), 1)}
        facts |= {"seconds": round(time.perf_counter() - began)}
        path.write_text(json.dumps(facts | curve) + "\n")

    out.mkdir(parents=True, exist_ok=True)
    ppo.learn(steps - explored, callback=Curve())
    envs.close()
    keep()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stack", type=int, default=0)
    parser.add_argument("--log-std", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/belief_ppo"))
    given = parser.parse_args()
    print(train(given.task, given.steps, given.seed, given.out, given.stack, given.log_std))


if __name__ == "__main__":
    main()
