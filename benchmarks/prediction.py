"""Prediction errors of each filter on the four tasks, position-only, on exploration data and data of a trained policy.

10 000 steps to fit and 10 000 others to test; squared error divided by variance, 1 to 10 steps ahead. The trained
policy is FM2 with TRPO (`benchmarks/fm2_data.py`). Two-stage and random kernel-Bayes filters are refined equally;
the GRU gets three times as many epochs, the inference filter a tenth of the learning rate.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from benchmarks.fm2_data import trained_policy_data
from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode, split
from rpsp.data.scaling import fit_scaling
from rpsp.envs.make import make
from rpsp.filters.base import AbstractFilter, random_like
from rpsp.filters.evaluation import forecasts, normalised_errors
from rpsp.filters.inference import fit_inference
from rpsp.filters.memory import GRU
from rpsp.filters.refinement import RefinementSettings, refine
from rpsp.filters.rivals import fit_autoregression, mean_prediction, persistence
from rpsp.filters.two_stage import fit_two_stage
from rpsp.training.rollouts import explore

SAMPLES, HORIZON = 10_000, 10
ITERATIONS = {"InvertedPendulum-v5": 60, "Swimmer-v5": 30, "Hopper-v5": 50, "Walker2d-v5": 40}  # of the FM2 policy


def main() -> dict[str, Any]:
    rows = []
    for task, iterations in ITERATIONS.items():
        envs = make(task, num_envs=10)
        explored = [explore(envs, samples=SAMPLES, seed=seed, min_length=HORIZON) for seed in (0, 1)]
        envs.close()
        trained = trained_policy_data(task, iterations=iterations, samples=SAMPLES, seed=0)
        for data, (fitting, testing) in {"exploration": explored, "trained policy": halves(trained)}.items():
            train, held, test = standardised(fitting, testing)
            errors = {}
            for name, filter in candidates(train, held).items():
                errors[name] = normalised_errors(forecasts(filter, test, HORIZON)).tolist()
                print(f"{task:20} {data:15} {name:26} {errors[name][0]:.2e} {errors[name][-1]:.2e}", flush=True)
            lengths = [len(e) for e in fitting]
            rows.append({"task": task, "data": data, "mean length": float(np.mean(lengths)), "errors": errors})
    return {"rows": rows}


def candidates(train: Batch, held: Batch) -> dict[str, AbstractFilter]:
    """Return the fitted filters of all rows of the table."""
    rng, key = np.random.default_rng(0), jax.random.key(0)
    observations, actions = train.observations.shape[-1], train.actions.shape[-1]
    two_stage, inference = fit_two_stage(train, rng=rng), fit_inference(train, held, rng=rng)
    gru = GRU(32, observations, actions, key=key)
    return {
        "mean": mean_prediction(train),
        "persistence": persistence(observations, actions),
        "linear AR(10)": fit_autoregression(train, held, rng=rng),
        "RFF-AR(10)": fit_autoregression(train, held, frequencies=300, rng=rng),
        "kernel-bayes, two-stage": two_stage,
        "kernel-bayes, refined": refine(two_stage, train, held, key=key).filter,
        "random, refined": refine(random_like(two_stage, key=key), train, held, key=key).filter,
        "GRU 32, BPTT": refine(gru, train, held, RefinementSettings(epochs=60), key=key).filter,
        "inference, closed form": inference,
        "inference, refined": refine(inference, train, held, RefinementSettings(learning_rate=3e-4), key=key).filter,
    }


def standardised(fitting: list[Episode], testing: list[Episode]) -> tuple[Batch, Batch, Batch]:
    """Return training, held-out and test batches, standardised by the data to fit."""
    scaling = fit_scaling(np.concatenate([e.observations for e in fitting]))

    def scaled(episodes: list[Episode]) -> list[Episode]:
        return [Episode(scaling.encode(e.observations), e.actions) for e in episodes]

    train, held = split(scaled(fitting), 0.2, rng=np.random.default_rng(0))
    return pack(train), pack(held), pack(scaled(testing))


def halves(episodes: list[Episode]) -> tuple[list[Episode], list[Episode]]:
    """Return alternate episodes to fit and to test, at most SAMPLES steps each."""

    def first(some: list[Episode]) -> list[Episode]:
        ends = np.cumsum([len(e) for e in some])
        return some[: max(2, int(np.searchsorted(ends, SAMPLES)) + 1)]

    long = [e for e in episodes if len(e) >= HORIZON]
    return first(long[::2]), first(long[1::2])


if __name__ == "__main__":
    main()
