"""Feature maps against the kernels and indicators they stand for."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import pdist, squareform

from rpsp.data.scaling import OneHot, fit_scaling, symbols
from rpsp.errors import UsageError
from rpsp.filters.features import OneHotSequence, RandomFourierFeatures, cos_and_sin, fit_fourier, fourier, kernel_width


@pytest.mark.parametrize("width", [0.5, 2.0])
def test_fourier_features_approximate_the_rbf_kernel(width):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((25, 3))
    features = fourier(x, rng.standard_normal((3, 20_000)) / width)
    kernel = np.exp(-squareform(pdist(x, "sqeuclidean")) / (2 * width**2))
    np.testing.assert_allclose(features @ features.T, kernel, atol=4 / np.sqrt(20_000))  # four standard deviations


@pytest.mark.parametrize("reach", [1.0, 100.0, 1e5])
def test_cos_and_sin_are_those_of_double_precision(reach):
    """For large x, CPUs without fused multiply-add round once more when multiples of π are subtracted."""
    x = np.random.default_rng(0).uniform(-reach, reach, 200_000).astype(np.float32)
    for found, exact in zip(jax.jit(cos_and_sin)(x), (np.cos, np.sin), strict=True):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, exact(x.astype(np.float64)), atol=3e-7 if reach < 1e5 else 2e-6)
    slopes = jax.vmap(jax.grad(lambda x: cos_and_sin(x)[1]))(x[:1000])
    np.testing.assert_allclose(slopes, np.cos(x[:1000].astype(np.float64)), atol=2e-6)
    assert np.isnan(cos_and_sin(jnp.float32(np.inf))).all() and np.isnan(cos_and_sin(jnp.float32(np.nan))).all()


def test_projection_keeps_the_kernel_on_the_data():
    """With as many directions as points nothing is lost, and the width is the percentile asked for."""
    rng = np.random.default_rng(0)
    x = 3 * rng.standard_normal((30, 2))
    fitted = fit_fourier(x, 30, rng=rng, frequencies=8000, percentile=50.0)
    assert fitted(x).shape == (30, 30)
    kernel = np.exp(-squareform(pdist(x, "sqeuclidean")) / (2 * np.median(pdist(x)) ** 2))
    np.testing.assert_allclose(fitted(x) @ fitted(x).T, kernel, atol=4 / np.sqrt(8000))
    few = fit_fourier(x, 4, rng=rng, frequencies=100)
    assert few(x).shape == (30, 4)
    full = fourier(x, few.frequencies)
    captured, total = (few(x) ** 2).sum(), (full**2).sum()
    assert captured == pytest.approx((np.linalg.svd(full, compute_uv=False)[:4] ** 2).sum(), rel=1e-6)
    assert captured < total


@pytest.mark.parametrize(("n", "x"), [(1, 1), (4, 3)])
def test_one_vector_rows_numpy_and_jax_alike(n, x):
    rng = np.random.default_rng(n)
    maps = [
        RandomFourierFeatures(
            rng.standard_normal((2 * x, 9)), rng.standard_normal((18, 5)), *np.full((2, 2 * x), [[-1.0], [1.0]])
        ),
        OneHotSequence((x, x)),
    ]
    data = rng.standard_normal((n, 2 * x))
    for f in maps:
        rows = f(data)
        assert rows.dtype == np.float64
        for row, one in zip(rows, data, strict=True):
            np.testing.assert_allclose(f(one), row, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(f(jnp.asarray(data, jnp.float32)), rows, rtol=1e-4, atol=1e-4)


def test_far_from_the_data_features_stay_on_the_right_side():
    """Beyond the box a point has the features of the box's edge, not the almost none of a point unlike all data."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, 2))
    f = fit_fourier(x, 20, rng=rng, clamp=3.0)
    edge, far = f.high * [1, 0], np.array([40.0, 0.0])
    np.testing.assert_allclose(f(far), f(edge))
    assert np.linalg.norm(f(far)) > 0.9
    at = ((x @ [1, 0])[:, None] * f(x)).mean(axis=0)  # a linear read-out of the first coordinate, up to scale
    assert f(far) @ at > 0 > f(-far) @ at


