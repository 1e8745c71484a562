"""Predictive distributions and missing readings, against the Kalman filter and Bayes rule."""

from __future__ import annotations

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.systems import (
    ControlledHMM,
    LinearGaussian,
    bayes_predictions,
    kalman_distributions,
    linear_gaussian,
    one_hot,
    simulate_hmm,
    simulate_linear_gaussian,
)
from jax import Array
from scipy.linalg import solve_discrete_are

from rpsp.data.batches import pack
from rpsp.data.episodes import Episode
from rpsp.filters.base import AbstractFilter, compiled_predictions, compiled_unroll, constant
from rpsp.filters.gaps import GapFilter
from rpsp.filters.gaps_fit import completed, has_gaps, interpolated, wrapped
from rpsp.filters.tabular import fit_tabular
from rpsp.filters.uncertainty import (
    LEVELS,
    Calibration,
    GaussianUncertainty,
    Noise,
    Propagation,
    SymbolUncertainty,
)
from rpsp.filters.uncertainty_fit import Steps, fit_noise, fit_uncertainty


class Kalman(AbstractFilter):
    """The steady-state Kalman filter of a system; q_t is the expected latent state after o_{t-1}."""

    A: Array = constant()
    B: Array = constant()
    C: Array = constant()
    K: Array = constant()

    def init(self):
        return jnp.zeros(len(self.A))

    def update(self, q, action, observation):
        q = self.A @ q + self.B @ action
        return q + self.K @ (observation - self.C @ q)

    def predict(self, q, action):
        return self.C @ (self.A @ q + self.B @ action)


@cache
def steady() -> tuple[LinearGaussian, Kalman, np.ndarray]:
    """A system with two sensors, its steady-state filter and the covariance of its innovations."""
    system = linear_gaussian(3, 2, 1, np.random.default_rng([3, 2, 0]))
    P = solve_discrete_are(system.A.T, system.C.T, system.Q, system.R)
    S = system.C @ P @ system.C.T + system.R
    K = P @ system.C.T @ np.linalg.inv(S)
    return system, Kalman(*(jnp.asarray(x, jnp.float32) for x in (system.A, system.B, system.C, K))), S


@cache
def recorded() -> tuple[list[Episode], list[Episode]]:
    rng = np.random.default_rng(1)
    fit, test = (simulate_linear_gaussian(steady()[0], 100, 60, rng) for _ in range(2))
    return fit, test


def dropped(episodes: list[Episode], share: float, seed: int = 0) -> list[Episode]:
    rng = np.random.default_rng(seed)
    return [
        Episode(np.where(rng.random(e.observations.shape) < share, np.nan, e.observations), e.actions) for e in episodes
    ]


def known() -> GaussianUncertainty:
    """The uncertainty of the steady-state filter, from the parameters of the system."""
    system, filter, S = steady()
    n = len(system.A)
    root = np.linalg.cholesky(S)
    noise = Noise(root, np.linalg.inv(root), np.zeros((3, 2)), np.zeros(n + 1), np.zeros((n + 1, 1)))
    moves = Propagation(system.A, np.asarray(filter.K, np.float64), system.C @ system.A, np.eye(n), np.full(n, 1e3))
    return GaussianUncertainty(noise, moves, Calibration(np.ones((1, 2)), np.ones((1, len(LEVELS), 2))))


