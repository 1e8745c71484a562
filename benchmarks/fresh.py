"""The claims of `prediction` and `kalman` on data that was not used to choose settings: other seeds and systems.

During the development of the filters, some defaults were chosen with the test data of `prediction` and the systems
of `kalman` (the dimension and basis functions of the inference filter, the epochs of refinement, the length of the
future). No setting was chosen with the data used here.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from benchmarks.fm2_data import trained_policy_data
from benchmarks.kalman import one_step_ratio
from benchmarks.prediction import HORIZON, ITERATIONS, SAMPLES, halves, standardised
from rpsp.data.episodes import Episode
from rpsp.envs.make import make
from rpsp.filters.evaluation import forecasts, normalised_errors
from rpsp.filters.inference import fit_inference
from rpsp.filters.refinement import refine
from rpsp.filters.rivals import fit_autoregression
from rpsp.filters.two_stage import fit_two_stage
from rpsp.training.rollouts import explore

SEEDS = (30, 31)


def main() -> dict[str, Any]:
    kalman = [
        one_step_ratio(latent, seen, number=30, kind="inference", future=10 // seen)
        for latent in range(2, 7)
        for seen in (1, 2)
    ]
    print("kalman", kalman, flush=True)
    rows = []
    for task in ITERATIONS:
        envs = make(task, num_envs=10)
        explored = [explore(envs, samples=SAMPLES, seed=seed, min_length=HORIZON) for seed in SEEDS]
        envs.close()
        rows.append({"task": task, "data": "exploration"} | _errors(*explored))
        print(rows[-1], flush=True)
    for task in ("Walker2d-v5", "Hopper-v5"):
        trained = trained_policy_data(task, iterations=ITERATIONS[task], samples=SAMPLES, seed=8)
        rows.append({"task": task, "data": "trained policy"} | _errors(*halves(trained)))
        print(rows[-1], flush=True)
    return {"kalman": kalman, "rows": rows}


def _errors(fitting: list[Episode], testing: list[Episode]) -> dict[str, float]:
    train, held, test = standardised(fitting, testing)
    rng = np.random.default_rng(0)
    filters = {
        "linear AR(10)": fit_autoregression(train, held, rng=rng),
        "inference, closed form": fit_inference(train, held, rng=rng),
        "kernel-bayes, refined": refine(fit_two_stage(train, rng=rng), train, held, key=jax.random.key(0)).filter,
    }
    return {name: float(normalised_errors(forecasts(filter, test, HORIZON))[0]) for name, filter in filters.items()}


if __name__ == "__main__":
    main()
