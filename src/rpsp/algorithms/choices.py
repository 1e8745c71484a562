"""Expectations over the actions of a policy: all actions with their probabilities, or one that is drawn."""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.algorithms.policies import AbstractPolicy, Categorical, SquashedGaussian


class Choices(NamedTuple):
    """Actions in n states, k in each. E[f(a)] is Σ_k weight f(a_k), exactly or as an unbiased estimate."""

    action: Float[Array, "k n act"]
    weight: Float[Array, "k n"]
    """The probability of each discrete action, or 1 for one that was drawn."""
    log_prob: Float[Array, "k n"]
    """log π(a_k | q)."""

    @property
    def entropy(self) -> Float[Array, " n"]:
        """The entropy in each state, −Σ_k weight log π(a_k | q)."""
        return -jnp.sum(self.weight * self.log_prob, axis=0)


def choices(policy: AbstractPolicy, q: Float[Array, "n q"], *, key: PRNGKeyArray) -> Choices:
    """Return one drawn action for each state, or all actions if they are discrete. Differentiable in the policy."""
    dists = jax.vmap(policy)(q)
    if isinstance(dists, Categorical):
        log_p = jax.nn.log_softmax(dists.logits).T
        count, n = log_p.shape
        actions = jnp.broadcast_to(jnp.eye(count)[:, None], (count, n, count))
        return Choices(actions, jnp.exp(log_p), log_p)
    assert isinstance(dists, SquashedGaussian)

    def draw(dist: SquashedGaussian, noise: Array) -> tuple[Array, Array]:
        return dist.sample_and_log_prob(noise)

    action, log_prob = jax.vmap(draw)(dists, jax.random.normal(key, dists.mean.shape))
    return Choices(action[None], jnp.ones_like(log_prob)[None], log_prob[None])
