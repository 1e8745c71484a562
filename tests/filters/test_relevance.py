"""Which sensors carry something: closed forms, known systems, and what a filter without some sensors does."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from benchmarks.systems import linear_gaussian, simulate_linear_gaussian

from rpsp.data.batches import pack
from rpsp.data.episodes import Episode
from rpsp.data.linalg import ridge
from rpsp.data.windows import flat
from rpsp.filters.base import compiled_predictions, compiled_unroll
from rpsp.filters.inference import IGNORED, Inference, fit_inference, refit_inference
from rpsp.filters.relevance import RIDGES, _inputs_of, _sums, relevant_sensors, seeing_only, spread_out

SETTINGS = Inference(past=4, future=3, bumps=30, rounds=3)


def recorded(count=60, steps=40, seed=0):
    system = linear_gaussian(3, 2, 1, np.random.default_rng(0))
    return simulate_linear_gaussian(system, count, steps, np.random.default_rng(seed + 1))


def beside(episodes, make, seed=5):
    """The episodes with more sensors: `make(rng, episode)` returns their columns."""
    rng = np.random.default_rng(seed)
    return [replace(e, observations=np.hstack([e.observations, make(rng, e)])) for e in episodes]


def noise(count):
    return lambda rng, e: rng.standard_normal((len(e.observations), count))


def parts(episodes):
    held = len(episodes) // 4
    return pack(episodes[held:]), pack(episodes[:held])


def test_errors_and_gains_are_those_of_ridge_regressions_done_from_scratch():
    """Sums of squares give the held-out error, and the block formula the weights with one more sensor."""
    train, held = parts(beside(recorded(12, 20), noise(2)))
    past, obs, act = 3, 4, 1
    mean = flat(train.observations)[flat(train.mask)].mean(axis=0, dtype=np.float64)

    def table(batch):
        rows = []
        for row in range(batch.shape[0]):
            for t in np.flatnonzero(batch.mask[row]):
                start = max(s for s in np.flatnonzero(batch.starts[row]) if s <= t)
                lags = [max(start, t - lag) for lag in (2, 1, 0)]
                h = [*batch.previous_observations[row, lags].ravel(), *batch.previous_actions[row, lags].ravel()]
                h += [min(t - start + 1, past) / past, *(batch.previous_observations[row, t] - mean) ** 2]
                rows.append((np.array([*h, *batch.actions[row, t], 1.0]), batch.observations[row, t] - mean))
        return tuple(np.array(x, np.float64) for x in zip(*rows, strict=True))

    (X, Y), (held_X, held_Y) = table(train), table(held)
    sums, held_sums = _sums(train, past, mean), _sums(held, past, mean)
    np.testing.assert_allclose(sums.equations.XtX, X.T @ X, rtol=1e-5, atol=1e-5)
    inputs = _inputs_of(obs, act, past)
    np.testing.assert_array_equal(inputs(np.array([1])), [1, 5, 9, 3 * 5 + 1 + 1])
    columns = np.setdiff1d(np.arange(X.shape[1]), inputs(np.array([3])))
    W = ridge(X[:, columns], Y, RIDGES[0] * len(X))
    expected = np.mean((held_X[:, columns] @ W - held_Y) ** 2, axis=0)
    np.testing.assert_allclose(held_sums.errors(W, columns, np.full(4, True)), expected, rtol=1e-4)


def test_noise_carries_nothing_and_the_sensors_of_the_system_do():
    kept = relevant_sensors(*parts(beside(recorded(), noise(10))), past=4)
    np.testing.assert_array_equal(kept, np.arange(12) < 2)
    few = relevant_sensors(*parts(beside(recorded(12, 20), noise(10))), past=4)
    assert few[:2].all() and not few.all()


def test_a_random_sensor_that_predicts_another_is_kept():
    """Both are white: one is the other a step later, so one is predictable and the other one is its cause."""

    def make(rng, e):
        cause = rng.standard_normal((len(e.observations), 2))
        return np.column_stack([cause, np.insert(cause[:-1, 0], 0, 0.0)])

    np.testing.assert_array_equal(
        relevant_sensors(*parts(beside(recorded(), make)), past=4), [True, True, True, False, True]
    )


def test_a_square_counts_and_so_does_a_copy():
    def make(rng, e):
        cause = rng.standard_normal(len(e.observations))
        return np.column_stack([cause, np.insert(cause[:-1] ** 2, 0, 1.0), e.observations[:, 0]])

    assert relevant_sensors(*parts(beside(recorded(), make)), past=4).all()


def test_what_the_data_cannot_tell_is_kept():
    rare = beside(recorded(), lambda rng, e: np.zeros((len(e.observations), 1)))
    rare[-1].observations[7, 2] = 1.0  # an event that the held-out episodes do not contain
    assert relevant_sensors(*parts(rare), past=4).all()
    nothing = [replace(e, observations=np.random.default_rng(i).normal(size=(41, 3))) for i, e in enumerate(recorded())]
    assert relevant_sensors(*parts(nothing), past=4).all()


def test_with_many_sensors_the_history_is_shortened(monkeypatch):
    monkeypatch.setattr("rpsp.filters.relevance.MOST_INPUTS", 30)
    kept = relevant_sensors(*parts(beside(recorded(), noise(4))), past=50)
    np.testing.assert_array_equal(kept, [True, True, False, False, False, False])


def test_entries_of_other_sensors_are_filled_in():
    kept = np.array([True, False, True])
    np.testing.assert_array_equal(spread_out(np.array([1.0, 2.0]), kept, 9.0), [1, 9, 2])
    np.testing.assert_array_equal(spread_out(np.ones((2, 2)), kept, axis=1), [[1, 0, 1]] * 2)


def test_a_filter_with_useless_sensors_is_the_one_without_them():
    """Bit for bit in the states; it predicts the mean of what it ignores, and no reading of it changes anything."""
    train, held = parts(beside(recorded(), noise(10)))
    own = np.arange(12) < 2
    rng = np.random.default_rng
    alone = fit_inference(seeing_only(train, own), seeing_only(held, own), SETTINGS, rng=rng(0))
    filter = fit_inference(train, held, SETTINGS, rng=rng(0))
    np.testing.assert_array_equal(filter.used, own)
    np.testing.assert_array_equal(alone.used, [1, 1])
    states = compiled_unroll(filter, held)
    np.testing.assert_allclose(states, compiled_unroll(alone, seeing_only(held, own)), atol=1e-5)
    predicted = np.asarray(compiled_predictions(filter, held))[held.mask]
    np.testing.assert_allclose(
        predicted[:, :2], compiled_predictions(alone, seeing_only(held, own))[held.mask], atol=1e-5
    )
    means = train.observations[train.mask][:, 2:].mean(axis=0)
    np.testing.assert_allclose(predicted[:, 2:], np.broadcast_to(means, predicted[:, 2:].shape), atol=1e-5)
    other = replace(held, previous_observations=held.previous_observations + 100 * ~own)
    np.testing.assert_array_equal(compiled_unroll(filter, other), states)
    future = np.asarray(filter.meaning(states[3, 20]))
    np.testing.assert_allclose(future[:, 2:], np.broadcast_to(means, (3, 10)), atol=1e-5)
    everything = fit_inference(train, held, replace(SETTINGS, ignore_useless=False), rng=rng(0))
    assert np.asarray(everything.used).all() and everything.phi.scale.max() < IGNORED


def test_without_useless_sensors_nothing_changes():
    train, held = parts(recorded())
    one, other = (
        fit_inference(train, held, replace(SETTINGS, ignore_useless=choice), rng=np.random.default_rng(0))
        for choice in (True, False)
    )
    np.testing.assert_array_equal(one.W, other.W)


def test_a_refit_uses_a_sensor_that_has_come_to_carry_something_and_keeps_the_coordinates():
    train, held = parts(beside(recorded(), noise(2)))
    filter = fit_inference(train, held, SETTINGS, rng=np.random.default_rng(0))

    def make(rng, e):  # the first of the two has become a noisy copy of the second reading of the system
        return np.column_stack([e.observations[:, 1] + 0.1 * rng.normal(size=len(e.observations)), noise(1)(rng, e)])

    fresh = parts(beside(recorded(seed=3), make))
    refit = refit_inference(filter, *fresh, SETTINGS, rng=np.random.default_rng(1))
    np.testing.assert_array_equal(filter.used, [1, 1, 0, 0])
    np.testing.assert_array_equal(refit.used, [1, 1, 1, 0])
    np.testing.assert_array_equal(refit.P, filter.P)
    np.testing.assert_array_equal(refit.mean_future, filter.mean_future)
    states = compiled_unroll(refit, fresh[1])
    assert np.isfinite(states).all()
    q, a = states[0, 5], jnp.asarray(fresh[1].actions[0, 5])
    assert refit.predict(q, a).shape == (4,)
    one = [Episode(e.observations[:, :2], e.actions) for e in recorded()]
    assert fit_inference(*parts(one), SETTINGS, rng=np.random.default_rng(0)).size == filter.size