def test_kernel_width_of_constant_data():
    rng = np.random.default_rng(0)
    assert kernel_width(np.ones((20, 3)), 95.0, rng=rng) == 1.0
    assert kernel_width(np.ones((1, 3)), 95.0, rng=rng) == 1.0
    points = np.array([[0.0], [1.0], [3.0]])  # distances 1, 2, 3
    assert kernel_width(points, 50.0, rng=rng) == 2.0


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_one_hot_sequence_is_the_indicator_of_the_sequence(sizes):
    f = OneHotSequence(tuple(sizes))
    for number, word in enumerate(itertools.product(*map(range, sizes))):
        x = np.concatenate([np.eye(size)[s] for size, s in zip(sizes, word, strict=True)])
        np.testing.assert_array_equal(f(x), np.eye(int(np.prod(sizes)))[number])


def test_null_action_does_not_vanish():
    np.testing.assert_allclose(OneHotSequence((3,))(np.zeros(3)), np.full(3, 1 / 3))
    mixed = OneHotSequence((2, 3))(np.array([0.0, 1.0, 0.0, 0.0, 0.0]))  # known, then null
    np.testing.assert_allclose(mixed, [0, 0, 0, 1 / 3, 1 / 3, 1 / 3])
    rng = np.random.default_rng(0)
    f = fit_fourier(rng.uniform(-1, 1, (200, 2)), 6, rng=rng)
    # Features of an RBF kernel have norm 1; the directions kept are those of the data, 0 among them.
    assert 0.9 < np.linalg.norm(f(np.zeros(2))) <= 1 + 1e-9


@given(
    arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(1, 4)), elements=st.floats(-1e6, 1e6)),
    st.floats(-1e6, 1e6),
)
def test_scaling_round_trip(x, value):
    x = np.column_stack([x, np.full(len(x), value)])
    scaling = fit_scaling(x)
    z = scaling.encode(x)
    assert np.isfinite(z).all()
    np.testing.assert_allclose(scaling.decode(z), x, rtol=1e-9, atol=1e-9 * np.abs(x).max())
    assert scaling.scale[-1] == 1.0  # a constant column stays as it is but for its mean
    np.testing.assert_allclose(z[:, -1], 0, atol=1e-9 * max(1.0, abs(value)))
    changing = x.std(axis=0) > 1e-6 * np.maximum(1e-3, np.abs(x).max(axis=0))
    np.testing.assert_allclose(z[:, changing].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(z[:, changing].std(axis=0), 1, rtol=1e-6)


def test_rounding_does_not_make_noise_of_a_constant():
    x = np.full((1000, 1), 0.1) + 1e-17
    x[::3] *= 1 + 2e-16
    np.testing.assert_allclose(fit_scaling(x).encode(x), 0, atol=1e-12)


def test_small_units_are_not_constants():
    x = 1e-9 * np.random.default_rng(0).standard_normal((100, 1))
    np.testing.assert_allclose(fit_scaling(x).encode(x).std(), 1, rtol=1e-6)


def test_one_hot_codes():
    code = OneHot(3)
    np.testing.assert_array_equal(code.encode(np.array([[2.0], [0.0]])), [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(code.decode(np.array([[0.2, 0.3, 0.5]])), [[0.2, 0.3, 0.5]])


@pytest.mark.parametrize(
    ("x", "fragments"),
    [
        (np.array([[0.0], [1.5]]), ["actions", "1.5"]),
        (np.array([[0.0], [-1.0]]), ["actions", "-1"]),
        (np.array([[0.0], [3.0]]), ["actions", "symbol 3", "3 symbols"]),
        (np.zeros((4, 2)), ["actions", "2 columns"]),
    ],
)
def test_what_is_not_a_symbol_is_named(x, fragments):
    with pytest.raises(UsageError) as caught:
        symbols(x, 3, "actions")
    for fragment in fragments:
        assert fragment in str(caught.value)
