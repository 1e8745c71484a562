"""Speed of the whole training loop compared with bare physics: Hopper, 10 000 samples per iteration, one or two threads.

Each iteration does what `rpsp train` does (acting, packing, update, diagnostics, refits, checkpoint). After every
three iterations, bare `mj_step` is timed in the same process (see `batch_stepping`). The ratio is the number of
environment steps divided by the number that bare physics would have done in the same time, at its speed just before
and after, because the speed of the machine drifts. Compilations are counted and memory is measured over the whole
run. An iteration has more than 10 000 steps because started episodes are finished; with more environments there are
more of them.
"""

from __future__ import annotations

import itertools
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from benchmarks.batch_stepping import Recording, raw_rate, record
from benchmarks.prepared import prepared
from rpsp.experiments.run_writer import RunWriter
from rpsp.training.loop import train

REFITTED = {"refit_before": (5, 12, 25, 40), "refit_epochs": 20}
RUNS: tuple[tuple[str, int, int, int, dict[str, Any]], ...] = (
    ("rpsi-trpo", 60, 10, 2, {}),
    ("rpsi-trpo", 60, 20, 2, {}),
    ("fm2", 24, 10, 2, {}),
    ("gru32", 21, 10, 2, {}),
    ("rpsp-alt", 15, 10, 2, {}),
    ("rpsp-alt", 15, 20, 2, {}),
    ("rpsp-alt", 150, 20, 1, REFITTED),
    ("rpsr-alt", 150, 20, 1, {}),
)
"""Method, number of iterations, of environments and of threads (of the loop and of bare physics), settings."""
TOGETHER = 3
"""Number of iterations per measurement."""
STEP_COMPILED = "/jax/core/compile/backend_compile_duration"


def main() -> dict[str, Any]:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    recording, rows = record(10), []
    for run in RUNS:
        rows.append(measure(*run, recording))
        print(rows[-1], flush=True)
    return {"rows": rows}


def measure(
    method: str, iterations: int, num_envs: int, threads: int, settings: dict[str, Any], recording: Recording
) -> dict[str, Any]:
    """Return the speed over all iterations except the first, which compile, and compilations and memory."""
    config, make_envs, recipe, amounts = prepared(
        env="Hopper-v5", method=method, threads=threads, iterations=iterations, num_envs=num_envs, **settings
    )
    compilations: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compilations.append(event) if event == STEP_COMPILED else None
    )
    envs = make_envs(num_envs)
    seconds, samples, bare, memory, compiled, parts = [], [], [], [], [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        RunWriter(config, Path(folder), recipe, amounts, lambda _: None) as writer,
    ):
        began = time.perf_counter()
        for training, found in train(recipe, envs, amounts, iterations):
            writer.save(training, found)
            memory.append(resident_megabytes())
            compiled.append(len(compilations))
            parts.append({k: v for k, v in found.items() if k.endswith("_seconds")})
            if training.iteration % TOGETHER == 0:
                seconds.append(time.perf_counter() - began)
                samples.append(training.samples)
                bare.append(statistics.median(raw_rate(recording, threads)[0] for _ in range(3)))
                began = time.perf_counter()
    envs.close()
    jax.monitoring.clear_event_listeners()
    spent = seconds[2:]  # without the initialisation, and what compiles
    steps = samples[-1] - samples[1]
    physics = sum(s * (a + b) / 2 for s, (a, b) in zip(spent, itertools.pairwise(bare[1:]), strict=True))
    typical = {k: statistics.median(p[k] for p in parts[4:]) for k in parts[-1]}
    return {
        "method": method,
        "settings": settings,
        "iterations": iterations,
        "num_envs": num_envs,
        "threads": threads,
        "steps_of_an_iteration": steps / (TOGETHER * len(spent)),
        "steps_per_second": steps / sum(spent),
        "raw_steps_per_second": physics / sum(spent),
        "over_raw": steps / physics,
        "refit_seconds": sum(part.get("refit_seconds", 0.0) for part in parts),
        "compilations_after_the_first_iteration": compiled[-1] - compiled[1],
        "megabytes_at_iteration_20": memory[min(20, len(memory) - 1)],
        "megabytes_at_the_end": memory[-1],
        **{f"median_{k}": v for k, v in typical.items()},
    }


def resident_megabytes() -> float:
    """Return the memory of the process in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
