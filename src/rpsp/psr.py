"""Predictive states: the paper's filter (kernel Bayes rule) and its discrete case (Bayes rule). No fitting.

Both update a state in the paper's two steps: *extend* it linearly to a window one step longer, p_t = W_ext q_t, then
*condition* on what was done and seen, q_{t+1} = f_cond(p_t, a_t, o_t).
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from rpsp.features import FeatureMap
from rpsp.filters import AbstractFilter, constant
from rpsp.linalg import kernel_bayes_weights
from rpsp.trajectories import Numbers


class KernelBayesFilter(AbstractFilter):
    """The paper's RFFPSR: q_t encodes E[ψ_o(o_{t:t+k-1}) | do ψ_a(a_{t:t+k-1})], conditioned by kernel Bayes rule.

    θ_PSR = {q0, W_ext_xi, W_ext_o, W_pred} (and W_hor, used only for refinement); everything else is constant.
    Matrices that are contracted with a vector at every step are stored with that vector's index first.
    """

    q0: Float[Numbers, " q"]
    W_ext_xi: Float[Numbers, "q xi_o_xi_a"]
    """W_ext^ξ: state → operator from extended future actions to extended future observations."""
    W_ext_o: Float[Numbers, "q oo_phi_a"]
    """W_ext^o: state → operator from φ_a to the (projected) covariance of φ_o."""
    W_pred: Float[Numbers, "q_phi_a obs"]
    """E[o_t | q_t, a_t] = W_predᵀ (q_t ⊗ φ_a(a_t))."""
    W_hor: Float[Numbers, "q_psi_a k_obs"]
    """E[o_{t:t+k-1} | q_t, a_{t:t+k-1}] = W_horᵀ (q_t ⊗ ψ_a(a_{t:t+k-1}))."""

    future_length: int = eqx.field(static=True)
    """k."""
    phi_o: FeatureMap = constant()
    phi_a: FeatureMap = constant()
    psi_a: FeatureMap = constant()
    U_xi_o: Float[Numbers, "phi_o psi_o xi_o"] = constant()
    """ξ_o = U_ξoᵀ (ψ_o(t+1) ⊗ φ_o(t)), as a tensor."""
    U_xi_a: Float[Numbers, "phi_a xi_a psi_a"] = constant()
    """ξ_a = U_ξaᵀ (ψ_a(t+1) ⊗ φ_a(t)), as a tensor."""
    U_oo: Float[Numbers, "oo phi_o phi_o"] = constant()
    """Projected covariances back to symmetric matrices."""
    U_q: Float[Numbers, "psi_o psi_a q"] = constant()
    """The denoised operator C_{ψo|ψa} to the state's coordinates."""
    ridge: Float[Numbers, ""] = constant()
    """λ of kernel Bayes rule: the main stabiliser."""
    low: Float[Numbers, " q"] = constant()
    high: Float[Numbers, " q"] = constant()
    """The box that states are clamped to: a norm clamp would do nothing, the constant feature dominates the norm."""

    def init(self) -> Float[Array, " q"]:
        return jnp.asarray(self.q0)

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """q_{t+1} = f_cond(W_ext q_t, a_t, o_t)."""
        return self.advance(q, self.prepare(action, observation))

    def prepare(self, action: Array, observation: Array) -> tuple[Float[Array, " phi_a"], Float[Array, " phi_o"]]:
        """φ_a(a_t) and φ_o(o_t)."""
        return self.phi_a(action), self.phi_o(observation)

    def advance(self, q: Array, prepared: tuple[Array, Array]) -> Float[Array, " q"]:
        phi_a, phi_o = prepared
        C_ex, C_oo = self.extend(q, phi_a)
        return self.condition(C_ex, C_oo, phi_a, phi_o)

    def extend(
        self, q: Float[Array, " q"], phi_a: Float[Array, " phi_a"]
    ) -> tuple[Float[Array, "xi_o xi_a"], Float[Array, "phi_o phi_o"]]:
        """p_t = W_ext q_t: the extended operator p^ξ, and the covariance p^o of φ_o given this action."""
        xi_o, xi_a, oo = self.U_xi_o.shape[2], self.U_xi_a.shape[1], self.U_oo.shape[0]
        p_xi = (q @ self.W_ext_xi).reshape(xi_o, xi_a)
        p_o = (q @ self.W_ext_o).reshape(oo, -1) @ phi_a
        return p_xi, jnp.tensordot(p_o, self.U_oo, 1)

    def condition(
        self,
        C_ex: Float[Array, "xi_o xi_a"],
        C_oo: Float[Array, "phi_o phi_o"],
        phi_a: Float[Array, " phi_a"],
        phi_o: Float[Array, " phi_o"],
    ) -> Float[Array, " q"]:
        """p^ξ ×_{φo} v ×_{φa} φ_a with kernel Bayes weights v = (C_oo² + λI)⁻¹ C_oo φ_o, projected back to a state."""
        C_a = C_ex @ jnp.tensordot(phi_a, self.U_xi_a, 1)
        v = kernel_bayes_weights(C_oo, phi_o, self.ridge)
        operator = jnp.tensordot(v, self.U_xi_o, 1) @ C_a
        return jnp.clip(jnp.tensordot(operator, self.U_q, 2), self.low, self.high)

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """E[o_t | q_t, a_t] = W_predᵀ (q_t ⊗ φ_a(a_t))."""
        return jnp.outer(q, self.phi_a(action)).reshape(-1) @ self.W_pred

    def predict_horizon(self, q: Float[Array, " q"], actions: Float[Array, "k act"]) -> Float[Array, "k obs"]:
        """E[o_{t:t+k-1} | q_t, a_{t:t+k-1}] = W_horᵀ (q_t ⊗ ψ_a(a_{t:t+k-1}))."""
        return (jnp.outer(q, self.psi_a(actions.reshape(-1))).reshape(-1) @ self.W_hor).reshape(self.future_length, -1)


