"""Claims are decided as the page says they are, by the same rule for and against them."""

from __future__ import annotations

import itertools
import typing

import numpy as np
import pytest
from made_up import made_up_result
from scipy import stats

from rpsp.envs.tasks import TASKS
from rpsp.experiments import claims
from rpsp.experiments.claims import LEVEL, OURS, PAPER, Claim, Duel, PValues, decide, judge, p_values
from rpsp.experiments.paper import (
    EQUAL,
    EXPERIMENTS,
    PEERS,
    PROTOCOLS,
    Found,
    candidates,
    label_of,
    labels_of,
    task_labels,
)
from rpsp.experiments.results import Result

SPREAD = np.array([-1.0, -0.4, 0.1, 0.3, 1.0])
"""What the seeds of a made-up method differ by."""
EXPECTED = typing.get_args(claims.Expected)


# ---------------------------------------------------------------------------------------------------------------------
# One duel
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "lead", "spread", "verdict"),
    [
        ("better", 30, 1, "holds"),
        ("better", 30, 60, "undecided"),
        ("better", -30, 1, "does not hold"),
        ("better", 0.5, 1, "does not hold"),  # at most a few percent
        ("better", 1, 30, "undecided"),
        ("not worse", 30, 1, "holds"),
        ("not worse", 30, 60, "undecided"),  # a higher mean alone is no evidence
        ("not worse", -0.5, 1, "holds"),  # at most a few percent
        ("not worse", -1, 30, "undecided"),
        ("not worse", -30, 1, "does not hold"),
        ("alike", 0, 1, "holds"),
        ("alike", 0, 30, "undecided"),
        ("alike", 30, 1, "does not hold"),
        ("alike", -30, 1, "does not hold"),
        # certain, and smaller than the margin: the test without the margin decides
        ("better", 3, 0.1, "holds"),
        ("not worse", -3, 0.1, "does not hold"),
        ("alike", 3, 0.1, "does not hold"),
        ("alike", -3, 0.1, "does not hold"),
    ],
)
def test_a_duel_is_decided_by_two_tests(expected: claims.Expected, lead: float, spread: float, verdict: str) -> None:
    rival = 100 + spread * SPREAD
    assert decide(expected, p_values(expected, rival + lead, rival)) == verdict


@pytest.mark.parametrize("mean", [100.0, -100.0])
def test_the_p_values_are_scipys(mean: float) -> None:
    """The margin is 5 % of the rival's absolute mean."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(mean + 1, 3, 6), rng.normal(mean, 5, 8)
    margin = 0.05 * abs(b.mean())

    def p(by: float, alternative: str) -> float:
        """Test a against b + by."""
        return stats.ttest_ind(a, b + by, equal_var=False, alternative=alternative).pvalue

    assert p_values("better", a, b) == pytest.approx((p(0, "greater"), p(margin, "less")))
    assert p_values("not worse", a, b) == pytest.approx((p(-margin, "greater"), p(0, "less")))
    tost = max(p(-margin, "greater"), p(margin, "less"))
    assert p_values("alike", a, b) == pytest.approx((tost, p(0, "two-sided")))


def test_two_one_sided_tests_by_hand() -> None:
    """Means of 102 and 100, variances of 1 and three values each: t = (2 ± 5) / √(2/3) with 4 degrees of freedom.

    With 4 degrees of freedom P(T > t) = 1/2 - u (3 - u²) / 4 with u = t / √(4 + t²).
    """
    a, b = np.array([101.0, 102.0, 103.0]), np.array([99.0, 100.0, 101.0])

    def beyond(t: float) -> float:
        u = t / np.sqrt(4 + t**2)
        return 0.5 - u * (3 - u**2) / 4

    low, high = (beyond(distance / np.sqrt(2 / 3)) for distance in (2 + 5, 5 - 2))
    assert low < high
    assert p_values("alike", a, b).holds == pytest.approx(high)
    assert p_values("alike", a, b).refuted == pytest.approx(2 * beyond(2 / np.sqrt(2 / 3)))


def test_the_two_directions_mirror_each_other() -> None:
    """Around zero and with a rival of the same absolute mean, what holds for one side is what does not for the other."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        a, b = rng.normal(0, 3, 5), rng.normal(0, 3, 7)
        a, b = a - a.mean() + 50, b - b.mean() - 50  # the same margin on either side
        better, not_worse = p_values("better", a, b), p_values("not worse", b, a)
        assert better == pytest.approx((not_worse.refuted, not_worse.holds))
        assert p_values("alike", a, b) == pytest.approx(p_values("alike", b, a))


