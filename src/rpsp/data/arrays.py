"""Types shared by all rooms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float

if TYPE_CHECKING:
    Numbers = Any  # a static checker cannot follow code that is numpy when fitting and jax when running
else:
    Numbers = np.ndarray | Array
"""What batches and feature maps are made of: numpy while data are packed and fitted, jax inside a compiled function."""
Scalar = float | Float[Array, ""]
"""A setting of an algorithm; an array if several runs that are trained together differ in it."""
