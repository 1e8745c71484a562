"""The paper's experiments, and ours beside them, as data: each a sweep with a name; figures and tables of what is finished.

All of them share one directory, so that a run that several figures show is done once. A curve of the paper is the best of
some candidates; `select` runs them all and selects as the paper does, by the area under the curve; without it only the
first candidate of each is run.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rpsp.envs.tasks import TASKS
from rpsp.errors import UsageError
from rpsp.experiments import figures
from rpsp.experiments.comparison import Comparison, compare, unusable
from rpsp.experiments.config import TrainConfig, configured, usual_samples
from rpsp.experiments.methods import METHODS, REFITTED
from rpsp.experiments.results import Result, flat_settings, method_label, task_label
from rpsp.experiments.statistics import Selection, select_best
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
WIDER = {"max_kl": (2e-2, 5e-2)}
"""Trust regions of the policy beyond the paper's 1e-2: a candidate of ours, and so of its rivals."""
REFIT_BEFORE = [5, 12, 25, 40]
LARGE = {"hidden": ([256, 256],)}
REFITTED_OFTEN = {"refit_before": (list(REFITTED["refit_before"]),)}
FORMER = {"log_std": (0.0,), "samples": (10_000,)}
"""PPO before it was tuned."""
CURVES: dict[str, tuple[Entry, ...]] = {
    "FM": (*_each(("fm2", "fm1", "fm5")), *_each(("fm2",), renew_units=(True,)), *_each(("fm2",), **WIDER)),
    "GRU": (*_each(("gru32", "gru16", "gru64", "gru128"), max_kl=(None, 1e-3)), *_each(("gru32",), **WIDER)),
    "reg_GRU": _each(("reg-gru", "reg-gru-vrpg"), units=(None, 16, 64)),
    "RPSP-VRPG": _each(("rpsp-vrpg+obs", "rpsp-vrpg"), **SIZES),
    "RPSP-Alt": _each(("rpsp-alt+obs", "rpsp-alt"), **SIZES),
    "RPSP-Alt, refitted": _each(("rpsp-alt+obs", "rpsp-alt"), refit_before=(REFIT_BEFORE,)),
    "RPSI-TRPO": (*_each(("rpsi-trpo",), past=(None, 20, 50)), *_each(("rpsi-trpo",), **WIDER)),
    "RPSI-PPO": (*_each(("rpsi-ppo",)), *_each(("rpsi-ppo",), **FORMER)),
    "RPSI-SAC": (
        *_each(("rpsi-sac",), **LARGE, plus_obs=(None, 0)),
        *_each(("rpsi-sac",), **LARGE, plus_obs=(0,), normed=(False,), **REFITTED_OFTEN),
    ),
    "FM-SAC": _each(("fm2-sac",), **LARGE, normed=(None, False)),
}
"""What a curve of a figure is the best of; the first is what is run unless all are."""
PEERS = {"RecurrentPPO": "recurrent-ppo"}
"""Curves of other libraries, and the method in their result files: `python -m benchmarks.recurrent_ppo` makes them."""
DIFFERENCES: dict[str, tuple[str | Entry, ...]] = {
    "initialisation": ("rpsp-alt", "random-psr"),
    "refits": ("rpsp-alt+obs", {"method": "rpsp-alt+obs", "refit_before": REFIT_BEFORE}),
    "refits, joint steps": ("rpsp-vrpg+obs", {"method": "rpsp-vrpg+obs", "refit_before": REFIT_BEFORE}),
    "the policy's part of a joint step": ("rpsp-vrpg+obs", {"method": "rpsp-vrpg+obs", "policy_rate": 30.0}),
    "time that joint steps look back": ("rpsp-vrpg+obs", {"method": "rpsp-vrpg+obs", "truncate": 10}),
    "trust region on the filter's step": ("rpsp-alt", {"method": "rpsp-alt", "filter_kl": None}),
    "weight of the prediction error": (
        "rpsp-alt", "reactive-psr", *({"method": "rpsp-alt", "prediction_weight": weight} for weight in (0.1, 10.0)),
    ),
    "kind of filter": ("rpsp-alt", "rpsi-alt", "reg-gru"),
    "trust region of the policy": ("rpsi-trpo", *_each(("rpsi-trpo",), **WIDER)),
    "trust region of the policy, finite memory": ("fm2", *_each(("fm2",), **WIDER)),
    "trust region of the policy, GRU": ("gru32", *_each(("gru32",), **WIDER)),
    "spread of actions at first": ("rpsi-trpo", {"method": "rpsi-trpo", "log_std": -1.0}),
    "longer horizon": ("rpsi-trpo", {"method": "rpsi-trpo", "discount": 0.999}),
    "longer horizon, finite memory": ("fm2", {"method": "fm2", "discount": 0.999}),
    "longer horizon, GRU": ("gru32", {"method": "gru32", "discount": 0.999}),
    "units that follow the states, TRPO": ("rpsi-trpo", {"method": "rpsi-trpo", "renew_units": False}),
    "units that follow the states, PPO": _each(("rpsi-ppo",), **FORMER, renew_units=(None, False)),
    "units that follow the states, finite memory": ("fm2", {"method": "fm2", "renew_units": True}),
}  # fmt: skip
"""What may make a difference, and the methods that show it: the first as it is, each other with one thing changed."""


