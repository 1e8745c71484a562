"""Soft actor-critic (Haarnoja et al. 2018) as an update rule: ours, not the paper's. Knows no filter by name.

Learns from every step again and again: the exploration, then every batch goes into a buffer of the latest steps, and
gradient steps are made on minibatches of it. The filter is frozen. What is stored of a step is the state it was acted from
and what was done and seen; the state after it is the filter's update of that, made when it is needed. So a buffer outlives
a refit that keeps what coordinates mean; whether the stored states are then computed anew is a setting.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from rpsp.algorithms.adam import adam_in_units, moments_in_units, policy_moments_in_units
from rpsp.algorithms.base import UpdateRule, policy_only, run_key
from rpsp.algorithms.objectives import distributions, mean_kl
from rpsp.algorithms.policies import AbstractPolicy, Agent, Network, NormedNetwork, SquashedPolicy, in_units
from rpsp.data.batches import Batch
from rpsp.data.replay import Stored, _empty, store
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import step, trainable, unroll


class SacSettings(eqx.Module):
    """How policy, critics and temperature learn from the buffer."""

    learning_rate: float = 3e-4
    """η: Adam's, of all three."""
    discount: float = 0.99
    """γ."""
    target_rate: float = 0.005
    """τ: how fast the target critics follow."""
    minibatch: int = 256
    """Steps in one gradient."""
    ratio: float = 1.0
    """Gradient steps for every environment step."""
    capacity: int = 300_000
    """How many of the latest steps the buffer holds."""
    hidden: tuple[int, ...] = (256, 256)
    """The critics' hidden layers."""
    target_entropy: float | None = None
    """Of the policy, which the temperature is moved towards; less the number of action dimensions unless given."""
    recompute: bool = False
    """Whether stored states are computed anew after a refit of the filter, instead of kept."""
    normed: bool = False
    """Whether the critics have layer normalisation, so that states far from all others get no boundless values."""
    seed: int = 0
    """Of the critics' first weights and of the minibatches."""


class Learners(NamedTuple):
    """What the gradients move, and how."""

    policy: AbstractPolicy
    critics: Network
    """Q(q, a), twice: every array has a leading axis of 2."""
    log_temperature: Float[Array, ""]
    adam: Any


class SacMemory(NamedTuple):
    """What SAC remembers. Arrays only, so that it can be saved: the key is kept as its raw data."""

    critics: Network
    targets: Network
    log_temperature: Float[Array, ""]
    adam: Any
    stored: Stored
    steps: Int[Array, ""]
    """How many steps were ever stored."""
    key: UInt32[Array, " words"]


def sac(learning_rate: float = SacSettings.learning_rate, **more: Any) -> UpdateRule:
    """The soft actor-critic rule (ours, not the paper's); `more` are the other fields of `SacSettings`.

    A gradient that is not finite is not followed. Diagnostics are means over the gradient steps: `critic_loss`,
    `policy_loss`, `entropy` (of the actions drawn), `temperature`, `value`; and `kl` (old to new, on the batch), `stored`
    (steps in the buffer), `skipped` (the share of gradients that were not followed).
    """
    settings = SacSettings(learning_rate, **more)
    for name in ("learning_rate", "minibatch", "ratio", "capacity"):
        if not getattr(settings, name) > 0:
            raise UsageError(f"{name}={getattr(settings, name)}: must be greater than 0.")
    if not 0 < settings.target_rate <= 1:
        raise UsageError(f"target_rate={settings.target_rate}: must lie between 0 and 1, as in 0.005.")
    if settings.capacity < settings.minibatch:
        raise UsageError(f"capacity={settings.capacity}: holds not even one minibatch of {settings.minibatch} steps.")
    return UpdateRule(
        partial(_init, settings),
        eqx.Partial(_step, settings),
        "sac",
        policy_only,
        refitted if settings.recompute else None,
        explored,
        _in_units,
        squashed=True,
    )


@eqx.filter_jit
def explored(agent: Agent, memory: SacMemory, batch: Batch) -> SacMemory:
    """The memory with the exploration's steps in the buffer: what was done at random is as good to learn from."""
    batch = replace(
        jax.tree.map(jnp.asarray, batch), drawn_actions=jnp.asarray(batch.actions)
    )  # as drawn they were unbounded
    stored = store(memory.stored, memory.steps, batch, unroll(agent.filter, batch))
    return memory._replace(stored=stored, steps=memory.steps + jnp.sum(jnp.asarray(batch.mask)))