@pytest.mark.parametrize("expected", EXPECTED)
def test_both_directions_have_the_same_level_and_neither_is_favoured(expected: claims.Expected) -> None:
    significant, other = LEVEL - 1e-9, LEVEL
    assert decide(expected, PValues(significant, other)) == "holds"
    assert decide(expected, PValues(other, significant)) == "does not hold"
    assert decide(expected, PValues(other, other)) == decide(expected, PValues()) == "undecided"
    both = decide(expected, PValues(significant, significant))
    assert both == ("holds" if expected == "better" else "does not hold")


@pytest.mark.parametrize("expected", EXPECTED)
def test_wrong_verdicts_are_rare_in_both_directions(expected: claims.Expected) -> None:
    """At the edge of each hypothesis: equal means, and means that differ by the margin."""
    rng = np.random.default_rng(2)
    wrong = {"holds": 0, "does not hold": 0}
    edges = {"better": (100, 105), "not worse": (95, 100), "alike": (105, 100)}[expected]
    for (verdict, mean), _ in itertools.product(zip(wrong, edges, strict=True), range(2000)):
        challenger, rival = rng.normal(mean, 4, 6), rng.normal(100, 4, 6)
        wrong[verdict] += decide(expected, p_values(expected, challenger, rival)) == verdict
    assert all(count / 2000 < LEVEL + 0.015 for count in wrong.values()), wrong  # three standard errors


# ---------------------------------------------------------------------------------------------------------------------
# Claims
# ---------------------------------------------------------------------------------------------------------------------


def runs(method: str, level: float, seeds: int = 5, iterations: int = 20, task: str = "Hopper-v5") -> list[Result]:
    return [made_up_result(task, method, s, np.full(iterations, level + SPREAD[s])) for s in range(seeds)]


CLAIM = Claim("nowhere", "one beats two", (Duel("Hopper-v5", ("fm2", "fm5"), ("gru32",)),))


def claim(challenger: str, rival: str, expected: claims.Expected = "better", **more: typing.Any) -> Claim:
    return Claim("", "", (Duel("Hopper-v5", (challenger,), (rival,), expected, **more),))


def test_the_best_challenger_speaks_and_curves_of_different_length_are_cut() -> None:
    found = Found([*runs("fm2", 90), *runs("fm5", 120, iterations=30), *runs("gru32", 100, iterations=40)])
    (judged,) = judge([CLAIM], found)
    (outcome,) = judged.outcomes
    assert judged.verdict == "holds"
    assert outcome.challenger and outcome.rival and (outcome.challenger.label, outcome.rival.label) == ("fm5", "gru32")
    assert outcome.iterations == 30
    ours, theirs = 30 * (120 + SPREAD), 30 * (100 + SPREAD)
    np.testing.assert_allclose(np.sort(outcome.values[0]), ours)
    assert outcome.p == pytest.approx(p_values("better", ours, theirs))
    np.testing.assert_allclose(outcome.p_holm, [2 * outcome.p.holds, 1])  # the only two tests


def test_of_several_rivals_the_best_one_counts_and_all_must_be_there() -> None:
    duel = Claim("", "", (Duel("Hopper-v5", ("fm5",), ("gru32", "gru64")),))
    for level, verdict in ((150, "holds"), (125, "does not hold")):
        results = [*runs("fm5", level), *runs("gru32", 100), *runs("gru64", 130)]
        (judged,) = judge([duel], Found(results))
        rival = judged.outcomes[0].rival
        assert judged.verdict == verdict and rival and rival.label == "gru64"
    (judged,) = judge([duel], Found([*runs("fm5", 150), *runs("gru32", 100)]))
    assert judged.verdict == "undecided"
    assert judged.outcomes[0].untested == "there is no finished run of gru64"


