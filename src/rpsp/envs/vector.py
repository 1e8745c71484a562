"""Vector environments: serial stepping, disturbances of a batch, autoreset, and explanations of failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from rpsp.envs.disturbances import Array, Disturbance, Latency, Selection
from rpsp.envs.guards import RAISED, FailureGuard, _described, _guarded, _malformed
from rpsp.envs.mujoco_batch import Bools, Seeds, row_seeds, rows_to_reset
from rpsp.envs.watchdog import Overdue, Patience
from rpsp.errors import EnvironmentFailure, RpspError, UsageError


class SerialBatch(SyncVectorEnv):
    """Gymnasium's `SyncVectorEnv` of guarded environments, without autoreset, in which finished rows wait for a reset.

    It behaves as `MujocoBatch` does; `SyncVectorEnv` itself would refuse to be stepped while a row is finished.
    """

    def __init__(self, factories: Sequence[Callable[[], gymnasium.Env]], patience: Patience | None = None) -> None:
        guarded = [partial(_guarded, factory, patience or Patience()) for factory in factories]
        super().__init__(guarded, autoreset_mode=AutoresetMode.DISABLED)
        if len({id(env.unwrapped) for env in self.envs}) < len(self.envs):
            raise UsageError(
                f"env: the function that makes environments returned the same {self.envs[0].unwrapped} twice, and several "
                "are stepped side by side; let it make a new one at every call"
            )
        self.spec = self.envs[0].spec
        self.observation_structure: Mapping[str, int] | None = getattr(
            self.envs[0].unwrapped, "observation_structure", None
        )

    @property
    def failure(self) -> str:
        """A first number that was not finite, in words; empty if there was none."""
        return next((env.failure for env in self.envs if isinstance(env, FailureGuard) and env.failure), "")

    def end_raising_episodes(self, wanted: bool) -> None:
        """Set whether an exception in a step ends that row's episode as failed instead of being raised."""
        for env in self.envs:
            assert isinstance(env, FailureGuard)
            env.ends_raising = wanted

    def step(self, actions: Any) -> tuple[Any, Array, Bools, Bools, dict[str, Any]]:
        # This is the record by which Gymnasium asserts that no finished row is stepped; FailureGuard makes it harmless.
        self._autoreset_envs[:] = False
        return super().step(actions)


class DisturbedBatch(VectorWrapper):
    """A vector environment under a `Disturbance`, the wrappers above for many environments at once.

    The vector environment must leave resets to its user (`AutoresetMode.DISABLED`), or first observations could not be
    told from later ones; `Autoreset` goes outside.
    """

    def __init__(self, env: VectorEnv, disturbance: Disturbance) -> None:
        super().__init__(env)
        if env.metadata.get("autoreset_mode") != AutoresetMode.DISABLED:
            raise UsageError(
                f"a disturbance cannot wrap a vector environment with {env.metadata.get('autoreset_mode')}; "
                "make it with AutoresetMode.DISABLED and wrap Autoreset around the result"
            )
        self._disturbance = disturbance
        self.single_observation_space = disturbance.attach(
            self.num_envs, env.single_observation_space, env.single_action_space
        )
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        seeds, rows = row_seeds(seed, self.num_envs), rows_to_reset(options, self.num_envs)
        readings, infos = _reset(self.env, seeds, options)
        return self._disturbance.start(rows, seeds, readings), infos

    def step(self, actions: Any) -> tuple[Array, Array, Bools, Bools, dict[str, Any]]:
        readings, rewards, terminated, truncated, infos = self.env.step(self._disturbance.send(np.asarray(actions)))
        delivered = self._disturbance.deliver(readings, terminated | truncated)
        return delivered, rewards, terminated, truncated, infos


def sensors(envs: VectorEnv) -> tuple[Sequence[int] | None, int]:
    """Which coordinates of the environment's own observation are delivered (None for all), and how many steps late."""
    indices, late = None, 0
    while isinstance(envs, VectorWrapper):
        if isinstance(envs, DisturbedBatch):
            disturbance = envs._disturbance
            indices = disturbance._indices if isinstance(disturbance, Selection) else indices
            late += disturbance._steps if isinstance(disturbance, Latency) else 0
        envs = envs.env
    return indices, late


