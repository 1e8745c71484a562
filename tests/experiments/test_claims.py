"""Claims are decided as the page says they are: known winners, known ties, too few seeds, nothing there."""

from __future__ import annotations

import numpy as np
import pytest
from made_up import made_up_result
from scipy import stats

from rpsp.experiments import claims
from rpsp.experiments.claims import OURS, PAPER, Claim, Duel, decide, judge
from rpsp.experiments.paper import EXPERIMENTS, Found, candidates, labels_of, task_labels
from rpsp.experiments.results import Result

SPREAD = np.array([-1.0, -0.4, 0.1, 0.3, 1.0])
"""What the seeds of a made-up method differ by."""


@pytest.mark.parametrize(
    ("expected", "lead", "spread", "p", "verdict"),
    [
        ("better", 30, 1, 0.001, "holds"),
        ("better", 30, 1, 0.2, "undecided"),  # of the test alone, as corrected; a lead of 30 is not excluded
        ("better", -30, 1, 0.001, "does not hold"),
        ("better", 1, 1, 0.3, "does not hold"),  # at most a few percent: an advantage of 5 % is excluded
        ("better", 1, 30, 0.9, "undecided"),
        ("better", 3, 0.1, 0.001, "holds"),  # small, but certain
        ("not worse", 30, 30, 0.3, "holds"),
        ("not worse", -1, 1, 0.3, "holds"),  # a disadvantage of 5 % is excluded
        ("not worse", -1, 30, 0.9, "undecided"),
        ("not worse", -30, 1, 0.001, "does not hold"),
        ("not worse", -3, 0.1, 0.001, "does not hold"),
        ("alike", 0, 1, 1.0, "holds"),
        ("alike", 0, 30, 1.0, "undecided"),
        ("alike", 30, 1, 0.001, "does not hold"),
        ("alike", -30, 1, 0.001, "does not hold"),
    ],
)
def test_a_duel_is_decided_by_test_and_margin(
    expected: claims.Expected, lead: float, spread: float, p: float, verdict: str
) -> None:
    rival = 100 + spread * SPREAD
    assert decide(expected, rival + lead, rival, p) == verdict


