"""What a run takes on one core, by method: the table that `rpsp sweep --dry-run` guesses from where nothing is measured.

A short run on Hopper-v5 of one method for every belief and update there is, each in a process bound to one core, as a
sweep does it. `python -m benchmarks.speeds` writes src/rpsp/experiments/speeds.json.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rpsp.experiments import sweeps
from rpsp.experiments.methods import METHODS
from rpsp.experiments.pool import run_here
from rpsp.experiments.runner import write_json

TASK, ITERATIONS = "Hopper-v5", 9  # three of them refit, so that the median does not


def main() -> None:
    methods = {f"{row.belief}, {row.update}": row.name for row in reversed(METHODS.values()) if row.name != "tabular"}
    sweep = sweeps.Sweep.of(
        {"tasks": [TASK], "methods": list(methods.values()), "iterations": ITERATIONS, "device": "cpu"}
    )
    rows, starts = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for kind, job in zip(methods, sweeps.prepare(sweep, Path(folder)), strict=True):
            started = time.perf_counter()
            failures = [failure for beat in run_here([job], 1) for _, failure in beat.ended]
            wall = time.perf_counter() - started
            speed, samples = sweeps.standing(job).speed, job.config.samples
            assert failures == [None] and speed is not None and samples is not None
            starts.append(wall - speed.initial_seconds - ITERATIONS * speed.iteration_seconds)
            rows[kind] = {
                "method": job.config.method,
                "initial_seconds": round(speed.initial_seconds, 1),
                "seconds_per_1000_steps": round(speed.iteration_seconds / samples * 1000, 4),
            }
            print(kind, rows[kind], f"{wall:.1f} s", flush=True)
    figures = {
        "what": f"as on {TASK} on one core of an AMD EPYC, in proportion to samples",
        "start_seconds": round(sorted(starts)[len(starts) // 2], 1),
        "rows": rows,
    }
    write_json(Path(sweeps.__file__).with_name("speeds.json"), figures)


if __name__ == "__main__":
    main()
