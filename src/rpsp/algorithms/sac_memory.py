"""What SAC keeps between steps: critics, the optimiser's state, the replay buffer and running statistics."""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# The results of its differentiation, loops and linear algebra are unknown, too.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rpsp.algorithms.critics import pair_standardised
from rpsp.algorithms.networks import Network, running_scaling, standardised
from rpsp.algorithms.objectives import rewards_to_go
from rpsp.algorithms.policies import AbstractPolicy, Agent, CategoricalPolicy, SquashedPolicy
from rpsp.algorithms.value_distributions import BOUND
from rpsp.data import trees
from rpsp.data.arrays import Scalar
from rpsp.data.batches import Batch
from rpsp.data.moments import Moments, merge, scale_of
from rpsp.data.replay import Stored
from rpsp.filters.base import step, trainable


class SacMemory(NamedTuple):
    """What SAC keeps between steps."""

    critics: Network
    targets: Network
    """The target critics Q̄_i, which follow the critics slowly."""
    log_temperature: Float[Array, ""]
    adam: Any
    stored: Stored
    steps: Int[Array, ""]
    """Number of steps stored so far, including those that were overwritten."""
    fresh: Fresh | None = None
    """The iteration in progress. None unless gradient steps are interleaved with acting."""
    inputs: Moments | None = None
    """Moments of the inputs of the policy over all stored steps. None unless inputs are standardised by them."""
    returns: Returns | None = None
    """Returns of all stored steps. None unless rewards are scaled by them."""


class Returns(NamedTuple):
    """The discounted returns of all steps so far."""

    moments: Moments
    largest: Float[Array, ""]
    """Largest absolute value."""


class Tally(NamedTuple):
    """Sums over gradient steps, for the diagnostics."""

    totals: Float[Array, " diagnostic"]
    taken: Float[Array, ""]
    refused: Float[Array, ""]
    """Number of gradient steps that were skipped."""


class Fresh(NamedTuple):
    """The steps of the iteration in progress, and what was learned during it.

    They are apart from the replay buffer, which gets whole episodes in order when the iteration is over: without episodes
    that failed, and with all steps of an episode behind each other.
    """

    stored: Stored
    """A second buffer. In an iteration that is longer than it, the oldest steps are missing until the iteration is over."""
    steps: Int[Array, ""]
    tally: Tally


class Learners(NamedTuple):
    """What gradients change, and the optimiser's state."""

    policy: AbstractPolicy
    critics: Network
    """Q_1 and Q_2: every array has a leading axis of 2."""
    log_temperature: Float[Array, ""]
    """log α."""
    filter: Any
    """The trained parameters of the filter, None instead of all others."""
    adam: Any


def split(
    policy: AbstractPolicy, critics: Network, log_temperature: Array, moving_filter: Any, fixed_filter: Any
) -> tuple[Any, Any]:
    """Return the parameters that gradients change, as (policy, critics, log α, filter), and everything else likewise.

    Args:
        policy: the policy.
        critics: the critics.
        log_temperature: log α.
        moving_filter: the trained parameters of the filter, None instead of all others.
        fixed_filter: all others, None instead of these.
    """
    all_but = policy, critics, log_temperature
    moving, fixed = trees.partition(all_but, (trainable(policy), trainable(critics), True))
    return (*moving, moving_filter), (*fixed, fixed_filter)


FRESH = 10_000
"""Capacity of the buffer of the iteration in progress, in steps."""
EXPLORED = 1000.0
"""Number of steps as which the scaling of a new policy's inputs counts in their moments."""

NAMES = "critic_loss", "policy_loss", "entropy", "temperature", "value"
"""The diagnostics that are means over gradient steps."""


def no_tally() -> Tally:
    """Return the sums before the first gradient step."""
    return Tally(jnp.zeros(len(NAMES)), jnp.zeros(()), jnp.zeros(()))


def emptied(fresh: Fresh | None) -> Fresh | None:
    """Return the record of an iteration that begins."""
    return None if fresh is None else fresh._replace(steps=jnp.zeros_like(fresh.steps), tally=no_tally())


