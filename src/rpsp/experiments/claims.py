"""Claims as data, and the verdict of the results on each: holds, does not hold, undecided.

A claim consists of one or more duels. A duel compares, on one task, the best of some curves with a rival, by the area
under the curve or another measure. It needs three runs on either side. The test is Welch's, with p-values adjusted by
Holm's method over the duels of all claims that are judged together (the paper's, or ours). The 95 % confidence interval
of the difference is not adjusted. A difference below 5 % of the rival's value counts as no difference:

    better      holds if the challenger is significantly better; does not hold if it is significantly worse, or if the
                interval excludes an advantage of 5 %
    not worse   does not hold if the challenger is significantly worse; holds if its mean is at least the rival's, or if
                the interval excludes a disadvantage of 5 %
    alike       does not hold if the two differ significantly; holds if the interval excludes a difference of 5 %

Everything else is undecided. A claim holds if all its duels hold, or as many as it requires. It does not hold if this
has become impossible.
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
"""Ordered from best to worst."""
LEVEL, MARGIN, FEWEST = 0.05, 0.05, 3
"""Significance level; smallest relevant difference as a fraction of the rival's value; fewest runs on either side."""


@dataclass(frozen=True)
class Duel:
    """A comparison of the best of some curves with a rival, on a task."""

    task: str
    challengers: tuple[str, ...]
    rival: str
    expected: Expected = "better"
    measure: Measure = "auc"
    times: float = 1.0
    """Factor by which the rival's values are multiplied."""


@dataclass(frozen=True)
class Claim:
    """A claim in our words, and its source."""

    where: str
    text: str
    duels: tuple[Duel, ...]
    enough: int | None = None
    """Number of duels that must hold. Default: all."""


# ---------------------------------------------------------------------------------------------------------------------
# The claims
# ---------------------------------------------------------------------------------------------------------------------

CART_POLE, SWIMMER, HOPPER, WALKER = EVERY
NOISY = {sigma: f"{HOPPER}, obs_noise={sigma}" for sigma in (0.1, 0.2, 0.3)}
RPSP = "RPSP-VRPG", "RPSP-Alt"
PREDICTIVE = *RPSP, "RPSP-Alt, refitted", "RPSI-TRPO"
"""The methods with a predictive state and a policy of 16 hidden units."""


def _duels(
    tasks: Iterable[str],
    challengers: str | tuple[str, ...],
    rivals: str | tuple[str, ...],
    expected: Expected = "better",
    measure: Measure = "auc",
    times: float = 1.0,
) -> tuple[Duel, ...]:
    """Return a duel for each task and rival."""
    challengers, rivals = ((names,) if isinstance(names, str) else names for names in (challengers, rivals))
    return tuple(Duel(task, challengers, rival, expected, measure, times) for task in tasks for rival in rivals)


