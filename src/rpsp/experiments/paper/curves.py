"""Part of the split of a larger module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rpsp.envs.tasks import TASKS
from rpsp.experiments.comparison import unusable
from rpsp.experiments.config import usual_samples
from rpsp.experiments.methods import METHODS
from rpsp.experiments.paper.tables import labels_of
from rpsp.experiments.results import Result
from rpsp.experiments.statistics import Selection, select_best


@dataclass(frozen=True)
class Curve:
    """The runs that stand for a curve on a task."""

    name: str
    label: str
    """Of the candidate that was chosen."""
    runs: tuple[Result, ...]
    candidates: int
    """From how many it was chosen."""

    @property
    def iterations(self) -> int:
        """As far as all its runs go."""
        return min(len(run.returns) for run in self.runs)


def far_enough(results: Sequence[Result], scale: float = 1.0) -> list[Result]:
    """The results that count: those of runs that did what was asked of them, or this fraction of the paper's steps.

    One that has only begun would cut every other to its own length.
    """

    def enough(result: Result) -> bool:
        if result.finished or (task := TASKS.get(result.settings["env"])) is None:
            return result.finished
        samples = result.settings.get("samples") or task.batch_samples
        return samples * len(result.returns) >= scale * task.iterations * task.batch_samples

    return [result for result in results if not unusable(result) and enough(result)]


def of_the_papers_length(result: Result) -> Result:
    """A result whose iterations have the task's number of steps, the paper's: shorter ones, as PPO's, are put together.

    Those of SAC stay: it is held against nothing but SAC, or after equally many steps.
    """
    settings, method = result.settings, METHODS.get(result.settings["method"])
    if method is None or method.update == "off_policy":
        return result
    usual = usual_samples(settings["env"], limit=settings.get("max_episode_steps") or 1000)
    return result.gathered(usual) if (settings.get("samples") or usual) < usual else result


class Found:
    """Results by task and label, and the curves that they make."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.runs: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
        for result in results:
            self.runs[result.task][result.method].append(result)

    def curve(self, task: str, name: str, select: bool = False) -> Curve | None:
        """A curve of CURVES or PEERS, or the method of that label; None where there is no result of it.

        Its first candidate, or with `select` the one of the largest mean area over the iterations that all of them have;
        a candidate of less than half as many seeds as another is none.
        """
        there = self.runs.get(task, {})
        labels = labels_of(name)
        labels = labels if select else labels[:1]
        runs = {label: list(map(of_the_papers_length, there[label])) for label in labels if label in there}
        if not runs:
            return None
        most = max(map(len, runs.values()))
        runs = {label: same for label, same in runs.items() if 2 * len(same) >= most}
        best = _largest(runs)
        return Curve(name, best.name, tuple(runs[best.name]), best.candidates)

    def best(self, task: str, names: Sequence[str], select: bool = False) -> Curve | None:
        """Of some curves the one of the largest mean area over the iterations that all of them have."""
        found = {c.name: c for name in names if (c := self.curve(task, name, select)) is not None}
        if not found:
            return None
        return found[_largest({name: curve.runs for name, curve in found.items()}).name]


def _largest(runs: Mapping[str, Sequence[Result]]) -> Selection:
    """What has the largest mean area over the iterations that all of them have."""
    length = min(len(run.returns) for same in runs.values() for run in same)
    return select_best({name: np.stack([run.returns[:length] for run in same]) for name, same in runs.items()})
