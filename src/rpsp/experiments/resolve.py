"""From a configuration to environments, sizes and a device; and the configuration of an existing run directory."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from rpsp import sentinel
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.config import (
    TrainConfig,
    check_values,
    configured,
    find_method,
    import_plugin,
    named_modules,
    usual_samples,
)
from rpsp.experiments.files import read_json
from rpsp.experiments.place import summary_writer

MOST_STEPS, MOST_UNITS = 10**12, 10_000
"""Larger numbers are refused as mistakes: the machine would run out of memory."""


def read_config(directory: Path, known: Collection[str] = ()) -> TrainConfig:
    """The configuration of a run directory, as it was resolved.

    Nothing is imported because a file says so: modules that it names must have been imported before, or be `known`.
    """
    if not (directory / "config.json").exists():
        what = "holds no config.json" if directory.is_dir() else "is no directory"
        raise FileFormatError(f"{directory}: {what}; give a run directory of `rpsp train`.")
    content = read_json(directory / "config.json")
    try:
        given = content | content["sensors"] | content["settings"]
        del given["sensors"], given["settings"]
        modules = named_modules(given["plugin"], given["method"], given["env"])
        if unknown := [name for name in modules if name not in sys.modules and name not in known]:
            raise UnknownModules(directory, unknown, modules)
        import_plugin(given["plugin"])
        config = configured(given)
        missing = [name for name in AMOUNTS if getattr(config, name) is None]
        if missing or not _exploration(config):
            raise UsageError(f"{[*missing, *EXPLORATION][0]}: is missing")
        return config
    except UnknownModules:
        raise
    except (UsageError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(
            f"{directory / 'config.json'}: is not the configuration of an `rpsp train` run ({error})."
        ) from error


class UnknownModules(UsageError):
    """A run directory names modules that nobody has imported: whether they may run is for the user to say."""

    def __init__(self, directory: Path, unknown: Sequence[str], all_of_them: Sequence[str]):
        super().__init__(
            f"plugin: {directory / 'config.json'} names {','.join(unknown)!r}, and no module is imported because a file "
            f"says so; if you know it, give --plugin {shlex.quote(','.join(all_of_them))} (in Python, import it first)."
        )


def environment_maker(config: TrainConfig, factory: Any = None) -> Callable[..., Any] | None:
    """`make_envs(num_envs)`: environments as this configuration describes them; None where only a factory could."""
    source = config.env if factory is None else factory
    if source is None or source == FACTORY:
        return None

    def make_envs(num_envs: int, **given: Any) -> Any:
        from gymnasium.vector import AutoresetMode

        from rpsp.envs.make import make

        sentinel.note_place(f"{config.env}, which was being made")
        made = make(
            source,
            num_envs=num_envs,
            autoreset_mode=AutoresetMode.DISABLED,
            max_episode_steps=config.max_episode_steps,
            threads=config.threads,
            step_timeout=config.step_timeout,
            **dataclasses.asdict(config.sensors),
            **given,
        )
        sentinel.note_place("")
        return made

    return make_envs


FACTORY = "a factory"
"""What stands for the environment's name where a function made it."""
MOST: dict[str, int] = {"num_envs": 10_000, "threads": 10_000, "seeds": 10_000}
AMOUNTS = "iterations", "samples", "max_episode_steps", "num_envs"
EXPLORATION = "exploration_episodes", "exploration_samples"
"""What may be left open in a configuration; of the exploration there is one of the two."""


def _exploration(config: TrainConfig) -> dict[str, int]:
    """How much of it was asked for."""
    return {name: value for name in EXPLORATION if (value := getattr(config, name)) is not None}


