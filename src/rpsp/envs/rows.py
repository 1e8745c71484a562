"""The rows of a vector environment: their seeds, which of them to reset, and the types of values per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rpsp.errors import UsageError

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]
"""Indices of environments in a batch."""
Seeds = int | np.integer[Any] | Sequence[int | None] | NDArray[np.integer[Any]] | None
"""Seeds accepted by `reset`: one number (row i gets seed + i), one per row, or None to keep the generators."""


def row_seeds(seed: Seeds, num_envs: int) -> list[int | None]:
    """Return one seed per environment as Python integers, with the convention of Gymnasium's vector environments."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        seed = [int(seed) + row for row in range(num_envs)]
    if len(seed) != num_envs:
        raise UsageError(f"seed has {len(seed)} entries for {num_envs} environments; give one number or one per row")
    # Gymnasium does not accept NumPy integers.
    return [None if one is None else int(one) for one in seed]


def rows_to_reset(options: Mapping[str, Any] | None, num_envs: int) -> Rows:
    """Return the rows that are True in `options["reset_mask"]`; all rows if there is no mask."""
    if options is None or "reset_mask" not in options:
        return np.arange(num_envs)
    mask = np.asarray(options["reset_mask"])
    if mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise UsageError(
            f"options['reset_mask'] is {mask.dtype}{list(mask.shape)} with {np.count_nonzero(mask)} set; "
            f"give {num_envs} booleans, at least one of them True"
        )
    return np.flatnonzero(mask)