def with_inputs(
    agent: Agent, memory: SacMemory, states: Float[Array, "row time q"], mask: Bool[Array, "row time"]
) -> SacMemory:
    """Return the memory with the moments of the policy's inputs at some more steps."""
    if memory.inputs is None:
        return memory
    moments = merge(memory.inputs, jax.vmap(jax.vmap(policy_of(agent).network.seen))(states), mask)
    finite = jnp.all(jnp.isfinite(moments.mean)) & jnp.all(jnp.isfinite(moments.variance))
    return memory._replace(inputs=trees.where(finite, moments, memory.inputs))


def with_returns(memory: SacMemory, batch: Batch, discount: Scalar) -> SacMemory:
    """Return the memory with the returns of some more steps."""
    if memory.returns is None:
        return memory
    mask, G = jnp.asarray(batch.mask), rewards_to_go(batch, discount)
    moments = merge(memory.returns.moments, G, mask)
    largest = jnp.maximum(memory.returns.largest, jnp.max(jnp.where(mask, jnp.abs(G), 0.0)))
    finite = jnp.isfinite(largest) & jnp.isfinite(moments.variance)
    return memory._replace(returns=trees.where(finite, Returns(moments, largest), memory.returns))


def reward_scale(returns: Returns | None) -> Scalar:
    """Return what rewards are divided by (Lee et al. 2025).

        s = max(σ_G, max |G| / B)

    where σ_G is the standard deviation of the discounted returns G, and B is `value_distributions.BOUND`.

    Args:
        returns: the returns so far. None: rewards are not scaled.
    """
    return 1.0 if returns is None else jnp.maximum(scale_of(returns.moments), returns.largest / BOUND)


def in_running_scale(agent: Agent, memory: SacMemory) -> tuple[Agent, SacMemory]:
    """Scale the inputs of policy, critics and target critics by the moments in the memory."""
    if memory.inputs is None:
        return agent, memory
    mean, scale = running_scaling(memory.inputs)
    policy = trees.replace(lambda p: p.network, policy_of(agent), standardised(policy_of(agent).network, mean, scale))
    agent = trees.replace(lambda a: a.policy, agent, policy)
    critics, targets = (pair_standardised(each, mean, scale) for each in (memory.critics, memory.targets))
    return agent, memory._replace(critics=critics, targets=targets)


def policy_of(agent: Agent) -> SquashedPolicy | CategoricalPolicy:
    """Return the policy of an agent that SAC trains."""
    assert isinstance(agent.policy, SquashedPolicy | CategoricalPolicy)
    return agent.policy


@eqx.filter_jit
def recomputed(agent: Agent, memory: SacMemory, length: int = 1000) -> SacMemory:
    """Return the memory with every stored state computed again by the agent's filter, in pieces of `length` steps.

    A piece that starts in the middle of an episode starts from the stored state of the step before it. That is nearly
    right, because coordinates keep their meaning and a filter soon forgets its initial state. The oldest step of a full
    buffer has no step before it and keeps its state.
    """
    stored = memory.stored
    capacity = stored.reward.shape[0]
    length = min(length, capacity)
    pieces = -(-capacity // length)

    def cut(x: Array) -> Array:
        return jnp.pad(x, [(0, pieces * length - capacity)] + [(0, 0)] * (x.ndim - 1)).reshape(
            pieces, length, *x.shape[1:]
        )

    start, seen, executed = map(cut, (stored.start, stored.seen, stored.executed))
    before = jnp.roll(stored.q, 1, axis=0)[::length]
    oldest = memory.steps % capacity
    seam = cut((jnp.arange(capacity) == oldest) & (memory.steps > capacity) & ~stored.start)

    def advance(q: Array, at: Any) -> tuple[Array, Array]:
        *last, kept = at
        q = jax.vmap(partial(step, agent.filter))(q, *last)
        q = jnp.where(kept[:, None], stored.q[oldest], q)
        return q, q

    by_time: Any = tuple(jnp.swapaxes(x, 0, 1) for x in (executed, seen, start, seam))
    states = jnp.swapaxes(jax.lax.scan(advance, before, by_time)[1], 0, 1).reshape(pieces * length, -1)[:capacity]
    filled = jnp.arange(capacity) < memory.steps
    return memory._replace(stored=stored._replace(q=jnp.where(filled[:, None], states, stored.q)))
