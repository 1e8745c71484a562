"""Replay buffer: a ring buffer of the latest steps, in the order in which they were made."""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rpsp.data import trees
from rpsp.data.batches import Batch


class Stored(NamedTuple):
    """The contents of the replay buffer. Entry i of every array belongs to the same step.

    It is a ring buffer: new steps overwrite the oldest ones, and entry 0 follows the last entry.
    """

    q: Float[Array, "capacity q"]
    """Pre-state: the state in which the agent acted."""
    start: Bool[Array, " capacity"]
    """`Batch.starts`."""
    seen: Float[Array, "capacity obs"]
    """`Batch.previous_observations`. With `start` and `executed` it is the input from which `q` was computed."""
    executed: Float[Array, "capacity act"]
    """`Batch.previous_actions`."""
    action: Float[Array, "capacity act"]
    """`Batch.drawn_actions`: the action as drawn by the policy."""
    performed: Float[Array, "capacity act"]
    """`Batch.actions`: the action as executed by the environment."""
    observation: Float[Array, "capacity obs"]
    reward: Float[Array, " capacity"]
    terminated: Bool[Array, " capacity"]
    """True if the episode terminated with this step; False if it went on or was truncated."""


def empty(capacity: int, states: int, observations: int, actions: int) -> Stored:
    """Create a replay buffer without steps.

    Args:
        capacity: maximum number of steps.
        states: size of a state.
        observations: size of an observation.
        actions: size of an action.
    """

    def numbers(*shape: int) -> Array:
        return jnp.zeros((capacity, *shape), jnp.float32)

    def marks() -> Array:
        return jnp.zeros(capacity, bool)

    obs, act = partial(numbers, observations), partial(numbers, actions)
    return Stored(numbers(states), marks(), obs(), act(), act(), act(), obs(), numbers(), marks())


def store(stored: Stored, steps: Int[Array, ""], batch: Batch, states: Float[Array, "row time q"]) -> Stored:
    """Append the steps of a batch to the buffer, overwriting the oldest steps. Padding is not stored.

    Args:
        stored: the buffer.
        steps: number of steps stored so far, including those that were overwritten.
        batch: the new steps.
        states: the pre-states of the new steps.

    Returns:
        The new buffer.
    """
    capacity = stored.reward.shape[0]
    mask = jnp.asarray(batch.mask).ravel()
    count = jnp.cumsum(mask)
    kept = mask & (count > count[-1] - capacity)  # if the batch exceeds the capacity, keep its latest steps
    # Positions out of bounds are not written (mode="drop" below).
    place = jnp.where(kept, (steps + count - 1) % capacity, capacity)
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
    return trees.map(
        lambda old, x: old.at[place].set(x.reshape(-1, *x.shape[2:]).astype(old.dtype), mode="drop"), stored, new
    )


def drawn(stored: Stored, fresh: Stored | None, filled: Int[Array, ""], at: Int[Array, " n"]) -> Stored:
    """Return some steps of a buffer, and of a second one behind it.

    Args:
        stored: the buffer.
        fresh: the second buffer. None: there is none.
        filled: number of steps in the first buffer.
        at: numbers of the steps; those from `filled` on are in the second buffer.
    """
    if fresh is None:
        return trees.take(stored, at)
    behind = at >= filled

    def chosen(old: Array, new: Array) -> Array:
        mark = behind.reshape(-1, *[1] * (old.ndim - 1))
        return jnp.where(mark, new[jnp.maximum(at - filled, 0)], old[jnp.minimum(at, filled - 1)])

    return trees.map(chosen, stored, fresh)
