"""What was claimed, as data; what the results say of it: holds, does not hold, undecided.

A claim is one or more duels: on a task, the best of some curves against a rival, by the area under the curve or another
metric. A duel needs three runs on either side. Its test is Welch's, corrected by Holm over the duels of all claims that are
judged together (the paper's; ours); a difference of less than a twentieth of the rival's value is held to be none, which is
what the plain 95 % interval is asked:

    better      holds if the challenger is above the rival significantly; does not if significantly below, or if the
                interval leaves it no advantage of a twentieth
    not worse   does not hold if significantly below; holds if it is not below at all, or if the interval leaves it no
                disadvantage of a twentieth
    alike       does not hold if they differ significantly; holds if the interval leaves no difference of a twentieth

Anything else is undecided. A claim holds if all its duels do, or as many as it says, and does not if they cannot any more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rpsp.experiments import statistics
from rpsp.experiments.comparison import metric_values
from rpsp.experiments.labels import task_label
from rpsp.experiments.paper.curves import Curve, Found
from rpsp.experiments.paper.tables import DISTURBED, EVERY, FURTHER, LOCOMOTION

Expected = Literal["better", "not worse", "alike"]
Verdict = Literal["holds", "does not hold", "undecided"]
Measure = Literal["auc", "final", "million", "300 thousand"]
MEASURES: dict[Measure, str] = {
    "auc": "area under curve over {} iterations",
    "final": "final return of {} iterations",
    "million": "return at 1 million steps",
    "300 thousand": "return at 300 thousand steps",
}
AT_STEPS: dict[Measure, float] = {"million": 1e6, "300 thousand": 3e5}
VERDICTS: tuple[Verdict, ...] = ("holds", "undecided", "does not hold")
"""Of two that are told together the later is said."""
LEVEL, MARGIN, FEWEST = 0.05, 0.05, 3
"""Of significance; of what makes a difference, as a fraction of the rival's value; of runs on either side."""


@dataclass(frozen=True)
class Duel:
    """The best of some curves against a rival, on a task."""

    task: str
    challengers: tuple[str, ...]
    rival: str
    expected: Expected = "better"
    measure: Measure = "auc"
    times: float = 1.0
    """What the rival's values are multiplied by."""


@dataclass(frozen=True)
class Claim:
    """What was said, in our words, and where."""

    where: str
    text: str
    duels: tuple[Duel, ...]
    enough: int | None = None
    """How many of the duels must hold; unless given, all."""


# ---------------------------------------------------------------------------------------------------------------------
# The table
# ---------------------------------------------------------------------------------------------------------------------

CART_POLE, SWIMMER, HOPPER, WALKER = EVERY
NOISY = {sigma: f"{HOPPER}, obs_noise={sigma}" for sigma in (0.1, 0.2, 0.3)}
RPSP = "RPSP-VRPG", "RPSP-Alt"
PREDICTIVE = *RPSP, "RPSP-Alt, refitted", "RPSI-TRPO"
"""Every method with a predictive state and a policy of 16 units."""


def _duels(
    tasks: Iterable[str],
    challengers: str | tuple[str, ...],
    rivals: str | tuple[str, ...],
    expected: Expected = "better",
    measure: Measure = "auc",
    times: float = 1.0,
) -> tuple[Duel, ...]:
    challengers, rivals = ((names,) if isinstance(names, str) else names for names in (challengers, rivals))
    return tuple(Duel(task, challengers, rival, expected, measure, times) for task in tasks for rival in rivals)


