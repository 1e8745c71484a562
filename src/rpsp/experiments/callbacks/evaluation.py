"""Evaluation during training, on episodes that the training does not use."""

from __future__ import annotations

import time

import numpy as np

from rpsp.errors import UsageError
from rpsp.experiments.agents import EVALUATING
from rpsp.experiments.callbacks.base import Answer, Callback, RunState


class Evaluation(Callback):
    """Evaluate the agent every few iterations.

    Adds the metrics `eval_return` (mean), `eval_return_std`, `eval_length` and `eval_seconds` to the iteration. Every
    evaluation has new episodes, whose seeds differ from those of the training and of `rpsp eval`. The checkpoint with the
    highest `eval_return` is kept, and is the one that `checkpoint="best"` loads. The training is not changed.

    Args:
        every: number of iterations between two evaluations.
        episodes: number of episodes of an evaluation.
        deterministic: whether to take the most probable action instead of sampling.
    """

    order = 0

    def __init__(self, every: int = 10, episodes: int = 10, *, deterministic: bool = True):
        for name, value in (("every", every), ("episodes", episodes)):
            if value < 1:
                raise UsageError(f"{name}: {value} is not a whole number ≥ 1.")
        self.every, self.episodes, self.deterministic = every, episodes, deterministic

    def on_iteration(self, run: RunState) -> Answer:
        """Evaluate the agent if it is time."""
        if run.iteration % self.every:
            return None
        began = time.perf_counter()
        found = run.agent.evaluate(
            self.episodes, seed=evaluation_seed(run.settings["seed"], run.iteration), deterministic=self.deterministic
        )
        returns = found.returns
        run.log(
            eval_return=float(returns.mean()),
            eval_return_std=float(returns.std()),
            eval_length=found.samples / len(returns),
            eval_seconds=time.perf_counter() - began,
        )
        return None


def evaluation_seed(seed: int, iteration: int) -> int:
    """Return the seed of the episodes that evaluate a run after this many iterations."""
    return int(np.random.SeedSequence(seed, spawn_key=(EVALUATING, iteration)).generate_state(1, np.uint64)[0])
