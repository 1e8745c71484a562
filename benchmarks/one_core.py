"""Runs of one method on one task for the page of results, one seed after the other in one process on one core.

    python -m benchmarks.one_core DIRECTORY Hopper-v5 fm2-vrpg --seeds 0 1 2 --iterations 150 --protocol authors
    python -m benchmarks.one_core DIRECTORY '{"env": "Hopper-v5", "obs_noise": 0.1}' fm2 --seeds 0 --iterations 150

TASK and METHOD are names, or settings of `rpsp train` as JSON. With `--protocol authors` a task has that protocol's changes.
Every finished run becomes a small file in DIRECTORY, which `rpsp paper --results DIRECTORY` reads. Compiled programs are
used again by the next seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # before jax is imported
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train one method on one task, one seed after the other.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("task", help="Gymnasium id, or settings as JSON")
    parser.add_argument("method", help="name, or settings as JSON")
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--protocol", default="equal")
    given = parser.parse_args(arguments)
    task, method = _settings(given.task, "env"), _settings(given.method, "method")
    for seed in given.seeds:
        print(train(task, method, seed, given.iterations, given.protocol, given.directory), flush=True)


def _settings(given: str, name: str) -> dict[str, Any]:
    return json.loads(given) if given.startswith("{") else {name: given}


def train(task: dict[str, Any], method: dict[str, Any], seed: int, iterations: int, protocol: str, into: Path) -> Path:
    """Train one seed, and return the path of its result."""
    from benchmarks.prepared import prepared
    from rpsp.experiments.compilation import compilation_cached
    from rpsp.experiments.execution import train_runs
    from rpsp.experiments.files import record_settings
    from rpsp.experiments.paper import PROTOCOLS
    from rpsp.experiments.results import read_result, write_result

    settings = PROTOCOLS[protocol].task(task) | method
    config, make_envs, *_ = prepared(**settings, seed=seed, iterations=iterations, device="cpu", threads=1)
    with tempfile.TemporaryDirectory(prefix="rpsp-one-core-") as folder:
        directory = Path(folder, "run")
        directory.mkdir()
        config = dataclasses.replace(config, out=str(directory))
        record_settings(directory, config)
        with compilation_cached(True):
            train_runs([config], [directory], make_envs, lambda line: None, lambda record, pace: None)
        return write_result(read_result(directory), into)


if __name__ == "__main__":
    main()
