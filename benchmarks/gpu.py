"""Time of an update on CPU and GPU, for 1, 10 and 100 agents at once. Needs a GPU that jax can use.

One batch of position-only Hopper (15 rows of 1000 steps) is collected with a random policy. The update of each
method is then compiled for n agents (`vmap` over parameters, memory and batch) on each device, and timed after a
first call. Several agents on the CPU are measured only where this takes less than minutes, because on a CPU each
seed has its own core.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import equinox as eqx
import jax

from benchmarks.prepared import prepared
from rpsp.training.loop import begin, packed
from rpsp.training.rollouts import collect
from rpsp.training.together import stack

METHODS = ("rpsi-trpo", "rpsi-ppo", "gru32", "rpsp-alt")
AGENTS = (1, 10, 100)


def main() -> dict[str, Any]:
    devices = {"cpu": jax.devices("cpu")[0], "gpu": jax.devices()[0]}
    print(devices, flush=True)
    rows = []
    for method in METHODS:
        with jax.default_device(devices["cpu"]):
            agent, memory, batch, algorithm = one_update(method)
        for name, device in devices.items():
            for count in AGENTS:
                if name == "cpu" and count > (10 if method.startswith("rpsi") else 1):
                    continue
                many = jax.device_put(stack([(agent, memory, batch)] * count), device)
                with jax.default_device(device):
                    row = {"method": method, "device": name, "agents": count, **timed(algorithm, many)}
                rows.append(row)
                print(row, flush=True)
    return {"gpu": devices["gpu"].device_kind, "rows": rows}


def one_update(method: str) -> tuple[Any, Any, Any, Any]:
    """Return an agent, the memory of its algorithm, a batch and the algorithm."""
    fewer = {"epochs": 1} if method == "rpsp-alt" else {}
    config, make_envs, recipe, amounts = prepared(env="Hopper-v5", method=method, **fewer)
    envs = make_envs(config.num_envs)
    training, _ = begin(recipe, envs, amounts)
    collected = collect(
        training.agent, envs, scaling=training.scaling, samples=amounts.samples, seed=0, iteration=0, keep_states=True
    )
    batch = packed(collected, envs, training.rows)
    envs.close()
    return training.agent, training.memory, batch, recipe.algorithm


def timed(algorithm: Any, many: Any) -> dict[str, float]:
    """Return the seconds of one update of all agents: the first with compilation, then the median of three without."""
    step = eqx.filter_jit(eqx.filter_vmap(lambda *given: algorithm.step(*given, key=jax.random.key(0))))
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        jax.block_until_ready(eqx.filter(step(*many), eqx.is_array))
        seconds.append(time.perf_counter() - started)
    return {"first_seconds": seconds[0], "seconds": statistics.median(seconds[1:])}


if __name__ == "__main__":
    main()
