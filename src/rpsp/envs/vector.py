"""Vector environments: serial stepping, disturbances, autoreset and error messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from rpsp.envs.disturbances import Array, Disturbance, Latency, Selection
from rpsp.envs.guards import RAISED, FailureGuard, _described, _guarded, _malformed
from rpsp.envs.images import SMALL_GREY, ImageSettings
from rpsp.envs.rows import Bools, Seeds, row_seeds, rows_to_reset
from rpsp.envs.silence import RandomLatency
from rpsp.envs.structures import Actions, Flattened, Observations, mask_size, number_of_values, symbols_of
from rpsp.envs.watchdog import Overdue, Patience
from rpsp.errors import EnvironmentFailure, RpspError, UsageError


class SerialBatch(SyncVectorEnv):
    """`SyncVectorEnv` of environments in `FailureGuard`, without autoreset. Finished rows wait for a reset.

    It behaves like `MujocoBatch`. A plain `SyncVectorEnv` cannot be stepped while a row is finished.

    Args:
        factories: functions that create the environments, one per row.
        patience: time limit for the creation of an environment. Default: none.
        images: size and colours of images.
        gaps: whether NaN in an observation means that a reading is missing.

    Raises:
        UsageError: if two factories return the same environment.
    """

    def __init__(
        self,
        factories: Sequence[Callable[[], gymnasium.Env]],
        patience: Patience | None = None,
        images: ImageSettings = SMALL_GREY,
        *,
        gaps: bool = False,
    ) -> None:
        guarded = [partial(_guarded, factory, patience or Patience(), images, gaps) for factory in factories]
        super().__init__(guarded, autoreset_mode=AutoresetMode.DISABLED)
        if len({id(env.unwrapped) for env in self.envs}) < len(self.envs):
            raise UsageError(
                f"env: the function that makes environments returned the same {self.envs[0].unwrapped} twice, and "
                "several are stepped side by side; it must make a new one at every call"
            )
        self.spec = self.envs[0].spec
        self.observation_structure: Mapping[str, int] | None = getattr(
            self.envs[0].unwrapped, "observation_structure", None
        )
        layout = getattr(self.envs[0], "env", None)
        flat = isinstance(layout, Flattened)
        self.observations = layout.observations if flat else None
        """The layout of structured observations; None if the environments have flat ones."""
        self.actions = layout.actions if flat else None
        """The layout of structured actions; None if the environments have flat ones."""

    @property
    def failure(self) -> str:
        """Description of a NaN or infinite value, the first one of a row; empty if there was none."""
        return next((env.failure for env in self.envs if isinstance(env, FailureGuard) and env.failure), "")

    def end_raising_episodes(self, wanted: bool) -> None:
        """Set whether an exception in a step ends that row's episode as failed instead of being raised."""
        for env in self.envs:
            assert isinstance(env, FailureGuard)
            env.ends_raising = wanted

    def step(self, actions: Any) -> tuple[Any, Array, Bools, Bools, dict[str, Any]]:
        # Gymnasium uses this array to assert that no finished row is stepped. With FailureGuard such steps are
        # harmless.
        """Step every environment. Finished rows return their last observation again."""
        self._autoreset_envs[:] = False
        return super().step(actions)


