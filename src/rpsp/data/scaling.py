"""Encodings of observations: standardised numbers, and symbols as one-hot vectors."""

from __future__ import annotations

import equinox as eqx
import numpy as np
from jaxtyping import Float

from rpsp.errors import UsageError


class Scaling(eqx.Module):
    """x ↦ (x − mean) / scale, and back: the units in which filters see observations and actions."""

    mean: Float[np.ndarray, " x"]
    scale: Float[np.ndarray, " x"]

    def encode(self, x: np.ndarray) -> np.ndarray:
        return (x - self.mean) / self.scale

    def decode(self, x: np.ndarray) -> np.ndarray:
        return x * self.scale + self.mean


def fit_scaling(data: Float[np.ndarray, "n x"]) -> Scaling:
    """Zero mean and unit variance a column. A column that never changes keeps scale 1, so that it stays harmless."""
    std = data.std(axis=0)
    # Rounding leaves a constant column a std of a few ulps of its value; dividing by that would make noise of it.
    constant = std <= 1e-9 * np.maximum(1e-3, np.abs(data).max(axis=0))
    return Scaling(data.mean(axis=0), np.where(constant, 1.0, std))


class OneHot(eqx.Module):
    """Symbols 0 … size−1 as one-hot vectors, and distributions left as they are on the way back."""

    size: int = eqx.field(static=True)

    def encode(self, x: np.ndarray) -> np.ndarray:
        return np.eye(self.size)[symbols(x, self.size)]

    def decode(self, x: np.ndarray) -> np.ndarray:
        return x


def symbols(x: np.ndarray, size: int | None = None, name: str = "observations") -> np.ndarray:
    """A column of whole numbers 0, 1, 2, … as integers, or a sentence that says why it is not one."""
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
