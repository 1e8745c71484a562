"""Action spaces as the policy sees them: continuous ranges scaled to [-1, 1], and discrete actions as one-hot vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from gymnasium.vector import VectorEnv
from jaxtyping import Float, Float32

from rpsp.data.scaling import symbols
from rpsp.envs.structures import MixedActions, symbols_of
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


@dataclass(frozen=True, eq=False)
class ActionProduct:
    """Actions of numbers and symbols: the numbers, scaled as in `ActionRange`, and a one-hot vector for each symbol."""

    numbers: ActionRange
    """The numbers, which come first; there may be none."""
    symbols: tuple[int, ...]
    """Number of values of each symbol."""
    dtype: np.dtype

    @property
    def size(self) -> int:
        """Size of an action."""
        return self.numbers.size + sum(self.symbols)

    @cached_property
    def low(self) -> Float32[np.ndarray, " act"]:
        """Lower bounds in these units; 0 for entries of one-hot vectors."""
        return np.append(self.numbers.low, np.zeros(sum(self.symbols), np.float32))

    @cached_property
    def high(self) -> Float32[np.ndarray, " act"]:
        """Upper bounds in these units; 1 for entries of one-hot vectors."""
        return np.append(self.numbers.high, np.ones(sum(self.symbols), np.float32))

    @cached_property
    def half(self) -> Float[np.ndarray, " number"]:
        """Half the width of the range of each entry of a decoded action; 1 for symbols, so that values differ by 1."""
        return np.append(self.numbers.half, np.ones(len(self.symbols)))

    def clip(self, drawn: Float[np.ndarray, "row act"]) -> Float[np.ndarray, "row act"]:
        """Clip the numbers to their range."""
        return np.minimum(np.maximum(drawn, self.low), self.high)

    def decode(self, executed: Float[np.ndarray, "row act"]) -> np.ndarray:
        """Convert executed actions to rows of the environment: numbers in its units, and a number from 0 for each symbol."""
        n = self.numbers.size
        chosen = [part.argmax(axis=1) for part in self._parts(executed)]
        return np.column_stack([self.numbers.decode(executed[:, :n]), *chosen]).astype(self.dtype)

    def encode(self, actions: np.ndarray) -> Float[np.ndarray, "row act"]:
        """Return rows of the environment in these units."""
        n = self.numbers.size
        chosen = [
            np.eye(size, dtype=np.float32)[symbols(actions[:, n + i], size, "actions")]
            for i, size in enumerate(self.symbols)
        ]
        return np.concatenate([self.numbers.encode(actions[:, :n]), *chosen], axis=1)

    def noise(self, rng: np.random.Generator, steps: int) -> Float[np.ndarray, "steps act"]:
        """Draw standard normal numbers for the numbers and standard Gumbel numbers for the symbols."""
        return np.concatenate([self.numbers.noise(rng, steps), rng.gumbel(size=(steps, sum(self.symbols)))], axis=1)

    def random(self, noise: Float[np.ndarray, "row act"]) -> Float[np.ndarray, "row act"]:
        """Return random actions of this noise: standard normal numbers, and uniformly random symbols."""
        n = self.numbers.size
        chosen = [np.eye(part.shape[1], dtype=np.float32)[part.argmax(axis=1)] for part in self._parts(noise)]
        return np.concatenate([noise[:, :n], *chosen], axis=1)

    def _parts(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the entries of each symbol."""
        return np.split(rows[:, self.numbers.size :], np.cumsum(self.symbols)[:-1], axis=1)


Units = ActionRange | ActionSymbols | ActionProduct
"""Actions as the policy sees them."""


def action_units(envs: VectorEnv) -> Units:
    """Return the scaling of the actions of these environments."""
    return units_of(envs.single_action_space, _name(envs))


def units_of(space: Space, name: str = "the environment") -> Units:
    """Return the scaling of the actions in this space.

    Args:
        space: a 1-D Box of floats, a Discrete, MultiDiscrete or MixedActions space.
        name: name of the environment in messages.

    Raises:
        UsageError: if it is another space.
    """
    if isinstance(space, Discrete):
        return ActionSymbols(int(space.n), int(space.start))
    if isinstance(space, MultiDiscrete) and len(space.shape) == 1:
        nothing = np.zeros(0, np.float32)
        return ActionProduct(_range(nothing, nothing, space.dtype), symbols_of(space), np.dtype(space.dtype))
    if isinstance(space, MixedActions):
        n = len(space.low) - len(space.symbols)
        return ActionProduct(_range(space.low[:n], space.high[:n], space.dtype), space.symbols, np.dtype(space.dtype))
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise UsageError(f"envs: the actions of {name} are in {space}; give a 1-D Box or a Discrete space.")
    if space.dtype.kind != "f":
        raise UsageError(
            f"envs: the actions of {name} are whole numbers, {space}; let it take a Box of float32 and round them itself, "
            "or give a Discrete space."
        )
    return _range(space.low, space.high, space.dtype)


def _range(low: np.ndarray, high: np.ndarray, dtype: Any) -> ActionRange:
    """Return the scaling of numbers between these bounds."""
    low, high = low.astype(np.float64), high.astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high) & (low < high)
    with np.errstate(invalid="ignore", over="ignore"):  # bounds may be infinite
        middle, half = np.where(bounded, (low + high) / 2, 0.0), np.where(bounded, (high - low) / 2, 1.0)
        lowest, highest = (((limit - middle) / half).astype(np.float32) for limit in (low, high))
    return ActionRange(middle, half, lowest, highest, np.dtype(dtype))


def _name(envs: VectorEnv) -> str:
    return "the environment" if envs.spec is None else envs.spec.id