def test_what_is_not_there_is_undecided() -> None:
    for results, absent in (
        (runs("fm2", 120), "gru32"),
        (runs("gru32", 100), "fm2 or fm5"),
        ([], "fm2 or fm5 or of gru32"),
    ):
        (judged,) = judge([CLAIM], Found(results))
        (outcome,) = judged.outcomes
        assert judged.verdict == "undecided" and np.isnan(outcome.p_holm).all()
        assert outcome.untested == f"there is no finished run of {absent}"


@pytest.mark.parametrize("expected", EXPECTED)
@pytest.mark.parametrize("seeds", [1, 2])
def test_with_fewer_than_three_seeds_nothing_is_decided(expected: claims.Expected, seeds: int) -> None:
    results = [*runs("fm2", 200, seeds=seeds), *runs("gru32", 100)]
    for (judged,) in (judge([claim(*pair, expected)], Found(results)) for pair in (("fm2", "gru32"), ("gru32", "fm2"))):
        assert judged.verdict == "undecided" and np.isnan(judged.outcomes[0].p).all()
        assert "runs, and 3 are needed" in judged.outcomes[0].untested


def test_both_tests_of_all_duels_are_adjusted_together_and_equal_ones_count_once() -> None:
    found = Found([*runs("fm2", 103), *runs("fm5", 102.5), *runs("gru32", 100), *runs("gru64", 101)])
    every = [claim("fm2", "gru32"), claim("fm5", "gru32", "not worse"), claim("fm2", "gru64", "alike")]
    outcomes = [judged.outcomes[0] for judged in judge([*every, every[0]], found)]
    p = np.array([outcome.p for outcome in outcomes[:3]])
    order = np.argsort(p, axis=None)
    expected = np.minimum(1, np.maximum.accumulate(np.sort(p, axis=None) * [6, 5, 4, 3, 2, 1]))
    np.testing.assert_allclose(np.array([o.p_holm for o in outcomes[:3]]).ravel()[order], expected)
    assert outcomes[3] == outcomes[0]


def test_the_same_comparison_is_tested_anew_for_another_expectation() -> None:
    found = Found([*runs("fm2", 103), *runs("gru32", 100)])
    one, two = judge([claim("fm2", "gru32"), claim("fm2", "gru32", "not worse")], found)
    assert one.outcomes[0].p_holm.holds == pytest.approx(3 * one.outcomes[0].p.holds)  # of four tests the second
    assert two.outcomes[0].p_holm.holds == pytest.approx(4 * two.outcomes[0].p.holds)


def test_what_lacks_seeds_is_not_counted_among_the_tests() -> None:
    found = Found([*runs("fm2", 103), *runs("gru32", 100), *runs("gru64", 90, seeds=2)])
    one, two = claim("fm2", "gru32"), claim("fm2", "gru64")
    (alone,), (both, few) = judge([one], found), judge([one, two], found)
    assert both.outcomes[0].p_holm == alone.outcomes[0].p_holm
    assert few.verdict == "undecided" and np.isnan(few.outcomes[0].p_holm).all()


def test_a_certain_but_small_difference_is_marked() -> None:
    results = [*runs("fm2", 1040), *runs("gru32", 1000), *runs("gru64", 900)]
    small, large = judge([claim("fm2", "gru32"), claim("fm2", "gru64")], Found(results))
    assert small.verdict == large.verdict == "holds"
    assert small.outcomes[0].small and not large.outcomes[0].small


