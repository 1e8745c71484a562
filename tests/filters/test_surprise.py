"""Surprise against closed forms, false alarms at the stated rate, sensors that fail, and gating."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.systems import linear_gaussian, simulate_linear_gaussian
from scipy.stats import chi2

from rpsp.data.episodes import Episode
from rpsp.errors import UsageError
from rpsp.experiments.figures import calibration, surprise
from rpsp.experiments.models import PredictiveStateModel
from rpsp.filters.small_solves import cholesky, forward, solve
from rpsp.filters.surprise import innovation, recent
from rpsp.filters.uncertainty import TAILS, Forecast, gaussian_surprises, observed_factor


@cache
def fitted() -> tuple[PredictiveStateModel, list[Episode]]:
    rng = np.random.default_rng(1)
    system = linear_gaussian(3, 2, 1, rng)
    fit, test = (simulate_linear_gaussian(system, 100, 60, rng) for _ in range(2))
    return PredictiveStateModel(bumps=5, rounds=1, past=5, future=3).fit(fit), test


@pytest.mark.parametrize("seen", [(0, 1, 2), (0, 2), (1,), ()])
@pytest.mark.parametrize("size", [0.5, 3.0, 12.0])
def test_levels_are_those_of_chi_squared(seen: tuple[int, ...], size: float) -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    covariance, mean, e = root @ root.T + np.eye(3), rng.normal(size=3), size * rng.normal(size=3)
    o = np.full(3, np.nan)
    o[list(seen)] = (mean + e)[list(seen)]
    found = innovation(Forecast(jnp.asarray(mean)[None], jnp.asarray(covariance)[None]), jnp.asarray(o))
    if not seen:
        assert np.isnan(found.level) and np.isnan(found.z).all()
        return
    part, x = covariance[np.ix_(seen, seen)], e[list(seen)]
    exact = -chi2.logsf(x @ np.linalg.solve(part, x), len(seen))
    assert float(found.level) == pytest.approx(exact, rel=0.02)  # for large ones, the leading term
    np.testing.assert_allclose(np.asarray(found.z)[list(seen)], x / np.sqrt(np.diag(part)), rtol=1e-4)


@pytest.mark.parametrize("n", [1, 3, 12])
def test_small_solves_are_those_of_lapack(n: int) -> None:
    rng = np.random.default_rng(n)
    root = rng.normal(size=(n, n))
    A, b, B = root @ root.T + np.eye(n), rng.normal(size=n), rng.normal(size=(n, 4))
    L = np.linalg.cholesky(A)
    found = cholesky(jnp.asarray(A))
    np.testing.assert_allclose(found, L, atol=1e-4)  # float32 and double
    np.testing.assert_allclose(forward(found, jnp.asarray(b)), np.linalg.solve(L, b), atol=1e-3)
    for right in (b, B):
        np.testing.assert_allclose(solve(found, jnp.asarray(right)), np.linalg.solve(A, right), atol=1e-3)


def test_steps_of_filters_call_no_lapack() -> None:
    """Two of jaxlib's batched kernels in one program can wait for each other forever on two cores."""
    covariance, seen = jnp.eye(3), jnp.ones(3, bool)

    def several(covariance, observation):
        found = innovation(Forecast(jnp.zeros((1, 3)), covariance[None]), observation)
        return found.level + observed_factor(covariance, seen)[1].sum()

    text = jax.jit(jax.vmap(several)).lower(covariance[None], jnp.ones((1, 3))).as_text()
    assert "lapack" not in text and "cholesky" not in text and "triangular_solve" not in text


def test_levels_of_gaussian_innovations_are_exponential() -> None:
    np.testing.assert_allclose(gaussian_surprises()[0], -np.log(TAILS), rtol=1e-5)
    rng = np.random.default_rng(0)
    means = rng.exponential(size=(200_000, 10)).mean(axis=1)
    np.testing.assert_allclose(np.quantile(means, 1 - np.array(TAILS[:10])), gaussian_surprises()[1, :10], rtol=0.02)


def test_means_over_the_last_readings() -> None:
    levels = np.array([1.0, 2.0, np.nan, 4.0, np.nan, np.nan, np.nan])
    expected = [np.nan, np.nan, 1.5, 3.0, 4.0, 4.0, np.nan]
    np.testing.assert_allclose(recent(levels, 3), expected)


def test_false_alarms_come_at_the_stated_rate() -> None:
    model, test = fitted()
    found = [model.surprise(e.observations, e.actions) for e in test[:60]]
    p, last = (np.concatenate(x) for x in zip(*((s.p, s.recent) for s in found), strict=True))
    assert np.isnan(last).sum() == 9 * 60
    for level in (0.5, 0.1, 0.02):
        for values in (p, last[~np.isnan(last)]):
            assert abs((values < level).mean() - level) < 0.02 + 0.15 * level  # 12 held-out episodes to calibrate on


