"""Trust-region policy optimisation (Schulman et al. 2015) as an update rule. Knows no filter by name.

A natural-gradient step, found by conjugate gradient on Fisher-vector products and shortened until the mean KL is inside
the trust region and the surrogate has improved. With the filter frozen, the states of a batch are computed once;
otherwise states depend on the parameters, and Fisher-vector products go through time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool

from rpsp.algorithms.base import Select, UpdateRule, Vector, policy_only
from rpsp.algorithms.line_search import line_search
from rpsp.algorithms.objectives import (
    advantages,
    distributions,
    explained_variance,
    fit_baseline,
    linear_baseline,
    mean_entropy,
    mean_kl,
    rewards_to_go,
    surrogate,
)
from rpsp.algorithms.policies import AbstractDistribution, Agent
from rpsp.data.arrays import Scalar
from rpsp.data.batches import Batch
from rpsp.errors import UsageError
from rpsp.filters.base import unroll

Product = Callable[[Vector], Vector]


class TrpoSettings(eqx.Module):
    """How far and how carefully a step goes."""

    max_kl: float = 0.01
    """ε: the most that the policy may change in one step, as mean KL per sample."""
    cg_steps: int = 10
    """Conjugate-gradient iterations."""
    damping: float = 0.1
    """Added to the Fisher matrix's diagonal."""
    backtracks: int = 10
    """How often a step that is refused is shortened before it is given up."""
    shrink: float = 0.8
    """By how much it is shortened each time."""
    discount: float = 0.99
    """γ."""
    normalise: bool = True
    """Whether advantages are brought to zero mean and unit variance."""
    baseline_ridge: float = 1e-5
    """Ridge of the linear baseline."""
    select: Select = policy_only
    """Which parameters move."""


def trpo(max_kl: float = TrpoSettings.max_kl, **more: Any) -> UpdateRule:
    """The trust-region rule; `more` are the other fields of `TrpoSettings`. It remembers nothing between steps."""
    settings = TrpoSettings(max_kl, **more)
    for name in ("max_kl", "damping", "cg_steps"):
        if not getattr(settings, name) > 0:
            raise UsageError(f"{name}={getattr(settings, name)}: must be greater than 0.")
    if not 0 < settings.shrink < 1:
        raise UsageError(f"shrink={settings.shrink}: must lie between 0 and 1, as in 0.8.")
    return UpdateRule(lambda agent: (), eqx.Partial(_step, settings), "trpo", settings.select)


@eqx.filter_jit
def _step(settings: TrpoSettings, agent: Agent, state: tuple, batch: Batch) -> tuple[Agent, tuple, dict[str, Array]]:
    """One compiled step. Parameters and batch are arguments: it compiles once for every shape of batch."""
    batch = jax.tree.map(jnp.asarray, batch)
    mask = jnp.asarray(batch.mask)
    which = settings.select(agent)
    moving, fixed = eqx.partition(agent, which)
    theta, restore = ravel_pytree(moving)
    filter_moves = any(jax.tree.leaves(which.filter))
    known = None if filter_moves else batch.states
    states = unroll(agent.filter, batch) if known is None else jnp.asarray(known)

    def act(theta: Vector) -> AbstractDistribution:
        """π_θ(· | q_t) at every step."""
        agent = eqx.combine(restore(theta), fixed)
        return distributions(agent.policy, unroll(agent.filter, batch) if filter_moves else states)

    returns = rewards_to_go(batch, settings.discount)
    baseline = linear_baseline(fit_baseline(states, returns, mask, settings.baseline_ridge), states)
    A = advantages(returns, baseline, mask, normalise=settings.normalise)
    old, J = jax.linearize(act, theta)
    J_transposed = jax.linear_transpose(J, theta)
    before, slope = jax.value_and_grad(surrogate)(old, old, batch, A)
    (gradient,) = J_transposed(slope)
    fisher = fisher_product(old, J, J_transposed, mask, settings.damping)
    direction, F_direction = conjugate_gradient(fisher, gradient, settings.cg_steps)
    # The largest step whose KL, to second order, is ε: s = √(2ε / xᵀFx) x.
    length = jnp.sqrt(2 * settings.max_kl / jnp.maximum(direction @ F_direction, 1e-30))

    def judge(theta: Vector) -> tuple[Array, Array]:
        new = act(theta)
        return surrogate(new, old, batch, A) - before, mean_kl(old, new, mask)

    norm = jnp.linalg.norm(gradient)
    found = line_search(judge, theta, length * direction, settings.max_kl, settings.backtracks, settings.shrink)
    agent = eqx.combine(restore(found.theta), fixed)
    diagnostics = {
        "kl": found.kl,
        "surrogate_improvement": found.gain,
        "step_fraction": found.fraction,
        "skipped": 1.0 - found.accepted,
        # The norm as well: where it is infinite, conjugate gradient does not begin.
        "unsound": 1.0 - (found.sound & jnp.isfinite(norm)),
        "gradient_norm": norm,
        "explained_variance": explained_variance(returns, baseline, mask),
        "entropy": mean_entropy(old, mask),
    }
    log_std = getattr(agent.policy, "log_std", None)
    if log_std is not None:
        diagnostics["log_std"] = jnp.mean(log_std)
    return agent, state, diagnostics


def fisher_product(
    old: AbstractDistribution,
    J: Callable[[Vector], Any],
    J_transposed: Callable[[Any], tuple[Vector]],
    mask: Bool[Array, "row time"],
    damping: Scalar,
) -> Product:
    """v ↦ (F + damping I) v, where F = ∇²_θ mean_t KL(π_old ‖ π_θ) at θ_old.

    Where the two agree the KL has no gradient in the distributions' own parameters η, so its Hessian is exactly
    F = Jᵀ H J with J = ∂η/∂θ and H = ∂²KL/∂η². J and Jᵀ are those of `jax.linearize`, worked out once and not at every
    product.
    """

    def product(v: Vector) -> Vector:
        slope = jax.grad(lambda new: mean_kl(old, new, mask))
        H_J_v = jax.jvp(slope, (old,), (J(v),))[1]
        return J_transposed(H_J_v)[0] + damping * v

    return product


def conjugate_gradient(product: Product, b: Vector, steps: int, tolerance: float = 1e-10) -> tuple[Vector, Vector]:
    """x ≈ A⁻¹ b from products v ↦ A v, A positive definite; and A x, which is b less the residual.

    Stops early at a squared residual of `tolerance` ‖b‖².
    """

    def unfinished(carry: tuple) -> Array:
        i, _, _, _, rr = carry
        return (i < steps) & (rr > tolerance * (b @ b))

    def iterate(carry: tuple) -> tuple:
        i, x, r, p, rr = carry
        A_p = product(p)
        step = rr / (p @ A_p)
        x, r = x + step * p, r - step * A_p
        rr, old = r @ r, rr
        return i + 1, x, r, r + rr / old * p, rr

    _, x, r, _, _ = jax.lax.while_loop(unfinished, iterate, (0, jnp.zeros_like(b), b, b, b @ b))
    return x, b - r
