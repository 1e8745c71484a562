"""Finished training runs, as `rpsp.train` returns them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpsp.experiments.agents import load
from rpsp.experiments.notebooks import run_html
from rpsp.experiments.run_directory import RunDirectory
from rpsp.training.state import Record


@dataclass(frozen=True, eq=False)
class Run:
    """A finished training run, as `rpsp.train` returns it."""

    directory: Path
    """The run directory."""
    results: dict[str, Any]
    """The content of its results.json."""

    @property
    def runs(self) -> list[Run]:
        """The single runs: only this one. `Runs` has one for each seed."""
        return [self]

    @property
    def metrics(self) -> list[Record]:
        """The record of every iteration."""
        return [r for r in RunDirectory(self.directory).metrics() if "iteration" in r]

    @property
    def best(self) -> Run:
        """The run with the best final return: this one."""
        return self

    @property
    def agent(self) -> Any:
        """The agent of the last checkpoint."""
        return load(self.directory)

    def _repr_html_(self) -> str:
        return run_html(self.results, self.metrics)


@dataclass(frozen=True, eq=False)
class Runs(Run):
    """Several finished runs, as `rpsp.train(seeds=...)` returns them. `directory` contains their run directories."""

    members: tuple[Run, ...]

    @property
    def runs(self) -> list[Run]:
        """The single runs, in the order of their seeds."""
        return list(self.members)

    @property
    def metrics(self) -> list[Record]:
        """The records of all runs, one run after the other. Each has the `seed` of its run as an additional field."""
        return [{"seed": run.results["seed"], **record} for run in self.members for record in run.metrics]

    @property
    def best(self) -> Run:
        """The run with the highest `final_return`, the first of equals. Runs without a finite return come last."""
        return max(self.members, key=_final_return)

    @property
    def agent(self) -> Any:
        """The agent of the best run."""
        return self.best.agent

    def _repr_html_(self) -> str:
        return "".join(run._repr_html_() for run in self.members)


def _final_return(run: Run) -> float:
    value = run.results["final_return"]
    return value if value is not None and math.isfinite(value) else -math.inf
