"""Proximal policy optimisation (Schulman et al. 2017) as an update rule: ours, not the paper's. Knows no filter by name.

Several epochs of minibatches on the clipped surrogate, with generalised advantages and a learned critic, on the same
states as every other rule. The filter is frozen: the states of a batch are computed once, and after that a step is a
sample like any other, wherever in an episode it stood.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from rpsp.algorithms.adam import adam_in_units, moments_in_units, policy_moments_in_units
from rpsp.algorithms.base import Select, UpdateRule, Vector, policy_only, run_key
from rpsp.algorithms.objectives import (
    advantages,
    clipped_surrogate,
    distributions,
    explained_variance,
    gae,
    log_probs,
    mean_entropy,
    mean_kl,
    rewards_to_go,
)
from rpsp.algorithms.policies import AbstractPolicy, Agent, Network, in_units
from rpsp.data.batches import Batch, Steps, masked_mean
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, trainable, unroll


class PpoSettings(eqx.Module):
    """How the policy and its critic learn from a batch."""

    learning_rate: float = 3e-4
    """η: Adam's."""
    clip: float = 0.2
    """ε: a step of which the ratio π_θ / π_old has left 1 ± ε pushes it no further."""
    epochs: int = 10
    """Passes over a batch."""
    minibatch: int = 256
    """Steps in one gradient."""
    discount: float = 0.99
    """γ."""
    gae: float = 0.95
    """λ of the generalised advantages: 1 for returns, 0 for one-step differences."""
    value_weight: float = 0.5
    """Of the critic's squared error in the loss."""
    entropy_weight: float = 0.0
    """Of the policy's entropy in the loss, which it lowers."""
    max_norm: float = 0.5
    """The gradient in policy and critic together is clipped to this norm."""
    target_kl: float | None = None
    """No further epoch is begun once the policy has changed by more than this, as mean KL per sample. None: never mind."""
    hidden: tuple[int, ...] = (64, 64)
    """The critic's hidden layers."""
    bootstrap: bool = True
    """Whether an episode that ran out of time is worth V(q_{T+1}) afterwards, or nothing as if it had ended."""
    scale_rewards: bool = True
    """Whether rewards are divided by the standard deviation of all discounted returns so far."""
    normalise: bool = True
    """Whether advantages are brought to zero mean and unit variance over a batch."""
    anneal: int | None = None
    """The learning rate falls linearly to nothing over this many batches. None: it stays."""
    seed: int = 0
    """Of the critic's first weights and of the order of steps."""
    select: Select = policy_only
    """Which parameters move; none of the filter's."""


class Moments(NamedTuple):
    """How many steps were seen so far, and the mean and variance of their discounted returns."""

    steps: Float[Array, ""]
    mean: Float[Array, ""]
    variance: Float[Array, ""]


class PpoMemory(NamedTuple):
    """What PPO remembers. Arrays only, so that it can be saved: the key is kept as its raw data."""

    critic: Network
    """V(q)."""
    adam: Any
    """Adam's moments, of policy and critic end to end."""
    key: UInt32[Array, " words"]
    returns: Moments
    batches: Int[Array, ""]
    """How many batches it has learned from."""


def ppo(learning_rate: float = PpoSettings.learning_rate, **more: Any) -> UpdateRule:
    """The clipped-surrogate rule (ours, not the paper's); `more` are the other fields of `PpoSettings`.

    A gradient that is not finite is not followed, and Adam forgets it; of a batch in which any state, return or
    log-probability is not finite nothing at all is learned or remembered.

    Diagnostics are those of the whole batch. After the step: `kl` (old to new), `policy_loss` (less the clipped
    surrogate), `value_loss` (mean squared error), `entropy`, `clip_fraction`. Before it: `explained_variance` of the
    critic against the λ-returns. And `policy_gradient_norm` (mean over minibatches, before clipping), `skipped` (the
    share of gradients that were not followed: 1 if nothing was learned, and then `unsound` as well), `epochs_done`,
    `reward_scale`, `log_std`.
    """
    settings = PpoSettings(learning_rate, **more)
    for name in ("learning_rate", "epochs", "minibatch", "max_norm", "target_kl", "anneal"):
        if (value := getattr(settings, name)) is not None and not value > 0:
            raise UsageError(f"{name}={value}: must be greater than 0.")
    for name in ("value_weight", "entropy_weight"):
        if not getattr(settings, name) >= 0:
            raise UsageError(f"{name}={getattr(settings, name)}: must not be negative.")
    for name in ("discount", "gae"):
        if not 0 <= getattr(settings, name) <= 1:
            raise UsageError(f"{name}={getattr(settings, name)}: must lie between 0 and 1, as in 0.95.")
    if not 0 < settings.clip < 1:
        raise UsageError(f"clip={settings.clip}: must lie between 0 and 1, as in 0.2.")
    return UpdateRule(
        partial(_init, settings),
        eqx.Partial(_step, settings),
        "ppo",
        settings.select,
        in_units=partial(_in_units, settings),
    )