@eqx.filter_jit
def refitted(agent: Agent, memory: SacMemory, length: int = 1000) -> SacMemory:
    """The memory with every stored state computed anew by the agent's filter, in pieces of `length` steps.

    A piece in the middle of an episode begins at the state that was stored for the step before it: a coordinate means
    what it meant, and a filter soon forgets where it began. Before the oldest step of a full buffer there is none: it keeps
    its own.
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


def _init(settings: SacSettings, agent: Agent) -> SacMemory:
    policy = agent.policy
    if not isinstance(policy, SquashedPolicy):
        raise UsageError(f"sac: a {type(policy).__name__} does not fit; its policy is a SquashedPolicy.")
    states, actions = agent.filter.size, policy.actions
    observation = jax.eval_shape(agent.filter.predict, jnp.zeros(states), jnp.zeros(actions))
    scaling = Scaling(
        np.concatenate([np.asarray(policy.network.mean), np.zeros(actions)]),
        np.concatenate([np.asarray(policy.network.scale), np.ones(actions)]),
    )
    first, second, key = jax.random.split(run_key(settings.seed, policy.network.layers[0].weight), 3)
    kind = cast(type[Network], NormedNetwork) if settings.normed else Network
    both = [kind(states + actions, 1, hidden=settings.hidden, scaling=scaling, key=k) for k in (first, second)]
    critics = jax.tree.map(lambda *pair: jnp.stack(pair), *both)
    temperature = jnp.zeros((), jnp.float32)
    return SacMemory(
        critics,
        critics,
        temperature,
        _adam(settings).init(_moving(Learners(policy, critics, temperature, ()))),
        _empty(settings.capacity, states, observation.shape[0], actions),
        jnp.zeros((), jnp.int32),
        jax.random.key_data(key),
    )


def _in_units(agent: Agent, memory: SacMemory, units: Scaling) -> SacMemory:
    """The same critics and target critics, and Adam's moments of policy and critics, for states in other units."""
    policy = agent.policy
    assert isinstance(policy, SquashedPolicy)
    mean, scale = np.zeros(policy.actions), np.ones(policy.actions)  # actions are seen as they are
    of_critics = Scaling(np.concatenate([units.mean, mean]), np.concatenate([units.scale, scale]))

    def one(critics: Network, i: int) -> Network:
        return jax.tree.map(lambda x: x[i], critics)

    def both(critics: Any) -> Network:
        return jax.tree.map(lambda *pair: jnp.stack(pair), *critics)

    def change(first: Any, second: Any) -> tuple[Any, Any]:
        of_policy = policy_moments_in_units(first[0], second[0], policy, units)
        pairs = [
            moments_in_units(one(first[1], i), one(second[1], i), one(memory.critics, i), of_critics) for i in (0, 1)
        ]
        m, v = (
            (policy_moments, both(pair), moments[2])
            for moments, policy_moments, pair in zip((first, second), of_policy, zip(*pairs, strict=True), strict=True)
        )
        return m, v

    critics, targets = (
        both(in_units(one(network, i), of_critics) for i in (0, 1)) for network in (memory.critics, memory.targets)
    )
    return memory._replace(critics=critics, targets=targets, adam=adam_in_units(memory.adam, change))


def _adam(settings: SacSettings) -> optax.GradientTransformation:
    return optax.adam(settings.learning_rate)


def _moving(learners: Learners) -> tuple[Any, Any, Array]:
    """The parameters that gradients move."""
    return (
        eqx.filter(learners.policy, trainable(learners.policy)),
        eqx.filter(learners.critics, trainable(learners.critics)),
        learners.log_temperature,
    )


def values(critics: Network, q: Float[Array, "n q"], action: Float[Array, "n act"]) -> Float[Array, "2 n"]:
    """Q_i(q, a) of both critics."""
    inputs = jnp.concatenate([q, action], axis=1)
    return jax.vmap(lambda critic: jax.vmap(critic)(inputs)[:, 0])(critics)


def drawn_actions(
    policy: AbstractPolicy, q: Float[Array, "n q"], *, key: PRNGKeyArray
) -> tuple[Float[Array, "n act"], Float[Array, " n"]]:
    """Actions of a policy, and their log-probabilities; differentiable in its parameters."""
    dists = jax.vmap(policy)(q)
    noise = jax.random.normal(key, dists.mean.shape)  # pyright: ignore[reportAttributeAccessIssue]
    return jax.vmap(lambda dist, e: dist.sample_and_log_prob(e))(dists, noise)


class _Progress(NamedTuple):
    """Where the gradient steps stand."""

    learners: Learners
    targets: Network
    totals: Float[Array, " diagnostic"]
    refused: Float[Array, ""]


