"""Distributions of returns: projections, targets and losses against closed forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rpsp.algorithms.choices import choices
from rpsp.algorithms.policies import CategoricalPolicy
from rpsp.algorithms.value_distributions import (
    BOUND,
    atoms,
    bellman_target,
    critic_losses,
    expectation,
    least,
    projected,
)

COUNT = 21  # atoms at −5, −4.5, …, 5


def test_a_single_value_is_divided_among_two_neighbours() -> None:
    found = np.asarray(projected(jnp.ones((1, 1)), jnp.asarray([[1.6]]), COUNT))[0]
    expected = np.zeros(COUNT)
    expected[13], expected[14] = 0.8, 0.2  # atoms 1.5 and 2
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_projections_keep_mass_and_mean_inside_the_bounds() -> None:
    rng = np.random.default_rng(0)
    p, x = rng.dirichlet(np.ones(30), size=50), rng.uniform(-BOUND, BOUND, size=(50, 30))
    found = np.asarray(projected(jnp.asarray(p, jnp.float32), jnp.asarray(x, jnp.float32), COUNT))
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(found @ np.asarray(atoms(COUNT)), (p * x).sum(axis=1), atol=1e-4)
    beyond = np.asarray(projected(jnp.ones((2, 1)), jnp.asarray([[9.0], [-7.0]]), COUNT))
    np.testing.assert_allclose(beyond[:, [0, -1]], [[0, 1], [1, 0]], atol=1e-6)


def test_targets_of_distributions_have_the_mean_of_the_target_of_means() -> None:
    """y = r + γ Σ_a π_a (Q_a + b_a), where nothing is clipped."""
    rng = np.random.default_rng(1)
    logits = jnp.asarray(rng.normal(size=(3, 8, COUNT)), jnp.float32)
    weights = jnp.asarray(rng.dirichlet(np.ones(3), size=8).T, jnp.float32)
    bonus = jnp.asarray(rng.uniform(0, 0.3, size=(3, 8)), jnp.float32)
    reward, discount = jnp.asarray(rng.normal(size=8), jnp.float32) / 2, jnp.asarray([0.5] * 6 + [0.0] * 2)
    of_means = bellman_target(expectation(logits)[..., None], weights, bonus, reward, discount)
    found = bellman_target(logits, weights, bonus, reward, discount)
    np.testing.assert_allclose(expectation(jnp.log(found)), of_means[:, 0], atol=1e-4)
    np.testing.assert_allclose(of_means[6:, 0], reward[6:], rtol=1e-6)
    by_hand = reward + discount * jnp.einsum("kn,kn->n", weights, expectation(logits) + bonus)
    np.testing.assert_allclose(of_means[:, 0], by_hand, rtol=1e-5)


def test_the_target_of_one_distribution_is_shifted_and_shrunk() -> None:
    """Z = 2 for certain, r = 1, γ = 0.5, b = 0.5: the target is 1 + 0.5 · 2.5 = 2.25, halfway between 2 and 2.5."""
    logits = jnp.where(jnp.arange(COUNT) == 14, 0.0, -1e9)[None, None]
    found = bellman_target(logits, jnp.ones((1, 1)), jnp.full((1, 1), 0.5), jnp.ones(1), jnp.full(1, 0.5))
    np.testing.assert_allclose(found[0, 13:17], [0, 0.5, 0.5, 0], atol=1e-6)


def test_the_critic_with_the_smaller_mean_is_chosen_whole() -> None:
    rng = np.random.default_rng(2)
    both = jnp.asarray(rng.normal(size=(2, 6, COUNT)), jnp.float32)
    smaller = np.argmin(expectation(both), axis=0)
    assert set(smaller.tolist()) == {0, 1}
    np.testing.assert_array_equal(least(both), np.asarray(both)[smaller, np.arange(6)])
    np.testing.assert_array_equal(least(both[..., :1]), jnp.min(both[..., :1], axis=0))


def test_the_cross_entropy_is_least_where_the_outputs_are_the_target() -> None:
    rng = np.random.default_rng(3)
    m = jnp.asarray(rng.dirichlet(np.ones(COUNT), size=4), jnp.float32)
    outputs = jnp.stack([jnp.log(m), jnp.log(m) + 2.0])  # softmax does not depend on a constant
    entropy = -np.sum(np.asarray(m) * np.log(m), axis=1)
    np.testing.assert_allclose(critic_losses(outputs, m), 2 * entropy, rtol=1e-4)
    gradient = jax.grad(lambda x: jnp.sum(critic_losses(x, m)))(outputs)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
    means = jnp.asarray([[[1.0], [2.0]], [[3.0], [2.0]]])
    np.testing.assert_allclose(critic_losses(means, jnp.ones((2, 1))), [4.0, 2.0])


def test_expectations_over_discrete_actions_are_sums() -> None:
    policy = CategoricalPolicy(3, 4, key=jax.random.key(0))
    policy = jax.tree.map(lambda x: x + 0.1 * jnp.arange(x.size).reshape(x.shape) / x.size, policy)
    q = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    found = choices(policy, q, key=jax.random.key(1))
    dists = jax.vmap(policy)(q)
    np.testing.assert_allclose(found.weight.sum(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(found.weight.T, jax.nn.softmax(dists.logits), rtol=1e-5)
    np.testing.assert_array_equal(found.action[:, 2], np.eye(4))
    np.testing.assert_allclose(found.entropy, jax.vmap(lambda d: d.entropy())(dists), rtol=1e-5)
    assert float(found.entropy[0]) < np.log(4) - 1e-4
    assert found.entropy[0] == pytest.approx(float(-jnp.sum(found.weight[:, 0] * found.log_prob[:, 0])), rel=1e-5)
