"""The commands `fit` and `inspect`: a predictive-state model from an environment or recordings, and its figures."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.config import FitConfig, Sensors
from rpsp.experiments.files import Say, free_directory, read_json, record_settings, write_json


def fit(config: FitConfig, say: Say = lambda line: None) -> dict[str, Any]:
    """`rpsp fit`: episodes, model, errors beside the rivals', all kept in a run directory; a summary comes back."""
    from rpsp.data.recordings import MINARI, load_episodes, other_format, save_episodes
    from rpsp.experiments.compilation import compilation_cached
    from rpsp.experiments.models import PredictiveStateModel

    model = PredictiveStateModel(config.kind, seed=config.seed, **_given(config))
    recorded = config.source.startswith(MINARI) or config.source.endswith(".npz")
    if not recorded and Path(config.source).is_file():
        raise FileFormatError(other_format(config.source))
    stem = Path(config.source).stem if recorded else config.source.replace("/", "_").replace(":", "_")
    directory = free_directory(config.out, f"{stem}__fit-{config.kind}__s{config.seed}")
    if recorded:
        if config.sensors != Sensors():
            raise UsageError("observe: sensors can be masked and disturbed in environments only, not in recorded data.")
        episodes = load_episodes(config.source)
        say(f"read {_amount(episodes)} from {config.source}")
    else:
        started = time.perf_counter()
        episodes = explore_environment(config)
        say(f"explored {config.source} with random actions: {_amount(episodes)}, {_since(started)}")
    started = time.perf_counter()
    with compilation_cached(config.compilation_cache):
        model.fit(episodes)
    say(f"fitted {config.kind}, a state of {model.fitted.size} numbers, and its rivals: {_since(started)}")
    # Only now, when there is something to keep, is the directory made: a mistake leaves nothing in the way.
    record_settings(directory, config)
    save_episodes(directory / "episodes.npz", episodes)
    model.save(directory / "model.safetensors")
    results = {"directory": str(directory), "source": config.source, "kind": config.kind, "errors": model.errors}
    write_json(directory / "results.json", results)
    return results


def inspect(directory: Path, horizon: int = 10) -> list[Path]:
    """`rpsp inspect`: the figures of a fitted model; their paths."""
    from rpsp.data.recordings import load_episodes
    from rpsp.experiments import figures
    from rpsp.experiments.models import PredictiveStateModel

    if not (directory / "model.safetensors").exists():
        raise FileFormatError(
            f"{directory}: holds no model.safetensors; give a directory that `rpsp fit` wrote (of a trained run `rpsp "
            "report` shows the belief)."
        )
    model = PredictiveStateModel.load(directory / "model.safetensors")
    episodes = load_episodes(directory / "episodes.npz")
    source = read_json(directory / "config.json").get("source", "")
    into, title = directory / "figures", f"{source}, {model.kind}"
    drawn = {
        "forecasts": figures.prediction_fan(model, episodes, horizon, title=title),
        "error_by_horizon": figures.error_by_horizon(model.errors, title),
        "coordinates": figures.coordinate_meaning(model, episodes, title=title),
    }
    return [figures.save(figure, into, name) for name, figure in drawn.items()]


def explore_environment(config: FitConfig) -> list[Any]:
    """Random episodes of the environment as the sensors deliver it."""
    from gymnasium.vector import AutoresetMode

    from rpsp.envs.make import make
    from rpsp.training.rollouts import explore

    if config.samples < 1:
        raise UsageError(f"samples: {config.samples} is not a whole number ≥ 1.")
    sensors = dataclasses.asdict(config.sensors)
    envs = make(config.source, num_envs=10, seed=config.seed, autoreset_mode=AutoresetMode.DISABLED, **sensors)
    try:
        return explore(envs, samples=config.samples, seed=config.seed)
    finally:
        envs.close()


def _given(config: FitConfig) -> dict[str, int]:
    """The settings of the model that were given, not left to the kind."""
    names = "past", "future", "dimension", "epochs"
    return {name: value for name in names if (value := getattr(config, name)) is not None}


def _amount(episodes: list[Any]) -> str:
    return f"{sum(map(len, episodes)):,} steps in {len(episodes):,} episodes"


def _since(started: float) -> str:
    return f"{time.perf_counter() - started:.1f} s"
