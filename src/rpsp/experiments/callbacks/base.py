"""The protocol of callbacks, what they see of a run, and how they are called."""

from __future__ import annotations

import math
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from gymnasium.vector import VectorEnv

from rpsp.errors import UsageError
from rpsp.experiments.agents import TrainedAgent
from rpsp.experiments.files import Say
from rpsp.experiments.spaces import read_spaces
from rpsp.training.actions import units_of
from rpsp.training.state import Record, Training

Answer = Literal["stop"] | None
"""What a callback returns: "stop" ends the run after this iteration."""
MOST_WAITING = 1000
"""A run waits for a logger that is so many iterations behind."""
TRIES = 3
"""A callback is no longer called after so many exceptions, except at the end."""


class RunState:
    """What callbacks see of a run.

    Args:
        directory: the run directory.
        settings: the settings of the run by flat name.
        make_envs: function `make_envs(num_envs)` that makes environments like those of the training, if there is one.
        say: shows a message to the user.
        clock: returns the seconds that all processes have spent on the run.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, Any],
        make_envs: Callable[..., VectorEnv] | None,
        say: Say,
        clock: Callable[[], float],
    ):
        self.directory, self.settings, self.make_envs, self.say = directory, dict(settings), make_envs, say
        self._clock = clock
        self.training: Training | None = None
        """The training state after the latest iteration. None before the exploration."""
        self.record: Record = {}
        """The metrics of the latest iteration."""
        self.checkpoint: Path | None = None
        """The directory of the latest checkpoint that this process has written."""
        self.results: dict[str, Any] | None = None
        """The content of results.json. None until the run has ended, and if it failed or was interrupted."""

    @property
    def iteration(self) -> int:
        """Number of finished iterations."""
        return 0 if self.training is None else self.training.iteration

    @property
    def steps(self) -> int:
        """Number of environment steps so far, exploration included."""
        return 0 if self.training is None else self.training.samples

    @property
    def seconds(self) -> float:
        """Seconds that all processes have spent on the run."""
        return self._clock()

    @property
    def agent(self) -> TrainedAgent:
        """The agent after the latest iteration. Raises `UsageError` before the exploration."""
        if self.training is None:
            raise UsageError("agent: there is none before the exploration; use it from on_iteration on.")
        now, spaces = self.training, self._spaces
        seed, first = int(self.settings["seed"]), int(getattr(spaces["observation"], "start", 0))
        units = units_of(spaces["action"])
        return TrainedAgent(now.agent, now.scaling, units, self.make_envs, now.iteration, seed, first, spaces)

    @cached_property
    def _spaces(self) -> dict[str, Any]:
        return read_spaces(self.directory)

    def log(self, **metrics: float) -> None:
        """Add metrics to those of this iteration. They are written to metrics.jsonl and passed to the loggers.

        Args:
            **metrics: numbers by name. Name times *_seconds; they count as time of the run.

        Raises:
            UsageError: if a value is not a finite number, or the iteration has a metric of that name already.
        """
        for name, value in metrics.items():
            if name in self.record:
                raise UsageError(f"{name}: the iteration has a metric of this name already; choose another name.")
            if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(float(value)):
                raise UsageError(f"{name}: {value!r} is not a finite number; leave it out of this iteration.")
        self.record |= {name: float(value) for name, value in metrics.items()}


class Callback:
    """Base class of callbacks. Every hook does nothing by default, and gets the state of the run.

    A hook that raises does not end the run: the exception is reported. Only a `UsageError` in `on_start` ends it, before
    anything is computed.
    """

    order = 1
    """Callbacks with a lower number are called first. Evaluations have 0, so that others see their metrics, loggers 2."""

    def on_start(self, run: RunState) -> Answer:
        """Called once, before the exploration of a new run, or before the first iteration of a resumed one."""

    def on_iteration(self, run: RunState) -> Answer:
        """Called after every iteration, before its metrics and checkpoint are written.

        Returns:
            "stop" to end the run after this iteration.
        """

    def on_checkpoint(self, run: RunState) -> Answer:
        """Called after a checkpoint was written to `run.checkpoint`. The next iteration may be over already."""

    def on_end(self, run: RunState) -> Answer:
        """Called once at the end, also if the run failed or was interrupted. Then `run.results` is None."""


class Hooks:
    """The callbacks of one run.

    Args:
        callbacks: called by their `order`, and those of one `order` as given.
    """

    def __init__(self, callbacks: Sequence[Callback] = ()):
        for callback in callbacks:
            if not isinstance(callback, Callback):
                what = callback.__name__ if isinstance(callback, type) else type(callback).__name__
                raise UsageError(f"callbacks: {what} is not an instance of a subclass of rpsp.callbacks.Callback.")
        self.callbacks = sorted(callbacks, key=lambda callback: callback.order)
        self.errors: list[str] = []
        """The exceptions of callbacks, one sentence each."""
        self.stopped_by = ""
        """The class of the callback that has stopped the run."""
        self._left = dict.fromkeys(map(id, self.callbacks), TRIES)

    def call(self, hook: Literal["on_start", "on_iteration", "on_checkpoint", "on_end"], run: RunState) -> None:
        """Call a hook of every callback. Exceptions are reported as warnings."""
        for callback in self.callbacks:
            if self._left[id(callback)] <= 0 and hook != "on_end":  # at the end, it may have something to close
                continue
            name = type(callback).__name__
            try:
                if getattr(callback, hook)(run) == "stop" and not self.stopped_by:
                    self.stopped_by = name
            except Exception as error:  # a user's code may raise anything
                if hook == "on_start" and isinstance(error, UsageError):
                    raise
                self._report(callback, f"{name}.{hook}", error)

    def _report(self, callback: Callback, what: str, error: Exception) -> None:
        self._left[id(callback)] -= 1
        place = traceback.extract_tb(error.__traceback__)[-1]
        sentence = f"{what} raised {type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
        self.errors.append(sentence)
        again = "" if self._left[id(callback)] > 0 else "it is not called again before the end, and "
        warnings.warn(f"{sentence}; {again}the run goes on", RuntimeWarning, stacklevel=3)


class Logger(Callback):
    """Base class of loggers: what is written where is defined by `open`, `write` and `close`.

    `write` is called in a thread of its own, one iteration after the other, so that a slow server does not hold up the run.
    """

    order = 2
    name = ""
    """The name of the logger for `--logger`."""

    def open(self, run: RunState) -> None:
        """Begin to log a run, or continue the log of a resumed run."""
        raise NotImplementedError

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of an iteration.

        Args:
            step: number of environment steps so far.
            metrics: numbers by name.
        """
        raise NotImplementedError

    def close(self, run: RunState) -> None:
        """End the log. Called only after `open`."""
        raise NotImplementedError

    _thread: ThreadPoolExecutor | None = None
    """The thread that writes, between `open` and `close`."""

    def on_start(self, run: RunState) -> Answer:
        """Open the log."""
        self.open(run)
        self._thread = ThreadPoolExecutor(1, "rpsp-log")
        self._writing: deque[Future[None]] = deque()

    def on_iteration(self, run: RunState) -> Answer:
        """Hand the metrics of the iteration to the thread. Raises what an earlier `write` has raised."""
        if self._thread is None:
            return
        while self._writing and (self._writing[0].done() or len(self._writing) >= MOST_WAITING):
            self._writing.popleft().result()
        self._writing.append(self._thread.submit(self.write, run.steps, dict(run.record)))

    def on_end(self, run: RunState) -> Answer:
        """Wait for the thread, and close the log."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        try:
            thread.shutdown()
            for write in self._writing:
                write.result()
        finally:
            self.close(run)
