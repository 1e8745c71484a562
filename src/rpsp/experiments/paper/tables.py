"""The experiments as tables: tasks, methods, and the candidates of each curve."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rpsp.errors import UsageError
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.configure import configured
from rpsp.experiments.labels import flat_settings, method_label, task_label
from rpsp.experiments.methods import REFITTED

Entry = dict[str, Any]
"""Settings of `rpsp train`, as in the lists of a sweep."""


def _each(methods: Sequence[str], **grid: Sequence[Any]) -> tuple[Entry, ...]:
    """Return each method with each combination of settings. None keeps the default of a setting."""
    entries: list[Entry] = [{}]
    for name, values in grid.items():
        entries = [entry | ({} if value is None else {name: value}) for entry in entries for value in values]
    return tuple({"method": method, **entry} for entry in entries for method in methods)


SIZES = {"dimension": (None, 10, 30), "learning_rate": (None, 1e-2)}
"""Candidates for dimension (default: 20) and learning rate (default: 1e-3; the paper's value: 1e-2)."""
WIDER = {"max_kl": (2e-2, 5e-2)}
"""Trust regions larger than the paper's 1e-2. They are candidates for our methods and for their baselines."""
REFIT_BEFORE = [5, 12, 25, 40]
PAPERS_GRUS = _each(("gru32", "gru16", "gru64", "gru128"), max_kl=(None, 1e-3))
"""The paper's GRUs: four sizes, and trust regions of 1e-2 (the default) and 1e-3, which it calls learning rates."""
LARGE = {"hidden": ([256, 256],)}
REFITTED_OFTEN = {"refit_before": (list(REFITTED.refit_before),)}
FORMER = {"log_std": (0.0,), "samples": (10_000,)}
"""Settings of PPO before it was tuned."""
CURVES: dict[str, tuple[Entry, ...]] = {
    "FM": (*_each(("fm2", "fm1", "fm5")), *_each(("fm2",), renew_units=(True,)), *_each(("fm2",), **WIDER)),
    "FM, REINFORCE": _each(("fm2-vrpg", "fm1-vrpg", "fm5-vrpg"), learning_rate=(None, 5e-3)),
    "FM 10 with actions": (*_each(("fm10a",)), *_each(("fm10a",), **WIDER)),
    "FM 10 with actions, compressed": (*_each(("fm10a-pca",)), *_each(("fm10a-pca",), **WIDER)),
    "GRU": (*PAPERS_GRUS, *_each(("gru32",), **WIDER)),
    "GRU, the paper's candidates": PAPERS_GRUS,
    "reg_GRU": _each(("reg-gru", "reg-gru-vrpg"), units=(None, 16, 64)),
    "RPSP-VRPG": _each(("rpsp-vrpg+obs", "rpsp-vrpg"), **SIZES),
    "RPSP-Alt": _each(("rpsp-alt+obs", "rpsp-alt"), **SIZES),
    "RPSP-Alt, refitted": (
        *_each(("rpsp-alt+obs", "rpsp-alt"), refit_before=(REFIT_BEFORE,)),
        *_each(("rpsp-alt+obs", "rpsp-alt"), refit_before=(REFIT_BEFORE,), refit_epochs=(20,)),
    ),
    "RPSR-Alt": _each(("rpsr-alt",)),
    "RPSI-TRPO": (*_each(("rpsi-trpo",), past=(None, 20, 50)), *_each(("rpsi-trpo",), **WIDER)),
    "RPSI-PPO": (*_each(("rpsi-ppo",)), *_each(("rpsi-ppo",), **FORMER)),
    "RPSI-SAC": (
        *_each(("rpsi-sac",), **LARGE, plus_obs=(None, 0)),
        *_each(("rpsi-sac",), **LARGE, plus_obs=(0,), normed=(False,), **REFITTED_OFTEN),
    ),
    "FM-SAC": _each(("fm2-sac",), **LARGE, normed=(None, False)),
}
"""Candidates of each curve. Without selection only the first one is run."""
PEERS = {"RecurrentPPO": "recurrent-ppo"}
"""Curves of other libraries, and their method in result files. `python -m benchmarks.recurrent_ppo` makes them."""
DIFFERENCES: dict[str, tuple[str | Entry, ...]] = {
    "initialisation": ("rpsp-alt", "random-psr"),
    "refits": ("rpsp-alt+obs", {"method": "rpsp-alt+obs", "refit_before": REFIT_BEFORE}),
    "refits, joint steps": ("rpsp-vrpg+obs", {"method": "rpsp-vrpg+obs", "refit_before": REFIT_BEFORE}),
    "learning rate of the policy in joint steps": ("rpsp-vrpg+obs", {"method": "rpsp-vrpg+obs", "policy_rate": 30.0}),
    "truncated backpropagation in joint steps": ("rpsp-vrpg+obs", {"method": "rpsp-vrpg+obs", "truncate": 10}),
    "trust region on the filter's step": ("rpsp-alt", {"method": "rpsp-alt", "filter_kl": None}),
    "weight of the prediction error": (
        "rpsp-alt", "reactive-psr", *({"method": "rpsp-alt", "prediction_weight": weight} for weight in (0.1, 10.0)),
    ),
    "kind of filter": ("rpsp-alt", "rpsi-alt", "reg-gru"),
    "trust region of the policy": ("rpsi-trpo", *_each(("rpsi-trpo",), **WIDER)),
    "trust region of the policy, finite memory": ("fm2", *_each(("fm2",), **WIDER)),
    "trust region of the policy, GRU": ("gru32", *_each(("gru32",), **WIDER)),
    "initial standard deviation of actions": ("rpsi-trpo", {"method": "rpsi-trpo", "log_std": -1.0}),
    "longer horizon": ("rpsi-trpo", {"method": "rpsi-trpo", "discount": 0.999}),
    "longer horizon, finite memory": ("fm2", {"method": "fm2", "discount": 0.999}),
    "longer horizon, GRU": ("gru32", {"method": "gru32", "discount": 0.999}),
    "input scales that follow the states, TRPO": ("rpsi-trpo", {"method": "rpsi-trpo", "renew_units": False}),
    "input scales that follow the states, PPO": _each(("rpsi-ppo",), **FORMER, renew_units=(None, False)),
    "input scales that follow the states, finite memory": ("fm2", {"method": "fm2", "renew_units": True}),
}  # fmt: skip
"""Questions and methods. The first method is the reference, each other one differs from it in one setting."""


def _tuned(**grid: Sequence[Any]) -> tuple[Entry, ...]:
    """Return PPO as it was during tuning, and with each value of the given setting.

    The initial standard deviation was 1 then.
    """
    return _each(("rpsi-ppo",), log_std=(0.0,), **{name: (None, *values) for name, values in grid.items()})


TUNING: dict[str, tuple[str | Entry, ...]] = {
    "initial standard deviation of actions": _each(("rpsi-ppo",), log_std=(0.0, None)),
    "steps per iteration": _tuned(samples=(2_000, 10_000)),
    "learning rate": _tuned(learning_rate=(1e-4, 1e-3)),
    "learning rate annealed to zero": _tuned(anneal=(125,)),
    "passes over a batch": _tuned(passes=(5, 20)),
    "minibatch size": _tuned(minibatch=(64, 1024)),
    "hidden units of policy and critic": _tuned(**LARGE),
    "generalised advantage estimation (λ)": _tuned(gae=(0.9, 0.98)),
    "normalised advantages": _tuned(normalise=(False,)),
    "scaled rewards": _tuned(scale_rewards=(False,)),
    "bootstrapping at the time limit": _tuned(bootstrap=(False,)),
    "with the smaller standard deviation: λ": _each(("rpsi-ppo",), gae=(None, 0.9)),
    "with the smaller standard deviation: minibatch size": _each(("rpsi-ppo",), minibatch=(None, 64)),
    "with λ = 0.9: initial standard deviation of actions": _each(("rpsi-ppo",), gae=(0.9,), log_std=(0.0, None, -2.0)),
    "with both: minibatch size": _each(("rpsi-ppo",), gae=(0.9,), minibatch=(None, 64)),
    "with both: steps per iteration": _each(("rpsi-ppo",), gae=(0.9,), samples=(None, 2_000)),
    "with both: passes over a batch": _each(("rpsi-ppo",), gae=(0.9,), passes=(None, 20)),
}
"""Settings of PPO, in the same form as `DIFFERENCES`."""
REPLAYED: dict[str, tuple[str | Entry, ...]] = {
    "stored states": _each(("rpsi-sac",), plus_obs=(0,), **REFITTED_OFTEN, refit_above=(0.0,), recompute=(None, True)),
    "refits": (
        *_each(("rpsi-sac",), plus_obs=(0,), **REFITTED_OFTEN, refit_above=(0.0,)),
        *_each(("rpsi-sac",), plus_obs=(0,)),
    ),
}
"""SAC's replay buffer after refits, and without refits. Refits are accepted whenever they predict better.

The policy sees the belief alone (`plus_obs=0`), because only stored beliefs become outdated.
"""
RESIDUALS: dict[str, tuple[str | Entry, ...]] = {
    "another belief": (
        "rpsr-alt", "fm2", "fm5", "gru32", "gru128", *_each(("rpsp-alt+obs",), refit_before=(None, REFIT_BEFORE)),
        "rpsi-trpo",
    ),
}  # fmt: skip
"""Methods that kernel Bayes rule on residuals is compared with, in the same form as `DIFFERENCES`. It is one question, so
that all tests on a task are adjusted together.
"""
TASK_OF = {"cart-pole": "InvertedPendulum-v5", "swimmer": "Swimmer-v5", "hopper": "Hopper-v5", "walker": "Walker2d-v5"}
EVERY = tuple(TASK_OF.values())
FURTHER: tuple[Entry, ...] = tuple({"env": env, "observe": "positions"} for env in ("HalfCheetah-v5", "Ant-v5"))
"""Two tasks that are not in the paper."""
LOCOMOTION: tuple[Entry, ...] = ({"env": TASK_OF["hopper"]}, {"env": TASK_OF["walker"]}, *FURTHER)
DISTURBED: tuple[Entry, ...] = tuple(
    task | disturbance for disturbance in ({"relative_noise": 0.1}, {"obs_latency": 2}) for task in LOCOMOTION
)
RIVALS = "FM", "GRU", "RPSP-VRPG", "RPSP-Alt"


# ---------------------------------------------------------------------------------------------------------------------
# Protocols
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskChange:
    """A change of a task by a protocol."""

    about: str
    """What is different, as the rest of a sentence: "on Hopper, …"."""
    settings: Entry = field(default_factory=dict)
    """Settings of the task that make the change. Empty: no setting can make it yet. Then the task is used as it is, and
    the page of results says so."""


@dataclass(frozen=True, eq=False)  # compared and hashed by identity
class Protocol:
    """Conditions under which the paper's experiments are run and its claims are judged."""

    name: str
    short: str
    """Name in the head of a table."""
    phrase: str
    """Name in a sentence, as in "under the authors' protocol"."""
    about: str
    """What it consists of, in sentences."""
    curves: Mapping[str, str] = field(default_factory=dict)
    """Substitutes: for the name of a curve or method, another name in `CURVES` or another method."""
    tasks: Mapping[str, TaskChange] = field(default_factory=dict)
    """Changes of tasks, by Gymnasium id. They also apply to the task with noise."""

    def task(self, entry: Entry) -> Entry:
        """Return the settings of a task under this protocol."""
        change = self.tasks.get(entry["env"])
        return entry if change is None else entry | change.settings


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "authors",
            "authors' protocol",
            "under the authors' protocol",
            "Finite memory is trained by REINFORCE with Adam (`fm1-vrpg`, `fm2-vrpg`, `fm5-vrpg`), as in the authors' "
            "released settings. GRUs are trained by TRPO with step sizes of 1e-2 and 1e-3. RPSP has 10, 20 or 30 "
            "dimensions and step sizes of 1e-3 and 1e-2.",
            {
                "FM": "FM, REINFORCE",
                "fm1": "fm1-vrpg",
                "fm2": "fm2-vrpg",
                "fm5": "fm5-vrpg",
                "GRU": "GRU, the paper's candidates",
            },
            {
                TASK_OF["cart-pole"]: TaskChange("actions are clipped to ±1", {"action_limit": 1.0}),
                TASK_OF["hopper"]: TaskChange(
                    "the reward is 10 times the forward velocity",
                    {"env_args": {"forward_reward_weight": 10, "healthy_reward": 0, "ctrl_cost_weight": 0}},
                ),
            },
        ),
        Protocol(
            "equal",
            "equal optimisers",
            "with equal optimisers",
            "Finite memory, GRUs and the policy of RPSP-Alt are all trained by TRPO. The tasks and their rewards are "
            "Gymnasium's.",
        ),
    )
}
"""The protocols by name."""
EQUAL = PROTOCOLS["equal"]


