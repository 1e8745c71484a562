"""Cholesky factors of small matrices and solves with them, as plain array operations.

jaxlib's batched LAPACK kernels wait, in a thread of XLA's pool, for other threads of this pool. On a machine with two cores,
two of them in one program, such as a Cholesky factor of one step and a solve of another, can wait for each other forever.
These functions take as long as LAPACK for the sizes of observations.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

UNROLLED = 8
"""Loops over at most this many columns are unrolled."""
SMALLEST = 1e-12
"""Smallest accepted square of a pivot."""


def cholesky(A: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return the lower factor L of a positive definite matrix A = L Lᵀ, column by column."""
    n = A.shape[0]
    rows = jnp.arange(n)

    def column(j: Array, L: Array) -> Array:
        left = A[:, j] - L @ L[j]
        pivot = jnp.sqrt(jnp.maximum(left[j], SMALLEST))
        return L.at[:, j].set(jnp.where(rows >= j, left / pivot, 0.0))

    return jax.lax.fori_loop(0, n, column, jnp.zeros_like(A), unroll=n <= UNROLLED)


def forward(L: Float[Array, "n n"], b: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """Return x with L x = b, for a lower L."""
    n = L.shape[0]

    def row(j: Array, x: Array) -> Array:
        return x.at[j].set((b[j] - L[j] @ x) / L[j, j])

    return jax.lax.fori_loop(0, n, row, jnp.zeros_like(b), unroll=n <= UNROLLED)


def solve(L: Float[Array, "n n"], b: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    """Return x with L Lᵀ x = b, for a lower L."""
    n, y = L.shape[0], forward(L, b)

    def row(i: Array, x: Array) -> Array:
        j = n - 1 - i
        return x.at[j].set((y[j] - L[:, j] @ x) / L[j, j])

    return jax.lax.fori_loop(0, n, row, jnp.zeros_like(y), unroll=n <= UNROLLED)
