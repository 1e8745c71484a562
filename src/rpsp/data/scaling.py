"""Encodings of observations and actions: standardised numbers, and symbols as one-hot vectors."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import numpy as np
from jaxtyping import Float

from rpsp.data.linalg import randomized_svd
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


class ImageBasis(eqx.Module):
    """Coordinates of images along their principal directions, z = Vᵀ (x − m) / s, and back, x ≈ m + V (s z).

    Rows x are pixels. All coordinates have one scale s, the standard deviation along the first direction, so that errors of
    coordinates are errors of pixels.
    """

    mean: Float[np.ndarray, " pixel"]
    """m: the mean image."""
    directions: Float[np.ndarray, "pixel coordinate"]
    """V: orthonormal directions, as columns."""
    scale: Float[np.ndarray, " coordinate"]
    """s, once for each coordinate."""

    def encode(self, x: np.ndarray) -> np.ndarray:
        """Return the coordinates of rows of pixels."""
        return ((x.astype(np.float32) - self.mean) @ self.directions / self.scale).astype(np.float64)

    def decode(self, x: np.ndarray) -> np.ndarray:
        """Return the rows of pixels at these coordinates."""
        return self.mean + (x * self.scale) @ self.directions.T


FITTED_IMAGES = 4000
"""Largest number of images to which a basis is fitted."""


def fit_image_basis(images: Float[np.ndarray, "n pixel"], size: int, *, rng: np.random.Generator) -> ImageBasis:
    """Fit a basis of images by randomised principal component analysis.

    Args:
        images: rows of pixels.
        size: largest number of coordinates.
        rng: chooses the images that are used, and the probe vectors.
    """
    some = rng.permutation(len(images))[:FITTED_IMAGES]
    used = images[np.sort(some)].astype(np.float64)
    mean = used.mean(axis=0)
    X = used - mean
    directions = randomized_svd(X, size, rng=rng)
    spread = (X @ directions).std(axis=0).max(initial=0.0)
    scale = np.full(directions.shape[1], spread if spread > 1e-6 else 1.0)
    return ImageBasis(*(part.astype(np.float32) for part in (mean, directions, scale)))


def unexplained(encoding: Encoding, rows: Float[np.ndarray, "n x"]) -> float:
    """Return Σ ‖x − decode(encode(x))‖² / Σ ‖x − x̄‖²: the fraction of the variance of rows that the encoding loses."""
    given = rows.astype(np.float64)
    lost = given - encoding.decode(encoding.encode(given))
    return float(np.square(lost).sum() / max(np.square(given - given.mean(axis=0)).sum(), 1e-12))


class Joined(eqx.Module):
    """Encodings of parts of a row, side by side."""

    parts: tuple[Scaling | ImageBasis, ...]
    sizes: tuple[int, ...] = eqx.field(static=True)
    """Number of entries of each part of a row."""

    def encode(self, x: np.ndarray) -> np.ndarray:
        """Return the encodings of the parts."""
        pieces = np.split(x, np.cumsum(self.sizes)[:-1], axis=-1)
        return np.concatenate([part.encode(piece) for part, piece in zip(self.parts, pieces, strict=True)], axis=-1)

    def decode(self, x: np.ndarray) -> np.ndarray:
        """Return the parts of the row."""
        pieces = np.split(x, np.cumsum([encoded_size(part) for part in self.parts])[:-1], axis=-1)
        return np.concatenate([part.decode(piece) for part, piece in zip(self.parts, pieces, strict=True)], axis=-1)


def fit_with_images(
    rows: Float[np.ndarray, "n x"], images: Sequence[range], size: int, *, rng: np.random.Generator
) -> ImageBasis | Joined:
    """Fit the encoding of rows that contain images: a basis for each image, and a scaling of the numbers between them.

    Args:
        rows: observations.
        images: the entries of each image, in order.
        size: largest number of coordinates of an image.
        rng: random generator of the fits.
    """
    parts: list[Scaling | ImageBasis] = []
    sizes: list[int] = []
    last = 0
    for entries in (*images, range(rows.shape[1], rows.shape[1])):
        if entries.start > last:
            parts.append(fit_scaling(rows[:, last : entries.start].astype(np.float64)))
            sizes.append(entries.start - last)
        if len(entries):
            parts.append(fit_image_basis(rows[:, entries.start : entries.stop], size, rng=rng))
            sizes.append(len(entries))
        last = entries.stop
    (first,) = parts if len(parts) == 1 else (None,)
    return first if isinstance(first, ImageBasis) else Joined(tuple(parts), tuple(sizes))


Encoding = Scaling | OneHot | ImageBasis | Joined
"""Encodings of observations."""


def encoded_size(encoding: Encoding) -> int:
    """Return the dimension of an encoded observation or action."""
    if isinstance(encoding, Joined):
        return sum(map(encoded_size, encoding.parts))
    return encoding.size if isinstance(encoding, OneHot) else len(encoding.scale)


def row_shape(encoding: Encoding) -> tuple[int, ...]:
    """Return the shape of what is encoded: (n,) for rows, () for symbols."""
    if isinstance(encoding, Joined):
        return (sum(encoding.sizes),)
    return () if isinstance(encoding, OneHot) else encoding.mean.shape


def coordinates(encoding: Encoding) -> Scaling | OneHot:
    """Return the units in which figures show encoded observations: those of the environment, but coordinates of images."""
    if isinstance(encoding, Scaling | OneHot):
        return encoding
    if isinstance(encoding, ImageBasis):
        return Scaling(np.zeros(len(encoding.scale)), encoding.scale.astype(np.float64))
    units = [part if isinstance(part, Scaling) else coordinates(part) for part in encoding.parts]
    numbers = [part for part in units if isinstance(part, Scaling)]  # all of them
    return Scaling(np.concatenate([part.mean for part in numbers]), np.concatenate([part.scale for part in numbers]))


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
