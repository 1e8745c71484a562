"""Against closed forms, plain loops and LAPACK in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpsp.data.linalg import (
    NormalEquations,
    conditional_operators,
    kernel_bayes_weights,
    outer,
    randomized_svd,
    ridge,
    signed,
)

SIZES = st.integers(1, 7)
SEEDS = st.integers(0, 1000)


@given(st.integers(1, 30), SIZES, SIZES, st.floats(1e-3, 1e3), SEEDS)
def test_ridge_is_the_closed_form(n, inputs, outputs, strength, seed):
    rng = np.random.default_rng(seed)
    X, Y = rng.standard_normal((n, inputs)), rng.standard_normal((n, outputs))
    # The same problem as plain least squares, with √λ I as extra rows.
    stacked = np.vstack([X, np.sqrt(strength) * np.eye(inputs)]), np.vstack([Y, np.zeros((inputs, outputs))])
    W = ridge(X, Y, strength)
    np.testing.assert_allclose(W, np.linalg.lstsq(*stacked, rcond=None)[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(W, np.linalg.inv(X.T @ X + strength * np.eye(inputs)) @ X.T @ Y, rtol=1e-6, atol=1e-8)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), SIZES, SIZES, SEEDS)
def test_chunks_add_up_to_the_whole(chunks, inputs, outputs, seed):
    rng = np.random.default_rng(seed)
    parts = [(rng.standard_normal((n, inputs)), rng.standard_normal((n, outputs))) for n in chunks]
    equations = NormalEquations(inputs, outputs)
    for X, Y in parts:
        equations.add(X, Y)
    X, Y = (np.concatenate(x) for x in zip(*parts, strict=True))
    assert equations.count == len(X)
    np.testing.assert_allclose(equations.solve(0.1), ridge(X, Y, 0.1), rtol=1e-9, atol=1e-12)


def test_ridge_feature_by_feature():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((20, 3)), rng.standard_normal((20, 2))
    strengths = np.array([0.0, 2.0, 1e12])
    W = NormalEquations(3, 2).add(X, Y).solve(strengths)
    np.testing.assert_allclose(W, np.linalg.solve(X.T @ X + np.diag(strengths), X.T @ Y), rtol=1e-9, atol=1e-12)
    assert np.abs(W[2]).max() < 1e-9


@pytest.mark.parametrize(
    "X", [np.ones((10, 3)), np.zeros((10, 3)), 1e-9 * np.ones((10, 3))], ids=["twins", "0", "tiny"]
)
def test_ridge_0_survives_singular_inputs(X):
    Y = np.ones((10, 2))
    W = ridge(X, Y, 0.0)
    assert np.isfinite(W).all()
    if X.any():
        np.testing.assert_allclose(X @ W, Y, rtol=1e-4)


@given(st.integers(0, 6), SIZES, SIZES, SEEDS)
def test_outer_is_the_vectorised_product(n, a, b, seed):
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((n, a)), rng.standard_normal((n, b))
    C = outer(A, B)
    assert C.shape == (n, a * b)
    for i in range(n):
        np.testing.assert_array_equal(C[i], np.outer(A[i], B[i]).reshape(-1))


@given(st.integers(1, 80), st.integers(1, 80), st.integers(1, 12), SEEDS)
def test_randomized_svd_finds_the_leading_subspace(n, d, rank, seed):
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.standard_normal((n, min(n, d))))[0]
    right = np.linalg.qr(rng.standard_normal((d, min(n, d))))[0]
    X = (left * 0.7 ** np.arange(min(n, d))) @ right.T
    V = randomized_svd(X, rank, rng=rng)
    kept = min(rank, n, d)
    assert V.shape == (d, kept)
    np.testing.assert_allclose(V.T @ V, np.eye(kept), atol=1e-8)
    exact = np.linalg.svd(X, full_matrices=False)[2][:kept].T
    np.testing.assert_allclose(V @ V.T, exact @ exact.T, atol=1e-4)
    np.testing.assert_allclose(np.abs(np.sum(V * exact, axis=0)), 1, atol=1e-4)  # and in their order


def test_signs_do_not_depend_on_lapack():
    rng = np.random.default_rng(0)
    V = rng.standard_normal((6, 4))
    np.testing.assert_array_equal(signed(V), signed(V * np.array([1, -1, -1, 1])))
    X = (rng.standard_normal((200, 50)) * 0.5 ** np.arange(50)) @ np.linalg.qr(rng.standard_normal((50, 50)))[0]
    np.testing.assert_allclose(randomized_svd(X, 3, rng=rng), randomized_svd(-X, 3, rng=rng), atol=1e-6)


@given(st.integers(1, 9), SIZES, SIZES, st.floats(1e-3, 10), SEEDS)
def test_conditional_operators_equal_a_loop(n, a, b, strength, seed):
    rng = np.random.default_rng(seed)
    C_ab, C_bb = rng.standard_normal((n, a, b)), rng.standard_normal((n, b, b))
    C_bb = C_bb + C_bb.transpose(0, 2, 1)
    given_b = conditional_operators(C_ab, C_bb, strength)
    for i in range(n):
        expected = C_ab[i] @ C_bb[i] @ np.linalg.inv(C_bb[i] @ C_bb[i] + strength * np.eye(b))
        np.testing.assert_allclose(given_b[i], expected, rtol=1e-6, atol=1e-8)


def test_conditional_operators_divide_and_symmetrise():
    """At λ → 0 it is C_AB C_BB⁻¹; a predicted covariance that is not symmetric is made so; inputs stay untouched."""
    rng = np.random.default_rng(0)
    C_ab, C_bb = rng.standard_normal((4, 2, 3)), rng.standard_normal((4, 3, 3)) + 5 * np.eye(3)
    before = C_bb.copy()
    symmetric = (C_bb + C_bb.transpose(0, 2, 1)) / 2
    np.testing.assert_allclose(conditional_operators(C_ab, C_bb, 1e-14), C_ab @ np.linalg.inv(symmetric), rtol=1e-6)
    np.testing.assert_array_equal(C_bb, before)


@given(st.sampled_from([1, 5, 20]), st.floats(1e-4, 1), SEEDS)
def test_kernel_bayes_weights_in_float32(d, strength, seed):
    """Spectra as they occur: one eigenvalue near 1, the others small and of either sign."""
    rng = np.random.default_rng(seed)
    vectors = np.linalg.qr(rng.standard_normal((d, d)))[0]
    values = np.append(1.0, rng.uniform(-0.05, 0.2, d - 1))
    C, phi = (vectors * values) @ vectors.T, rng.standard_normal(d)
    exact = np.linalg.solve(C @ C + strength * np.eye(d), C @ phi)
    v = kernel_bayes_weights(jnp.asarray(C, jnp.float32), jnp.asarray(phi, jnp.float32), strength)
    assert v.dtype == jnp.float32
    np.testing.assert_allclose(v, exact, atol=3e-6 / strength * np.abs(phi).max() * np.abs(C).max(), rtol=1e-4)


@pytest.mark.parametrize("strength", [1e-4, 1e-2])
@pytest.mark.parametrize("C", [np.zeros((5, 5)), np.ones((5, 5)) / 5, np.diag([1.0, 0.1, 0.0, 0.0, -0.1])])
def test_kernel_bayes_gradient_is_finite_and_right(C, strength):
    phi, c = np.linspace(-1, 1, 5), np.arange(1.0, 6.0)

    def through(C, phi):
        return kernel_bayes_weights((C + C.T) / 2, phi, strength) @ jnp.asarray(c, jnp.float32)

    gC, gphi = jax.grad(through, (0, 1))(jnp.asarray(C, jnp.float32), jnp.asarray(phi, jnp.float32))
    assert np.isfinite(gC).all() and np.isfinite(gphi).all()
    M = np.linalg.inv(C @ C + strength * np.eye(5))
    np.testing.assert_allclose(gphi, C @ M @ c, rtol=1e-2, atol=1e-3 * np.abs(C @ M @ c).max() + 1e-6)
    # dv = M (dC φ − (dC C + C dC) v): its gradient, symmetrised as `through` symmetrises C.
    v, u = M @ C @ phi, M @ c
    G = np.outer(u, phi) - np.outer(u, C @ v) - np.outer(C @ u, v)
    G = (G + G.T) / 2
    np.testing.assert_allclose(gC, G, rtol=1e-2, atol=2e-3 * np.abs(G).max())
