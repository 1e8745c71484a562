"""Duration of a run on one core by composition of the method: the table that `rpsp sweep --dry-run` uses.

One method of each combination of belief and algorithm makes a short run on Hopper-v5, in a process bound to one
core, as in a sweep. Wall times are multiplied by the fraction of the core that the process had, to correct for
other load. `python -m benchmarks.speeds` writes src/rpsp/experiments/speeds.json; `python -m benchmarks.speeds rpsr-alt`
measures that method alone, and keeps the other rows of the file.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from rpsp.experiments import sweeps
from rpsp.experiments.files import write_json
from rpsp.experiments.methods import METHODS
from rpsp.experiments.workers import run_here

TASK, ITERATIONS = "Hopper-v5", 7  # three of them refit, so that the median does not


FILE = Path(sweeps.__file__).with_name("speeds.json")


def main(names: list[str]) -> None:
    """Measure the compositions of some methods. Default: all."""
    methods = {row.composition: row.name for row in reversed(METHODS.values()) if row.name != "tabular"}
    methods = {METHODS[name].composition: name for name in names} or methods
    sweep = sweeps.Sweep.of(
        {"tasks": [TASK], "methods": list(methods.values()), "iterations": ITERATIONS, "device": "cpu"}
    )
    rows, starts = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for kind, job in zip(methods, sweeps.prepare(sweep, Path(folder)), strict=True):
            started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            failures = [failure for beat in run_here([job], 1) for _, failure in beat.ended]
            wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
            share = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / wall
            speed, samples = sweeps.standing(job).speed, job.config.samples
            assert failures == [None] and speed is not None and samples is not None
            starts.append(share * (wall - speed.initial_seconds - ITERATIONS * speed.iteration_seconds))
            rows[kind] = {
                "method": job.config.method,
                "initial_seconds": round(share * speed.initial_seconds, 1),
                "seconds_per_1000_steps": round(share * speed.iteration_seconds / samples * 1000, 4),
            }
            print(kind, rows[kind], f"{wall:.1f} s, share {share:.2f}", flush=True)
    former = json.loads(FILE.read_text(encoding="utf-8")) if names else {}
    figures = {
        "what": f"as on {TASK} on one core of an AMD EPYC, in proportion to samples",
        "start_seconds": round(sorted(starts)[len(starts) // 2], 1),
        "rows": rows,
    }
    write_json(FILE, former | {"rows": former["rows"] | rows} if names else figures)


if __name__ == "__main__":
    main(sys.argv[1:])
