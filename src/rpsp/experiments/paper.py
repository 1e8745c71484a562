"""The paper's experiments, and ours beside them, as data: each a sweep with a name; figures and tables of what is finished.

All of them share one directory, so that a run that several figures show is done once. A curve of the paper is the best of
some candidates; `select` runs them all and selects as the paper does, by the area under the curve; without it only the
first candidate of each is run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpsp.errors import UsageError
from rpsp.experiments.comparison import Comparison, compare
from rpsp.experiments.config import TrainConfig, configured
from rpsp.experiments.results import Result, flat_settings, method_label, task_label
from rpsp.experiments.sweeps import PlannedRun, Sweep

Entry = dict[str, Any]
"""Settings of `rpsp train`, as in the lists of a sweep."""

# ---------------------------------------------------------------------------------------------------------------------
# The table
# ---------------------------------------------------------------------------------------------------------------------


def _each(methods: Sequence[str], **grid: Sequence[Any]) -> tuple[Entry, ...]:
    """Every method with every combination of settings; None leaves a setting at its default."""
    entries: list[Entry] = [{}]
    for name, values in grid.items():
        entries = [entry | ({} if value is None else {name: value}) for entry in entries for value in values]
    return tuple({"method": method, **entry} for entry in entries for method in methods)


SIZES = {"dimension": (None, 10, 30), "learning_rate": (None, 1e-2)}
"""d = 20 is the default; so is a step of 1e-3, and the paper's own is 1e-2."""
CURVES: dict[str, tuple[Entry, ...]] = {
    "FM": _each(("fm2", "fm1", "fm5")),
    "GRU": _each(("gru32", "gru16", "gru64", "gru128"), max_kl=(None, 1e-3)),
    "reg_GRU": _each(("reg-gru", "reg-gru-vrpg"), units=(None, 16, 64)),
    "RPSP-VRPG": _each(("rpsp-vrpg+obs", "rpsp-vrpg"), **SIZES),
    "RPSP-Alt": _each(("rpsp-alt+obs", "rpsp-alt"), **SIZES),
    "RPSP-Alt, refitted": _each(("rpsp-alt+obs", "rpsp-alt"), refit_before=([5, 12, 25, 40],)),
    "RPSI-TRPO": _each(("rpsi-trpo",), past=(None, 20, 50)),
    "RPSI-PPO": _each(("rpsi-ppo",)),
}
"""What a curve of a figure is the best of; the first is what is run unless all are."""
TASK_OF = {"cart-pole": "InvertedPendulum-v5", "swimmer": "Swimmer-v5", "hopper": "Hopper-v5", "walker": "Walker2d-v5"}
EVERY = tuple(TASK_OF.values())
RIVALS = "FM", "GRU", "RPSP-VRPG", "RPSP-Alt"


@dataclass(frozen=True)
class Experiment:
    """What one figure or table shows."""

    about: str
    tasks: tuple[str | Entry, ...]
    curves: tuple[str, ...] = ()
    """Names in CURVES: the best of some candidates each."""
    methods: tuple[str, ...] = ()
    """Methods shown as they are."""
    ours: bool = False
    """Whether it goes beyond the paper."""


# fmt: off
EXPERIMENTS: dict[str, Experiment] = {
    "a": Experiment("cart-pole: FM, GRU, RPSP-VRPG, RPSP-Alt", (TASK_OF["cart-pole"],), RIVALS),
    "b": Experiment("Swimmer: the same", (TASK_OF["swimmer"],), RIVALS),
    "c": Experiment("Hopper: the same", (TASK_OF["hopper"],), RIVALS),
    "d": Experiment("Walker2d: the same", (TASK_OF["walker"],), RIVALS),
    "e": Experiment("ablations on Hopper: fixed, reactive and random filter", (TASK_OF["hopper"],), ("RPSP-Alt",),
                    ("fix-psr", "reactive-psr", "random-psr")),
    "f": Experiment("Hopper: a GRU that predicts instead of a predictive state", (TASK_OF["hopper"],),
                    ("GRU", "reg_GRU", "RPSP-Alt")),
    "g": Experiment("Swimmer: the same", (TASK_OF["swimmer"],), ("GRU", "reg_GRU", "RPSP-Alt")),
    "h": Experiment("the table: areas under the curves of a to d, and their tests", EVERY, RIVALS),
    "noise": Experiment("Hopper with observation noise of 0.1, 0.2, 0.3: FM 2 and RPSP-Alt",
                        tuple({"env": TASK_OF["hopper"], "obs_noise": sigma} for sigma in (0.1, 0.2, 0.3)),
                        ("RPSP-Alt",), ("fm2",)),
    "optimisers": Experiment("appendix: joint and alternating, with and without observations", EVERY,
                             methods=("rpsp-vrpg", "rpsp-vrpg+obs", "rpsp-alt", "rpsp-alt+obs")),
    "finite-memory": Experiment("appendix: windows of 1, 2 and 5 observations", EVERY, methods=("fm1", "fm2", "fm5")),
    "grus": Experiment("appendix: GRUs of 16, 32, 64 and 128 units", EVERY,
                       methods=("gru16", "gru32", "gru64", "gru128")),
    "filter-regularisation": Experiment("appendix: fixed and reactive filter on the other tasks",
                                        tuple(TASK_OF[name] for name in ("walker", "cart-pole", "swimmer")),
                                        ("RPSP-Alt",), ("fix-psr", "reactive-psr")),
    "gru-filters": Experiment("appendix: figures f and g on the other tasks",
                              tuple(TASK_OF[name] for name in ("walker", "cart-pole")), ("GRU", "reg_GRU", "RPSP-Alt")),
    "ours": Experiment("all four tasks with what goes beyond the paper: refits, direct inference, PPO", EVERY,
                       (*RIVALS, "RPSP-Alt, refitted", "RPSI-TRPO", "RPSI-PPO"), ours=True),
    "disturbed": Experiment("Hopper and Walker2d with noise, latency and lost readings: who remembers best",
                            (*({"env": env, "obs_noise": 0.1} for env in (TASK_OF["hopper"], TASK_OF["walker"])),
                             {"env": TASK_OF["hopper"], "obs_latency": 2}, {"env": TASK_OF["hopper"], "dropout": 0.1}),
                            ("GRU", "RPSP-Alt", "RPSI-TRPO"), ("fm2", "fm5"), ours=True),
}
# fmt: on
"""By name. Which of a to d shows which task does not stand in the paper's text; they are in the order of its protocol."""