# fmt: off
PAPER = (
    Claim("section 7, table (h)", "some RPSP is at the top on every task but cart-pole",
          _duels((SWIMMER, HOPPER, WALKER), RPSP, ("FM", "GRU"), "not worse")),
    Claim("section 7", "on Swimmer the best RPSP is significantly better than FM",
          _duels([SWIMMER], RPSP, "FM")),
    Claim("section 7", "on Hopper the best RPSP is significantly better than FM and GRU",
          _duels([HOPPER], RPSP, ("FM", "GRU"))),
    Claim("section 7", "on Walker2d the best RPSP is significantly better than GRU",
          _duels([WALKER], RPSP, "GRU")),
    Claim("section 7", "on cart-pole the best RPSP is significantly better than FM",
          _duels([CART_POLE], RPSP, "FM")),
    Claim("section 7", "on cart-pole the best RPSP and GRU do not differ significantly",
          _duels([CART_POLE], RPSP, "GRU", "alike")),
    Claim("section 7", "RPSP-Alt ends where RPSP-VRPG does", _duels(EVERY, "RPSP-Alt", "RPSP-VRPG", "alike", "final")),
    Claim("section 7", "RPSP-Alt gets there faster", _duels(EVERY, "RPSP-Alt", "RPSP-VRPG")),
    Claim("section 6, appendix", "joint optimisation learns faster with observations beside the state",
          _duels(EVERY, "rpsp-vrpg+obs", "rpsp-vrpg")),
    Claim("section 6, appendix", "alternating optimisation learns faster with them, too",
          _duels(EVERY, "rpsp-alt+obs", "rpsp-alt")),
    Claim("section 7, figure (e)", "initialisation by two-stage regression helps: a random filter is worse",
          _duels([HOPPER], "rpsp-alt", "random-psr")),
    Claim("section 7, figure (e)", "training the filter end to end helps: a fixed one is worse",
          _duels([HOPPER], "rpsp-alt", "fix-psr")),
    Claim("section 7, figure (e)", "the prediction error in the loss helps: without it RPSP is worse",
          _duels([HOPPER], "rpsp-alt", "reactive-psr")),
    Claim("section 7, figures (f, g)", "a GRU that is trained to predict, or not, does not reach RPSP",
          _duels((HOPPER, SWIMMER), "RPSP-Alt", ("GRU", "reg_GRU"))),
    Claim("section 7, noise", "under mild noise RPSP is clearly ahead of FM 2", _duels([NOISY[0.1]], "RPSP-Alt", "fm2")),
    Claim("section 7, noise", "under heavy noise the difference is gone",
          _duels([NOISY[0.3]], "RPSP-Alt", "fm2", "alike")),
    Claim("appendix", "of the finite memories, two observations are best but on Hopper, where one is",
          (*_duels((WALKER, SWIMMER, CART_POLE), "fm2", ("fm1", "fm5"), "not worse"),
           *_duels([HOPPER], "fm1", ("fm2", "fm5"), "not worse"))),
)
OURS = (
    Claim("Hopper, Walker2d", "a predictive state has the best area of all on-policy methods with 16-unit policies, "
          "significantly against GRU",
          (*_duels((HOPPER, WALKER), PREDICTIVE, "GRU"),
           *_duels((HOPPER, WALKER), PREDICTIVE, ("FM", "reg_GRU"), "not worse"))),
    Claim("Hopper, noise 0.1", "a predictive state is significantly better than FM 2, FM 5 and GRU",
          _duels([NOISY[0.1]], ("RPSP-Alt", "RPSI-TRPO"), ("fm2", "fm5", "GRU"))),
    Claim("all four tasks", "the best predictive state is nowhere significantly worse than FM or GRU",
          _duels(EVERY, PREDICTIVE, ("FM", "GRU"), "not worse")),
    Claim("Hopper, Walker2d", "RPSI-PPO's return at one million steps is at least RecurrentPPO's",
          _duels((HOPPER, WALKER), "RPSI-PPO", "RecurrentPPO", "not worse", "million")),
    Claim("HalfCheetah, Ant", "there, too",
          _duels(map(task_label, FURTHER), "RPSI-PPO", "RecurrentPPO", "not worse", "million")),
    Claim("Hopper, Walker2d, HalfCheetah, Ant", "RPSI-SAC has twice RecurrentPPO's return at 300 000 steps on three",
          _duels(map(task_label, LOCOMOTION), "RPSI-SAC", "RecurrentPPO", "not worse", "300 thousand", 2.0), enough=3),
    Claim("the same four", "RPSI-SAC is nowhere worse than FM-SAC",
          _duels(map(task_label, LOCOMOTION), "RPSI-SAC", "FM-SAC", "not worse", "300 thousand")),
    Claim("the same four", "under noise or latency RPSI-SAC is nowhere worse than FM-SAC",
          _duels(map(task_label, DISTURBED), "RPSI-SAC", "FM-SAC", "not worse", "300 thousand")),
    Claim("the same four", "and significantly better on two",
          _duels(map(task_label, DISTURBED), "RPSI-SAC", "FM-SAC", "better", "300 thousand"), enough=2),
)
# fmt: on
"""What the paper's text says of its figures; and what this library set out to show."""


