"""The joint variance-reduced policy gradient (VRPG) of the paper."""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy. optax has no stubs.
# The results of its differentiation, loops and linear algebra are unknown, too.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.algorithms.adam import adam_in_units, policy_moments_in_units
from rpsp.algorithms.base import (
    AbstractAlgorithm,
    Diagnostics,
    Select,
    Vector,
    check_fraction,
    check_not_negative,
    check_positive,
    everything,
)
from rpsp.algorithms.line_search import Search, line_search
from rpsp.algorithms.objectives import (
    advantages,
    distributions,
    explained_variance,
    fit_baseline,
    linear_baseline,
    mean_kl,
    policy_loss,
    rewards_to_go,
    seen_by_baselines,
)
from rpsp.algorithms.policies import AbstractDistribution, Agent
from rpsp.data import trees
from rpsp.data.arrays import Scalar
from rpsp.data.batches import Batch, Steps
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, prediction_loss, unroll


class VrpgMemory(NamedTuple):
    """Adam's moments, and the running variance of each loss's gradient (0 before the first step)."""

    adam: Any
    v: Float[Array, " loss"]


class Vrpg(AbstractAlgorithm):
    """Joint variance-reduced policy gradient: Adam on ∇L = α₁ ∇ℓ₁ + α₂ ∇ℓ₂, with gradients through time.

    ℓ₁ is the `policy_loss`, ℓ₂ the `prediction_loss`, and α_i = a_i v_i^{−1/2} (`variance_weights`), where a₁ is
    `return_weight`, a₂ is `prediction_weight` and v_i is the running variance of ∇ℓ_i (`gradient_variance`).

    With `filter_kl` (not in the paper) a step is halved until filter and policy together have changed by at most that KL. If
    that fails the step is skipped, but Adam's moments are updated. A step that is not finite is skipped, and the memory
    stays as it was.
    """

    gains_from_gpu: ClassVar[bool] = True

    learning_rate: float = 1e-3
    """η: step size of Adam."""
    return_weight: float = 1.0
    """a₁: weight of the policy loss, after its gradient is scaled to unit variance. 0 drops the loss."""
    prediction_weight: float = 1.0
    """a₂: weight of the prediction loss, likewise. 0 drops the loss, as in the paper's reactive PSR."""
    averaging_rate: float = 0.1
    """β: weight of the new value in the running variance of a gradient."""
    discount: float = 0.99
    """Discount factor γ."""
    normalise: bool = True
    """Whether advantages are scaled to zero mean and unit variance."""
    truncate: int | None = None
    """Length of backpropagation through time, in steps. None: whole episodes."""
    max_norm: float = 3.0
    """The gradient of each loss is clipped to this multiple of its usual norm, and the joint gradient to this norm."""
    moves: Select = everything
    """Which parameters change."""
    policy_rate: float = 1.0
    """Factor on the steps of the policy's parameters, relative to the filter's. Not in the paper."""
    filter_kl: float | None = None
    """Maximum KL divergence caused by one gradient step on filter and policy, as a mean over samples. None: no limit, as in
    the paper."""
    backtracks: int = 10
    """Maximum number of times that a step outside `filter_kl` is halved before it is skipped."""
    baseline_ridge: float = 1e-5
    """Ridge of the linear baseline."""

    def __check_init__(self) -> None:
        check_positive(self, "learning_rate", "max_norm", "policy_rate", "filter_kl", "truncate")
        if not 0 < self.averaging_rate <= 1:
            raise UsageError(f"averaging_rate: {self.averaging_rate} is not between 0 and 1; a usual value is 0.1.")
        check_not_negative(self, "backtracks", "baseline_ridge")
        check_fraction(self, discount=0.99)
        weights = self.return_weight, self.prediction_weight
        if min(weights) < 0 or max(weights) == 0:
            raise UsageError(
                f"return_weight: {weights[0]} and prediction_weight: {weights[1]} must not be negative, and one of them "
                "must be greater than 0."
            )

    def select(self, agent: Agent) -> Any:
        """Return a tree of booleans: which parameters change."""
        return self.moves(agent)

    def init(self, agent: Agent, *, key: PRNGKeyArray) -> VrpgMemory:
        """Return Adam's initial state, and variances of 0."""
        theta, _ = trees.flatten(trees.only(agent, self.select(agent)))
        return VrpgMemory(self._adam().init(theta), jnp.zeros(len(self._weights()), theta.dtype))

    @eqx.filter_jit
    def step(
        self, agent: Agent, memory: VrpgMemory, batch: Batch, *, key: PRNGKeyArray
    ) -> tuple[Agent, VrpgMemory, Diagnostics]:
        """Take one gradient step. Compiled once for every shape of batch."""
        batch = trees.as_jax(batch)
        mask = jnp.asarray(batch.mask)
        which = self.select(agent)
        moving, fixed = trees.partition(agent, which)
        theta, restore = trees.flatten(moving)
        R = rewards_to_go(batch, self.discount)

        def losses(theta: Vector) -> tuple[Float[Array, " loss"], _Evaluation]:
            """Return those of (ℓ₁, ℓ₂) that are not dropped, and what is needed afterwards."""
            found = self._evaluate(trees.combine(restore(theta), fixed), batch, R)
            return jnp.stack([found.losses[name] for name in self._weights()]), found

        values, pull_back, old = jax.vjp(losses, theta, has_aux=True)
        (gradients,) = jax.vmap(pull_back)(jnp.eye(len(values)))  # both at once, in one scan backwards
        of_filter = trees.flatten(moving.filter)[0].size  # the filter's parameters come first
        step = self._adam_step(gradients, memory, of_filter)
        # The norms as well: they overflow before their entries do.
        finite = jnp.all(jnp.isfinite(jnp.concatenate([values, step.norms, step.memory.v, step.theta])))

        def judge(theta: Vector) -> tuple[Array, Array]:
            new = trees.combine(restore(theta), fixed)
            q = unroll(new.filter, batch) if any(jax.tree.leaves(which.filter)) else old.states
            return jnp.where(finite, 1.0, jnp.nan), mean_kl(old.dists, distributions(new.policy, q), mask)

        # Without a trust region there is one candidate, refused only if it is not finite.
        region = (jnp.inf, 0) if self.filter_kl is None else (self.filter_kl, self.backtracks)
        found = line_search(judge, theta, step.theta, *region, shrink=0.5)
        after = trees.where(finite, step.memory, memory)
        diagnostics = self._diagnostics(found, step, old) | {
            "explained_variance": explained_variance(R, old.baseline, mask)
        }
        return trees.combine(restore(found.theta), fixed), after, diagnostics

    def on_new_units(self, agent: Agent, memory: VrpgMemory, scaling: Scaling) -> VrpgMemory:
        """Rescale Adam's moments of the policy. No effect if only the filter changes."""
        restore = trees.flatten(trees.only(agent, self.select(agent)))[1]

        def change(first: Vector, second: Vector) -> tuple[Vector, Vector]:
            moments = restore(first), restore(second)
            policies = policy_moments_in_units(moments[0].policy, moments[1].policy, agent.policy, scaling)
            m, v = (
                trees.flatten(trees.replace(lambda a: a.policy, old, policy))[0]
                for old, policy in zip(moments, policies, strict=True)
            )
            return m, v

        return memory._replace(adam=adam_in_units(memory.adam, change))

    def _weights(self) -> dict[str, Any]:
        """Return the weight a_i of every loss that is not dropped."""
        weights = {"policy": self.return_weight, "prediction": self.prediction_weight}
        return {name: weight for name, weight in weights.items() if isinstance(weight, Array) or weight > 0}

    def _adam(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_norm), optax.adam(self.learning_rate))

    def _evaluate(self, agent: Agent, batch: Batch, R: Steps) -> _Evaluation:
        """Compute states, distributions, baseline and both losses of an agent."""
        mask = jnp.asarray(batch.mask)
        states = truncated_unroll(agent.filter, batch, self.truncate)
        dists = distributions(agent.policy, states)
        q = jax.lax.stop_gradient(seen_by_baselines(agent.filter, states))
        b = linear_baseline(fit_baseline(q, R, mask, self.baseline_ridge), q)
        A = advantages(R, b, mask, normalise=self.normalise)
        losses = {
            "policy": policy_loss(dists, batch, A),
            "prediction": prediction_loss(agent.filter, states, batch, per=jnp.asarray(batch.ends)),
        }
        return _Evaluation(losses, states, dists, b)

    def _adam_step(self, gradients: Float[Array, "loss theta"], memory: VrpgMemory, of_filter: int) -> _AdamStep:
        """Combine the gradients of the losses and compute Adam's step; the first `of_filter` entries are the filter's."""
        norms = jnp.linalg.norm(gradients, axis=1)
        gradients = without_outliers(gradients, memory.v, self.max_norm)
        v = gradient_variance(memory.v, gradients, self.averaging_rate)
        alpha = jnp.asarray(list(self._weights().values())) * variance_weights(v)
        updates, adam = self._adam().update(alpha @ gradients, memory.adam)
        step = jnp.asarray(updates)
        step = step * jnp.where(jnp.arange(step.size) < of_filter, 1.0, self.policy_rate)
        return _AdamStep(step, norms, alpha, VrpgMemory(adam, v))

    def _diagnostics(self, found: Search, step: _AdamStep, old: _Evaluation) -> Diagnostics:
        diagnostics = {
            "kl": found.kl,
            "step_fraction": found.fraction,
            "skipped": 1.0 - found.accepted,
            "unsound": 1.0 - found.sound,
        }
        norms, alphas = (dict(zip(self._weights(), values, strict=True)) for values in (step.norms, step.alpha))
        for name, loss in old.losses.items():
            diagnostics[f"{name}_loss"] = loss
            diagnostics[f"{name}_gradient_norm"] = norms.get(name, jnp.zeros(()))
            diagnostics[f"{name}_weight"] = alphas.get(name, jnp.zeros(()))
        return diagnostics


