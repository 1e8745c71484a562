"""Before anything imports rpsp: run on the CPU, check every annotated shape, and make property tests repeatable."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks`, under plain `pytest` as well

from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

assert "rpsp" not in sys.modules, "rpsp was imported before its annotations could be checked"
install_import_hook("rpsp", "beartype.beartype")

settings.register_profile(
    "rpsp", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rpsp")
