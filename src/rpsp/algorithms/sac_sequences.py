"""Sequences from the replay buffer, for SAC with a filter that gradients change, such as a GRU.

Steps are drawn in pieces of consecutive steps. A piece begins with the stored state of its first step, and the other states
are computed by the current filter, so that gradients go back through the piece (R2D2; Kapturowski et al. 2019). Episodes may
begin and end anywhere in a piece.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from rpsp.data import trees
from rpsp.data.replay import Stored
from rpsp.filters.base import AbstractFilter, step


def pieces(stored: Stored, steps: Int[Array, ""], count: int, length: int, *, key: PRNGKeyArray) -> Stored:
    """Draw pieces of consecutive steps from a replay buffer.

    Args:
        stored: the buffer, which holds at least `length` steps.
        steps: number of steps stored so far, including those that were overwritten.
        count: number of pieces.
        length: number of steps of each piece.
        key: random key.

    Returns:
        The steps, [piece, time, …].
    """
    capacity = stored.reward.shape[0]
    filled = jnp.minimum(steps, capacity)
    first = jax.random.randint(key, (count,), 0, jnp.maximum(filled - length + 1, 1))
    oldest = jnp.where(steps > capacity, steps % capacity, 0)
    return trees.take(stored, (oldest + first[:, None] + jnp.arange(length)) % capacity)


def states_of(filter: AbstractFilter, some: Stored) -> Float[Array, "piece time q"]:
    """Return the pre-states of pieces of steps, differentiable in the filter. The first ones are those that are stored."""

    def of_piece(piece: Stored) -> Array:
        def follow(q: Array, at: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            q = step(filter, q, *at)
            return q, q

        later = (piece.executed[1:], piece.seen[1:], piece.start[1:])
        return jnp.concatenate([piece.q[:1], jax.lax.scan(follow, piece.q[0], later)[1]])

    return jax.vmap(of_piece)(some)