def find(names: Sequence[str]) -> list[str]:
    """Names of experiments, checked; "all" stands for every one of the paper."""
    wanted = []
    for name in names:
        if name != "all" and name not in EXPERIMENTS:
            raise UsageError(f"figure: {name!r} is not one of all, {', '.join(EXPERIMENTS)}.")
        wanted += [n for n, e in EXPERIMENTS.items() if not e.ours] if name == "all" else [name]
    return list(dict.fromkeys(wanted))


# ---------------------------------------------------------------------------------------------------------------------
# What is run
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """One experiment with so many seeds, at some scale."""

    name: str
    runs: tuple[PlannedRun, ...]
    curve_of: dict[str, str]
    """The label of a method → the curve that it is a candidate for, or itself."""
    scale: float

    @property
    def experiment(self) -> Experiment:
        return EXPERIMENTS[self.name]


def plan(name: str, seeds: int, scale: float = 1.0, select: bool = False) -> Plan:
    """The runs of an experiment. At scale 0.1 a tenth of the paper's iterations are done; more can be done later."""
    from rpsp.environments import TASKS

    if seeds < 1:
        raise UsageError(f"seeds: {seeds} is not a whole number ≥ 1.")
    if not 0 < scale <= 1:
        raise UsageError(f"scale: {scale} does not lie between 0 and 1; 1 is the paper's number of iterations.")
    experiment = EXPERIMENTS[name]
    curves = {curve: CURVES[curve] if select else CURVES[curve][:1] for curve in experiment.curves}
    curves |= {method: ({"method": method},) for method in experiment.methods}
    tasks = [{"env": task} if isinstance(task, str) else task for task in experiment.tasks]
    given = {
        "tasks": [task | {"iterations": math.ceil(scale * TASKS[task["env"]].iterations)} for task in tasks],
        "methods": [entry for candidates in curves.values() for entry in candidates],
        "seeds": seeds,
    }
    curve_of = {
        method_label(_flat(configured(entry))): curve for curve, candidates in curves.items() for entry in candidates
    }
    return Plan(name, Sweep.of(given, name).runs, curve_of, scale)


def together(plans: Sequence[Plan]) -> Sweep:
    """All runs of some plans, each once; the first seed of everything first."""
    runs = {run.place: run for plan in plans for run in plan.runs}
    return Sweep("paper", tuple(sorted(runs.values(), key=lambda run: run.config.seed)))


def _flat(config: TrainConfig) -> dict[str, Any]:
    return flat_settings(dataclasses.asdict(config))


# ---------------------------------------------------------------------------------------------------------------------
# What is shown
# ---------------------------------------------------------------------------------------------------------------------


def finished(plan: Plan, results: Sequence[Result]) -> list[Result]:
    """Of some results those that belong to a plan and have come as far as it goes, cut to that length."""
    wanted = {}
    for run in plan.runs:
        settings = _flat(run.config)
        wanted[task_label(settings), method_label(settings), run.config.seed] = run.config.iterations
    found = []
    for result in results:
        iterations = wanted.get((result.task, result.method, result.seed))
        if iterations is not None and len(result.returns) >= iterations and not result.failure:
            found.append(dataclasses.replace(result.cut(iterations), iterations=iterations, finished=True))
    return found


def judge(plan: Plan, results: Sequence[Result]) -> Comparison:
    """The finished runs of a plan held against each other, the best candidate of every curve selected."""
    return compare(results, select=True, family=lambda label: plan.curve_of[label])


def draw(plan: Plan, found: Comparison, directory: Path) -> list[Path]:
    """The figures of an experiment from its finished runs, as PNG and SVG, each saying how many those are."""
    from rpsp.experiments import figures

    note = f"{len(found.candidates)} of {len(plan.runs)} runs finished"
    if plan.scale < 1:
        note += f"; scale {plan.scale:g}: that fraction of the paper's iterations"
    title = f"{plan.name}: {plan.experiment.about}"
    drawn = {plan.name: figures.learning_curves(found.results, title, note)}
    drawn[f"{plan.name}_auc"] = figures.bars(found.rows, "auc", title, note)
    return [figures.save(figure, directory, name) for name, figure in drawn.items()]
