"""Refinement may only help, moves nothing that is constant, and its segments carry the very states of the whole."""

from __future__ import annotations

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.systems import linear_gaussian, simulate_linear_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.filters.base import (
    AbstractFilter,
    compiled_unroll,
    one_step_error,
    prediction_loss,
    random_like,
    trainable,
    unroll,
)
from rpsp.filters.inference import Inference, fit_inference
from rpsp.filters.memory import GRU, observation_window
from rpsp.filters.refinement import (
    RefinementSettings,
    _held_out_error,
    _initial_states,
    _segments,
    horizon_loss,
    refine,
    with_futures,
)
from rpsp.filters.two_stage import KernelBayes, fit_two_stage

QUICK = RefinementSettings(epochs=3, truncate=12, minibatch=4, learning_rate=1e-2)


@cache
def data() -> tuple[Batch, Batch]:
    """Episodes of several lengths, so that rows are shared and filler exists."""
    rng = np.random.default_rng(0)
    system = linear_gaussian(2, 2, 1, rng)
    whole = simulate_linear_gaussian(system, 24, 40, rng)
    episodes = [
        Episode(e.observations[: n + 1], e.actions[:n]) for e, n in zip(whole, [40, 27, 9, 18] * 6, strict=True)
    ]
    train, held = pack(episodes[:16], row_length=50), pack(episodes[16:], row_length=50)
    assert not train.mask.all() and not held.mask.all()
    return train, held


@cache
def kernel_bayes() -> AbstractFilter:
    chosen = KernelBayes(past=4, future=3, dimension=5, history_dimension=15, frequencies=30)
    return fit_two_stage(data()[0], chosen, rng=np.random.default_rng(0))


@cache
def inference() -> AbstractFilter:
    chosen = Inference(past=4, future=2, bumps=10, rounds=2)
    return fit_inference(*data(), chosen, rng=np.random.default_rng(0))


FILTERS = {
    "kernel-bayes": kernel_bayes,
    "random kernel-bayes": cache(lambda: random_like(kernel_bayes(), key=jax.random.key(0))),
    "inference": inference,
    "gru": cache(lambda: GRU(6, 2, 1, key=jax.random.key(0))),
    "window": cache(lambda: observation_window(2, 2, 1)),
}
every_filter = pytest.mark.parametrize("name", FILTERS)


def held_out_error(filter: AbstractFilter) -> float:
    return float(_held_out_error(filter, with_futures(filter, data()[1])))


@every_filter
def test_refined_is_never_worse_and_constants_stay(name):
    filter = FILTERS[name]()
    refined, errors, best = refine(filter, *data(), QUICK, key=jax.random.key(0))
    assert len(errors) == QUICK.epochs + 1
    assert errors[0] == pytest.approx(held_out_error(filter), rel=1e-5)
    assert best == int(np.argmin(errors))
    assert held_out_error(refined) == pytest.approx(min(errors), rel=1e-4)
    assert min(errors) <= errors[0]
    which = trainable(filter)
    before, after = (eqx.partition(f, which) for f in (filter, refined))
    for x, y in zip(jax.tree.leaves(before[1]), jax.tree.leaves(after[1]), strict=True):
        np.testing.assert_array_equal(x, y)
    moved = [not np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (before[0], after[0])), strict=True)]
    assert any(moved) == (best > 0)


@pytest.mark.parametrize("name", ["random kernel-bayes", "gru", "window"])
def test_refinement_helps_what_was_never_fitted(name):
    filter = FILTERS[name]()
    refined = refine(filter, *data(), QUICK, key=jax.random.key(0))
    assert refined.best_epoch > 0
    assert refined.errors[refined.best_epoch] < 0.98 * refined.errors[0]


@pytest.mark.parametrize("name", ["kernel-bayes", "inference", "gru"])
def test_an_absurd_learning_rate_does_no_harm(name):
    filter = FILTERS[name]()
    absurd = RefinementSettings(epochs=3, truncate=12, minibatch=4, learning_rate=1e3)
    refined = refine(filter, *data(), absurd, key=jax.random.key(0))
    assert held_out_error(refined.filter) <= held_out_error(filter) * (1 + 1e-6)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(eqx.filter(refined.filter, eqx.is_inexact_array)))


def spoiled(batch: Batch, value: float) -> Batch:
    """The same batch with this value wherever there is no step."""

    def fill(x: np.ndarray) -> np.ndarray:
        here = batch.mask.reshape(*batch.shape, *[1] * (x.ndim - 2))
        return np.where(here, x, value).astype(np.float32) if x.dtype == np.float32 else x

    return jax.tree.map(fill, batch)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["kernel-bayes", "gru"])
def test_what_filler_holds_does_not_matter(name, value):
    filter = FILTERS[name]()
    train, held = (spoiled(batch, value) for batch in data())
    clean = refine(filter, *data(), QUICK, key=jax.random.key(0))
    dirty = refine(filter, train, held, QUICK, key=jax.random.key(0))
    np.testing.assert_allclose(dirty.errors, clean.errors, rtol=1e-4)
    assert dirty.best_epoch == clean.best_epoch


