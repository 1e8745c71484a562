"""The default method: chosen by what is known before training, if a run names none.

The choices were made on the suite of `benchmarks/defaults` (docs/defaults.md). The speed of the environment is not used,
because the same command would then train another method on another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space

from rpsp.envs.make import make
from rpsp.experiments import env_args

AUTO = "auto"
"""The name that stands for the default method."""
FEW_STEPS = 1_000_000
"""Number of environment steps up to which continuous actions are learned by SAC."""


@dataclass(frozen=True)
class Choice:
    """A method, settings that differ from its row, and the reason."""

    method: str
    settings: Mapping[str, Any]
    when: str
    """A noun phrase."""

    @property
    def flags(self) -> str:
        """The choice as flags of `rpsp train`."""
        own = (f" --{name.replace('_', '-')} {value}" for name, value in self.settings.items())
        return f"--method {self.method}{''.join(own)}"


def _choice(method: str, when: str, **settings: Any) -> Choice:
    return Choice(method, MappingProxyType(settings), when)


CONTINUOUS = _choice("rpsi-sac", f"continuous actions between bounds and at most {FEW_STEPS:,} steps", pink_noise=1.0)
LONG = _choice("rpsi-ppo", "continuous actions without bounds or for more steps", pink_noise=0.5)
DISCRETE = _choice("rpsi-ppo", "discrete actions", pink_noise=0.5, entropy_weight=0.01)
CHOICES = CONTINUOUS, LONG, DISCRETE
"""All choices, for lists."""


def choice(space: Space, steps: int | None = None) -> Choice:
    """Return the default for an action space and a budget.

    Args:
        space: the action space.
        steps: the budget in environment steps, if it is given in steps.
    """
    if not isinstance(space, Box):
        return DISCRETE
    if np.isfinite(space.low).all() and np.isfinite(space.high).all() and (steps or 0) <= FEW_STEPS:
        return CONTINUOUS
    return LONG


def choice_for(env: str | Callable[[], Any] | None, given: Mapping[str, Any]) -> Choice:
    """Return the default for an environment, which is made once to find out its action space.

    If it cannot be made, the choice does not matter: the run will end with the reason.

    Args:
        env: a Gymnasium id, or a function that makes an environment.
        given: flat settings. Only the arguments of the environment and the number of steps matter.
    """
    with suppress(Exception), closing(make(env, **_arguments(given))) as envs:  # pyright: ignore[reportArgumentType]
        steps = given.get("steps")
        return choice(envs.single_action_space, steps if isinstance(steps, int) else None)
    return DISCRETE


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    patience = given.get("step_timeout", 25.0)
    return {"step_timeout": patience} | env_args.parsed(env_args.canonical(given.get("env_args", ())))
