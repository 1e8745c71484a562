"""Rewards-to-go, baselines, losses and divergences. Pure functions without optimiser state.

Batches are packed (see `Batch`). Sums run over steps inside the mask, and values of one episode of a row do not
affect another.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# The results of its linear algebra are unknown, too. Symbols of equations may be capital letters.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportConstantRedefinition=false

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rpsp.algorithms.policies import AbstractDistribution, AbstractPolicy, entropy, kl, log_prob
from rpsp.data.arrays import Scalar
from rpsp.data.batches import Batch, Steps, masked_mean
from rpsp.filters.base import AbstractFilter


def rewards_to_go(batch: Batch, discount: Scalar) -> Steps:
    """Compute the rewards-to-go, R_t = Σ_{j=t}^T γ^{j−t} r_j.

    The sum runs to the last step T of the episode, whether it terminated or was truncated.

    Args:
        batch: the episodes.
        discount: γ.
    """
    rewards = jnp.where(jnp.asarray(batch.mask), jnp.asarray(batch.rewards), 0.0)

    def back(later: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, end = at
        here = reward + discount * jnp.where(end, 0.0, later)
        return here, here

    by_time = (rewards.T, jnp.asarray(batch.ends).T)
    return jax.lax.scan(back, jnp.zeros(rewards.shape[0]), by_time, reverse=True)[1].T


def seen_by_baselines(filter: AbstractFilter, states: Float[Array, "row time q"]) -> Float[Array, "row time x"]:
    """Return what linear baselines see of the states of a filter: `AbstractFilter.baseline_view`."""
    view = filter.baseline_view
    return states if view is None else states @ jnp.asarray(view, jnp.float32)


def fit_baseline(
    states: Float[Array, "row time q"], returns: Steps, mask: Bool[Array, "row time"], ridge: float = 1e-5
) -> Float[Array, " q_1"]:
    """Fit the linear baseline by ridge regression, w_b = argmin_w mean_t (wᵀ[q_t, 1] − R_t)² + ridge ‖w̃‖².

    w̃ are the weights of the standardised states. The regression is done on standardised states, with means and not
    sums, so that the normal equations are safe in float32 for any scale of the states.

    Args:
        states: the pre-states q_t.
        returns: the rewards-to-go R_t.
        mask: True at steps.
        ridge: weight of the penalty.

    Returns:
        w_b, with the intercept last.
    """
    weight = mask / jnp.maximum(jnp.sum(mask), 1)
    q = jnp.where(mask[..., None], states, 0.0)
    R = jnp.where(mask, returns, 0.0)
    mean, mean_R = jnp.tensordot(weight, q, 2), jnp.sum(weight * R)
    z = q - mean
    scale = jnp.sqrt(jnp.tensordot(weight, z**2, 2))
    scale = jnp.where(scale > 1e-6, scale, 1.0)  # a coordinate that never moves explains nothing
    z = z / scale
    A = jnp.einsum("rt,rti,rtj->ij", weight, z, z) + ridge * jnp.eye(z.shape[-1])
    b = jnp.einsum("rt,rti->i", weight * (R - mean_R), z)
    w = jnp.linalg.solve(A, b) / scale
    return jnp.append(w, mean_R - mean @ w)


def linear_baseline(weights: Float[Array, " q_1"], states: Float[Array, "row time q"]) -> Steps:
    """Compute the baseline, b_t = w_bᵀ [q_t, 1].

    Args:
        weights: w_b, as `fit_baseline` returns it.
        states: the pre-states q_t.
    """
    return states @ weights[:-1] + weights[-1]


def advantages(returns: Steps, baseline: Steps, mask: Bool[Array, "row time"], *, normalise: bool = True) -> Steps:
    """Compute the advantages, A_t = R_t − b_t; 0 outside the mask.

    Args:
        returns: the rewards-to-go R_t.
        baseline: b_t.
        mask: True at steps.
        normalise: whether to standardise them over the batch.
    """
    A = returns - baseline
    if normalise:
        mean = masked_mean(A, mask)
        A = (A - mean) / jnp.sqrt(masked_mean((A - mean) ** 2, mask) + 1e-8)
    return jnp.where(mask, A, 0.0)


def explained_variance(returns: Steps, baseline: Steps, mask: Bool[Array, "row time"]) -> Float[Array, ""]:
    """Compute the explained variance, 1 − Var(R − b) / Var(R).

    It is 1 for a perfect baseline, and 0 for one that is no better than a constant.
    """

    def variance(x: Array) -> Array:
        return masked_mean((x - masked_mean(x, mask)) ** 2, mask)

    return 1 - variance(returns - baseline) / jnp.maximum(variance(returns), 1e-12)


def distributions(policy: AbstractPolicy, states: Float[Array, "row time q"]) -> AbstractDistribution:
    """Return π(· | q_t) at every step, as one distribution whose arrays have leading axes [row, time]."""
    return jax.vmap(jax.vmap(policy))(states)


def log_probs(dists: AbstractDistribution, actions: Float[Array, "row time act"]) -> Steps:
    """Return log π(a_t | q_t) at every step."""
    return jax.vmap(jax.vmap(log_prob))(dists, actions)


def policy_loss(dists: AbstractDistribution, batch: Batch, advantages: Steps) -> Float[Array, ""]:
    """Return ℓ₁ = −(1/M) Σ_{i=1}^M Σ_t log π(a_t | q_t) (R_t − b_t), over the M episodes of a batch."""
    scores = log_probs(dists, jnp.asarray(batch.drawn_actions)) * jax.lax.stop_gradient(advantages)
    return -masked_mean(scores, jnp.asarray(batch.mask), per=jnp.asarray(batch.ends))


def surrogate(
    dists: AbstractDistribution, old: AbstractDistribution, batch: Batch, advantages: Steps
) -> Float[Array, ""]:
    """Compute the objective of TRPO, L(θ) = mean_t π_θ(a_t | q_t) / π_old(a_t | q_t) · A_t.

    Args:
        dists: π_θ(· | q_t).
        old: π_old(· | q_t).
        batch: the episodes, with the drawn actions a_t.
        advantages: A_t.
    """
    actions, mask = jnp.asarray(batch.drawn_actions), jnp.asarray(batch.mask)
    log_ratio = jnp.where(mask, log_probs(dists, actions) - log_probs(old, actions), 0.0)
    return masked_mean(jnp.exp(log_ratio) * advantages, mask)


def mean_kl(
    old: AbstractDistribution,
    new: AbstractDistribution,
    mask: Bool[Array, "row time"],
    *,
    per: Bool[Array, "row time"] | None = None,
) -> Float[Array, ""]:
    """Return (1/M) Σ_t KL(π_old(· | q_t) ‖ π_new(· | q_t)) over all steps t.

    Args:
        old: π_old at every step.
        new: π_new at every step.
        mask: True at steps, False at padding.
        per: flags that are counted to get M, as in `masked_mean`. `per=batch.ends` gives the KL summed over an episode,
            averaged over episodes. Default: the mean per sample.
    """
    return masked_mean(jax.vmap(jax.vmap(kl))(old, new), mask, per=per)


def mean_entropy(dists: AbstractDistribution, mask: Bool[Array, "row time"]) -> Float[Array, ""]:
    """mean_t H(π(· | q_t))."""
    return masked_mean(jax.vmap(jax.vmap(entropy))(dists), mask)


def gae(batch: Batch, values: Steps, after: Steps, discount: Scalar, decay: Scalar) -> Steps:
    """Compute generalised advantages (Schulman et al. 2016); 0 outside the mask.

        δ_t = r_t + γ V(q_{t+1}) − V(q_t)
        A_t = δ_t + γλ A_{t+1}

    After the last step T of an episode, A_{T+1} = 0, and V(q_{T+1}) is 0 if the episode terminated and `after` if
    it was truncated. A + V are the λ-returns. With λ = 1 and after = 0, A_t = R_t − V(q_t).

    Args:
        batch: the episodes.
        values: V(q_t).
        after: the value of the state after each step. Used at truncated steps only.
        discount: γ.
        decay: λ.
    """
    mask = jnp.asarray(batch.mask)
    rewards, values = (jnp.where(mask, jnp.asarray(x), 0.0) for x in (batch.rewards, values))
    # A step that ended its episode is followed by this value, never by that of its neighbour in the row.
    after = jnp.where(jnp.asarray(batch.truncated), after, 0.0)

    def back(later: tuple[Array, Array], at: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        A, V_next = later
        r, V, V_after, end = at
        delta = r + discount * jnp.where(end, V_after, V_next) - V
        A = delta + discount * decay * jnp.where(end, 0.0, A)
        return (A, V), A

    by_time = tuple(x.T for x in (rewards, values, after, jnp.asarray(batch.ends)))
    nothing = jnp.zeros(rewards.shape[0], values.dtype)
    A = jax.lax.scan(back, (nothing, nothing), by_time, reverse=True)[1].T
    return jnp.where(mask, A, 0.0)


def clipped_surrogate(
    log_ratio: Float[Array, " step"], advantages: Float[Array, " step"], clip: Scalar
) -> Float[Array, ""]:
    """Compute the objective of PPO, mean_t min(ρ_t A_t, clip(ρ_t, 1 − ε, 1 + ε) A_t).

    ρ_t is the probability ratio π_θ(a_t | q_t) / π_old(a_t | q_t).

    The gradient of a step is 0 if its ratio is outside 1 ± ε, on the side to which its advantage would move it.

    Args:
        log_ratio: log ρ_t.
        advantages: A_t.
        clip: ε.
    """
    ratio = jnp.exp(log_ratio)
    return jnp.mean(jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - clip, 1 + clip) * advantages))