# ---------------------------------------------------------------------------------------------------------------------
# Experiments
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Experiment:
    """The content of one figure or table."""

    about: str
    tasks: tuple[str | Entry, ...]
    curves: tuple[str, ...] = ()
    """Names in `CURVES`. Each curve is the best of its candidates."""
    methods: tuple[str | Entry, ...] = ()
    """Methods without candidates."""
    changes: Mapping[str, tuple[str | Entry, ...]] = field(default_factory=dict)
    """Questions and methods, as in `DIFFERENCES`. They are shown as bars and as a table."""
    peers: tuple[str, ...] = ()
    """Names in `PEERS`. They are shown if results are available."""
    ours: bool = False
    """Whether the experiment is not in the paper."""
    iterations: int | None = None
    """Number of iterations at any scale. Default: the paper's. Methods with short iterations do more of them."""


# fmt: off
EXPERIMENTS: dict[str, Experiment] = {
    "a": Experiment("FM, GRU, RPSP-VRPG and RPSP-Alt on cart-pole", (TASK_OF["cart-pole"],), RIVALS),
    "b": Experiment("FM, GRU, RPSP-VRPG and RPSP-Alt on Swimmer", (TASK_OF["swimmer"],), RIVALS),
    "c": Experiment("FM, GRU, RPSP-VRPG and RPSP-Alt on Hopper", (TASK_OF["hopper"],), RIVALS),
    "d": Experiment("FM, GRU, RPSP-VRPG and RPSP-Alt on Walker2d", (TASK_OF["walker"],), RIVALS),
    "e": Experiment("ablations on Hopper: fixed, reactive and random filter", (TASK_OF["hopper"],),
                    methods=("rpsp-alt", "fix-psr", "reactive-psr", "random-psr")),
    "f": Experiment("a GRU trained to predict, compared with a predictive state, on Hopper", (TASK_OF["hopper"],),
                    ("GRU", "reg_GRU", "RPSP-Alt")),
    "g": Experiment("a GRU trained to predict, compared with a predictive state, on Swimmer", (TASK_OF["swimmer"],),
                    ("GRU", "reg_GRU", "RPSP-Alt")),
    "h": Experiment("table of the areas under the curves of a to d, with tests", EVERY, RIVALS),
    "noise": Experiment("FM 2 and RPSP-Alt on Hopper with observation noise of 0.1, 0.2 and 0.3",
                        tuple({"env": TASK_OF["hopper"], "obs_noise": sigma} for sigma in (0.1, 0.2, 0.3)),
                        ("RPSP-Alt",), ("fm2",)),
    "optimisers": Experiment("joint and alternating optimisation, with and without observations (appendix)", EVERY,
                             methods=("rpsp-vrpg", "rpsp-vrpg+obs", "rpsp-alt", "rpsp-alt+obs")),
    "finite-memory": Experiment("windows of 1, 2 and 5 observations (appendix)", EVERY, methods=("fm1", "fm2", "fm5")),
    "grus": Experiment("GRUs of 16, 32, 64 and 128 units (appendix)", EVERY,
                       methods=("gru16", "gru32", "gru64", "gru128")),
    "filter-regularisation": Experiment("fixed and reactive filters on the other tasks (appendix)",
                                        tuple(TASK_OF[name] for name in ("walker", "cart-pole", "swimmer")),
                                        methods=("rpsp-alt", "fix-psr", "reactive-psr")),
    "gru-filters": Experiment("experiments f and g on the other tasks (appendix)",
                              tuple(TASK_OF[name] for name in ("walker", "cart-pole")), ("GRU", "reg_GRU", "RPSP-Alt")),
    "ours": Experiment("extensions on all four tasks: refits, residuals, direct inference, PPO", EVERY,
                       (*RIVALS, "reg_GRU", "RPSP-Alt, refitted", "RPSR-Alt", "RPSI-TRPO", "RPSI-PPO"), ("fm2-ppo",),
                       peers=tuple(PEERS), ours=True),
    "disturbed": Experiment("noise, latency and dropped observations",
                            (*({"env": TASK_OF["hopper"], "obs_noise": sigma} for sigma in (0.1, 0.2, 0.3)),
                             {"env": TASK_OF["walker"], "obs_noise": 0.1},
                             {"env": TASK_OF["hopper"], "obs_latency": 2}, {"env": TASK_OF["hopper"], "dropout": 0.1}),
                            ("GRU", "RPSP-Alt"), ("fm2", "fm5", *_each(("rpsi-trpo",), past=(None, 20, 50))),
                            ours=True),
    "differences": Experiment("ablations: one setting changed at a time",
                              tuple(TASK_OF[name] for name in ("hopper", "walker", "swimmer")), changes=DIFFERENCES,
                              ours=True),
    "residuals": Experiment("kernel Bayes rule on residuals compared with other beliefs", EVERY, changes=RESIDUALS,
                            ours=True),
    "ppo": Experiment("settings of PPO, one changed at a time", LOCOMOTION, changes=TUNING, ours=True, iterations=50),
    "further": Experiment("direct inference with PPO on two further tasks", FURTHER, ("RPSI-PPO",), ("fm2-ppo",),
                          peers=tuple(PEERS), ours=True, iterations=100),
    "off-policy": Experiment("off-policy learning with SAC", LOCOMOTION, ("RPSI-SAC", "FM-SAC"),
                             peers=tuple(PEERS), ours=True, iterations=300),
    "off-policy-disturbed": Experiment("SAC under noise (0.1 standard deviations of each observation) and latency",
                                       DISTURBED, ("RPSI-SAC", "FM-SAC"), ours=True, iterations=300),
    "replay": Experiment("SAC: stored states kept or recomputed after refits of the filter",
                         (TASK_OF["hopper"], TASK_OF["walker"]), changes=REPLAYED, ours=True, iterations=150),
}
# fmt: on
"""The experiments by name. The paper's text does not say which of figures a to d shows which task; we use the order of
its protocol.
"""


