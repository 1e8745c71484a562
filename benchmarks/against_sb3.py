"""Speed beside sb3-contrib's RecurrentPPO: position-only Hopper, ten environments each. Needs `pip install rpsp[peers]`.

One after the other, by turns, in one process: environment steps per second of the whole training loop. RecurrentPPO has
its own defaults (LSTM of 256 units, 128 steps, 10 epochs) and runs on the same vector environment that it would be
given by its users: Gymnasium's environments one after another, positions only.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.training_speed import measure

METHODS = {"rpsi-trpo": 30, "rpsp-alt": 12, "gru32": 12}
TURNS = 3
STEPS = 5_120


def main() -> dict[str, Any]:
    rows: dict[str, list[float]] = {"RecurrentPPO": []} | {method: [] for method in METHODS}
    for _ in range(TURNS):
        rows["RecurrentPPO"].append(recurrent_ppo())
        for method, iterations in METHODS.items():
            rows[method].append(measure(method, iterations)["steps_per_second"])
        print(rows, flush=True)
    rates = {name: statistics.median(values) for name, values in rows.items()}
    return {"steps_per_second": rates} | {
        "ratios": {name: rates[name] / rates["RecurrentPPO"] for name in METHODS},
        "turns": rows,
    }


def recurrent_ppo() -> float:
    """Environment steps per second of RecurrentPPO.learn, after one rollout to warm up."""
    import gymnasium
    from sb3_contrib import RecurrentPPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.vec_env import DummyVecEnv  # pyright: ignore[reportMissingImports]

    from rpsp.environments import ObserveOnly

    envs = DummyVecEnv([lambda: ObserveOnly(gymnasium.make("Hopper-v5"), range(5))] * 10)
    model = RecurrentPPO("MlpLstmPolicy", envs, device="cpu", seed=0)
    model.learn(1_280)
    started = time.perf_counter()
    model.learn(STEPS)
    seconds = time.perf_counter() - started
    envs.close()
    return STEPS / seconds


if __name__ == "__main__":
    main()