def test_a_sensor_that_fails_is_noticed() -> None:
    model, test = fitted()
    for fault in ("bias", "stuck"):
        alarms, wrong = [], []
        for e in test[:20]:
            o = e.observations.copy()
            o[30:, 1] = o[30:, 1] + 6 * o[:, 1].std() if fault == "bias" else o[:, 1].mean() + 5 * o[:, 1].std()
            found = model.surprise(o, e.actions)
            alarms.append(np.nanmin(found.recent[29:39]))
            wrong.append(np.abs(found.z[29]).argmax())
            assert found.still[:29].max() == 0 and found.still[-1].tolist() == [0, 30 if fault == "stuck" else 0]
        assert np.mean(np.array(alarms) < 0.01) > 0.9 and np.mean(np.array(wrong) == 1) > 0.9, fault


def test_outliers_are_left_out_by_the_gate() -> None:
    _, test = fitted()
    rng = np.random.default_rng(1)
    fit = simulate_linear_gaussian(linear_gaussian(3, 2, 1, rng), 60, 40, rng)
    plain = PredictiveStateModel(bumps=5, rounds=1, past=5, future=3, missing="nan").fit(fit)
    gated = PredictiveStateModel(bumps=5, rounds=1, past=5, future=3, missing="nan", gate=6).fit(fit)
    errors = {"plain": [], "gated": []}
    for e in test[:10]:
        spiked = e.observations.copy()
        spiked[20::15, 0] += 30 * spiked[:, 0].std()
        for name, model in (("plain", plain), ("gated", gated)):
            after = np.arange(20, 59, 15)  # predictions from the steps at which there is a spike
            errors[name].append(model.predict(spiked, e.actions)[after, 0] - e.observations[after + 1])
    assert np.mean(np.square(errors["gated"])) < 0.2 * np.mean(np.square(errors["plain"]))
    clean = [
        np.abs(gated.predict(e.observations, e.actions) - plain.predict(e.observations, e.actions)) for e in test[:3]
    ]
    assert np.mean(np.concatenate(clean) > 1e-5) < 0.05  # nearly no reading of a clean episode is an outlier


def test_coverage_is_that_of_the_intervals() -> None:
    model, test = fitted()
    levels = (0.5, 0.9)
    found = model.coverage(test[:20], levels, 3)
    assert found.shape == (3, 2) and np.abs(found - levels).max() < 0.06
    for j, level in enumerate(levels):
        inside = []
        for e in test[:20]:
            low, high = model.predict_interval(e.observations, e.actions, 3, level)
            truth = e.observations[1:][np.arange(len(low))[:, None] + np.arange(3)]
            inside.append((low <= truth) & (truth <= high))
        np.testing.assert_allclose(found[:, j], np.concatenate(inside).mean(axis=(0, 2)), atol=0.005)


def test_figures_have_what_they_claim() -> None:
    model, test = fitted()
    found = model.surprise(test[0].observations, test[0].actions)
    assert len(surprise(found, ["a", "b"]).axes) == 2
    figure = calibration([0.5, 0.9], model.coverage(test[:5], (0.5, 0.9), 2), [1, 2])
    assert len(figure.axes[0].lines) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gate": 6}, r"gate: outliers count as missing, so it needs missing='nan'"),
        ({"gate": -1.0, "missing": "nan"}, r"gate: -1.0 is not a number above 0; give standard deviations, such as 6"),
        ({"missing": "zero"}, r"missing: 'zero' is not known; give 'nan'"),
    ],
)
def test_what_is_not_understood(given: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PredictiveStateModel(**given)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5, float("nan"), "high", True])
def test_levels_outside_of_0_and_1(level: object) -> None:
    model, test = fitted()
    with pytest.raises(UsageError, match=r"level: .* is not between 0 and 1"):
        model.coverage(test[:2], (level,), 2)
    with pytest.raises(UsageError, match=r"level: .* is not between 0 and 1"):
        model.predict_interval(test[0].observations, test[0].actions, 1, level)


def test_extreme_gaps() -> None:
    """A whole step without readings, a singular covariance, and a sensor that is never seen."""
    rng = np.random.default_rng(1)
    fit = simulate_linear_gaussian(linear_gaussian(2, 1, 1, rng), 30, 40, rng)
    twice = [Episode(np.repeat(e.observations, 2, axis=1), e.actions) for e in fit]  # two sensors that are one
    model = PredictiveStateModel(bumps=5, rounds=1, past=5, future=3, missing="nan").fit(twice)
    o = twice[0].observations.copy()
    o[10:14] = np.nan
    mean, std = model.predict(o, twice[0].actions, return_std=True)
    assert np.isfinite(mean).all() and (std[12] > std[8]).all()
    never = [Episode(np.where([True, False], np.nan, e.observations), e.actions) for e in twice]
    with pytest.raises(
        UsageError, match=r"observations: column 0 is missing \(NaN\) at every step; leave the sensor out"
    ):
        PredictiveStateModel(bumps=5, rounds=1, missing="nan").fit(never)
    nothing = np.full_like(o, np.nan)
    assert np.isfinite(model.predict(nothing, twice[0].actions)).all()
