"""The filter of the paper: predictive states conditioned by kernel Bayes rule. `two_stage` fits it.

The update has two steps. *Extend* the state linearly to a window that is one step longer, p_t = W_ext q_t. Then
*condition* it on the action and the observation, q_{t+1} = f_cond(p_t, a_t, o_t).
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rpsp.data.arrays import Numbers
from rpsp.data.linalg import kernel_bayes_weights
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, constant, to_float64
from rpsp.filters.features import FeatureMap, RandomFourierFeatures


class KernelBayesFilter(AbstractFilter):
    """The RFFPSR of the paper: q_t encodes E[ψ_o(o_{t:t+k-1}) | do ψ_a(a_{t:t+k-1})].

    Symbols: φ_o and φ_a are features of one observation and one action, ψ_o and ψ_a of k of them, ξ_o and ξ_a of k + 1.

    The parameters are θ_PSR = {q0, W_ext_xi, W_ext_o, W_pred}, and W_hor, which only refinement uses. All other arrays
    are constant. Arrays that are multiplied by a vector at every step have the index of this vector first.
    """

    q0: Float[Numbers, " q"]
    """q_0."""
    W_ext_xi: Float[Numbers, "q xi_o_xi_a"]
    """W_ext^ξ: maps the state to the operator from extended future actions to extended future observations."""
    W_ext_o: Float[Numbers, "q oo_phi_a"]
    """W_ext^o: maps the state to the operator from φ_a to the projected covariance of φ_o."""
    W_pred: Float[Numbers, "q_phi_a obs"]
    """Weights of the one-step prediction, E[o_t | q_t, a_t] = W_predᵀ (q_t ⊗ φ_a(a_t))."""
    W_hor: Float[Numbers, "q_psi_a k_obs"]
    """Weights of the k-step prediction, E[o_{t:t+k-1} | q_t, a_{t:t+k-1}] = W_horᵀ (q_t ⊗ ψ_a(a_{t:t+k-1}))."""

    future_length: int = eqx.field(static=True)
    """k: length of the future, in steps."""
    phi_o: FeatureMap = constant()
    """φ_o."""
    phi_a: FeatureMap = constant()
    """φ_a."""
    psi_a: FeatureMap = constant()
    """ψ_a."""
    U_xi_o: Float[Numbers, "phi_o psi_o xi_o"] = constant()
    """U_ξo as a tensor, where ξ_o = U_ξoᵀ (ψ_o(t+1) ⊗ φ_o(t))."""
    U_xi_a: Float[Numbers, "phi_a xi_a psi_a"] = constant()
    """U_ξa as a tensor, where ξ_a = U_ξaᵀ (ψ_a(t+1) ⊗ φ_a(t))."""
    U_oo: Float[Numbers, "oo phi_o phi_o"] = constant()
    """Maps projected covariances of φ_o back to symmetric matrices."""
    U_q: Float[Numbers, "psi_o psi_a q"] = constant()
    """Maps the denoised operator C_{ψo|ψa} to the coordinates of the state."""
    ridge: Float[Numbers, ""] = constant()
    """λ of kernel Bayes rule. It is the main source of stability."""
    low: Float[Numbers, " q"] = constant()
    high: Float[Numbers, " q"] = constant()
    """`low` and `high`: states are clipped to this box. Limiting the norm would have no effect, because the constant
    feature dominates it."""
    frozen: tuple[str, ...] = eqx.field(static=True, default=())
    """Names of parameters that no algorithm changes, as in ("W_pred",)."""

    def init(self) -> Float[Array, " q"]:
        """Return q_0, a parameter: at first the mean state of the training data."""
        return jnp.asarray(self.q0)

    @property
    def horizon(self) -> int:
        """k: length of the future, in steps."""
        return self.future_length

    def exported(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the arrays of act.py's `kernel_bayes`. Vectors contract with the middle axis of tensors."""
        f = to_float64(self)
        q, xi_o, xi_a, oo = len(f.q0), f.U_xi_o.shape[2], f.U_xi_a.shape[1], f.U_oo.shape[0]
        middle = (1, 0, 2)
        return "kernel_bayes", {
            **{f"a_{name}": x for name, x in _exported(f.phi_a).items()},
            **{f"o_{name}": x for name, x in _exported(f.phi_o).items()},
            "W_ext_xi": np.reshape(f.W_ext_xi, (q, xi_o, xi_a)).transpose(middle),
            "W_ext_o": np.reshape(f.W_ext_o, (q, oo, -1)).transpose(middle),
            "U_oo": np.transpose(f.U_oo, middle),
            "U_xi_o": np.transpose(f.U_xi_o, middle),
            "U_xi_a": np.transpose(f.U_xi_a, middle),
            "U_q": np.reshape(f.U_q, (-1, q)),
            "ridge": np.asarray(f.ridge) * np.eye(len(f.U_xi_o)),
            "low": np.asarray(f.low),
            "high": np.asarray(f.high),
        }

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """Return q_{t+1} = f_cond(W_ext q_t, a_t, o_t)."""
        return self.advance(q, self.prepare(action, observation))

    def prepare(self, action: Array, observation: Array) -> tuple[Float[Array, " phi_a"], Float[Array, " phi_o"]]:
        """Return φ_a(a_t) and φ_o(o_t)."""
        return self.phi_a(action), self.phi_o(observation)

    def advance(self, q: Array, prepared: tuple[Array, Array]) -> Float[Array, " q"]:
        """Extend and condition the state, given φ_a(a_t) and φ_o(o_t)."""
        phi_a, phi_o = prepared
        C_ex, C_oo = self.extend(q, phi_a)
        return self.condition(C_ex, C_oo, phi_a, phi_o)

    def extend(
        self, q: Float[Array, " q"], phi_a: Float[Array, " phi_a"]
    ) -> tuple[Float[Array, "xi_o xi_a"], Float[Array, "phi_o phi_o"]]:
        """Extend the state, p_t = W_ext q_t.

        Args:
            q: the state q_t.
            phi_a: φ_a(a_t).

        Returns:
            The extended operator p^ξ, and the covariance of φ_o given the action, from p^o.
        """
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
        """Condition the extended state on an action and an observation by kernel Bayes rule.

            q_{t+1} = clip(U_q (p^ξ ×_{φo} v ×_{φa} φ_a)),  v = (C_oo² + λI)⁻¹ C_oo φ_o

        where ×_{φo} and ×_{φa} contract the index of φ_o and of φ_a, v are the weights of kernel Bayes rule, and U_q
        maps the operator to the coordinates of the state.

        Args:
            C_ex: p^ξ, the extended operator.
            C_oo: the covariance of φ_o given the action.
            phi_a: φ_a(a_t).
            phi_o: φ_o(o_t).
        """
        C_a = C_ex @ jnp.tensordot(phi_a, self.U_xi_a, 1)
        v = kernel_bayes_weights(C_oo, phi_o, self.ridge)
        operator = jnp.tensordot(v, self.U_xi_o, 1) @ C_a
        return jnp.clip(jnp.tensordot(operator, self.U_q, 2), self.low, self.high)

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """Return E[o_t | q_t, a_t] = W_predᵀ (q_t ⊗ φ_a(a_t))."""
        return jnp.outer(q, self.phi_a(action)).reshape(-1) @ self.W_pred

    def predict_horizon(self, q: Float[Array, " q"], actions: Float[Array, "k act"]) -> Float[Array, "k obs"]:
        """Return E[o_{t:t+k-1} | q_t, a_{t:t+k-1}] = W_horᵀ (q_t ⊗ ψ_a(a_{t:t+k-1}))."""
        return (jnp.outer(q, self.psi_a(actions.reshape(-1))).reshape(-1) @ self.W_hor).reshape(self.future_length, -1)


def _exported(features: FeatureMap) -> dict[str, np.ndarray]:
    """Return the arrays of a feature map for act.py. Raises `UsageError` unless they are random Fourier features."""
    if not isinstance(features, RandomFourierFeatures):
        raise UsageError(
            f"export: act.py supports only RandomFourierFeatures, and this filter has {type(features).__name__}; "
            "use rpsp.load(...).predict instead."
        )
    return features.exported()
