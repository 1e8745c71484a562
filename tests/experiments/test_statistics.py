"""Statistics against scipy, hand-computed cases and known distributions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rpsp.experiments import statistics as s

PAIRS = [(3, 3), (10, 10), (4, 17), (2, 40)]


def draws(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(100 * n + m)
    return rng.normal(1.0, 2.0, n), rng.normal(0.0, 0.5, m)


def test_area_and_final_return_by_hand():
    returns = np.array([[1.0, 2.0, 3.0, 6.0], [0.0, 0.0, 0.0, -4.0]])
    np.testing.assert_array_equal(s.area_under_curve(returns), [12.0, -4.0])
    np.testing.assert_array_equal(s.final_return(returns, last=2), [4.5, -2.0])
    np.testing.assert_array_equal(s.final_return(returns), [3.0, -1.0])  # fewer than ten: all of them
    np.testing.assert_array_equal(s.final_return(np.arange(30.0)), 24.5)


def test_mean_and_standard_error_are_scipys():
    values = np.random.default_rng(0).normal(size=(7, 3))
    mean, error = s.mean_and_error(values)
    np.testing.assert_allclose(mean, values.mean(axis=0))
    np.testing.assert_allclose(error, stats.sem(values, axis=0))
    mean, error = s.mean_and_error(values[:1])
    np.testing.assert_array_equal(mean, values[0])
    assert np.isnan(error).all()


@pytest.mark.parametrize("n", range(1, 14))
def test_iqm_is_scipys_trimmed_mean(n):
    values = np.random.default_rng(n).standard_cauchy(size=(5, n))
    np.testing.assert_allclose(s.iqm(values), stats.trim_mean(values, 0.25, axis=1))


@pytest.mark.parametrize(("n", "m"), PAIRS)
def test_welch_is_scipys(n, m):
    x, y = draws(n, m)
    ours, theirs = s.welch(x, y), stats.ttest_ind(x, y, equal_var=False)
    np.testing.assert_allclose(ours, (theirs.statistic, theirs.df, theirs.pvalue), rtol=1e-9)


@pytest.mark.parametrize("by", [0.0, 0.7, -1.3])
@pytest.mark.parametrize(("n", "m"), PAIRS)
def test_the_one_sided_welch_test_is_scipys(n, m, by):
    x, y = draws(n, m)
    for a, b in ((x, y), (y, x)):
        theirs = stats.ttest_ind(a - by, b, equal_var=False, alternative="greater").pvalue
        assert s.welch_greater(a, b, by) == pytest.approx(theirs, rel=1e-9)
    assert s.welch_greater(x, y, by) + s.welch_greater(y, x, -by) == pytest.approx(1)  # opposite hypotheses
    assert s.welch(x, y).p == pytest.approx(2 * min(s.welch_greater(x, y), s.welch_greater(y, x)))


def test_the_one_sided_welch_test_where_nothing_varies():
    same, other = np.full(3, 200.0), np.full(4, 199.0)
    assert [s.welch_greater(same, other, by) for by in (0.0, 1.0, 2.0)] == [0.0, 0.5, 1.0]
    assert np.isnan(s.welch_greater(same[:1], other))


@pytest.mark.parametrize(("n", "m"), PAIRS)
def test_welch_s_interval_is_scipys(n, m):
    x, y = draws(n, m)
    theirs = stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.9)
    np.testing.assert_allclose(s.welch_interval(x, y, 0.9), theirs)
    np.testing.assert_allclose(s.welch_interval(x, x), [-1, 1] * np.abs(s.welch_interval(x, x)))  # around no difference
    assert np.isnan(s.welch_interval(x[:1], y)).all()
    np.testing.assert_array_equal(s.welch_interval(np.full(3, 2.0), np.full(4, 0.5)), [1.5, 1.5])


def test_the_return_at_so_many_steps_by_hand():
    steps, returns = np.array([30.0, 60.0, 91.0, 95.0, 101.0]), np.array([1.0, 2.0, 4.0, 6.0, 99.0])
    assert s.return_at(100.0, steps, returns) == 5  # those that end after 90 and up to 100
    assert np.isnan(s.return_at(102.0, steps, returns))  # not so far
    assert np.isnan(s.return_at(20.0, steps, returns))  # nothing ends there
    assert s.return_at(100.0, steps, returns, last=0.5) == 4


def test_welch_where_nothing_varies():
    same, other = np.full(3, 200.0), np.full(4, 199.0)
    assert s.welch(same, same).p == 1 and s.welch(same, same).t == 0
    assert s.welch(other, same).p == 0 and s.welch(other, same).t == -np.inf
    assert np.isnan(s.welch(same[:1], other)).all()


@pytest.mark.parametrize(("n", "m"), PAIRS)
def test_probability_of_improvement_is_mann_whitneys(n, m):
    x, y = (np.round(v) for v in draws(n, m))  # rounded, so that there are ties
    expected = stats.mannwhitneyu(x, y).statistic / (n * m)
    assert s.probability_of_improvement(x, y) == pytest.approx(expected)
    assert s.probability_of_improvement(y, x) == pytest.approx(1 - expected)


def test_holm_by_hand():
    # Sorted: 0.01, 0.02, 0.03, 0.04, times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.04, the last raised to the ones before.
    corrected = s.holm(np.array([0.04, 0.01, np.nan, 0.03, 0.02]))
    np.testing.assert_allclose(corrected, [0.06, 0.04, np.nan, 0.06, 0.06])
    np.testing.assert_array_equal(s.holm(np.array([0.9, 0.8])), [1.0, 1.0])
    assert s.holm(np.array([])).shape == (0,)


def test_holm_keeps_the_family_wise_error():
    p = np.random.default_rng(0).uniform(size=(4000, 6))  # six tests of nothing
    wrong = np.mean([(s.holm(row) < 0.05).any() for row in p])
    assert wrong == pytest.approx(0.05, abs=0.01)  # three standard errors


def test_samples_to_reach():
    steps, returns = np.array([10.0, 20, 30, 40, 50]), np.array([0.0, 5, 1, 5, 6])
    assert s.samples_to_reach(5.0, steps, returns) == 20
    assert s.samples_to_reach(5.0, steps, returns, window=2) == 50  # the mean of 5 and 6 is the first not below 5
    assert np.isnan(s.samples_to_reach(7.0, steps, returns))
    assert np.isnan(s.samples_to_reach(0.0, steps[:2], returns[:2], window=3))


def test_bootstrap_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = []
    for i in range(400):  # two tasks of different heights: their spread must not count as spread of runs
        strata = [rng.normal(0.0, 1.0, 40), rng.normal(100.0, 1.0, 40)]
        low, high = s.bootstrap_interval(strata, lambda v: v.mean(axis=-1), resamples=500, seed=i)
        covered.append(low < 50 < high)
        assert high - low < 1.0
    assert np.mean(covered) == pytest.approx(0.95, abs=0.035)  # three standard errors


def test_bootstrap_is_seeded_and_knows_when_there_is_nothing_to_resample():
    values = [np.array([1.0, 2.0, 4.0])]
    assert s.bootstrap_interval(values) == s.bootstrap_interval(values)
    assert s.bootstrap_interval(values, resamples=50) != s.bootstrap_interval(values, resamples=50, seed=1)
    assert np.isnan(s.bootstrap_interval([np.array([1.0])])).all()
    # Of two values the smallest mean of two draws is the lower, in a quarter of all draws.
    assert s.bootstrap_interval([np.array([0.0, 1.0])], lambda v: v.mean(axis=-1)) == (0.0, 1.0)


def test_selection_is_by_mean_area():
    curves = {
        "a": np.array([[1.0, 9.0], [1.0, 1.0]]),
        "b": np.array([[4.0, 3.0]]),
        "c": np.array([[9.0, 0.0], [0.0, 0.0]]),
    }
    assert s.select_best(curves) == ("b", 3)
