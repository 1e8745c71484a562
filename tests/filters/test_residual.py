"""Kernel Bayes rule on the residual of a linear filter."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from benchmarks.systems import linear_gaussian, simulate_linear_gaussian

from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.filters.base import compiled_predictions, compiled_unroll, one_step_error, trainable
from rpsp.filters.residual import ResidualFilter, ResidualKernelBayes, whitened_residuals

SETTINGS = ResidualKernelBayes(
    past=5, future=2, dimension=6, history_dimension=20, frequencies=40, linear_dimension=6, epochs=2, refit_epochs=1
)


@cache
def data() -> tuple[Batch, Batch]:
    """Episodes of a linear system with two observations and one action, several in a row."""
    rng = np.random.default_rng(0)
    system = linear_gaussian(2, 2, 1, rng)
    fit, held = (simulate_linear_gaussian(system, n, 30, rng) for n in (40, 10))
    return pack(fit, row_length=90), pack(held, row_length=90)


@cache
def fitted() -> ResidualFilter:
    filter = SETTINGS.fit(*data(), key=jax.random.key(0))
    assert isinstance(filter, ResidualFilter)
    return filter


def whitened(filter: ResidualFilter, batch: Batch) -> Batch:
    return whitened_residuals(filter.linear, np.asarray(filter.spread), batch)


def test_both_parts_reach_the_states_that_they_reach_alone() -> None:
    """The kernel Bayes filter was fitted to the residuals: it must see these very numbers when it acts."""
    filter, (_, batch) = fitted(), data()
    mask = np.asarray(batch.mask)
    x, p = (np.asarray(s)[mask] for s in filter.parts_of(compiled_unroll(filter, batch)))
    np.testing.assert_allclose(x, np.asarray(compiled_unroll(filter.linear, batch))[mask], atol=1e-5)
    alone = np.asarray(compiled_unroll(filter.residual, whitened(filter, batch)))[mask]
    # Two programs, and residuals that are differences of nearly equal numbers.
    np.testing.assert_allclose(p, alone, atol=1e-3 * np.abs(alone).max())


def test_predictions_are_the_sum_of_both() -> None:
    filter, (_, batch) = fitted(), data()
    mask = np.asarray(batch.mask)
    linear = np.asarray(compiled_predictions(filter.linear, batch))
    rest = np.asarray(compiled_predictions(filter.residual, whitened(filter, batch)))
    expected = linear + np.asarray(filter.spread) * rest
    np.testing.assert_allclose(np.asarray(compiled_predictions(filter, batch))[mask], expected[mask], atol=2e-3)


def test_it_predicts_no_worse_than_the_linear_filter_where_that_is_the_truth() -> None:
    filter, (_, held) = fitted(), data()
    assert one_step_error(filter, held) < 1.02 * one_step_error(filter.linear, held)


def test_it_predicts_what_no_linear_filter_can() -> None:
    """o_{t+1} = sin(3 o_t) + a_t: the residual of a linear filter is a function of the last observation."""
    rng = np.random.default_rng(0)

    def episode() -> Episode:
        a, o = 0.3 * rng.normal(size=(30, 1)), [rng.normal(size=1)]
        for push in a:
            o.append(np.sin(3 * o[-1]) + push)
        return Episode(np.array(o), a, np.zeros(30), truncated=True)

    fit, held = pack([episode() for _ in range(80)]), pack([episode() for _ in range(10)])
    filter = replace(SETTINGS, dimension=10, epochs=10).fit(fit, held, key=jax.random.key(0))
    assert isinstance(filter, ResidualFilter)
    assert one_step_error(filter, held) < 0.5 * one_step_error(filter.linear, held)


def test_only_the_kernel_bayes_filter_is_trained() -> None:
    marks = trainable(fitted())
    assert not any(jax.tree.leaves(marks.linear)) and not marks.spread and any(jax.tree.leaves(marks.residual))


def test_a_refit_keeps_the_coordinates_of_the_linear_filter() -> None:
    filter, (batch, held) = fitted(), data()
    again = SETTINGS.refit(filter, held, batch, key=jax.random.key(1))
    assert isinstance(again, ResidualFilter) and again.size == filter.size
    np.testing.assert_array_equal(np.asarray(again.linear.P), np.asarray(filter.linear.P))
    assert not np.array_equal(np.asarray(again.linear.W), np.asarray(filter.linear.W))


def test_settings_are_checked() -> None:
    with pytest.raises(Exception, match="linear_dimension: 0 must be at least 1"):
        ResidualKernelBayes(linear_dimension=0)
