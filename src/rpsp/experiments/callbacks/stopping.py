"""Callbacks that end a run: a return is reached, nothing improves, or time is over."""

from __future__ import annotations

import math

from rpsp.errors import UsageError
from rpsp.experiments.budget import AVERAGED, UNLIMITED, Budget
from rpsp.experiments.callbacks.base import Answer, Callback, RunState


class StopAtReturn(Callback):
    """Stop when the mean of a metric over the last iterations that have it reaches a value.

    A resumed run averages again: it does at least as many iterations as are averaged.

    Args:
        value: the value.
        metric: the name of the metric, such as "eval_return".
        average: number of iterations to average over. Default: 10, as `final_return` does; 1 for other metrics than
            "mean_return".
    """

    def __init__(self, value: float | int, *, metric: str = "mean_return", average: int | None = None):
        self.value, self.metric = value, metric
        self.average = (AVERAGED if metric == "mean_return" else 1) if average is None else average
        if self.average < 1:
            raise UsageError(f"average: {average} is not a whole number ≥ 1.")
        self._latest: list[float] = []

    def on_iteration(self, run: RunState) -> Answer:
        """Stop if the value is reached."""
        if self.metric not in run.record:
            return None
        self._latest = [*self._latest, float(run.record[self.metric])][-self.average :]
        mean = sum(self._latest) / len(self._latest)
        if len(self._latest) < self.average or mean < self.value:
            return None
        run.say(f"stopped: {self.metric} is {mean:.2f}, which reaches {self.value:g}")
        return "stop"


class EarlyStopping(Callback):
    """Stop when a metric has not improved for some time.

    Args:
        patience: number of iterations that have the metric and do not improve it, after which the run stops.
        metric: the name of the metric, such as "mean_return" or "eval_return".
        least: the smallest improvement that counts.
    """

    def __init__(self, patience: int, *, metric: str = "mean_return", least: float | int = 0.0):
        if patience < 1:
            raise UsageError(f"patience: {patience} is not a whole number ≥ 1.")
        self.patience, self.metric, self.least = patience, metric, least
        self.best, self.waited = -math.inf, 0

    def on_iteration(self, run: RunState) -> Answer:
        """Stop if the metric has not improved for too long."""
        if self.metric not in run.record:
            return None
        value = float(run.record[self.metric])
        if value > self.best + self.least or self.best == -math.inf:
            self.best, self.waited = value, 0
            return None
        self.waited += 1
        if self.waited < self.patience:
            return None
        run.say(f"stopped: {self.metric} has not improved on {self.best:.2f} {self.patience} times")
        return "stop"


class TimeLimit(Callback):
    """Stop after the iteration in which a time limit is reached. All processes that worked on the run count.

    Args:
        minutes: the time limit in minutes.
        hours: the time limit in hours instead.
    """

    def __init__(self, minutes: float | int | None = None, *, hours: float | int | None = None):
        if (minutes is None) == (hours is None):
            raise UsageError(f"minutes: {minutes} minutes and {hours} hours are given; give one of them, and only one.")
        self.budget = Budget(UNLIMITED, minutes=minutes if hours is None else 60 * hours)

    def on_iteration(self, run: RunState) -> Answer:
        """Stop if the time is over."""
        return "stop" if self.budget.spent(run.iteration, run.steps, run.seconds) else None
