"""What critics estimate: the mean of the return, or its distribution over fixed values (C51; Bellemare et al. 2017).

A critic with one output estimates the mean. With m > 1 outputs, they are the logits of a distribution over m atoms z_1 < …
< z_m, evenly spaced between −`BOUND` and `BOUND`. Such a critic is trained by cross-entropy, whose gradients do not grow
with the error. Rewards must be scaled so that returns are within the bounds.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

BOUND = 5.0
"""Largest atom. The smallest one is −`BOUND`."""


def atoms(count: int) -> Float[Array, " atom"]:
    """Return the atoms z."""
    return jnp.linspace(-BOUND, BOUND, count)


def expectation(outputs: Float[Array, "*n out"]) -> Float[Array, "*n"]:
    """Return the estimated mean: the only output, or Σ_j p_j z_j with p = softmax(outputs)."""
    if outputs.shape[-1] == 1:
        return outputs[..., 0]
    return jax.nn.softmax(outputs) @ atoms(outputs.shape[-1])


def projected(p: Float[Array, "n k"], x: Float[Array, "n k"], count: int) -> Float[Array, "n atom"]:
    """Project distributions over any values onto the atoms.

        m_j = Σ_i p_i max(0, 1 − |clip(x_i) − z_j| / Δ)

    where Δ is the distance of two atoms. A single value is divided among the two atoms next to it. Means are preserved,
    unless values are clipped to the bounds.

    Args:
        p: probabilities.
        x: the values that have these probabilities.
        count: number of atoms.
    """
    z = atoms(count)
    inside = jnp.clip(x, -BOUND, BOUND)
    near = jax.nn.relu(1 - jnp.abs(inside[..., None] - z) * (count - 1) / (2 * BOUND))
    return jnp.einsum("nk,nkj->nj", p, near)


def least(outputs: Float[Array, "2 *n out"]) -> Float[Array, "*n out"]:
    """Return, of two critics, the outputs of the one with the smaller mean."""
    first, second = expectation(outputs)
    return jnp.where((first <= second)[..., None], outputs[0], outputs[1])


def bellman_target(
    after: Float[Array, "k n out"],
    weights: Float[Array, "k n"],
    bonus: Float[Array, "k n"],
    reward: Float[Array, " n"],
    discount: Float[Array, " n"],
) -> Float[Array, "n out"]:
    """Return what critics are trained to estimate.

        mean: y = r + γ Σ_a π_a (Q(q', a) + b_a)
        distribution: that of r + γ (Z_a + b_a), where Z_a ~ softmax(outputs) over the atoms and a ~ π, projected

    Args:
        after: outputs of the target critic for k actions in the next state.
        weights: π_a: the probabilities of these actions, or 1 for a single one that was drawn.
        bonus: b_a: what is added to the return after each action, −α log π_a.
        reward: r.
        discount: γ, or 0 after the last step of an episode.
    """
    count = after.shape[-1]
    if count == 1:
        return (reward + discount * jnp.sum(weights * (after[..., 0] + bonus), axis=0))[:, None]
    p = weights[..., None] * jax.nn.softmax(after)
    x = reward[:, None] + discount[:, None] * (atoms(count) + bonus[..., None])
    flat_p, flat_x = (jnp.moveaxis(each, 0, 1).reshape(len(reward), -1) for each in (p, x))
    return projected(flat_p, flat_x, count)


def critic_losses(outputs: Float[Array, "2 n out"], target: Float[Array, "n out"]) -> Float[Array, " n"]:
    """Return Σ_i (Q_i − y)² over both critics, or with distributions the cross-entropy −Σ_i Σ_j m_j log p_ij."""
    if target.shape[-1] == 1:
        return jnp.sum((outputs - target)[..., 0] ** 2, axis=0)
    return -jnp.sum(target * jax.nn.log_softmax(outputs), axis=(0, 2))
