"""Tabular and kernel-Bayes filters compared with the exact Bayes filter of a small controlled hidden Markov model.

Ten random models (3 states, 3 symbols, 2 actions), 30 to 10 000 episodes of 40 steps. The error is the root mean
square difference between predicted and exact P(o_t | past), averaged over models (geometric mean). It should
decrease as 1/√N. Slopes are fitted to the points from 4000 steps on; with less data, the error approaches that of
always predicting the mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.systems import bayes_predictions, controlled_hmm, one_hot, simulate_hmm
from rpsp.data.batches import pack
from rpsp.filters.base import AbstractFilter, compiled_unroll, predictions
from rpsp.filters.tabular import fit_tabular
from rpsp.filters.two_stage import KernelBayes, fit_two_stage, one_hot_maps

EPISODES = (30, 100, 300, 1000, 3000, 10_000)
STEPS, MODELS = 40, 10


def main() -> dict[str, Any]:
    errors: dict[str, list[list[float]]] = {"tabular": [], "kernel-bayes, one-hot": []}
    spread = []
    for model in range(MODELS):
        rng = np.random.default_rng(model)
        hmm = controlled_hmm(3, 3, 2, rng)
        test = simulate_hmm(hmm, 100, STEPS, rng)
        exact, batch = np.stack(bayes_predictions(hmm, test)), pack(one_hot(hmm, test))
        spread.append(float(np.sqrt(np.mean((exact - exact.mean(axis=(0, 1))) ** 2))))

        def error(filter: AbstractFilter, batch=batch, exact=exact) -> float:
            predicted = predictions(filter, compiled_unroll(filter, batch), batch.actions)
            return float(np.sqrt(np.mean((np.asarray(predicted) - exact) ** 2)))

        settings = KernelBayes(
            past=2,
            future=2,
            padded=False,
            dimension=64,  # more than there are: features stay exact
            state_dimension=3,  # the system's rank
            stage1_ridge=1e-3,
            division_ridge=1e-6,
            stage2_ridge=1e-3,
            ridge=1e-6,
        )
        rows: dict[str, list[float]] = {name: [] for name in errors}
        for count in EPISODES:
            train = pack(one_hot(hmm, simulate_hmm(hmm, count, STEPS, rng)))
            held = pack(one_hot(hmm, simulate_hmm(hmm, max(2, count // 5), STEPS, rng)))
            rows["tabular"].append(error(fit_tabular(train, held)))
            maps = one_hot_maps(hmm.symbols, hmm.actions, 2, 2)
            rows["kernel-bayes, one-hot"].append(error(fit_two_stage(train, settings, rng=rng, maps=maps)))
        for name, row in rows.items():
            errors[name].append(row)
        print(model, {name: [f"{e:.4f}" for e in row] for name, row in rows.items()}, flush=True)
    samples = [count * STEPS for count in EPISODES]
    means = {name: np.exp(np.log(rows).mean(axis=0)).tolist() for name, rows in errors.items()}
    slopes = {name: float(np.polyfit(np.log(samples[1:]), np.log(row[1:]), 1)[0]) for name, row in means.items()}
    return {
        "samples": samples,
        "error": means,
        "slope": slopes,
        "spread of the exact predictions": float(np.mean(spread)),
    }


if __name__ == "__main__":
    main()