class DisturbedBatch(VectorWrapper):
    """Vector environment with a `Disturbance`: the batch version of the wrappers in `rpsp.envs.wrappers`.

    The vector environment must have `AutoresetMode.DISABLED`. Otherwise the first observations of episodes could not be
    distinguished from later ones. Wrap the result in `Autoreset` if needed.

    Args:
        env: the vector environment.
        disturbance: the disturbance.

    Raises:
        UsageError: if the vector environment resets automatically, or the disturbance does not fit its spaces.
    """

    def __init__(self, env: VectorEnv, disturbance: Disturbance) -> None:
        super().__init__(env)
        if env.metadata.get("autoreset_mode") != AutoresetMode.DISABLED:
            raise UsageError(
                f"a disturbance cannot wrap a vector environment with {env.metadata.get('autoreset_mode')}; "
                "make it with AutoresetMode.DISABLED and wrap Autoreset around the result"
            )
        self._disturbance = disturbance
        if isinstance(disturbance, Selection):
            self.observed = disturbance._indices
        self.single_observation_space = disturbance.attach(
            self.num_envs, env.single_observation_space, env.single_action_space
        )
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space = disturbance.accepted_space(env.single_action_space)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Reset the rows in `options["reset_mask"]`, and return delivered observations."""
        seeds, rows = row_seeds(seed, self.num_envs), rows_to_reset(options, self.num_envs)
        readings, infos = _reset(self.env, seeds, options)
        return self._disturbance.start(rows, seeds, readings), infos

    def step(self, actions: Any) -> tuple[Array, Array, Bools, Bools, dict[str, Any]]:
        """Send the actions through the disturbance, step, and return delivered observations."""
        readings, rewards, terminated, truncated, infos = self.env.step(self._disturbance.send(np.asarray(actions)))
        delivered = self._disturbance.deliver(readings, terminated | truncated)
        return delivered, rewards, terminated, truncated, infos


def sensors(envs: VectorEnv) -> tuple[Sequence[int] | None, int]:
    """Return the indices of the observed coordinates (None for all), and the usual latency of observations in steps."""
    indices, late = None, 0
    while isinstance(envs, VectorWrapper):
        if isinstance(envs, DisturbedBatch):
            disturbance = envs._disturbance
            indices = disturbance._indices if isinstance(disturbance, Selection) else indices
            late += disturbance._steps if isinstance(disturbance, Latency) else 0
            late += disturbance.usual if isinstance(disturbance, RandomLatency) else 0
        envs = envs.env
    return indices, late


class MaskedBatch(VectorWrapper):
    """Vector environment whose observations end with the action mask: 1 for each allowed value of a symbol, else 0.

    The mask is `info["action_mask"]` of the environment. Observations of a `Discrete` space become one-hot.

    Args:
        env: the vector environment, without autoreset.
    """

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        seen = env.single_observation_space
        self.symbol = Observations(seen) if isinstance(seen, Discrete) else None
        """The layout of a symbol as one-hot vector; None if observations are rows."""
        own = seen if self.symbol is None else self.symbol.flat
        assert isinstance(own, Box)
        self.mask_size = number_of_values(env.single_action_space)
        """Number of entries of a mask."""
        ones = np.ones(self.mask_size)
        dtype: Any = np.result_type(own.dtype, np.float32)
        low, high = (np.append(*both).astype(dtype) for both in ((own.low, 0 * ones), (own.high, ones)))
        self.single_observation_space = Box(low, high, dtype=dtype.type)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._masks = np.ones((self.num_envs, self.mask_size), np.bool_)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Reset the rows in `options["reset_mask"]`, and return observations with masks."""
        options = None if options is None else dict(options)
        rows = rows_to_reset(options, self.num_envs)
        readings, infos = _reset(self.env, seed, options)
        return self._with_masks(readings, infos, np.isin(np.arange(self.num_envs), rows)), infos

    def step(self, actions: Any) -> tuple[Array, Array, Bools, Bools, dict[str, Any]]:
        """Step, and return observations with masks."""
        readings, rewards, terminated, truncated, infos = self.env.step(actions)
        return self._with_masks(readings, infos, ~(terminated | truncated)), rewards, terminated, truncated, infos

    def _with_masks(self, readings: Array, infos: dict[str, Any], needed: Bools) -> Array:
        given = infos.get("action_mask")
        present = infos.get("_action_mask", np.zeros(self.num_envs, np.bool_))
        for row in np.flatnonzero(present):
            self._masks[row] = self._checked(given[row], bool(needed[row]))  # pyright: ignore[reportOptionalSubscript]
        if (needed & ~present).any():
            raise UsageError("info['action_mask'] is missing in a step, and was there before; give it in every step")
        if self.symbol is not None:
            readings = self.symbol.flatten(readings, (self.num_envs,))
        return np.concatenate((readings, self._masks), axis=1, dtype=self.single_observation_space.dtype)

    def _checked(self, given: Any, needed: bool) -> Array:
        parts = given if isinstance(given, tuple) else [given]
        mask = np.concatenate([np.ravel(part) for part in parts])
        if mask.shape != (self.mask_size,):
            raise UsageError(
                f"info['action_mask'] has {mask.size} entries, and there are {self.mask_size} values of "
                f"{self.single_action_space} to choose from; give one entry for each"
            )
        mask = mask.astype(np.bool_)
        groups = np.split(mask, np.cumsum(symbols_of(self.single_action_space))[:-1])
        if needed and not all(group.any() for group in groups):
            raise UsageError(
                f"info['action_mask'] is {mask.astype(int).tolist()}, which forbids every action; allow at least one, or "
                "end the episode"
            )
        return mask


def layouts(envs: VectorEnv) -> tuple[Observations | None, Actions | None]:
    """Return the layouts of structured observations and actions; None for those that are flat in the environments."""
    batch, symbol = envs.unwrapped, None
    while isinstance(envs, VectorWrapper):
        symbol = envs.symbol if isinstance(envs, MaskedBatch) else symbol
        envs = envs.env
    return (symbol or batch.observations, batch.actions) if isinstance(batch, SerialBatch) else (None, None)


