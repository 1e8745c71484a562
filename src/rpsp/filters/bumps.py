"""The features of direct inference: linear terms and radial basis functions."""

from __future__ import annotations

import equinox as eqx
import numpy as np
from jaxtyping import Float

from rpsp.data.arrays import Numbers
from rpsp.data.scaling import fit_scaling
from rpsp.filters.base import to_float64
from rpsp.filters.features import kernel_width


class Bumps(eqx.Module):
    """Features: linear terms, age-dependent linear terms and radial basis functions.

        Φ(y, z) = [1, z̃, y z̃, exp(−‖z̃ − c_i‖²/2)],  z̃ = (z − mean)/scale

    where z is the input, c_i the centre of radial basis function ("bump") i, and y = 1/t for a state at step t of its
    episode. The terms with y let the gain of the filter decrease during the first steps, as in a Kalman filter.

    The centres are data points. Far from all data the radial basis functions vanish and the map extrapolates linearly.
    Random Fourier features would extrapolate arbitrarily.
    """

    mean: Float[Numbers, " z"]
    """Mean of the inputs."""
    scale: Float[Numbers, " z"]
    """Standard deviation of the inputs times the width of the radial basis functions."""
    centres: Float[Numbers, "z n"]
    """c_i as columns, in the scaled coordinates z̃."""

    @property
    def size(self) -> int:
        """Number of features."""
        return 1 + 2 * self.centres.shape[0] + self.centres.shape[1]

    def penalties(self, linear: float, bends: tuple[float, ...]) -> list[Float[np.ndarray, " phi"]]:
        """Return candidate ridges, one value per feature.

        The two parts need different ridges. Nearly linear dynamics need a linear part with almost no penalty, while
        radial basis functions without penalty fit noise, which the recursion then amplifies.

        Args:
            linear: ridge of the constant and the linear terms.
            bends: candidate ridges of the radial basis functions.

        Returns:
            One vector of ridges for each value in `bends`.
        """
        count = self.centres.shape[1]
        return [np.repeat([linear, bend], [self.size - count, count]) for bend in bends]

    def __call__(self, youth: Float[Numbers, "*rows 1"], z: Float[Numbers, "*rows z"]) -> Float[Numbers, "*rows phi"]:
        """Return the features of inputs z with youth y."""
        xp = z.__array_namespace__()
        z = (z - self.mean) / self.scale
        half_squares = (xp.sum(z * z, axis=-1, keepdims=True) + (self.centres**2).sum(axis=0)) / 2
        bumps = xp.exp(z @ self.centres - half_squares)
        return xp.concat([xp.ones_like(youth), z, youth * z, bumps], axis=-1)


def fit_bumps(z: Float[np.ndarray, "n z"], bumps: int, *, rng: np.random.Generator) -> Bumps:
    """Place radial basis functions at random data points, with half the median distance of the data as width."""
    scaling = fit_scaling(z)
    standardised = scaling.encode(z)
    width = 0.5 * kernel_width(standardised, 50.0, rng=rng)
    centres = rng.choice(standardised, min(bumps, len(z)), replace=False)
    return Bumps(scaling.mean, scaling.scale * width, centres.T / width)


def exported_regression(phi: Bumps, W: Numbers, prefix: str = "") -> dict[str, np.ndarray]:
    """Return the arrays of Wᵀ Φ for act.py.

    Args:
        phi: Φ.
        W: the weights.
        prefix: prefix of the names.
    """
    phi = to_float64(phi)
    mean, scale, centres = map(np.asarray, (phi.mean, phi.scale, phi.centres))
    parts = np.cumsum([1, len(mean), len(mean)])
    constant, W_linear, W_young, W_bumps = np.split(np.asarray(W, np.float64), parts)
    arrays = {
        "factor": 1 / scale,
        "shift": -mean / scale,
        "centres": centres,
        "half_squares": (centres**2).sum(axis=0) / 2,
        "constant": constant[0],
        "W_linear": W_linear,
        "W_young": W_young,
        "W_bumps": W_bumps,
    }
    return {prefix + name: array for name, array in arrays.items()}
