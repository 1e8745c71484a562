"""Claims as data, and the verdict of the results on each: holds, does not hold, undecided.

A claim consists of one or more duels. A duel compares, on one task, the best of some curves with the best of some rivals,
by the area under the curve or another measure. It needs three runs on either side. Two of Welch's tests decide it, one for
*holds* and one for *does not hold*, both at the same level. c and r are the two means, and m, the margin, is 5 % of the
rival's mean value:

                holds            does not hold
    better      c > r            c < r + m
    not worse   c > r - m        c < r
    alike       |c - r| < m      c ≠ r

|c - r| < m is shown by two one-sided tests: its p-value is the larger one of c > r - m and c < r + m. Everything that
neither test shows is undecided. Both can be significant, if a difference is certain and smaller than the margin. Then the
test without the margin decides, because the claims are about significant differences: *better* holds, *not worse* and
*alike* do not.

The p-values of both tests of all duels of a family are adjusted together by Holm's method. A family is what one column of
verdicts shows: the paper's claims under one protocol, or our claims. So the probability of any wrong verdict in a column,
for or against a claim, is at most 5 % (apart from the selection of candidates by the same runs). A duel that several
claims share counts once, and one that cannot be tested does not count. Groups of claims and protocols are separate
families, so that adding a claim of ours or a protocol does not change the verdicts on the paper's claims. Of the two null
hypotheses of a duel at most one is true, so the adjustment is conservative.

Final returns are compared at the paper's number of iterations. Shorter runs do not count there.

A claim holds if all its duels hold, or as many as it requires. It does not hold if this has become impossible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rpsp.envs.tasks import TASKS
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
    "final": "final return after {} iterations",
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
    """A comparison of the best of some curves with the best of some rivals, on a task."""

    task: str
    challengers: tuple[str, ...]
    rivals: tuple[str, ...]
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
KERNEL_BAYES = "RPSP-Alt, refitted", "RPSR-Alt"
"""Kernel Bayes rule on observations and on residuals, with our refits, trained by alternating optimisation."""
PREDICTIVE = *RPSP, *KERNEL_BAYES, "RPSI-TRPO"
"""The methods with a predictive state and a policy of 16 hidden units."""


def _duels(
    tasks: Iterable[str],
    challengers: str | tuple[str, ...],
    rivals: str | tuple[str | tuple[str, ...], ...],
    expected: Expected = "better",
    measure: Measure = "auc",
    times: float = 1.0,
) -> tuple[Duel, ...]:
    """Return a duel for each task and rival. A rival may be a tuple of names, of which the best one counts."""
    own = (challengers,) if isinstance(challengers, str) else challengers
    others = [(name,) if isinstance(name, str) else name for name in ((rivals,) if isinstance(rivals, str) else rivals)]
    return tuple(Duel(task, own, names, expected, measure, times) for task in tasks for names in others)


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
    Claim("all four tasks", "the best predictive state is not worse than FM or GRU on any task",
          _duels(EVERY, PREDICTIVE, ("FM", "GRU"), "not worse")),
    Claim("all four tasks", "kernel Bayes rule with refits, on observations or on residuals, is not worse than FM 2, "
          "FM 5 and GRU 32 on any task",
          _duels(EVERY, KERNEL_BAYES, ("fm2", "fm5", "gru32"), "not worse")),
    Claim("all four tasks", "kernel Bayes rule with refits, on observations or on residuals, is significantly better "
          "than the best of FM 2, FM 5 and GRU 32 on at least one task",
          _duels(EVERY, KERNEL_BAYES, (("fm2", "fm5", "gru32"),)), enough=1),
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


class PValues(NamedTuple):
    """p-values of the two tests of a duel."""

    holds: float = np.nan
    refuted: float = np.nan


NOT_TESTED = PValues()


@dataclass(frozen=True)
class Outcome:
    """The result of a duel. If one side has no runs, its values are empty."""

    duel: Duel
    task: str
    """Label of the task under the protocol."""
    names: tuple[str, str]
    """Names of the two sides under the protocol."""
    verdict: Verdict
    challenger: Curve | None
    rival: Curve | None
    iterations: int = 0
    """Number of iterations over which the two are compared."""
    values: tuple[np.ndarray, np.ndarray] = (np.zeros(0), np.zeros(0))
    """Values of the measure: the challenger's runs, and the rival's."""
    untested: str = ""
    """The reason why nothing was tested; empty if the tests were made."""
    p: PValues = NOT_TESTED
    p_holm: PValues = NOT_TESTED

    @property
    def small(self) -> bool:
        """Whether both tests are significant: the difference is certain and smaller than the margin."""
        return max(self.p_holm) < LEVEL


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict, and the outcomes of its duels."""

    claim: Claim
    verdict: Verdict
    outcomes: tuple[Outcome, ...]


