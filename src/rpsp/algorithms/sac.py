"""Soft actor-critic (SAC; Haarnoja et al. 2018). Not in the paper.

Learns from every step many times. The steps of the exploration and of every batch go into a replay buffer, and gradients
are computed on minibatches of it, every `learn_every` steps or once an iteration. Without `sequence` the filter is frozen.

The buffer stores the state in which an action was chosen, the action and what followed; the next state is computed by the
filter's update when it is needed. So the buffer stays valid after a refit that keeps the meaning of state coordinates. With
`recompute` stored states are computed again after a refit.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy. optax has no stubs.
# The results of its differentiation, loops and linear algebra are unknown, too.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from rpsp.algorithms.adam import adam_in_units, policy_moments_in_units
from rpsp.algorithms.base import (
    AbstractAlgorithm,
    Diagnostics,
    check_fraction,
    check_not_negative,
    check_positive,
    everything,
    policy_only,
)
from rpsp.algorithms.choices import choices
from rpsp.algorithms.critics import outputs, pair, pair_in_units, pair_moments_in_units
from rpsp.algorithms.networks import Network, with_fixed_norms
from rpsp.algorithms.objectives import distributions, mean_kl
from rpsp.algorithms.policies import AbstractPolicy, Agent, CategoricalPolicy, SquashedPolicy
from rpsp.algorithms.sac_memory import (
    EXPLORED,
    FRESH,
    NAMES,
    Fresh,
    Learners,
    Returns,
    SacMemory,
    Tally,
    emptied,
    in_running_scale,
    no_tally,
    policy_of,
    recomputed,
    reward_scale,
    split,
    with_inputs,
    with_returns,
)
from rpsp.algorithms.sac_sequences import pieces, states_of
from rpsp.algorithms.value_distributions import bellman_target, critic_losses, expectation, least
from rpsp.data import trees
from rpsp.data.arrays import Scalar
from rpsp.data.batches import Batch
from rpsp.data.moments import Moments, no_moments
from rpsp.data.replay import Stored, drawn, empty, store
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, unroll

FRACTION_OF_ENTROPY = 0.5
"""Default target entropy for discrete actions, as a fraction of the largest entropy."""


class _Progress(NamedTuple):
    """State of the loop over gradient steps."""

    learners: Learners
    targets: Network
    tally: Tally


class _Minibatch(NamedTuple):
    """Some stored steps, and what is constant in the loss of one gradient step."""

    steps: Stored
    """[n, …], or pieces [n / length, length, …] of consecutive steps."""
    y: Float[Array, "n out"]
    """Target of the critics: a mean, or a distribution."""
    critics: Network
    temperature: Float[Array, ""]
    """α."""
    key: PRNGKeyArray
    """For the actions drawn in the loss."""


class Sac(AbstractAlgorithm):
    """Soft actor-critic with two critics and a learned temperature α. Not in the paper.

    Actions are continuous and drawn, or discrete, and expectations over them are sums (Christodoulou 2019). A gradient that
    is not finite is skipped. Diagnostics are means over the gradient steps: `critic_loss`, `policy_loss`, `entropy` (of the
    policy), `temperature`, `value`; with `scale_rewards` in scaled rewards. Also `kl` (old to new, on the batch), `stored`
    (steps in the buffer) and `skipped` (fraction of gradients that were skipped).
    """

    off_policy: ClassVar[bool] = True
    squashed: ClassVar[bool] = True
    gains_from_gpu: ClassVar[bool] = True

    learning_rate: float = 3e-4
    """η: step size of Adam, for policy, critics and temperature."""
    discount: float = 0.99
    """Discount factor γ."""
    target_rate: float = 0.005
    """τ: fraction by which the target critics move towards the critics after each gradient step."""
    minibatch: int = 256
    """Size of a minibatch, in steps."""
    ratio: float = 1.0
    """Gradient steps per environment step."""
    learn_every: int = 0
    """Number of environment steps after which gradient steps are taken, while episodes are in progress. 0: after each
    iteration."""
    capacity: int = 300_000
    """Capacity of the replay buffer, in steps."""
    hidden: tuple[int, ...] = (256, 256)
    """Sizes of the critics' hidden layers."""
    target_entropy: float | None = None
    """Entropy of the policy that the temperature aims at. Default: minus the number of action dimensions; with n discrete
    actions 0.5 log n."""
    recompute: bool = False
    """Whether stored states are computed again after a refit of the filter."""
    normed: bool = False
    """Whether plain critics have layer normalisation, which bounds their values at states far from all others. A residual
    body always has it."""
    running_scale: bool = False
    """Whether the inputs of policy and critics are standardised by the running mean and standard deviation of each
    coordinate, over all steps so far. Otherwise they keep the scale of the exploration."""
    scale_rewards: bool = False
    """Whether rewards are divided by the scale of the discounted returns of all steps so far."""
    atoms: int = 1
    """Number of atoms of the distribution of returns that critics estimate, such as 101. It needs `scale_rewards`. 1:
    critics estimate the mean."""
    fixed_norms: bool = False
    """Whether the weights of hidden layers keep the norm that they have at first, so that step sizes keep their effect."""
    sequence: int = 0
    """Number of consecutive steps through which the critics' loss trains the filter. 0: the filter is frozen."""
    filter_rate: float = 3e-5
    """Step size of Adam for the filter, if it is trained. It is much smaller than that of policy and critics (RESeL; Luo et
    al. 2024), because a small change of a filter changes the states of a whole episode."""

    def __check_init__(self) -> None:
        check_positive(self, "learning_rate", "minibatch", "ratio", "capacity", "atoms")
        check_not_negative(self, "learn_every", "sequence", "filter_rate")
        check_fraction(self, discount=0.99)
        if not 0 < self.target_rate <= 1:
            raise UsageError(f"target_rate: {self.target_rate} is not between 0 and 1; a usual value is 0.005.")
        if self.capacity < self.minibatch:
            raise UsageError(f"capacity: {self.capacity} is less than one minibatch; choose at least {self.minibatch}.")
        if self.sequence and (self.learn_every or self.minibatch % self.sequence):
            raise UsageError(
                f"sequence: {self.sequence} steps need learn_every=0 and a minibatch that is a multiple of them; "
                f"learn_every is {self.learn_every}, minibatch {self.minibatch}."
            )
        if self.atoms > 1 and not self.scale_rewards:
            raise UsageError(
                f"atoms: {self.atoms} atoms cover returns of scaled rewards only; also set scale_rewards, or atoms to 1."
            )

    def select(self, agent: Agent) -> Any:
        """Return a tree of booleans: the policy's parameters, and with `sequence` also those of the filter."""
        return everything(agent) if self.sequence else policy_only(agent)

    def init(self, agent: Agent, *, key: PRNGKeyArray) -> SacMemory:
        """Return critics with random weights, Adam's initial state, and an empty buffer."""
        policy = agent.policy
        if not isinstance(policy, SquashedPolicy | CategoricalPolicy):
            raise UsageError(
                f"sac: a {type(policy).__name__} does not fit; its policy is a SquashedPolicy or a CategoricalPolicy."
            )
        states, actions = agent.filter.size, policy.actions
        observation = jax.eval_shape(agent.filter.predict, jnp.zeros(states), jnp.zeros(actions))
        network = policy.network
        critics = pair(network, actions, outputs=self.atoms, hidden=self.hidden, normed=self.normed, key=key)
        temperature = jnp.zeros((), jnp.float32)
        sizes, none = (states, observation.shape[0], actions), jnp.zeros((), jnp.int32)
        fresh = Fresh(empty(min(FRESH, self.capacity), *sizes), none, no_tally()) if self.learn_every else None
        return SacMemory(
            critics,
            critics,
            temperature,
            self._adam().init(split(policy, critics, temperature, *self._halves(agent))[0]),
            empty(self.capacity, *sizes),
            none,
            fresh,
            Moments(jnp.asarray(EXPLORED), network.mean, network.scale**2) if self.running_scale else None,
            Returns(no_moments(), jnp.zeros((), jnp.float32)) if self.scale_rewards else None,
        )

    @property
    def scales_inputs(self) -> bool:
        """Whether it changes the scaling of the policy's input itself: `running_scale`."""
        return self.running_scale

    @property
    def interval(self) -> int:
        """Number of environment steps between two calls of `learn`: `learn_every`."""
        return self.learn_every

    def learn(self, agent: Agent, memory: SacMemory, lot: Batch, *, key: PRNGKeyArray) -> tuple[Agent, SacMemory]:
        """Take `ratio` gradient steps for each new step, on minibatches of the replay buffer and of this iteration."""
        lot = trees.as_jax(lot)
        fresh = memory.fresh
        assert fresh is not None and lot.states is not None
        steps = fresh.steps + jnp.sum(jnp.asarray(lot.mask))
        count = jnp.floor(self.ratio * steps) - jnp.floor(self.ratio * fresh.steps)
        stored = store(fresh.stored, fresh.steps, lot, jnp.asarray(lot.states))
        memory = memory._replace(fresh=fresh._replace(stored=stored, steps=steps))
        agent, memory = in_running_scale(agent, memory)
        agent, memory, tally = self._descended(agent, memory, count, fresh.tally, key=key)
        return agent, memory._replace(fresh=Fresh(stored, steps, tally))

    @eqx.filter_jit
    def step(
        self, agent: Agent, memory: SacMemory, batch: Batch, *, key: PRNGKeyArray
    ) -> tuple[Agent, SacMemory, Diagnostics]:
        """Store a batch, then take those of its `ratio` gradient steps per step that `learn` has not taken."""
        batch = trees.as_jax(batch)
        mask, fresh = jnp.asarray(batch.mask), memory.fresh
        states = unroll(agent.filter, batch) if batch.states is None else jnp.asarray(batch.states)
        stored = store(memory.stored, memory.steps, batch, states)
        tally, learned = (no_tally(), 0) if fresh is None else (fresh.tally, fresh.steps)
        count = jnp.floor(self.ratio * jnp.sum(mask)) - jnp.floor(self.ratio * learned)
        memory = memory._replace(stored=stored, steps=memory.steps + jnp.sum(mask), fresh=emptied(fresh))
        if self.sequence:  # the filter has changed since the states were stored
            memory = recomputed(agent, memory)
        memory = with_returns(with_inputs(agent, memory, states, mask), batch, self.discount)
        scaled, memory = in_running_scale(agent, memory)
        new, memory, tally = self._descended(scaled, memory, count, tally, key=key)
        means = tally.totals / jnp.maximum(tally.taken - tally.refused, 1)
        skipped = tally.refused / jnp.maximum(tally.taken, 1)
        diagnostics = dict(zip(NAMES, means, strict=True)) | {
            "stored": jnp.minimum(memory.steps, self.capacity),
            "skipped": skipped,
            "unsound": jnp.where(skipped == 1, 1.0, 0.0),
        }
        if fresh is None:
            diagnostics["kl"] = mean_kl(distributions(agent.policy, states), distributions(new.policy, states), mask)
        return new, memory, diagnostics

    def _descended(
        self, agent: Agent, memory: SacMemory, count: Array, tally: Tally, *, key: PRNGKeyArray
    ) -> tuple[Agent, SacMemory, Tally]:
        """Take some gradient steps in one compiled loop. None are taken while less than a minibatch is stored."""
        moving_filter, fixed_filter = self._halves(agent)
        start = Learners(agent.policy, memory.critics, memory.log_temperature, moving_filter, memory.adam)
        fixed = split(*start[:4], fixed_filter)[1]

        def follow(i: Array, now: _Progress) -> _Progress:
            filter = trees.combine(now.learners.filter, fixed_filter)
            some = self._minibatch(filter, now, memory, key=jax.random.fold_in(key, i))
            return self._gradient_step(now, some, fixed)

        count = jnp.where(self._available(memory) < self.minibatch, 0, jnp.maximum(count, 0)).astype(jnp.int32)
        end: _Progress = jax.lax.fori_loop(0, count, follow, _Progress(start, memory.targets, tally))
        policy, critics, log_temperature, moving_filter, adam = end.learners
        memory = memory._replace(critics=critics, targets=end.targets, log_temperature=log_temperature, adam=adam)
        return Agent(trees.combine(moving_filter, fixed_filter), policy), memory, end.tally

    def _halves(self, agent: Agent) -> tuple[Any, Any]:
        """Return the parameters of the filter that are trained, and the others; None stands for those of the other half."""
        return trees.partition(agent.filter, self.select(agent).filter)

    def _available(self, memory: SacMemory) -> Int[Array, ""]:
        """Return the number of steps that minibatches are drawn from."""
        filled = jnp.minimum(memory.steps, self.capacity)
        if memory.fresh is None:
            return filled
        return filled + jnp.minimum(memory.fresh.steps, memory.fresh.stored.reward.shape[0])

    @eqx.filter_jit
    def on_exploration(self, agent: Agent, memory: SacMemory, batch: Batch) -> SacMemory:
        """Store the steps of the exploration, with the actions that were executed."""
        batch = replace(trees.as_jax(batch), drawn_actions=jnp.asarray(batch.actions))
        states, mask = unroll(agent.filter, batch), jnp.asarray(batch.mask)
        stored = store(memory.stored, memory.steps, batch, states)
        memory = memory._replace(stored=stored, steps=memory.steps + jnp.sum(mask))
        return with_returns(with_inputs(agent, memory, states, mask), batch, self.discount)

    def on_refit(self, agent: Agent, memory: SacMemory) -> SacMemory:
        """Compute the stored states again, if `recompute` is set."""
        return recomputed(agent, memory) if self.recompute else memory

    def on_new_units(self, agent: Agent, memory: SacMemory, scaling: Scaling) -> SacMemory:
        """Rescale the input of critics and target critics, and Adam's moments of policy and critics."""
        policy = policy_of(agent)
        actions = policy.actions

        def change(first: Any, second: Any) -> tuple[Any, Any]:
            of_policy = policy_moments_in_units(first[0], second[0], policy, scaling)
            of_critics = pair_moments_in_units(first[1], second[1], memory.critics, scaling, actions)
            m, v = zip(of_policy, of_critics, (first[2], second[2]), (first[3], second[3]), strict=True)
            return m, v

        critics, targets = (pair_in_units(each, scaling, actions) for each in (memory.critics, memory.targets))
        return memory._replace(critics=critics, targets=targets, adam=adam_in_units(memory.adam, change))

    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    def _minibatch(self, filter: AbstractFilter, now: _Progress, memory: SacMemory, *, key: PRNGKeyArray) -> _Minibatch:
        """Draw stored steps and compute the critics' targets.

        y = r/s + γ E[min_i Q̄_i(q', a') − α log π(a' | q')] over a' ~ π(· | q'), where q' is the next state, r the reward, s
        the scale of rewards and Q̄_i the target critics. y = r/s where the episode terminated. `bellman_target` is this
        equation for means and for distributions.
        """
        pick, then, again = jax.random.split(key, 3)
        if self.sequence:
            steps = pieces(memory.stored, memory.steps, self.minibatch // self.sequence, self.sequence, key=pick)
        else:
            at = jax.random.randint(pick, (self.minibatch,), 0, self._available(memory))
            fresh = None if memory.fresh is None else memory.fresh.stored
            steps = drawn(memory.stored, fresh, jnp.minimum(memory.steps, self.capacity), at)
        s = self._with_states(filter, steps)
        next_q = jax.vmap(filter.update)(s.q, s.performed, s.observation)
        temperature = jnp.exp(now.learners.log_temperature)
        next_actions = choices(now.learners.policy, next_q, key=then)

        def after_action(action: Array) -> Array:
            return least(outputs(now.targets, next_q, action))

        y = bellman_target(
            jax.vmap(after_action)(next_actions.action),
            next_actions.weight,
            -temperature * next_actions.log_prob,
            s.reward / reward_scale(memory.returns),
            jnp.where(s.terminated, 0.0, self.discount),
        )
        return _Minibatch(steps, jax.lax.stop_gradient(y), now.learners.critics, temperature, again)

    def _with_states(self, filter: AbstractFilter, steps: Stored) -> Stored:
        """Return drawn steps as [n, …], with states that the filter computes if it is trained."""
        if not self.sequence:
            return steps
        return trees.map(lambda x: x.reshape(-1, *x.shape[2:]), steps._replace(q=states_of(filter, steps)))

    def _loss(
        self, policy: AbstractPolicy, critics: Network, log_temperature: Array, filter: AbstractFilter, some: _Minibatch
    ) -> tuple[Float[Array, ""], Float[Array, " diagnostic"]]:
        """Return the sum of the losses of critics, policy and temperature, and the numbers for the diagnostics.

        mean Σ_i (Q_i(q, a) − y)² + mean E[α log π(a'' | q) − min_i Q_i(q, a'')] + α (H − H̄), with a'' ~ π(· | q), where H is
        the entropy of these actions and H̄ is `target_entropy`. For distributions, the first term is a cross-entropy. Each
        loss changes only its own parameters, that of the critics also the filter if it is trained.
        """
        s = self._with_states(filter, some.steps)
        critic_loss = jnp.mean(critic_losses(outputs(critics, s.q, s.action), some.y))
        q = jax.lax.stop_gradient(s.q)
        actions = choices(policy, q, key=some.key)

        def value_of(action: Array) -> Array:
            return jnp.min(expectation(outputs(jax.lax.stop_gradient(some.critics), q, action)), axis=0)

        values = jax.vmap(value_of)(actions.action)
        policy_loss = jnp.mean(jnp.sum(actions.weight * (some.temperature * actions.log_prob - values), axis=0))
        entropy = jnp.mean(jax.lax.stop_gradient(actions.entropy))
        temperature_loss = jnp.exp(log_temperature) * (entropy - self._wanted_entropy(policy))
        value = jnp.mean(jnp.sum(actions.weight * values, axis=0))
        found = jnp.stack([critic_loss, policy_loss, entropy, some.temperature, value])
        return critic_loss + policy_loss + temperature_loss, found

    def _wanted_entropy(self, policy: AbstractPolicy) -> Scalar:
        """Return H̄."""
        if self.target_entropy is not None:
            return self.target_entropy
        if isinstance(policy, CategoricalPolicy):
            return FRACTION_OF_ENTROPY * math.log(policy.actions)
        assert isinstance(policy, SquashedPolicy)
        return -float(policy.actions)

    def _gradient_step(self, now: _Progress, some: _Minibatch, fixed: Any) -> _Progress:
        """Take one gradient step of critics, policy, temperature and perhaps the filter on the same minibatch."""
        moving = split(*now.learners[:4], fixed[3])[0]

        def loss(moving: Any) -> tuple[Array, Array]:
            policy, critics, log_temperature, filter = trees.combine(moving, fixed)
            return self._loss(policy, critics, log_temperature, filter, some)

        gradient, found = jax.grad(loss, has_aux=True)(moving)
        updates, adam = self._adam().update(gradient, now.learners.adam)
        *others, of_filter = cast(tuple[Any, ...], updates)
        slower = trees.map(lambda x: x * (self.filter_rate / self.learning_rate), of_filter)
        moved: Any = optax.apply_updates(moving, (*others, slower))
        # Adam's moments as well: their squares overflow before the parameters do, and would stay infinite.
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves((moved, adam))]))
        policy, critics, log_temperature, _ = trees.combine(moved, fixed)
        if self.fixed_norms:
            policy = trees.replace(lambda p: p.network, policy, with_fixed_norms(policy.network))
            critics = jax.vmap(with_fixed_norms)(critics)
        learners = Learners(policy, critics, log_temperature, moved[3], adam)
        targets = trees.map(lambda new, old: old + self.target_rate * (new - old), learners.critics, now.targets)
        tally = now.tally._replace(taken=now.tally.taken + 1)
        followed = _Progress(learners, targets, tally._replace(totals=tally.totals + found))
        return trees.where(finite, followed, now._replace(tally=tally._replace(refused=tally.refused + 1)))
