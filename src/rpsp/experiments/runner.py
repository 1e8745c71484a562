"""A command's settings to a run directory. Files are written atomically; nothing that exists is overwritten."""

from __future__ import annotations

import dataclasses
import json
import platform
import shlex
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.checkpoints import read_bytes, write_bytes
from rpsp.experiments.config import FitConfig, Sensors

Say = Callable[[str], None]

PACKAGES = (
    "rpsp", "numpy", "scipy", "jax", "jaxlib", "equinox", "optax", "jaxtyping", "gymnasium", "mujoco", "safetensors",
    "matplotlib", "rich", "tyro",
)  # fmt: skip
MAX_JSON = 64 << 20  # bytes of a file; ours have a few thousand
EXTRAS = ("imageio-ffmpeg", "minari", "onnxruntime", "pyarrow", "tensorboardX", "sb3-contrib", "ray")


def versions() -> dict[str, str]:
    """Versions of Python and of every package that can move a result."""
    return {"python": platform.python_version()} | {name: _version(name) or "missing" for name in PACKAGES}


def extras() -> dict[str, str | None]:
    """Versions of the optional packages that are installed; None for those that are not."""
    return {name: _version(name) for name in EXTRAS}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def free_directory(out: str | None, name: str) -> Path:
    """Where a run may go: `out` itself, or a name made of the run and the time under runs/. Must be new or empty."""
    path = Path(out) if out is not None else Path("runs") / f"{name}__{time.strftime('%Y%m%d-%H%M%S')}"
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        going_on = (
            f"go on with it by `rpsp resume {shlex.quote(str(path))}`, " if (path / "checkpoints").is_dir() else ""
        )
        raise UsageError(
            f"out: {str(path)!r} exists and is not empty; {going_on}choose another directory or remove it."
        )
    return path


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = json.loads(read_bytes(path, MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: is not JSON ({error}).") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: holds no JSON object.")
    return content


def record_settings(directory: Path, config: Any) -> None:
    """config.json, command.txt and versions.json: what was asked for, and of which versions."""
    write_json(directory / "config.json", dataclasses.asdict(config))
    write_bytes(directory / "command.txt", (shlex.join(["rpsp", *sys.argv[1:]]) + "\n").encode())
    write_json(directory / "versions.json", versions())


def fit(config: FitConfig, say: Say = lambda line: None) -> dict[str, Any]:
    """`rpsp fit`: episodes, model, errors beside the rivals', all kept in a run directory; a summary comes back."""
    from rpsp.experiments.compilation import compilation_cached
    from rpsp.experiments.models import PredictiveStateModel
    from rpsp.experiments.recordings import MINARI, load_episodes, other_format, save_episodes

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
    from rpsp.experiments import figures
    from rpsp.experiments.models import PredictiveStateModel
    from rpsp.experiments.recordings import load_episodes

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

    from rpsp.environments import make
    from rpsp.rollouts import explore

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
