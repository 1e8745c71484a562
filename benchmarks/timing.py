"""Time and memory of fitting and filtering, on one core. Each measurement runs in its own process, bound to one core.

The data have the dimensions of Hopper's (5 observations, 3 actions) and come from a linear-Gaussian system, so that
no simulation is timed.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

QUESTIONS = ("fit_inference", "fit_two_stage", "filtering", "million_inference", "million_two_stage")
SINGLE = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}


def main() -> dict[str, Any]:
    out = {}
    for question in QUESTIONS:
        command = [sys.executable, "-m", "benchmarks.timing", question]
        answer = subprocess.run(
            command, env={**os.environ, **SINGLE}, capture_output=True, encoding="utf-8", check=True
        )
        out[question] = json.loads(answer.stdout.splitlines()[-1])
        print(question, out[question], flush=True)
    return out


def answer(question: str) -> dict[str, float]:
    import numpy as np

    from benchmarks.systems import linear_gaussian, simulate_linear_gaussian
    from rpsp.data.batches import Batch, pack
    from rpsp.data.episodes import split
    from rpsp.filters.inference import fit_inference
    from rpsp.filters.two_stage import fit_two_stage

    def data(episodes: int, steps: int) -> tuple[Batch, Batch]:
        rng = np.random.default_rng(0)
        recorded = simulate_linear_gaussian(linear_gaussian(6, 5, 3, rng), episodes, steps, rng)
        train, held = split(recorded, 0.2 if episodes < 500 else 0.02, rng=rng)
        return pack(train), pack(held)

    fits: dict[str, Callable[[Batch, Batch], Any]] = {
        "inference": lambda train, held: fit_inference(train, held, rng=np.random.default_rng(0)),
        "two_stage": lambda train, held: fit_two_stage(train, rng=np.random.default_rng(0)),
    }
    if question.startswith("fit_"):
        train, held = data(100, 100)  # 8000 steps to fit, 2000 held out
        fit = fits[question.removeprefix("fit_")]
        return {"samples": int(train.mask.sum())} | {
            name: _timed(lambda: fit(train, held)) for name in ("first_seconds", "again_seconds")
        }
    if question == "filtering":
        return _filtering(*data(100, 100), fits)
    before = _peak_gigabytes()
    train, held = data(1000, 1000)
    seconds = _timed(lambda: fits[question.removeprefix("million_")](train, held))
    return {
        "samples": int(train.mask.sum() + held.mask.sum()),
        "seconds": seconds,
        "peak_gigabytes": _peak_gigabytes(),
        "peak_gigabytes_before": before,
    }


def _filtering(train: Any, held: Any, fits: dict[str, Callable]) -> dict[str, float]:
    """Return the seconds to filter 10 rows of 1000 steps, compiled; the paper's filter also with XLA's cosines."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from rpsp.data.batches import pack
    from rpsp.data.episodes import Episode
    from rpsp.filters import features
    from rpsp.filters.base import compiled_unroll
    from rpsp.filters.memory import GRU

    rng = np.random.default_rng(0)
    rows = pack([Episode(rng.standard_normal((1001, 5)), rng.standard_normal((1000, 3))) for _ in range(10)])
    filters = {name: fit(train, held) for name, fit in fits.items()} | {"gru32": GRU(32, 5, 3, key=jax.random.key(0))}

    def seconds(filter: Any) -> float:
        compiled_unroll(filter, rows).block_until_ready()
        return sorted(_timed(lambda: compiled_unroll(filter, rows).block_until_ready()) for _ in range(7))[3]

    out = {f"{name}_seconds": seconds(filter) for name, filter in filters.items()}
    features.cos_and_sin = lambda x: (jnp.cos(x), jnp.sin(x))
    jax.clear_caches()
    return out | {"two_stage with XLA's cosines_seconds": seconds(filters["two_stage"])}


def _timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(json.dumps(answer(sys.argv[1])))
    else:
        main()
