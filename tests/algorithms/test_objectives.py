"""Returns and losses against numbers computed by hand, on rows that hold several episodes and filler."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rpsp.algorithms.objectives import (
    advantages,
    clipped_surrogate,
    distributions,
    explained_variance,
    fit_baseline,
    gae,
    linear_baseline,
    log_probs,
    mean_entropy,
    mean_kl,
    policy_loss,
    rewards_to_go,
    surrogate,
)
from rpsp.algorithms.policies import Gaussian, GaussianPolicy
from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.filters.base import prediction_loss, unroll
from rpsp.filters.memory import observation_window


def episode(rewards: list[float], *, seed: int = 0, **kwargs: bool) -> Episode:
    rng = np.random.default_rng(seed)
    steps = len(rewards)
    return Episode(
        rng.standard_normal((steps + 1, 2)),
        rng.uniform(-1, 1, (steps, 1)),
        np.array(rewards, np.float64),
        rng.standard_normal((steps, 1)),
        **kwargs,
    )


@pytest.fixture
def batch() -> Batch:
    """Row 0: four steps that terminated, then two of another episode. Row 1: three steps, then filler."""
    episodes = [episode([1, 2, 4]), episode([8, 16], seed=1), episode([5, 5, 5, 5], seed=2, terminated=True)]
    return pack(episodes, row_length=6)


def test_rewards_to_go_by_hand(batch: Batch) -> None:
    assert batch.shape == (2, 6)
    expected = [
        [5 + 0.5 * (5 + 0.5 * (5 + 0.5 * 5)), 5 + 0.5 * (5 + 0.5 * 5), 7.5, 5, 8 + 8, 16],
        [1 + 1 + 1, 2 + 2, 4, 0, 0, 0],
    ]
    np.testing.assert_allclose(rewards_to_go(batch, 0.5), expected, rtol=1e-6)


def test_undiscounted_rewards_to_go_start_at_the_return(batch: Batch) -> None:
    first = np.asarray(rewards_to_go(batch, 1.0))[np.asarray(batch.starts) & np.asarray(batch.mask)]
    assert sorted(first) == [7, 20, 24]


def test_the_baseline_is_least_squares_and_ignores_filler(batch: Batch) -> None:
    rng = np.random.default_rng(0)
    mask = jnp.asarray(batch.mask)
    states = rng.standard_normal((2, 6, 2)) * [1.0, 1e3] + [0.0, 5e3]
    returns = rewards_to_go(batch, 0.9)
    inputs = np.column_stack([states[batch.mask], np.ones(batch.mask.sum())])
    expected = np.linalg.lstsq(inputs, np.asarray(returns)[batch.mask], rcond=None)[0]
    states[~batch.mask] = np.nan
    weights = fit_baseline(jnp.asarray(states, jnp.float32), returns, mask, 0.0)
    np.testing.assert_allclose(weights, expected, rtol=2e-3)
    values = np.asarray(linear_baseline(weights, jnp.asarray(states, jnp.float32)))[batch.mask]
    np.testing.assert_allclose(values, inputs @ expected, rtol=2e-3)


def test_a_coordinate_that_never_moves_is_harmless(batch: Batch) -> None:
    states = jnp.ones((2, 6, 3))
    returns, mask = rewards_to_go(batch, 0.9), jnp.asarray(batch.mask)
    values = linear_baseline(fit_baseline(states, returns, mask), states)
    np.testing.assert_allclose(values, np.full((2, 6), np.asarray(returns)[batch.mask].mean()), rtol=1e-5)


def test_advantages(batch: Batch) -> None:
    mask = jnp.asarray(batch.mask)
    returns = rewards_to_go(batch, 0.5)
    baseline = jnp.full((2, 6), 3.0)
    np.testing.assert_allclose(
        advantages(returns, baseline, mask, normalise=False), np.where(mask, np.asarray(returns) - 3, 0)
    )
    normalised = np.asarray(advantages(returns, baseline, mask))
    np.testing.assert_allclose(normalised[batch.mask].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(normalised[batch.mask].std(), 1, rtol=1e-5)
    assert (normalised[~batch.mask] == 0).all()


def test_explained_variance(batch: Batch) -> None:
    mask, returns = jnp.asarray(batch.mask), rewards_to_go(batch, 0.5)
    np.testing.assert_allclose(explained_variance(returns, returns + 7, mask), 1, atol=1e-6)
    np.testing.assert_allclose(explained_variance(returns, jnp.zeros((2, 6)), mask), 0, atol=1e-6)
    np.testing.assert_allclose(explained_variance(returns, returns / 2, mask), 0.75, atol=1e-5)


def test_policy_loss_is_averaged_over_episodes(batch: Batch) -> None:
    dists = jax.vmap(jax.vmap(Gaussian))(jnp.full((2, 6, 1), 0.5), jnp.full((2, 6, 1), -0.3))
    A = jnp.asarray(np.random.default_rng(0).standard_normal((2, 6)), jnp.float32)
    drawn = np.asarray(batch.drawn_actions)[..., 0]
    log_p = -((drawn - 0.5) ** 2) / (2 * np.exp(-0.6)) + 0.3 - np.log(2 * np.pi) / 2
    by_hand = -(log_p * np.asarray(A))[batch.mask].sum() / 3
    np.testing.assert_allclose(policy_loss(dists, batch, A), by_hand, rtol=1e-5)


def test_prediction_loss_is_averaged_over_steps_or_episodes(batch: Batch) -> None:
    """Persistence: every step's error is the change of the reading, both dimensions together."""
    filter = observation_window(1, 2, 1)
    total = np.sum((np.asarray(batch.observations) - batch.previous_observations)[batch.mask] ** 2)
    states = unroll(filter, batch)
    np.testing.assert_allclose(prediction_loss(filter, states, batch), total / 9, rtol=1e-5)
    np.testing.assert_allclose(
        prediction_loss(filter, states, batch, per=jnp.asarray(batch.ends)), total / 3, rtol=1e-5
    )


