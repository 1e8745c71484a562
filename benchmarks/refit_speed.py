"""Speed of rows whose refits are refined, compared with bare physics, on one core: Hopper, 10 000 samples per iteration.

Parts of a short run are measured in CPU time of the process, because the machine was busy: an iteration, a refit that has
nothing to compile, and bare `mj_step`. A whole run is composed of them: the speed of n iterations with their refits,
divided by that of bare physics. The initialisation and compilations are left out, as in the speed of the whole loop.
"""

from __future__ import annotations

import os
import statistics
import time
from contextlib import closing
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # before jax is imported
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()

ROWS: dict[str, dict[str, Any]] = {"rpsp-alt": {"refit_epochs": 20}, "rpsr-alt": {}}
SCHEDULES = {"rpsp-alt": (5, 12, 25, 40), "rpsr-alt": (1, 2, 4, 8, 16, 32, 64, 128, 256)}
SHORT, MEASURED, ITERATIONS = (3, 5), 8, (60, 150, 500)


def main() -> dict[str, Any]:
    return {"rows": [measure(name) for name in ROWS]}


def measure(method: str) -> dict[str, Any]:
    """Return the parts of a run, and the ratio to bare physics of runs of some lengths."""
    import jax

    from benchmarks.batch_stepping import raw_rate, record
    from benchmarks.prepared import prepared
    from rpsp.training.loop import train

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    recording = record(10)
    config, make_envs, recipe, amounts = prepared(
        env="Hopper-v5", method=method, threads=1, num_envs=20, refit_before=SHORT, refit_above=0.0, **ROWS[method]
    )
    seconds, steps, bare = [], [], []
    with closing(make_envs(config.num_envs)) as envs:
        before = time.process_time()
        for training, _ in train(recipe, envs, amounts, MEASURED):
            seconds.append(time.process_time() - before)
            steps.append(training.samples)
            rate, cores = raw_rate(recording, 1)
            bare.append(rate / cores)
            before = time.process_time()
    plain = [second for n, second in enumerate(seconds[1:]) if n > min(SHORT) and n not in SHORT]
    iteration, physics = statistics.median(plain), statistics.median(bare)
    refit = seconds[1 + max(SHORT)] - iteration  # the second: the first one compiles
    of_one = (steps[-1] - steps[0]) / MEASURED
    found = {
        "method": method,
        "steps_of_an_iteration": of_one,
        "iteration_seconds": iteration,
        "refit_seconds": refit,
        "bare_steps_per_second": physics,
    }
    for n in ITERATIONS:
        refits = sum(when < n for when in SCHEDULES[method])
        found[f"over_raw_{n}"] = n * of_one / (physics * (n * iteration + refits * refit))
    print(found, flush=True)
    return found


if __name__ == "__main__":
    main()
