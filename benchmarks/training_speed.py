"""How fast is the whole training loop beside bare physics? Hopper, 10 000 samples an iteration, two threads.

Measured in one process: bare `mj_step` (see `batch_stepping`) before and after each method, then iterations of training,
everything included (acting, packing, update, diagnostics, refits, checkpoint). Compilations are counted, and the
process's memory is looked at, over the whole run.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from benchmarks.batch_stepping import raw_rate, record
from benchmarks.prepared import prepared
from rpsp.experiments.run_directory import RunDirectory
from rpsp.training import train

RUNS = {"rpsi-trpo": 60, "fm2": 25, "gru32": 20, "rpsp-alt": 15}
"""Methods, and how many iterations of each."""
STEP_COMPILED = "/jax/core/compile/backend_compile_duration"


def main() -> dict[str, Any]:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    recordings = {n: record(n) for n in (10, 100)}

    def raw() -> dict[int, float]:
        return {n: statistics.median(raw_rate(recording)[0] for _ in range(3)) for n, recording in recordings.items()}

    rows = []
    for method, iterations in RUNS.items():
        before = raw()
        row = measure(method, iterations)
        after = raw()
        bare = {n: (before[n] + after[n]) / 2 for n in before}
        row |= {f"raw_{n}": bare[n] for n in bare} | {f"over_raw_{n}": row["steps_per_second"] / bare[n] for n in bare}
        print(row, flush=True)
        rows.append(row)
    return {"rows": rows}


def measure(method: str, iterations: int) -> dict[str, Any]:
    """Steps per second of all iterations but the first, which compiles; compilations and memory by iteration."""
    config, make_envs, recipe, amounts = prepared(env="Hopper-v5", method=method, threads=2, iterations=iterations)
    compilations: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compilations.append(event) if event == STEP_COMPILED else None
    )
    envs = make_envs(config.num_envs)
    marks, samples, memory, compiled, parts = [], [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        files = RunDirectory(Path(folder))
        for training, found in train(recipe, envs, amounts, iterations):
            files.append(found)
            files.save(training)
            marks.append(time.perf_counter())
            samples.append(training.samples)
            memory.append(resident_megabytes())
            compiled.append(len(compilations))
            parts.append({k: v for k, v in found.items() if k.endswith("_seconds")})
    envs.close()
    jax.monitoring.clear_event_listeners()
    typical = {k: statistics.median(p[k] for p in parts[2:]) for k in parts[-1]}
    return {
        "method": method,
        "iterations": iterations,
        "steps_per_second": (samples[-1] - samples[1]) / (marks[-1] - marks[1]),
        "compilations_after_the_first_iteration": compiled[-1] - compiled[1],
        "megabytes_at_iteration_20": memory[min(20, len(memory) - 1)],
        "megabytes_at_the_end": memory[-1],
        **{f"median_{k}": v for k, v in typical.items()},
    }


def resident_megabytes() -> float:
    """Memory that the process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
