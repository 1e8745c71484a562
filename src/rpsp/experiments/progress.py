"""Progress of training runs: pace, remaining time and lines of text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    here: int = 0
    """Iterations done by this process."""
    since: float = 0.0
    """Time at which the first of them was done."""

    def advance(self, done: int) -> None:
        """Set the number of iterations that are done.

        The first iteration of a process includes compilation. The speed is therefore measured from its end.
        """
        self.done, self.here = done, self.here + 1
        if self.here == 1:
            self.since = time.monotonic()

    @property
    def eta(self) -> str:
        """The remaining time as [h:]mm:ss, or a dash before the second iteration of this process."""
        if self.here < 2 and self.done < self.total:
            return "–"
        return clock((time.monotonic() - self.since) / max(1, self.here - 1) * (self.total - self.done))


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
    return (
        f"{pace.done:5d}/{pace.total}  return {record['mean_return']:9.2f}  "
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
    )


def closing_words(directory: Path) -> str:
    """Return the final and best return of a finished run as text."""
    results = read_json(directory / "results.json")
    if not results["iterations"]:
        return "0 iterations were requested"
    return f"final return {results['final_return']:.1f}, best {results['best_return']:.1f}"