@eqx.filter_jit
def _step(
    settings: SacSettings, agent: Agent, memory: SacMemory, batch: Batch
) -> tuple[Agent, SacMemory, dict[str, Array]]:
    """Store a batch, then as many gradient steps as it has steps (times `ratio`), in one compiled loop."""
    batch = jax.tree.map(jnp.asarray, batch)
    mask = jnp.asarray(batch.mask)
    states = unroll(agent.filter, batch) if batch.states is None else jnp.asarray(batch.states)
    stored = store(memory.stored, memory.steps, batch, states)
    steps = memory.steps + jnp.sum(mask)
    filled = jnp.minimum(steps, settings.capacity)
    actions = stored.action.shape[1]
    wanted_entropy = -float(actions) if settings.target_entropy is None else settings.target_entropy
    key, here = jax.random.split(jax.random.wrap_key_data(memory.key))
    start = Learners(agent.policy, memory.critics, memory.log_temperature, memory.adam)
    _, fixed = eqx.partition(
        (start.policy, start.critics, start.log_temperature),
        (trainable(start.policy), trainable(start.critics), True),
    )

    def follow(i: Array, now: _Progress) -> _Progress:
        """One gradient step of critics, policy and temperature on the same minibatch."""
        pick, after, again = jax.random.split(jax.random.fold_in(here, i), 3)
        at = jax.random.randint(pick, (settings.minibatch,), 0, filled)
        s = jax.tree.map(lambda x: x[at], stored)
        next_q = jax.vmap(agent.filter.update)(s.q, s.performed, s.observation)
        # y = r + γ (min_i Q̄_i(q', a') − α log π(a' | q')), a' ~ π(· | q'); r alone where the episode terminated.
        temperature = jnp.exp(now.learners.log_temperature)
        next_action, next_log_prob = drawn_actions(now.learners.policy, next_q, key=after)
        soft = jnp.min(values(now.targets, next_q, next_action), axis=0) - temperature * next_log_prob
        y = jax.lax.stop_gradient(s.reward + settings.discount * jnp.where(s.terminated, 0.0, soft))

        def loss(moving: Any) -> tuple[Array, Array]:
            policy, critics, log_temperature = eqx.combine(moving, fixed)
            critic_loss = jnp.mean(jnp.sum((values(critics, s.q, s.action) - y) ** 2, axis=0))
            action, log_prob = drawn_actions(policy, s.q, key=again)
            frozen = jax.lax.stop_gradient(now.learners.critics)
            value = jnp.min(values(frozen, s.q, action), axis=0)
            policy_loss = jnp.mean(temperature * log_prob - value)
            entropy = -jnp.mean(jax.lax.stop_gradient(log_prob))
            temperature_loss = jnp.exp(log_temperature) * (entropy - wanted_entropy)
            return critic_loss + policy_loss + temperature_loss, jnp.stack(
                [critic_loss, policy_loss, entropy, temperature, jnp.mean(value)]
            )

        moving = _moving(now.learners)
        gradient, found = jax.grad(loss, has_aux=True)(moving)
        updates, adam = _adam(settings).update(gradient, now.learners.adam)
        moved: Any = optax.apply_updates(moving, updates)
        # Adam's squares overflow before what is moved does, and would stay so for ever.
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves((moved, adam))]))
        policy, critics, log_temperature = eqx.combine(moved, fixed)
        learners = Learners(policy, critics, log_temperature, adam)
        targets = jax.tree.map(lambda new, old: old + settings.target_rate * (new - old), learners.critics, now.targets)
        taken = now._replace(learners=learners, targets=targets, totals=now.totals + found)
        refused = now._replace(refused=now.refused + 1)
        return jax.tree.map(lambda yes, no: jnp.where(finite, yes, no), taken, refused)

    count = jnp.where(filled < settings.minibatch, 0, jnp.floor(settings.ratio * jnp.sum(mask))).astype(jnp.int32)
    zero = jnp.zeros((), jnp.float32)
    end = jax.lax.fori_loop(0, count, follow, _Progress(start, memory.targets, jnp.zeros(5), zero))
    new = eqx.tree_at(lambda a: a.policy, agent, end.learners.policy)
    after = SacMemory(
        end.learners.critics,
        end.targets,
        end.learners.log_temperature,
        end.learners.adam,
        stored,
        steps,
        jax.random.key_data(key),
    )
    means = end.totals / jnp.maximum(count - end.refused, 1)
    skipped = end.refused / jnp.maximum(count, 1)
    names = "critic_loss", "policy_loss", "entropy", "temperature", "value"
    diagnostics = dict(zip(names, means, strict=True)) | {
        "kl": mean_kl(distributions(agent.policy, states), distributions(new.policy, states), mask),
        "stored": filled,
        "skipped": skipped,
        "unsound": jnp.where(skipped == 1, 1.0, 0.0),
    }
    return new, after, diagnostics
