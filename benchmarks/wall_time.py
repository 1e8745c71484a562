"""Wall time to reach RecurrentPPO's return on position-only Hopper after 300 000 steps. Needs `rpsp[peers]`.

That return is the mean over the runs in `results/`. RecurrentPPO's time is that of 300 000 steps at the speed
measured here, just before and after. Our time is measured from the start of a run, including exploration, fit and
compilation, to the end of the first ten consecutive iterations with at least that mean return. Runs end after 80
iterations (PPO, whose iterations are shorter: 200; SAC: 120). All use one thread.
"""

from __future__ import annotations

import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.against_sb3 import recurrent_ppo
from benchmarks.prepared import prepared
from rpsp.experiments.results import read_results
from rpsp.experiments.statistics import return_at
from rpsp.training.loop import train

STEPS = 300_000
SEEDS = 3
METHODS = {"rpsi-trpo": 80, "rpsi-ppo": 200, "rpsi-sac": 120}
"""Methods, and their maximum number of iterations."""


def main() -> dict[str, Any]:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    wanted = peers_return()
    rates = [recurrent_ppo(64)]
    rows = []
    for method in METHODS:
        for seed in range(SEEDS):
            rows.append({"method": method, "seed": seed, **measure(method, seed, wanted)})
            print(rows[-1], flush=True)
    rates.append(recurrent_ppo(64))
    return {"return": wanted, "peer_seconds": STEPS / statistics.mean(rates), "rows": rows}


def peers_return() -> float:
    """Return RecurrentPPO's mean return at 300 000 steps, over all available seeds."""
    found, _ = read_results([Path(__file__).parents[1] / "results"])
    peers = [run for run in found if run.task == "Hopper-v5" and run.method == "recurrent-ppo"]
    return statistics.mean(return_at(STEPS, run.steps, run.returns) for run in peers)


def measure(method: str, seed: int, wanted: float) -> dict[str, float | None]:
    """Return seconds and steps until ten consecutive iterations reach a mean return; None if they do not."""
    started = time.perf_counter()
    config, make_envs, recipe, amounts = prepared(env="Hopper-v5", method=method, seed=seed, threads=1)
    returns: list[float] = []
    with closing(make_envs(config.num_envs)) as envs:
        for _, record in train(recipe, envs, amounts, METHODS[method]):
            returns += [record["mean_return"]] if "mean_return" in record else []
            if len(returns) >= 10 and np.mean(returns[-10:]) >= wanted:
                return {"seconds": time.perf_counter() - started, "steps": record["total_samples"]}
    return {"seconds": None, "steps": None}


if __name__ == "__main__":
    main()
