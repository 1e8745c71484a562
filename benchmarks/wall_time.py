"""Wall time to the return that RecurrentPPO has on position-only Hopper after 300 000 steps. Needs `rpsp[peers]`.

That return is the mean over its runs in `results/`. RecurrentPPO's time to it is 300 000 steps at the rate measured here,
just before and after; ours is measured from the start of a run, exploration, fit and compilation included, to the end of
the first ten iterations in a row that have that mean return, of 80 at most (of PPO, whose are shorter, 200, and of SAC
120). Both with one thread.
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
"""And after how many iterations to give up."""


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
    """RecurrentPPO's mean return at 300 000 steps, over the seeds there are."""
    found, _ = read_results([Path(__file__).parents[1] / "results"])
    peers = [run for run in found if run.task == "Hopper-v5" and run.method == "recurrent-ppo"]
    return statistics.mean(return_at(STEPS, run.steps, run.returns) for run in peers)


def measure(method: str, seed: int, wanted: float) -> dict[str, float | None]:
    """Seconds and environment steps until ten iterations in a row have a mean return as wanted; None if they never do."""
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