def _adam(settings: PpoSettings) -> optax.GradientTransformation:
    """Clipping and Adam, less the learning rate, which may fall."""
    return optax.chain(optax.clip_by_global_norm(settings.max_norm), optax.scale_by_adam(eps=1e-5))


def _init(settings: PpoSettings, agent: Agent) -> PpoMemory:
    which = settings.select(agent)
    if any(jax.tree.leaves(which.filter)):
        raise UsageError("select: marks parameters of the filter, which ppo keeps frozen; use policy_only.")
    # The critic sees states in the units in which the policy sees them.
    network = getattr(agent.policy, "network", None)
    scaling = Scaling(np.asarray(network.mean), np.asarray(network.scale)) if isinstance(network, Network) else None
    critic_key, key = jax.random.split(run_key(settings.seed, ravel_pytree(eqx.filter(agent.policy, which.policy))[0]))
    critic = Network(agent.filter.size, 1, hidden=settings.hidden, scaling=scaling, key=critic_key)
    theta, _ = ravel_pytree((eqx.filter(agent.policy, which.policy), eqx.filter(critic, trainable(critic))))
    zero = jnp.zeros((), jnp.float32)
    return PpoMemory(
        critic,
        _adam(settings).init(theta),
        jax.random.key_data(key),
        Moments(zero, zero, zero),
        jnp.zeros((), jnp.int32),
    )


def _in_units(settings: PpoSettings, agent: Agent, memory: PpoMemory, units: Scaling) -> PpoMemory:
    """The same critic, and Adam's moments of policy and critic, for inputs in other units."""
    moving = (
        eqx.filter(agent.policy, settings.select(agent).policy),
        eqx.filter(memory.critic, trainable(memory.critic)),
    )
    restore = ravel_pytree(moving)[1]

    def change(first: Vector, second: Vector) -> tuple[Vector, Vector]:
        (policy_m, critic_m), (policy_v, critic_v) = restore(first), restore(second)
        of_policy = policy_moments_in_units(policy_m, policy_v, agent.policy, units)
        of_critic = moments_in_units(critic_m, critic_v, memory.critic, units)
        m, v = (ravel_pytree(both)[0] for both in zip(of_policy, of_critic, strict=True))
        return m, v

    return memory._replace(critic=in_units(memory.critic, units), adam=adam_in_units(memory.adam, change))


class _Samples(NamedTuple):
    """Steps regardless of time: all of a batch, filler included, or a minibatch."""

    q: Float[Array, "step q"]
    action: Float[Array, "step act"]
    log_prob: Float[Array, " step"]
    """log π_old(a_t | q_t)."""
    A: Float[Array, " step"]
    target: Float[Array, " step"]
    """The λ-return, which the critic is to predict."""


class _Progress(NamedTuple):
    """Where the epochs stand."""

    theta: Vector
    adam: Any
    epoch: Int[Array, ""]
    kl: Float[Array, ""]
    taken: Float[Array, ""]
    refused: Float[Array, ""]
    norms: Float[Array, ""]
    """Of the policy's gradients that were followed, added up."""


