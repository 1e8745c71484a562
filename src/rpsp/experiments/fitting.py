"""The commands `rpsp fit` and `rpsp inspect`: fit a predictive-state model, and draw its figures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from rpsp.data.episodes import Episode
from rpsp.data.logs import Log, is_log, read_log
from rpsp.data.recordings import MINARI, load_episodes, other_format, save_episodes
from rpsp.data.scaling import OneHot
from rpsp.envs.make import make
from rpsp.envs.vector import observation_names
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments import env_args, figures
from rpsp.experiments.compilation import compilation_cached
from rpsp.experiments.config import Columns, FitConfig, Sensors
from rpsp.experiments.files import Say, free_directory, read_json, record_settings, write_json
from rpsp.experiments.models import PredictiveStateModel
from rpsp.experiments.plugins import import_plugin
from rpsp.experiments.resolve import make_arguments
from rpsp.training.rollouts import explore


def fit(config: FitConfig, say: Say = lambda line: None) -> dict[str, Any]:
    """Fit a model to an environment or to recorded episodes, and write a run directory.

    Args:
        config: the settings of `rpsp fit`.
        say: called with every progress message.

    Returns:
        The run directory, the source, the kind, and the held-out errors of the model and the baselines.

    Raises:
        UsageError: if a setting is invalid.
        FileFormatError: if the source is a file that cannot be read.
    """
    import_plugin(config.plugin)
    settings = {} if config.settings is None else vars(config.settings)
    model = PredictiveStateModel(config.kind, seed=config.seed, missing=config.sensors.missing, **settings)
    recorded = config.source.startswith(MINARI) or config.source.endswith(".npz") or is_log(config.source)
    if not recorded and Path(config.source).is_file():
        raise FileFormatError(other_format(config.source))
    stem = Path(config.source).stem if recorded else config.source.replace("/", "_").replace(":", "_")
    directory = free_directory(config.out, f"{stem}__fit-{model.kind}__s{config.seed}")
    names = None
    if recorded:
        episodes = _recorded(config, say)
        if is_log(config.source) and config.sensors.missing is None and _missing(episodes):
            say("some cells are empty: the model goes on where readings are missing (--missing nan)")
            model = PredictiveStateModel(config.kind, seed=config.seed, missing="nan", **settings)
    else:
        if config.columns != Columns():
            raise UsageError("observations: columns are named for logs only; to select observations, use --observe.")
        started = time.perf_counter()
        episodes, names = explore_environment(config)
        say(f"explored {config.source} with random actions: {_amount(episodes)}, {_since(started)}")
    started = time.perf_counter()
    with compilation_cached(config.compilation_cache):
        model.fit(episodes)
    say(f"fitted {model.kind} with {model.fitted.size} state dimensions, and the baselines: {_since(started)}")
    # The directory is created only now, so that an error leaves no empty directory behind.
    record_settings(directory, config)
    save_episodes(directory / "episodes.npz", episodes, gaps=model.missing is not None)
    model.save(directory / "model.safetensors")
    results = {"directory": str(directory), "source": config.source, "kind": model.kind, "errors": model.errors}
    write_json(directory / "results.json", results | ({} if names is None else {"observation_names": names}))
    return results


def inspect(directory: Path, horizon: int = 10) -> list[Path]:
    """Draw the figures of a fitted model.

    Args:
        directory: a run directory of `rpsp fit`.
        horizon: length of the forecasts in steps.

    Returns:
        The paths of the figures.

    Raises:
        FileFormatError: if the directory contains no model.
    """
    if not (directory / "model.safetensors").exists():
        raise FileFormatError(
            f"{directory}: contains no model.safetensors; give a directory that `rpsp fit` wrote (for a training run, "
            "use `rpsp report`)."
        )
    model = PredictiveStateModel.load(directory / "model.safetensors")
    episodes = load_episodes(directory / "episodes.npz", gaps=model.missing is not None)
    config = read_json(directory / "config.json")
    source, columns = config.get("source", ""), config.get("columns", {}).get("observations")
    names = read_json(directory / "results.json").get("observation_names")
    if columns is not None:
        names = [name.strip() for name in columns.split(",")]
    into, title = directory / "figures", f"{source}, {model.kind}"
    drawn = {
        "forecasts": figures.prediction_fan(model, episodes, horizon, names, title=title),
        "error_by_horizon": figures.error_by_horizon(model.errors, title),
        "coordinates": figures.coordinate_meaning(model, episodes, names, title=title),
    }
    if not isinstance(model.observations, OneHot):
        drawn |= _uncertainty_figures(model, episodes, horizon, names, title)
    return [figures.save(figure, into, name) for name, figure in drawn.items()]


def _uncertainty_figures(
    model: PredictiveStateModel, episodes: list[Episode], horizon: int, names: list[str] | None, title: str
) -> dict[str, Any]:
    """Return the figures of coverage and of surprise, by name."""
    longest = max(episodes, key=len)
    horizon = min(horizon, len(longest))
    horizons = sorted({1, max(1, horizon // 2), horizon})
    levels = [0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99]
    shares = model.coverage(episodes, levels, horizon)[[h - 1 for h in horizons]]
    shown = names or [f"observation {i}" for i in range(longest.observations.shape[1])]
    found = model.surprise(longest.observations, longest.actions)
    return {
        "calibration": figures.calibration(levels, shares, horizons, title),
        "surprise": figures.surprise(found, shown, title),
    }


def _recorded(config: FitConfig, say: Say) -> list[Episode]:
    """Read recorded episodes."""
    if config.sensors != Sensors(missing=config.sensors.missing):
        raise UsageError("observe: settings of observations apply to environments only, not to recorded data.")
    if is_log(config.source):
        log = log_of(config.source, config.columns)
        episodes = log.episodes()
        gaps = f"; {log.gaps} gaps in time, each of which ends an episode" if log.gaps else ""
        say(f"read {_amount(episodes)} from {config.source}{gaps}")
        return episodes
    if config.columns != Columns():
        raise UsageError(f"observations: {config.source} has no columns with names; name columns for logs only.")
    episodes = load_episodes(config.source, gaps=config.sensors.missing is not None)
    say(f"read {_amount(episodes)} from {config.source}")
    return episodes


def log_of(path: str, columns: Columns) -> Log:
    """Read a log.

    Args:
        path: the file.
        columns: its columns.

    Raises:
        UsageError: if no sensors or no commands are named.
    """
    if columns.observations is None or columns.actions is None:
        field = "observations" if columns.observations is None else "actions"
        raise UsageError(f"{field}: are not named; name columns of {path}, as in --{field} first,second.")
    return read_log(
        path,
        observations=columns.observations,
        actions=columns.actions,
        episode=columns.episode,
        time=columns.time,
    )


def _missing(episodes: list[Episode]) -> bool:
    """Return whether a reading is missing."""
    return any(bool(np.isnan(e.observations).any()) for e in episodes)


def explore_environment(config: FitConfig) -> tuple[list[Episode], list[str] | None]:
    """Collect episodes with random actions, with the observations that the settings describe, and their names."""
    if config.samples < 1:
        raise UsageError(f"samples: {config.samples} is not a whole number ≥ 1.")
    env_args.check(config.sensors.env_args)
    given = make_arguments(config.sensors)
    envs = make(config.source, num_envs=10, seed=config.seed, autoreset_mode=AutoresetMode.DISABLED, **given)
    try:
        return explore(envs, samples=config.samples, seed=config.seed), observation_names(envs)
    finally:
        envs.close()


def _amount(episodes: list[Any]) -> str:
    return f"{sum(map(len, episodes)):,} steps in {len(episodes):,} episodes"


def _since(started: float) -> str:
    return f"{time.perf_counter() - started:.1f} s"