def test_with_gaps_the_filter_is_the_kalman_filter() -> None:
    """From the parameters of the system: the same predictions as the Kalman filter that knows what is missing."""
    system, filter, S = steady()
    tolerant = GapFilter(filter, known(), np.zeros(2), S, np.asarray(filter.K))
    episodes = dropped(recorded()[1][:5], 0.4)
    predicted = np.asarray(compiled_predictions(tolerant, pack(episodes)))
    P0 = solve_discrete_are(system.A.T, system.C.T, system.Q, system.R)
    for row, episode in zip(predicted, episodes, strict=True):
        x, P = np.zeros(3), P0
        for t, (o, a) in enumerate(zip(episode.observations, episode.actions, strict=False)):
            C = system.C[seen := ~np.isnan(o)]
            K = P @ C.T @ np.linalg.inv(C @ P @ C.T + system.R[np.ix_(seen, seen)])
            x, P = x + K @ (o[seen] - C @ x), P - K @ C @ P
            x, P = system.A @ x + system.B @ a, system.A @ P @ system.A.T + system.Q
            np.testing.assert_allclose(
                row[t], system.C @ x, atol=2e-3
            )  # float32, and correlations with a ridge of 1e-5


def test_without_gaps_the_filter_is_the_wrapped_one() -> None:
    filter, batch = steady()[1], pack(recorded()[1][:5])
    tolerant = GapFilter(filter, known(), np.zeros(2), steady()[2], np.asarray(filter.K))
    both = (np.asarray(compiled_predictions(f, batch)) for f in (tolerant, filter))
    np.testing.assert_allclose(*both, atol=1e-5)
    states = np.asarray(compiled_unroll(tolerant, batch))
    assert np.abs(states[..., 4:]).max() < 1e-6  # what was read leaves no uncertainty
    assert tolerant.view.shape == (tolerant.size, 3)  # policies see the wrapped state


def test_fitted_uncertainty_is_that_of_the_kalman_filter() -> None:
    """Covariances of forecasts by regression, and the likelihood, beside the exact ones."""
    system, filter, _ = steady()
    fit, test = recorded()
    uncertainty = fit_uncertainty(filter, pack(fit[:80]), pack(fit[80:]))
    q, actions = jnp.zeros(3), jnp.zeros((8, 1))
    found = np.asarray(uncertainty.raw(filter, q, uncertainty.certain(), actions).covariance)
    P = solve_discrete_are(system.A.T, system.C.T, system.Q, system.R)
    for covariance in found:
        exact = system.C @ P @ system.C.T + system.R
        np.testing.assert_allclose(covariance, exact, atol=0.08 * np.trace(exact))  # 6000 steps to estimate it
        P = system.A @ P @ system.A.T + system.Q
    batch = pack(test)
    states = compiled_unroll(filter, batch)
    logs = eqx.filter_vmap(
        eqx.filter_vmap(
            lambda q, a, o: uncertainty.log_density(uncertainty.forecast(filter, q, uncertainty.certain(), a[None]), o)
        )
    )(states, jnp.asarray(batch.actions), jnp.asarray(batch.observations))
    exact = []
    for e, (mean, covariance) in zip(test, kalman_distributions(system, test), strict=True):
        x = e.observations[1:] - mean
        squares = np.einsum("ti,tij,tj->t", x, np.linalg.inv(covariance), x)
        exact.append(-0.5 * (squares + np.linalg.slogdet(2 * np.pi * covariance)[1]))
    assert float(logs.mean()) == pytest.approx(np.mean(exact), rel=0.01)
    drawn = np.asarray(
        jax.vmap(lambda key: uncertainty.sample(filter, q, uncertainty.certain(), actions, key=key))(
            jax.random.split(jax.random.key(0), 2000)
        )
    )
    for j in (0, 7):
        np.testing.assert_allclose(np.cov(drawn[:, j].T), found[j], atol=0.12 * np.trace(found[j]))


