"""Plan the runs of an experiment, and show the finished ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rpsp.envs.tasks import TASKS
from rpsp.errors import UsageError
from rpsp.experiments.comparison import Comparison, compare
from rpsp.experiments.configure import usual_samples
from rpsp.experiments.labels import method_label, task_label
from rpsp.experiments.methods import METHODS
from rpsp.experiments.paper.tables import (
    EQUAL,
    EXPERIMENTS,
    PEERS,
    Experiment,
    Protocol,
    candidates,
    flat,
    label_of,
    task_labels,
    tasks_of,
)
from rpsp.experiments.results import Result
from rpsp.experiments.sweeps import PlannedRun, Sweep


@dataclass(frozen=True)
class Plan:
    """The runs of one experiment."""

    name: str
    runs: tuple[PlannedRun, ...]
    curve_of: dict[str, str]
    """For the label of each method, the curve of which it is a candidate."""
    scale: float
    """Fraction of the paper's iterations."""
    protocol: Protocol = EQUAL

    @property
    def file_name(self) -> str:
        """The name of its figures and tables."""
        return self.name if self.protocol is EQUAL else f"{self.name}_{self.protocol.name}"

    @property
    def experiment(self) -> Experiment:
        """The experiment of this plan."""
        return EXPERIMENTS[self.name]


def plan(
    name: str,
    seeds: int,
    scale: float = 1.0,
    select: bool = False,
    device: str = "auto",
    protocol: Protocol = EQUAL,
) -> Plan:
    """Plan the runs of an experiment.

    Args:
        name: name of the experiment.
        seeds: number of seeds.
        scale: fraction of the paper's iterations, at most 1. Runs can be continued later at a larger scale.
        select: whether to run all candidates of each curve, or only the first.
        device: device to run on.
        protocol: the protocol, which substitutes candidates and changes tasks.

    Raises:
        UsageError: if the number of seeds or the scale is invalid.
    """
    if seeds < 1:
        raise UsageError(f"seeds: {seeds} is not a whole number ≥ 1.")
    if not 0 < scale <= 1:
        raise UsageError(f"scale: {scale} is not between 0 and 1, where 1 is the paper's number of iterations.")
    experiment = EXPERIMENTS[name]
    curves = {curve: found if select else found[:1] for curve, found in candidates(experiment, protocol).items()}
    given = {
        "tasks": [
            task | {"iterations": experiment.iterations or math.ceil(scale * TASKS[task["env"]].iterations)}
            for task in tasks_of(experiment, protocol)
        ],
        "methods": [entry for found in curves.values() for entry in found],
        "seeds": seeds,
        "device": device,
    }
    curve_of = {label_of(entry): curve for curve, found in curves.items() for entry in found}
    return Plan(name, tuple(map(_as_many_steps, Sweep.of(given, name).runs)), curve_of, scale, protocol)


def _as_many_steps(run: PlannedRun) -> PlannedRun:
    """Keep the total number of steps of a run with short iterations by doing more of them. SAC is unchanged."""
    config, method = run.config, METHODS[run.config.method]
    if method.algorithm.off_policy or config.iterations is None:
        return run
    samples = config.samples or usual_samples(config.env, method)
    iterations = round(config.iterations * usual_samples(config.env) / samples)
    return dataclasses.replace(run, config=dataclasses.replace(config, iterations=iterations))


def together(plans: Sequence[Plan], kept: Sequence[Result] = ()) -> Sweep:
    """Combine the runs of several plans into one sweep.

    Args:
        plans: the plans. A run that is in several plans is done once.
        kept: results that are already available. Their runs are left out.

    Returns:
        The sweep, ordered by seed.
    """
    runs: dict[str, PlannedRun] = {}
    for plan in plans:
        there = {(result.task, result.method, result.seed) for result in finished(plan, kept)}
        runs |= {run.place: run for run in plan.runs if _identity(run) not in there}
    return Sweep("paper", tuple(sorted(runs.values(), key=lambda run: run.config.seed)))


def _identity(run: PlannedRun) -> tuple[str, str, int]:
    """Return task, method and seed, as in a result."""
    settings = flat(run.config)
    return task_label(settings), method_label(settings), run.config.seed


def finished(plan: Plan, results: Sequence[Result]) -> list[Result]:
    """Return the results that belong to a plan and are long enough, cut to the planned length."""
    wanted = {_identity(run): run.config.iterations for run in plan.runs}
    found = []
    for result in results:
        iterations = wanted.get((result.task, result.method, result.seed))
        if iterations is not None and len(result.returns) >= iterations and not result.failure:
            found.append(dataclasses.replace(result.cut(iterations), iterations=iterations, finished=True))
    return found


def peers(experiment: Experiment, results: Sequence[Result]) -> list[Result]:
    """Return the results of other libraries that an experiment shows."""
    labels, tasks = {PEERS[name] for name in experiment.peers}, task_labels(experiment)
    return [result for result in results if result.method in labels and result.task in tasks]


def judge(plan: Plan, results: Sequence[Result]) -> Comparison:
    """Compare the finished runs of a plan, with the best candidate of each curve."""
    return compare(results, select=True, family=lambda label: plan.curve_of[label])


def draw(plan: Plan, found: Comparison, beside: Sequence[Result], directory: Path) -> list[Path]:
    """Draw and save the figures of an experiment as PNG and SVG. A note gives the number of finished runs.

    Args:
        plan: the plan.
        found: the comparison of its finished runs.
        beside: results of other libraries to add to the learning curves. They may have another length.
        directory: directory to write to.

    Returns:
        The paths of the PNG files.
    """
    from rpsp.experiments import figures  # matplotlib and jax: slow to import, and not needed to list or run

    note = f"{len(found.candidates)} of {len(plan.runs)} runs finished"
    if plan.scale < 1:
        note += f"; scale {plan.scale:g}: that fraction of the paper's iterations"
    if plan.protocol is not EQUAL:
        note += f"; {plan.protocol.phrase}"
    title = f"{plan.name}: {plan.experiment.about}"
    names = {label: name for name, label in PEERS.items()}
    drawn = {plan.file_name: figures.learning_curves([*found.results, *beside], title, note, names)}
    drawn[f"{plan.file_name}_auc"] = figures.bars(found.rows, "auc", title, note)
    return [figures.save(figure, directory, name) for name, figure in drawn.items()]
