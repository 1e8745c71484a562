"""Array types shared by all subpackages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float

if TYPE_CHECKING:
    Numbers = Any  # type checkers cannot follow code that uses NumPy when fitting and JAX when running
    PyTree = Any  # jaxtyping leaves its type unknown
else:
    from jaxtyping import PyTree as PyTree

    Numbers = np.ndarray | Array
"""Arrays of batches and feature maps: NumPy when packing and fitting, JAX inside compiled functions."""
Scalar = float | Float[Array, ""]
"""A setting of an algorithm. An array if agents that are trained together have different values of it."""
