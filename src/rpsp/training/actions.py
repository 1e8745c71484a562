"""Action spaces as the policy sees them: continuous ranges scaled to [-1, 1], and discrete actions as one-hot vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import VectorEnv
from jaxtyping import Float, Float32

from rpsp.data.scaling import symbols
from rpsp.errors import UsageError


@dataclass(frozen=True, eq=False)
class ActionRange:
    """Actions of a Box, scaled so that [−1, 1] is its range. Unbounded actions are neither scaled nor clipped."""

    middle: Float[np.ndarray, " act"]
    half: Float[np.ndarray, " act"]
    """Half the width of the range."""
    low: Float32[np.ndarray, " act"]
    high: Float32[np.ndarray, " act"]
    """The range in these units: −1 and 1 where it is bounded."""
    dtype: np.dtype

    @property
    def size(self) -> int:
        """Size of an action."""
        return len(self.low)

    def clip(self, drawn: Float[np.ndarray, "row act"]) -> Float[np.ndarray, "row act"]:
        """Clip drawn actions to the range. The result is what the environment executes, in the same units."""
        # Twice as fast as np.clip, once a lockstep.
        return np.minimum(np.maximum(drawn, self.low), self.high)

    def decode(self, executed: Float[np.ndarray, "row act"]) -> np.ndarray:
        """Convert executed actions to the environment's own units."""
        return (executed if self._plain else executed * self.half + self.middle).astype(self.dtype)

    def encode(self, actions: np.ndarray) -> Float[np.ndarray, "row act"]:
        """Return what the environment executes of actions in its own units, in these units."""
        return self.clip(actions if self._plain else (actions - self.middle) / self.half)

    @cached_property
    def _plain(self) -> bool:
        """Whether these are the environment's own units."""
        return bool((self.half == 1).all() and (self.middle == 0).all())

    def noise(self, rng: np.random.Generator, steps: int) -> Float[np.ndarray, "steps act"]:
        """Draw what a Gaussian policy needs for this number of actions: standard normal numbers."""
        return rng.standard_normal((steps, self.size))

    def random(self, noise: Float[np.ndarray, "row act"]) -> Float[np.ndarray, "row act"]:
        """Return random actions of this noise."""
        return noise


@dataclass(frozen=True, eq=False)
class ActionSymbols:
    """Actions of a Discrete space as one-hot vectors."""

    size: int
    start: int

    def clip(self, drawn: Float[np.ndarray, "row act"]) -> Float[np.ndarray, "row act"]:
        """Return the actions: one-hot vectors need no clipping."""
        return drawn

    def decode(self, executed: Float[np.ndarray, "row act"]) -> np.ndarray:
        """Convert one-hot vectors to the numbers of the actions in the environment."""
        return self.start + executed.argmax(axis=1)

    def encode(self, actions: np.ndarray) -> Float[np.ndarray, "row act"]:
        """Return the one-hot vectors of actions of the environment."""
        return np.eye(self.size, dtype=np.float32)[symbols(actions - self.start, self.size, "actions")]

    def noise(self, rng: np.random.Generator, steps: int) -> Float[np.ndarray, "steps act"]:
        """Draw what a categorical policy needs for this number of actions: standard Gumbel numbers."""
        return rng.gumbel(size=(steps, self.size))

    def random(self, noise: Float[np.ndarray, "row act"]) -> Float[np.ndarray, "row act"]:
        """Return uniformly random actions of this noise."""
        return np.eye(self.size, dtype=np.float32)[noise.argmax(axis=1)]


def action_units(envs: VectorEnv) -> ActionRange | ActionSymbols:
    """Return the scaling of the actions of these environments."""
    return units_of(envs.single_action_space, _name(envs))


def units_of(space: Space, name: str = "the environment") -> ActionRange | ActionSymbols:
    """Return the scaling of the actions in this space.

    Args:
        space: a 1-D Box of floats, or a Discrete space.
        name: name of the environment in messages.

    Raises:
        UsageError: if it is another space.
    """
    if isinstance(space, Discrete):
        return ActionSymbols(int(space.n), int(space.start))
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise UsageError(f"envs: the actions of {name} are in {space}; give a 1-D Box or a Discrete space.")
    if space.dtype.kind != "f":
        raise UsageError(
            f"envs: the actions of {name} are whole numbers, {space}; let it take a Box of float32 and round them itself, "
            "or give a Discrete space."
        )
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high) & (low < high)
    with np.errstate(invalid="ignore", over="ignore"):  # bounds may be infinite
        middle, half = np.where(bounded, (low + high) / 2, 0.0), np.where(bounded, (high - low) / 2, 1.0)
        lowest, highest = (((limit - middle) / half).astype(np.float32) for limit in (low, high))
    return ActionRange(middle, half, lowest, highest, np.dtype(space.dtype))


def _name(envs: VectorEnv) -> str:
    return "the environment" if envs.spec is None else envs.spec.id
