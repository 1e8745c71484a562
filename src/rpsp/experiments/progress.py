"""Progress of training runs: pace, remaining time and lines of text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rpsp.experiments.budget import UNLIMITED, Budget
from rpsp.experiments.files import read_json
from rpsp.experiments.words import clock

if TYPE_CHECKING:  # the command line imports this module for `--help`, without jax
    from rpsp.training.state import Record

Show = Callable[["Record", "Pace"], None]
"""Callback that is called with every record."""


@dataclass
class Pace:
    """Progress of a run, and an estimate of the remaining time."""

    total: int
    done: int = 0
    steps: int | None = None
    """Budget of environment steps."""
    ends: float = math.inf
    """Time at which the budget of minutes is spent."""
    here: int = 0
    """Iterations done by this process."""
    since: float = 0.0
    """Time at which the first of them was done."""
    first: int = 0
    """Environment steps at that time."""
    latest: int = 0
    """Environment steps now."""

    @classmethod
    def of(cls, budget: Budget, done: int, seconds: float) -> Pace:
        """Return the pace of a run that has done some iterations in some seconds."""
        ends = math.inf if budget.minutes is None else time.monotonic() + 60 * budget.minutes - seconds
        return cls(budget.iterations, min(done, budget.iterations), budget.steps, ends)

    def advance(self, done: int, steps: int = 0) -> None:
        """Set the number of iterations that are done, and of environment steps.

        The first iteration of a process includes compilation. The speed is therefore measured from its end.
        """
        self.done, self.here, self.latest = done, self.here + 1, steps
        if self.here == 1:
            self.since, self.first = time.monotonic(), steps

    @property
    def share(self) -> str:
        """The finished iterations and their total, as in 12/100. With a budget of minutes the total is unknown."""
        return f"{self.done:5d}" + ("" if self.total == UNLIMITED else f"/{self.total}")

    @property
    def seconds_left(self) -> float | None:
        """The estimated remaining time in seconds. None before the second iteration of this process."""
        if self.done >= self.total or (self.steps is not None and self.latest >= self.steps):
            return 0.0
        if self.here < 2:
            return None
        now = time.monotonic()
        seconds = (now - self.since) / (self.here - 1)
        left = float(self.total - self.done)
        if self.steps is not None:
            left = min(left, math.ceil((self.steps - self.latest) * (self.here - 1) / max(1, self.latest - self.first)))
        return max(0.0, min(left * seconds, self.ends - now))

    @property
    def eta(self) -> str:
        """The remaining time as [h:]mm:ss, or a dash before the second iteration of this process."""
        return "–" if (left := self.seconds_left) is None else clock(left)


def mean_record(records: Sequence[Record]) -> Record:
    """Return the mean of the records of several runs, for the metrics that all of them have. Speeds are summed."""
    first, *others = records
    if not others:
        return first
    mean = {name: sum(r[name] for r in records) / len(records) for name in first if all(name in r for r in others)}
    return mean | {name: len(records) * value for name, value in mean.items() if name.endswith("_per_second")}


def line(record: Record, pace: Pace) -> str:
    """Format the record of an iteration as one line of text."""
    if "iteration" not in record:
        return ""
    refitted = {0.0: "  refit rejected", 1.0: "  refitted"}.get(record.get("refit_accepted", -1.0), "")
    dropped = f"  dropped {record['dropped_episodes']:.0f}" if record["dropped_episodes"] else ""
    if "astray" in record:
        dropped += f"  update not finite ({record['astray']} in a row)"
    if "rolled_back" in record:
        dropped += f"  rolled back, step sizes × {record['step_scale']:g} from now on"
    evaluated = f"(evaluated {record['eval_return']:.2f})  " if "eval_return" in record else ""
    return (
        f"{pace.share}  return {record['mean_return']:9.2f}  {evaluated}"
        f"prediction {record['prediction_error']:.1e} (persistence {record['persistence_error']:.1e})  "
        f"KL {record['whole_kl']:.4f}  {record['steps_per_second']:7,.0f} steps/s  ETA {pace.eta}"
        f"{refitted}{dropped}"
    )


def initialised(record: Record) -> str:
    """Format the record of the initialisation as one line of text."""
    return (
        f"explored {record['exploration_samples']:,.0f} random steps ({record['exploration_seconds']:.1f} s); fitted a "
        f"filter with {record['state_size']:.0f} state dimensions ({record['initialisation_seconds']:.1f} s): held-out "
        f"error {record['prediction_error']:.1e} of the variance, persistence {record['persistence_error']:.1e}"
        + (f"; {record['still_readings']:.0f} observations never changed" if record.get("still_readings") else "")
        + (f"; {record['ignored_readings']:.0f} observations carry nothing" if record.get("ignored_readings") else "")
    )


def closing_words(directory: Path) -> str:
    """Return the final and best return of a finished run as text."""
    results = read_json(directory / "results.json")
    if not results["iterations"]:
        return "0 iterations were requested"
    return f"final return {results['final_return']:.1f}, best {results['best_return']:.1f}"
