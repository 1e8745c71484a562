"""Write a run directory during training: lock it, restore the last checkpoint, add metrics, checkpoints and results."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.budget import NAMES, Budget
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.files import Say, read_json, write_json
from rpsp.experiments.results import seconds_of
from rpsp.experiments.run_directory import RunDirectory, skipped
from rpsp.training.state import Recipe, Record, Training, TrainingSettings

LARGE = 10_000_000
"""Size in bytes above which a checkpoint is not written after every iteration."""


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
    """

    def __init__(self, config: TrainConfig, directory: Path, recipe: Recipe, amounts: TrainingSettings, say: Say):
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
            self.earlier_seconds = sum(map(seconds_of, self.files.metrics()))
            self.finished = (
                self.training is not None and self.known.get("iterations") == self.done and self.spent(self.training)
            )
            if self.finished:
                more = next(name for name in reversed(NAMES) if name == "iterations" or getattr(self.config, name))
                self.say(f"all {self.done} iterations in {self.directory} are done; to continue, give more --{more}")
            else:
                self._start()
            self.log_scalars = resources.enter_context(_TensorBoard(self.config, self.directory))
            self.resources = resources.pop_all()
        return self

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
        """Return whether the budget of the run is spent."""
        seconds = max(self.earlier_seconds, float(self.known.get("wall_seconds", 0)))
        return self.budget.spent(training.iteration, training.samples, seconds + time.monotonic() - self.started)

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
            self._wait()
            if self.unsaved is not None:
                self._write(None, self.unsaved)

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
        spaces = {"observation": envs.single_observation_space, "action": envs.single_action_space}
        write_json(self.directory / "spaces.json", {name: describe_space(space) for name, space in spaces.items()})

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
        self.log_scalars(record)
        self.unsaved = training
        last = self.spent(training)
        small = self.num_runs * self.size < LARGE
        due = last or small or time.monotonic() - self.saved >= 10 * self.num_runs * self.saving
        self.pending = self.executor.submit(self._write, record, training if due else None)
        if last or not small:  # so that large training states do not accumulate in memory
            self._wait()

    def _wait(self) -> None:
        """Wait for the pending write. Raises its error, for example if the disk is full."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def _write(self, record: Record | None, training: Training | None) -> None:
        if record is not None:
            self.files.append(record)
        if training is not None:
            began = time.monotonic()
            written = self.files.save(training)
            self.size = sum(file.stat().st_size for file in written.iterdir())
            self.unsaved, self.saved = None, time.monotonic()
            self.saving = self.saved - began

    def write_results(self) -> dict[str, Any]:
        """Write results.json and return its content. If the run was finished before, return the existing results."""
        if self.finished:
            return self.known
        results = summary(vars(self.config), self.directory, self.files.metrics())
        results["wall_seconds"] = round(self.earlier_seconds + time.monotonic() - self.started, 1)
        write_json(self.results_file, self.known | results)
        return results


def summary(settings: Mapping[str, Any], directory: Path, metrics: list[Record]) -> dict[str, Any]:
    """Summarise a run for results.json.

    Args:
        settings: the settings of the run, with `env`, `method` and `seed`.
        directory: the run directory.
        metrics: all records of the run.

    Returns:
        These settings, counts of iterations, steps and dropped episodes, and the returns. `final_return` is the mean
        over the last ten iterations.
    """
    records = [r for r in metrics if "iteration" in r]
    returns = [r["mean_return"] for r in records]
    last = returns[-10:]
    return {
        "directory": str(directory),
        **{name: settings[name] for name in ("env", "method", "seed")},
        "iterations": len(records),
        "samples": int(records[-1]["total_samples"]) if records else 0,
        "final_return": sum(last) / len(last) if last else None,
        "best_return": max(returns, default=None),
        "area_under_curve": sum(returns),
        "dropped_episodes": int(sum(r["dropped_episodes"] for r in records)),
        "skipped_steps": sum(v for r in records for k, v in r.items() if k.split("/")[-1] == "skipped"),
    }


class _TensorBoard:
    """Context manager that returns a function to log a record to TensorBoard. Does nothing unless it is enabled."""

    def __init__(self, config: TrainConfig, directory: Path):
        self.writer = summary_writer()(str(directory / "tensorboard")) if config.tensorboard else None

    def __enter__(self) -> Callable[[Record], None]:
        return self._write

    def __exit__(self, *_: Any) -> None:
        if self.writer is not None:
            self.writer.close()

    def _write(self, record: Record) -> None:
        if self.writer is not None and "iteration" in record:
            for name, value in record.items():
                self.writer.add_scalar(name, value, int(record["total_samples"]))


def summary_writer() -> Any:
    """Return the class that writes TensorBoard files, or raise `UsageError` if tensorboardX is not installed."""
    try:
        from tensorboardX import SummaryWriter  # optional extra # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError("tensorboard: tensorboardX is not installed; run `pip install rpsp[tensorboard]`.") from error
    return SummaryWriter


# ---------------------------------------------------------------------------------------------------------------------
# Spaces
# ---------------------------------------------------------------------------------------------------------------------


def describe_space(space: Any) -> dict[str, Any]:
    """Return a Box or Discrete space as a JSON object. Infinite bounds become null."""
    if hasattr(space, "n"):
        return {"n": int(space.n), "start": int(space.start)}
    bounds = {"low": space.low, "high": space.high}
    return {name: [None if math.isinf(x) else float(x) for x in bound] for name, bound in bounds.items()} | {
        "dtype": str(space.dtype)
    }


def check_spaces(kept: Mapping[str, Any], envs: Any) -> None:
    """Check that environments have the spaces that a run was trained with.

    Observations must have the same shape. Actions must also have the same bounds, because the policy's actions are
    scaled to them. Discrete spaces must be equal.

    Args:
        kept: the spaces of the run, as `read_spaces` returns them.
        envs: the vector environment to check.

    Raises:
        UsageError: if a space does not match.
    """
    for name, then in kept.items():
        now = getattr(envs, f"single_{name}_space")
        if hasattr(then, "n") or hasattr(now, "n"):
            alike = then == now
        else:
            bounds = ("low", "high") if name == "action" else ()
            alike = then.shape == now.shape and all(
                np.allclose(getattr(then, bound), getattr(now, bound)) for bound in bounds
            )
        if not alike:
            raise UsageError(
                f"env: its {name} space is {now}, but the run was trained with {then}; restore the environment, or "
                "train a new run."
            )


def read_spaces(directory: Path) -> dict[str, Any]:
    """Read the observation and action spaces of a run from its spaces.json.

    Raises:
        FileFormatError: if the file is missing or damaged.
    """

    def rebuilt(space: Any) -> Any:
        if "n" in space:
            return Discrete(space["n"], start=space["start"])
        if np.dtype(space["dtype"]).kind not in "biuf":
            raise ValueError(f"dtype {space['dtype']} is not numeric")
        low, high = (
            np.array([infinite if x is None else x for x in space[name]], space["dtype"])
            for name, infinite in (("low", -np.inf), ("high", np.inf))
        )
        return Box(low, high, dtype=np.dtype(space["dtype"]).type)

    content = read_json(directory / "spaces.json")
    try:
        return {name: rebuilt(content[name]) for name in ("observation", "action")}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, AssertionError) as error:
        raise FileFormatError(f"{directory / 'spaces.json'}: is damaged ({error}).") from error
