"""Checks around a user's environment: values that are not finite, diverged simulations, exceptions, malformed returns."""

from __future__ import annotations

import inspect
import numbers
import traceback
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.utils import RecordConstructorArgs

from rpsp.envs.mujoco_batch import diverged, simulation_of, unusable
from rpsp.envs.watchdog import Overdue, Patience
from rpsp.errors import EnvironmentFailure, RpspError, UsageError


class FailureGuard(gymnasium.Wrapper, RecordConstructorArgs):
    """Ends an episode whose simulation has diverged, instead of letting its numbers reach the learner.

    MuJoCo resets a diverged simulation silently, which would teach the agent that catastrophe leads back to the start.
    A step with a number that is not finite, with a MuJoCo warning, or after which time has run backwards returns the
    last good observation, reward 0, `truncated=True` and `info["failed"]=True`; all others `info["failed"]=False`.

    An ended episode stays ended: until the next reset, steps do nothing and return its last observation with reward 0.

    With `ends_raising` set, an exception in a step ends the episode in the same way, and `info["raised"]` says what was
    raised. The environment is then made anew before the next episode, if `factory` is given.
    """

    def __init__(self, env: gymnasium.Env, factory: Callable[[], gymnasium.Env] | None = None) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._factory = factory
        self._broken = False
        self._form_checked = False
        self.ends_raising = False
        """Whether an exception in a step ends the episode as failed instead of being raised."""
        self._ended: tuple[bool, bool, dict[str, Any]] | None = None
        self.failure = ""
        """The first number that was not finite, in words."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._broken and self._factory is not None:
            fresh = self._factory()
            if fresh.unwrapped is not self.unwrapped:
                with suppress(Exception, SystemExit):  # it is broken already
                    self.env.close()
            self.env = fresh
        self._broken = False
        observation, info = self.env.reset(seed=seed, options=options)
        info = {**info, "failed": False}
        self._check(observation)
        if unusable(np.atleast_1d(observation), 0.0):
            raise EnvironmentFailure(
                f"{type(self.unwrapped).__name__} was reset to an observation that is not finite, {observation}; check "
                "its reset"
            )
        simulation = simulation_of(self.env)
        # Copied here and below, because an environment may write its next observation into the same array.
        self._last, self._time = copy(observation), simulation.time if simulation else 0.0
        self._ended = None
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._ended is not None:
            return copy(self._last), 0.0, *self._ended
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except (Exception, SystemExit) as error:
            if not self.ends_raising or isinstance(error, RpspError) or self._is_malformed(error):
                raise
            self._broken, self._ended = True, (False, True, {"failed": True})
            return copy(self._last), 0.0, False, True, {"failed": True, "raised": _described(error)}
        self._check(observation)
        terminated, truncated = bool(terminated), bool(truncated)  # environments return numpy's as well
        failed = bool(unusable(np.atleast_1d(observation), float(reward)))
        if failed and not self.failure:
            wrong = [(f"observation {i}", x) for i, x in enumerate(np.atleast_1d(observation)) if not np.isfinite(x)]
            self.failure = "{} was {}".format(*[*wrong, ("the reward", reward)][0])
        if simulation := simulation_of(self.env):
            failed |= bool(diverged(simulation.warning.number, self._time, simulation.time))
            self._time = simulation.time
        if failed:
            observation, reward, terminated, truncated = copy(self._last), 0.0, False, True
        self._last = copy(observation)
        self._ended = (terminated, truncated, {"failed": failed}) if terminated or truncated else None
        return observation, reward, terminated, truncated, {**info, "failed": failed}

    def _is_malformed(self, error: BaseException) -> bool:
        """Whether an error comes from the form of what the environment returns, which no new episode would change."""
        if self._form_checked or not isinstance(error, TypeError | ValueError | AssertionError):
            return False
        self._form_checked = True
        with suppress(Exception, SystemExit):
            return _malformed(self.env) is not None
        return False

    def _check(self, observation: Any) -> None:
        """Refuse what no reader of the space could expect; numbers beyond the bounds of a Box are let through."""
        space = self.observation_space
        if np.shape(observation) != space.shape or (isinstance(space, Discrete) and not space.contains(observation)):
            raise UsageError(
                f"{type(self.unwrapped).__name__} returned the observation {_short(observation)} of shape "
                f"{np.shape(observation)}, and its observation_space is {_short(space)}; let the two agree"
            )


def _guarded(factory: Callable[[], gymnasium.Env], patience: Patience) -> FailureGuard:
    with patience:
        return FailureGuard(factory(), factory)


RAISED = Exception, SystemExit, Overdue
"""What counts as a failure of an environment. SystemExit does: only the command itself may end the process so."""


def _described(error: BaseException, doing: str = "") -> str:
    """The type of an error, its message and where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    when = f" while {doing}" if doing else ""
    return f"{type(error).__name__}{when}: {error} ({place.filename}, line {place.lineno})"


RETURNED = {"reset": ("observation", "info"), "step": ("observation", "reward", "terminated", "truncated", "info")}
"""What the methods of an environment return, by Gymnasium's agreement."""


def _malformed(env: gymnasium.Env) -> str | None:
    """What is wrong with the form of what an environment returns, or else one of the wrappers around it."""
    if isinstance(env, gymnasium.Wrapper) and (inside := _malformed(env.env)):
        return inside
    takes = inspect.signature(env.reset).parameters
    missing = [name for name in ("seed", "options") if name not in takes]
    if missing and all(parameter.kind is not parameter.VAR_KEYWORD for parameter in takes.values()):
        form = "def reset(self, *, seed=None, options=None)"
        return f"{type(env).__name__}.reset takes no {' and no '.join(missing)}; let it be {form}"
    for method, names in RETURNED.items():
        returned: Any = env.reset(seed=0) if method == "reset" else env.step(env.action_space.sample())
        call, form = f"{type(env).__name__}.{method}", ", ".join(names)
        if not isinstance(returned, tuple) or len(returned) != len(names):
            many = f"{len(returned)} values" if isinstance(returned, tuple) else f"one {type(returned).__name__}"
            return f"{call} returned {many}; let it return {form}"
        values = dict(zip(names, returned, strict=True))
        if not isinstance(values["info"], dict):
            return f"{call} returned the info {_short(values['info'])}; let it be a dictionary"
        if not isinstance(np.asarray(values.get("reward", 0.0))[()], numbers.Real):
            return f"{call} returned the reward {_short(values['reward'])}; let it be one number, as float(reward)"
    return None


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else f"{text[:119]}…"