def test_the_margin_is_asked_of_the_95_percent_interval() -> None:
    """The rival is moved until the interval that scipy gives reaches 5 % of it: there the verdict changes."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(100, 3, 6), rng.normal(100, 3, 8)

    def reaches(lead: float) -> bool:
        interval = stats.ttest_ind(a + lead, b, equal_var=False).confidence_interval(0.95)
        return bool(interval.high >= 0.05 * b.mean())

    leads = np.linspace(-10, 10, 201)
    verdicts = [decide("better", a + lead, b, 1.0) for lead in leads]
    assert verdicts == ["undecided" if reaches(lead) else "does not hold" for lead in leads]
    assert {*verdicts} == {"undecided", "does not hold"}


@pytest.mark.parametrize("expected", ["better", "not worse", "alike"])
@pytest.mark.parametrize("seeds", [0, 1, 2])
def test_with_fewer_than_three_seeds_nothing_is_decided(expected: claims.Expected, seeds: int) -> None:
    few, many = np.full(seeds, 200.0), 100 + SPREAD
    assert decide(expected, few, many, 1e-9) == decide(expected, many, few, 1e-9) == "undecided"


def runs(method: str, level: float, seeds: int = 5, iterations: int = 20, task: str = "Hopper-v5") -> list[Result]:
    return [made_up_result(task, method, s, np.full(iterations, level + SPREAD[s])) for s in range(seeds)]


CLAIM = Claim("nowhere", "one beats two", (Duel("Hopper-v5", ("fm2", "fm5"), "gru32"),))


def test_the_best_challenger_speaks_and_curves_of_different_length_are_cut() -> None:
    found = Found([*runs("fm2", 90), *runs("fm5", 120, iterations=30), *runs("gru32", 100, iterations=40)])
    (judged,) = judge([CLAIM], found)
    (outcome,) = judged.outcomes
    assert judged.verdict == "holds"
    assert outcome.challenger and outcome.rival and (outcome.challenger.label, outcome.rival.label) == ("fm5", "gru32")
    assert outcome.iterations == 30
    ours, theirs = 30 * (120 + SPREAD), 30 * (100 + SPREAD)
    np.testing.assert_allclose(np.sort(outcome.values[0]), ours)
    assert outcome.p == pytest.approx(stats.ttest_ind(ours, theirs, equal_var=False)[1])
    assert outcome.p_holm == outcome.p  # the only test


def test_what_is_not_there_is_undecided() -> None:
    for results in (runs("fm2", 120), runs("gru32", 100), []):
        (judged,) = judge([CLAIM], Found(results))
        assert judged.verdict == "undecided" and np.isnan(judged.outcomes[0].p_holm)


def test_all_tests_are_corrected_together_and_equal_ones_count_once() -> None:
    found = Found([*runs("fm2", 103), *runs("fm5", 102.5), *runs("gru32", 100), *runs("gru64", 101)])
    duels = [
        Duel("Hopper-v5", ("fm2",), "gru32"),
        Duel("Hopper-v5", ("fm5",), "gru32"),
        Duel("Hopper-v5", ("fm2",), "gru64"),
    ]
    every = [Claim("", "", (duel,)) for duel in duels]
    outcomes = [judged.outcomes[0] for judged in judge([*every, every[0]], found)]
    p = [outcome.p for outcome in outcomes[:3]]
    order = np.argsort(p)
    expected = np.minimum(1, np.maximum.accumulate(np.sort(p) * [3, 2, 1]))
    np.testing.assert_allclose(np.array([o.p_holm for o in outcomes[:3]])[order], expected)
    assert outcomes[3].p_holm == outcomes[0].p_holm


def test_what_lacks_seeds_is_not_counted_among_the_tests() -> None:
    found = Found([*runs("fm2", 103), *runs("gru32", 100), *runs("gru64", 90, seeds=2)])
    one, two = (Claim("", "", (Duel("Hopper-v5", ("fm2",), rival),)) for rival in ("gru32", "gru64"))
    (alone,), (both, few) = judge([one], found), judge([one, two], found)
    assert both.outcomes[0].p_holm == alone.outcomes[0].p_holm == alone.outcomes[0].p
    assert few.verdict == "undecided" and np.isnan(few.outcomes[0].p_holm)


def test_a_claim_holds_if_all_its_duels_do_and_does_not_if_one_does_not() -> None:
    found = Found([*runs("fm2", 120), *runs("gru32", 100), *runs("gru64", 140)])
    beats, loses, unknown = (Duel("Hopper-v5", ("fm2",), rival) for rival in ("gru32", "gru64", "gru128"))
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
    duels = [Duel("Hopper-v5", ("fm2",), rival, "not worse", times=2.0) for rival in ("gru32", "gru64")]
    assert [judge([Claim("", "", (duel,))], found)[0].verdict for duel in duels] == ["holds", "does not hold"]


def test_returns_at_a_million_steps_are_compared_by_steps() -> None:
    """One has steps of 10 000 an iteration, the other of 5 000; both are judged by the last 100 000 of a million."""

    def rising(method: str, each: int, gain: float, total: int = 1_200_000) -> list[Result]:
        steps = np.arange(each, total + 1, each, dtype=float)
        return [made_up_result("Hopper-v5", method, s, gain * steps / 1e6 + 0.01 * s, steps=steps) for s in range(3)]

    duel = Duel("Hopper-v5", ("RPSI-PPO",), "RecurrentPPO", "not worse", "million")
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


def test_every_claim_asks_for_curves_that_some_experiment_has() -> None:
    planned = {
        (task, label)
        for experiment in EXPERIMENTS.values()
        for task in task_labels(experiment)
        for name in (*candidates(experiment), *experiment.peers)
        for label in labels_of(name)
    }
    asked = [(duel.task, name) for c in (*PAPER, *OURS) for duel in c.duels for name in (*duel.challengers, duel.rival)]
    assert [(task, name) for task, name in asked if (task, labels_of(name)[0]) not in planned] == []
