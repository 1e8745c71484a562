"""`rpsp diagnose`: read the metrics of a run, and name the first thing that is wrong, with the command to try next.

The rules are in `rpsp.experiments.diagnosis_rules`, in the order in which they are checked.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rpsp.errors import FileFormatError, RpspError
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.diagnosis_rules import RULES, Evidence, Finding
from rpsp.experiments.finished_runs import Run
from rpsp.experiments.resolve import composed, read_config
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.words import number
from rpsp.training.state import Record


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What the rules found in a run."""

    findings: tuple[Finding, ...]
    """What is wrong, the first thing first."""
    summary: str
    """The state of the run in one sentence."""

    def lines(self) -> list[str]:
        """Return the diagnosis as text: the first finding in full, then the others by what they found."""
        if not self.findings:
            return [f"nothing wrong found: {self.summary}"]
        first, *others = self.findings
        also = [f"also: {finding.problem}" for finding in others]
        return [f"{first.title}: {first.problem}", f"Try: {first.remedy}", f"  {first.command}", *also]

    def at_end(self, directory: Path) -> list[str]:
        """Return what training says about a run at its end: the first problem, or nothing."""
        first = next((finding for finding in self.findings if finding.at_end), None)
        if first is None:
            return []
        more = shlex.join(["rpsp", "diagnose", str(directory)])
        return [f"{first.title}: {first.problem} Try: {first.remedy}", f"  {first.command}", f"More: {more}"]

    def content(self) -> dict[str, Any]:
        """Return the diagnosis as a JSON object."""
        return {"findings": [dataclasses.asdict(finding) for finding in self.findings], "summary": self.summary}


def diagnose(directory: Path) -> Diagnosis:
    """Apply the rules to a run directory of `rpsp train`, finished or not.

    Args:
        directory: the run directory.

    Raises:
        FileFormatError: if it is not a run directory, or has no metrics yet.
    """
    config, metrics = read_config(directory), RunDirectory(directory).metrics()
    if not metrics:
        raise FileFormatError(f"{directory / 'metrics.jsonl'}: has no record; the initialisation is not finished.")
    return judged(config, directory, metrics)


def closing_lines(runs: Sequence[Run]) -> list[str]:
    """Return what training says at its end about runs that did not learn. Nothing is said about runs that cannot be read."""
    lines = []
    for run in runs:
        with suppress(RpspError):
            lines += diagnose(run.directory).at_end(run.directory)
    return lines


def runs_in(directory: Path) -> list[Path]:
    """Return the run directories of all seeds, if this is the directory of several, otherwise the directory itself."""
    return sorted(file.parent for file in directory.glob("s[0-9]*/config.json")) or [directory]


def judged(config: TrainConfig, directory: Path, metrics: list[Record]) -> Diagnosis:
    """Apply the rules to the metrics of a run.

    Args:
        config: the resolved configuration of the run.
        directory: the run directory, for the commands.
        metrics: all records, in the order of metrics.jsonl.
    """
    method = composed(config)
    evidence = Evidence(
        directory=directory,
        config=config,
        predictive=method.belief.predictive,
        off_policy=method.algorithm.off_policy,
        records=tuple(record for record in metrics if "iteration" in record),
        threshold=_threshold(config.env, config.max_episode_steps),
    )
    found = (rule.check(evidence) for rule in RULES)
    return Diagnosis(tuple(finding for finding in found if finding is not None), _summary(evidence))


def _threshold(env: str | None, limit: int | None) -> float | None:
    """Return the return at which Gymnasium regards a task as solved. None if it is unknown, or episodes are shorter.

    Args:
        env: the Gymnasium id.
        limit: the maximum length of an episode in this run.
    """
    spec = gymnasium.registry.get((env or "").rpartition(":")[2])
    if spec is None or (limit is not None and limit < (spec.max_episode_steps or 0)):
        return None
    return spec.reward_threshold


def _summary(evidence: Evidence) -> str:
    """Return the state of the run in one sentence."""
    returns = evidence.returns
    if not len(returns):
        return "no iteration is finished yet."
    words = f"the return went from {number(float(evidence.first))} to {number(float(evidence.last))}"
    if evidence.threshold is not None:
        words += f" (solved: {number(float(evidence.threshold))})"
    better = 1 / evidence.error_ratio if evidence.error_ratio > 0 else np.nan
    if np.isfinite(better):
        words += f"; the belief's one-step error is {number(1 / better)} of that of persistence"
    return f"{words}."
