"""How long a run is: a number of iterations, of environment steps, or minutes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from rpsp.errors import UsageError

UNLIMITED = 999_999
"""Number of iterations of a run that only --minutes limits."""
AVERAGED = 10
"""Number of last iterations whose mean return is the return of a run."""
NAMES = "iterations", "steps", "minutes"
"""The settings of a budget."""


class Budget(NamedTuple):
    """The limits of a run. It ends after the first iteration in which one of them is reached."""

    iterations: int
    """Number of iterations. With `steps`, the largest number that can be needed."""
    steps: int | None = None
    """Environment steps, exploration included."""
    minutes: float | None = None
    """Time of all processes that worked on the run, with start-up and compilation."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Budget:
        """Return the budget of a resolved configuration, given as a mapping. Older ones have only iterations."""
        return cls(*(settings.get(name) for name in NAMES))  # pyright: ignore[reportArgumentType] - resolved

    def spent(self, iterations: int, steps: int, seconds: float) -> bool:
        """Return whether a run that has done this much is finished. It does at least one iteration, unless 0 are asked."""
        if iterations >= self.iterations:
            return True
        by_steps = self.steps is not None and steps >= self.steps
        by_time = self.minutes is not None and seconds >= 60 * self.minutes
        return iterations > 0 and (by_steps or by_time)

    @property
    def flags(self) -> list[str]:
        """The budget as flags of `rpsp resume`."""
        if self.steps is None and self.minutes is None:
            return ["--iterations", str(self.iterations)]
        given = {"--steps": self.steps, "--minutes": self.minutes}
        return [word for flag, value in given.items() if value is not None for word in (flag, str(value))]


def check_budget(iterations: int | None, steps: int | None, minutes: float | None) -> None:
    """Check the budget that a user gives.

    Raises:
        UsageError: if a value is out of range, or both iterations and steps are given.
    """
    if iterations is not None and iterations < 0:
        raise UsageError(f"iterations: {iterations} is not a whole number ≥ 0.")
    if steps is not None and steps < 1:
        raise UsageError(f"steps: {steps} is not a whole number ≥ 1.")
    if minutes is not None and not 0 < minutes < math.inf:
        raise UsageError(f"minutes: {minutes} is not a number greater than 0.")
    if iterations is not None and steps is not None:
        raise UsageError(f"steps: {steps} steps and {iterations} iterations are given; give only one of them.")


def most_iterations(steps: int, samples: int, explored: int) -> int:
    """Return the largest number of iterations that a run of this many steps can do.

    Args:
        steps: the budget, exploration included.
        samples: minimum number of steps of an iteration.
        explored: minimum number of steps of the exploration.
    """
    return max(1, math.ceil((steps - explored) / samples))