class TabularFilter(AbstractFilter):
    """The discrete case: q_t is a probability table P(o_{t:t+k-1} | do a_{t:t+k-1}), and conditioning is Bayes rule.

    Observations and actions are one-hot vectors. A soft observation (a distribution) is averaged over: filtering in the
    model's own prediction marginalises exactly. The empty table, all zeros, means that nothing is known yet (q_0).
    """

    W_ext: Float[Numbers, "o_k a_k p"]
    """State → extended table P(o_{t:t+k} | do a_{t:t+k}), as a tensor [future observations, future actions, extended]."""
    W_first: Float[Numbers, "o o_k a_k"]
    """The table after each reset observation."""
    actions: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.W_first.shape[1] * self.W_first.shape[2]

    def init(self) -> Float[Array, " q"]:
        return jnp.zeros(self.size)

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """q_{t+1} = P(o_{t+1:t+k}, o_t | a_{t:t+k}) / P(o_t | a_t), from p_t = W_ext q_t; q_1 = W_first o_0."""
        first = jnp.tensordot(observation, self.W_first, 1)
        table = self.condition(self.extend(q), action, observation)
        return jnp.where(jnp.any(q != 0), table, first).reshape(-1)

    def extend(self, q: Float[Array, " q"]) -> Float[Array, "o o_k a a_k"]:
        """p_t = W_ext q_t: the table of k + 1 observations given k + 1 actions, the first of each set apart."""
        symbols, o_k, a_k = self.W_first.shape
        p = jnp.tensordot(q.reshape(o_k, a_k), self.W_ext, 2)
        return p.reshape(symbols, o_k, self.actions, a_k)

    def condition(
        self, p: Float[Array, "o o_k a a_k"], action: Float[Array, " a"], observation: Float[Array, " o"]
    ) -> Float[Array, "o_k a_k"]:
        """Bayes rule: keep the slice of a_t, then P(future | o_t, a_t) = P(future, o_t | a_t) / P(o_t | a_t).

        Regression does not know that a table sums to one; clipping to ≥ 0 and renormalising each column does.
        """
        joint = jnp.maximum(jnp.tensordot(p, action, ((2,), (0,))), 0.0)  # [o, o_k, a_k] given this action
        totals = joint.sum(axis=1, keepdims=True)
        # A column that lost all its mass to clipping (the observation was impossible) becomes uniform, not zero; and is
        # divided by one, because a division by almost nothing has no finite gradient even where it is not used.
        left = totals > 1e-12
        given = jnp.where(left, joint / jnp.where(left, totals, 1.0), 1.0 / joint.shape[1])
        return jnp.tensordot(observation, given, 1)

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """P(o_t | q_t, a_t): the state's own table, summed over later observations and averaged over later actions."""
        symbols, o_k, a_k = self.W_first.shape
        table = q.reshape(symbols, o_k // symbols, self.actions, a_k // self.actions)
        return jnp.tensordot(table.sum(axis=1).mean(axis=2), action, ((1,), (0,)))
