"""sb3-contrib's RecurrentPPO on our tasks; its curve is saved as a result file. Needs `pip install rpsp[peers]`.

    python -m benchmarks.recurrent_ppo Hopper-v5 --steps 1000000 --seed 0 --out results

An LSTM of 64 units, ten environments, normalised observations and rewards; otherwise sb3-contrib's defaults. As in
our runs, it observes positions only, and the curve is the mean return during learning: of the episodes that ended
within every 10 000 steps, before normalisation. The file is extended during the run. With `--models DIR` an
interrupted run is continued: parameters, optimiser and scales are saved there, but not the unfinished episodes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rpsp.envs import make as environments
from rpsp.experiments.labels import task_label
from rpsp.experiments.results import Result, read_results, write_result

ENVIRONMENTS = 10
EVERY = 10_000
METHOD = "recurrent-ppo"


def sb3_environment(task: str, seed: int, **sensors: Any) -> Any:
    """Return our batch of environments with sb3's interface: finished rows are reset in the same step."""
    from stable_baselines3.common.vec_env import VecEnv  # pyright: ignore[reportMissingImports]

    envs = environments.make(
        task, ENVIRONMENTS, observe="positions", seed=seed, threads=1, autoreset_mode="SameStep", **sensors
    )

    class Rows(VecEnv):
        def __init__(self) -> None:
            super().__init__(ENVIRONMENTS, envs.single_observation_space, envs.single_action_space)
            self.actions = np.zeros(0)

        def reset(self) -> np.ndarray:
            return envs.reset()[0].astype(np.float32)

        def step_async(self, actions: np.ndarray) -> None:
            self.actions = actions

        def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
            observations, rewards, terminated, truncated, found = envs.step(self.actions)
            done = terminated | truncated
            infos: list[dict[str, Any]] = [{} for _ in done]
            for row in np.flatnonzero(done):
                infos[row] = {"terminal_observation": found["final_obs"][row].astype(np.float32)}
                infos[row]["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
            return observations.astype(np.float32), rewards.astype(np.float32), done, infos

        def close(self) -> None:
            envs.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [getattr(envs, attr_name, None)] * ENVIRONMENTS

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError

        def env_method(self, method_name: str, *arguments: Any, indices: Any = None, **named: Any) -> list[Any]:
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * ENVIRONMENTS

    return Rows()


def train(task: str, steps: int, seed: int, out: Path, models: Path | None, units: int = 64, **sensors: Any) -> Path:
    """Train for a number of steps, continuing from the content of `models`, and return the file of the curve."""
    import sb3_contrib  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.callbacks import BaseCallback  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.vec_env import VecMonitor, VecNormalize  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    known = environments.TASKS.get(task)
    settings = {"env": task, "method": METHOD, "seed": seed, "observe": "positions", "units": units, **sensors}
    settings |= {"iterations": steps // EVERY, "samples": EVERY, "discount": 0.99}
    settings |= {"max_episode_steps": (known or gymnasium.spec(task)).max_episode_steps}
    settings |= {"observe": None} if known else {}  # positions are what is seen of the paper's tasks anyway
    versions = {"sb3-contrib": sb3_contrib.__version__, "torch": torch.__version__}
    began = time.perf_counter()

    class Curve(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.steps: list[int] = []
            self.returns: list[float] = []
            self.ended: list[float] = []
            self.before = 0.0
            """Seconds spent by processes that were interrupted."""

        def _on_step(self) -> bool:
            self.ended += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            if self.num_timesteps >= (len(self.steps) + 1) * EVERY:
                # Where no episode ended within so many steps, the latest that did speak for them.
                latest = float(np.mean(self.ended)) if self.ended else (self.returns[-1] if self.returns else 0.0)
                self.steps.append(self.num_timesteps)
                self.returns.append(latest)
                self.ended = []
                keep(self)
            return True

    def keep(curve: Curve) -> Path:
        unknown = np.full(len(curve.steps), np.nan)
        result = Result(
            task=task_label(settings),
            method=METHOD,
            seed=seed,
            settings=settings,
            versions=versions,
            steps=np.array(curve.steps, float),
            returns=np.array(curve.returns),
            prediction_errors=unknown,
            persistence_errors=unknown,
            iterations=settings["iterations"],
            finished=len(curve.steps) >= settings["iterations"],
            failure="",
            seconds=curve.before + time.perf_counter() - began,
            source=out,
        )
        print(f"{task} seed {seed}: {curve.steps[-1]} steps, return {curve.returns[-1]:.1f}", flush=True)
        return write_result(result, out)

    curve, envs = Curve(), VecMonitor(sb3_environment(task, 1000 * seed, **sensors))
    kept = None if models is None else (models / f"{task}-s{seed}.zip", models / f"{task}-s{seed}.scales")
    if kept is not None and kept[0].exists():
        envs = VecNormalize.load(str(kept[1]), envs)
        model = sb3_contrib.RecurrentPPO.load(kept[0], envs, device="cpu")
        (known,) = (
            r for r in read_results([out])[0] if (r.task, r.method, r.seed) == (task_label(settings), METHOD, seed)
        )
        known = known.cut(model.num_timesteps // EVERY)
        curve.steps, curve.returns = known.steps.astype(int).tolist(), known.returns.tolist()
        curve.before = known.seconds
    else:
        envs = VecNormalize(envs)
        model = sb3_contrib.RecurrentPPO(
            "MlpLstmPolicy", envs, device="cpu", seed=seed, policy_kwargs={"lstm_hidden_size": units}
        )
    while model.num_timesteps < steps:
        model.learn(min(50_000, steps - model.num_timesteps), callback=curve, reset_num_timesteps=False)
        if kept is not None:
            kept[0].parent.mkdir(parents=True, exist_ok=True)
            model.save(kept[0])
            envs.save(str(kept[1]))
    envs.close()
    return keep(curve)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--models", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    train(given.task, given.steps, given.seed, given.out, given.models)


if __name__ == "__main__":
    main()
