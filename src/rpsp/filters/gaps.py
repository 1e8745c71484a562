"""Missing readings: a filter that conditions on the readings that came, and how it is fitted to data with gaps.

A reading that is missing is NaN. See `GapFilter` for the update. It is the Kalman filter of the innovations form of the
wrapped filter, and therefore exact where that filter is: for linear-Gaussian systems and for probability tables.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rpsp.data.arrays import Numbers
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, constant
from rpsp.filters.marked import hiding
from rpsp.filters.small_solves import solve
from rpsp.filters.uncertainty import (
    AbstractUncertainty,
    GaussianUncertainty,
    observed_factor,
    probabilities,
)


class Parts(NamedTuple):
    """The parts of the state of a `GapFilter`."""

    q: Float[Array, " q"]
    """The state of the wrapped filter."""
    begun: Float[Array, ""]
    """0 before the first reading of an episode, then 1."""
    P: Float[Array, "r r"]
    """Covariance of the reduced coordinates of q, given the readings that came. 0 if none is missing."""


FARTHEST = 4.0
"""Largest correction of a coordinate, in standard deviations of what is not known of it."""


NO_GATE = 1e9
"""A gate that no reading exceeds. It is finite, as all parameters of an agent are."""


class GapFilter(AbstractFilter):
    """A filter that goes on working while readings are missing (NaN), one sensor or all of them.

    State x (in reduced coordinates) and reading o are jointly Gaussian before the reading,

        E[x, o] = [x_t, g(q_t, a_t)],   M = Cov(x, o) = [[P, P Cᵀ], [C P, C P Cᵀ + S]]

    They are conditioned on the coordinates of o that came, which gives x̂, ô and their covariance M̂. Then

        q_{t+1} = f(q_t + τ T(x̂ − x_t), a_t, ô),   P' = [A_o, B] M̂ [A_o, B]ᵀ

    where f and g are the update and the prediction of the wrapped filter, S is the covariance of its innovations, and A,
    B, C and T are those of `Propagation`, with A_o = A − B C for an observation that is given, and τ is `trust`. Corrections
    are at most four standard deviations. Without missing readings P is 0, and the filter computes what the wrapped filter
    does.
    """

    inner: AbstractFilter
    """The wrapped filter."""
    uncertainty: AbstractUncertainty = constant()
    """Its predictive distribution."""
    first_mean: Float[Numbers, " obs"] = constant()
    """Mean of the reset observations."""
    first_covariance: Float[Numbers, "obs obs"] = constant()
    """Covariance of the reset observations."""
    B_first: Float[Numbers, "r obs"] = constant()
    """∂x_1/∂o_0."""
    trust: Float[Numbers, ""] = constant(default_factory=lambda: np.ones((), np.float32))
    """Factor of the corrections x̂ − x_t, chosen on held-out episodes. 1 is exact for linear-Gaussian systems; for others,
    whose propagation is an approximation, less can be better."""
    gate: Float[Numbers, ""] = constant(default_factory=lambda: np.full((), NO_GATE, np.float32))
    """A reading that is further from its expectation, in its standard deviations, counts as missing. Default: no limit."""

    def init(self) -> Float[Array, " q"]:
        """Return q_0, followed by zeros."""
        certain = self.uncertainty.certain()
        return jnp.concatenate([self.inner.init(), jnp.zeros(1 + _triangle(len(certain)))])

    def parts(self, q: Array) -> Parts:
        """Split a state."""
        r, n = len(self.uncertainty.certain()), self.inner.size
        i, j = np.tril_indices(r)
        P = jnp.zeros((r, r)).at[i, j].set(q[n + 1 :]).at[j, i].set(q[n + 1 :])
        return Parts(q[:n], q[n], P)

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """Condition on the readings that came, and update the wrapped filter with the completed observation."""
        belief, observation, P = self.conditioned(q, action, observation)
        later = self.inner.update(belief, action, observation)
        return jnp.concatenate([later, jnp.ones(1), P[np.tril_indices(len(P))]])

    def complete(self, q: Array, action: Array, observation: Array) -> Float[Array, " obs"]:
        """Return the observation with E[o | q_t, a_t, the readings that came] in the place of NaN.

        Args:
            q: the state q_t.
            action: a_t.
            observation: o_t, with NaN where it is missing.
        """
        return self.conditioned(q, action, observation)[1]

    def conditioned(
        self, q: Array, action: Array, observation: Array
    ) -> tuple[Float[Array, " x"], Float[Array, " obs"], Float[Array, "r r"]]:
        """Return the corrected state of the wrapped filter, the completed observation, and P of the next state.

        Args:
            q: the state q_t.
            action: a_t.
            observation: o_t, with NaN where it is missing.
        """
        state, begun, P = self.parts(q)
        seen = ~jnp.isnan(observation)
        expected = jnp.where(begun == 1, self.inner.predict(state, action), self.first_mean)
        if not isinstance(self.uncertainty, GaussianUncertainty):
            return state, jnp.where(seen.all(), jnp.nan_to_num(observation), probabilities(expected)), P
        moves, noise = self.uncertainty.propagation, self.uncertainty.noise
        S = jnp.where(begun == 1, noise.covariance(state, action), self.first_covariance)
        both = jnp.concatenate([jnp.eye(len(P)), moves.C])  # of x and o, by x
        M = both @ P @ both.T + jnp.pad(S, (len(P), 0))
        spread = jnp.sqrt(jnp.maximum(jnp.diagonal(M)[len(P) :], 1e-12))
        outlying = jnp.abs(jnp.nan_to_num(observation) - expected) > self.gate * spread
        seen = seen & ~(outlying & (begun == 1))
        scale, factor = observed_factor(M[len(P) :, len(P) :], seen)
        # Columns of readings that did not come are 0, and so change nothing.
        columns = M[:, len(P) :] * jnp.where(seen, 1 / scale, 0.0)
        gain = solve(factor, columns.T).T
        change = gain @ jnp.where(seen, (jnp.nan_to_num(observation) - expected) / scale, 0.0)
        completed = jnp.where(seen, jnp.nan_to_num(observation), expected + change[len(P) :])
        # What was read is certain. Rounding must not leave uncertainty in it.
        uncertain = jnp.concatenate([jnp.ones(len(P), bool), ~seen])
        conditional = jnp.where(jnp.outer(uncertain, uncertain), M - gain @ columns.T, 0.0)
        later = jnp.concatenate([moves.A - moves.B @ moves.C, moves.B], axis=1)
        at_first = jnp.concatenate([jnp.zeros_like(P), self.B_first], axis=1)
        J = jnp.where(begun == 1, later, at_first)
        most = FARTHEST * jnp.sqrt(jnp.maximum(jnp.diagonal(P), 0.0))
        correction = self.trust * (moves.T @ jnp.clip(change[: len(P)], -most, most))
        return state + correction, completed, moves.bounded(J @ conditional @ J.T)

    def exported(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the arrays of act.py's `gaps`: those of the wrapped filter, and of its distribution."""
        kind, arrays = self.inner.exported()
        prediction = self.inner.exported_prediction()
        if prediction is None or not isinstance(self.uncertainty, GaussianUncertainty):
            raise UsageError(
                f"export: act.py does not support missing readings with {type(self.inner).__name__}; use "
                "rpsp.load(...).predict instead."
            )
        moves = self.uncertainty.propagation
        own = {name: getattr(moves, name) for name in ("A", "B", "C", "T", "limit")}
        own |= {name: getattr(self, name) for name in ("first_mean", "first_covariance", "B_first", "trust")}
        both = arrays | prediction[1] | self.uncertainty.exported()
        return f"gaps {kind} {prediction[0]}", both | {name: np.asarray(x, np.float64) for name, x in own.items()}

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """Predict with the wrapped filter."""
        return self.inner.predict(q[: self.inner.size], action)

    @property
    def horizon(self) -> int:
        """That of the wrapped filter."""
        return self.inner.horizon

    def predict_horizon(self, q: Array, actions: Array) -> Float[Array, "k obs"]:
        """Predict with the wrapped filter."""
        return self.inner.predict_horizon(q[: self.inner.size], actions)

    @property
    def view(self) -> Float[Numbers, "q x"]:
        """Policies see what they see of the wrapped filter, without P."""
        return hiding(self.inner, self.size - self.inner.size)

    @property
    def used(self) -> Float[Array, " obs"] | None:
        """That of the wrapped filter."""
        return self.inner.used

    @property
    def accepts_gaps(self) -> bool:
        """True."""
        return True

    @property
    def baseline_view(self) -> Float[Numbers, "q x"]:
        """Baselines see the state of the wrapped filter, without P."""
        return np.eye(self.size, self.inner.size, dtype=np.float32)

    def coordinate_name(self, i: int) -> str | None:
        """Return the name of a coordinate of the wrapped filter; those of P have none."""
        return self.inner.coordinate_name(i) if i < self.inner.size else None


def _triangle(r: int) -> int:
    return r * (r + 1) // 2


def without_gaps(filter: AbstractFilter) -> AbstractFilter:
    """Return the wrapped filter of a `GapFilter`; any other filter as it is."""
    return filter.inner if isinstance(filter, GapFilter) else filter


def state_and_covariance(
    filter: AbstractFilter, uncertainty: AbstractUncertainty, q: Float[Array, " q"]
) -> tuple[Float[Array, " x"], Float[Array, "r r"]]:
    """Return the state of the wrapped filter and P; P = 0 for a filter that is not wrapped."""
    if isinstance(filter, GapFilter):
        parts = filter.parts(q)
        return parts.q, parts.P
    return q, uncertainty.certain()