def find(names: Sequence[str], protocol: Protocol = EQUAL) -> list[str]:
    """Check names of experiments and expand "all" to all experiments of the paper.

    Raises:
        UsageError: if a name is unknown, or the experiment is ours and the protocol is not.
    """
    wanted = []
    for name in names:
        if name != "all" and name not in EXPERIMENTS:
            raise UsageError(f"figure: {name!r} is not one of all, {', '.join(EXPERIMENTS)}.")
        wanted += [n for n, e in EXPERIMENTS.items() if not e.ours] if name == "all" else [name]
    for name in wanted:
        if EXPERIMENTS[name].ours and protocol is not EQUAL:
            raise UsageError(f"protocol: {protocol.name} is for the paper's experiments only; {name} is ours.")
    return list(dict.fromkeys(wanted))


def candidates(experiment: Experiment, protocol: Protocol = EQUAL) -> dict[str, tuple[Entry, ...]]:
    """Return the candidates of each curve of an experiment. A method without candidates has its label as name."""
    methods = (*experiment.methods, *(method for asked in experiment.changes.values() for method in asked))
    shown = [{"method": method} if isinstance(method, str) else method for method in methods]
    found = {curve: CURVES[curve] for curve in experiment.curves} | {label_of(entry): (entry,) for entry in shown}
    return found | {name: _entries(protocol.curves[name]) for name in found if name in protocol.curves}


