"""Time of the parts of one lockstep: ten rows of Hopper, two threads, `rpsi-trpo` trained from scratch.

The parts are timed over all iterations except the first two, which include compilation; figures are microseconds
per lockstep. Apart from physics, the time depends little on the number of rows: it consists of a few hundred
operations on small arrays, called from Python. The default of ten rows fills a batch of 10 000 samples with one
full episode each. `--num-envs 20` spreads these operations over twice as many rows, but makes batches larger,
because all started episodes are finished.
"""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax
from mujoco.batch import Batch

from benchmarks.prepared import prepared
from rpsp.envs.mujoco_batch import MujocoBatch
from rpsp.training import rollouts
from rpsp.training.loop import train

ITERATIONS, COMPILING = 30, 2


def main() -> dict[str, Any]:
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)

    def timed(name: str, function: Callable) -> Callable:
        def call(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments, **named)
            seconds[name] += time.perf_counter() - start
            calls[name] += 1
            return result

        return call

    config, make_envs, recipe, amounts = prepared(env="Hopper-v5", method="rpsi-trpo", threads=2, iterations=ITERATIONS)
    envs = make_envs(config.num_envs)
    envs.step, envs.reset = timed("step", envs.step), timed("reset", envs.reset)
    before = Batch.step, MujocoBatch.step, rollouts.lockstep
    Batch.step, MujocoBatch.step = timed("physics", Batch.step), timed("task", MujocoBatch.step)
    rollouts.lockstep = lambda *given: timed("act", before[2](*given))
    began = 0.0
    try:
        for training, found in train(recipe, envs, amounts, ITERATIONS):
            if training.iteration <= COMPILING:
                seconds.clear()
                calls.clear()
                began = time.perf_counter()
            else:
                seconds["acting"] += found["acting_seconds"]
        seconds["everything"] = time.perf_counter() - began
    finally:
        Batch.step, MujocoBatch.step, rollouts.lockstep = before
    each = {name: 1e6 * spent / calls["step"] for name, spent in seconds.items()}
    return {
        "locksteps": calls["step"],
        "microseconds": {
            "physics": each["physics"],
            "observation, reward, termination": each["task"] - each["physics"],
            "positions only, limit of time, whom to blame": each["step"] - each["task"],
            "filter and policy, compiled": each["act"],
            "resets": each["reset"],
            "noise, units, records of episodes": each["acting"] - each["step"] - each["act"] - each["reset"],
            "updates, refits, diagnostics": each["everything"] - each["acting"],
        },
    }
