"""Checks of environments: NaN or infinite values, diverged simulations, exceptions and malformed return values."""

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

from rpsp.envs.images import ImageSettings
from rpsp.envs.mujoco_batch import diverged, simulation_of, unusable
from rpsp.envs.structures import Observations, flattened
from rpsp.envs.watchdog import Overdue, Patience
from rpsp.errors import EnvironmentFailure, RpspError, UsageError


class FailureGuard(gymnasium.Wrapper, RecordConstructorArgs):
    """Wrapper that ends episodes whose simulation has diverged, so that their values do not reach the learner.

    MuJoCo resets a diverged simulation silently. Without this wrapper, the agent would learn that a diverged simulation
    leads back to the initial state. A step fails if it has NaN or infinite values or a MuJoCo warning, or if simulation
    time decreases. A failed step returns the last good observation, reward 0, `truncated=True` and
    `info["failed"]=True`. All other steps have `info["failed"]=False`.

    After the end of an episode, steps have no effect until the next reset. They return the last observation and reward
    0.

    If `ends_raising` is set, an exception in a step ends the episode in the same way, and `info["raised"]` describes
    the exception. The environment is then created again before the next episode, if `factory` is given.

    Args:
        env: the environment.
        factory: creates another environment of the same kind. Default: none.
        gaps: whether NaN in an observation means that a reading is missing, and is no failure.
    """

    def __init__(
        self, env: gymnasium.Env, factory: Callable[[], gymnasium.Env] | None = None, gaps: bool = False
    ) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._gaps = gaps
        self._factory = factory
        self._broken = False
        self._form_checked = False
        self.ends_raising = False
        """Whether an exception in a step ends the episode as failed instead of being raised."""
        self._ended: tuple[bool, bool, dict[str, Any]] | None = None
        self.failure = ""
        """Description of the first NaN or infinite value; empty if there was none."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment. It is created again first if it raised an exception in the last episode.

        Raises:
            EnvironmentFailure: if the first observation has NaN or infinite values.
            UsageError: if the observation does not fit its space.
        """
        if self._broken and self._factory is not None:
            fresh = self._factory()
            if fresh.unwrapped is not self.unwrapped:
                with suppress(Exception, SystemExit):  # the environment is broken already
                    self.env.close()
            self.env = fresh
        self._broken = False
        observation, info = self.env.reset(seed=seed, options=options)
        info = {**info, "failed": False}
        self._check(observation)
        if unusable(self._read(observation), 0.0):
            raise EnvironmentFailure(
                f"{type(self.unwrapped).__name__} was reset to an observation that is not finite, {observation}; check "
                "its reset"
            )
        simulation = simulation_of(self.env)
        # Copied here and below, because an environment may reuse the array for its next observation.
        self._last, self._time = copy(observation), simulation.time if simulation else 0.0
        self._ended = None
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and end the episode if the step fails. Has no effect after the end of an episode.

        Raises:
            UsageError: if the observation does not fit its space.
        """
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
        terminated, truncated = bool(terminated), bool(truncated)  # environments may return NumPy booleans
        failed = bool(unusable(self._read(observation), float(reward)))
        if failed and not self.failure:
            layout = getattr(self.env, "observations", None)
            names = (
                layout.names
                if isinstance(layout, Observations)
                else [f"observation {i}" for i in range(np.size(observation))]
            )
            readings = zip(names, self._read(observation), strict=True)
            wrong = [(name, x) for name, x in readings if not np.isfinite(x)]
            self.failure = "{} was {}".format(*[*wrong, ("the reward", reward)][0])
        if simulation := simulation_of(self.env):
            failed |= bool(diverged(simulation.warning.number, self._time, simulation.time))
            self._time = simulation.time
        if failed:
            observation, reward, terminated, truncated = copy(self._last), 0.0, False, True
        self._last = copy(observation)
        self._ended = (terminated, truncated, {"failed": failed}) if terminated or truncated else None
        return observation, reward, terminated, truncated, {**info, "failed": failed}

    def _read(self, observation: Any) -> np.ndarray:
        """Return the observation as a vector, with 0 in the place of missing readings."""
        found = np.atleast_1d(observation)
        return np.where(np.isnan(found), 0.0, found) if self._gaps else found

    def _is_malformed(self, error: BaseException) -> bool:
        """Return whether an error is due to malformed return values, which a new episode would not change."""
        if self._form_checked or not isinstance(error, TypeError | ValueError | AssertionError):
            return False
        self._form_checked = True
        with suppress(Exception, SystemExit):
            return _malformed(self.env) is not None
        return False

    def _check(self, observation: Any) -> None:
        """Raise an error if an observation does not fit its space. Values outside the bounds of a Box are accepted."""
        space = self.observation_space
        if np.shape(observation) != space.shape or (isinstance(space, Discrete) and not space.contains(observation)):
            raise UsageError(
                f"{type(self.unwrapped).__name__} returned the observation {_short(observation)} of shape "
                f"{np.shape(observation)}, and its observation_space is {_short(space)}; make them agree"
            )


def _guarded(
    factory: Callable[[], gymnasium.Env], patience: Patience, images: ImageSettings, gaps: bool = False
) -> FailureGuard:
    def made() -> gymnasium.Env:
        return flattened(factory(), images)

    with patience:
        return FailureGuard(made(), made, gaps)


RAISED = Exception, SystemExit, Overdue
"""Exceptions that count as failures of an environment. SystemExit is one: only the command may end the process."""


def _described(error: BaseException, doing: str = "") -> str:
    """Return the type of an error, its message and where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    when = f" while {doing}" if doing else ""
    return f"{type(error).__name__}{when}: {error} ({place.filename}, line {place.lineno})"


RETURNED = {"reset": ("observation", "info"), "step": ("observation", "reward", "terminated", "truncated", "info")}
"""What the methods of an environment return in Gymnasium's API."""


def _malformed(env: gymnasium.Env) -> str | None:
    """Describe what is malformed in the methods of an environment or of one of its wrappers; None if nothing is."""
    if isinstance(env, gymnasium.Wrapper) and (inside := _malformed(env.env)):
        return inside
    takes = inspect.signature(env.reset).parameters
    missing = [name for name in ("seed", "options") if name not in takes]
    if missing and all(parameter.kind is not parameter.VAR_KEYWORD for parameter in takes.values()):
        form = "def reset(self, *, seed=None, options=None)"
        return f"{type(env).__name__}.reset takes no {' and no '.join(missing)}; define it as {form}"
    for method, names in RETURNED.items():
        returned: Any = env.reset(seed=0) if method == "reset" else env.step(env.action_space.sample())
        call, form = f"{type(env).__name__}.{method}", ", ".join(names)
        if not isinstance(returned, tuple) or len(returned) != len(names):
            many = f"{len(returned)} values" if isinstance(returned, tuple) else f"one {type(returned).__name__}"
            return f"{call} returned {many}; it must return {form}"
        values = dict(zip(names, returned, strict=True))
        if not isinstance(values["info"], dict):
            return f"{call} returned the info {_short(values['info'])}; it must be a dictionary"
        if not isinstance(np.asarray(values.get("reward", 0.0))[()], numbers.Real):
            return f"{call} returned the reward {_short(values['reward'])}; it must be one number, as float(reward)"
    return None


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else f"{text[:119]}…"
