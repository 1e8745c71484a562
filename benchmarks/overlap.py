"""Would acting in parallel with physics be faster? Hopper, ten environments, two cores, random initial policy.

Two ways to do 1000 locksteps are measured alternately in one process. *In turn* (what `collect` does): all ten rows
act, then two threads step them. *Overlapping*: of two batches of five rows, one acts in the main thread while a
worker thread steps the other. Both use the same compiled filter and policy and the same physics.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from benchmarks.prepared import prepared
from rpsp.training.acting import lockstep
from rpsp.training.actions import action_units
from rpsp.training.loop import begin

LOCKSTEPS, TURNS = 1000, 5


def main() -> dict[str, Any]:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    rows = []
    for method, settings in {"fm2": {}, "rpsi-trpo": {}, "rpsp-alt": {"epochs": 1}}.items():
        _, make_envs, recipe, amounts = prepared(env="Hopper-v5", method=method, **settings)
        whole = make_envs(10)
        training, _ = begin(recipe, whole, amounts)
        one = prepared(env="Hopper-v5", method=method, threads=1, **settings).make_envs
        halves = [Half(training, envs) for envs in (one(5), one(5))]
        full = Half(training, whole)
        seconds: dict[str, list[float]] = {"in turn": [], "overlapping": []}
        for _ in range(TURNS + 1):
            seconds["in turn"].append(in_turn(full))
            seconds["overlapping"].append(overlapping(*halves))
        row: dict[str, Any] = {"method": method} | {
            name: statistics.median(values[1:]) for name, values in seconds.items()
        }
        row["gain"] = 1 - row["overlapping"] / row["in turn"]
        print(row, flush=True)
        rows.append(row)
    return {"rows": rows}


class Half:
    """Some of the environments, and what is needed to act in them."""

    def __init__(self, training: Any, envs: Any):
        self.envs, self.n, self.units = envs, envs.num_envs, action_units(envs)
        self.act_all = lockstep(training.agent, False)
        self.encode = training.scaling.encode
        self.q = np.broadcast_to(np.asarray(training.agent.filter.init()), (self.n, training.agent.filter.size))
        self.seen, self.starts = self.encode(envs.reset(seed=0)[0]).astype(np.float32), np.ones(self.n, np.bool_)
        self.executed = np.zeros((self.n, self.units.size), np.float32)
        self.noise = np.ones_like(self.executed)

    def act(self) -> np.ndarray:
        self.q, drawn = self.act_all(self.q, self.executed, self.seen, self.starts, self.noise)
        self.executed = self.units.clip(np.asarray(drawn))
        return self.units.decode(self.executed)

    def step(self, actions: np.ndarray) -> None:
        readings, _, terminated, truncated, _ = self.envs.step(actions)
        self.starts = terminated | truncated
        if self.starts.any():
            readings = self.envs.reset(options={"reset_mask": self.starts})[0]
        self.seen = self.encode(readings).astype(np.float32)


def in_turn(full: Half) -> float:
    started = time.perf_counter()
    for _ in range(LOCKSTEPS):
        full.step(full.act())
    return time.perf_counter() - started


def overlapping(first: Half, second: Half) -> float:
    with ThreadPoolExecutor(1) as worker:
        started = time.perf_counter()
        stepping = worker.submit(second.step, second.act())
        for _ in range(LOCKSTEPS):
            for half in (first, second):
                # `half` acts while the other is being stepped.
                actions = half.act()
                stepping.result()
                stepping = worker.submit(half.step, actions)
        stepping.result()
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