class _Evaluation(NamedTuple):
    """An agent on a batch."""

    losses: dict[str, Float[Array, ""]]
    states: Float[Array, "row time q"]
    dists: AbstractDistribution
    baseline: Steps


class _AdamStep(NamedTuple):
    """A proposed step."""

    theta: Vector
    """The change of the parameters."""
    norms: Float[Array, " loss"]
    """‖∇ℓ_i‖ before clipping."""
    alpha: Float[Array, " loss"]
    memory: VrpgMemory


def without_outliers(
    gradients: Float[Array, "loss theta"], v: Float[Array, " loss"], max_norm: Scalar
) -> Float[Array, "loss theta"]:
    """Clip each ∇ℓ_i to the norm `max_norm` √v_i. Not in the paper.

    Gradients through long episodes explode now and then, to a thousand times their usual norm. Squared and averaged into
    v_i, one such gradient would make all others negligible for fifty steps.
    """
    norms = jnp.linalg.norm(gradients, axis=1)
    most = jnp.where(v > 0, max_norm * jnp.sqrt(v), jnp.inf)
    return gradients * jnp.minimum(1.0, most / jnp.maximum(norms, 1e-30))[:, None]


def gradient_variance(
    v: Float[Array, " loss"], gradients: Float[Array, "loss theta"], averaging_rate: Scalar
) -> Float[Array, " loss"]:
    """Return v_i⁽ⁿ⁾ = (1 − β) v_i⁽ⁿ⁻¹⁾ + β Σ_j ‖∇_{θ_j} ℓ_i‖², where β (`averaging_rate`) is the weight of the new value.

    The first value is taken with weight 1. v_i = 0 means that there was no gradient yet, or only gradients of 0.
    """
    new = jnp.sum(gradients**2, axis=1)
    return jnp.where(v > 0, (1 - averaging_rate) * v + averaging_rate * new, new)


