"""Action spaces as the policy sees them: continuous ranges scaled to [-1, 1], and discrete actions as one-hot vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import VectorEnv
from jaxtyping import Float, Float32

from rpsp.errors import UsageError


@dataclass(frozen=True, eq=False)
class ActionRange:
    """Actions of a Box in units where [−1, 1] is its range. Where it has no bounds, its own units and no clipping."""

    middle: Float[np.ndarray, " act"]
    half: Float[np.ndarray, " act"]
    """Half the width of the range."""
    low: Float32[np.ndarray, " act"]
    high: Float32[np.ndarray, " act"]
    """The range in these units: −1 and 1 where it is bounded."""
    dtype: np.dtype

    @property
    def size(self) -> int:
        return len(self.low)

    def clip(self, drawn: Float[np.ndarray, "row act"]) -> Float[np.ndarray, "row act"]:
        """What the environment executes of the actions a policy drew, in the same units."""
        # Twice as fast as np.clip, once a lockstep.
        return np.minimum(np.maximum(drawn, self.low), self.high)

    def decode(self, executed: Float[np.ndarray, "row act"]) -> np.ndarray:
        """Executed actions in the environment's own units."""
        return (executed if self._plain else executed * self.half + self.middle).astype(self.dtype)

    @cached_property
    def _plain(self) -> bool:
        """Whether these are the environment's own."""
        return bool((self.half == 1).all() and (self.middle == 0).all())

    def noise(self, rng: np.random.Generator, steps: int) -> Float[np.ndarray, "steps act"]:
        """What a Gaussian policy needs to draw so many actions: standard normal numbers."""
        return rng.standard_normal((steps, self.size))

    def random(self, noise: Float[np.ndarray, "row act"]) -> Float[np.ndarray, "row act"]:
        """Random actions of this noise."""
        return noise


@dataclass(frozen=True, eq=False)
class ActionSymbols:
    """Actions of a Discrete space as one-hot vectors."""

    size: int
    start: int

    def clip(self, drawn: Float[np.ndarray, "row act"]) -> Float[np.ndarray, "row act"]:
        return drawn

    def decode(self, executed: Float[np.ndarray, "row act"]) -> np.ndarray:
        return self.start + executed.argmax(axis=1)

    def noise(self, rng: np.random.Generator, steps: int) -> Float[np.ndarray, "steps act"]:
        """What a categorical policy needs to draw so many actions: standard Gumbel numbers."""
        return rng.gumbel(size=(steps, self.size))

    def random(self, noise: Float[np.ndarray, "row act"]) -> Float[np.ndarray, "row act"]:
        return np.eye(self.size, dtype=np.float32)[noise.argmax(axis=1)]


def action_units(envs: VectorEnv) -> ActionRange | ActionSymbols:
    """The units in which an agent acts on these environments."""
    return units_of(envs.single_action_space, _name(envs))


def units_of(space: Space, name: str = "the environment") -> ActionRange | ActionSymbols:
    """The units in which an agent acts in this space of actions."""
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
