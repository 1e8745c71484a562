"""Encodings of observations and actions: standardised numbers, and symbols as one-hot vectors."""

from __future__ import annotations

import equinox as eqx
import numpy as np
from jaxtyping import Float

from rpsp.errors import UsageError


class Scaling(eqx.Module):
    """Standardisation x ↦ (x − mean) / scale of the observations and actions that filters process."""

    mean: Float[np.ndarray, " x"]
    """Mean of each column."""
    scale: Float[np.ndarray, " x"]
    """Standard deviation of each column; 1 for constant columns."""

    def encode(self, x: np.ndarray) -> np.ndarray:
        """Return (x − mean) / scale."""
        return (x - self.mean) / self.scale

    def decode(self, x: np.ndarray) -> np.ndarray:
        """Return x · scale + mean."""
        return x * self.scale + self.mean


def fit_scaling(data: Float[np.ndarray, "n x"]) -> Scaling:
    """Fit a scaling that gives every column zero mean and unit variance.

    Constant columns get scale 1, so that encoding maps them to 0. Missing readings (NaN) are left out.

    Raises:
        UsageError: if a column has no reading at all.
    """
    if np.isnan(data).any():
        if (never := np.flatnonzero(np.isnan(data).all(axis=0))).size:
            raise UsageError(f"observations: column {never[0]} is missing (NaN) at every step; leave the sensor out.")
        std, mean, largest = np.nanstd(data, axis=0), np.nanmean(data, axis=0), np.nanmax(np.abs(data), axis=0)
    else:
        std, mean, largest = data.std(axis=0), data.mean(axis=0), np.abs(data).max(axis=0)
    # Rounding can give a constant column a standard deviation of a few ulps. Dividing by it would amplify rounding
    # noise.
    constant = std <= 1e-9 * np.maximum(1e-3, largest)
    return Scaling(mean, np.where(constant, 1.0, std))


class OneHot(eqx.Module):
    """Encoding of symbols 0 … size−1 as one-hot vectors.

    `decode` returns its argument unchanged, because predictions are distributions over symbols.
    """

    size: int = eqx.field(static=True)

    def encode(self, x: np.ndarray) -> np.ndarray:
        """Return the one-hot vector of each symbol; NaN in all entries for a symbol that is missing (NaN)."""
        x = np.asarray(x)
        if x.dtype.kind != "f" or not (missing := np.isnan(x)).any():
            return np.eye(self.size)[symbols(x, self.size)]
        return np.where(missing.reshape(-1, 1), np.nan, np.eye(self.size)[symbols(np.nan_to_num(x), self.size)])

    def decode(self, x: np.ndarray) -> np.ndarray:
        """Return `x`."""
        return x


def symbols(x: np.ndarray, size: int | None = None, name: str = "observations") -> np.ndarray:
    """Validate a column of symbols and convert it to integers.

    Args:
        x: whole numbers 0, 1, 2, …, as a 1-D array or a single column.
        size: number of known symbols. Default: any number.
        name: how error messages refer to the array.

    Raises:
        UsageError: if there are several columns, or a value is not one of the symbols.
    """
    x = np.asarray(x)
    if x.ndim == 2 and x.shape[1] != 1:
        raise UsageError(f"{name}: has {x.shape[1]} columns; the tabular model takes one column of symbols 0, 1, 2, …")
    flat = x.reshape(-1)
    whole = flat.astype(np.int64)
    if not (whole == flat).all() or whole.min(initial=0) < 0:
        wrong = flat[(whole != flat) | (whole < 0)][0]
        raise UsageError(f"{name}: {wrong} is not one of 0, 1, 2, …; number the symbols from 0, or use another kind.")
    if size is not None and whole.max(initial=0) >= size:
        raise UsageError(f"{name}: symbol {whole.max()} was not seen when fitting ({size} symbols: 0 … {size - 1}).")
    return whole
