"""Create partially observed and disturbed vector environments.

`make` creates a `gymnasium.vector.VectorEnv` from a Gymnasium id or a factory. An observation passes, in this order,

    environment → Flattened → FailureGuard → ObserveOnly → ObservationNoise → SensorRate → SensorOutage → ObservationLatency
                → ObservationDropout → agent

This is the order in a robot: which sensors exist, their noise, how often they are read, their outages, the latency of
their signal, and lost signals. An action
passes `ActionLatency`, then `ActionLimit`. Each of these is also available as a Gymnasium wrapper of a single environment.

Every disturbance is implemented once, as a `Disturbance` of a batch. The wrapper of a single environment uses a batch
of one. A wrapped single environment and row i of a wrapped batch therefore give the same values for the same seed.
"""

from __future__ import annotations

import difflib
import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rpsp.envs.disturbances import (
    Array,
    Delay,
    Disturbance,
    Dropout,
    Limit,
    Noise,
    Selection,
    _require_box,
    marked_space,
)
from rpsp.envs.guards import _short
from rpsp.envs.images import RENDERED, ImageSettings, Rendered
from rpsp.envs.mujoco_batch import MujocoBatch
from rpsp.envs.mujoco_formulas import BATCHED_IDS
from rpsp.envs.silence import Outage, Rate, parsed_latency, parsed_outage
from rpsp.envs.silence import latency as latency_of
from rpsp.envs.structures import images_in, symbols_of
from rpsp.envs.tasks import _CLASSIC_POSITIONS, TASKS
from rpsp.envs.vector import (
    Autoreset,
    DisturbedBatch,
    MaskedBatch,
    SerialBatch,
    _autoreset_mode,
    _blaming,
    _Front,
    layouts,
)
from rpsp.envs.watchdog import Patience
from rpsp.errors import FAILED_SHARE, EnvironmentFailure, UsageError


def without_autoreset(envs: VectorEnv) -> VectorEnv:
    """Return the same environments with resets left to the caller.

    Args:
        envs: vector environments from `make`, in any autoreset mode, or any others that do not reset themselves.

    Returns:
        A view of the same simulations whose autoreset mode is DISABLED; `envs` itself if that is its mode.

    Raises:
        UsageError: the environments reset themselves in a way that cannot be switched off.
    """
    if envs.metadata.get("autoreset_mode") == AutoresetMode.DISABLED:
        return envs
    if isinstance(envs, Autoreset):
        return envs.env
    if isinstance(envs, _Front) and isinstance(envs.env, Autoreset):
        return _Front(envs.env.env, envs._name, None, envs._patience)
    name = "the environment" if envs.spec is None else envs.spec.id
    raise UsageError(f"envs: {name} resets by itself; make it with autoreset_mode=AutoresetMode.DISABLED.")


