"""Random numbers: from a JAX key to a NumPy generator."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import PRNGKeyArray


def generator(key: PRNGKeyArray) -> np.random.Generator:
    """Return a NumPy generator whose random numbers are determined by a key.

    Args:
        key: a key that is not used elsewhere; split it first if it is.
    """
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))