def _tuned(**grid: Sequence[Any]) -> tuple[Entry, ...]:
    """PPO as it was when it was tuned, with a spread of actions of 1 at first; then with every value of a setting."""
    return _each(("rpsi-ppo",), log_std=(0.0,), **{name: (None, *values) for name, values in grid.items()})


TUNING: dict[str, tuple[str | Entry, ...]] = {
    "spread of actions at first": _each(("rpsi-ppo",), log_std=(0.0, None)),
    "steps an iteration": _tuned(samples=(2_000, 10_000)),
    "learning rate": _tuned(learning_rate=(1e-4, 1e-3)),
    "learning rate that falls to nothing": _tuned(anneal=(125,)),
    "passes over a batch": _tuned(passes=(5, 20)),
    "steps in a gradient": _tuned(minibatch=(64, 1024)),
    "size of policy and critic": _tuned(**LARGE),
    "generalised advantages": _tuned(gae=(0.9, 0.98)),
    "normalised advantages": _tuned(normalise=(False,)),
    "scaled rewards": _tuned(scale_rewards=(False,)),
    "value after the time limit": _tuned(bootstrap=(False,)),
    "with the smaller spread, generalised advantages": _each(("rpsi-ppo",), gae=(None, 0.9)),
    "with the smaller spread, steps in a gradient": _each(("rpsi-ppo",), minibatch=(None, 64)),
    "with advantages of 0.9, spread of actions": _each(("rpsi-ppo",), gae=(0.9,), log_std=(0.0, None, -2.0)),
    "with both, steps in a gradient": _each(("rpsi-ppo",), gae=(0.9,), minibatch=(None, 64)),
    "with both, steps an iteration": _each(("rpsi-ppo",), gae=(0.9,), samples=(None, 2_000)),
    "with both, passes over a batch": _each(("rpsi-ppo",), gae=(0.9,), passes=(None, 20)),
}
"""PPO's settings, in the same way."""
REPLAYED: dict[str, tuple[str | Entry, ...]] = {
    "stored states": _each(("rpsi-sac",), plus_obs=(0,), **REFITTED_OFTEN, refit_above=(0.0,), recompute=(None, True)),
    "refits": (
        *_each(("rpsi-sac",), plus_obs=(0,), **REFITTED_OFTEN, refit_above=(0.0,)),
        *_each(("rpsi-sac",), plus_obs=(0,)),
    ),
}
"""What SAC's buffer holds after refits, which are made wherever they predict better; and without any. The belief alone is
shown, which is all that can grow old."""
TASK_OF = {"cart-pole": "InvertedPendulum-v5", "swimmer": "Swimmer-v5", "hopper": "Hopper-v5", "walker": "Walker2d-v5"}
EVERY = tuple(TASK_OF.values())
FURTHER: tuple[Entry, ...] = tuple({"env": env, "observe": "positions"} for env in ("HalfCheetah-v5", "Ant-v5"))
"""Two tasks that the paper does not have."""
LOCOMOTION: tuple[Entry, ...] = ({"env": TASK_OF["hopper"]}, {"env": TASK_OF["walker"]}, *FURTHER)
DISTURBED: tuple[Entry, ...] = tuple(
    task | disturbance for disturbance in ({"relative_noise": 0.1}, {"obs_latency": 2}) for task in LOCOMOTION
)
RIVALS = "FM", "GRU", "RPSP-VRPG", "RPSP-Alt"


