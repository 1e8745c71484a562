"""The joint variance-reduced policy gradient (VRPG) of the paper."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from rpsp.algorithms.adam import adam_in_units, policy_moments_in_units
from rpsp.algorithms.base import Select, UpdateRule, Vector, everything
from rpsp.algorithms.line_search import line_search
from rpsp.algorithms.objectives import (
    advantages,
    distributions,
    explained_variance,
    fit_baseline,
    linear_baseline,
    mean_kl,
    policy_loss,
    rewards_to_go,
)
from rpsp.algorithms.policies import Agent
from rpsp.data.arrays import Scalar
from rpsp.data.batches import Batch
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, prediction_loss, unroll


class VrpgSettings(eqx.Module):
    """What the joint gradient is made of, and how far a step goes."""

    learning_rate: float = 1e-3
    """η: Adam's."""
    return_weight: float = 1.0
    """a₁: of the policy loss, after its gradient is brought to unit variance. 0 drops that loss."""
    prediction_weight: float = 1.0
    """a₂: of the prediction loss, likewise. 0 drops it: the paper's reactive_PSR."""
    averaging_rate: float = 0.1
    """β: weight of the new value in the running variance of a gradient."""
    discount: float = 0.99
    """γ."""
    normalise: bool = True
    """Whether advantages are brought to zero mean and unit variance."""
    truncate: int | None = None
    """Steps that gradients flow back through; None for whole episodes."""
    max_norm: float = 3.0
    """Each loss's gradient is cut to so many times its usual norm, and the joint one, of unit variance, to this norm."""
    select: Select = everything
    """Which parameters move."""
    policy_rate: float = 1.0
    """Ours, not the paper's: how many times as far as the filter's, measured by Adam's steps, the policy's parameters go."""
    max_kl: float | None = None
    """Ours, not the paper's: the most that filter and policy together may change in one step, as mean KL per sample."""
    backtracks: int = 10
    """How often a step outside that trust region is halved before it is given up."""
    baseline_ridge: float = 1e-5
    """Ridge of the linear baseline."""


class VrpgMemory(NamedTuple):
    """What VRPG remembers: Adam's moments, and the running variance of each loss's gradient (0 before the first)."""

    adam: Any
    v: Float[Array, " loss"]


def vrpg(learning_rate: float = VrpgSettings.learning_rate, **more: Any) -> UpdateRule:
    """Adam on ∇L = α₁ ∇ℓ₁ + α₂ ∇ℓ₂, states recomputed so that gradients go through time; `more` are other `VrpgSettings`.

    `max_kl` (ours) shortens a step until the policy, by which filter and reactive policy are meant together, has moved
    no further than that, and else gives it up; Adam remembers the gradient all the same. A step that is not finite is
    skipped, and nothing is remembered of it.
    """
    settings = VrpgSettings(learning_rate, **more)
    for name in ("learning_rate", "max_norm", "policy_rate", "max_kl", "truncate"):
        if (value := getattr(settings, name)) is not None and not value > 0:
            raise UsageError(f"{name}={value}: must be greater than 0.")
    if not 0 < settings.averaging_rate <= 1:
        raise UsageError(f"averaging_rate={settings.averaging_rate}: must lie between 0 and 1, as in 0.1.")
    weights = settings.return_weight, settings.prediction_weight
    if min(weights) < 0 or max(weights) == 0:
        raise UsageError(
            f"return_weight={weights[0]}, prediction_weight={weights[1]}: neither may be negative, and one must be greater "
            "than 0."
        )
    return UpdateRule(
        partial(_init, settings),
        eqx.Partial(_step, settings),
        "vrpg",
        settings.select,
        in_units=partial(_in_units, settings),
    )


def _weights(settings: VrpgSettings) -> dict[str, Any]:
    """The user's weight of every loss that is not dropped."""
    weights = {"policy": settings.return_weight, "prediction": settings.prediction_weight}
    return {name: weight for name, weight in weights.items() if isinstance(weight, Array) or weight > 0}


