"""A run directory while a process works in it: what is there already, what is added, what it comes to."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.files import Say, read_json, write_json
from rpsp.experiments.results import seconds_of

if TYPE_CHECKING:  # heavy, and help and reports need none of it
    from rpsp.training.loop import Recipe, Record, Training, TrainingSettings

LARGE = 10_000_000
"""Bytes. A checkpoint that has more is not written after every iteration."""


class Place:
    """A run directory while a process works in it: what is there already, and what is added."""

    def __init__(self, config: TrainConfig, directory: Path, recipe: Recipe, amounts: TrainingSettings, say: Say):
        from rpsp.experiments.run_directory import RunDirectory

        self.config, self.directory, self.say = config, directory, say
        self.recipe, self.amounts = recipe, amounts
        self.files, self.results_file = RunDirectory(directory), directory / "results.json"
        self.held = ExitStack()
        self.writer = ThreadPoolExecutor(1)
        self.writing: Future[None] | None = None
        """What the disk is still busy with."""
        self.unsaved: Training | None = None
        self.saving = self.saved = 0.0
        self.size = 0
        self.beside = 1
        """How many runs the process works on."""
        self.before = 0.0
        """Seconds that were spent on what is done already."""

    def __enter__(self) -> Place:
        """Lock the directory, and read the last good checkpoint; a finished run is left as it is."""
        from rpsp.experiments.run_directory import skipped

        with ExitStack() as held:
            held.enter_context(self.files.locked())
            self.files.clean()
            self.training, complaints = self.files.restore(self.recipe.algorithm) or (None, [])
            for complaint in complaints:
                self.say(skipped(complaint))
            self.done = 0 if self.training is None else self.training.iteration
            assert self.config.iterations is not None  # resolved
            if self.config.iterations < self.done:
                raise UsageError(f"iterations: {self.done} are done already, more than {self.config.iterations}.")
            self.known = read_json(self.results_file) if self.results_file.exists() else {}
            self.finished = (
                self.training is not None and self.known.get("iterations") == self.config.iterations == self.done
            )
            self.started = time.monotonic()
            if self.finished:
                self.say(
                    f"all {self.done} iterations in {self.directory} are done; resume it with more --iterations to go on"
                )
            else:
                self._take_up()
            self.board = held.enter_context(_board(self.config, self.directory))
            self.held = held.pop_all()
        return self

    def take(self) -> Training | None:
        """The state to go on from; it is not kept here, where it would grow old."""
        training, self.training = self.training, None
        return training

    def _take_up(self) -> None:
        if self.training is None:
            self.say(f"run directory {self.directory}")
        else:
            self.say(f"going on from checkpoint {self.done} in {self.directory}")
        if (kept := self.files.cut_back(-1 if self.training is None else self.done)) < self.done:
            self.say(f"{self.files.metrics_file}: was damaged; the records of {self.done - kept} iterations are lost")
        self.before = sum(map(seconds_of, self.files.metrics()))
        write_json(self.directory / "config.json", dataclasses.asdict(self.config))

    def __exit__(self, *_: Any) -> None:
        with self.held, self.writer:
            self._wait()
            if self.unsaved is not None:
                self._write(None, self.unsaved)

    def keep_spaces(self, envs: Any) -> None:
        """Leave what observations and actions are, so that the agent can be used without its environment.

        Where there is a checkpoint they must be what they were.
        """
        if self.files.numbers() and (self.directory / "spaces.json").exists():
            return check_spaces(read_spaces(self.directory), envs)
        spaces = {"observation": envs.single_observation_space, "action": envs.single_action_space}
        write_json(self.directory / "spaces.json", {name: describe_space(space) for name, space in spaces.items()})

    def keep(self, training: Training, record: Record) -> None:
        """Metrics first, then the checkpoint, after every iteration; the next one goes on while the disk is busy with them.

        Where a checkpoint is large (SAC's holds all that it learns from), not so often that it takes a tenth of the time:
        a killed process then loses a few seconds' work, an interrupted one nothing.
        """
        self._wait()
        self.board(record)
        self.unsaved = training
        last = training.iteration == self.config.iterations
        small = self.beside * self.size < LARGE
        due = last or small or time.monotonic() - self.saved >= 10 * self.beside * self.saving
        self.writing = self.writer.submit(self._write, record, training if due else None)
        if last or not small:  # hundreds of megabytes had better not pile up
            self._wait()

    def _wait(self) -> None:
        """Until all that was kept is on the disk; here it turns out if it is full."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def _write(self, record: Record | None, training: Training | None) -> None:
        if record is not None:
            self.files.append(record)
        if training is not None:
            began = time.monotonic()
            written = self.files.save(training)
            self.size = sum(file.stat().st_size for file in written.iterdir())
            self.unsaved, self.saved = None, time.monotonic()
            self.saving = self.saved - began

    def conclude(self) -> dict[str, Any]:
        """What the run came to, written down."""
        if self.finished:
            return self.known
        results = summary(vars(self.config), self.directory, self.files.metrics())
        results["wall_seconds"] = round(self.before + time.monotonic() - self.started, 1)
        write_json(self.results_file, self.known | results)
        return results


def summary(settings: Mapping[str, Any], directory: Path, metrics: list[Record]) -> dict[str, Any]:
    """What a run of these settings came to."""
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


class _board:
    """TensorBoard's files beside the run, if they are wanted."""

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
    try:
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError("tensorboard: tensorboardX is not installed; `pip install rpsp[tensorboard]`.") from error
    return SummaryWriter


# ---------------------------------------------------------------------------------------------------------------------
# Spaces
# ---------------------------------------------------------------------------------------------------------------------


def describe_space(space: Any) -> dict[str, Any]:
    if hasattr(space, "n"):
        return {"n": int(space.n), "start": int(space.start)}
    bounds = {"low": space.low, "high": space.high}
    return {name: [None if math.isinf(x) else float(x) for x in bound] for name, bound in bounds.items()} | {
        "dtype": str(space.dtype)
    }


def check_spaces(kept: Mapping[str, Any], envs: Any) -> None:
    """Refuse environments whose readings or actions are not those that a run was trained with.

    Of readings their number counts; of actions their bounds as well, which are the units that a policy acts in.
    """
    import numpy as np

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
                f"env: its {name}s are in {now}, and were in {then} when the run was trained; make it as it was, or train "
                "anew."
            )


def read_spaces(directory: Path) -> dict[str, Any]:
    """The spaces of the observations and actions of a run, as spaces.json keeps them."""
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    def rebuilt(space: Any) -> Any:
        if "n" in space:
            return Discrete(space["n"], start=space["start"])
        if np.dtype(space["dtype"]).kind not in "biuf":
            raise ValueError(f"no numbers: {space['dtype']}")
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
