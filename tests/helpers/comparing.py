"""Comparisons used by the tests of algorithms: bits, numbers up to rounding, and how far an agent has moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rpsp.algorithms.base import AbstractAlgorithm
from rpsp.algorithms.objectives import distributions, mean_kl
from rpsp.algorithms.policies import Agent
from rpsp.data.batches import Batch
from rpsp.experiments.agents import TrainedAgent
from rpsp.filters.base import unroll

KEY = jax.random.key(0)
"""For algorithms that are tested apart from a run."""


def stepping(algorithm: AbstractAlgorithm, step: Callable[..., Any]) -> AbstractAlgorithm:
    """The algorithm with another step: `step(real_step, agent, memory, batch, key)`."""

    class Other(type(algorithm)):
        def step(self, agent: Agent, memory: Any, batch: Batch, *, key: Any) -> Any:
            return step(algorithm.step, agent, memory, batch, key)

    return Other(**{field.name: getattr(algorithm, field.name) for field in fields(algorithm)})


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def bits_equal(one: Any, other: Any) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(leaves(one), leaves(other), strict=True))


def close(one: Any, other: Any, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """Assert that two trees agree up to the rounding of two different programs.

    Equal bits can be expected only of one compiled program that runs twice on one machine.
    """
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


@eqx.filter_jit
def change(old: Agent, new: Agent, batch: Batch) -> jax.Array:
    """The mean KL of filter and policy together."""
    dists = [distributions(agent.policy, unroll(agent.filter, batch)) for agent in (old, new)]
    return mean_kl(*dists, jnp.asarray(batch.mask))


def tamed(agent: TrainedAgent) -> TrainedAgent:
    """The same agent with an output layer of a fixed, small norm.

    With a steep one rounding errors grow tenfold at every step. How steep training makes it depends on the CPU.
    """
    at = lambda a: a.policy.network.layers[-1].weight  # noqa: E731
    agent.agent = eqx.tree_at(at, agent.agent, replace_fn=lambda w: 0.1 * w / jnp.linalg.norm(w))
    return agent
