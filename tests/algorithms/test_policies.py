"""Distributions against scipy, and what a fresh policy does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from rpsp.algorithms.policies import (
    Agent,
    Categorical,
    CategoricalPolicy,
    Categoricals,
    Gaussian,
    GaussianPolicy,
    NumbersAndSymbols,
    ProductPolicy,
)
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import trainable
from rpsp.filters.memory import observation_window

MEAN, LOG_STD = np.array([0.3, -1.2, 0.0]), np.array([-0.5, 0.4, 0.1])
OTHER_MEAN, OTHER_LOG_STD = np.array([0.1, -1.0, 0.7]), np.array([-0.2, 0.1, 0.1])


def gaussian(mean: np.ndarray = MEAN, log_std: np.ndarray = LOG_STD) -> Gaussian:
    return Gaussian(jnp.asarray(mean, jnp.float32), jnp.asarray(log_std, jnp.float32))


def test_gaussian_log_prob_is_scipys() -> None:
    action = np.array([0.5, 2.0, -0.1])
    expected = scipy.stats.norm.logpdf(action, MEAN, np.exp(LOG_STD)).sum()
    np.testing.assert_allclose(gaussian().log_prob(jnp.asarray(action, jnp.float32)), expected, rtol=1e-5)


def test_gaussian_kl_is_the_integral() -> None:
    def dimension(i: int) -> float:
        p = scipy.stats.norm(MEAN[i], np.exp(LOG_STD[i]))
        q = scipy.stats.norm(OTHER_MEAN[i], np.exp(OTHER_LOG_STD[i]))
        return scipy.integrate.quad(lambda x: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), -20, 20, limit=200)[0]

    kl = gaussian().kl(gaussian(OTHER_MEAN, OTHER_LOG_STD))
    np.testing.assert_allclose(kl, sum(map(dimension, range(3))), rtol=1e-4)
    assert gaussian().kl(gaussian()) == 0


def test_gaussian_kl_resolves_small_steps() -> None:
    step = 1e-3
    kl = gaussian(np.zeros(1), np.zeros(1)).kl(gaussian(np.zeros(1), np.full(1, step)))
    # To second order KL = Σ δ²; the naive formula loses this in float32.
    np.testing.assert_allclose(kl, step**2, rtol=0.01)


def test_gaussian_entropy_mode_and_samples() -> None:
    dist = gaussian()
    np.testing.assert_allclose(dist.entropy(), scipy.stats.norm.entropy(MEAN, np.exp(LOG_STD)).sum(), rtol=1e-5)
    np.testing.assert_array_equal(dist.mode(), dist.mean)
    samples = np.asarray(jax.vmap(dist.sample)(jax.random.normal(jax.random.key(0), (20_000, len(MEAN)))))
    np.testing.assert_allclose(samples.mean(axis=0), MEAN, atol=0.04)
    np.testing.assert_allclose(samples.std(axis=0), np.exp(LOG_STD), rtol=0.02)


def test_categorical_against_scipy() -> None:
    logits, others = jnp.asarray([0.0, 1.0, -2.0]), jnp.asarray([0.5, 0.0, 0.0])
    p, q = np.asarray(jax.nn.softmax(logits)), np.asarray(jax.nn.softmax(others))
    dist = Categorical(logits)
    np.testing.assert_allclose(dist.log_prob(jnp.asarray([0.0, 0.0, 1.0])), np.log(p[2]), rtol=1e-5)
    np.testing.assert_allclose(dist.kl(Categorical(others)), scipy.stats.entropy(p, q), rtol=1e-5)
    np.testing.assert_allclose(dist.entropy(), scipy.stats.entropy(p), rtol=1e-5)
    np.testing.assert_array_equal(dist.mode(), [0.0, 1.0, 0.0])
    samples = np.asarray(jax.vmap(dist.sample)(jax.random.gumbel(jax.random.key(0), (20_000, len(p)))))
    assert set(np.unique(samples)) == {0.0, 1.0} and (samples.sum(axis=1) == 1).all()
    np.testing.assert_allclose(samples.mean(axis=0), p, atol=0.015)


def test_a_fresh_policy_treats_all_states_alike() -> None:
    policy = GaussianPolicy(4, 2, key=jax.random.key(0))
    assert [layer.weight.shape for layer in policy.network.layers] == [(16, 4), (2, 16)]
    for state in jax.random.normal(jax.random.key(1), (5, 4)):
        np.testing.assert_array_equal(policy(state).mean, np.zeros(2))
        np.testing.assert_array_equal(policy(state).log_std, np.zeros(2))
    uniform = CategoricalPolicy(4, 3, hidden=(), key=jax.random.key(0))(jnp.ones(4))
    np.testing.assert_array_equal(uniform.logits, np.zeros(3))


def test_inputs_are_z_scored_by_constants() -> None:
    scaling = Scaling(np.array([5.0, -1.0]), np.array([2.0, 0.1]))
    policy = GaussianPolicy(2, 1, hidden=(3, 3), scaling=scaling, key=jax.random.key(0))
    plain = GaussianPolicy(2, 1, hidden=(3, 3), key=jax.random.key(0))
    q = jnp.asarray([7.0, -0.8])
    for network in (policy.network, plain.network):
        assert len(network.layers) == 3
    first, first_plain = policy.network.layers[0], plain.network.layers[0]
    np.testing.assert_array_equal(first.weight, first_plain.weight)  # same key, same layers
    hidden = first((q - policy.network.mean) / policy.network.scale)
    np.testing.assert_allclose(hidden, first_plain(jnp.asarray([1.0, 2.0])), rtol=1e-5)
    marks = trainable(policy)
    assert not marks.network.mean and not marks.network.scale
    assert marks.log_std and all(jax.tree.leaves(marks.network.layers))


def test_an_agent_is_a_filter_and_a_policy() -> None:
    window = observation_window(2, 3, 1)
    agent = Agent(window, GaussianPolicy(window.size, 1, key=jax.random.key(0)))
    assert agent.policy(agent.filter.init()).mode().shape == (1,)


def test_an_empty_layer_is_refused() -> None:
    with pytest.raises(UsageError, match="hidden"):
        GaussianPolicy(2, 1, hidden=(0,), key=jax.random.key(0))


def test_a_product_is_the_sum_of_its_parts() -> None:
    rng = np.random.default_rng(0)
    sizes, n = (3, 2, 4), 2

    def parts(seed: int) -> tuple[Any, list[Any], Any]:
        logits = jnp.asarray(np.random.default_rng(seed).normal(size=sum(sizes)), jnp.float32)
        numbers = Gaussian(jnp.asarray([0.3, -0.1]) * seed, jnp.asarray([-0.5, 0.2]))
        alone = [Categorical(part) for part in jnp.split(logits, np.cumsum(sizes)[:-1])]
        return numbers, alone, NumbersAndSymbols(numbers, Categoricals(logits, sizes))

    numbers, alone, both = parts(1)
    other_numbers, others, other = parts(2)
    noise = jnp.asarray(np.append(rng.normal(size=n), rng.gumbel(size=sum(sizes))), jnp.float32)
    action = both.sample(noise)
    pieces = jnp.split(action[n:], np.cumsum(sizes)[:-1])
    for piece, part, own in zip(pieces, alone, jnp.split(noise[n:], np.cumsum(sizes)[:-1]), strict=True):
        np.testing.assert_array_equal(piece, part.sample(own))
    log_p = numbers.log_prob(action[:n]) + sum(one.log_prob(piece) for one, piece in zip(alone, pieces, strict=True))
    np.testing.assert_allclose(both.log_prob(action), log_p, rtol=1e-5)  # sums of float32 in another order
    np.testing.assert_allclose(both.entropy(), numbers.entropy() + sum(one.entropy() for one in alone), rtol=1e-5)
    expected = numbers.kl(other_numbers) + sum(one.kl(another) for one, another in zip(alone, others, strict=True))
    np.testing.assert_allclose(both.kl(other), expected, rtol=1e-4)
    np.testing.assert_array_equal(both.mode()[:n], numbers.mean)
    np.testing.assert_array_equal(jnp.split(both.mode()[n:], np.cumsum(sizes)[:-1])[2], alone[2].mode())


def test_a_mask_at_the_end_of_the_state_forbids_values() -> None:
    policy = ProductPolicy(7, 1, (3, 2), allowed_above=np.full(5, 0.5), key=jax.random.key(0))
    q = jnp.asarray([0.1, -0.2, 0.0, 1.0, 1.0, 1.0, 0.0])
    dist = policy(q)
    for seed in range(5):
        action = dist.sample(jax.random.gumbel(jax.random.key(seed), (6,)))
        assert action[1] == 0 and action[5] == 0 and action[4] == 1
    gradient = jax.grad(lambda x: policy(jnp.append(x, q[2:])).entropy() + dist.kl(policy(jnp.append(x, q[2:]))))(q[:2])
    assert np.isfinite(gradient).all() and np.isfinite(dist.entropy())
    np.testing.assert_allclose(jnp.exp(dist.symbols._log_p()), [0, 0.5, 0.5, 1, 0], atol=1e-6)  # as made, all are alike