def make(
    id: str | Callable[[], gymnasium.Env],
    num_envs: int = 1,
    *,
    observe: str | Sequence[int | str] | NDArray[np.integer[Any]] | None = None,
    obs_noise: float | None = None,
    relative_noise: float = 0.0,
    obs_latency: int | str | tuple[int, int] | None = None,
    act_latency: int = 0,
    dropout: float = 0.0,
    outage: str | tuple[float, int] | None = None,
    sensor_rate: int | str | Mapping[int, int] | None = None,
    missing: str | None = None,
    action_limit: float | None = None,
    action_mask: str = "auto",
    image_size: int = 32,
    image_colour: bool = False,
    noise: float | None = None,
    latency: int | str | tuple[int, int] | None = None,
    max_episode_steps: int | None = None,
    seed: int | None = None,
    threads: int | None = None,
    step_timeout: float = 0.0,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    **env_kwargs: Any,
) -> VectorEnv:
    """Create a vector environment with partial observations and disturbances.

    Structured observations and actions are flat: see `rpsp.envs.structures` for the layout. `step` also takes a batch of
    the environment's own structure.

    `infos["failed"]` is True at rows whose episode ended because the simulation failed (see `FailureGuard`). As in
    Gymnasium, a finished row starts its next episode in the following step. With `AutoresetMode.DISABLED`, finished
    rows wait for `reset(seed=[...], options={"reset_mask": mask})`, which resets only the rows in the mask.

    Args:
        id: a Gymnasium id, also as `module:Env-v0`, or a function without arguments that creates an environment.
        num_envs: number of environments.
        observe: which coordinates the agent observes: "all", "positions", or indices as a sequence or as in "0,1,2". Of
            structured ones also names and patterns, as in "imu/*,wheels[0]". Default: "positions" for the paper's tasks,
            otherwise "all". "pixels": rendered frames of 64 × 64 pixels instead of the environment's observations.
        obs_noise: standard deviation of Gaussian noise on every observation. Default: 0.
        relative_noise: the same, relative to the standard deviation of each coordinate over 2000 random steps.
            Default: 0.
        obs_latency: latency of observations, in steps; "0-3" or (0, 3) if it is random for every observation. Default: 0.
        act_latency: latency of actions, in steps. Default: 0.
        dropout: probability that an observation is lost and the last one is repeated. Default: 0.
        outage: probability per step that a sensor falls silent, and number of steps for which it is silent, as
            "0.01:20" or (0.01, 20). Its last value is repeated. Default: no outages.
        sensor_rate: number of steps from one reading of a sensor to the next, for all sensors or by index, as in
            "0:10,3:2". Between them, the last value is repeated. Default: 1.
        missing: "nan": what is lost, silent, not due or has not arrived is NaN instead of the last value, and NaN in an
            observation of the environment means that a reading is missing. Default: values are repeated, and NaN ends
            the episode as failed.
        action_limit: actions are clipped to ± this value, in the environment's own units, and the action space is the
            smaller range. Default: no limit.
        action_mask: what to do with `info["action_mask"]`. "on": forbidden values of symbols are never chosen, and the mask
            is the end of the observation. "off": it is ignored. Default: "auto", on if there is one and the observation is
            not a single `Discrete` symbol.
        image_size: largest height and width of images in pixels, after downsampling. Default: 32.
        image_colour: whether images keep their colours. Default: False.
        noise: alias of `obs_noise`.
        latency: alias of `obs_latency`.
        max_episode_steps: time limit of an episode. Default: the paper's limit for its tasks, otherwise the limit of
            the environment.
        seed: seed of the first reset, if that has no seed of its own. Row i gets seed + i.
        threads: number of threads that step the physics of a batched MuJoCo task. Default: all cores.
        step_timeout: time limit in seconds for one step, one reset or the creation of one environment (see
            `rpsp.envs.watchdog`). Default: 0 (no limit).
        autoreset_mode: how finished rows are reset, as in Gymnasium. DISABLED leaves resets to the caller.
            Default: NEXT_STEP.
        **env_kwargs: keyword arguments of the environment, such as forward_reward_weight=10 of Hopper.

    Returns:
        The vector environment.

    Raises:
        UsageError: if an argument is invalid or does not fit the environment.
        EnvironmentFailure: if the environment raises an exception or hangs.
    """
    _check_numbers(num_envs, max_episode_steps, seed, step_timeout)
    mode, patience = _autoreset_mode(autoreset_mode), Patience(step_timeout)
    sigma, late = (
        _either("obs_noise", obs_noise, "noise", noise),
        _either("obs_latency", obs_latency, "latency", latency),
    )
    if relative_noise and sigma:
        raise UsageError(f"obs_noise={sigma} and relative_noise={relative_noise}: give only one of them")
    if missing not in (None, "nan"):
        raise UsageError(f"missing: {missing!r} is not known; give 'nan', or leave it out if no reading is missing")
    mark = missing == "nan"
    images, rendered = ImageSettings(image_size, image_colour), isinstance(observe, str) and observe == "pixels"
    images.check()
    disturbances = _disturbances(sigma, late, act_latency, dropout, outage, sensor_rate, mark)

    spec = _find_spec(id) if isinstance(id, str) else None
    name = "the environment" if spec is None else spec.id

    def batch(count: int) -> MujocoBatch | SerialBatch:
        made_with = max_episode_steps, threads, patience, mark, images, rendered
        return _made(name, id, spec, count, *made_with, env_kwargs)

    def limited(envs: VectorEnv) -> VectorEnv:
        """Apply the limit first, so that the null action of a latency is the middle of the smaller range."""
        return envs if action_limit is None else DisturbedBatch(envs, Limit(action_limit))

    envs: VectorEnv = (made := batch(num_envs))
    try:
        envs = limited(made)
        if mark:
            marked_space(envs.single_observation_space)
        visible = None if rendered else _visible(observe, made)
        if relative_noise:
            # With `_Front`, exceptions and time limits are handled here as in a rollout.
            with closing(_Front(limited(batch(1)), name, None, patience)) as front:
                units = _spread(front, name)
            disturbances.insert(0, Noise(relative_noise, units if visible is None else units[list(visible)]))
        if visible is not None:
            disturbances.insert(0, Selection(visible))
        for disturbance in disturbances:
            envs = DisturbedBatch(envs, disturbance)
        if mark and images_in(envs):
            raise UsageError("missing='nan' needs observations that are numbers, and there are images; leave it out")
        if _masked(action_mask, envs):
            if mark:
                raise UsageError("missing='nan' and action masks exclude each other; give action_mask='off'")
            envs = MaskedBatch(envs)
    except Exception:
        envs.close()
        raise
    if mode != AutoresetMode.DISABLED:
        envs = Autoreset(envs, mode)
    # MujocoBatch does a fixed amount of computation and cannot hang, so it needs no time limit.
    return _Front(envs, name, seed, Patience() if isinstance(envs.unwrapped, MujocoBatch) else patience)


