"""The obvious alternatives predict what they say, and autoregression's state is the windows' history."""

from __future__ import annotations

import numpy as np
from benchmarks.systems import linear_gaussian, simulate_linear_gaussian

from rpsp.data.batches import pack
from rpsp.data.episodes import Episode
from rpsp.data.windows import flat, histories
from rpsp.filters.base import compiled_unroll, one_step_error
from rpsp.filters.evaluation import Forecasts, forecasts, normalised_errors, r_squared
from rpsp.filters.rivals import fit_autoregression, mean_prediction, persistence


def _batch(seed=0, lengths=(30, 12, 25)):
    rng = np.random.default_rng(seed)
    system = linear_gaussian(3, 2, 1, np.random.default_rng(7))
    return pack([simulate_linear_gaussian(system, 1, n, rng)[0] for n in lengths])


def test_autoregressions_state_is_the_history():
    batch = _batch()
    filter = fit_autoregression(batch, batch, past=4, rng=np.random.default_rng(0))
    states = flat(compiled_unroll(filter, batch))
    for steps, history in histories(batch, 4):
        np.testing.assert_allclose(states[steps], history, atol=1e-6)


def test_autoregression_recovers_a_linear_law_exactly():
    """o_t = 0.5 o_{t-1} − 0.2 o_{t-2} + 0.3 a_t without noise: two steps of history are all it needs."""
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(20):
        actions, observations = rng.standard_normal((40, 1)), [rng.standard_normal(1)] * 2  # o_0 as its own past
        for a in actions:
            observations.append(0.5 * observations[-1] - 0.2 * observations[-2] + 0.3 * a)
        episodes.append(Episode(np.stack(observations[1:]), actions))
    batch = pack(episodes)
    filter = fit_autoregression(batch, batch, past=2, ridges=(1e-8,), rng=rng)
    assert normalised_errors(forecasts(filter, batch, 5))[-1] < 1e-9
    bent = fit_autoregression(batch, batch, past=2, frequencies=20, rng=rng)
    assert one_step_error(bent, batch) < 1e-4


def test_persistence_and_mean():
    batch = _batch()
    mask, observations = np.asarray(batch.mask), np.asarray(batch.observations)
    still = one_step_error(persistence(2, 1), batch)
    assert np.isclose(still, np.mean((observations - batch.previous_observations)[mask] ** 2), rtol=1e-5)
    assert np.isclose(one_step_error(mean_prediction(batch), batch), observations[mask].var(axis=0).mean(), rtol=1e-5)


def test_forecasts_align_with_the_truth():
    """Persistence 3 steps ahead is wrong by exactly o_{t+2} − o_{t-1}."""
    batch = _batch(lengths=(30,))
    found = forecasts(persistence(2, 1), batch, 3)
    seen, later = np.asarray(batch.previous_observations)[0], np.asarray(batch.observations)[0]
    np.testing.assert_allclose(found.predicted[:, 2], seen[:28], rtol=1e-6)
    np.testing.assert_array_equal(found.actual[:, 2], later[2:])


def test_r_squared_conventions():
    truth = np.array([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])[:, None]
    assert r_squared(Forecasts(truth, truth)) == 1.0
    assert r_squared(Forecasts(truth + np.array([0.0, 1.0]), truth)) == 0.5  # a constant sensor missed counts 0
    mean = np.broadcast_to(truth.mean(axis=0), truth.shape)
    assert np.isclose(r_squared(Forecasts(np.asarray(mean), truth)), 0.5)  # 0 for the first, 1 for the constant one
    np.testing.assert_allclose(normalised_errors(Forecasts(np.asarray(mean), truth)), 1.0)
