"""Noise of actions that is correlated in time: exploration that moves somewhere instead of trembling. Not in the paper.

Pink noise (Eberhard et al. 2023) has a power spectrum of about 1/f: slow and fast changes have the same share. Here it is a
sum of stationary autoregressive processes whose time constants cover those of most tasks, so that episodes of any length
can be drawn in blocks. At every single step, an action has the same distribution as with white noise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.signal import lfilter
from scipy.special import log_ndtr

from rpsp.training.actions import ActionRange, ActionSymbols

TIME_CONSTANTS = 2.0, 8.0, 32.0, 128.0
"""Time constants of the autoregressive processes, in steps."""


class PartlyPink:
    """A stream of standard normal numbers, of which a fraction is pink.

        z_t = √(1 − c) w_t + √(c / n) Σ_i x^i_t,    x^i_t = ρ_i x^i_{t−1} + √(1 − ρ_i²) w^i_t,    ρ_i = exp(−1 / τ_i)

    where c is the fraction of the variance that is pink, τ_i are the n time constants, and all w are independent standard
    normal numbers.

    Args:
        size: number of independent components.
        fraction: c.
        rng: the source of randomness.
    """

    def __init__(self, size: int, fraction: float, rng: np.random.Generator):
        self._size, self._fraction, self._rng = size, fraction, rng
        self._x = rng.standard_normal((len(TIME_CONSTANTS), size))

    def __call__(self, steps: int) -> Float[np.ndarray, "steps size"]:
        """Return the next numbers."""
        white, *own = self._rng.standard_normal((1 + len(TIME_CONSTANTS), steps, self._size))
        total = np.zeros_like(white)
        for i, (tau, w) in enumerate(zip(TIME_CONSTANTS, own, strict=True)):
            rho = np.exp(-1 / tau)
            x, _ = lfilter([np.sqrt(1 - rho**2)], [1.0, -rho], w, axis=0, zi=rho * self._x[i : i + 1])
            total, self._x[i] = total + x, x[-1]
        return np.sqrt(1 - self._fraction) * white + np.sqrt(self._fraction / len(TIME_CONSTANTS)) * total


def noise_of(
    units: ActionRange | ActionSymbols, pink: float, rng: np.random.Generator
) -> Callable[[int], Float[np.ndarray, "steps act"]]:
    """Return a function that draws the noise of the next steps of an episode.

    Args:
        units: the action space.
        pink: the fraction of its variance that is pink.
        rng: the source of randomness.
    """
    if pink == 0:
        return lambda steps: units.noise(rng, steps)
    stream = PartlyPink(units.size, pink, rng)
    if isinstance(units, ActionSymbols):
        return lambda steps: gumbel(stream(steps))
    return stream


def gumbel(normal: Float[np.ndarray, "steps act"]) -> Float[np.ndarray, "steps act"]:
    """Return Gumbel numbers −log(−log Φ(z)) of standard normal numbers z, where Φ is their distribution function."""
    return -np.log(-log_ndtr(normal))
