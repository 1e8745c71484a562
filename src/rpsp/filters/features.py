"""Feature maps and their fitting: random Fourier features, one-hot sequences, projections.

Knows nothing of time. Every map is written for one vector or for rows of vectors alike, for numpy (float64, when
fitting) and for jax (inside a filter).
"""

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
    """φ(x) = Uᵀ [cos(Ωᵀx̄), sin(Ωᵀx̄)] / √n: Fourier features of an RBF kernel (Rahimi and Recht), projected by U.

    x̄ is x clipped to a box around the data. Far outside, a point is like none of the data and φ vanishes: a filter would
    take it for nothing at all, where the nearest point of the box is at least on the right side.
    """

    frequencies: Float[Numbers, "x n"]
    projection: Float[Numbers, "two_n d"]
    low: Float[Numbers, " x"]
    high: Float[Numbers, " x"]

    def __call__(self, x: Float[Numbers, "*rows x"]) -> Float[Numbers, "*rows d"]:
        xp = x.__array_namespace__()
        cos, sin = _waves(xp.clip(x, self.low, self.high), self.frequencies)
        # Apart, because what is laid side by side first is computed number by number on a CPU.
        n = self.frequencies.shape[1]
        return (cos @ self.projection[:n] + sin @ self.projection[n:]) / np.sqrt(n).astype(x.dtype)


def fourier(x: Float[Numbers, "*rows x"], frequencies: Float[Numbers, "x n"]) -> Float[Numbers, "*rows two_n"]:
    """[cos(Ωᵀx), sin(Ωᵀx)] / √n, whose inner product approximates exp(−‖x − y‖²/2σ²) for Ω ~ N(0, 1/σ²)."""
    xp = x.__array_namespace__()
    return xp.concat(_waves(x, frequencies), axis=-1) / np.sqrt(frequencies.shape[1]).astype(x.dtype)


def _waves(x: Float[Numbers, "*rows x"], frequencies: Float[Numbers, "x n"]) -> tuple[Numbers, Numbers]:
    """cos(Ωᵀx) and sin(Ωᵀx)."""
    angles, xp = x @ frequencies, x.__array_namespace__()
    if isinstance(angles, jax.Array) and angles.dtype == jnp.float32:
        return cos_and_sin(angles)
    return xp.cos(angles), xp.sin(angles)


def cos_and_sin(x: Float32[Array, "*shape"]) -> tuple[Float32[Array, "*shape"], Float32[Array, "*shape"]]:
    """cos x and sin x in single precision, to 3e-7 where |x| < 10⁵ (without fused multiply-add to 2e-6, where |x| > 10³).

    XLA's own take 9 ns a number on a CPU, because they are computed one by one; these a twentieth, and a belief by kernel
    Bayes rule spends most of its time here. x = kπ + r with |r| ≤ π/2, π taken off in three parts of which all but the
    last are short, so that their products with k are exact (Cody and Waite); of r Taylor's series will do.
    """
    k = jnp.round(x * np.float32(1 / np.pi))
    r = x
    for part in (3.140625, 9.67502593994140625e-4, 1.5099579909783764e-7):
        r = r - k * np.float32(part)
    sign = 1 - 2 * (k - 2 * jnp.floor(k / 2))

    def series(first: int) -> Array:
        """Σ_i (−1)ⁱ r²ⁱ / (2i + first)!, seven terms."""
        total = jnp.zeros_like(r)
        for i in reversed(range(7)):
            total = total * (r * r) + np.float32((-1) ** i / math.factorial(2 * i + first))
        return total

    return sign * series(0), sign * r * series(1)


def kernel_width(data: Float[np.ndarray, "n x"], percentile: float, *, rng: np.random.Generator) -> float:
    """A percentile of the pairwise distances of at most 1000 points: the usual width of an RBF kernel."""
    few = data if len(data) <= 1000 else rng.choice(data, 1000, replace=False)
    distances = pdist(few)
    width = float(np.percentile(distances, percentile)) if len(distances) else 0.0
    return width if width > 0 else 1.0  # constant data have no scale; any will do


def fit_fourier(
    data: Float[np.ndarray, "n x"],
    dimension: int,
    *,
    rng: np.random.Generator,
    frequencies: int = 300,
    percentile: float = 95.0,
    clamp: float = 5.0,
) -> RandomFourierFeatures:
    """Random Fourier features of these data's own width, projected on their `dimension` leading (uncentred) directions.

    The box ends `clamp` standard deviations from the mean.
    """
    mean, reach = data.mean(axis=0), clamp * data.std(axis=0)
    low, high = mean - reach, mean + reach
    data = np.clip(data, low, high)
    width = kernel_width(data, percentile, rng=rng)
    omega = rng.standard_normal((data.shape[1], frequencies)) / width
    return RandomFourierFeatures(omega, randomized_svd(fourier(data, omega), dimension, rng=rng), low, high)


class OneHotSequence(eqx.Module):
    """The indicator of a whole sequence of symbols: x_1 ⊗ x_2 ⊗ … of the one-hot vectors laid side by side in x.

    A null vector (the null action) counts as the uniform distribution: features that vanish there would kill the state
    for ever, the filter's update being linear in them.
    """

    sizes: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x: Float[Numbers, "*rows x"]) -> Float[Numbers, "*rows d"]:
        xp = x.__array_namespace__()
        out, first = xp.ones_like(x[..., :1]), 0
        for size in self.sizes:
            part = x[..., first : first + size]
            part = part + (1 - xp.sum(part, axis=-1, keepdims=True)) / size
            out = (out[..., :, None] * part[..., None, :]).reshape(*x.shape[:-1], -1)
            first += size
        return out
