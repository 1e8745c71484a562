"""The paper's filter: predictive states conditioned by kernel Bayes rule. `two_stage` fits it.

A state is updated in the paper's two steps: *extend* it linearly to a window one step longer, p_t = W_ext q_t, then
*condition* on the action and the observation, q_{t+1} = f_cond(p_t, a_t, o_t).
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from rpsp.data.arrays import Numbers
from rpsp.data.linalg import kernel_bayes_weights
from rpsp.filters.base import AbstractFilter, constant
from rpsp.filters.features import FeatureMap


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
