"""Do refits change the policy less if new coordinates are first rotated onto the old (Procrustes)? Position-only Hopper.

`rpsp-alt` is trained, and its filter is refitted to the last three batches before iteration 5, by a new two-stage
regression and refinement. The table shows the mean KL divergence from the policy on the old states to each of these on the
new states:

- as it is, on the new states or on the new states after the best rotation, shift and scale (Procrustes);
- with its first layer expressed in the new states by regression, as in every refit, without and with that rotation before;
- and then trained to imitate, as in every refit.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.prepared import prepared
from rpsp.algorithms.networks import input_scaling
from rpsp.algorithms.policies import Agent
from rpsp.data.batches import Batch, pack, unpack
from rpsp.data.episodes import split
from rpsp.filters.base import AbstractFilter, one_step_error, reached
from rpsp.filters.two_stage import KernelBayes
from rpsp.training.loop import train
from rpsp.training.refits import imitating, re_expressed

TASK, SEEDS, BEFORE, EPOCHS, STEPS = "Hopper-v5", (100, 101), (5,), 10, 4096


def main() -> dict[str, Any]:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    return {"rows": [row for seed in SEEDS for row in measure(seed)]}


def measure(seed: int) -> list[dict[str, Any]]:
    """Return the divergences at every refit of a run."""
    # A filter is never as bad as refit_when asks, so the run keeps its latest batches and is not refitted.
    config, make_envs, recipe, amounts = prepared(env=TASK, method="rpsp-alt", seed=seed, refit_when=1e9, threads=1)
    rows = []
    with closing(make_envs(config.num_envs)) as envs:
        for training, _ in train(recipe, envs, amounts, max(BEFORE)):
            if training.iteration in BEFORE:
                row = {"seed": seed, "before": training.iteration} | refitted(training.agent, training.recent, seed)
                rows.append(row)
                print(row, flush=True)
    return rows


def refitted(agent: Agent, recent: tuple[Batch, ...], seed: int) -> dict[str, float]:
    """Refit the filter of an agent, and return the errors of both filters and all divergences."""
    episodes = [episode for batch in recent for episode in unpack(batch)]
    parts = split(episodes, 0.2, rng=np.random.default_rng(seed), keep=6)
    batch, held = (pack(part, row_length=recent[0].shape[1], row_multiple=8) for part in parts)
    new = KernelBayes(refit_epochs=EPOCHS).refit(agent.filter, batch, held, key=jax.random.key(seed))
    old_states, new_states = (reached(filter, batch, held) for filter in (agent.filter, new))
    errors = {"error before": one_step_error(agent.filter, held), "error after": one_step_error(new, held)}
    return errors | divergences(agent, new, old_states, new_states, np.random.default_rng(seed))


def divergences(
    agent: Agent, filter: AbstractFilter, old: np.ndarray, new: np.ndarray, rng: np.random.Generator
) -> dict[str, float]:
    """Return the mean KL of every way to keep the policy. Policies are fitted to half of the steps, and judged on others."""
    policy: Any = agent.policy
    fit, judge = np.split(rng.permutation(len(old))[: 2 * STEPS], 2)
    aligned = procrustes(old[fit], new[fit])
    found = {}
    for name, states in (("new", new), ("aligned", aligned(new))):
        found[f"{name}, as it is"] = _kl(policy, policy, old[judge], states[judge])
        network = re_expressed(policy.network, old[fit], states[fit], input_scaling(filter, states[fit]))
        expressed = eqx.tree_at(lambda p: p.network, policy, network)
        found[f"{name}, by regression"] = _kl(policy, expressed, old[judge], states[judge])
        pairs = (jnp.asarray(x[fit], jnp.float32) for x in (old, states))
        imitator = eqx.tree_at(lambda p: p.network, policy, imitating(expressed, policy, *pairs))
        found[f"{name}, by regression and imitation"] = _kl(policy, imitator, old[judge], states[judge])
    return found


def procrustes(old: np.ndarray, new: np.ndarray) -> Any:
    """Return the map q' ↦ s (q' − m') R + m, with R orthogonal, that brings new states closest to the old ones.

    R = U Vᵀ and s = Σᵢσᵢ / ‖new − m'‖² for the singular value decomposition (new − m')ᵀ(old − m) = U diag(σ) Vᵀ.
    """
    m, m_new = old.mean(axis=0, dtype=np.float64), new.mean(axis=0, dtype=np.float64)
    U, sigma, Vt = np.linalg.svd((new - m_new).T @ (old - m))
    s = sigma.sum() / ((new - m_new) ** 2).sum()
    return lambda q: s * (q - m_new) @ (U @ Vt) + m


def _kl(old: Any, policy: Any, old_states: np.ndarray, states: np.ndarray) -> float:
    """Return mean_t KL(π_old(· | q_t) ‖ π(· | q'_t))."""
    each = jax.vmap(lambda q, q_new: old(q).kl(policy(q_new)))
    return float(each(jnp.asarray(old_states, jnp.float32), jnp.asarray(states, jnp.float32)).mean())


if __name__ == "__main__":
    main()
