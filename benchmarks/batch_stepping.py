"""Speed of MujocoBatch compared with bare physics: `python -m benchmarks.batch_stepping [--json]`

Hopper, two threads, random actions; environments are reset when they end. The ways of stepping are measured
alternately in one process, so that other load on the machine slows all of them alike. The figures are medians over
the repetitions.

The reference is a loop over `mj_step` in two threads that synchronise only at the end, without observations,
rewards or checks. It replays a recording of MujocoBatch, with the same actions and resets at the same steps, so
that it simulates the same states (robots in the air are cheaper than robots on the ground). The last states are
checked to agree bit for bit.
"""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from rpsp.envs.mujoco_batch import MujocoBatch

THREADS = 2
REPETITIONS = 7
SAMPLES = 10_000
"""Environment steps per measurement: one iteration of the paper's Hopper."""


@dataclass(frozen=True)
class Recording:
    """Everything that is needed to repeat a run of MujocoBatch."""

    actions: NDArray[np.float32]
    restarts: list[dict[int, tuple[NDArray[np.float64], ...]]]
    """For each step, the rows that were reset before it, with their new positions and velocities."""
    final_positions: NDArray[np.float64]


def random_actions(num_envs: int) -> NDArray[np.float32]:
    shape = (SAMPLES // num_envs, num_envs, 3)
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def record(num_envs: int) -> Recording:
    # With nothing excluded, the observation after a reset is the whole first state.
    batch = MujocoBatch("Hopper-v5", num_envs, threads=THREADS, exclude_current_positions_from_observation=False)
    positions = batch.observation_structure["qpos"]
    actions, restarts = random_actions(num_envs), []
    observations, _ = batch.reset(seed=0)
    ended, final_positions = np.ones(num_envs, np.bool_), observations[:, :positions]
    for step_actions in actions:
        if restarts and ended.any():
            observations, _ = batch.reset(options={"reset_mask": ended})
        first_states = np.split(observations, [positions], axis=1)
        restarts.append({row: tuple(part[row] for part in first_states) for row in np.flatnonzero(ended)})
        observations, _, terminated, truncated, _ = batch.step(step_actions)
        ended, final_positions = terminated | truncated, observations[:, :positions]
    batch.close()
    return Recording(actions, restarts, final_positions)


def raw_rate(recording: Recording, count: int = THREADS) -> tuple[float, float]:
    """Return the steps per second of bare `mj_step` and the cores used, with the environments shared by some threads."""
    template: Any = gymnasium.make("Hopper-v5").unwrapped
    model, frame_skip = template.model, template.frame_skip
    steps, num_envs, _ = recording.actions.shape
    simulations = [mujoco.MjData(model) for _ in range(num_envs)]

    def replay(rows: range) -> None:
        mine = [(row, simulations[row], simulations[row].ctrl) for row in rows]
        for actions, restarts in zip(recording.actions, recording.restarts, strict=True):
            for row, data, control in mine:
                if row in restarts:
                    mujoco.mj_resetData(model, data)
                    data.qpos[:], data.qvel[:] = restarts[row]
                    mujoco.mj_forward(model, data)
                control[:] = actions[row]
                mujoco.mj_step(model, data, frame_skip)

    threads = [threading.Thread(target=replay, args=(range(first, num_envs, count),)) for first in range(count)]
    start, cpu_start = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    np.testing.assert_array_equal([data.qpos for data in simulations], recording.final_positions)
    return steps * num_envs / seconds, cpu_seconds / seconds


def rate(envs: VectorEnv) -> float:
    """Return the steps per second of a vector environment. Ended rows are reset at once."""
    actions = random_actions(envs.num_envs)
    restarts_itself = envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    envs.reset(seed=0)
    start = time.perf_counter()
    for step_actions in actions:
        _, _, terminated, truncated, _ = envs.step(step_actions)
        ended = terminated | truncated
        if not restarts_itself and ended.any():
            envs.reset(options={"reset_mask": ended})
    seconds = time.perf_counter() - start
    envs.close()
    return actions.shape[0] * actions.shape[1] / seconds


def batch(num_envs: int) -> VectorEnv:
    return MujocoBatch("Hopper-v5", num_envs, threads=THREADS)


def serial(num_envs: int) -> VectorEnv:
    factory = partial(gymnasium.make, "Hopper-v5")
    return SyncVectorEnv([factory] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def main() -> dict[str, float]:
    """Measure, and return environment steps per second and their ratios.

    If `cores_used_by_raw` is well below 2, the machine was busy with other work; measure again.
    """
    recording = record(100)
    cores: list[float] = []

    def raw() -> float:
        steps_per_second, cores_used = raw_rate(recording)
        cores.append(cores_used)
        return steps_per_second

    measurements: dict[str, Callable[[], float]] = {
        "raw_mj_step_100": raw,
        "mujoco_batch_100": lambda: rate(batch(100)),
        "mujoco_batch_10": lambda: rate(batch(10)),
        "sync_vector_env_100": lambda: rate(serial(100)),
        "sync_vector_env_10": lambda: rate(serial(10)),
    }
    rates: dict[str, list[float]] = {name: [] for name in measurements}
    for _ in range(REPETITIONS):
        for name, measure in measurements.items():
            rates[name].append(measure())
    figures = {name: statistics.median(values) for name, values in rates.items()}

    def median_ratio(above: str, below: str) -> float:
        # Of neighbours in time, because the machine's speed drifts between repetitions.
        return statistics.median(a / b for a, b in zip(rates[above], rates[below], strict=True))

    figures["batch_over_raw_100"] = median_ratio("mujoco_batch_100", "raw_mj_step_100")
    figures["batch_over_sync_100"] = median_ratio("mujoco_batch_100", "sync_vector_env_100")
    figures["batch_over_sync_10"] = median_ratio("mujoco_batch_10", "sync_vector_env_10")
    figures["cores_used_by_raw"] = statistics.median(cores)
    return figures


if __name__ == "__main__":
    figures = main()
    if "--json" in sys.argv[1:]:
        print(json.dumps(figures))
    else:
        print(f"Hopper-v5, {THREADS} threads, medians of {REPETITIONS} repetitions of {SAMPLES} steps")
        for name, value in figures.items():
            print(f"{name:22} {value:10,.0f} steps/s" if value > 100 else f"{name:22} {value:10.2f}")
