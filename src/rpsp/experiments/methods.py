"""The methods, as data: a row names a belief, an update and the settings in which it differs from the others.

Nothing here computes; `recipes` turns a row and its settings into what Algorithm 1 runs. An ablation is a setting.
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
    """What a method can be told. A row of the table sets its own defaults; not every method uses every setting."""

    discount: float = 0.99
    """γ: what a reward is worth one step later."""
    hidden: tuple[int, ...] = (16,)
    """Sizes of the hidden layers of the policy, and of PPO's and SAC's critics."""
    log_std: float = 0.0
    """Logarithm of the policy's standard deviation at first (continuous actions)."""
    max_kl: float = 0.01
    """TRPO: the most that the policy may change in one step, as mean KL per sample."""
    damping: float = 0.1
    """TRPO: added to the Fisher matrix's diagonal."""
    learning_rate: float = 1e-3
    """Of the gradient steps (VRPG, alternation's second half, PPO, SAC)."""
    policy_rate: float = 1.0
    """Ours: how many times as far as the filter's the policy's parameters go in a joint gradient step."""
    return_weight: float = 1.0
    """Of the policy loss in the joint gradient."""
    prediction_weight: float = 1.0
    """Of the prediction loss in the joint gradient; 0 is the paper's reactive PSR."""
    filter_kl: float | None = 0.02
    """Ours: the most that filter and policy together may change in one gradient step; None for the paper's letter."""
    truncate: int | None = 50
    """Steps that gradients flow back through time; None for whole episodes."""
    past: int | None = None
    """Steps of history that a predictive state is regressed on; the filter's default if None."""
    future: int | None = None
    """Steps of future that a predictive state predicts; the filter's default if None."""
    dimension: int | None = None
    """Coordinates of a predictive state (at most); the filter's default if None."""
    epochs: int | None = None
    """Epochs of refinement by backpropagation through time before training; the belief's default if None."""
    random: bool = False
    """Draw the filter's parameters at random instead of fitting them: the paper's random PSR."""
    window: int = 2
    """Finite memory: how many observations."""
    units: int = 32
    """GRU: hidden units."""
    plus_obs: int = 0
    """Observations shown to the policy beside the state: the paper's +obs is 2."""
    refit_before: tuple[int, ...] = ()
    """Ours: iterations, counted from 0, before which the filter is refitted to recent on-policy batches, where needed."""
    refit_batches: int = 3
    """How many of the latest batches a refit sees."""
    refit_samples: int = 20_000
    """At most about so many of their steps."""
    refit_above: float = 0.1
    """The filter is refitted only where its one-step error is more than this fraction of persistence's."""
    refit_kl: float = 0.1
    """A refit that would move the policy by more than this mean KL per sample is refused, unless it halves the error."""
    renew_units: bool = False
    """Ours: the units of the policy's input follow the states that it reaches, after 1, 2, 4, … iterations."""
    gae: float = 0.95
    """PPO: λ of generalised advantage estimation."""
    clip: float = 0.2
    """PPO: how far the probability ratio may leave 1."""
    passes: int = 10
    """PPO: passes over a batch."""
    minibatch: int = 256
    """PPO, SAC: steps in a gradient."""
    entropy_weight: float = 0.0
    """PPO: of the entropy bonus."""
    normalise: bool = True
    """PPO: bring advantages to zero mean and unit variance over a batch."""
    scale_rewards: bool = True
    """PPO: divide rewards by the standard deviation of the discounted returns so far."""
    bootstrap: bool = True
    """PPO: an episode that ran out of time is worth its critic's value afterwards, not nothing."""
    anneal: int | None = None
    """PPO: the learning rate falls to nothing over so many iterations; None leaves it."""
    ratio: float = 1.0
    """SAC: gradient steps for every environment step."""
    capacity: int = 300_000
    """SAC: how many of the latest steps are learned from."""
    recompute: bool = False
    """SAC: compute stored states anew after a refit of the filter, instead of keeping them."""
    normed: bool = False
    """SAC: critics with layer normalisation."""


