"""Direct inference against the Kalman filter that knows the system, and what a refit must not change."""

from __future__ import annotations

from functools import cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.systems import kalman_predictions, linear_gaussian, simulate_linear_gaussian

from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode, split
from rpsp.data.linalg import NormalEquations
from rpsp.data.scaling import fit_scaling
from rpsp.data.windows import flat
from rpsp.errors import DivergedError, UsageError
from rpsp.filters.base import compiled_unroll, one_step_error, predictions
from rpsp.filters.inference import Bumps, Inference, InferenceFilter, _choose, fit_inference, refit_inference


@pytest.mark.parametrize(("latent", "obs", "act", "seed"), [(2, 1, 1, 0), (4, 2, 1, 1), (6, 2, 2, 2)])
def test_within_two_percent_of_the_kalman_filter(latent, obs, act, seed):
    """200 episodes × 100 steps: one-step error at most 1.02 times that of the filter that knows the parameters."""
    rng = np.random.default_rng(seed)
    system = linear_gaussian(latent, obs, act, rng)
    recorded, test = (simulate_linear_gaussian(system, 200, 100, rng) for _ in range(2))
    scaling = fit_scaling(np.concatenate([e.observations for e in recorded]))

    def packed(episodes: list[Episode]) -> Batch:
        return pack([Episode(scaling.encode(e.observations), e.actions) for e in episodes])

    kept, held = split(recorded, 0.2, rng=rng)
    # Fewer bumps than by default, for speed: the system is linear. benchmarks/kalman.py measures the default.
    filter = fit_inference(packed(kept), packed(held), Inference(bumps=40), rng=rng)
    actual = np.stack([e.observations[1:] for e in test])
    exact = np.mean(((np.stack(kalman_predictions(system, test)) - actual) / scaling.scale) ** 2)
    persistence = np.mean(((np.stack([e.observations[:-1] for e in test]) - actual) / scaling.scale) ** 2)
    error = one_step_error(filter, packed(test))
    assert error <= 1.02 * exact
    assert error > 0.98 * exact  # nothing beats the exact filter: if it does, the test looks ahead
    assert error < 0.9 * persistence


def test_young_beliefs_are_near_the_kalman_filter_too():
    """The second to fifth step of an episode: stage 1 on [h, h/t] left a third of the error, on [h, h/t, h/t²] a twelfth."""
    rng = np.random.default_rng([5, 2, 10])
    system = linear_gaussian(5, 2, 1, rng)
    recorded, test = (simulate_linear_gaussian(system, 200, 100, rng) for _ in range(2))
    filter = fit_inference(pack(recorded[:160]), pack(recorded[160:]), Inference(bumps=40), rng=rng)
    young = [Episode(e.observations[:6], e.actions[:5]) for e in test]
    rows = pack(young, row_length=5)
    predicted = np.asarray(predictions(filter, compiled_unroll(filter, rows), jnp.asarray(rows.actions)))
    exact = np.stack(kalman_predictions(system, young))
    error = np.mean((exact - rows.observations)[:, 1:] ** 2)
    assert np.mean((predicted - exact)[:, 1:] ** 2) < 0.2 * error


SMALL = Inference(past=4, future=3, bumps=30, rounds=3)


@cache
def data(seed: int = 0) -> tuple[Batch, Batch]:
    """To fit on and to choose by: one system of three latent dimensions, two readings, one input."""
    system = linear_gaussian(3, 2, 1, np.random.default_rng(0))
    episodes = simulate_linear_gaussian(system, 80, 40, np.random.default_rng(seed + 1))
    return pack(episodes[:60]), pack(episodes[60:])


@cache
def fitted(seed: int = 0) -> InferenceFilter:
    return fit_inference(*data(), SMALL, rng=np.random.default_rng(seed))


def test_same_seed_same_filter():
    again = fit_inference(*data(), SMALL, rng=np.random.default_rng(0))
    assert eqx.tree_equal(again, fitted(0))
    other = fit_inference(*data(), SMALL, rng=np.random.default_rng(1))
    assert not eqx.tree_equal(other, fitted(0))


