"""Proximal policy optimisation (PPO; Schulman et al. 2017). Not in the paper.

Several epochs of minibatches on the clipped surrogate, with generalised advantages and a learned critic. The filter is
frozen: the states of a batch are computed once, and after that every step is an independent sample.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy. optax has no stubs.
# The results of its differentiation, loops and linear algebra are unknown, too.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from rpsp.algorithms.adam import adam_in_units, moments_in_units, policy_moments_in_units
from rpsp.algorithms.base import (
    AbstractAlgorithm,
    Diagnostics,
    Select,
    Vector,
    check_fraction,
    check_not_negative,
    check_positive,
    policy_only,
)
from rpsp.algorithms.networks import Network, in_units
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
from rpsp.algorithms.policies import AbstractDistribution, AbstractPolicy, Agent, entropy, log_prob
from rpsp.data import trees
from rpsp.data.arrays import Scalar
from rpsp.data.batches import Batch, Steps, masked_mean
from rpsp.data.moments import Moments, merge, no_moments, scale_of
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, trainable, unroll


class PpoMemory(NamedTuple):
    """What PPO keeps between steps."""

    critic: Network
    """V(q)."""
    adam: Any
    """Adam's moments of policy and critic, concatenated."""
    returns: Moments
    """Moments of the discounted returns."""
    batches: Int[Array, ""]
    """Number of batches it has learned from."""


class _Samples(NamedTuple):
    """Steps regardless of time: all of a batch, filler included, or a minibatch."""

    q: Float[Array, "step q"]
    action: Float[Array, "step act"]
    log_prob: Float[Array, " step"]
    """log π_old(a_t | q_t)."""
    A: Float[Array, " step"]
    target: Float[Array, " step"]
    """The λ-return, which the critic learns to predict."""


class _Evaluation(NamedTuple):
    """A batch as the agent and critic before the step see it."""

    mask: Bool[Array, "row time"]
    states: Float[Array, "row time q"]
    old: AbstractDistribution
    """π_old(· | q_t)."""
    actions: Float[Array, "row time act"]
    log_prob: Steps
    values: Steps
    targets: Steps
    A: Steps
    returns: Moments
    scale: Float[Array, ""]
    """Divisor of the rewards."""
    sound: Bool[Array, ""]
    """Whether everything here is finite."""


class _Parameters(NamedTuple):
    """The parameters θ of policy and critic as one vector, and how to get the networks back."""

    theta: Vector
    of_policy: int
    """How many entries of θ are the policy's; they come first."""
    networks: Callable[[Vector], tuple[AbstractPolicy, Network]]


class _Progress(NamedTuple):
    """State of the loop over epochs."""

    theta: Vector
    adam: Any
    epoch: Int[Array, ""]
    kl: Float[Array, ""]
    taken: Float[Array, ""]
    refused: Float[Array, ""]
    norms: Float[Array, ""]
    """Sum of the norms of the policy's gradients that were applied."""