def _adam(settings: VrpgSettings) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(settings.max_norm), optax.adam(settings.learning_rate))


def _init(settings: VrpgSettings, agent: Agent) -> VrpgMemory:
    theta, _ = ravel_pytree(eqx.filter(agent, settings.select(agent)))
    return VrpgMemory(_adam(settings).init(theta), jnp.zeros(len(_weights(settings)), theta.dtype))


def _in_units(settings: VrpgSettings, agent: Agent, memory: VrpgMemory, units: Scaling) -> VrpgMemory:
    """Adam's moments for a policy whose input is in other units; without effect where only the filter moves."""
    restore = ravel_pytree(eqx.filter(agent, settings.select(agent)))[1]

    def change(first: Vector, second: Vector) -> tuple[Vector, Vector]:
        moments = restore(first), restore(second)
        policies = policy_moments_in_units(moments[0].policy, moments[1].policy, agent.policy, units)
        m, v = (
            ravel_pytree(eqx.tree_at(lambda a: a.policy, old, policy))[0]
            for old, policy in zip(moments, policies, strict=True)
        )
        return m, v

    return memory._replace(adam=adam_in_units(memory.adam, change))


@eqx.filter_jit
def _step(
    settings: VrpgSettings, agent: Agent, state: VrpgMemory, batch: Batch
) -> tuple[Agent, VrpgMemory, dict[str, Array]]:
    """One compiled step. Parameters and batch are arguments: it compiles once for every shape of batch."""
    batch = jax.tree.map(jnp.asarray, batch)
    mask, ends = jnp.asarray(batch.mask), jnp.asarray(batch.ends)
    which = settings.select(agent)
    moving, fixed = eqx.partition(agent, which)
    theta, restore = ravel_pytree(moving)
    weights = _weights(settings)
    R = rewards_to_go(batch, settings.discount)

    def losses(theta: Vector) -> tuple[Float[Array, " loss"], Any]:
        """(ℓ₁, ℓ₂), those that are not dropped; and on the side what is needed afterwards."""
        agent = eqx.combine(restore(theta), fixed)
        states = truncated_unroll(agent.filter, batch, settings.truncate)
        dists = distributions(agent.policy, states)
        q = jax.lax.stop_gradient(states)
        b = linear_baseline(fit_baseline(q, R, mask, settings.baseline_ridge), q)
        A = advantages(R, b, mask, normalise=settings.normalise)
        both = {
            "policy": policy_loss(dists, batch, A),
            "prediction": prediction_loss(agent.filter, states, batch, per=ends),
        }
        return jnp.stack([both[name] for name in weights]), (both, states, dists, b)

    values, pull_back, (both, states, old, b) = jax.vjp(losses, theta, has_aux=True)
    (gradients,) = jax.vmap(pull_back)(jnp.eye(len(values)))  # both at once, in one scan backwards
    norms = jnp.linalg.norm(gradients, axis=1)
    gradients = without_outliers(gradients, state.v, settings.max_norm)
    v = gradient_variance(state.v, gradients, settings.averaging_rate)
    alpha = jnp.asarray(list(weights.values())) * variance_weights(v)
    updates, adam = _adam(settings).update(alpha @ gradients, state.adam)
    of_filter = ravel_pytree(moving.filter)[0].size  # these come first
    step = jnp.asarray(updates) * jnp.where(jnp.arange(theta.size) < of_filter, 1.0, settings.policy_rate)
    finite = jnp.all(jnp.isfinite(jnp.concatenate([values, norms, v, step])))  # a norm overflows before its numbers do

    def judge(theta: Vector) -> tuple[Array, Array]:
        new = eqx.combine(restore(theta), fixed)
        q = unroll(new.filter, batch) if any(jax.tree.leaves(which.filter)) else states
        return jnp.where(finite, 1.0, jnp.nan), mean_kl(old, distributions(new.policy, q), mask)

    # Without a trust region there is one candidate, refused only if it is not finite.
    region = (jnp.inf, 0) if settings.max_kl is None else (settings.max_kl, settings.backtracks)
    found = line_search(judge, theta, step, *region, shrink=0.5)
    memory = jax.tree.map(lambda new, old: jnp.where(finite, new, old), VrpgMemory(adam, v), state)
    diagnostics = {
        "kl": found.kl,
        "step_fraction": found.fraction,
        "skipped": 1.0 - found.accepted,
        "unsound": 1.0 - found.sound,
        "explained_variance": explained_variance(R, b, mask),
    }
    found_norms, alphas = (dict(zip(weights, values, strict=True)) for values in (norms, alpha))
    for name, loss in both.items():
        diagnostics[f"{name}_loss"] = loss
        diagnostics[f"{name}_gradient_norm"] = found_norms.get(name, jnp.zeros(()))
        diagnostics[f"{name}_weight"] = alphas.get(name, jnp.zeros(()))
    return eqx.combine(restore(found.theta), fixed), memory, diagnostics


