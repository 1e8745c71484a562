"""The table of methods, as data.

A row names a belief, an algorithm, and the settings that differ from the defaults. Ablations are settings. The module
`recipes` turns a row and its settings into the components of Algorithm 1.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rpsp.errors import UsageError


@dataclass(frozen=True)
class MethodSettings:
    """Settings of the method. Defaults depend on --method, and a method ignores the settings it does not use."""

    discount: float = 0.99
    """Discount factor γ."""
    hidden: tuple[int, ...] = (16,)
    """Sizes of the hidden layers of the policy, and of the critics of PPO and SAC."""
    log_std: float = 0.0
    """Initial logarithm of the policy's standard deviation (continuous actions)."""
    max_kl: float = 0.01
    """TRPO: maximum KL divergence between old and new policy, as a mean over samples."""
    damping: float = 0.1
    """TRPO: damping added to the diagonal of the Fisher matrix."""
    learning_rate: float = 1e-3
    """Learning rate of gradient steps (VRPG, the filter's step of alternating methods, PPO, SAC)."""
    policy_rate: float = 1.0
    """VRPG: learning rate of the policy as a multiple of the filter's. Not in the paper."""
    return_weight: float = 1.0
    """Weight of the policy loss in the joint gradient."""
    prediction_weight: float = 1.0
    """Weight of the prediction loss in the joint gradient. 0: the paper's reactive PSR."""
    filter_kl: float | None = 0.02
    """Maximum KL divergence caused by one gradient step on filter and policy. None: no limit, as in the paper."""
    truncate: int | None = 50
    """Length of backpropagation through time, in steps. None: whole episodes."""
    past: int | None = None
    """Length of the history that a predictive state is regressed on, in steps. Default: depends on the filter."""
    future: int | None = None
    """Length of the future that a predictive state predicts, in steps. Default: depends on the filter."""
    dimension: int | None = None
    """Maximum dimension of a predictive state. Default: depends on the filter."""
    epochs: int | None = None
    """Number of refinement epochs (backpropagation through time) before training. Default: depends on the filter."""
    random: bool = False
    """Initialise the filter with random parameters instead of fitting it (the paper's random PSR)."""
    window: int = 2
    """Finite memory: number of observations."""
    units: int = 32
    """GRU: number of hidden units."""
    plus_obs: int = 0
    """Number of recent observations that the policy gets in addition to the state. The paper's +obs is 2."""
    refit_before: tuple[int, ...] = ()
    """Iterations, counted from 0, before which the filter is refitted to recent batches. Not in the paper."""
    refit_batches: int = 3
    """Refit: number of latest batches to use."""
    refit_samples: int = 20_000
    """Refit: approximate maximum number of steps to use."""
    refit_above: float = 0.1
    """Refit only if the filter's one-step error exceeds this fraction of the error of persistence."""
    refit_kl: float = 0.1
    """Reject a refit that changes the policy by a larger mean KL divergence, unless it halves the error."""
    renew_units: bool = False
    """Rescale the policy's input to the states it reaches, after 1, 2, 4, … iterations. Not in the paper."""
    gae: float = 0.95
    """PPO: λ of generalised advantage estimation."""
    clip: float = 0.2
    """PPO: clipping range of the probability ratio."""
    passes: int = 10
    """PPO: number of passes over a batch."""
    minibatch: int = 256
    """PPO, SAC: minibatch size, in steps."""
    entropy_weight: float = 0.0
    """PPO: weight of the entropy bonus."""
    normalise: bool = True
    """PPO: normalise advantages to zero mean and unit variance over a batch."""
    scale_rewards: bool = True
    """PPO: divide rewards by the running standard deviation of discounted returns."""
    bootstrap: bool = True
    """PPO: at a time limit, use the critic's value of the last state instead of 0."""
    anneal: int | None = None
    """PPO: number of iterations over which the learning rate decreases to 0. None: constant learning rate."""
    ratio: float = 1.0
    """SAC: gradient steps per environment step."""
    capacity: int = 300_000
    """SAC: capacity of the replay buffer, in steps."""
    recompute: bool = False
    """SAC: recompute stored states after a refit of the filter."""
    normed: bool = False
    """SAC: use layer normalisation in the critics."""


@dataclass(frozen=True)
class Method:
    """One row of the table."""

    name: str
    belief: str | Callable[[MethodSettings], Any]
    """A function from settings to a `recipes.Belief`, or the name of one in `recipes`."""
    update: str | Callable[[MethodSettings], Any]
    """A function from settings to an `AbstractAlgorithm`, or the name of one in `recipes`."""
    about: str
    """A short description."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the defaults of `MethodSettings`."""
    ours: bool = False
    """Whether the method is not in the paper."""
    samples: int | None = None
    """Maximum of the default number of environment steps per iteration, for methods that learn best from fewer."""

    def settings(self, **given: Any) -> MethodSettings:
        """Return the settings of this row, with some values replaced.

        Args:
            **given: settings that replace the defaults of the row.

        Raises:
            UsageError: if the defaults of the row name a setting that does not exist.
        """
        known = [field.name for field in dataclasses.fields(MethodSettings)]
        for name in self.defaults:
            if name not in known:
                near = [repr(other) for other in difflib.get_close_matches(str(name), known)]
                hint = f"did you mean {' or '.join(near)}?" if near else "`rpsp train --help` lists the settings."
                raise UsageError(f"method: the defaults of {self.name!r} name an unknown setting {name!r}; {hint}")
        return dataclasses.replace(MethodSettings(**self.defaults), **given)


