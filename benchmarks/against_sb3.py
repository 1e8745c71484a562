"""Training speed compared with sb3-contrib's RecurrentPPO: position-only Hopper, ten environments each.

Needs `pip install rpsp[peers]`. The programs run alternately in one process. The figure is environment steps per
second of the whole training loop. RecurrentPPO uses Gymnasium's environments, one after another, restricted to
positions. It is measured with an LSTM of 64 units and one thread for torch, which is its fastest setting here, and
with its default of 256 units.
"""

from __future__ import annotations

import statistics
import time
from importlib.metadata import version
from typing import Any

import jax

from benchmarks.batch_stepping import record
from benchmarks.training_speed import measure

METHODS = {"rpsi-trpo": 24, "rpsp-alt": 9}
TURNS = 2
STEPS = 5_120


def main() -> dict[str, Any]:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    peers = {"RecurrentPPO": 64, "RecurrentPPO, 256 units": 256}
    rows: dict[str, list[float]] = {name: [] for name in (*peers, *METHODS)}
    recording = record(10)
    for _ in range(TURNS):
        for name, units in peers.items():
            rows[name].append(recurrent_ppo(units))
        for method, iterations in METHODS.items():
            rows[method].append(measure(method, iterations, 10, 2, {}, recording)["steps_per_second"])
        print(rows, flush=True)
    rates = {name: statistics.median(values) for name, values in rows.items()}
    return {"version": version("rpsp"), "steps_per_second": rates} | {
        "ratios": {name: rates[name] / rates["RecurrentPPO"] for name in METHODS},
        "turns": rows,
    }


def recurrent_ppo(units: int) -> float:
    """Return the environment steps per second of RecurrentPPO.learn, after one rollout to warm up."""
    import gymnasium
    import torch  # pyright: ignore[reportMissingImports]
    from sb3_contrib import RecurrentPPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.vec_env import DummyVecEnv  # pyright: ignore[reportMissingImports]

    from rpsp.envs.wrappers import ObserveOnly

    envs = DummyVecEnv([lambda: ObserveOnly(gymnasium.make("Hopper-v5"), range(5))] * 10)
    torch.set_num_threads(1)
    model = RecurrentPPO("MlpLstmPolicy", envs, device="cpu", seed=0, policy_kwargs={"lstm_hidden_size": units})
    model.learn(1_280)
    started = time.perf_counter()
    model.learn(STEPS)
    seconds = time.perf_counter() - started
    envs.close()
    return STEPS / seconds


if __name__ == "__main__":
    main()