@eqx.filter_jit
def _step(
    settings: PpoSettings, agent: Agent, state: PpoMemory, batch: Batch
) -> tuple[Agent, PpoMemory, dict[str, Array]]:
    """One compiled step, all epochs. Parameters and batch are arguments: it compiles once for every shape of batch."""
    batch = jax.tree.map(jnp.asarray, batch)
    mask = jnp.asarray(batch.mask)
    policy, fixed_policy = eqx.partition(agent.policy, settings.select(agent).policy)
    critic, fixed_critic = eqx.partition(state.critic, trainable(state.critic))
    theta, restore = ravel_pytree((policy, critic))
    of_policy = ravel_pytree(policy)[0].shape[0]

    def networks(theta: Vector) -> tuple[AbstractPolicy, Network]:
        policy, critic = restore(theta)
        return eqx.combine(policy, fixed_policy), eqx.combine(critic, fixed_critic)

    states = unroll(agent.filter, batch) if batch.states is None else batch.states
    states = jnp.where(mask[..., None], states, 0.0)
    returns = merge(state.returns, rewards_to_go(batch, settings.discount), mask)
    scale = _scale(returns) if settings.scale_rewards else jnp.ones(())
    scaled = eqx.tree_at(lambda b: b.rewards, batch, jnp.asarray(batch.rewards) / scale)
    values = _values(state.critic, states)
    after = jnp.zeros_like(values)
    if settings.bootstrap:
        after = _values(state.critic, states_after(agent.filter, states, batch))
    targets = gae(scaled, values, after, settings.discount, settings.gae) + values
    A = advantages(targets, values, mask, normalise=settings.normalise)
    old = distributions(agent.policy, states)
    actions = jnp.asarray(batch.drawn_actions)
    log_prob = log_probs(old, actions)
    everywhere = jnp.where(mask, jnp.stack([A, targets, log_prob, states.sum(axis=-1)]), 0.0)
    sound = jnp.all(jnp.isfinite(everywhere)) & jnp.all(jnp.isfinite(jnp.stack(returns)))

    every = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), _Samples(states, actions, log_prob, A, targets))
    size = min(settings.minibatch, mask.size)
    steps = jnp.maximum(jnp.sum(mask), 1)
    rate = settings.learning_rate
    if settings.anneal is not None:
        rate = rate * jnp.maximum(1 - state.batches / settings.anneal, 0.0)
    key, here = jax.random.split(jax.random.wrap_key_data(state.key))

    def loss(theta: Vector, samples: _Samples) -> Float[Array, ""]:
        policy, critic = networks(theta)
        dists = jax.vmap(policy)(samples.q)
        log_ratio = jax.vmap(lambda dist, a: dist.log_prob(a))(dists, samples.action) - samples.log_prob
        errors = jax.vmap(critic)(samples.q)[:, 0] - samples.target
        return (
            settings.value_weight * jnp.mean(errors**2)
            - clipped_surrogate(log_ratio, samples.A, settings.clip)
            - settings.entropy_weight * jnp.mean(jax.vmap(lambda dist: dist.entropy())(dists))
        )

    def follow(order: Int[Array, " step"], i: Array, now: _Progress) -> _Progress:
        """The i-th minibatch of an epoch; the last one is filled up from the first."""
        samples = jax.tree.map(lambda x: x[order[(i * size + jnp.arange(size)) % steps]], every)
        gradient = jax.grad(loss)(now.theta, samples)
        updates, adam = _adam(settings).update(gradient, now.adam)
        moved = now.theta - rate * jnp.asarray(updates)
        # The norm and not only the entries: clipped by an infinite norm, any gradient is 0.
        finite = jnp.isfinite(jnp.linalg.norm(gradient)) & jnp.all(jnp.isfinite(moved))
        norm = jnp.linalg.norm(gradient[:of_policy])
        taken = now._replace(theta=moved, adam=adam, taken=now.taken + 1, norms=now.norms + norm)
        refused = now._replace(refused=now.refused + 1)
        return jax.tree.map(lambda yes, no: jnp.where(finite, yes, no), taken, refused)

    def change(theta: Vector) -> Float[Array, ""]:
        return mean_kl(old, distributions(networks(theta)[0], states), mask)

    def unfinished(now: _Progress) -> Array:
        near = True if settings.target_kl is None else now.kl <= settings.target_kl
        return sound & (now.epoch < settings.epochs) & near

    def epoch(now: _Progress) -> _Progress:
        order = shuffled(mask.ravel(), key=jax.random.fold_in(here, now.epoch))
        now = jax.lax.fori_loop(0, -(-steps // size), partial(follow, order), now)
        kl = now.kl if settings.target_kl is None else change(now.theta)
        return now._replace(epoch=now.epoch + 1, kl=kl)

    zero = jnp.zeros((), theta.dtype)
    start = _Progress(theta, state.adam, jnp.asarray(0), zero, zero, zero, zero)
    end = jax.lax.while_loop(unfinished, epoch, start)

    policy, critic = networks(end.theta)
    memory = PpoMemory(critic, end.adam, jax.random.key_data(key), returns, state.batches + 1)
    memory = jax.tree.map(lambda new, old: jnp.where(sound, new, old), memory, state)
    skipped = jnp.where(sound, end.refused / jnp.maximum(end.taken + end.refused, 1), 1.0)
    new = distributions(policy, states)
    log_ratio = jnp.where(mask, log_probs(new, actions) - log_prob, 0.0)
    outside = jnp.abs(jnp.exp(log_ratio) - 1) > settings.clip
    # Steps outside the mask have no advantage, so that what they say is 0.
    objective = clipped_surrogate(log_ratio.ravel(), A.ravel(), settings.clip) * mask.size / steps
    diagnostics = {
        "kl": jnp.where(sound, mean_kl(old, new, mask), 0.0),
        "policy_loss": -objective,
        "value_loss": masked_mean((_values(critic, states) - targets) ** 2, mask),
        "entropy": mean_entropy(new, mask),
        "explained_variance": explained_variance(targets, values, mask),
        "clip_fraction": masked_mean(jnp.where(outside, 1.0, 0.0), mask),
        "policy_gradient_norm": end.norms / jnp.maximum(end.taken, 1),
        "skipped": skipped,
        "unsound": jnp.where(skipped == 1, 1.0, 0.0),
        "epochs_done": end.epoch,
        "reward_scale": scale,
    }
    log_std = getattr(policy, "log_std", None)
    if log_std is not None:
        diagnostics["log_std"] = jnp.mean(log_std)
    return eqx.tree_at(lambda agent: agent.policy, agent, policy), memory, diagnostics


def _values(critic: Network, states: Float[Array, "row time q"]) -> Steps:
    """V(q_t) at every step."""
    return jax.vmap(jax.vmap(critic))(states)[..., 0]


def states_after(
    filter: AbstractFilter, states: Float[Array, "row time q"], batch: Batch
) -> Float[Array, "row time q"]:
    """q_{T+1} = f(q_T, a_T, o_T) at the last step of every episode that ran out of time; 0 at every other step.

    One update for each such episode and not for each step: every row's first, then every row's second, and so on.
    """
    rows = jnp.arange(states.shape[0])
    performed, observations = jnp.asarray(batch.actions), jnp.asarray(batch.observations)

    def advance(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        left, after = carry
        at = rows, jnp.argmax(left, axis=1)
        q = jax.vmap(filter.update)(states[at], performed[at], observations[at])
        after = after.at[at].set(jnp.where(left[at][:, None], q, after[at]))
        return left.at[at].set(False), after

    left = jnp.asarray(batch.truncated) & jnp.asarray(batch.mask)
    return jax.lax.while_loop(lambda carry: jnp.any(carry[0]), advance, (left, jnp.zeros_like(states)))[1]


def shuffled(mask: Bool[Array, " step"], *, key: PRNGKeyArray) -> Int[Array, " step"]:
    """The indices of steps in random order; those of filler behind all of them."""
    return jnp.argsort(jnp.where(mask, jax.random.uniform(key, mask.shape), 2.0))


def merge(moments: Moments, x: Steps, mask: Bool[Array, "row time"]) -> Moments:
    """The moments of what was seen before and the steps of a batch together (Chan et al. 1979)."""
    n, mean = jnp.sum(mask, dtype=moments.steps.dtype), masked_mean(x, mask)
    variance = masked_mean((x - mean) ** 2, mask)
    total = jnp.maximum(moments.steps + n, 1)
    share, apart = n / total, mean - moments.mean
    return Moments(
        moments.steps + n,
        moments.mean + share * apart,
        (1 - share) * moments.variance + share * variance + share * (1 - share) * apart**2,
    )


def _scale(returns: Moments) -> Float[Array, ""]:
    """The standard deviation; 1 where returns never differ and there is no scale to speak of."""
    return jnp.where(returns.variance > 1e-12, jnp.sqrt(jnp.maximum(returns.variance, 1e-12)), 1.0)
