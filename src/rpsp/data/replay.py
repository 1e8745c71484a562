"""The replay buffer: a ring of the latest steps, in the order in which they were made."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rpsp.data.batches import Batch


class Stored(NamedTuple):
    """The latest steps: entry i of every array is one step. A ring: after the last entry comes the first."""

    q: Float[Array, "capacity q"]
    """The state acted from."""
    start: Bool[Array, " capacity"]
    seen: Float[Array, "capacity obs"]
    executed: Float[Array, "capacity act"]
    """Start, seen and executed: starts, previous observations and actions of a `Batch`, which the state was made of."""
    action: Float[Array, "capacity act"]
    """As the policy drew it."""
    performed: Float[Array, "capacity act"]
    observation: Float[Array, "capacity obs"]
    reward: Float[Array, " capacity"]
    terminated: Bool[Array, " capacity"]


def _empty(capacity: int, states: int, observations: int, actions: int) -> Stored:
    def numbers(*shape: int) -> Array:
        return jnp.zeros((capacity, *shape), jnp.float32)

    def marks() -> Array:
        return jnp.zeros(capacity, bool)

    obs, act = partial(numbers, observations), partial(numbers, actions)
    return Stored(numbers(states), marks(), obs(), act(), act(), act(), obs(), numbers(), marks())


def store(stored: Stored, steps: Int[Array, ""], batch: Batch, states: Float[Array, "row time q"]) -> Stored:
    """The buffer with the steps of a batch behind those it has, over the oldest; filler is left out."""
    capacity = stored.reward.shape[0]
    mask = jnp.asarray(batch.mask).ravel()
    count = jnp.cumsum(mask)
    kept = mask & (count > count[-1] - capacity)  # of more than there is room for, the latest
    place = jnp.where(kept, (steps + count - 1) % capacity, capacity)  # out of bounds nothing is written
    new = Stored(
        states,
        jnp.asarray(batch.starts),
        jnp.asarray(batch.previous_observations),
        jnp.asarray(batch.previous_actions),
        jnp.asarray(batch.drawn_actions),
        jnp.asarray(batch.actions),
        jnp.asarray(batch.observations),
        jnp.asarray(batch.rewards),
        jnp.asarray(batch.ends) & ~jnp.asarray(batch.truncated),
    )
    return jax.tree.map(
        lambda old, x: old.at[place].set(x.reshape(-1, *x.shape[2:]).astype(old.dtype), mode="drop"), stored, new
    )
