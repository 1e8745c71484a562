"""Ridge regression, outer products, randomized SVD, regularised solves. No word of the domain.

Fitting is numpy in float64; the one function that runs inside a compiled filter is `kernel_bayes_weights`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve as jax_cho_solve
from jaxtyping import Array, Float
from scipy.linalg import cho_factor, cho_solve

Matrix = Float[np.ndarray, "_ _"]


class NormalEquations:
    """Sums XᵀX and XᵀY, from which ridge regressions of Y on X are solved: rows may come in any number of chunks."""

    def __init__(self, inputs: int, outputs: int):
        self.XtX = np.zeros((inputs, inputs))
        self.XtY = np.zeros((inputs, outputs))
        self.count = 0

    def add(self, X: Matrix, Y: Matrix) -> NormalEquations:
        self.XtX += X.T @ X
        self.XtY += X.T @ Y
        self.count += len(X)
        return self

    def solve(self, ridge: float | Float[np.ndarray, " inputs"]) -> Matrix:
        """argmin_W ‖XW − Y‖² + Σ_i ridge_i ‖W_i‖² = (XᵀX + diag(ridge))⁻¹ XᵀY, the ridge on sums, not means."""
        A = self.XtX.copy()
        # A trace of diagonal keeps an exactly singular Gram matrix (a constant column) solvable at ridge 0.
        A[np.diag_indices_from(A)] += np.maximum(ridge, max(1e-12 * np.trace(A) / len(A), 1e-300))
        try:
            return cho_solve(cho_factor(A), self.XtY)
        except np.linalg.LinAlgError:
            return np.linalg.lstsq(A, self.XtY, rcond=None)[0]


def ridge(X: Matrix, Y: Matrix, strength: float) -> Matrix:
    """argmin_W ‖XW − Y‖² + strength ‖W‖²."""
    return NormalEquations(X.shape[1], Y.shape[1]).add(X, Y).solve(strength)


def outer(A: Float[np.ndarray, "n a"], B: Float[np.ndarray, "n b"]) -> Float[np.ndarray, "n a_b"]:
    """Row by row the vectorised outer product a ⊗ b: entry (i, j) of a bᵀ at i·len(b) + j."""
    return (A[:, :, None] * B[:, None, :]).reshape(len(A), A.shape[1] * B.shape[1])


def randomized_svd(X: Float[np.ndarray, "n d"], rank: int, *, rng: np.random.Generator) -> Float[np.ndarray, "d r"]:
    """The `rank` leading right singular vectors of X as columns (Halko, Martinsson and Tropp 2011).

    Ten extra probe vectors and two power iterations, re-orthogonalised. Where a full decomposition is as cheap, that
    is taken instead. The rank returned is never more than X has directions.
    """
    n, d = X.shape
    rank = min(rank, n, d)
    if d <= 2 * (rank + 10):
        vectors = np.linalg.eigh(X.T @ X)[1]
        return signed(vectors[:, ::-1][:, :rank])
    probe = np.linalg.qr(X @ rng.standard_normal((d, min(rank + 10, n))))[0]
    for _ in range(2):
        probe = np.linalg.qr(X @ np.linalg.qr(X.T @ probe)[0])[0]
    return signed(np.linalg.svd(probe.T @ X, full_matrices=False)[2][:rank].T)


def signed(vectors: Matrix) -> Matrix:
    """Fix each column's sign (largest entry positive): the same data give the same coordinates on any LAPACK."""
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return vectors * np.where(largest < 0, -1.0, 1.0)


def conditional_operators(
    C_ab: Float[np.ndarray, "n a b"], C_bb: Float[np.ndarray, "n b b"], strength: float
) -> Float[np.ndarray, "n a b"]:
    """C_{A|B} = C_AB C_BB (C_BB² + λI)⁻¹ for every sample, as one batched solve.

    Squared, because a *predicted* covariance need not be positive definite.
    """
    C_bb = (C_bb + C_bb.transpose(0, 2, 1)) / 2
    squared = C_bb @ C_bb
    squared[:, np.arange(C_bb.shape[1]), np.arange(C_bb.shape[1])] += strength
    return np.linalg.solve(squared, C_bb @ C_ab.transpose(0, 2, 1)).transpose(0, 2, 1)


def kernel_bayes_weights(
    C: Float[Array, "d d"], phi: Float[Array, " d"], strength: Array | float
) -> Float[Array, " d"]:
    """v = (C² + λI)⁻¹ C φ for symmetric C.

    Solved through the Cholesky factor of C² + λI, whose eigenvalues are at least λ: safe in float32 as long as C² is rounded
    by less than that, which is for ‖C‖ up to a hundred where λ is 10⁻³ (a fitted C has about 1). Derivatives are those of
    the solution, by one more solve with the same factor: to differentiate the factorisation takes three times as long.
    """
    squared = C @ C + strength * jnp.eye(len(C), dtype=C.dtype)
    factor = jnp.linalg.cholesky(jax.lax.stop_gradient(squared))
    return jax.lax.custom_linear_solve(
        lambda v: C @ (C @ v) + strength * v,
        C @ phi,
        lambda _, b: jax_cho_solve((factor, True), b),
        symmetric=True,
    )