def test_final_returns_are_compared_at_the_papers_length_only() -> None:
    full = TASKS["Hopper-v5"].iterations
    short = [*runs("fm2", 100, iterations=150), *runs("gru32", 100, iterations=full)]
    ends = claim("fm2", "gru32", "alike", measure="final")
    (judged,) = judge([ends], Found(short))
    assert judged.verdict == "undecided"
    assert judged.outcomes[0].untested == "they have 0 and 5 runs of the paper's 500 iterations, and 3 are needed"
    assert judge([claim("fm2", "gru32", "alike")], Found(short))[0].verdict == "holds"  # areas are compared

    late = [
        made_up_result("Hopper-v5", "fm2", 5 + s, np.append(np.full(full, 100 + SPREAD[s]), np.zeros(20)))
        for s in range(5)
    ]
    (judged,) = judge([ends], Found([*short, *late]))  # what is longer is cut, what is shorter does not count
    assert judged.verdict == "holds" and len(judged.outcomes[0].values[0]) == 5
    np.testing.assert_allclose(judged.outcomes[0].values[0], 100 + SPREAD)

    cart_pole = [run for m in ("fm2", "gru32") for run in runs(m, 100, iterations=200, task="InvertedPendulum-v5")]
    duel = Duel("InvertedPendulum-v5", ("fm2",), ("gru32",), "alike", "final")
    assert judge([Claim("", "", (duel,))], Found(cart_pole))[0].verdict == "holds"


def test_a_claim_holds_if_all_its_duels_do_and_does_not_if_one_does_not() -> None:
    found = Found([*runs("fm2", 120), *runs("gru32", 100), *runs("gru64", 140)])
    beats, loses, unknown = (Duel("Hopper-v5", ("fm2",), (rival,)) for rival in ("gru32", "gru64", "gru128"))
    for duels, verdict in (
        ((beats,), "holds"),
        ((beats, unknown), "undecided"),
        ((beats, loses), "does not hold"),
        ((unknown, loses), "does not hold"),
    ):
        assert judge([Claim("", "", duels)], found)[0].verdict == verdict
    for duels, verdict in (
        ((beats, loses), "holds"),
        ((unknown, loses), "undecided"),
        ((loses, loses), "does not hold"),
    ):
        assert judge([Claim("", "", duels, enough=1)], found)[0].verdict == verdict


def test_a_rival_may_be_held_to_a_multiple() -> None:
    found = Found([*runs("fm2", 120), *runs("gru32", 50), *runs("gru64", 100)])
    twice = [claim("fm2", rival, "not worse", times=2.0) for rival in ("gru32", "gru64")]
    assert [judge([one], found)[0].verdict for one in twice] == ["holds", "does not hold"]


def test_returns_at_a_million_steps_are_compared_by_steps() -> None:
    """One has steps of 10 000 an iteration, the other of 5 000; both are judged by the last 100 000 of a million."""

    def rising(method: str, each: int, gain: float, total: int = 1_200_000) -> list[Result]:
        steps = np.arange(each, total + 1, each, dtype=float)
        return [made_up_result("Hopper-v5", method, s, gain * steps / 1e6 + 0.01 * s, steps=steps) for s in range(3)]

    duel = Duel("Hopper-v5", ("RPSI-PPO",), ("RecurrentPPO",), "not worse", "million")
    found = Found([*rising("rpsi-ppo", 10_000, 100), *rising("recurrent-ppo", 5_000, 100)])
    values = judge([Claim("", "", (duel,))], found)[0].outcomes[0].values
    np.testing.assert_allclose([v[0] for v in values], [95.5, 95.25])
    found = Found([*rising("rpsi-ppo", 10_000, 100), *rising("recurrent-ppo", 5_000, 100, total=900_000)])
    judged = judge([Claim("", "", (duel,))], found)[0]
    assert judged.verdict == "undecided" and len(judged.outcomes[0].values[1]) == 0


def test_selection_takes_the_best_candidate_that_has_seeds_enough() -> None:
    results = [*runs("fm2", 100), *runs("fm1", 110), *runs("fm5", 120, seeds=2)]
    one, selected = (Found(results).curve("Hopper-v5", "FM", select) for select in (False, True))
    assert one and (one.label, one.candidates) == ("fm2", 1)
    assert selected and (selected.label, selected.candidates) == ("fm1", 2)