# fmt: off
PAPER = (
    Claim("section 7, table (h)", "the best RPSP is at least as good as FM and GRU on every task except cart-pole",
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
    Claim("section 7", "RPSP-Alt and RPSP-VRPG have the same final return",
          _duels(EVERY, "RPSP-Alt", "RPSP-VRPG", "alike", "final")),
    Claim("section 7", "RPSP-Alt learns faster than RPSP-VRPG", _duels(EVERY, "RPSP-Alt", "RPSP-VRPG")),
    Claim("section 6, appendix", "joint optimisation learns faster if the policy also sees the observation",
          _duels(EVERY, "rpsp-vrpg+obs", "rpsp-vrpg")),
    Claim("section 6, appendix", "alternating optimisation learns faster if the policy also sees the observation",
          _duels(EVERY, "rpsp-alt+obs", "rpsp-alt")),
    Claim("section 7, figure (e)", "initialisation by two-stage regression helps: a random filter is worse",
          _duels([HOPPER], "rpsp-alt", "random-psr")),
    Claim("section 7, figure (e)", "training the filter end to end helps: a fixed one is worse",
          _duels([HOPPER], "rpsp-alt", "fix-psr")),
    Claim("section 7, figure (e)", "the prediction error in the loss helps: without it RPSP is worse",
          _duels([HOPPER], "rpsp-alt", "reactive-psr")),
    Claim("section 7, figures (f, g)", "RPSP is better than a GRU, whether or not the GRU is trained to predict",
          _duels((HOPPER, SWIMMER), "RPSP-Alt", ("GRU", "reg_GRU"))),
    Claim("section 7, noise", "under mild noise RPSP is clearly better than FM 2",
          _duels([NOISY[0.1]], "RPSP-Alt", "fm2")),
    Claim("section 7, noise", "under heavy noise RPSP and FM 2 do not differ",
          _duels([NOISY[0.3]], "RPSP-Alt", "fm2", "alike")),
    Claim("appendix", "the best finite memory has two observations, on Hopper one",
          (*_duels((WALKER, SWIMMER, CART_POLE), "fm2", ("fm1", "fm5"), "not worse"),
           *_duels([HOPPER], "fm1", ("fm2", "fm5"), "not worse"))),
)
OURS = (
    Claim("Hopper, Walker2d", "a predictive state has the largest area of all on-policy methods with 16-unit policies, "
          "and is significantly better than GRU",
          (*_duels((HOPPER, WALKER), PREDICTIVE, "GRU"),
           *_duels((HOPPER, WALKER), PREDICTIVE, ("FM", "reg_GRU"), "not worse"))),
    Claim("Hopper, noise 0.1", "a predictive state is significantly better than FM 2, FM 5 and GRU",
          _duels([NOISY[0.1]], ("RPSP-Alt", "RPSI-TRPO"), ("fm2", "fm5", "GRU"))),
    Claim("all four tasks", "the best predictive state is not significantly worse than FM or GRU on any task",
          _duels(EVERY, PREDICTIVE, ("FM", "GRU"), "not worse")),
    Claim("Hopper, Walker2d", "RPSI-PPO's return at one million steps is at least RecurrentPPO's",
          _duels((HOPPER, WALKER), "RPSI-PPO", "RecurrentPPO", "not worse", "million")),
    Claim("HalfCheetah, Ant", "RPSI-PPO's return at one million steps is at least RecurrentPPO's",
          _duels(map(task_label, FURTHER), "RPSI-PPO", "RecurrentPPO", "not worse", "million")),
    Claim("Hopper, Walker2d, HalfCheetah, Ant",
          "RPSI-SAC has twice RecurrentPPO's return at 300 000 steps on three tasks",
          _duels(map(task_label, LOCOMOTION), "RPSI-SAC", "RecurrentPPO", "not worse", "300 thousand", 2.0), enough=3),
    Claim("the same four", "RPSI-SAC is not worse than FM-SAC on any task",
          _duels(map(task_label, LOCOMOTION), "RPSI-SAC", "FM-SAC", "not worse", "300 thousand")),
    Claim("the same four", "under noise or latency RPSI-SAC is not worse than FM-SAC in any case",
          _duels(map(task_label, DISTURBED), "RPSI-SAC", "FM-SAC", "not worse", "300 thousand")),
    Claim("the same four", "under noise or latency RPSI-SAC is significantly better than FM-SAC in two of eight cases",
          _duels(map(task_label, DISTURBED), "RPSI-SAC", "FM-SAC", "better", "300 thousand"), enough=2),
)
# fmt: on
"""Claims of the paper's text about its figures (`PAPER`), and claims of this library (`OURS`)."""


# ---------------------------------------------------------------------------------------------------------------------
# The verdict
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The result of a duel. If one side has no runs, its values are empty."""

    duel: Duel
    verdict: Verdict
    challenger: Curve | None
    rival: Curve | None
    iterations: int = 0
    """Number of iterations over which the two are compared."""
    values: tuple[np.ndarray, np.ndarray] = (np.zeros(0), np.zeros(0))
    """Values of the measure: the challenger's runs, and the rival's."""
    p: float = np.nan
    p_holm: float = np.nan

    @property
    def enough(self) -> bool:
        """Whether both sides have enough runs."""
        return min(map(len, self.values)) >= FEWEST


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict, and the outcomes of its duels."""

    claim: Claim
    verdict: Verdict
    outcomes: tuple[Outcome, ...]


def judge(claims: Sequence[Claim], found: Found, select: bool = False) -> list[Judged]:
    """Judge claims together. The p-values of all their tests are adjusted for each other; identical tests count once.

    Args:
        claims: the claims.
        found: the results.
        select: whether to select each curve from all its candidates.
    """
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
    """Combine the verdicts of a claim's duels: the worst verdict among the best `enough` of them."""
    return sorted(verdicts, key=VERDICTS.index)[(enough or len(verdicts)) - 1]


def decide(expected: Expected, challenger: np.ndarray, rival: np.ndarray, p_holm: float) -> Verdict:
    """Return the verdict of one duel.

    Args:
        expected: what the claim says about the challenger.
        challenger: values of the challenger's runs.
        rival: values of the rival's runs.
        p_holm: adjusted p-value of Welch's test.
    """
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
    """Compare the two sides of a duel, without a verdict."""
    challenger, rival = found.best(duel.task, duel.challengers, select), found.curve(duel.task, duel.rival, select)
    if challenger is None or rival is None:
        return Outcome(duel, "undecided", challenger, rival)
    length = min(challenger.iterations, rival.iterations)
    ours, theirs = (_values(curve, duel.measure, length) for curve in (challenger, rival))
    theirs = duel.times * theirs
    return Outcome(duel, "undecided", challenger, rival, length, (ours, theirs), statistics.welch(ours, theirs).p)


def _values(curve: Curve, measure: Measure, length: int) -> np.ndarray:
    """Return the measure of each run. Runs that are too short are left out."""
    if measure == "auc" or measure == "final":
        return metric_values([run.cut(length) for run in curve.runs], measure)
    values = np.array([statistics.return_at(AT_STEPS[measure], run.steps, run.returns) for run in curve.runs])
    return values[np.isfinite(values)]


def _test(outcome: Outcome) -> tuple[str, ...]:
    """Return a key that is equal for duels with the same test."""
    labels = (curve.label if curve else "" for curve in (outcome.challenger, outcome.rival))
    return outcome.duel.task, outcome.duel.measure, str(outcome.duel.times), *labels
