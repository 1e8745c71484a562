"""What tests of update rules compare: bits, and how far an agent has moved."""

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


@eqx.filter_jit
def change(old: Agent, new: Agent, batch: Batch) -> jax.Array:
    """The mean KL of filter and policy together."""
    dists = [distributions(agent.policy, unroll(agent.filter, batch)) for agent in (old, new)]
    return mean_kl(*dists, jnp.asarray(batch.mask))