def observation_names(envs: VectorEnv) -> list[str] | None:
    """Return the name of every entry of the delivered observations; None if the environments have no names for them."""
    layout, masked = layouts(envs)[0], mask_size(envs)
    space = envs.single_observation_space
    if layout is None and not masked:
        return None
    if layout is not None:
        indices = sensors(envs)[0]
        names = layout.names if indices is None else [layout.names[i] for i in indices]
    else:
        names = [f"observation {i}" for i in range(int(np.prod(space.shape or ())) - masked)]
    return [*names, *(f"action_mask[{i}]" for i in range(masked))]


class Autoreset(VectorWrapper):
    """Add a Gymnasium autoreset mode to a vector environment in which finished rows wait for a reset.

    NEXT_STEP resets a row in the step after its last one. SAME_STEP resets it in the same step, with the last
    observation in `infos["final_obs"]` and the infos of the step in `infos["final_info"]`. The infos of resets are not
    returned.

    Args:
        env: a vector environment with `AutoresetMode.DISABLED`.
        mode: the autoreset mode. Default: NEXT_STEP.
    """

    def __init__(self, env: VectorEnv, mode: AutoresetMode | str = AutoresetMode.NEXT_STEP) -> None:
        super().__init__(env)
        self._mode = _autoreset_mode(mode)
        self.metadata = env.metadata | {"autoreset_mode": self._mode}
        self._finished = np.zeros(self.num_envs, np.bool_)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Reset the rows in `options["reset_mask"]`; all rows if there is no mask."""
        self._finished[rows_to_reset(options, self.num_envs)] = False
        return _reset(self.env, seed, options)

    def step(self, actions: Any) -> tuple[Array, Array, Bools, Bools, dict[str, Any]]:
        """Step every environment, and reset rows according to the mode."""
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
    """The outermost wrapper that `make` adds.

    It provides the seed of the first reset, limits the time of each call, and adds the name of the environment to
    errors.
    """

    def __init__(self, env: VectorEnv, name: str, seed: int | None, patience: Patience) -> None:
        super().__init__(env)
        self._name, self._first_seed, self._patience = name, seed, patience
        self._actions = layouts(env)[1]

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        seeds = row_seeds(self._first_seed if seed is None else seed, self.num_envs)
        self._first_seed = None
        rows_to_reset(options, self.num_envs)  # raises here, so that the environment is not blamed for a bad mask
        with _blaming(self._name, "being reset", self), self._patience:
            # Copied, because Gymnasium removes the mask from the options.
            return _reset(self.env, seeds, None if options is None else dict(options))

    def step(self, actions: Any) -> tuple[Array, Array, Bools, Bools, dict[str, Any]]:
        if isinstance(actions, dict | tuple) and self._actions is not None:  # the environment's own structure
            actions = self._actions.flatten(actions, (self.num_envs,))
        try:  # `with _blaming` would be slower
            with self._patience:
                return self.env.step(actions)
        except RAISED as error:
            _blame(error, self._name, "being stepped", self)

    def malformed(self) -> str | None:
        """Describe malformed methods of the environments; None if there are none. Steps an environment to find out."""
        batch = self.unwrapped
        if not isinstance(batch, SerialBatch):
            return None
        try:
            with self._patience:
                return _malformed(batch.envs[0])
        except (Exception, SystemExit):  # the error has another cause, which was raised before
            return None

    def close(self, **kwargs: Any) -> None:
        with _blaming(self._name, "being closed"), self._patience:
            self.env.close(**kwargs)


def _reset(envs: Any, seed: Seeds, options: dict[str, Any] | None) -> tuple[Array, dict[str, Any]]:
    """Call `envs.reset` with one seed per row. Gymnasium accepts this, but the annotations of `VectorEnv` do not."""
    return envs.reset(seed=seed, options=options)


@contextmanager
def _blaming(name: str, doing: str, envs: _Front | None = None) -> Iterator[None]:
    """Convert the exceptions of an environment as `_blame` does."""
    try:
        yield
    except RAISED as error:
        _blame(error, name, doing, envs)


def _blame(error: BaseException, name: str, doing: str, envs: _Front | None = None) -> NoReturn:
    """Convert an exception of an environment into an error that names the environment.

    The error describes the exception, what was being done and where it was raised. If the methods of the environment
    are malformed, it describes that instead. Errors of this package are raised unchanged.
    """
    if isinstance(error, RpspError):
        raise error
    if isinstance(error, Overdue):
        raise EnvironmentFailure(
            f"{name} took longer than its step_timeout while {doing}; increase step_timeout if it needs more time, or "
            "find out why it hangs"
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