def test_refit_keeps_what_a_state_means():
    """μ and P bit for bit; and a coordinate still predicts the same thing: old and new states are nearly one."""
    filter, fresh = fitted(), data(seed=5)
    refit = refit_inference(filter, *fresh, SMALL, rng=np.random.default_rng(3))
    np.testing.assert_array_equal(refit.mean_future, filter.mean_future)
    np.testing.assert_array_equal(refit.P, filter.P)
    assert not np.array_equal(refit.W, filter.W)
    test, _ = data(seed=9)
    old, new = (flat(compiled_unroll(f, test))[flat(test.mask)] for f in (filter, refit))
    np.testing.assert_array_equal(old[:, -1], new[:, -1])  # youth
    # The futures that the states stand for. (Coordinates of little variance are mostly estimation noise: they differ.)
    old_future, new_future = (q[:, :-1] @ np.linalg.pinv(np.asarray(filter.P)) for q in (old, new))
    assert np.mean((old_future - new_future) ** 2) < 0.05 * np.mean(new_future**2)
    # The leading coordinate is the same number, not only a function of the old ones; and those tell it even better.
    variance = new[:, 0].var()
    assert np.mean((old[:, 0] - new[:, 0]) ** 2) < 0.03 * variance
    X = np.column_stack([old, np.ones(len(old))])
    residual = new[:, 0] - X @ np.linalg.lstsq(X, new[:, 0], rcond=None)[0]
    assert np.mean(residual**2) < 0.02 * variance
    assert one_step_error(refit, test) < 1.1 * one_step_error(filter, test)


def test_a_fresh_fit_on_other_data_chooses_other_coordinates():
    """The counterpart: without a refit the meaning would change."""
    other = fit_inference(*data(seed=5), SMALL, rng=np.random.default_rng(3))
    assert not np.array_equal(other.P, fitted().P)


def test_states_are_predicted_futures():
    """`meaning` undoes the coordinates, and its first step is the prediction under the null action."""
    filter, (_, held) = fitted(), data()
    states = compiled_unroll(filter, held)
    q = states[3, 20]
    future = np.asarray(filter.meaning(q))
    assert future.shape == (3, 2)
    kept = (future.reshape(-1) - np.asarray(filter.mean_future)) @ np.asarray(filter.P)
    np.testing.assert_allclose(kept, q[:-1], atol=1e-3)
    meant = np.stack([np.asarray(filter.meaning(q))[0] for q in states[:5, 25]])
    guessed = np.stack([np.asarray(filter.predict(q, jnp.zeros(1))) for q in states[:5, 25]])
    assert np.mean((meant - guessed) ** 2) < 0.05 * np.mean(guessed**2)


def test_youth_counts_the_steps():
    filter, (_, held) = fitted(), data()
    youth = np.asarray(compiled_unroll(filter, held))[..., -1]
    np.testing.assert_allclose(youth, np.broadcast_to(1 / (1 + np.arange(held.shape[1])), youth.shape), rtol=1e-5)
    assert filter.init()[-1] == 0


def test_prediction_solves_its_ridge_regression_on_reached_states():
    """With the bumps switched off: W_pred = (ΦᵀΦ + λI)⁻¹ΦᵀY for Φ = [1, z̃, y z̃] on the filter's own states."""
    batch, held = data()
    settings = Inference(past=4, future=3, bumps=5, rounds=1, bends=(1e12,), ridge=0.1)
    filter = fit_inference(batch, held, settings, rng=np.random.default_rng(0))
    q = flat(compiled_unroll(filter, batch)).astype(np.float64)
    z = np.concatenate([q[:, :-1], flat(batch.actions)], axis=1)
    z = (z - filter.phi_pred.mean) / filter.phi_pred.scale
    phi = np.concatenate([np.ones((len(z), 1)), z, q[:, -1:] * z], axis=1)
    expected = np.linalg.solve(phi.T @ phi + 0.1 * np.eye(phi.shape[1]), phi.T @ flat(batch.observations))
    np.testing.assert_allclose(filter.W_pred[: phi.shape[1]], expected, atol=2e-3)
    np.testing.assert_allclose(filter.W_pred[phi.shape[1] :], 0, atol=1e-6)