def _disturbances(
    sigma: Any, late: Any, action_steps: Any, dropout: Any, outage: Any, rate: Any, mark: bool
) -> list[Disturbance]:
    """Create the disturbances that are wanted, in the order in which an observation passes them."""
    found: list[Disturbance] = [Noise(sigma)] if sigma else []
    if rate is not None:
        found.append(Rate(rate, mark))
    if outage is not None:
        found.append(Outage(*parsed_outage(outage), mark))
    if parsed_latency(late) != (0, 0):
        found.append(latency_of(late, mark))
    if action_steps:
        found.append(Delay(action_steps))
    return [*found, Dropout(dropout, mark)] if dropout else found


def _made(name: str, *given: Any) -> MujocoBatch | SerialBatch:
    """Return `_batch(*given)`, and name the environment in errors."""
    try:
        with _blaming(name, "being made"):
            return _batch(*given)
    except EnvironmentFailure as failure:
        said = f"{failure.__cause__}" if isinstance(failure.__cause__, TypeError) else ""
        wrong = [argument for argument in given[-1] if f"unexpected keyword argument '{argument}'" in said]
        if not wrong:
            raise
        raise UsageError(
            f"{wrong[0]}: {name} has no such argument; see the arguments that its documentation lists"
        ) from failure


def _batch(
    id: str | Callable[[], gymnasium.Env],
    spec: EnvSpec | None,
    num_envs: int,
    max_episode_steps: int | None,
    threads: int | None,
    patience: Patience,
    gaps: bool,
    images: ImageSettings,
    rendered: bool,
    env_kwargs: dict[str, Any],
) -> MujocoBatch | SerialBatch:
    """Create the undisturbed environments: a `MujocoBatch` for the tasks it supports, otherwise a `SerialBatch`."""
    if spec is None:
        if not callable(id):
            raise UsageError(
                f"id must be a Gymnasium id or a function that makes an environment, as in lambda: MyEnv(), got {id!r}"
            )
        if env_kwargs:
            raise UsageError(f"{', '.join(env_kwargs)} cannot be passed on to a factory; let it set them itself")
        limited = partial(_limited, id, max_episode_steps)
        return SerialBatch(
            [partial(_frames_of, limited) if rendered else limited] * num_envs, patience, images, gaps=gaps
        )
    own_id = spec.id.removeprefix("rpsp/")
    if max_episode_steps is None and own_id in TASKS:
        max_episode_steps = TASKS[own_id].max_episode_steps
    # MujocoBatch cannot render, but Gymnasium's environments can.
    if own_id in BATCHED_IDS and env_kwargs.get("render_mode") is None and not rendered:
        return MujocoBatch(own_id, num_envs, max_episode_steps=max_episode_steps, threads=threads, **env_kwargs)
    if rendered:
        small = {"width": RENDERED, "height": RENDERED} if own_id in BATCHED_IDS else {}  # MuJoCo renders small frames
        env_kwargs = {**small, **env_kwargs, "render_mode": "rgb_array"}
    factory = partial(gymnasium.make, spec, max_episode_steps=max_episode_steps, **env_kwargs)
    return SerialBatch([partial(_frames_of, factory) if rendered else factory] * num_envs, patience, images, gaps=gaps)