def test_filters_of_data_with_gaps_are_as_good() -> None:
    """The wrapper fitted to data with gaps, around the exact filter: within 2 % of the Kalman filter that knows all."""
    system, filter, _ = steady()
    fit, test = recorded()
    gaps, missed = dropped(fit, 0.3), dropped(test, 0.3, seed=1)
    given = pack(gaps[:80]), pack(gaps[80:])
    full = interpolated(given[0]), interpolated(given[1])
    assert has_gaps(given[0]) and not has_gaps(full[0])
    tolerant = wrapped(filter, given, full, discrete=False)
    filled = completed(tolerant, given[0])
    read = ~np.isnan(given[0].observations)
    assert not has_gaps(filled)
    np.testing.assert_array_equal(filled.observations[read], given[0].observations[read])
    truth = np.stack([e.observations[1:] for e in test])
    errors = np.asarray(compiled_predictions(tolerant, pack(missed))) - truth
    exact = np.stack([mean for mean, _ in kalman_distributions(system, missed)]) - truth
    assert np.mean(errors**2) < 1.02 * np.mean(exact**2)
    assert isinstance(tolerant.uncertainty, GaussianUncertainty)
    S = np.asarray(tolerant.uncertainty.noise.root) @ np.asarray(tolerant.uncertainty.noise.root).T
    np.testing.assert_allclose(S, steady()[2], atol=0.1 * np.trace(steady()[2]))  # expectation–maximisation over gaps


def test_noise_depends_on_the_state_where_data_show_it() -> None:
    rng = np.random.default_rng(0)

    def steps(n: int) -> Steps:
        q = rng.standard_normal((n, 2))
        e = np.exp(0.5 * q[:, :1]) * rng.standard_normal((n, 1))
        return Steps(q, np.zeros((n, 1)), e, q, e)

    noise = fit_noise(steps(4000), steps(1000))
    points = np.array([[-1.0, 0.0], [0.0, 0.0], [1.5, 0.0]])
    found = [float(noise.covariance(jnp.asarray(q), jnp.zeros(1))[0, 0]) for q in points]
    np.testing.assert_allclose(found, np.exp(points[:, 0]), rtol=0.25)
    assert not fit_noise(steps(40), steps(10)).W.any()  # few data: constant


def test_symbols_are_marginalised_exactly() -> None:
    """Bayes rule on tables, with 30 % of the symbols missing, beside exact Bayes rule."""
    rng = np.random.default_rng(0)
    stay = 0.9 * np.eye(3) + 0.1 / 3
    hmm = ControlledHMM(np.stack([stay, np.roll(stay, 1, axis=1)]), 0.8 * np.eye(3) + 0.2 / 3, np.full(3, 1 / 3))
    fit, test = simulate_hmm(hmm, 1500, 30, rng), simulate_hmm(hmm, 20, 30, rng)
    train = pack(one_hot(hmm, fit))
    tolerant = GapFilter(
        fit_tabular(train, train), SymbolUncertainty(), np.full(3, 1 / 3), np.zeros((3, 3)), np.zeros((0, 3))
    )
    batch = pack(one_hot(hmm, test))
    lost = rng.random(batch.mask.shape) < 0.3
    lost[:, -1] = False
    seen = np.where(lost[..., None], np.nan, batch.observations)
    before = np.concatenate([batch.previous_observations[:, :1], seen[:, :-1]], axis=1)
    gaps = eqx.tree_at(lambda b: (b.observations, b.previous_observations), batch, (seen, before))
    predicted = np.asarray(compiled_predictions(tolerant, gaps))
    exact = bayes_with_gaps(hmm, test, lost)
    assert np.sqrt(np.mean((predicted - exact) ** 2)) < 0.04
    assert np.sqrt(np.mean((bayes_predictions(hmm, test) - exact) ** 2)) > 0.05  # the gaps matter


def bayes_with_gaps(hmm, episodes, lost) -> np.ndarray:
    out = []
    for episode, gone in zip(episodes, lost, strict=True):
        belief, predictions = hmm.first, []
        for t, (o, a) in enumerate(
            zip(episode.observations[:, 0].astype(int), episode.actions[:, 0].astype(int), strict=False)
        ):
            if t == 0 or not gone[t - 1]:
                belief = belief * hmm.emission[:, o]
            belief = (belief / belief.sum()) @ hmm.transition[a]
            predictions.append(belief @ hmm.emission)
        out.append(np.stack(predictions))
    return np.stack(out)
