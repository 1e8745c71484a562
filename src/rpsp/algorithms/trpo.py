"""Trust-region policy optimisation (TRPO; Schulman et al. 2015).

A natural-gradient step, found by conjugate gradient on Fisher-vector products. The step is shortened until the KL is
inside the trust region and the surrogate has improved. If the filter is frozen, the states of a batch are computed once.
Otherwise states depend on the parameters, and Fisher-vector products go through time.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# The results of its differentiation, loops and linear algebra are unknown, too.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

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
from rpsp.algorithms.line_search import Search, line_search
from rpsp.algorithms.objectives import (
    advantages,
    distributions,
    explained_variance,
    fit_baseline,
    linear_baseline,
    mean_entropy,
    mean_kl,
    rewards_to_go,
    seen_by_baselines,
    surrogate,
)
from rpsp.algorithms.policies import AbstractDistribution, Agent
from rpsp.data import trees
from rpsp.data.arrays import Scalar
from rpsp.data.batches import Batch
from rpsp.errors import UsageError
from rpsp.filters.base import unroll

Product = Callable[[Vector], Vector]
KlPer = Literal["sample", "episode"]


class Trpo(AbstractAlgorithm):
    """Trust-region policy optimisation: maximise L(θ) subject to D(θ) ≤ ε. Keeps no memory.

    L is the `surrogate` objective. A step that is not finite, or that no backtracking makes acceptable, is skipped.

    D is (1/M) Σ_t KL(π_old(· | q_t) ‖ π_θ(· | q_t)) over all steps t of a batch, where M is the number of steps, or of
    episodes with `kl_per="episode"` (the paper's trust region). The Fisher matrix F = ∇² D, the length of the step and the
    line search use the same D.

    With T the mean length of the episodes of a batch, D per episode is T times D per sample, and so is F. The step is
    s = √(2ε / xᵀ(F + λI)x) x with x = (F + λI)⁻¹ ∇L, where λ is the damping. If F, λ and ε are all multiplied by T, then x
    is divided by T, xᵀ(F + λI)x is divided by T, and s stays the same. Hence "episode" with ε and λ takes the same step as
    "sample" with ε/T and λ/T: on long episodes the same numbers mean a narrower trust region and less damping.
    """

    max_kl: float = 0.01
    """ε: maximum KL divergence between old and new policy in one step of TRPO, per sample or per episode (`kl_per`)."""
    kl_per: KlPer = "sample"
    """Whether `max_kl` and `damping` refer to the mean KL per sample, or to the KL summed over an episode (the paper)."""
    cg_steps: int = 10
    """Number of iterations of conjugate gradient."""
    damping: float = 0.1
    """Damping added to the diagonal of the Fisher matrix."""
    backtracks: int = 10
    """Maximum number of times that a step is shortened before it is skipped."""
    shrink: float = 0.8
    """Factor by which TRPO shortens a step each time."""
    discount: float = 0.99
    """Discount factor γ."""
    normalise: bool = True
    """Whether advantages are scaled to zero mean and unit variance."""
    baseline_ridge: float = 1e-5
    """Ridge of the linear baseline."""
    moves: Select = policy_only
    """Which parameters change."""

    def __check_init__(self) -> None:
        check_positive(self, "max_kl", "damping", "cg_steps")
        check_not_negative(self, "backtracks", "baseline_ridge")
        check_fraction(self, discount=0.99)
        if self.kl_per not in get_args(KlPer):
            raise UsageError(f"kl_per: {self.kl_per!r} is not one of {', '.join(get_args(KlPer))}.")
        if not 0 < self.shrink < 1:
            raise UsageError(f"shrink: {self.shrink} is not between 0 and 1; a usual value is 0.8.")

    def select(self, agent: Agent) -> Any:
        """Return a tree of booleans: which parameters change."""
        return self.moves(agent)

    def init(self, agent: Agent, *, key: PRNGKeyArray) -> tuple[()]:
        """Return an empty memory."""
        return ()

    @eqx.filter_jit
    def step(
        self, agent: Agent, memory: tuple[()], batch: Batch, *, key: PRNGKeyArray
    ) -> tuple[Agent, tuple[()], Diagnostics]:
        """Take one natural-gradient step. Compiled once for every shape of batch."""
        batch = trees.as_jax(batch)
        mask = jnp.asarray(batch.mask)
        which = self.select(agent)
        moving, fixed = trees.partition(agent, which)
        theta, restore = trees.flatten(moving)
        filter_moves = any(jax.tree.leaves(which.filter))
        known = None if filter_moves else batch.states
        states = unroll(agent.filter, batch) if known is None else jnp.asarray(known)

        def act(theta: Vector) -> AbstractDistribution:
            """π_θ(· | q_t) at every step."""
            agent = trees.combine(restore(theta), fixed)
            return distributions(agent.policy, unroll(agent.filter, batch) if filter_moves else states)

        returns = rewards_to_go(batch, self.discount)
        seen = seen_by_baselines(agent.filter, states)
        baseline = linear_baseline(fit_baseline(seen, returns, mask, self.baseline_ridge), seen)
        A = advantages(returns, baseline, mask, normalise=self.normalise)
        old, J = jax.linearize(act, theta)
        J_transposed = jax.linear_transpose(J, theta)
        before, slope = jax.value_and_grad(surrogate)(old, old, batch, A)
        (gradient,) = J_transposed(slope)
        per = jnp.asarray(batch.ends) if self.kl_per == "episode" else None
        fisher = fisher_product(old, J, J_transposed, mask, self.damping, per=per)
        direction, F_direction = conjugate_gradient(fisher, gradient, self.cg_steps)
        # The largest step whose KL, to second order and with the damping, is ε: s = √(2ε / xᵀ(F + λI)x) x.
        length = jnp.sqrt(2 * self.max_kl / jnp.maximum(direction @ F_direction, 1e-30))

        def judge(theta: Vector) -> tuple[Array, Array]:
            new = act(theta)
            return surrogate(new, old, batch, A) - before, mean_kl(old, new, mask, per=per)

        found = line_search(judge, theta, length * direction, self.max_kl, self.backtracks, self.shrink)
        agent = trees.combine(restore(found.theta), fixed)
        diagnostics = _diagnostics(found, jnp.linalg.norm(gradient), agent) | {
            "explained_variance": explained_variance(returns, baseline, mask),
            "entropy": mean_entropy(old, mask),
        }
        return agent, memory, diagnostics


def _diagnostics(found: Search, gradient_norm: Array, new: Agent) -> Diagnostics:
    diagnostics = {
        "kl": found.kl,
        "surrogate_improvement": found.gain,
        "step_fraction": found.fraction,
        "skipped": 1.0 - found.accepted,
        # The norm as well: if it is infinite, conjugate gradient does not start.
        "unsound": 1.0 - (found.sound & jnp.isfinite(gradient_norm)),
        "gradient_norm": gradient_norm,
    }
    log_std = getattr(new.policy, "log_std", None)
    return diagnostics if log_std is None else diagnostics | {"log_std": jnp.mean(log_std)}


def fisher_product(
    old: AbstractDistribution,
    J: Callable[[Vector], Any],
    J_transposed: Callable[[Any], tuple[Vector]],
    mask: Bool[Array, "row time"],
    damping: Scalar,
    *,
    per: Bool[Array, "row time"] | None = None,
) -> Product:
    """Return v ↦ (F + damping I) v, where F = ∇²_θ D(θ) at θ = θ_old and D is `mean_kl(π_old, π_θ)`.

    At θ_old the gradient of the KL with respect to the parameters η of the distributions is 0. Hence its Hessian is exactly
    F = Jᵀ H J with J = ∂η/∂θ and H = ∂²KL/∂η².

    Args:
        old: π_old at every step.
        J: product with J, from `jax.linearize`; computed once for all products.
        J_transposed: product with Jᵀ.
        mask: True at steps, False at filler.
        damping: added to the diagonal of F.
        per: as in `mean_kl`.
    """

    def product(v: Vector) -> Vector:
        def divergence(new: AbstractDistribution) -> Array:
            return mean_kl(old, new, mask, per=per)

        slope = jax.grad(divergence)
        H_J_v = jax.jvp(slope, (old,), (J(v),))[1]
        return J_transposed(H_J_v)[0] + damping * v

    return product


def conjugate_gradient(product: Product, b: Vector, steps: int, tolerance: float = 1e-10) -> tuple[Vector, Vector]:
    """Return x ≈ A⁻¹ b, and A x = b − residual, from products v ↦ A v with a positive definite A.

    Stops early at a squared residual of `tolerance` ‖b‖².
    """

    def unfinished(carry: tuple[Any, Vector, Vector, Vector, Array]) -> Array:
        i, _, _, _, rr = carry
        return (i < steps) & (rr > tolerance * (b @ b))

    def iterate(carry: tuple[Any, Vector, Vector, Vector, Array]) -> tuple[Any, Vector, Vector, Vector, Array]:
        i, x, r, p, rr = carry
        A_p = product(p)
        step = rr / (p @ A_p)
        x, r = x + step * p, r - step * A_p
        rr, old = r @ r, rr
        return i + 1, x, r, r + rr / old * p, rr

    _, x, r, _, _ = jax.lax.while_loop(unfinished, iterate, (0, jnp.zeros_like(b), b, b, b @ b))
    return x, b - r
