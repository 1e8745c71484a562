"""Feature maps and their fitting: random Fourier features, one-hot sequences and projections.

The maps accept one vector or rows of vectors. They work with NumPy arrays (float64, for fitting) and JAX arrays (inside
a filter).
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32
from scipy.spatial.distance import pdist

from rpsp.data.arrays import Numbers
from rpsp.data.linalg import randomized_svd

FeatureMap = Callable[[Numbers], Numbers]


class RandomFourierFeatures(eqx.Module):
    """Projected random Fourier features of an RBF kernel (Rahimi and Recht).

        φ(x) = Uᵀ [cos(Ωᵀx̄), sin(Ωᵀx̄)] / √n

    where Ω are the frequencies, n their number, U the projection, and x̄ is x clipped to a box around the data. Without
    clipping, φ vanishes far from the data and a filter gets no information from such a point. The nearest point of the
    box at least keeps the direction.
    """

    frequencies: Float[Numbers, "x n"]
    """Ω."""
    projection: Float[Numbers, "two_n d"]
    """U."""
    low: Float[Numbers, " x"]
    high: Float[Numbers, " x"]
    """`low` and `high`: the bounds of the box."""

    def __call__(self, x: Float[Numbers, "*rows x"]) -> Float[Numbers, "*rows d"]:
        """Return φ(x)."""
        xp = x.__array_namespace__()
        cos, sin = _waves(xp.clip(x, self.low, self.high), self.frequencies)
        # Two products instead of one, because on CPUs XLA computes concatenated features element by element.
        n = self.frequencies.shape[1]
        return (cos @ self.projection[:n] + sin @ self.projection[n:]) / np.sqrt(n).astype(x.dtype)

    def exported(self) -> dict[str, np.ndarray]:
        """Return the features as cosines only, for act.py: sin x = cos(x − π/2)."""
        frequencies = np.asarray(self.frequencies)
        n = frequencies.shape[1]
        return {
            "low": np.asarray(self.low),
            "high": np.asarray(self.high),
            "frequencies": np.concatenate([frequencies, frequencies], axis=1),
            "phases": np.repeat([0.0, -np.pi / 2], n),
            "projection": np.asarray(self.projection) / np.sqrt(n),
        }


def fourier(x: Float[Numbers, "*rows x"], frequencies: Float[Numbers, "x n"]) -> Float[Numbers, "*rows two_n"]:
    """Compute random Fourier features.

        φ(x) = [cos(Ωᵀx), sin(Ωᵀx)] / √n

    where Ω are the n frequencies. If they are drawn from N(0, 1/σ²), φ(x)ᵀφ(y) approximates exp(−‖x − y‖²/2σ²).

    Args:
        x: one vector or rows of vectors.
        frequencies: Ω.
    """
    xp = x.__array_namespace__()
    return xp.concat(_waves(x, frequencies), axis=-1) / np.sqrt(frequencies.shape[1]).astype(x.dtype)


def _waves(x: Float[Numbers, "*rows x"], frequencies: Float[Numbers, "x n"]) -> tuple[Numbers, Numbers]:
    """Return cos(Ωᵀx) and sin(Ωᵀx)."""
    angles, xp = x @ frequencies, x.__array_namespace__()
    if isinstance(angles, jax.Array) and angles.dtype == jnp.float32:
        return cos_and_sin(angles)
    return xp.cos(angles), xp.sin(angles)


def cos_and_sin(x: Float32[Array, "*shape"]) -> tuple[Float32[Array, "*shape"], Float32[Array, "*shape"]]:
    """Compute cos x and sin x in single precision.

    The error is at most 3e-7 for |x| < 10⁵. Without fused multiply-add it is at most 2e-6 above 10³.

    XLA's functions take 9 ns per number on a CPU, because they are not vectorised. This function takes a twentieth of
    it, and a kernel Bayes filter spends most of its time here.

    The argument is reduced to x = kπ + r with |r| ≤ π/2 (Cody and Waite): kπ is subtracted in three parts. All parts of
    π but the last have few bits, so that their products with k are exact. A Taylor series of r follows.
    """
    k = jnp.round(x * np.float32(1 / np.pi))
    r = x
    for part in (3.140625, 9.67502593994140625e-4, 1.5099579909783764e-7):
        r = r - k * np.float32(part)
    sign = 1 - 2 * (k - 2 * jnp.floor(k / 2))

    def series(first: int) -> Array:
        """Return Σ_i (−1)ⁱ r²ⁱ / (2i + first)!, seven terms."""
        total = jnp.zeros_like(r)
        for i in reversed(range(7)):
            total = total * (r * r) + np.float32((-1) ** i / math.factorial(2 * i + first))
        return total

    return sign * series(0), sign * r * series(1)


def kernel_width(data: Float[np.ndarray, "n x"], percentile: float, *, rng: np.random.Generator) -> float:
    """Choose the width of an RBF kernel: a percentile of the pairwise distances of at most 1000 random points.

    Args:
        data: one point per row.
        percentile: the percentile, 0 to 100.
        rng: random generator that chooses the points.

    Returns:
        The width; 1 if the points do not differ.
    """
    few = data if len(data) <= 1000 else rng.choice(data, 1000, replace=False)
    distances = pdist(few)
    width = float(np.percentile(distances, percentile)) if len(distances) else 0.0
    return width if width > 0 else 1.0  # constant data have no scale, so any width will do


def fit_fourier(
    data: Float[np.ndarray, "n x"],
    dimension: int,
    *,
    rng: np.random.Generator,
    frequencies: int = 300,
    percentile: float = 95.0,
    clamp: float = 5.0,
) -> RandomFourierFeatures:
    """Fit random Fourier features to data.

    The features are projected on their leading right singular vectors (without centring).

    Args:
        data: one point per row.
        dimension: number of features after projection.
        rng: random generator.
        frequencies: number of random frequencies before projection.
        percentile: the kernel width is this percentile of the pairwise distances.
        clamp: inputs are clipped to this many standard deviations from the mean.
    """
    mean, reach = data.mean(axis=0), clamp * data.std(axis=0)
    low, high = mean - reach, mean + reach
    data = np.clip(data, low, high)
    width = kernel_width(data, percentile, rng=rng)
    omega = rng.standard_normal((data.shape[1], frequencies)) / width
    return RandomFourierFeatures(omega, randomized_svd(fourier(data, omega), dimension, rng=rng), low, high)


class OneHotSequence(eqx.Module):
    """Indicator of a whole sequence of symbols: x_1 ⊗ x_2 ⊗ …, where x = [x_1, x_2, …] and the x_i are one-hot vectors.

    A null vector (the null action) is treated as the uniform distribution. Features that vanish at the null action
    would set the state to zero for the rest of the episode, because the filter update is linear in them.
    """

    sizes: tuple[int, ...] = eqx.field(static=True)
    """Number of symbols of each part of the sequence."""

    def __call__(self, x: Float[Numbers, "*rows x"]) -> Float[Numbers, "*rows d"]:
        """Return the indicator of every row of x."""
        xp = x.__array_namespace__()
        out, first = xp.ones_like(x[..., :1]), 0
        for size in self.sizes:
            part = x[..., first : first + size]
            part = part + (1 - xp.sum(part, axis=-1, keepdims=True)) / size
            out = (out[..., :, None] * part[..., None, :]).reshape(*x.shape[:-1], -1)
            first += size
        return out