REFITTED = {"refit_before": (1, 2, 4, 8, 16, 32, 64, 128, 256)}
"""Schedule for filters that are refitted in closed form. It is dense at the start, where behaviour changes fast."""
RENEWED = {"renew_units": True}
"""Rescaling of the policy's input. The predictive states of a walking robot differ from those of a falling one. They
spread ten times as far, by different factors in different coordinates."""
ON_POLICY = {**REFITTED, **RENEWED}
QUICK = {"policy_rate": 10.0}
"""Larger learning rate for the policy than for the filter. With one gradient step per iteration, a policy needs long
steps, which are too long for a filter. With 1e-2 for both, two of three Hopper runs got stuck with a filter that
predicted worse than the mean."""
PPO = {"hidden": (64, 64), "learning_rate": 3e-4, "log_std": -1.0, **RENEWED}
"""Settings of PPO. The initial standard deviation of about a third instead of 1 helped most. After the same number of
steps, returns are three times as high on HalfCheetah and Ant, no lower on Hopper, and perhaps slightly lower on
Walker2d (docs/training/ppo.md)."""
SAC = {"hidden": (64, 64), "learning_rate": 1e-3, "normed": True}
STEEP = {"refit_batches": 20, "refit_kl": 1e6}
"""Settings of refits for SAC, if they are requested. More batches are used, because they are a tenth as large. The KL
limit is lifted, because SAC's policies are so steep that a KL of 0.1 is a very small change. Refits are off by default:
they improved no task and made Ant worse."""

# fmt: off
METHODS: dict[str, Method] = {row.name: row for row in (
    Method("rpsp-vrpg", "kernel_bayes", "joint", "the paper's filter, one joint gradient step per iteration", QUICK),
    Method("rpsp-vrpg+obs", "kernel_bayes", "joint", "… and the last two observations", {**QUICK, "plus_obs": 2}),
    Method("rpsp-alt", "kernel_bayes", "alternating", "TRPO on the policy, then a gradient step on the paper's filter"),
    Method("rpsp-alt+obs", "kernel_bayes", "alternating", "… and the last two observations", {"plus_obs": 2}),
    Method("fix-psr", "kernel_bayes", "policy_alone", "ablation: the filter is fitted once and not trained"),
    Method("reactive-psr", "kernel_bayes", "alternating", "ablation: no prediction loss", {"prediction_weight": 0.0}),
    Method("random-psr", "kernel_bayes", "alternating", "ablation: the filter starts at random", {"random": True}),
    Method("fm1", "finite_memory", "policy_alone", "finite memory: the last observation", {"window": 1}),
    Method("fm2", "finite_memory", "policy_alone", "finite memory: the last two observations", {"window": 2}),
    Method("fm5", "finite_memory", "policy_alone", "finite memory: the last five observations", {"window": 5}),
    Method("gru16", "gru", "through_time", "a GRU of 16 units, TRPO through time", {"units": 16, "epochs": 0}),
    Method("gru32", "gru", "through_time", "a GRU of 32 units, TRPO through time", {"units": 32, "epochs": 0}),
    Method("gru64", "gru", "through_time", "a GRU of 64 units, TRPO through time", {"units": 64, "epochs": 0}),
    Method("gru128", "gru", "through_time", "a GRU of 128 units, TRPO through time", {"units": 128, "epochs": 0}),
    Method("reg-gru", "gru", "alternating", "a GRU initialised and regularised by its prediction loss"),
    Method("reg-gru-vrpg", "gru", "joint", "the same, one joint gradient step per iteration", {"learning_rate": 1e-2}),
    Method("rpsi-trpo", "inference", "policy_alone", "direct inference, refitted; TRPO", ON_POLICY, ours=True),
    Method("rpsi-alt", "inference", "alternating", "direct inference, refitted; as rpsp-alt", ON_POLICY, ours=True),
    Method("rpsi-ppo", "inference", "proximal", "direct inference, refitted; PPO", {**ON_POLICY, **PPO}, True, 4000),
    Method("fm2-ppo", "finite_memory", "proximal", "the last two observations; PPO", {"window": 2, **PPO}, True, 4000),
    Method("rpsi-sac", "inference", "off_policy", "direct inference and the last two observations; SAC",
           {**STEEP, **SAC, "plus_obs": 2}, True, 1000),
    Method("fm2-sac", "finite_memory", "off_policy", "the last two observations; SAC", {"window": 2, **SAC}, True, 1000),
    Method("tabular", "tabular", "policy_alone", "discrete data: Bayes rule on a table learned by counting; TRPO"),
)}
# fmt: on
"""All methods that `rpsp train` knows by name."""