def judge(claims: Sequence[Claim], found: Found, select: bool = True) -> list[Judged]:
    """Judge claims together: the p-values of all their tests are adjusted for each other.

    Args:
        claims: the claims.
        found: the results, under a protocol.
        select: whether to select each curve from all its candidates. Without, the first candidate counts.
    """
    met = {duel: _meet(duel, found, select) for claim in claims for duel in claim.duels}
    tests = {_test(outcome): outcome.p for outcome in met.values() if not outcome.untested}
    adjusted = statistics.holm(np.array([*tests.values()], float).ravel()).reshape(-1, 2)
    corrected = {test: PValues(*map(float, pair)) for test, pair in zip(tests, adjusted, strict=True)}
    decided = {
        duel: dataclasses.replace(outcome, p_holm=p, verdict=decide(duel.expected, p))
        for duel, outcome in met.items()
        for p in [NOT_TESTED if outcome.untested else corrected[_test(outcome)]]
    }
    judged = []
    for claim in claims:
        outcomes = tuple(decided[duel] for duel in claim.duels)
        judged.append(Judged(claim, _all_told([o.verdict for o in outcomes], claim.enough), outcomes))
    return judged


def _all_told(verdicts: Sequence[Verdict], enough: int | None) -> Verdict:
    """Combine the verdicts of a claim's duels: the worst verdict among the best `enough` of them."""
    return sorted(verdicts, key=VERDICTS.index)[(enough or len(verdicts)) - 1]


def p_values(expected: Expected, challenger: np.ndarray, rival: np.ndarray) -> PValues:
    """Return the p-values of the two tests of a duel, not adjusted.

    Args:
        expected: what the claim says about the challenger.
        challenger: values of the challenger's runs.
        rival: values of the rival's runs.
    """
    margin = MARGIN * abs(float(np.mean(rival)))
    above, below = statistics.welch_greater(challenger, rival), statistics.welch_greater(rival, challenger)
    not_far_below = statistics.welch_greater(challenger, rival, -margin)
    not_far_above = statistics.welch_greater(rival, challenger, -margin)
    if expected == "better":
        return PValues(above, not_far_above)
    if expected == "not worse":
        return PValues(not_far_below, below)
    return PValues(max(not_far_below, not_far_above), statistics.welch(challenger, rival).p)


def decide(expected: Expected, p: PValues) -> Verdict:
    """Return the verdict of one duel. NaN is not significant.

    Args:
        expected: what the claim says about the challenger.
        p: adjusted p-values. If both are significant, the test without the margin decides.
    """
    holds, refuted = p.holds < LEVEL, p.refuted < LEVEL
    if holds and refuted:
        return "holds" if expected == "better" else "does not hold"
    return "holds" if holds else "does not hold" if refuted else "undecided"


def _meet(duel: Duel, found: Found, select: bool) -> Outcome:
    """Compare the two sides of a duel, without a verdict."""
    challenger, rival = (found.best(duel.task, names, select) for names in (duel.challengers, duel.rivals))
    ours, theirs = (" or ".join(map(found.named, names)) for names in (duel.challengers, duel.rivals))
    met = Outcome(duel, found.task(duel.task), (ours, theirs), "undecided", challenger, rival)
    absent = [] if challenger else [ours]
    absent += [found.named(name) for name in duel.rivals if found.curve(duel.task, name, select) is None]
    if challenger is None or rival is None or absent:
        return dataclasses.replace(met, untested=f"there is no finished run of {' or of '.join(absent)}")
    length = min(challenger.iterations, rival.iterations)
    if duel.measure == "final":
        length = TASKS[duel.task.partition(",")[0]].iterations
    a, b = (_values(curve, duel.measure, length) for curve in (challenger, rival))
    values = a, duel.times * b
    reason = _too_few(duel.measure, length, len(a), len(b))
    p = NOT_TESTED if reason else p_values(duel.expected, *values)
    return dataclasses.replace(met, iterations=length, values=values, untested=reason, p=p)


def _too_few(measure: Measure, length: int, ours: int, theirs: int) -> str:
    """Return the reason why there are too few runs of a duel; empty if there are enough."""
    if min(ours, theirs) >= FEWEST:
        return ""
    far = {"auc": "", "final": f" of the paper's {length} iterations"}.get(measure, " of that length")
    return f"they have {ours} and {theirs} runs{far}, and {FEWEST} are needed"


def _values(curve: Curve, measure: Measure, length: int) -> np.ndarray:
    """Return the measure of each run. Runs that are too short are left out."""
    if measure == "auc" or measure == "final":
        runs = [run.cut(length) for run in curve.runs if len(run.returns) >= length]
        return metric_values(runs, measure) if runs else np.zeros(0)
    values = np.array([statistics.return_at(AT_STEPS[measure], run.steps, run.returns) for run in curve.runs])
    return values[np.isfinite(values)]


def _test(outcome: Outcome) -> tuple[str, ...]:
    """Return a key that is equal for duels with the same tests."""
    duel, labels = outcome.duel, (curve.label if curve else "" for curve in (outcome.challenger, outcome.rival))
    return duel.task, duel.expected, duel.measure, str(duel.times), *labels
