"""Comparisons used by the tests of update rules: bits, numbers up to rounding, and how far an agent has moved."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rpsp.filters import unroll
from rpsp.objectives import distributions, mean_kl
from rpsp.policies import Agent
from rpsp.trajectories import Batch


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