def test_bumps_by_hand():
    bumps = Bumps(mean=np.array([1.0]), scale=np.array([2.0]), centres=np.array([[0.0, 3.0]]))
    z = (5.0 - 1) / 2
    expected = [1, z, 0.5 * z, np.exp(-(z**2) / 2), np.exp(-((z - 3) ** 2) / 2)]
    np.testing.assert_allclose(bumps(np.array([0.5]), np.array([5.0])), expected)
    assert bumps.size == 5
    np.testing.assert_array_equal(bumps.penalties(0.1, (7.0, 8.0)), [[0.1, 0.1, 0.1, 7, 7], [0.1, 0.1, 0.1, 8, 8]])
    far = bumps(np.array([0.5]), np.array([1e4]))
    np.testing.assert_allclose(far[3:], 0, atol=1e-12)  # far from all data only the linear part is left


def test_states_are_clipped():
    filter, (batch, _) = fitted(), data()
    wild = eqx.tree_at(lambda b: b.previous_observations, batch, 1e4 * batch.previous_observations)
    states = np.asarray(compiled_unroll(filter, wild))[..., :-1]
    assert np.isfinite(states).all()
    assert (np.abs(states) <= np.asarray(filter.bound)).all()


def test_one_episode_is_enough():
    system = linear_gaussian(2, 1, 1, np.random.default_rng(0))
    recorded = simulate_linear_gaussian(system, 1, 400, np.random.default_rng(1))
    kept, held = split(recorded, 0.2, rng=np.random.default_rng(0))
    filter = fit_inference(pack(kept), pack(held), SMALL, rng=np.random.default_rng(0))
    test = pack(simulate_linear_gaussian(system, 20, 50, np.random.default_rng(2)))
    persistence = np.mean((test.previous_observations - test.observations) ** 2)
    assert one_step_error(filter, test) < 0.9 * persistence


def test_readings_and_actions_that_never_change():
    rng = np.random.default_rng(0)
    system = linear_gaussian(2, 1, 1, rng)

    def with_constants(e: Episode) -> Episode:
        ones = np.ones((len(e) + 1, 1))
        return Episode(np.hstack([e.observations, 5 * ones, 0 * ones]), np.hstack([e.actions, 2 * ones[1:]]))

    batch = pack([with_constants(e) for e in simulate_linear_gaussian(system, 30, 30, rng)])
    filter = fit_inference(batch, batch, SMALL, rng=rng)
    states = compiled_unroll(filter, batch)
    assert np.isfinite(states).all()
    for q, a in ((states[0, 0], batch.actions[0, 0]), (states[3, 20], batch.actions[3, 20])):
        np.testing.assert_allclose(filter.predict(q, jnp.asarray(a))[1:], [5, 0], atol=0.02)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_nothing_ever_changes(value):
    batch = pack([Episode(np.full((16, 2), value), np.zeros((15, 1))) for _ in range(3)])
    filter = fit_inference(batch, batch, SMALL, rng=np.random.default_rng(0))
    assert one_step_error(filter, batch) < 1e-4


def test_too_short_for_any_window():
    short = pack([Episode(np.zeros((3, 1)), np.zeros((2, 1)))])
    with pytest.raises(UsageError, match=r"longest has 2 steps.*needs 4.*future=1"):
        fit_inference(short, short, SMALL, rng=np.random.default_rng(0))


def test_too_many_readings_for_a_regression():
    rng = np.random.default_rng(0)
    batch = pack([Episode(rng.standard_normal((8, 1000)), rng.standard_normal((7, 1))) for _ in range(3)])
    with pytest.raises(UsageError, match=r"1000 numbers with past=10 make 30\d\d\d inputs.*observe fewer"):
        fit_inference(batch, batch, Inference(past=10, future=2), rng=rng)


def test_a_diverged_candidate_never_wins():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((20, 2)), rng.standard_normal((20, 1))
    equations = NormalEquations(2, 1).add(X, Y)
    penalties = [np.full(2, x) for x in (1e-3, 1.0, 10.0)]
    errors = iter([np.nan, 2.0, np.inf])
    W, error = _choose(equations, penalties, lambda _: next(errors))
    assert error == 2.0
    np.testing.assert_array_equal(W, equations.solve(penalties[1]))


def test_divergence_is_said_and_not_returned():
    """A held-out episode on which nothing is finite: a sentence with a remedy, exit code 4."""
    batch, held = data()
    broken = eqx.tree_at(lambda b: b.previous_observations, held, np.full_like(held.previous_observations, np.nan))
    with pytest.raises(DivergedError, match="dimension below") as caught:
        fit_inference(batch, broken, SMALL, rng=np.random.default_rng(0))
    assert caught.value.exit_code == 4