# ---------------------------------------------------------------------------------------------------------------------
# Protocols
# ---------------------------------------------------------------------------------------------------------------------


def test_under_a_protocol_the_same_claim_is_about_other_runs() -> None:
    """Of other methods, and on other tasks: the authors' Hopper has another reward."""
    noisy = "Hopper-v5, obs_noise=0.1"
    hoppers, noisy_hoppers = (
        {task, Found([], PROTOCOLS["authors"]).task(task)} for task in ("Hopper-v5", noisy)
    )  # of both protocols
    assert len(hoppers) == len(noisy_hoppers) == 2
    results = [*runs("fm2", 120)]
    for task in hoppers:
        results += [
            run
            for m, level in (("rpsp-alt+obs", 100), ("fm5-vrpg", 60), ("fm2-vrpg", 50))
            for run in runs(m, level, task=task)
        ]
    for task in noisy_hoppers:
        results += [*runs("rpsp-alt+obs", 100, task=task), *runs("fm2-vrpg", 50, task=task)]
    against_fm = claim("RPSP-Alt", "FM"), Claim("", "", (Duel(noisy, ("RPSP-Alt",), ("fm2",)),))
    equal, authors = (judge(against_fm, Found(results, protocol)) for protocol in (EQUAL, PROTOCOLS["authors"]))
    assert [one.verdict for one in equal] == ["does not hold", "undecided"]
    assert [one.verdict for one in authors] == ["holds", "holds"]
    rivals = [one.outcomes[0].rival for one in authors]
    assert [(r.name, r.label) for r in rivals if r] == [("FM", "fm5-vrpg"), ("fm2-vrpg", "fm2-vrpg")]
    assert authors[1].outcomes[0].names == ("RPSP-Alt", "fm2-vrpg")
    assert {r.runs[0].task for r in rivals if r} == {*hoppers, *noisy_hoppers} - {"Hopper-v5", noisy}


def test_each_protocol_is_a_family_of_its_own() -> None:
    """Results that only one protocol uses do not change the p-values under the other."""
    task = "Walker2d-v5"  # the same under both
    kernel = [*runs("rpsp-alt+obs", 103, task=task), *runs("gru32", 100, task=task)]
    reinforced = runs("fm2-vrpg", 50, task=task)
    asked = [Claim("", "", (Duel(task, ("RPSP-Alt",), (rival,)),)) for rival in ("GRU", "FM")]
    before, after = (judge(asked, Found([*kernel, *more]))[0].outcomes[0] for more in ([], reinforced))
    assert (before.p, before.p_holm) == (after.p, after.p_holm)
    both = judge(asked, Found([*kernel, *reinforced], PROTOCOLS["authors"]))[0].outcomes[0]
    assert both.p == before.p and both.p_holm.holds > before.p_holm.holds


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_claim_asks_for_runs_that_some_experiment_has(name: str) -> None:
    protocol, nothing = PROTOCOLS[name], Found([], PROTOCOLS[name])
    planned = {
        (task, label)
        for experiment in EXPERIMENTS.values()
        for task in task_labels(experiment, protocol)
        for label in (
            *(label_of(entry) for entries in candidates(experiment, protocol).values() for entry in entries),
            *(PEERS[peer] for peer in experiment.peers),
        )
    }
    asked = [
        (nothing.task(duel.task), labels_of(protocol.curves.get(curve, curve))[0])
        for c in (*PAPER, *(OURS if protocol is EQUAL else ()))
        for duel in c.duels
        for curve in (*duel.challengers, *duel.rivals)
    ]
    assert [pair for pair in asked if pair not in planned] == []


def test_final_returns_are_asked_on_tasks_with_a_length_in_the_paper() -> None:
    asked = {duel.task.partition(",")[0] for c in (*PAPER, *OURS) for duel in c.duels if duel.measure == "final"}
    assert asked == {*TASKS}