def _frames_of(factory: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    return Rendered(factory())


def _spread(envs: VectorEnv, name: str, steps: int = 2000) -> Array:
    """Measure the standard deviation of every coordinate of the observations under random actions.

    Seeds are fixed, so the result is always the same. Episodes in which the environment raises an exception are counted
    as in a rollout.
    """
    _require_box(envs.single_observation_space, "relative_noise")
    if isinstance(envs.unwrapped, SerialBatch):
        envs.unwrapped.end_raising_episodes(True)
    envs.action_space.seed(0)
    readings, ended, episodes, raised = [], True, 0, 0
    for number in range(steps):
        if ended:
            first, _ = envs.reset(seed=number, options={"reset_mask": np.ones(1, np.bool_)})
            readings.append(first[0])
            episodes += 1
        reading, _, terminated, truncated, infos = envs.step(envs.action_space.sample())
        ended = bool(terminated[0] | truncated[0])
        readings.append(reading[0])
        if "raised" in infos:
            raised += 1
            if raised > max(2, FAILED_SHARE * episodes):
                raise EnvironmentFailure(
                    f"{name} raised {infos['raised'][0]} while relative_noise was measured, in {raised} of {episodes} "
                    "episodes; check that it runs under Gymnasium alone"
                )
    return np.nanstd(readings, axis=0)


def _limited(factory: Callable[[], gymnasium.Env], max_episode_steps: int | None) -> gymnasium.Env:
    env = factory()
    return env if max_episode_steps is None else gymnasium.wrappers.TimeLimit(env, max_episode_steps)


def _find_spec(id: str) -> EnvSpec:
    module, _, name = id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(name)
    except ImportError as error:
        raise UsageError(f"id={id!r} names a module that cannot be imported ({error}); check its spelling") from error
    except gymnasium.error.Error as error:
        by_lower = {known.lower(): known for known in gymnasium.registry}
        near = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower)]
        own = "one of your own is named module:Env-v0, or its module by --plugin"
        if module:
            near, own = [f"{module}:{known}" for known in near], f"{module} registers its own when it is imported"
        listed = "gymnasium.pprint_registry() lists the known ones; " + own
        remedy = f"did you mean {' or '.join(near)}? ({own})" if near else listed
        raise UsageError(f"id={id!r} is not a registered environment; {remedy}") from error


def _gives_masks(envs: VectorEnv) -> bool:
    """Return whether the info of the first environment has an action mask after a reset."""
    batch = envs.unwrapped
    try:
        return isinstance(batch, SerialBatch) and "action_mask" in batch.envs[0].reset()[1]
    except (Exception, SystemExit):  # the caller's own reset raises it again, and the environment is named
        return False


def _masked(action_mask: str, envs: VectorEnv) -> bool:
    """Return whether observations end with an action mask."""
    if action_mask not in MASKS:
        raise UsageError(f"action_mask={action_mask!r} is not understood; give {', '.join(MASKS)}")
    if action_mask == "off" or isinstance(envs.unwrapped, MujocoBatch):
        return False
    if action_mask == "auto" and isinstance(envs.single_observation_space, Discrete):
        return False
    if not symbols_of(envs.single_action_space):
        if action_mask == "on":
            raise UsageError(
                f"action_mask='on' needs actions that are symbols, this environment's are in {envs.single_action_space}; "
                "leave it out"
            )
        return False
    if _gives_masks(envs):
        return True
    if action_mask == "on":
        raise UsageError(
            "action_mask='on' needs info['action_mask'] of reset and step, and there is none; leave it out"
        )
    return False