@dataclass(frozen=True)
class Experiment:
    """What one figure or table shows."""

    about: str
    tasks: tuple[str | Entry, ...]
    curves: tuple[str, ...] = ()
    """Names in CURVES: the best of some candidates each."""
    methods: tuple[str | Entry, ...] = ()
    """Methods shown as they are."""
    changes: Mapping[str, tuple[str | Entry, ...]] = field(default_factory=dict)
    """Questions and the methods that answer them, as in DIFFERENCES: shown as bars and what each change does."""
    peers: tuple[str, ...] = ()
    """Names in PEERS: drawn beside the rest where there are results of them."""
    ours: bool = False
    """Whether it goes beyond the paper."""
    iterations: int | None = None
    """So many, at any scale; otherwise the paper's. Of as many steps, where a method's iterations are shorter."""


# fmt: off
EXPERIMENTS: dict[str, Experiment] = {
    "a": Experiment("FM, GRU, RPSP-VRPG and RPSP-Alt on cart-pole", (TASK_OF["cart-pole"],), RIVALS),
    "b": Experiment("FM, GRU, RPSP-VRPG and RPSP-Alt on Swimmer", (TASK_OF["swimmer"],), RIVALS),
    "c": Experiment("FM, GRU, RPSP-VRPG and RPSP-Alt on Hopper", (TASK_OF["hopper"],), RIVALS),
    "d": Experiment("FM, GRU, RPSP-VRPG and RPSP-Alt on Walker2d", (TASK_OF["walker"],), RIVALS),
    "e": Experiment("ablations on Hopper: fixed, reactive and random filter", (TASK_OF["hopper"],),
                    methods=("rpsp-alt", "fix-psr", "reactive-psr", "random-psr")),
    "f": Experiment("a GRU that predicts instead of a predictive state, on Hopper", (TASK_OF["hopper"],),
                    ("GRU", "reg_GRU", "RPSP-Alt")),
    "g": Experiment("a GRU that predicts instead of a predictive state, on Swimmer", (TASK_OF["swimmer"],),
                    ("GRU", "reg_GRU", "RPSP-Alt")),
    "h": Experiment("the table: areas under the curves of a to d, and their tests", EVERY, RIVALS),
    "noise": Experiment("FM 2 and RPSP-Alt on Hopper with observation noise of 0.1, 0.2 and 0.3",
                        tuple({"env": TASK_OF["hopper"], "obs_noise": sigma} for sigma in (0.1, 0.2, 0.3)),
                        ("RPSP-Alt",), ("fm2",)),
    "optimisers": Experiment("joint and alternating, with and without observations (appendix)", EVERY,
                             methods=("rpsp-vrpg", "rpsp-vrpg+obs", "rpsp-alt", "rpsp-alt+obs")),
    "finite-memory": Experiment("windows of 1, 2 and 5 observations (appendix)", EVERY, methods=("fm1", "fm2", "fm5")),
    "grus": Experiment("GRUs of 16, 32, 64 and 128 units (appendix)", EVERY,
                       methods=("gru16", "gru32", "gru64", "gru128")),
    "filter-regularisation": Experiment("fixed and reactive filter on the other tasks (appendix)",
                                        tuple(TASK_OF[name] for name in ("walker", "cart-pole", "swimmer")),
                                        methods=("rpsp-alt", "fix-psr", "reactive-psr")),
    "gru-filters": Experiment("f and g on the other tasks (appendix)",
                              tuple(TASK_OF[name] for name in ("walker", "cart-pole")), ("GRU", "reg_GRU", "RPSP-Alt")),
    "ours": Experiment("what goes beyond the paper, on all four tasks: refits, direct inference, PPO", EVERY,
                       (*RIVALS, "reg_GRU", "RPSP-Alt, refitted", "RPSI-TRPO", "RPSI-PPO"), ("fm2-ppo",),
                       peers=tuple(PEERS), ours=True),
    "disturbed": Experiment("who remembers best under noise, latency and lost readings",
                            (*({"env": TASK_OF["hopper"], "obs_noise": sigma} for sigma in (0.1, 0.2, 0.3)),
                             {"env": TASK_OF["walker"], "obs_noise": 0.1},
                             {"env": TASK_OF["hopper"], "obs_latency": 2}, {"env": TASK_OF["hopper"], "dropout": 0.1}),
                            ("GRU", "RPSP-Alt"), ("fm2", "fm5", *_each(("rpsi-trpo",), past=(None, 20, 50))), ours=True),
    "differences": Experiment("what made the difference, one thing changed at a time",
                              tuple(TASK_OF[name] for name in ("hopper", "walker", "swimmer")), changes=DIFFERENCES,
                              ours=True),
    "ppo": Experiment("PPO's settings, one changed at a time", LOCOMOTION, changes=TUNING, ours=True, iterations=50),
    "further": Experiment("direct inference by PPO on two further tasks", FURTHER, ("RPSI-PPO",), ("fm2-ppo",),
                          peers=tuple(PEERS), ours=True, iterations=100),
    "off-policy": Experiment("learning from every step again: SAC", LOCOMOTION, ("RPSI-SAC", "FM-SAC"),
                             peers=tuple(PEERS), ours=True, iterations=300),
    "off-policy-disturbed": Experiment("SAC under noise (a tenth of each reading's own spread) and latency", DISTURBED,
                                       ("RPSI-SAC", "FM-SAC"), ours=True, iterations=300),
    "replay": Experiment("SAC's stored states, kept or computed anew after refits of the filter",
                         (TASK_OF["hopper"], TASK_OF["walker"]), changes=REPLAYED, ours=True, iterations=150),
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


def plan(name: str, seeds: int, scale: float = 1.0, select: bool = False, device: str = "auto") -> Plan:
    """The runs of an experiment. At scale 0.1 a tenth of the paper's iterations are done; more can be done later."""
    if seeds < 1:
        raise UsageError(f"seeds: {seeds} is not a whole number ≥ 1.")
    if not 0 < scale <= 1:
        raise UsageError(f"scale: {scale} does not lie between 0 and 1; 1 is the paper's number of iterations.")
    experiment = EXPERIMENTS[name]
    curves = {curve: found if select else found[:1] for curve, found in candidates(experiment).items()}
    given = {
        "tasks": [
            task | {"iterations": experiment.iterations or math.ceil(scale * TASKS[task["env"]].iterations)}
            for task in _tasks(experiment)
        ],
        "methods": [entry for found in curves.values() for entry in found],
        "seeds": seeds,
        "device": device,
    }
    curve_of = {label_of(entry): curve for curve, found in curves.items() for entry in found}
    return Plan(name, tuple(map(_as_many_steps, Sweep.of(given, name).runs)), curve_of, scale)


def _as_many_steps(run: PlannedRun) -> PlannedRun:
    """A run in whose iterations there are fewer steps than the task's, with as many more of them; SAC's are its own."""
    config, method = run.config, METHODS[run.config.method]
    if method.update == "off_policy" or config.iterations is None:
        return run
    samples = config.samples or usual_samples(config.env, method)
    iterations = round(config.iterations * usual_samples(config.env) / samples)
    return dataclasses.replace(run, config=dataclasses.replace(config, iterations=iterations))


def candidates(experiment: Experiment) -> dict[str, tuple[Entry, ...]]:
    """What every curve of an experiment may be the best of; a method shown as it is goes by its own label."""
    methods = (*experiment.methods, *(method for asked in experiment.changes.values() for method in asked))
    shown = [{"method": method} if isinstance(method, str) else method for method in methods]
    return {curve: CURVES[curve] for curve in experiment.curves} | {label_of(entry): (entry,) for entry in shown}


def _tasks(experiment: Experiment) -> list[Entry]:
    return [{"env": task} if isinstance(task, str) else task for task in experiment.tasks]


def task_labels(experiment: Experiment) -> list[str]:
    """The tasks' labels in results."""
    return [task_label(task) for task in _tasks(experiment)]


def label_of(method: str | Entry) -> str:
    """The method's label in results."""
    return method_label(_flat(configured({"method": method} if isinstance(method, str) else method)))


def together(plans: Sequence[Plan], kept: Sequence[Result] = ()) -> Sweep:
    """All runs of some plans, each once, but those whose results are kept; the first seed of everything first."""
    runs: dict[str, PlannedRun] = {}
    for plan in plans:
        there = {(result.task, result.method, result.seed) for result in finished(plan, kept)}
        runs |= {run.place: run for run in plan.runs if _identity(run) not in there}
    return Sweep("paper", tuple(sorted(runs.values(), key=lambda run: run.config.seed)))


def _identity(run: PlannedRun) -> tuple[str, str, int]:
    """Task, method and seed, as a result has them."""
    settings = _flat(run.config)
    return task_label(settings), method_label(settings), run.config.seed


def _flat(config: TrainConfig) -> dict[str, Any]:
    return flat_settings(dataclasses.asdict(config))


# ---------------------------------------------------------------------------------------------------------------------
# What is shown
# ---------------------------------------------------------------------------------------------------------------------


def finished(plan: Plan, results: Sequence[Result]) -> list[Result]:
    """Of some results those that belong to a plan and have come as far as it goes, cut to that length."""
    wanted = {_identity(run): run.config.iterations for run in plan.runs}
    found = []
    for result in results:
        iterations = wanted.get((result.task, result.method, result.seed))
        if iterations is not None and len(result.returns) >= iterations and not result.failure:
            found.append(dataclasses.replace(result.cut(iterations), iterations=iterations, finished=True))
    return found


def peers(experiment: Experiment, results: Sequence[Result]) -> list[Result]:
    """Of some results those of other libraries that an experiment shows."""
    labels, tasks = {PEERS[name] for name in experiment.peers}, task_labels(experiment)
    return [result for result in results if result.method in labels and result.task in tasks]


def judge(plan: Plan, results: Sequence[Result]) -> Comparison:
    """The finished runs of a plan held against each other, the best candidate of every curve selected."""
    return compare(results, select=True, family=lambda label: plan.curve_of[label])


def draw(plan: Plan, found: Comparison, beside: Sequence[Result], directory: Path) -> list[Path]:
    """The figures of an experiment from its finished runs, as PNG and SVG, each saying how many those are.

    Learning curves are shown with what is to be seen `beside` them: the peers, which may be of another length.
    """
    note = f"{len(found.candidates)} of {len(plan.runs)} runs finished"
    if plan.scale < 1:
        note += f"; scale {plan.scale:g}: that fraction of the paper's iterations"
    title = f"{plan.name}: {plan.experiment.about}"
    names = {label: name for name, label in PEERS.items()}
    drawn = {plan.name: figures.learning_curves([*found.results, *beside], title, note, names)}
    drawn[f"{plan.name}_auc"] = figures.bars(found.rows, "auc", title, note)
    return [figures.save(figure, directory, name) for name, figure in drawn.items()]


# ---------------------------------------------------------------------------------------------------------------------
# Curves, of whatever there is
# ---------------------------------------------------------------------------------------------------------------------


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


@functools.cache
def labels_of(name: str) -> tuple[str, ...]:
    """The labels of what may stand for a curve of CURVES or PEERS; any other is a label itself."""
    return tuple(map(label_of, CURVES[name])) if name in CURVES else (PEERS.get(name, name),)


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
