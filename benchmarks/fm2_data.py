"""Data of a trained policy: a policy on two observations is trained by TRPO, then recorded.

    python -m benchmarks.fm2_data InvertedPendulum-v5 60 [seed]      trains, and prints the return of every iteration

Predictive models are compared on the data of a trained policy, because random Hopper episodes last only 20 steps.
Finite memory (FM2) is used because it is the fastest to train and needs no model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np

from rpsp.algorithms.policies import Agent, GaussianPolicy
from rpsp.algorithms.trpo import Trpo
from rpsp.data.batches import pack
from rpsp.data.episodes import Episode
from rpsp.data.scaling import fit_scaling
from rpsp.envs.make import make
from rpsp.envs.tasks import TASKS
from rpsp.filters.base import reached
from rpsp.filters.memory import observation_window
from rpsp.training.actions import action_units
from rpsp.training.rollouts import collect, explore

Log = Callable[[int, dict[str, float]], None]


def trained_policy_data(
    env_id: str, *, iterations: int, samples: int, seed: int, log: Log | None = None
) -> list[Episode]:
    """Return episodes of an FM2 policy after `iterations` iterations of TRPO on one of the paper's tasks.

    There are at least 2 · `samples` steps, with episodes in the order in which they were started: use alternate
    ones to fit and to test. Observations are unscaled; actions are the executed ones, scaled to [−1, 1]. Training
    uses the batch size of the task. `log(iteration, diagnostics)` is called after every iteration.
    """
    task = TASKS[env_id]
    envs = make(env_id, max(1, task.batch_samples // task.max_episode_steps))
    try:
        explored = explore(envs, episodes=task.exploration_episodes, seed=seed)
        scaling = fit_scaling(np.concatenate([episode.observations for episode in explored]))
        actions = action_units(envs).size
        window = observation_window(2, explored[0].observations.shape[1], actions)
        batch = pack([replace(e, observations=scaling.encode(e.observations)) for e in explored])
        inputs = fit_scaling(reached(window, batch))
        agent = Agent(window, GaussianPolicy(window.size, actions, scaling=inputs, key=jax.random.key(seed)))
        algorithm = Trpo()
        memory = algorithm.init(agent, key=jax.random.key(seed))
        for iteration in range(iterations):
            started = time.perf_counter()
            collected = collect(
                agent, envs, scaling=scaling, samples=task.batch_samples, seed=seed, iteration=iteration
            )
            acted = time.perf_counter()
            # One row length and few row counts: few compilations.
            batch = pack(collected.episodes, row_length=task.max_episode_steps, row_multiple=4)
            agent, memory, diagnostics = algorithm.step(agent, memory, batch, key=jax.random.key(iteration))
            numbers = {name: float(value) for name, value in diagnostics.items()}  # waits for the update to be done
            seconds = {"acting_seconds": acted - started, "update_seconds": time.perf_counter() - acted}
            if log is not None:
                log(iteration, collected.stats | numbers | seconds)
        recorded = collect(agent, envs, scaling=scaling, samples=2 * samples, seed=seed, iteration=iterations)
    finally:
        envs.close()
    return [replace(e, observations=scaling.decode(e.observations), drawn_actions=None) for e in recorded.episodes]


def main(env_id: str, iterations: int, seed: int = 0) -> None:
    def log(iteration: int, d: dict[str, float]) -> None:
        print(
            f"{iteration:4d}  return {d['mean_return']:8.1f}  samples {d['samples']:6.0f}  kl {d['kl']:.4f}  "
            f"gain {d['surrogate_improvement']:.4f}  ev {d['explained_variance']:.2f}  log_std {d['log_std']:.2f}  "
            f"acting {d['acting_seconds']:.2f} s  update {d['update_seconds']:.3f} s  "
            f"skipped {d['skipped']:.0f}  dropped {d['dropped_episodes']:.0f}",
            flush=True,
        )

    episodes = trained_policy_data(
        env_id, iterations=iterations, samples=TASKS[env_id].batch_samples, seed=seed, log=log
    )
    returns = [e.rewards.sum() for e in episodes if e.rewards is not None]
    print(f"recorded: {len(episodes)} episodes, {sum(map(len, episodes))} steps, mean return {np.mean(returns):.1f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:4]))