def test_no_epochs_returns_what_was_given():
    filter = FILTERS["gru"]()
    refined = refine(filter, *data(), RefinementSettings(epochs=0), key=jax.random.key(0))
    assert refined.filter is filter and len(refined.errors) == 1 and refined.best_epoch == 0


def test_same_key_same_filter():
    runs = [refine(FILTERS["gru"](), *data(), QUICK, key=jax.random.key(k)) for k in (0, 0, 1)]
    assert eqx.tree_equal(runs[0].filter, runs[1].filter)
    assert not eqx.tree_equal(runs[0].filter, runs[2].filter)


@pytest.mark.parametrize("length", [1, 7, 25, 50, 80])
def test_truncated_states_are_the_same_numbers(length):
    """Cut into segments that start from the whole's own states, a batch has the states it had in one piece."""
    filter, (batch, _) = FILTERS["gru"](), data()
    whole = np.asarray(compiled_unroll(filter, batch))
    segments, _ = _segments((batch, None), length)
    initial = jnp.asarray(_initial_states(filter, batch, length))
    assert len(initial) == segments.shape[0]
    pieces = np.asarray(unroll(filter, segments, initial)).reshape(batch.shape[0], -1, filter.size)
    np.testing.assert_allclose(pieces[:, : batch.shape[1]], whole, rtol=1e-5, atol=1e-6)


@given(st.integers(1, 5), st.integers(1, 20), st.integers(1, 25))
@settings(max_examples=30)
def test_segments_hold_every_entry_once(rows, time, length):
    o = np.arange(1.0, rows * (time + 1) + 1).reshape(rows, time + 1, 1)
    batch = pack([Episode(x, np.ones((time, 1))) for x in o])
    cut, _ = _segments((batch, None), length)
    assert cut.shape == (rows * -(-time // length), length)
    np.testing.assert_array_equal(
        cut.previous_observations[cut.mask], batch.previous_observations[batch.mask]
    )  # in order, and only what was there
    np.testing.assert_array_equal(cut.previous_observations[~cut.mask], 0)
    assert cut.starts.sum() == rows


def test_initial_states_are_those_before_each_segment():
    """Spelled out for a window of one reading, whose state is the reading itself: o_{t-1} before step t."""
    filter = observation_window(1, 1, 1)
    o = np.arange(11.0)[:, None] + 1
    batch = pack([Episode(o, np.zeros((10, 1)))])
    # States of steps 0 … 9 are o_0 … o_9 = 1 … 10; before segments at steps 0, 4 and 8 stand q_0 and those of 3 and 7.
    np.testing.assert_array_equal(_initial_states(filter, batch, 4)[:, 0], [0, 4, 8])
    np.testing.assert_array_equal(_initial_states(filter, batch, 5)[:, 0], [0, 5])
    np.testing.assert_array_equal(_initial_states(filter, batch, 20)[:, 0], [0])


def test_prediction_loss_by_hand():
    """Summed over dimensions, averaged over real steps: persistence on known readings."""
    filter = observation_window(1, 2, 1)
    episodes = [
        Episode(np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 3.0]]), np.zeros((2, 1))),  # squares 1 and 9
        Episode(np.array([[0.0, 0.0], [2.0, 2.0]]), np.zeros((1, 1))),  # 8
    ]
    batch = pack(episodes, row_length=2)
    assert float(prediction_loss(filter, unroll(filter, batch), batch)) == pytest.approx((1 + 9 + 8) / 3)


def test_horizon_loss_equals_a_loop():
    filter, (batch, _) = FILTERS["kernel-bayes"](), data()
    states = compiled_unroll(filter, batch)
    _, futures = with_futures(filter, batch)
    k = filter.future_length
    ahead = eqx.filter_jit(lambda q, a: filter.predict_horizon(q, a))
    squares = []
    for row in range(2):
        for t in range(batch.shape[1]):
            inside = batch.mask[row, t : t + k].all() and not batch.starts[row, t + 1 : t + k].any()
            inside = inside and t + k <= batch.shape[1]
            assert futures.mask[row, t] == inside
            if inside:
                guess = ahead(states[row, t], jnp.asarray(batch.actions[row, t : t + k]))
                squares.append(np.sum((np.asarray(guess) - batch.observations[row, t : t + k]) ** 2) / k)
    two = jax.tree.map(lambda x: x[:2], futures)
    assert float(horizon_loss(filter, states[:2], two)) == pytest.approx(np.mean(squares), rel=1e-4)


def test_refinement_lowers_the_one_step_error_too():
    filter = FILTERS["random kernel-bayes"]()
    refined = refine(filter, *data(), QUICK, key=jax.random.key(0)).filter
    assert one_step_error(refined, data()[1]) < one_step_error(filter, data()[1])
