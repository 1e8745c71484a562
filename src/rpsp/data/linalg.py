"""Linear algebra: ridge regression, outer products, randomized SVD, principal directions and regularised solves.

Functions for fitting use NumPy in float64. Only `kernel_bayes_weights` runs inside a compiled filter and uses JAX.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# scipy has no stubs.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve as jax_cho_solve
from jaxtyping import Array, Float
from scipy.linalg import cho_factor, cho_solve

Matrix = Float[np.ndarray, "_ _"]


class NormalEquations:
    """The sums XᵀX and XᵀY of a ridge regression of Y on X. Rows can be added in any number of chunks.

    Args:
        inputs: number of columns of X.
        outputs: number of columns of Y.
    """

    def __init__(self, inputs: int, outputs: int):
        self.XtX = np.zeros((inputs, inputs))
        self.XtY = np.zeros((inputs, outputs))
        self.count = 0

    def add(self, X: Matrix, Y: Matrix) -> NormalEquations:
        """Add rows of X and Y to the sums. Returns `self`."""
        self.XtX += X.T @ X
        self.XtY += X.T @ Y
        self.count += len(X)
        return self

    def solve(self, ridge: float | Float[np.ndarray, " inputs"]) -> Matrix:
        """Solve the ridge regression.

            W = argmin_W ‖XW − Y‖² + Σ_i ridge_i ‖W_i‖² = (XᵀX + diag(ridge))⁻¹ XᵀY

        where W_i is row i of W, the weights of input i. The ridge is added to sums over rows, not to means.

        Args:
            ridge: one value for all inputs, or one per input.

        Returns:
            W, of shape [inputs, outputs].
        """
        A = self.XtX.copy()
        # A tiny diagonal, relative to the trace, keeps a singular XᵀX (a constant column) solvable at ridge 0.
        A[np.diag_indices_from(A)] += np.maximum(ridge, max(1e-12 * np.trace(A) / len(A), 1e-300))
        try:
            return cho_solve(cho_factor(A), self.XtY)
        except np.linalg.LinAlgError:
            return np.linalg.lstsq(A, self.XtY, rcond=None)[0]


def ridge(X: Matrix, Y: Matrix, strength: float) -> Matrix:
    """Solve the ridge regression argmin_W ‖XW − Y‖² + strength ‖W‖²."""
    return NormalEquations(X.shape[1], Y.shape[1]).add(X, Y).solve(strength)


def outer(A: Float[np.ndarray, "n a"], B: Float[np.ndarray, "n b"]) -> Float[np.ndarray, "n a_b"]:
    """Return the flattened outer product a ⊗ b of each pair of rows. Entry (i, j) of a bᵀ is at i·len(b) + j."""
    return (A[:, :, None] * B[:, None, :]).reshape(len(A), A.shape[1] * B.shape[1])


def randomized_svd(X: Float[np.ndarray, "n d"], rank: int, *, rng: np.random.Generator) -> Float[np.ndarray, "d r"]:
    """Return the `rank` leading right singular vectors of X (Halko, Martinsson and Tropp 2011).

    Uses ten extra probe vectors and two power iterations with re-orthogonalisation. Uses a full decomposition where
    that is as cheap.

    Args:
        X: data, one sample per row.
        rank: number of singular vectors. Reduced to min(n, d) if larger.
        rng: random generator of the probe vectors.

    Returns:
        The singular vectors as columns.
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


class Principal(NamedTuple):
    """Principal directions of data, those of the largest variance first."""

    variances: Float[np.ndarray, " r"]
    """S: the variance along each direction."""
    directions: Float[np.ndarray, "d r"]
    """Unit vectors, as columns."""
    scaled: Float[np.ndarray, "d r"]
    """The directions divided by √(S + 1e-3 S_max), where S_max is the largest variance: coordinates along them have about
    unit variance, but noise is not magnified."""


def principal_directions(X: Float[np.ndarray, "n d"], rank: int) -> Principal:
    """Return at most `rank` principal directions of the rows of X. Those of variance 0 are left out, except the first."""
    variances, directions = np.linalg.eigh(np.atleast_2d(np.cov(X.T, bias=True)))
    variances, directions = variances[::-1][:rank], signed(directions[:, ::-1][:, :rank])
    largest = max(float(variances[0]), 1e-12)  # constant data have variance 0
    keep = variances > 1e-12 * largest
    keep[0] = True
    variances, directions = variances[keep], directions[:, keep]
    return Principal(variances, directions, directions / np.sqrt(variances + 1e-3 * largest))


def signed(vectors: Matrix) -> Matrix:
    """Fix the sign of each column so that its largest entry is positive.

    The same data then give the same coordinates with every LAPACK.
    """
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return vectors * np.where(largest < 0, -1.0, 1.0)


def conditional_operators(
    C_ab: Float[np.ndarray, "n a b"], C_bb: Float[np.ndarray, "n b b"], strength: float
) -> Float[np.ndarray, "n a b"]:
    """Compute the conditional operator of every sample in one batched solve.

        C_{A|B} = C_AB C_BB (C_BB² + λI)⁻¹

    C_BB is squared because a *predicted* covariance need not be positive definite.

    Args:
        C_ab: C_AB, the (predicted) covariance of A and B, one per sample.
        C_bb: C_BB, the (predicted) covariance of B, one per sample. It is symmetrised first.
        strength: λ, the ridge.
    """
    C_bb = (C_bb + C_bb.transpose(0, 2, 1)) / 2
    squared = C_bb @ C_bb
    squared[:, np.arange(C_bb.shape[1]), np.arange(C_bb.shape[1])] += strength
    return np.linalg.solve(squared, C_bb @ C_ab.transpose(0, 2, 1)).transpose(0, 2, 1)


def kernel_bayes_weights(
    C: Float[Array, "d d"], phi: Float[Array, " d"], strength: Array | float
) -> Float[Array, " d"]:
    """Compute the weights of kernel Bayes rule.

        v = (C² + λI)⁻¹ C φ

    Uses the Cholesky factor of C² + λI, whose eigenvalues are at least λ. This is safe in float32 as long as the
    rounding error of C² is below λ: for ‖C‖ up to about 100 with λ = 10⁻³ (a fitted C has a norm of about 1). Gradients
    are computed by implicit differentiation, with one more solve that uses the same factor. Differentiating the
    factorisation would take three times as long.

    Args:
        C: a symmetric matrix, the covariance of the observation features.
        phi: φ, the features of the observation.
        strength: λ, the ridge.
    """
    squared = C @ C + strength * jnp.eye(len(C), dtype=C.dtype)
    factor = jnp.linalg.cholesky(jax.lax.stop_gradient(squared))

    def product(v: Array) -> Array:
        return C @ (C @ v) + strength * v

    def solve(_: Any, b: Array) -> Array:
        return jax_cho_solve((factor, True), b)

    return jax.lax.custom_linear_solve(product, C @ phi, solve, symmetric=True)
