"""Write a run directory during training: lock it, restore the last checkpoint, add metrics, checkpoints and results."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from rpsp.errors import UsageError
from rpsp.experiments.budget import AVERAGED, NAMES, Budget
from rpsp.experiments.callbacks.base import Callback, Hooks, RunState
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.files import Say, read_json, write_json
from rpsp.experiments.labels import flat_settings
from rpsp.experiments.results import seconds_of
from rpsp.experiments.run_directory import RunDirectory, skipped
from rpsp.experiments.spaces import check_spaces, describe, read_spaces
from rpsp.training.state import Recipe, Record, Training, TrainingSettings

LARGE = 10_000_000
"""Size in bytes above which a checkpoint is not written after every iteration."""
MOST_ERRORS = 20
"""Number of exceptions of callbacks that results.json lists."""


class RunWriter:
    """Writer of one run directory during training. Use it as a context manager.

    Entering locks the directory and reads the last checkpoint that is not damaged. Leaving waits for pending writes and
    saves the last iteration if its checkpoint was not written yet.

    Args:
        config: the resolved configuration of the run.
        directory: the run directory.
        recipe: how the method initialises and updates its agent.
        amounts: the settings of the training loop.
        say: called with every progress message.
        callbacks: the callbacks of the run.
        make_envs: makes environments for callbacks that evaluate the agent.
    """

    def __init__(
        self,
        config: TrainConfig,
        directory: Path,
        recipe: Recipe,
        amounts: TrainingSettings,
        say: Say,
        callbacks: Sequence[Callback] = (),
        make_envs: Callable[..., VectorEnv] | None = None,
    ):
        self.config, self.directory, self.say = config, directory, say
        self.recipe, self.amounts, self.budget = recipe, amounts, Budget.of(vars(config))
        self.files, self.results_file = RunDirectory(directory), directory / "results.json"
        self.resources = ExitStack()
        self.executor = ThreadPoolExecutor(1)
        self.pending: Future[None] | None = None
        """The write that is in progress, if any."""
        self.unsaved: Training | None = None
        self.saving = self.saved = 0.0
        self.size = 0
        self.num_runs = 1
        """Number of runs that this process trains."""
        self.earlier_seconds = 0.0
        """Seconds that earlier processes spent on this run."""
        self.hooks = Hooks(callbacks)
        settings = flat_settings(dataclasses.asdict(config))
        self.run = RunState(directory, settings, make_envs, say, self.seconds)
        self.written: list[Path] = []
        """Checkpoints of which the callbacks have not been told yet."""
        self.going = False
        """Whether the callbacks are between `on_start` and `on_end`."""

    def __enter__(self) -> RunWriter:
        """Lock the directory and read the last checkpoint that is not damaged. A finished run is not changed."""
        with ExitStack() as resources:
            resources.enter_context(self.files.locked())
            self.files.clean()
            self.training, complaints = self.files.restore(self.recipe.algorithm) or (None, [])
            for complaint in complaints:
                self.say(skipped(complaint))
            self.done = 0 if self.training is None else self.training.iteration
            self._check_done()
            self.known = read_json(self.results_file) if self.results_file.exists() else {}
            self.started = time.monotonic()
            self.earlier_seconds = sum(map(seconds_of, self.files.metrics()), 0.0)
            self.finished = (
                self.training is not None and self.known.get("iterations") == self.done and self.spent(self.training)
            )
            if self.finished:
                more = next(name for name in reversed(NAMES) if name == "iterations" or getattr(self.config, name))
                self.say(f"all {self.done} iterations in {self.directory} are done; to continue, give more --{more}")
            else:
                self._start()
            self.resources = resources.pop_all()
        return self

    def seconds(self) -> float:
        """Return the seconds that all processes have spent on the run."""
        earlier = max(self.earlier_seconds, float(self.known.get("wall_seconds", 0)))
        return earlier + time.monotonic() - self.started

    def begin(self) -> None:
        """Call `on_start` of the callbacks. Call it once, before the first iteration of this process."""
        self.run.training, self.going = self.training, True
        self.hooks.call("on_start", self.run)

    def _check_done(self) -> None:
        """Raise `UsageError` if the run has done more than its budget allows."""
        if self.budget.iterations < self.done and self.budget.steps is None:
            raise UsageError(
                f"iterations: {self.budget.iterations} is less than the {self.done} iterations already done."
            )
        totals = [int(r["total_samples"]) for r in self.files.metrics() if r.get("iteration", self.done) < self.done]
        if self.budget.steps is not None and len(totals) > 1 and self.budget.steps <= totals[-2]:
            raise UsageError(f"steps: {self.budget.steps} is less than the {totals[-1]} steps already done.")

    def spent(self, training: Training) -> bool:
        """Return whether the budget of the run is spent, or a callback has stopped it."""
        stopped = bool(self.hooks.stopped_by)
        return stopped or self.budget.spent(training.iteration, training.samples, self.seconds())

    def take_training(self) -> Training | None:
        """Return the training state to continue from, and drop the reference to it so that its memory can be freed."""
        training, self.training = self.training, None
        return training

    def _start(self) -> None:
        if self.training is None:
            self.say(f"run directory {self.directory}")
        else:
            self.say(f"resuming from checkpoint {self.done} in {self.directory}")
        if (kept := self.files.cut_back(-1 if self.training is None else self.done)) < self.done:
            self.say(f"{self.files.metrics_file}: is damaged; the records of {self.done - kept} iterations are lost")
        write_json(self.directory / "config.json", dataclasses.asdict(self.config))

    def __exit__(self, *_: Any) -> None:
        with self.resources, self.executor:
            try:
                self._wait()
                if self.unsaved is not None:
                    self._write(None, self.unsaved)
                    self._tell_written()
            finally:
                self._end()

    def _end(self) -> None:
        """Call `on_end` of the callbacks, once."""
        if self.going:
            self.going = False
            self.hooks.call("on_end", self.run)

    def write_spaces(self, envs: Any) -> None:
        """Write the spaces of observations and actions to spaces.json.

        With this file, the agent can be used without its environment. If the run has a checkpoint, check instead that
        the spaces match those in the file.

        Args:
            envs: the vector environment of the run.

        Raises:
            UsageError: if the spaces differ from those that the run was trained with.
        """
        if self.files.numbers() and (self.directory / "spaces.json").exists():
            return check_spaces(read_spaces(self.directory), envs)
        write_json(self.directory / "spaces.json", describe(envs))

    def save(self, training: Training, record: Record) -> None:
        """Write the metrics of an iteration and then its checkpoint, in a background thread.

        Large checkpoints (SAC's contain the replay buffer) are written less often, so that writing takes less than a
        tenth of the time. A killed process then loses at most a few seconds of work. An interrupted process loses
        nothing, because leaving the context writes the last iteration.

        Args:
            training: the training state after the iteration.
            record: the metrics of the iteration.
        """
        self._wait()
        self.unsaved = training
        record = dict(record)
        try:
            self._call_back(training, record)
        finally:  # also if the user interrupts an evaluation
            self._submit(training, record)

    def _call_back(self, training: Training, record: Record) -> None:
        """Call `on_iteration` of the callbacks, which may add metrics to the record. The initialisation is no iteration."""
        self.run.training, self.run.record = training, record
        if self.going and "iteration" in record:
            self.hooks.call("on_iteration", self.run)

    def _submit(self, training: Training, record: Record) -> None:
        last = self.spent(training)
        small = self.num_runs * self.size < LARGE
        due = last or small or time.monotonic() - self.saved >= 10 * self.num_runs * self.saving
        due = due or record.get("eval_return", -math.inf) > max(self.files.evaluations().values(), default=-math.inf)
        self.pending = self.executor.submit(self._write, record, training if due else None)
        if last or not small:  # so that large training states do not accumulate in memory
            self._wait()

    def _wait(self) -> None:
        """Wait for the pending write. Raises its error, for example if the disk is full."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()
        self._tell_written()

    def _tell_written(self) -> None:
        """Call `on_checkpoint` of the callbacks for the checkpoints that were written since."""
        while self.written:
            self.run.checkpoint = self.written.pop(0)
            if self.going:
                self.hooks.call("on_checkpoint", self.run)

    def _write(self, record: Record | None, training: Training | None) -> None:
        if record is not None:
            self.files.append(record)
        if training is not None:
            began = time.monotonic()
            written = self.files.save(training)
            self.size = sum(file.stat().st_size for file in written.iterdir())
            self.unsaved, self.saved = None, time.monotonic()
            self.saving = self.saved - began
            self.written.append(written)

    def write_results(self) -> dict[str, Any]:
        """Write results.json and return its content. If the run was finished before, return the existing results."""
        if self.finished:
            return self.known
        self._wait()
        results = summary(vars(self.config), self.directory, self.files.metrics())
        results["wall_seconds"] = round(self.earlier_seconds + time.monotonic() - self.started, 1)
        if self.hooks.stopped_by:
            results["stopped_by"] = self.hooks.stopped_by
        if self.hooks.errors:
            results["callback_errors"] = self.hooks.errors[:MOST_ERRORS]
        before = {name: value for name, value in self.known.items() if name not in ("stopped_by", "callback_errors")}
        write_json(self.results_file, before | results)
        self.run.results = results
        self._end()
        return results


def summary(settings: Mapping[str, Any], directory: Path, metrics: list[Record]) -> dict[str, Any]:
    """Summarise a run for results.json.

    Args:
        settings: the settings of the run, with `env`, `method` and `seed`.
        directory: the run directory.
        metrics: all records of the run.

    Returns:
        These settings, counts of iterations, steps and dropped episodes, and the returns. `final_return` is the mean
        over the last ten iterations. `best_eval_return` is the highest of the evaluations, if there are any.
    """
    records = [r for r in metrics if "iteration" in r]
    returns = [r["mean_return"] for r in records]
    last = returns[-AVERAGED:]
    evaluated = [float(r["eval_return"]) for r in records if "eval_return" in r]
    return {
        "directory": str(directory),
        **{name: settings[name] for name in ("env", "method", "seed")},
        "iterations": len(records),
        "samples": int(records[-1]["total_samples"]) if records else 0,
        "final_return": sum(last) / len(last) if last else None,
        "best_return": max(returns, default=None),
        **({"best_eval_return": max(evaluated)} if evaluated else {}),
        "area_under_curve": sum(returns),
        "dropped_episodes": int(sum(r["dropped_episodes"] for r in records)),
        "skipped_steps": sum(v for r in records for k, v in r.items() if k.split("/")[-1] == "skipped"),
    }
