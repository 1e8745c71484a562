"""The table of methods, as data: a method is a belief and an algorithm, composed.

An ablation is a setting. This is the only place that knows the filters of the library by name: a class that is imported
here is known to every command.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rpsp.algorithms.alternating import InSequence
from rpsp.algorithms.base import AbstractAlgorithm, everything, filter_only, policy_only
from rpsp.algorithms.ppo import Ppo
from rpsp.algorithms.sac import Sac
from rpsp.algorithms.trpo import Trpo
from rpsp.algorithms.vrpg import Vrpg
from rpsp.errors import UsageError
from rpsp.experiments.settings import Setting, merged, settings_class
from rpsp.filters.belief import Belief
from rpsp.filters.inference import Inference
from rpsp.filters.memory import FiniteMemory, Recurrent
from rpsp.filters.residual import ResidualKernelBayes
from rpsp.filters.tabular import Tabular
from rpsp.filters.two_stage import KernelBayes
from rpsp.training.state import LoopSettings, Recipe


@dataclass(frozen=True)
class Method:
    """One row of the table.

    Raises:
        UsageError: if two parts have a setting of the same name but another value.
    """

    name: str
    belief: Belief
    """How the filter is fitted."""
    algorithm: AbstractAlgorithm
    """What changes the agent."""
    about: str = ""
    """A short description."""
    loop: LoopSettings = field(default_factory=LoopSettings)
    """The policy's network, observations beside the state, and refits."""
    ours: bool = False
    """Whether the method is not in the paper."""
    samples: int | None = None
    """Maximum of the default number of environment steps per iteration, for methods that learn best from fewer."""

    def __post_init__(self) -> None:
        """Check the types of the parts, and that no setting is ambiguous."""
        for name, kind in (("belief", Belief), ("algorithm", AbstractAlgorithm), ("loop", LoopSettings)):
            part = getattr(self, name)
            unread = kind is LoopSettings and type(part) is not kind  # nothing would read the fields of a subclass
            if unread or not isinstance(part, kind):
                raise UsageError(
                    f"method: {name} of {self.name!r} is {part!r}, not an instance of {kind.__module__}.{kind.__name__}."
                )
        _ = self.known

    @cached_property
    def known(self) -> dict[str, Setting]:
        """The settings of all parts by name, with their values in this row."""
        found = merged((self.loop, self.belief, *self.algorithm.parts), self.name)
        return {n: s for n, s in found.items() if self.belief.can_refit or not n.startswith("refit_")}

    def settings(self, **given: Any) -> Any:
        """Return the settings of this row as a frozen dataclass, with some values replaced.

        Args:
            **given: values that replace those of the row.

        Raises:
            UsageError: if the method has no such setting.
        """
        for name in given:
            if name not in self.known:
                raise UsageError(self.refusal(name))
        values = {name: setting.value for name, setting in self.known.items()}
        return settings_class(self.known)(**(values | given))

    def refusal(self, name: str) -> str:
        """Return the error message for a setting that the method does not have."""
        if homes := [row.name for row in METHODS.values() if name in row.known]:
            return f"{name}: {self.name} has no such setting; these methods have it: {', '.join(homes)}."
        near = difflib.get_close_matches(name, self.known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"`rpsp train --method {self.name} --help` lists its settings."
        return f"{name}: there is no such setting; {hint}"

    def with_settings(self, settings: Any) -> Method:
        """Return the row with the values of a settings object, as `settings` returns it.

        Raises:
            UsageError: if a value is out of range.
        """
        values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
        return dataclasses.replace(
            self,
            belief=_replaced(self.belief, values),
            algorithm=self.algorithm.with_settings(values),
            loop=_replaced(self.loop, values),
        )

    @property
    def recipe(self) -> Recipe:
        """The parts that Algorithm 1 needs."""
        return Recipe(self.belief, self.algorithm)

    @property
    def composition(self) -> str:
        """The names of belief and algorithm, as in "kernel-bayes, trpo+vrpg". Rows that share it take as long."""
        through_time = isinstance(self.algorithm, Trpo) and self.algorithm.moves is not policy_only
        return f"{self.belief.kind}, {self.algorithm.name}{' through time' if through_time else ''}"


def _replaced(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a dataclass with those values that are fields of it."""
    own = {f.name for f in dataclasses.fields(part)}
    return dataclasses.replace(part, **{name: value for name, value in values.items() if name in own})


FILTER_STEP = Vrpg(moves=filter_only, filter_kl=0.02, truncate=50)
ALTERNATING = InSequence(Trpo(), FILTER_STEP)
"""The paper's alternating optimisation: TRPO on the policy, then a gradient step on the filter."""
JOINT = Vrpg(moves=everything, filter_kl=0.02, truncate=50, policy_rate=10.0)
"""The paper's joint optimisation. The policy has a larger learning rate than the filter: with one gradient step per
iteration, a policy needs long steps, which are too long for a filter. With 1e-2 for both, two of three Hopper runs got
stuck with a filter that predicted worse than the mean."""
WHOLE = Trpo(moves=everything)
"""TRPO on filter and policy together, with Fisher products through time."""
REINFORCE = Vrpg(moves=policy_only, prediction_weight=0.0, learning_rate=1e-2)
"""The optimiser of finite memory in the authors' released settings: Adam on the policy alone, without prediction loss and
without trust region. The authors' learning rates lie between 5e-3 and 1e-2."""
PPO = Ppo(learning_rate=3e-4)
SAC = Sac(hidden=(64, 64), learning_rate=1e-3, normed=True)

OBS = LoopSettings(plus_obs=2)
REFITTED = LoopSettings(refit_before=(1, 2, 4, 8, 16, 32, 64, 128, 256), renew_units=True)
"""For filters that are refitted in closed form. The schedule is dense at the start, where behaviour changes fast. The
policy's input is rescaled, because the predictive states of a walking robot differ from those of a falling one: they
spread ten times as far, by different factors in different coordinates."""
FOLLOWED = LoopSettings(renew_units=True)
"""For windows of actions and observations: rivals of direct inference, so the policy's input is rescaled as there."""
WIDE = LoopSettings(hidden=(64, 64), log_std=-1.0, renew_units=True)
"""For PPO. The initial standard deviation of about a third instead of 1 helped most. After the same number of steps,
returns are three times as high on HalfCheetah and Ant, no lower on Hopper, and perhaps slightly lower on Walker2d
(docs/training/ppo.md)."""
STEEP = LoopSettings(hidden=(64, 64), refit_batches=20, refit_kl=1e6, plus_obs=2)
"""For SAC. Refits, if they are requested, use more batches, because they are a tenth as large. The KL limit is lifted,
because SAC's policies are so steep that a KL of 0.1 is a very small change. Refits are off by default: they improved no
task and made Ant worse."""


def _reinforced(window: int) -> Method:
    about = f"finite memory of {window}, trained by REINFORCE with Adam, as in the authors' settings"
    return Method(f"fm{window}-vrpg", FiniteMemory(window=window), REINFORCE, about)


def _gru(units: int) -> Method:
    about = f"a GRU of {units} units, TRPO through time"
    return Method(f"gru{units}", Recurrent(units=units, epochs=0), WHOLE, about)


METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method("rpsp-vrpg", KernelBayes(), JOINT, "the paper's filter, one joint gradient step per iteration"),
        Method("rpsp-vrpg+obs", KernelBayes(), JOINT, "… and the last two observations", OBS),
        Method(
            "rpsp-alt", KernelBayes(), ALTERNATING, "TRPO on the policy, then a gradient step on the paper's filter"
        ),
        Method("rpsp-alt+obs", KernelBayes(), ALTERNATING, "… and the last two observations", OBS),
        Method("fix-psr", KernelBayes(), Trpo(), "ablation: the filter is fitted once and not trained"),
        Method(
            "reactive-psr",
            KernelBayes(),
            InSequence(Trpo(), dataclasses.replace(FILTER_STEP, prediction_weight=0.0)),
            "ablation: no prediction loss",
        ),
        Method("random-psr", KernelBayes(random=True), ALTERNATING, "ablation: the filter starts at random"),
        Method("fm1", FiniteMemory(window=1), Trpo(), "finite memory: the last observation"),
        Method("fm2", FiniteMemory(window=2), Trpo(), "finite memory: the last two observations"),
        Method("fm5", FiniteMemory(window=5), Trpo(), "finite memory: the last five observations"),
        _reinforced(1),
        _reinforced(2),
        _reinforced(5),
        Method(
            "fm10a",
            FiniteMemory(window=10, actions=True),
            Trpo(),
            "finite memory: the last ten observations and actions",
            FOLLOWED,
            ours=True,
        ),
        Method(
            "fm10a-pca",
            FiniteMemory(window=10, actions=True, dimension=20),
            Trpo(),
            "… compressed to 20 principal components: the control for direct inference",
            FOLLOWED,
            ours=True,
        ),
        _gru(16),
        _gru(32),
        _gru(64),
        _gru(128),
        Method("reg-gru", Recurrent(), ALTERNATING, "a GRU initialised and regularised by its prediction loss"),
        Method(
            "reg-gru-vrpg",
            Recurrent(),
            Vrpg(learning_rate=1e-2, filter_kl=0.02, truncate=50),
            "the same, one joint gradient step per iteration",
        ),
        Method(
            "rpsr-alt",
            ResidualKernelBayes(),
            ALTERNATING,
            "kernel Bayes rule on the residual of a linear filter, refitted; as rpsp-alt",
            REFITTED,
            ours=True,
        ),
        Method("rpsi-trpo", Inference(), Trpo(), "direct inference, refitted; TRPO", REFITTED, ours=True),
        Method("rpsi-alt", Inference(), ALTERNATING, "direct inference, refitted; as rpsp-alt", REFITTED, ours=True),
        Method(
            "rpsi-ppo",
            Inference(),
            PPO,
            "direct inference, refitted; PPO",
            dataclasses.replace(WIDE, refit_before=REFITTED.refit_before),
            ours=True,
            samples=4000,
        ),
        Method("fm2-ppo", FiniteMemory(), PPO, "the last two observations; PPO", WIDE, ours=True, samples=4000),
        Method(
            "rpsi-sac",
            Inference(),
            SAC,
            "direct inference and the last two observations; SAC",
            STEEP,
            ours=True,
            samples=1000,
        ),
        Method(
            "fm2-sac",
            FiniteMemory(),
            SAC,
            "the last two observations; SAC",
            LoopSettings(hidden=(64, 64)),
            ours=True,
            samples=1000,
        ),
        Method(
            "gru-sac",
            Recurrent(units=64, epochs=0),
            dataclasses.replace(SAC, sequence=64),
            "a GRU, trained through time by SAC's critics, and the last two observations",
            LoopSettings(hidden=(64, 64), plus_obs=2),
            ours=True,
            samples=1000,
        ),
        Method("tabular", Tabular(), Trpo(), "discrete data: Bayes rule on a table learned by counting; TRPO"),
    )
}
"""All methods that `rpsp train` knows by name."""
