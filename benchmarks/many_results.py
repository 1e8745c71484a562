"""Time to read and compare the results of 10 000 runs. The goal is ten seconds.

The run directories are synthetic, in the form that `rpsp train` writes: 5 tasks, 20 variants of methods, 100 seeds,
100 iterations, with all fields and full precision. The benchmark times what `rpsp compare` does: read all files,
compute labels, areas under curves, intervals from 2000 resamples, and tests. The files have just been written, so
reading from the disk itself is not timed.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rpsp.experiments.comparison import compare
from rpsp.experiments.configure import configured
from rpsp.experiments.results import read_results
from rpsp.experiments.versions import versions

TASKS = ("InvertedPendulum-v5", "Swimmer-v5", "Hopper-v5", "Walker2d-v5", "HalfCheetah-v5")
METHODS = ("rpsp-alt", "rpsp-vrpg", "fm2", "gru32", "rpsi-trpo")
DIMENSIONS, SEEDS, ITERATIONS = (None, 10, 20, 30), 100, 100
DIAGNOSTICS = (
    "std_return", "mean_length", "whole_kl", "entropy", "explained_variance", "gradient_norm", "kl", "log_std", "skipped",
    "step_fraction", "surrogate_improvement", "refit_seconds", "acting_seconds", "update_seconds", "steps_per_second",
)  # fmt: skip


def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        size = make(Path(folder), TASKS, DIMENSIONS, SEEDS, ITERATIONS)
        started, busy = time.perf_counter(), time.process_time()
        runs, warnings = read_results([folder])
        read = time.perf_counter()
        found = compare(runs)
        done, spent = time.perf_counter(), time.process_time() - busy
    assert not warnings and not found.warnings
    figures = {
        "runs": len(runs),
        "iterations": ITERATIONS,
        "rows": len(found.rows),
        "megabytes": size / 1e6,
        "reading_seconds": read - started,
        "comparing_seconds": done - read,
        "processor_seconds": spent,
    }
    print(figures)
    return figures


def make(folder: Path, tasks: Sequence[str], dimensions: Sequence[int | None], seeds: int, iterations: int) -> int:
    """Write the run directories, and return the number of bytes of their metrics."""
    rng, size, content = np.random.default_rng(0), 0, json.dumps(versions(), indent=2)
    for task in tasks:
        for method in METHODS:
            for dimension in dimensions:
                given = {"env": task, "method": method, "iterations": iterations, "dimension": dimension}
                config = dataclasses.asdict(configured(given))
                for seed in range(seeds):
                    run = folder / task / f"{method}-{dimension}" / f"s{seed}"
                    run.mkdir(parents=True)
                    (run / "config.json").write_text(json.dumps(config | {"seed": seed}, indent=2), encoding="utf-8")
                    (run / "versions.json").write_text(content, encoding="utf-8")
                    size += (run / "metrics.jsonl").write_text(metrics(rng, iterations), encoding="utf-8")
    return size


def metrics(rng: np.random.Generator, iterations: int) -> str:
    """Return the lines of one run."""
    lines = [{"exploration_samples": 891, "exploration_return": 7.91, "state_size": 11,
              "prediction_error": rng.random(), "persistence_error": rng.random(), "exploration_seconds": rng.random(),
              "initialisation_seconds": rng.random()}]  # fmt: skip
    numbers = rng.random((iterations, 3 + len(DIAGNOSTICS))).tolist()
    for i, (mean, error, persistence, *others) in enumerate(numbers):
        line = {"iteration": i, "mean_return": 100 * mean, "episodes": 355, "samples": 2021, "dropped_episodes": 0,
                "total_samples": 891 + 2021 * (i + 1), "persistence_error": persistence,
                "prediction_error": error}  # fmt: skip
        lines.append(line | dict(zip(DIAGNOSTICS, others, strict=True)))
    return "".join(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