def test_the_surrogate_has_the_gradient_of_the_policy_loss(batch: Batch) -> None:
    rng = np.random.default_rng(0)
    policy = GaussianPolicy(2, 1, key=jax.random.key(0))
    weight = jnp.asarray(rng.standard_normal((1, 16)), jnp.float32)
    policy = eqx.tree_at(lambda p: p.network.layers[-1].weight, policy, weight)
    states = jnp.asarray(rng.standard_normal((2, 6, 2)), jnp.float32)
    A = jnp.asarray(np.where(batch.mask, rng.standard_normal((2, 6)), 0.0), jnp.float32)

    @jax.jit
    def both(policy: GaussianPolicy) -> tuple:
        old = distributions(policy, states)
        per_sample = jax.value_and_grad(lambda p: surrogate(distributions(p, states), old, batch, A))(policy)
        return *per_sample, jax.grad(lambda p: policy_loss(distributions(p, states), batch, A))(policy)

    value, per_sample, per_episode = both(policy)
    np.testing.assert_allclose(value, np.asarray(A)[batch.mask].mean(), rtol=1e-5)  # every ratio is 1
    for ours, theirs in zip(jax.tree.leaves(per_sample), jax.tree.leaves(per_episode), strict=True):
        np.testing.assert_allclose(ours, -theirs * 3 / 9, rtol=1e-4, atol=1e-6)  # 3 episodes, 9 steps


def test_divergences_are_means_over_steps(batch: Batch) -> None:
    mask = jnp.asarray(batch.mask)
    at = jax.vmap(jax.vmap(Gaussian))
    p = at(jnp.zeros((2, 6, 1)), jnp.zeros((2, 6, 1)))
    q = at(jnp.where(mask, jnp.arange(6.0), jnp.nan)[..., None], jnp.zeros((2, 6, 1)))
    means = np.tile(np.arange(6.0), (2, 1))[batch.mask]
    np.testing.assert_allclose(mean_kl(p, q, mask), (means**2 / 2).mean(), rtol=1e-6)
    np.testing.assert_allclose(mean_entropy(p, mask), 0.5 * np.log(2 * np.pi * np.e), rtol=1e-6)
    assert log_probs(p, jnp.asarray(batch.drawn_actions)).shape == (2, 6)


def test_generalised_advantages_by_hand(batch: Batch) -> None:
    """γ = λ = ½. The first episode of row 0 terminated; its neighbour, and that of row 1, ran out of time."""
    values = jnp.asarray([[1.0, 2, 3, 4, 10, 20], [2, 4, 8, 99, 99, 99]])
    after = jnp.asarray([[99.0, 99, 99, 99, 99, 6], [99, 99, 12, 99, 99, 99]])
    first = [5 + 1.0 - 1, 5 + 1.5 - 2, 5 + 2.0 - 3, 5 - 4.0]  # δ: no value after the last
    second = [8 + 10.0 - 10, 16 + 3.0 - 20]
    third = [1 + 2.0 - 2, 2 + 4.0 - 4, 4 + 6.0 - 8]
    expected = np.zeros((2, 6))
    for row, start, deltas in ((0, 0, first), (0, 4, second), (1, 0, third)):
        for t in range(len(deltas)):
            expected[row, start + t] = sum(0.25**j * delta for j, delta in enumerate(deltas[t:]))
    np.testing.assert_allclose(gae(batch, values, after, 0.5, 0.5), expected, rtol=1e-6)


def test_generalised_advantages_at_both_ends(batch: Batch) -> None:
    """λ = 1: rewards-to-go less the value, if nothing comes after; λ = 0: the one-step difference."""
    rng = np.random.default_rng(0)
    mask = np.asarray(batch.mask)
    values, after = (jnp.asarray(np.where(mask, rng.standard_normal((2, 6)), np.nan), jnp.float32) for _ in "ab")
    whole = gae(batch, values, jnp.zeros((2, 6)), 0.9, 1.0)
    np.testing.assert_allclose(whole, np.where(mask, rewards_to_go(batch, 0.9) - values, 0), rtol=1e-5, atol=1e-5)
    follows = np.roll(values, -1, axis=1)
    follows[0, 3], follows[0, 5], follows[1, 2] = 0.0, after[0, 5], after[1, 2]
    deltas = np.where(mask, batch.rewards + 0.9 * follows - values, 0)
    np.testing.assert_allclose(gae(batch, values, after, 0.9, 0.0), deltas, rtol=1e-5, atol=1e-6)


def test_the_clipped_surrogate_and_where_its_gradient_vanishes() -> None:
    """ε = 0.2: beyond 1 + ε only a negative advantage still pulls, below 1 − ε only a positive one."""
    ratios = np.array([1.0, 1.1, 1.5, 1.5, 0.5, 0.5])
    A = jnp.asarray([2.0, -3.0, 1.0, -1.0, 1.0, -1.0])
    terms = np.array([2.0, -3.3, 1.2, -1.5, 0.5, -0.8])
    value, slope = jax.value_and_grad(clipped_surrogate)(jnp.asarray(np.log(ratios), jnp.float32), A, 0.2)
    np.testing.assert_allclose(value, terms.mean(), rtol=1e-5)
    np.testing.assert_allclose(slope, np.array([2.0, -3.3, 0, -1.5, 0.5, 0]) / 6, rtol=1e-5)
