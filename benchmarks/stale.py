"""What is the value of a stored state after the filter has changed? Position-only Hopper.

A run stores its observations, actions and states after ten iterations. Thirty iterations later, the same steps are
filtered again. The table compares the stored with the new states. Their squared difference is divided by the
variance, in the scale in which the policy sees them (2 for unrelated states). The KL is the mean KL divergence of
the current policy between both. `rpsi-trpo` is refitted before iterations 16 and 32 if that predicts better. The
other filters are trained by gradients: a GRU of 32 units by the policy's return, the last two also by their
prediction error.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.prepared import prepared
from rpsp.algorithms.objectives import distributions, mean_kl
from rpsp.algorithms.policies import Agent
from rpsp.data.batches import Batch
from rpsp.filters.base import unroll
from rpsp.training.loop import packed, train
from rpsp.training.rollouts import collect

METHODS: dict[str, dict[str, Any]] = {
    "rpsi-trpo": {"refit_before": [1, 2, 4, 8, 16, 32], "refit_above": 0.0},
    "gru32": {},
    "reg-gru": {},
    "rpsp-alt": {},
}
SEEDS, STORED, END = 3, 10, 40
ELSEWHERE = 10**6
"""The iteration number from which the stored steps derive their randomness. The run does not reach it."""


def main() -> dict[str, Any]:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    rows = []
    for method, given in METHODS.items():
        for seed in range(SEEDS):
            rows.append({"method": method, "seed": seed, **measure(method, given, seed)})
            print(rows[-1], flush=True)
    return {"rows": rows}


def measure(method: str, given: dict[str, Any], seed: int) -> dict[str, float]:
    """Return how far stored states are from those of the current filter, and the number of refits in between."""
    config, make_envs, recipe, amounts = prepared(env="Hopper-v5", method=method, seed=seed, threads=1, **given)
    then: tuple[Agent, Batch] | None = None
    refits, now = 0.0, None
    with closing(make_envs(config.num_envs)) as envs:
        for training, record in train(recipe, envs, amounts, END):
            now = training.agent
            if then is not None:
                refits += record.get("refit_accepted", 0.0)
            if training.iteration == STORED:
                made = collect(
                    now, envs, scaling=training.scaling, samples=amounts.samples, seed=seed, iteration=ELSEWHERE
                )
                then = now, packed(made, envs, training.rows)
    assert then is not None and now is not None
    return compare(*then, now) | {"refits": refits}


def compare(then: Agent, batch: Batch, now: Agent) -> dict[str, float]:
    """Return the squared difference over variance of the states by two filters, and the KL of the latter's policy."""
    stored, anew = (unroll(agent.filter, batch) for agent in (then, now))
    policy: Any = now.policy
    old, new = (np.asarray(states / policy.network.scale, np.float64)[batch.mask] for states in (stored, anew))
    kl = mean_kl(distributions(policy, anew), distributions(policy, stored), jnp.asarray(batch.mask))
    return {"difference": float(((old - new) ** 2).sum() / ((new - new.mean(0)) ** 2).sum()), "kl": float(kl)}


if __name__ == "__main__":
    main()
