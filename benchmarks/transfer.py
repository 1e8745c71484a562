"""Does a filter that was fitted to one policy predict under later policies? Position-only Hopper and Walker2d.

`rpsi-trpo` is trained for 26 iterations. Filters are fitted to its batches of iterations 7 to 9, and predict the batches of
iterations 10, 13, 18 and 25. The table shows their squared one-step error divided by the variance of the observations.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import jax
import numpy as np

from benchmarks.prepared import prepared
from rpsp.data.batches import Batch, pack, unpack
from rpsp.data.episodes import split
from rpsp.filters.base import AbstractFilter, one_step_error
from rpsp.filters.belief import Belief
from rpsp.filters.inference import Inference
from rpsp.filters.residual import ResidualKernelBayes
from rpsp.filters.rivals import persistence
from rpsp.filters.two_stage import KernelBayes
from rpsp.training.loop import train

TASKS = "Hopper-v5", "Walker2d-v5"
BELIEFS: dict[str, Belief] = {
    "the paper's filter, two-stage regression": KernelBayes(epochs=0),
    "the paper's filter, refined by 20 epochs": KernelBayes(epochs=20),
    "linear filter": ResidualKernelBayes().linear,
    "direct inference": Inference(only_reliable=False),
    "kernel Bayes rule on residuals, not refined": ResidualKernelBayes(epochs=0),
    "kernel Bayes rule on residuals, refined by 20 epochs": ResidualKernelBayes(epochs=20),
}
FITTED, LATER, SEED = (7, 8, 9), (10, 13, 18, 25), 300


def main() -> dict[str, Any]:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    return {"later": LATER, "rows": [row for task in TASKS for row in measure(task)]}


def measure(task: str) -> list[dict[str, Any]]:
    """Return the errors of every filter on a task."""
    batches = batches_of(task)
    episodes = [episode for n in FITTED for episode in unpack(batches[n])]
    parts = split(episodes, 0.2, rng=np.random.default_rng(0), keep=6)
    fitted, held = (pack(part, row_length=batches[0].shape[1], row_multiple=8) for part in parts)
    sizes = fitted.observations.shape[-1], fitted.actions.shape[-1]
    filters: dict[str, AbstractFilter] = {"persistence": persistence(*sizes)}
    rows = []
    for name in ("persistence", *BELIEFS):
        filter = filters.get(name) or BELIEFS[name].fit(fitted, held, key=jax.random.key(0))
        rows.append({"task": task, "filter": name, "errors": [normalised(filter, batches[n]) for n in LATER]})
        print(rows[-1], flush=True)
    return rows


def batches_of(task: str) -> list[Batch]:
    """Return the batches of the first iterations of a run."""
    config, make_envs, recipe, amounts = prepared(env=task, method="rpsi-trpo", seed=SEED, refit_when=1e9)
    with closing(make_envs(config.num_envs)) as envs:
        steps = train(recipe, envs, amounts, max(LATER) + 1)
        return [jax.tree.map(np.asarray, training.recent[-1]) for training, _ in steps if training.recent]


def normalised(filter: AbstractFilter, batch: Batch) -> float:
    """Return the squared one-step error divided by the variance of the observations."""
    observations = np.asarray(batch.observations)[np.asarray(batch.mask)]
    return one_step_error(filter, batch) / float(observations.var(axis=0, dtype=np.float64).mean())