def variance_weights(v: Float[Array, " loss"]) -> Float[Array, " loss"]:
    """Return α̃_i = v_i^{−1/2}, which scales the gradient of ℓ_i to unit variance. 0 for a gradient that is always 0."""
    return jnp.where(v == 0, 0.0, jax.lax.rsqrt(jnp.where(v == 0, 1.0, v)))


def truncated_unroll(filter: AbstractFilter, batch: Batch, length: int | None) -> Float[Array, "row time q"]:
    """Return the states of `unroll`, with gradients that flow back at most `length` steps.

    Rows are cut into pieces of `length` steps. If the batch holds the states that the filter computed while acting, every
    piece starts at its recorded state, and all pieces are computed in parallel.
    """
    rows, time = batch.shape
    if length is None or length >= time:
        return unroll(filter, batch)
    count = -(-time // length)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, [(0, 0), (0, count * length - time)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(rows, count, length, *x.shape[2:])

    # Every row begins with an episode, so the state before its first column is never used.
    before = jnp.broadcast_to(filter.init(), (rows, filter.size))
    pieces = trees.map(cut, batch)
    if pieces.states is not None:
        reached = jnp.concatenate([before[:, None], pieces.states[:, :-1, -1]], axis=1)
        flat = trees.map(lambda x: x.reshape(rows * count, *x.shape[2:]), (pieces, reached))
        states = unroll(filter, flat[0], jax.lax.stop_gradient(flat[1]))
    else:

        def piece(q: Array, batch: Batch) -> tuple[Array, Array]:
            states = unroll(filter, batch, jax.lax.stop_gradient(q))
            return states[:, -1], states

        states = trees.swap(jax.lax.scan(piece, before, trees.swap(pieces))[1])
    return states.reshape(rows, count * length, -1)[:, :time]
