"""Run directories as `rpsp train` leaves them, and results, without training."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rpsp.experiments.configure import configured
from rpsp.experiments.results import Result

EXPLORED, SAMPLES = 891, 2000


def write_run(
    directory: Path, returns: Sequence[float], *, versions: dict[str, str] | None = None, **given: Any
) -> Path:
    """A run with these returns and what was given; its amounts are resolved, as those of any run."""
    amounts = {"samples": SAMPLES, "exploration_episodes": 10, "max_episode_steps": 200, "num_envs": 10}
    config = configured({"env": "Hopper-v5", "method": "fm2", "iterations": len(returns), **amounts, **given})
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(dataclasses.asdict(config), indent=2), encoding="utf-8")
    (directory / "versions.json").write_text(
        json.dumps({"rpsp": "1.0", "jax": "0.10", **(versions or {})}), encoding="utf-8"
    )
    first = {"exploration_samples": EXPLORED, "exploration_return": 7.91, "state_size": 11, "prediction_error": 0.5,
             "persistence_error": 0.25, "exploration_seconds": 1.0, "initialisation_seconds": 2.0}  # fmt: skip
    lines = [first, *(iteration(i, value) for i, value in enumerate(returns))]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return directory


def iteration(i: int, value: float) -> dict[str, float]:
    """One record, its fields in the order of `training`."""
    return {"iteration": i, "mean_return": value, "std_return": 1.0, "mean_length": 30.0, "episodes": 66,
            "samples": SAMPLES, "dropped_episodes": 0, "total_samples": EXPLORED + SAMPLES * (i + 1),
            "persistence_error": 0.25, "prediction_error": 0.125 / (i + 1), "whole_kl": 0.01, "skipped": 0.0,
            "refit_seconds": 0.5, "acting_seconds": 1.0, "update_seconds": 2.5,
            "steps_per_second": SAMPLES / 4.0}  # fmt: skip


def made_up_result(
    task: str, method: str, seed: int, returns: np.ndarray, steps: np.ndarray | None = None, **more: Any
) -> Result:
    """A finished run of these returns; of a method by its label alone."""
    n = len(returns)
    curves = {"prediction_errors": np.full(n, 0.1), "persistence_errors": np.full(n, 0.2)}
    settings = {"env": task.split(",")[0], "method": method.split(",")[0], "seed": seed, "iterations": n}
    return Result(
        task, method, seed, settings, {"rpsp": "1"}, 2000.0 * np.arange(1, n + 1) if steps is None else steps, returns,
        **({"iterations": n, "finished": True, "failure": "", "seconds": 1.0, "source": Path()} | curves | more),
    )  # fmt: skip
