"""The runs that represent a curve of an experiment, selected from the available results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rpsp.envs.tasks import TASKS
from rpsp.experiments.comparison import unusable
from rpsp.experiments.configure import usual_samples
from rpsp.experiments.methods import METHODS
from rpsp.experiments.paper.tables import CURVES, EQUAL, Protocol, labels_of, labels_under
from rpsp.experiments.results import Result
from rpsp.experiments.statistics import Selection, select_best


@dataclass(frozen=True)
class Curve:
    """The runs that represent a curve on a task."""

    name: str
    label: str
    """Label of the selected candidate."""
    runs: tuple[Result, ...]
    candidates: int
    """Number of candidates it was selected from."""

    @property
    def iterations(self) -> int:
        """Number of iterations that all its runs have."""
        return min(len(run.returns) for run in self.runs)


def far_enough(results: Sequence[Result], scale: float = 1.0) -> list[Result]:
    """Return the results that are complete: the requested iterations, or `scale` times the paper's steps.

    Shorter runs are excluded because all runs of a comparison are cut to the shortest.
    """

    def enough(result: Result) -> bool:
        if result.finished or (task := TASKS.get(result.settings["env"])) is None:
            return result.finished
        samples = result.settings.get("samples") or task.batch_samples
        return samples * len(result.returns) >= scale * task.iterations * task.batch_samples

    return [result for result in results if not unusable(result) and enough(result)]


def of_the_papers_length(result: Result) -> Result:
    """Merge short iterations, such as those of PPO, to the task's number of steps per iteration, as in the paper.

    Results of SAC are unchanged, because they are compared only with SAC or after equally many steps.
    """
    settings, method = result.settings, METHODS.get(result.settings["method"])
    if method is None or method.algorithm.off_policy:
        return result
    usual = usual_samples(settings["env"], limit=settings.get("max_episode_steps") or 1000)
    return result.gathered(usual) if (settings.get("samples") or usual) < usual else result


class Found:
    """Results by task and label, and the curves that they form.

    Args:
        results: results of runs.
        protocol: the protocol by which the names of tasks and curves are understood.
    """

    def __init__(self, results: Sequence[Result], protocol: Protocol = EQUAL) -> None:
        self.protocol = protocol
        self.runs: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
        for result in results:
            self.runs[result.task][result.method].append(result)

    def task(self, label: str) -> str:
        """Return the label of a task under the protocol."""
        return labels_under(self.protocol).get(label, label)

    def named(self, name: str) -> str:
        """Return the name of a curve under the protocol. A method that is substituted has the name of its substitute."""
        substitute = self.protocol.curves.get(name, name)
        return name if substitute in CURVES else substitute

    def curve(self, task: str, name: str, select: bool = False) -> Curve | None:
        """Return a curve on a task; None if there is no result.

        Without selection this is the first candidate. With selection it is the candidate with the largest mean area
        under the curve over the iterations that all candidates have. Candidates with fewer than half as many seeds as
        another are ignored.

        Args:
            task: label of the task without the protocol's changes.
            name: name in `CURVES` or `PEERS`, or the label of a method, before the protocol's substitution.
            select: whether to select from all candidates.
        """
        there = self.runs.get(self.task(task), {})
        labels = labels_of(self.protocol.curves.get(name, name))
        labels = labels if select else labels[:1]
        runs = {label: list(map(of_the_papers_length, there[label])) for label in labels if label in there}
        if not runs:
            return None
        most = max(map(len, runs.values()))
        runs = {label: same for label, same in runs.items() if 2 * len(same) >= most}
        best = _largest(runs)
        return Curve(self.named(name), best.name, tuple(runs[best.name]), best.candidates)

    def best(self, task: str, names: Sequence[str], select: bool = False) -> Curve | None:
        """Return the curve with the largest mean area over the iterations that all of them have.

        Args:
            task: label of the task.
            names: names of curves.
            select: as in `curve`.

        Returns:
            The curve, or None if there is no result.
        """
        found = {c.name: c for name in names if (c := self.curve(task, name, select)) is not None}
        if not found:
            return None
        return found[_largest({name: curve.runs for name, curve in found.items()}).name]


def _largest(runs: Mapping[str, Sequence[Result]]) -> Selection:
    """Select the runs with the largest mean area over the iterations that all of them have."""
    length = min(len(run.returns) for same in runs.values() for run in same)
    return select_best({name: np.stack([run.returns[:length] for run in same]) for name, same in runs.items()})
