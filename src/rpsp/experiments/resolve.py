"""Resolve a configuration: fill in defaults, check values, make environments, choose a device, read config.json."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from gymnasium.vector import AutoresetMode

from rpsp import sentinel
from rpsp.envs.make import make
from rpsp.envs.silence import parsed_latency
from rpsp.envs.tasks import TASKS
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments import env_args
from rpsp.experiments.budget import UNLIMITED, check_budget, most_iterations
from rpsp.experiments.config import Sensors, TrainConfig
from rpsp.experiments.configure import check_values, configured, find_method, usual_samples
from rpsp.experiments.files import read_json
from rpsp.experiments.methods import Method
from rpsp.experiments.plugins import import_plugin, named_modules
from rpsp.experiments.upgrade import upgraded
from rpsp.training.loop import max_episode_steps

MOST_STEPS = 10**12
"""Largest accepted number of steps. Larger values are mistakes: the machine would run out of memory."""


def read_config(directory: Path, known: Collection[str] = ()) -> TrainConfig:
    """Read the resolved configuration of a run directory.

    A file cannot make rpsp import a module. The modules that it names must be imported already, or be in `known`.

    Args:
        directory: a run directory of `rpsp train`.
        known: names of modules that may be imported.

    Raises:
        UnknownModules: if the file names other modules.
        FileFormatError: if config.json is missing or damaged.
    """
    if not (directory / "config.json").exists():
        what = "contains no config.json" if directory.is_dir() else "is not a directory"
        raise FileFormatError(f"{directory}: {what}; give a run directory of `rpsp train`.")
    return config_of(read_json(directory / "config.json"), directory / "config.json", known)


def config_of(content: Mapping[str, Any], path: Path, known: Collection[str] = ()) -> TrainConfig:
    """Return the resolved configuration with the content of a config.json.

    Args:
        content: the content of the file.
        path: the file, for error messages.
        known: names of modules that may be imported.

    Raises:
        UnknownModules: if the content names other modules.
        FileFormatError: if it is not the configuration of a run.
    """
    try:
        given = content | content["sensors"] | content["settings"]
        del given["sensors"], given["settings"]
        modules = named_modules(given["plugin"], given["method"], given["env"])
        if unknown := [name for name in modules if name not in sys.modules and name not in known]:
            raise UnknownModules(path, unknown, modules)
        import_plugin(given["plugin"])
        config = configured(upgraded(given, find_method(given["method"]).known))
        missing = [name for name in AMOUNTS if getattr(config, name) is None]
        if missing or not _exploration(config):
            raise UsageError(f"{[*missing, *EXPLORATION][0]}: is missing")
        return config
    except UnknownModules:
        raise
    except (UsageError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path}: is not the configuration of an `rpsp train` run ({error}).") from error


class UnknownModules(UsageError):
    """Error for a file that names modules that are not imported. The user must allow their import."""

    def __init__(self, path: Path, unknown: Sequence[str], all_of_them: Sequence[str]):
        super().__init__(
            f"plugin: {path} names {','.join(unknown)!r}, which is not imported without "
            f"permission; if you trust it, give --plugin {shlex.quote(','.join(all_of_them))} (or import it in Python)."
        )


def make_arguments(sensors: Sensors) -> dict[str, Any]:
    """Return sensor settings as keyword arguments of `rpsp.make`."""
    given = dataclasses.asdict(sensors)
    return given | env_args.parsed(given.pop("env_args"))


def environment_maker(config: TrainConfig, factory: Any = None) -> Callable[..., Any] | None:
    """Return a function `make_envs(num_envs)` that makes the environments of a configuration.

    Args:
        config: the configuration.
        factory: a function that makes one environment, instead of `config.env`.

    Returns:
        The function, or None if the configuration was made for a factory and none is given.
    """
    source = config.env if factory is None else factory
    if source is None or source == FACTORY:
        return None

    def make_envs(num_envs: int, **given: Any) -> Any:
        sentinel.note_place(f"{config.env}, while it was created")
        made = make(
            source,
            num_envs=num_envs,
            autoreset_mode=AutoresetMode.DISABLED,
            max_episode_steps=config.max_episode_steps,
            threads=config.threads,
            step_timeout=config.step_timeout,
            **make_arguments(config.sensors),
            **given,
        )
        sentinel.note_place("")
        return made

    return make_envs


FACTORY = "a factory"
"""The name of the environment in configurations of environments that are made by a function."""
MOST: dict[str, int] = {"num_envs": 10_000, "threads": 10_000, "seeds": 10_000}
AMOUNTS = "iterations", "samples", "max_episode_steps", "num_envs"
EXPLORATION = "exploration_episodes", "exploration_samples"
"""Settings that may be None before they are resolved. Of the two for exploration, only one is set afterwards."""


def _exploration(config: TrainConfig) -> dict[str, int]:
    """Return the exploration settings that are given."""
    return {name: value for name in EXPLORATION if (value := getattr(config, name)) is not None}


def episode_limit(make_envs: Callable[..., Any]) -> int | None:
    """Return the maximum length of an episode, found by making one environment. None if there is no limit."""
    envs = make_envs(1)
    try:
        return max_episode_steps(envs)
    finally:
        envs.close()


def resolve(
    config: TrainConfig,
    make_envs: Callable[..., Any],
    limit_of: Callable[[Callable[..., Any]], int | None] = episode_limit,
) -> TrainConfig:
    """Fill in the settings that are None: the paper's values on its tasks, otherwise values that fit the episodes.

    Args:
        config: the configuration.
        make_envs: makes the environments of the configuration.
        limit_of: finds the maximum length of an episode of these. A sweep remembers it for runs with equal environments.

    Raises:
        UsageError: if a value is out of range, or the environment has no time limit.
    """
    check_budget(config.iterations, config.steps, config.minutes)
    for name in ("seed", "seeds", "threads", "steps", *AMOUNTS, *EXPLORATION):
        least, value = (0 if name in ("seed", "iterations") else 1), getattr(config, name)
        if value is not None and value < least:
            raise UsageError(f"{name}: {value} is not a whole number ≥ {least}.")
        if value is not None and value > MOST.get(name, MOST_STEPS):
            raise UsageError(f"{name}: {value} is more than the maximum, {MOST.get(name, MOST_STEPS)}.")
    limit = limit_of(make_envs)
    if limit is None:
        raise UsageError(
            f"max_episode_steps: {config.env} has no time limit; give one, for example --max-episode-steps 1000 "
            "(in Python, max_episode_steps=1000)."
        )
    longest = {"obs_latency": parsed_latency(config.sensors.obs_latency)[1], "act_latency": config.sensors.act_latency}
    for name, late in longest.items():
        if late >= limit:
            raise UsageError(f"{name}: {late} steps is not less than the length of an episode, {limit} steps.")

    def steps(usual: int) -> int:
        """Limit a number of steps to between 10 and 100 episodes, and to a fifth of the budget."""
        most = max(2 * limit, (config.steps or MOST_STEPS) // 5)
        return min(most, max(10 * limit, min(100 * limit, usual)))

    task, method = TASKS.get(config.env or ""), find_method(config.method)
    samples = config.samples or usual_samples(config.env, method, limit)
    iterations = task.iterations if task else 100
    if config.samples is None:  # keep the total number of steps
        iterations = round(iterations * usual_samples(config.env, limit=limit) / samples)
    explored = {"exploration_samples": steps(20_000)}
    if task and (config.steps is None or config.steps > 2 * task.exploration_episodes * limit):
        explored = {"exploration_episodes": task.exploration_episodes}
    if method.algorithm.off_policy:  # it also learns from the exploration, and between episodes
        iterations, explored = 300, {"exploration_samples": steps(10_000)}
    explored = _exploration(config) or explored
    if len(explored) == 2:
        raise UsageError(
            f"exploration_samples: {config.exploration_samples} steps and {config.exploration_episodes} episodes "
            "(exploration_episodes) are given; give only one of them."
        )
    if samples < limit:
        raise UsageError(
            f"samples: {samples} is less than one episode, which can last {limit} steps; choose at least {limit}, or "
            "shorter episodes (max_episode_steps)."
        )
    resolved = dataclasses.replace(
        config,
        sensors=dataclasses.replace(config.sensors, env_args=env_args.canonical(config.sensors.env_args)),
        max_episode_steps=limit,
        samples=samples,
        num_envs=config.num_envs or min(100, max(1, samples // limit)),
        **explored,
        iterations=iterations,
    )
    budget = config.iterations, config.steps, config.minutes
    return resolved if budget == (None, None, None) else with_budget(resolved, *budget)


def with_budget(config: TrainConfig, iterations: int | None, steps: int | None, minutes: float | None) -> TrainConfig:
    """Return a resolved configuration with another budget. `iterations` becomes the largest number that it allows.

    Raises:
        UsageError: if the budget is invalid, or all of it would be spent on exploration.
    """
    check_budget(iterations, steps, minutes)
    if steps is not None:
        assert config.samples  # resolved
        explored = config.exploration_samples or 0
        if steps <= explored:
            raise UsageError(
                f"steps: {steps} steps are not more than the exploration, {explored} steps (exploration_samples); give "
                "more, or a shorter exploration."
            )
        iterations = most_iterations(steps, config.samples, explored)
    elif iterations is None:
        iterations = UNLIMITED
    return dataclasses.replace(config, iterations=iterations, steps=steps, minutes=minutes)


def check(config: TrainConfig) -> None:
    """Check a configuration before anything is computed.

    Raises:
        UsageError: if a value has the wrong type or is out of range.
    """
    check_values(config)
    composed(config)


def composed(config: TrainConfig) -> Method:
    """Return the method of a configuration with its settings. Raises `UsageError` if a value is out of range."""
    return find_method(config.method).with_settings(config.settings)


def _device(config: TrainConfig) -> Any:
    """Return the jax device on which updates are computed."""
    cpu = jax.devices("cpu")[0]
    if config.device == "cpu" or (config.device == "auto" and jax.default_backend() == "cpu"):
        return cpu
    if jax.default_backend() == "cpu":
        raise UsageError("device: jax finds no GPU; install rpsp[gpu], or choose --device cpu.")
    # Measured on an H200 (docs/benchmarks.md): TRPO alone is no faster there, the others are three to six times faster.
    gains = find_method(config.method).algorithm.gains_from_gpu
    return jax.devices()[0] if config.device == "gpu" or gains else cpu
