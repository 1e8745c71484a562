"""Before anything imports rpsp: run on the CPU, check every annotated shape, and make property tests repeatable."""

from __future__ import annotations

import gc
import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["RPSP_COMPILATION_CACHE"] = "off"  # tests leave the user's cache alone
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "helpers"), str(HERE.parent)]  # the latter for `benchmarks`, under plain `pytest` as well

# Four fifths of the suite's time is XLA compiling small programs. These flags make it six times as fast; the programs run
# slower, which tests do not notice. `make test-all` (RPSP_TESTS=full) runs the same tests with the compiler's own settings.
# XLA aborts on a flag that it does not know, so they are used with the pinned version only.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
FULL = os.environ.get("RPSP_TESTS") == "full"
if not FULL and version("jaxlib") == "0.10.2" and QUICK not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}".strip()

# Annotated shapes are checked everywhere in the science; in the lab, where few functions take arrays and the checks take
# a third of the time, only by `make test-all`.
SCIENCE = [f"rpsp.{room}" for room in ("data", "envs", "filters", "algorithms", "training")]
assert "rpsp" not in sys.modules, "rpsp was imported before its annotations could be checked"
install_import_hook("rpsp" if FULL else SCIENCE, "beartype.beartype")

settings.register_profile(
    "rpsp", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rpsp")


# Compiled programs are many objects that live long; looking for garbage among them less often saves 5 % of the time.
gc.set_threshold(200_000, 50, 100)

MEMORY = 2000 * 2**20
"""Bytes that a worker holds before it forgets its compiled programs; without this, three workers grow to 4 GB each."""


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Forget compiled programs between two files if the process has become large. Linux only."""
    statistics = Path("/proc/self/statm")
    if nextitem is None or item.path == nextitem.path or not statistics.exists():
        return
    if int(statistics.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MEMORY:
        import jax

        jax.clear_caches()


def pytest_sessionfinish() -> None:
    """Save what `make coverage` measured in this worker: pytest-xdist kills workers that take long to exit."""
    measuring = sys.modules.get("coverage")
    if measuring is not None and (current := measuring.Coverage.current()) is not None:
        current.save()
