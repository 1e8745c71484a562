"""Part of the split of a larger module."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rpsp.errors import UsageError
from rpsp.experiments.config import TrainConfig, configured
from rpsp.experiments.labels import flat_settings, method_label, task_label
from rpsp.experiments.methods import REFITTED

Entry = dict[str, Any]
"""Settings of `rpsp train`, as in the lists of a sweep."""


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


def candidates(experiment: Experiment) -> dict[str, tuple[Entry, ...]]:
    """What every curve of an experiment may be the best of; a method shown as it is goes by its own label."""
    methods = (*experiment.methods, *(method for asked in experiment.changes.values() for method in asked))
    shown = [{"method": method} if isinstance(method, str) else method for method in methods]
    return {curve: CURVES[curve] for curve in experiment.curves} | {label_of(entry): (entry,) for entry in shown}


def tasks_of(experiment: Experiment) -> list[Entry]:
    return [{"env": task} if isinstance(task, str) else task for task in experiment.tasks]


def task_labels(experiment: Experiment) -> list[str]:
    """The tasks' labels in results."""
    return [task_label(task) for task in tasks_of(experiment)]


def label_of(method: str | Entry) -> str:
    """The method's label in results."""
    return method_label(flat(configured({"method": method} if isinstance(method, str) else method)))


@functools.cache
def labels_of(name: str) -> tuple[str, ...]:
    """The labels of what may stand for a curve of CURVES or PEERS; any other is a label itself."""
    return tuple(map(label_of, CURVES[name])) if name in CURVES else (PEERS.get(name, name),)


def flat(config: TrainConfig) -> dict[str, Any]:
    return flat_settings(dataclasses.asdict(config))
