"""A backtracking line search on a trust region, shared by TRPO and VRPG."""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rpsp.algorithms.base import Vector
from rpsp.data import trees
from rpsp.data.arrays import Scalar


class Search(NamedTuple):
    """Where a line search ended: at the start, with fraction 0, if no step was acceptable."""

    tries: Int[Array, ""]
    accepted: Bool[Array, ""]
    sound: Bool[Array, ""]
    """Whether the numbers of any candidate were finite."""
    theta: Vector
    gain: Float[Array, ""]
    kl: Float[Array, ""]
    fraction: Float[Array, ""]


def line_search(
    judge: Callable[[Vector], tuple[Array, Array]],
    theta: Vector,
    step: Vector,
    max_kl: Scalar,
    backtracks: int,
    shrink: Scalar,
) -> Search:
    """The first of θ + shrinkⁱ s, i = 0 … backtracks, with KL ≤ ε and a gain; θ itself if there is none.

    `judge` gives (gain, KL) of a candidate. A candidate of which anything is not finite is refused.
    """

    def unfinished(search: Search) -> Array:
        return ~search.accepted & (search.tries <= backtracks)

    def attempt(search: Search) -> Search:
        fraction = jnp.asarray(shrink, theta.dtype) ** search.tries
        candidate = theta + fraction * step
        gain, kl = judge(candidate)
        finite = jnp.isfinite(kl) & jnp.isfinite(gain) & jnp.all(jnp.isfinite(candidate))
        accepted = (kl <= max_kl) & (gain > 0) & finite
        sound = search.sound | finite
        taken = Search(search.tries + 1, accepted, sound, candidate, gain, kl, fraction)
        refused = search._replace(tries=search.tries + 1, sound=sound)
        return trees.where(accepted, taken, refused)

    zero = jnp.zeros((), theta.dtype)
    no = jnp.asarray(False)
    start = Search(jnp.asarray(0), no, no, theta, zero, zero, zero)
    return jax.lax.while_loop(unfinished, attempt, start)