class Autoreset(VectorWrapper):
    """Gymnasium's autoreset modes for a vector environment without one, in which finished rows wait.

    NEXT_STEP restarts a row in the step after its last; SAME_STEP in the same step, with the last observation in
    `infos["final_obs"]` and the step's infos in `infos["final_info"]`. The infos of the resets are not passed on.
    """

    def __init__(self, env: VectorEnv, mode: AutoresetMode | str = AutoresetMode.NEXT_STEP) -> None:
        super().__init__(env)
        self._mode = _autoreset_mode(mode)
        self.metadata = env.metadata | {"autoreset_mode": self._mode}
        self._finished = np.zeros(self.num_envs, np.bool_)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self._finished[rows_to_reset(options, self.num_envs)] = False
        return _reset(self.env, seed, options)

    def step(self, actions: Any) -> tuple[Array, Array, Bools, Bools, dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        finished = terminated | truncated
        if self._mode == AutoresetMode.NEXT_STEP:
            restart = self._finished
            terminated, truncated = terminated & ~restart, truncated & ~restart
            self._finished = finished & ~restart
        elif self._mode == AutoresetMode.SAME_STEP:
            restart = finished
        else:
            restart = np.zeros_like(finished)
        if restart.any():
            if self._mode == AutoresetMode.SAME_STEP:
                final = np.full(self.num_envs, None, dtype=object)
                for row in np.flatnonzero(restart):
                    final[row] = observations[row]
                infos |= {"final_obs": final, "_final_obs": restart, "final_info": dict(infos), "_final_info": restart}
            infos["failed"] = infos["failed"] & ~restart
            observations, _ = _reset(self.env, None, {"reset_mask": restart})
        return observations, rewards, terminated, truncated, infos


class _Front(VectorWrapper):
    """What `make` adds last: the seed of a first reset without one, a limit on how long an environment may take over a
    call, and its name on what it raises."""

    def __init__(self, env: VectorEnv, name: str, seed: int | None, patience: Patience) -> None:
        super().__init__(env)
        self._name, self._first_seed, self._patience = name, seed, patience

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        seeds = row_seeds(self._first_seed if seed is None else seed, self.num_envs)
        self._first_seed = None
        rows_to_reset(options, self.num_envs)  # refused here, a bad mask is not blamed on the environment
        with _blaming(self._name, "being reset", self), self._patience:
            # Gymnasium takes the mask out of the options it is given; the caller's stay as they are.
            return _reset(self.env, seeds, None if options is None else dict(options))

    def step(self, actions: Any) -> tuple[Array, Array, Bools, Bools, dict[str, Any]]:
        try:  # instead of `with _blaming`, which takes longer
            with self._patience:
                return self.env.step(actions)
        except RAISED as error:
            _blame(error, self._name, "being stepped", self)

    def malformed(self) -> str | None:
        """What is wrong with the form of what the environments return; found out by trying, so only once they raised."""
        batch = self.unwrapped
        if not isinstance(batch, SerialBatch):
            return None
        try:
            with self._patience:
                return _malformed(batch.envs[0])
        except (Exception, SystemExit):  # another reason then, and the environment has given it already
            return None

    def close(self, **kwargs: Any) -> None:
        with _blaming(self._name, "being closed"), self._patience:
            self.env.close(**kwargs)


def _reset(envs: Any, seed: Seeds, options: dict[str, Any] | None) -> tuple[Array, dict[str, Any]]:
    """`envs.reset` with a seed per row, which all of Gymnasium's take although `VectorEnv` is annotated for one."""
    return envs.reset(seed=seed, options=options)


@contextmanager
def _blaming(name: str, doing: str, envs: _Front | None = None) -> Iterator[None]:
    try:
        yield
    except RAISED as error:
        _blame(error, name, doing, envs)


def _blame(error: BaseException, name: str, doing: str, envs: _Front | None = None) -> NoReturn:
    """Say which environment raised what, when and where; or, if that is the reason, what is wrong with its methods.

    Errors that say so already pass.
    """
    if isinstance(error, RpspError):
        raise error
    if isinstance(error, Overdue):
        raise EnvironmentFailure(
            f"{name} took longer than its step_timeout over {doing}; give it more if it needs more, or find out why it hangs"
        ) from error
    if envs is not None and isinstance(error, TypeError | ValueError | AssertionError) and (wrong := envs.malformed()):
        raise UsageError(f"{name}: {wrong}") from error
    raise EnvironmentFailure(
        f"{name} raised {_described(error, doing)}; check that it runs under Gymnasium alone"
    ) from error


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        known = ", ".join(repr(one.value) for one in AutoresetMode)
        raise UsageError(f"autoreset_mode={mode!r} is not one of Gymnasium's; give {known}") from error