class Ppo(AbstractAlgorithm):
    """Proximal policy optimisation with generalised advantages and a learned critic. Not in the paper.

    A gradient that is not finite is skipped, and Adam's moments stay as they were. If any state, return or log-probability
    of a batch is not finite, the whole step is skipped.

    Diagnostics, over the whole batch. After the step: `kl` (old to new), `policy_loss` (minus the clipped surrogate),
    `value_loss` (mean squared error), `entropy`, `clip_fraction`. Before the step: `explained_variance` of the λ-returns by
    the critic. Also `policy_gradient_norm` (mean over minibatches, before clipping), `skipped` (fraction of gradients that
    were skipped; if it is 1, `unsound` is 1 too), `epochs_done`, `reward_scale`, `log_std`.
    """

    gains_from_gpu: ClassVar[bool] = True

    learning_rate: float = 3e-4
    """η: step size of Adam."""
    discount: float = 0.99
    """Discount factor γ."""
    gae: float = 0.95
    """λ of the generalised advantages: 1 for returns, 0 for one-step differences."""
    clip: float = 0.2
    """ε: steps whose ratio π_θ / π_old has left 1 ± ε contribute no gradient that would push it further."""
    passes: int = 10
    """Number of passes over a batch."""
    minibatch: int = 256
    """Size of a minibatch, in steps."""
    value_weight: float = 0.5
    """Weight of the critic's squared error in the loss."""
    entropy_weight: float = 0.0
    """Weight of the entropy bonus."""
    max_norm: float = 0.5
    """The gradient of policy and critic together is clipped to this norm."""
    target_kl: float | None = None
    """No further epoch starts once the policy has changed by more than this mean KL per sample. None: no limit."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the critic's hidden layers."""
    bootstrap: bool = True
    """Whether an episode that was truncated continues with the value V(q_{T+1}) instead of 0."""
    scale_rewards: bool = True
    """Whether rewards are divided by the standard deviation of all discounted returns so far."""
    normalise: bool = True
    """Whether advantages are scaled to zero mean and unit variance over a batch."""
    anneal: int | None = None
    """Number of iterations over which the learning rate falls linearly to 0. None: it is constant."""
    moves: Select = policy_only
    """Which parameters change; none of the filter's."""

    def __check_init__(self) -> None:
        check_positive(self, "learning_rate", "passes", "minibatch", "max_norm", "target_kl", "anneal")
        check_not_negative(self, "value_weight", "entropy_weight")
        check_fraction(self, discount=0.99, gae=0.95)
        if not 0 < self.clip < 1:
            raise UsageError(f"clip: {self.clip} is not between 0 and 1; a usual value is 0.2.")

    def select(self, agent: Agent) -> Any:
        """Return a tree of booleans: which parameters change."""
        return self.moves(agent)

    def init(self, agent: Agent, *, key: PRNGKeyArray) -> PpoMemory:
        """Return a critic with random weights, and Adam's initial state."""
        which = self.select(agent)
        if any(jax.tree.leaves(which.filter)):
            raise UsageError("moves: marks parameters of the filter, which ppo keeps frozen; use policy_only.")
        # The critic sees what the policy sees, in the same scaling.
        network = getattr(agent.policy, "network", None)
        if isinstance(network, Network):
            kind, view = type(network), network.view
            scaling = Scaling(np.asarray(network.mean), np.asarray(network.scale))
        else:
            kind, scaling, view = Network, None, None
        inputs = agent.filter.size if view is None else view.shape[1]
        critic = kind(inputs, 1, hidden=self.hidden, scaling=scaling, view=view, key=key)
        theta, _ = trees.flatten((trees.only(agent.policy, which.policy), trees.only(critic, trainable(critic))))
        return PpoMemory(critic, self._adam().init(theta), no_moments(), jnp.zeros((), jnp.int32))

    @eqx.filter_jit
    def step(
        self, agent: Agent, memory: PpoMemory, batch: Batch, *, key: PRNGKeyArray
    ) -> tuple[Agent, PpoMemory, Diagnostics]:
        """Learn from a batch in several epochs. Compiled once for every shape of batch."""
        batch = trees.as_jax(batch)
        parameters = self._parameters(agent, memory.critic)
        before = self._evaluate(agent, memory, batch)
        rate = self.learning_rate
        if self.anneal is not None:
            rate = rate * jnp.maximum(1 - memory.batches / self.anneal, 0.0)
        end = self._learn(parameters, memory.adam, before, rate, key)
        policy, critic = parameters.networks(end.theta)
        after = PpoMemory(critic, end.adam, before.returns, memory.batches + 1)
        after = trees.where(before.sound, after, memory)
        diagnostics = self._diagnostics(policy, critic, before, end)
        return trees.replace(lambda agent: agent.policy, agent, policy), after, diagnostics

    def on_new_units(self, agent: Agent, memory: PpoMemory, scaling: Scaling) -> PpoMemory:
        """Rescale the critic's input, and Adam's moments of policy and critic."""
        moving = (
            trees.only(agent.policy, self.select(agent).policy),
            trees.only(memory.critic, trainable(memory.critic)),
        )
        restore = trees.flatten(moving)[1]

        def change(first: Vector, second: Vector) -> tuple[Vector, Vector]:
            (policy_m, critic_m), (policy_v, critic_v) = restore(first), restore(second)
            of_policy = policy_moments_in_units(policy_m, policy_v, agent.policy, scaling)
            of_critic = moments_in_units(critic_m, critic_v, memory.critic, scaling)
            m, v = (trees.flatten(both)[0] for both in zip(of_policy, of_critic, strict=True))
            return m, v

        return memory._replace(critic=in_units(memory.critic, scaling), adam=adam_in_units(memory.adam, change))

    def _adam(self) -> optax.GradientTransformation:
        """Return clipping and Adam without the learning rate, which may be annealed."""
        return optax.chain(optax.clip_by_global_norm(self.max_norm), optax.scale_by_adam(eps=1e-5))

    def _parameters(self, agent: Agent, critic: Network) -> _Parameters:
        policy, fixed_policy = trees.partition(agent.policy, self.select(agent).policy)
        moving_critic, fixed_critic = trees.partition(critic, trainable(critic))
        theta, restore = trees.flatten((policy, moving_critic))

        def networks(theta: Vector) -> tuple[AbstractPolicy, Network]:
            policy, critic = restore(theta)
            return trees.combine(policy, fixed_policy), trees.combine(critic, fixed_critic)

        return _Parameters(theta, trees.flatten(policy)[0].shape[0], networks)

    def _evaluate(self, agent: Agent, memory: PpoMemory, batch: Batch) -> _Evaluation:
        """Compute states, advantages, targets and log-probabilities before the step."""
        mask = jnp.asarray(batch.mask)
        states = unroll(agent.filter, batch) if batch.states is None else batch.states
        states = jnp.where(mask[..., None], states, 0.0)
        returns = merge(memory.returns, rewards_to_go(batch, self.discount), mask)
        scale = scale_of(returns) if self.scale_rewards else jnp.ones(())
        scaled = trees.replace(lambda b: b.rewards, batch, jnp.asarray(batch.rewards) / scale)
        values = _values(memory.critic, states)
        after = jnp.zeros_like(values)
        if self.bootstrap:
            after = _values(memory.critic, states_after(agent.filter, states, batch))
        targets = gae(scaled, values, after, self.discount, self.gae) + values
        A = advantages(targets, values, mask, normalise=self.normalise)
        old = distributions(agent.policy, states)
        actions = jnp.asarray(batch.drawn_actions)
        log_prob = log_probs(old, actions)
        everywhere = jnp.where(mask, jnp.stack([A, targets, log_prob, states.sum(axis=-1)]), 0.0)
        sound = jnp.all(jnp.isfinite(everywhere)) & jnp.all(jnp.isfinite(jnp.stack(returns)))
        return _Evaluation(mask, states, old, actions, log_prob, values, targets, A, returns, scale, sound)

    def _loss(self, policy: AbstractPolicy, critic: Network, samples: _Samples) -> Float[Array, ""]:
        """Return w_V mean_t (V(q_t) − target_t)² − clipped surrogate − w_H mean_t H(π(· | q_t)).

        w_V is `value_weight` and w_H is `entropy_weight`.
        """
        dists = jax.vmap(policy)(samples.q)
        log_ratio = jax.vmap(log_prob)(dists, samples.action) - samples.log_prob
        errors = jax.vmap(critic)(samples.q)[:, 0] - samples.target
        return (
            self.value_weight * jnp.mean(errors**2)
            - clipped_surrogate(log_ratio, samples.A, self.clip)
            - self.entropy_weight * jnp.mean(jax.vmap(entropy)(dists))
        )

    def _learn(
        self, parameters: _Parameters, adam: Any, before: _Evaluation, rate: Scalar, key: PRNGKeyArray
    ) -> _Progress:
        """Run the epochs, each over all minibatches of the batch in random order."""
        mask = before.mask
        samples = _Samples(before.states, before.actions, before.log_prob, before.A, before.targets)
        every = trees.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)
        size = min(self.minibatch, mask.size)
        steps = jnp.maximum(jnp.sum(mask), 1)

        def follow(order: Int[Array, " step"], i: Array, now: _Progress) -> _Progress:
            """Apply the gradient of the i-th minibatch of an epoch. The last one is filled up from the first."""
            samples = trees.map(lambda x: x[order[(i * size + jnp.arange(size)) % steps]], every)

            def loss(theta: Vector) -> Array:
                return self._loss(*parameters.networks(theta), samples)

            gradient = jax.grad(loss)(now.theta)
            updates, adam = self._adam().update(gradient, now.adam)
            moved = now.theta - rate * jnp.asarray(updates)
            # The norm and not only the entries: clipped by an infinite norm, any gradient is 0.
            finite = jnp.isfinite(jnp.linalg.norm(gradient)) & jnp.all(jnp.isfinite(moved))
            norm = jnp.linalg.norm(gradient[: parameters.of_policy])
            taken = now._replace(theta=moved, adam=adam, taken=now.taken + 1, norms=now.norms + norm)
            refused = now._replace(refused=now.refused + 1)
            return trees.where(finite, taken, refused)

        def unfinished(now: _Progress) -> Array:
            near = True if self.target_kl is None else now.kl <= self.target_kl
            return before.sound & (now.epoch < self.passes) & near

        def epoch(now: _Progress) -> _Progress:
            order = shuffled(mask.ravel(), key=jax.random.fold_in(key, now.epoch))
            end: _Progress = jax.lax.fori_loop(0, -(-steps // size), partial(follow, order), now)
            kl = end.kl
            if self.target_kl is not None:
                kl = mean_kl(before.old, distributions(parameters.networks(end.theta)[0], before.states), mask)
            return end._replace(epoch=end.epoch + 1, kl=kl)

        zero = jnp.zeros((), parameters.theta.dtype)
        start = _Progress(parameters.theta, adam, jnp.asarray(0), zero, zero, zero, zero)
        return jax.lax.while_loop(unfinished, epoch, start)

    def _diagnostics(self, policy: AbstractPolicy, critic: Network, before: _Evaluation, end: _Progress) -> Diagnostics:
        mask, A, sound = before.mask, before.A, before.sound
        skipped = jnp.where(sound, end.refused / jnp.maximum(end.taken + end.refused, 1), 1.0)
        new = distributions(policy, before.states)
        log_ratio = jnp.where(mask, log_probs(new, before.actions) - before.log_prob, 0.0)
        outside = jnp.abs(jnp.exp(log_ratio) - 1) > self.clip
        # Steps outside the mask have an advantage of 0 and contribute nothing.
        steps = jnp.maximum(jnp.sum(mask), 1)
        objective = clipped_surrogate(log_ratio.ravel(), A.ravel(), self.clip) * mask.size / steps
        diagnostics = {
            "kl": jnp.where(sound, mean_kl(before.old, new, mask), 0.0),
            "policy_loss": -objective,
            "value_loss": masked_mean((_values(critic, before.states) - before.targets) ** 2, mask),
            "entropy": mean_entropy(new, mask),
            "explained_variance": explained_variance(before.targets, before.values, mask),
            "clip_fraction": masked_mean(jnp.where(outside, 1.0, 0.0), mask),
            "policy_gradient_norm": end.norms / jnp.maximum(end.taken, 1),
            "skipped": skipped,
            "unsound": jnp.where(skipped == 1, 1.0, 0.0),
            "epochs_done": end.epoch,
            "reward_scale": before.scale,
        }
        log_std = getattr(policy, "log_std", None)
        return diagnostics if log_std is None else diagnostics | {"log_std": jnp.mean(log_std)}


def _values(critic: Network, states: Float[Array, "row time q"]) -> Steps:
    """Return V(q_t) at every step."""
    return jax.vmap(jax.vmap(critic))(states)[..., 0]


def states_after(
    filter: AbstractFilter, states: Float[Array, "row time q"], batch: Batch
) -> Float[Array, "row time q"]:
    """Return q_{T+1} = f(q_T, a_T, o_T) at the last step T of every truncated episode, and 0 at every other step.

    Computes one update per truncated episode: the first of every row, then the second of every row, and so on.
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
    """Return the indices of all steps in random order, then those of filler."""
    return jnp.argsort(jnp.where(mask, jax.random.uniform(key, mask.shape), 2.0))