def without_outliers(
    gradients: Float[Array, "loss theta"], v: Float[Array, " loss"], max_norm: Scalar
) -> Float[Array, "loss theta"]:
    """Each ∇ℓ_i, cut to `max_norm` √v_i: a gradient through a long time explodes now and then, to a thousand times its size.

    Ours. Squared and averaged into v_i, one such gradient would make every other too small to matter for fifty steps.
    """
    norms = jnp.linalg.norm(gradients, axis=1)
    most = jnp.where(v > 0, max_norm * jnp.sqrt(v), jnp.inf)
    return gradients * jnp.minimum(1.0, most / jnp.maximum(norms, 1e-30))[:, None]


def gradient_variance(
    v: Float[Array, " loss"], gradients: Float[Array, "loss theta"], averaging_rate: Scalar
) -> Float[Array, " loss"]:
    """v_i⁽ⁿ⁾ = (1 − β) v_i⁽ⁿ⁻¹⁾ + β Σ_j ‖∇_{θ_j} ℓ_i‖²: the new value's weight is β.

    The first value is taken whole. A v of 0 says that there was none yet, or none that was not zero.
    """
    new = jnp.sum(gradients**2, axis=1)
    return jnp.where(v > 0, (1 - averaging_rate) * v + averaging_rate * new, new)


def variance_weights(v: Float[Array, " loss"]) -> Float[Array, " loss"]:
    """α̃_i = v_i^{−1/2}: the weight that gives the gradient of ℓ_i unit variance. 0 for a gradient that is always 0."""
    return jnp.where(v == 0, 0.0, jax.lax.rsqrt(jnp.where(v == 0, 1.0, v)))


def truncated_unroll(filter: AbstractFilter, batch: Batch, length: int | None) -> Float[Array, "row time q"]:
    """The states of `unroll`, through which gradients flow back at most `length` steps: rows are cut at its multiples.

    Where the batch knows the states that were acted on, which are this filter's, every piece begins at its own: all
    pieces at once, `length` steps instead of a row's.
    """
    rows, time = batch.shape
    if length is None or length >= time:
        return unroll(filter, batch)
    count = -(-time // length)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, [(0, 0), (0, count * length - time)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(rows, count, length, *x.shape[2:])

    # Every row begins with an episode, so what stands before its first column does not matter.
    before = jnp.broadcast_to(filter.init(), (rows, filter.size))
    pieces = jax.tree.map(cut, batch)
    if batch.states is not None:
        reached = jnp.concatenate([before[:, None], pieces.states[:, :-1, -1]], axis=1)
        flat = jax.tree.map(lambda x: x.reshape(rows * count, *x.shape[2:]), (pieces, reached))
        states = unroll(filter, flat[0], jax.lax.stop_gradient(flat[1]))
    else:

        def piece(q: Array, batch: Batch) -> tuple[Array, Array]:
            states = unroll(filter, batch, jax.lax.stop_gradient(q))
            return states[:, -1], states

        states = jax.lax.scan(piece, before, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), pieces))[1]
        states = jnp.swapaxes(states, 0, 1)
    return states.reshape(rows, count * length, -1)[:, :time]