@dataclass(frozen=True)
class Method:
    """One row of the table."""

    name: str
    belief: str | Callable[[MethodSettings], Any]
    """A function from settings to a `recipes.Belief`, or the name of one in `recipes`."""
    update: str | Callable[[MethodSettings], Any]
    """A function from settings to an `AbstractAlgorithm`, or the name of one in `recipes`."""
    about: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The settings in which this row differs."""
    ours: bool = False
    """Whether it goes beyond the paper."""
    samples: int | None = None
    """Environment steps an iteration, where it learns best from fewer than the task's; at least one episode's."""

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
"""When a filter that refits in closed form is refitted, if it predicts badly: often while behaviour changes fast."""
RENEWED = {"renew_units": True}
"""A walking robot's predictive states lie elsewhere than a falling one's, and spread ten times as far, unevenly."""
ON_POLICY = {**REFITTED, **RENEWED}
QUICK = {"policy_rate": 10.0}
"""One gradient step an iteration must be a long one for a policy, and would be too long for a filter: at 1e-2 both, two of
three Hopper runs got stuck with a belief that predicted worse than the mean."""
PPO = {"hidden": (64, 64), "learning_rate": 3e-4, "log_std": -1.0, **RENEWED}
"""Beginning with a spread of actions of a third instead of 1 is what helped most: HalfCheetah and Ant learn three times as
much from as many steps, Hopper no less; Walker2d may lose a little (docs/training/ppo.md)."""
SAC = {"hidden": (64, 64), "learning_rate": 1e-3, "normed": True}
STEEP = {"refit_batches": 20, "refit_kl": 1e6}
"""SAC, where refits are asked for: of batches that are a tenth as large, and however far that moves the policy. SAC's are so
steep that a KL of 0.1 is next to nothing. They are not asked for by default: no task gained by them, and Ant lost."""

# fmt: off
METHODS: dict[str, Method] = {row.name: row for row in (
    Method("rpsp-vrpg", "kernel_bayes", "joint", "the paper's filter, one joint gradient step an iteration", QUICK),
    Method("rpsp-vrpg+obs", "kernel_bayes", "joint", "… and the last two observations", {**QUICK, "plus_obs": 2}),
    Method("rpsp-alt", "kernel_bayes", "alternating", "TRPO on the policy, then a gradient step on the paper's filter"),
    Method("rpsp-alt+obs", "kernel_bayes", "alternating", "… and the last two observations", {"plus_obs": 2}),
    Method("fix-psr", "kernel_bayes", "policy_alone", "ablation: the filter stays as it was fitted"),
    Method("reactive-psr", "kernel_bayes", "alternating", "ablation: no prediction error", {"prediction_weight": 0.0}),
    Method("random-psr", "kernel_bayes", "alternating", "ablation: the filter starts at random", {"random": True}),
    Method("fm1", "finite_memory", "policy_alone", "finite memory: the last observation", {"window": 1}),
    Method("fm2", "finite_memory", "policy_alone", "finite memory: the last two observations", {"window": 2}),
    Method("fm5", "finite_memory", "policy_alone", "finite memory: the last five observations", {"window": 5}),
    Method("gru16", "gru", "through_time", "a GRU of 16 units, TRPO through time", {"units": 16, "epochs": 0}),
    Method("gru32", "gru", "through_time", "a GRU of 32 units, TRPO through time", {"units": 32, "epochs": 0}),
    Method("gru64", "gru", "through_time", "a GRU of 64 units, TRPO through time", {"units": 64, "epochs": 0}),
    Method("gru128", "gru", "through_time", "a GRU of 128 units, TRPO through time", {"units": 128, "epochs": 0}),
    Method("reg-gru", "gru", "alternating", "a GRU initialised and kept by its prediction error"),
    Method("reg-gru-vrpg", "gru", "joint", "the same, one joint gradient step an iteration", {"learning_rate": 1e-2}),
    Method("rpsi-trpo", "inference", "policy_alone", "direct inference, refitted; TRPO", ON_POLICY, ours=True),
    Method("rpsi-alt", "inference", "alternating", "direct inference, refitted; as rpsp-alt", ON_POLICY, ours=True),
    Method("rpsi-ppo", "inference", "proximal", "direct inference, refitted; PPO", {**ON_POLICY, **PPO}, True, 4000),
    Method("fm2-ppo", "finite_memory", "proximal", "the last two observations; PPO", {"window": 2, **PPO}, True, 4000),
    Method("rpsi-sac", "inference", "off_policy", "direct inference and the last two observations; SAC",
           {**STEEP, **SAC, "plus_obs": 2}, True, 1000),
    Method("fm2-sac", "finite_memory", "off_policy", "the last two observations; SAC", {"window": 2, **SAC}, True, 1000),
    Method("tabular", "tabular", "policy_alone", "symbols: Bayes rule on a table learned by counting; TRPO"),
)}
# fmt: on
"""Every method that `rpsp train` knows by name."""