def resolve(config: TrainConfig, make_envs: Callable[..., Any]) -> TrainConfig:
    """Every amount that was left open, filled in: the paper's in its tasks, else what suits episodes of this length."""
    # Imported here, because these import jax, and --help must start fast.
    from rpsp.envs.tasks import TASKS
    from rpsp.experiments.recipes import algorithm
    from rpsp.training.loop import max_episode_steps

    for name in ("seed", "seeds", "threads", *AMOUNTS, *EXPLORATION):
        least, value = (0 if name in ("seed", "iterations") else 1), getattr(config, name)
        if value is not None and value < least:
            raise UsageError(f"{name}: {value} is not a whole number ≥ {least}.")
        if value is not None and value > MOST.get(name, MOST_STEPS):
            raise UsageError(f"{name}: {value} is more than {MOST.get(name, MOST_STEPS)}; no machine can do that.")
    envs = make_envs(1)
    try:
        limit = max_episode_steps(envs)
    finally:
        envs.close()
    if limit is None:
        raise UsageError(
            f"max_episode_steps: {config.env} has no time limit of its own; give one, for example --max-episode-steps 1000 "
            "(in Python, max_episode_steps=1000)."
        )
    for name in ("obs_latency", "act_latency"):
        if (late := getattr(config.sensors, name)) >= limit:
            raise UsageError(f"{name}: {late} steps are a whole episode's {limit} or more; nothing would ever arrive.")

    def steps(usual: int) -> int:
        """So many, though at most 100 episodes' worth and at least 10."""
        return max(10 * limit, min(100 * limit, usual))

    task, method = TASKS.get(config.env or ""), find_method(config.method)
    samples = config.samples or usual_samples(config.env, method, limit)
    iterations = task.iterations if task else 100
    if config.samples is None:  # as many steps in all
        iterations = round(iterations * usual_samples(config.env, limit=limit) / samples)
    explored = {"exploration_episodes": task.exploration_episodes} if task else {"exploration_samples": steps(20_000)}
    if algorithm(method, config.settings).off_policy:  # which learns from the exploration, too, and between episodes
        iterations, explored = 300, {"exploration_samples": steps(10_000)}
    explored = _exploration(config) or explored
    if len(explored) == 2:
        raise UsageError(
            f"exploration_samples: {config.exploration_samples} steps and {config.exploration_episodes} episodes "
            "(exploration_episodes) are given; say one of them."
        )
    if samples < limit:
        raise UsageError(
            f"samples: {samples} is less than one episode, which may last {limit} steps; choose at least {limit}, or "
            "shorter episodes (max_episode_steps)."
        )
    return dataclasses.replace(
        config,
        max_episode_steps=limit,
        samples=samples,
        num_envs=config.num_envs or min(100, max(1, samples // limit)),
        **explored,
        iterations=iterations if config.iterations is None else config.iterations,
    )


def check(config: TrainConfig) -> None:
    """What can be said before anything is computed."""
    from rpsp.experiments.recipes import recipe

    check_values(config)
    recipe(find_method(config.method), config.settings)  # algorithms check their own settings
    sizes = "hidden", "past", "future", "dimension", "window", "units", "plus_obs"
    counts = "refit_batches", "refit_samples", "passes", "minibatch"
    for name, least in {**dict.fromkeys((*sizes, *counts), 1), "epochs": 0, "plus_obs": 0, "refit_above": 0}.items():
        value = getattr(config.settings, name)
        values = value if isinstance(value, tuple) else (least if value is None else value,)
        if min(values, default=least) < least:
            raise UsageError(f"{name}: {value} must be at least {least}.")
        if name in sizes and max(values, default=least) > MOST_UNITS:
            raise UsageError(f"{name}: {value} is more than {MOST_UNITS}; nothing of that size can be fitted.")
    if not 0 <= config.settings.discount <= 1:
        raise UsageError(f"discount: {config.settings.discount} does not lie between 0 and 1; 0.99 is usual.")
    if config.tensorboard:
        summary_writer()


def _device(config: TrainConfig) -> Any:
    """Return the device for the steps of the algorithm."""
    import jax

    from rpsp.experiments.recipes import algorithm

    cpu = jax.devices("cpu")[0]
    if config.device == "cpu" or (config.device == "auto" and jax.default_backend() == "cpu"):
        return cpu
    if jax.default_backend() == "cpu":
        raise UsageError("device: there is no GPU that jax can use; install rpsp[gpu], or choose --device cpu.")
    # Measured on an H200 (docs/benchmarks.md): TRPO alone is no faster there, the others are three to six times faster.
    gains = algorithm(find_method(config.method), config.settings).gains_from_gpu
    return jax.devices()[0] if config.device == "gpu" or gains else cpu
