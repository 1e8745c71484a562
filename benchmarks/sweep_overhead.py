"""Cost of a sweep compared with bare runs: the same four runs by `rpsp train` on every core and by `rpsp sweep`.

The processes of a sweep share compiled programs, so the bare runs are also measured with such a cache. The figure
is the computing time of all processes together, which other load disturbs less than wall time (which is in the file
of results). The returns of all runs are checked to be the same.
"""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rpsp.experiments.results import read_results

TASK, METHODS, SEEDS, ITERATIONS = "InvertedPendulum-v5", ("fm2", "rpsi-trpo"), 2, 60
RPSP = [sys.executable, "-m", "rpsp.cli"]


def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        sweep, figures = Path(folder, "sweep"), {}
        for name, cached in (("bare", False), ("bare, shared cache", True)):
            with timed(figures, name):
                bare(Path(folder, name), Path(folder, "compiled") if cached else None)
        file = Path(folder, "sweep.toml")
        file.write_text(
            f"tasks = {[TASK]}\nmethods = {list(METHODS)}\nseeds = {SEEDS}\niterations = {ITERATIONS}\n",
            encoding="utf-8",
        )
        with timed(figures, "sweep"):
            subprocess.run([*RPSP, "sweep", file, "--out", sweep, "--quiet"], check=True)
        same = curves(sweep) == curves(Path(folder, "bare")) == curves(Path(folder, "bare, shared cache"))
    assert same, "the numbers differ"
    return {"runs": len(METHODS) * SEEDS, "cores": len(os.sched_getaffinity(0)), "rows": figures}


def bare(out: Path, compiled: Path | None) -> None:
    """Run one `rpsp train` after another on every core."""
    cores = sorted(os.sched_getaffinity(0))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if compiled is not None:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(compiled)
        environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        environment |= {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    commands = []
    for seed, method in itertools.product(map(str, range(SEEDS)), METHODS):
        own = ["--method", method, "--seed", seed, "--out", str(out / method / seed)]
        commands.append([*RPSP, "train", TASK, *own, "--iterations", str(ITERATIONS), "--threads", "1", "--quiet"])
    queue = iter(commands)

    def work(core: int) -> None:
        for command in queue:
            subprocess.run(["taskset", "-c", str(core), *command], env=environment, check=True)

    with ThreadPoolExecutor(len(cores)) as pool:
        list(pool.map(work, cores))


@contextmanager
def timed(figures: dict[str, Any], name: str) -> Iterator[None]:
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    yield
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    computing = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    figures[name] = {"wall_seconds": time.perf_counter() - started, "computing_seconds": computing}
    print(name, figures[name], flush=True)


def curves(directory: Path) -> list[Sequence[float]]:
    return [result.returns.tolist() for result in read_results([directory])[0]]


if __name__ == "__main__":
    main()