def _entries(name: str) -> tuple[Entry, ...]:
    """Return the candidates of a curve or of a method without candidates."""
    return CURVES.get(name, ({"method": name},))


def tasks_of(experiment: Experiment, protocol: Protocol = EQUAL) -> list[Entry]:
    """Return the tasks of an experiment as settings."""
    return [protocol.task({"env": task} if isinstance(task, str) else task) for task in experiment.tasks]


def task_labels(experiment: Experiment, protocol: Protocol = EQUAL) -> list[str]:
    """Return the labels of an experiment's tasks."""
    return [task_label(task) for task in tasks_of(experiment, protocol)]


@functools.cache
def labels_under(protocol: Protocol) -> dict[str, str]:
    """Return the label of each task of the experiments under a protocol, by its label without changes."""
    changed: dict[str, str] = {}
    for experiment in EXPERIMENTS.values():
        changed |= zip(task_labels(experiment), task_labels(experiment, protocol), strict=True)
    return changed


def label_of(method: str | Entry) -> str:
    """Return the label of a method."""
    return method_label(flat(configured({"method": method} if isinstance(method, str) else method)))


@functools.cache
def labels_of(name: str) -> tuple[str, ...]:
    """Return the labels of a curve's candidates. A name that is in neither `CURVES` nor `PEERS` is itself a label."""
    return tuple(map(label_of, CURVES[name])) if name in CURVES else (PEERS.get(name, name),)


def flat(config: TrainConfig) -> dict[str, Any]:
    """Return the flat settings of a configuration."""
    return flat_settings(dataclasses.asdict(config))
