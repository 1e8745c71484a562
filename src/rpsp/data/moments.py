"""Running mean and variance of values that come in batches."""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Moments(NamedTuple):
    """Number of steps seen so far, and mean and variance of their values: one number per step, or a vector."""

    steps: Float[Array, ""]
    mean: Float[Array, "*x"]
    variance: Float[Array, "*x"]


def no_moments() -> Moments:
    """Return the moments before the first step, of one number per step."""
    zero = jnp.zeros((), jnp.float32)
    return Moments(zero, zero, zero)


def merge(moments: Moments, x: Float[Array, "row time *x"], mask: Bool[Array, "row time"]) -> Moments:
    """Return the moments of all earlier steps and the steps of a batch together (Chan et al. 1979).

    Args:
        moments: those of the earlier steps.
        x: the values of the batch. Padding may hold any values.
        mask: True at steps, False at padding.
    """
    steps = jnp.sum(mask, dtype=moments.steps.dtype)
    marks = mask.reshape(*mask.shape, *[1] * (x.ndim - 2))

    def mean_of(x: Array) -> Array:
        return jnp.sum(jnp.where(marks, x, 0.0), axis=(0, 1)) / jnp.maximum(jnp.sum(mask), 1)

    mean = mean_of(x)
    variance = mean_of((x - mean) ** 2)
    total = jnp.maximum(moments.steps + steps, 1)
    share, apart = steps / total, mean - moments.mean
    return Moments(
        moments.steps + steps,
        moments.mean + share * apart,
        (1 - share) * moments.variance + share * variance + share * (1 - share) * apart**2,
    )


def scale_of(moments: Moments) -> Float[Array, "*x"]:
    """Return the standard deviation, or 1 if all values are equal."""
    return jnp.where(moments.variance > 1e-12, jnp.sqrt(jnp.maximum(moments.variance, 1e-12)), 1.0)
