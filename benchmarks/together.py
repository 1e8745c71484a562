"""Training many agents at once: seconds of an iteration for 1 to 64 agents, position-only Hopper. Needs a GPU.

The agents have the same method and different seeds. Their updates are one compiled program on the GPU; physics runs
in threads on the host. The figure is the median over all iterations except the first three, which include
compilation.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from typing import Any

import jax

from benchmarks.prepared import prepared
from rpsp.experiments.workers import cores
from rpsp.training.together import train_together

ITERATIONS = 12
METHODS: dict[str, dict[str, Any]] = {
    "rpsi-sac": {"hidden": [256, 256], "capacity": 100_000, "exploration_samples": 2_000},
    "rpsi-ppo": {},
}
NO_REFIT = {"refit_before": [ITERATIONS + 1]}
"""A refit that the measurement does not reach. States of filters that will be refitted have one size, and only agents
of one size are trained together."""
AGENTS = (1, 2, 4, 8, 16, 32, 64)


def main() -> dict[str, Any]:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    rows = []
    for method, agents in itertools.product(METHODS, AGENTS):
        rows.append({"method": method, "agents": agents, "cores": len(cores()), **measure(method, agents)})
        print(rows[-1], flush=True)
    return {"device": jax.devices()[0].device_kind, "rows": rows}


def measure(method: str, agents: int) -> dict[str, float]:
    """Return the seconds of an iteration of this number of agents, and of its parts."""
    config, make_envs, recipe, amounts = prepared(env="Hopper-v5", method=method, **METHODS[method], **NO_REFIT)
    settings = [dataclasses.replace(amounts, seed=seed) for seed in range(agents)]
    rows = config.num_envs or 1
    ends, records, steps = [time.perf_counter()], [], 0
    for found in train_together(
        [recipe] * agents, lambda n: make_envs(rows * n), settings, ITERATIONS, [None] * agents, len(cores())
    ):
        assert len(found) == agents, "some go by themselves"
        jax.block_until_ready([jax.tree.leaves(step.training) for step in found])
        ends.append(time.perf_counter())
        records.append(found[0].record)
        steps += sum(step.record.get("samples", 0) for step in found)
    later = records[4:]  # the first is the initialisation's
    return {
        "begin_seconds": ends[1] - ends[0],
        "seconds": statistics.median(b - a for a, b in itertools.pairwise(ends[4:])),
        "acting_seconds": statistics.median(r["acting_seconds"] for r in later),
        "update_seconds": statistics.median(r["update_seconds"] for r in later),
        "steps_of_an_iteration": steps / ITERATIONS,
    }


if __name__ == "__main__":
    main()