# ---------------------------------------------------------------------------------------------------------------------
# The verdict
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What the results say of a duel. Where one side is missing, so are its numbers."""

    duel: Duel
    verdict: Verdict
    challenger: Curve | None
    rival: Curve | None
    iterations: int = 0
    """Over how many the two are compared."""
    values: tuple[np.ndarray, np.ndarray] = (np.zeros(0), np.zeros(0))
    """Of the measure: the challenger's runs, and the rival's."""
    p: float = np.nan
    p_holm: float = np.nan

    @property
    def enough(self) -> bool:
        """Whether there are as many runs as it takes."""
        return min(map(len, self.values)) >= FEWEST


@dataclass(frozen=True)
class Judged:
    """A claim, and what became of it."""

    claim: Claim
    verdict: Verdict
    outcomes: tuple[Outcome, ...]


def judge(claims: Sequence[Claim], found: Found, select: bool = False) -> list[Judged]:
    """The verdict on claims that are read together: all their tests are corrected for each other, equal ones once."""
    met = {duel: _meet(duel, found, select) for claim in claims for duel in claim.duels}
    tests: dict[tuple[str, ...], float] = {}
    for outcome in met.values():
        if outcome.enough:
            tests[_test(outcome)] = outcome.p
    corrected = dict(zip(tests, statistics.holm(np.array(list(tests.values()), float)).tolist(), strict=True))
    decided = {
        duel: dataclasses.replace(o, p_holm=p, verdict=decide(duel.expected, *o.values, p))
        for duel, o in met.items()
        for p in [corrected.get(_test(o), np.nan)]
    }
    judged = []
    for claim in claims:
        outcomes = tuple(decided[duel] for duel in claim.duels)
        judged.append(Judged(claim, _all_told([o.verdict for o in outcomes], claim.enough), outcomes))
    return judged


def _all_told(verdicts: Sequence[Verdict], enough: int | None) -> Verdict:
    """Of a claim, by those of its duels: in their order from the best, the one that as many as it takes have."""
    return sorted(verdicts, key=VERDICTS.index)[(enough or len(verdicts)) - 1]


def decide(expected: Expected, challenger: np.ndarray, rival: np.ndarray, p_holm: float) -> Verdict:
    """Of one duel, by the values of its runs and the corrected p of their Welch test."""
    if min(len(challenger), len(rival)) < FEWEST:
        return "undecided"
    above = bool(np.mean(challenger) >= np.mean(rival))
    low, high = statistics.welch_interval(challenger, rival)
    margin, significant = MARGIN * abs(float(np.mean(rival))), p_holm < LEVEL
    if expected == "better":
        holds, refuted = significant and above, (significant and not above) or high < margin
    elif expected == "not worse":
        refuted = significant and not above
        holds = not refuted and (above or low > -margin)
    else:
        refuted = significant
        holds = not refuted and low > -margin and high < margin
    return "holds" if holds else "does not hold" if refuted else "undecided"


def _meet(duel: Duel, found: Found, select: bool) -> Outcome:
    challenger, rival = found.best(duel.task, duel.challengers, select), found.curve(duel.task, duel.rival, select)
    if challenger is None or rival is None:
        return Outcome(duel, "undecided", challenger, rival)
    length = min(challenger.iterations, rival.iterations)
    ours, theirs = (_values(curve, duel.measure, length) for curve in (challenger, rival))
    theirs = duel.times * theirs
    return Outcome(duel, "undecided", challenger, rival, length, (ours, theirs), statistics.welch(ours, theirs).p)


def _values(curve: Curve, measure: Measure, length: int) -> np.ndarray:
    if measure == "auc" or measure == "final":
        return metric_values([run.cut(length) for run in curve.runs], measure)
    values = np.array([statistics.return_at(AT_STEPS[measure], run.steps, run.returns) for run in curve.runs])
    return values[np.isfinite(values)]


def _test(outcome: Outcome) -> tuple[str, ...]:
    """What makes two duels the same test."""
    labels = (curve.label if curve else "" for curve in (outcome.challenger, outcome.rival))
    return outcome.duel.task, outcome.duel.measure, str(outcome.duel.times), *labels