MASKS = "auto", "on", "off"
"""Values of `action_mask`."""


def _visible(
    observe: str | Sequence[int | str] | NDArray[np.integer[Any]] | None, envs: MujocoBatch | SerialBatch
) -> Sequence[int] | None:
    """Return the indices that `observe` selects; None for all."""
    id = "" if envs.spec is None else envs.spec.id.removeprefix("rpsp/")
    if observe is None:
        observe = "positions" if id in TASKS else "all"
    if not isinstance(observe, str):
        found = observed_indices(observe)
        if not any(isinstance(one, str) for one in found):
            return [int(one) for one in found]
        observe = ",".join(map(str, found))
    if observe == "all":
        return None
    if observe != "positions":
        if (layout := layouts(envs)[0]) is not None:
            return layout.selected(observe)
        try:
            return [int(index) for index in observe.split(",")]
        except ValueError as error:
            raise UsageError(
                f"observe={observe!r} is not understood; give all, positions, pixels, or as in 0,1,2"
            ) from error
    if envs.observation_structure is not None:
        return range(envs.observation_structure["qpos"])  # positions come first
    if (family := id.rpartition("-v")[0]) in _CLASSIC_POSITIONS:
        return _CLASSIC_POSITIONS[family]
    raise UsageError(
        f"observe='positions' is not known for {id or 'this environment'}; give the indices, as in observe='0,1'"
    )


def observed_indices(observe: Any) -> list[int | str]:
    """Convert a sequence of Python or NumPy integers, or of names, to a list of indices and names.

    Raises:
        UsageError: if `observe` is not a sequence of integers and strings.
    """
    try:
        indices = list(observe)
        if any(isinstance(index, bool) for index in indices):
            raise TypeError
        return [index if isinstance(index, str) else operator.index(index) for index in indices]
    except TypeError:
        raise UsageError(
            f"observe={_short(observe)} is not understood; give all, positions, or indices, as in '0,1,2' or [0, 1, 2]"
        ) from None


def _check_numbers(num_envs: Any, max_episode_steps: Any, seed: Any, step_timeout: float) -> None:
    _check_at_least("num_envs", num_envs, 1)
    if max_episode_steps is not None:
        _check_at_least("max_episode_steps", max_episode_steps, 1)
    if seed is not None:
        _check_at_least("seed", seed, 0)
    if not 0 <= step_timeout < np.inf:
        raise UsageError(f"step_timeout must be 0 or more, got {step_timeout}; give seconds, or 0 for no limit")


def _check_at_least(field: str, value: Any, least: int) -> None:
    if not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{field} must be a whole number, {least} or more, got {value!r}")


def _either(field: str, value: Any, short: str, short_value: Any) -> Any:
    """Return the value given under one of two names; 0 if neither is given."""
    if value is not None and short_value is not None:
        raise UsageError(f"{field}={value} and {short}={short_value} mean the same; give only one of them")
    return value if value is not None else short_value if short_value is not None else 0


def _registered_batch(
    id: str, num_envs: int = 1, *, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP, **kwargs: Any
) -> VectorEnv:
    """Create a `MujocoBatch` with autoreset, as `gymnasium.make_vec` does for its environments."""
    return Autoreset(MujocoBatch(id, num_envs, **kwargs), autoreset_mode)


def _register() -> None:
    for id in BATCHED_IDS:
        if f"rpsp/{id}" in gymnasium.registry:  # this module was imported before and is reloaded by a test
            continue
        spec = gymnasium.spec(id)
        gymnasium.register(
            f"rpsp/{id}",
            entry_point=spec.entry_point,
            vector_entry_point=partial(_registered_batch, id),
            max_episode_steps=spec.max_episode_steps,
            reward_threshold=spec.reward_threshold,
        )


_register()
