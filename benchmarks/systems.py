"""Small systems whose best predictor is known exactly, as a reference for learned filters.

A linear-Gaussian system with inputs, for which the Kalman filter is exact, and a controlled hidden Markov model,
for which Bayes rule is exact. Time is indexed as in the package: the first latent state emits the reset observation
o_0; at step t ≥ 1 the action a_t moves the latent state, which emits o_t.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rpsp.data.episodes import Episode

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinearGaussian:
    """x_0 ~ N(0, I); x_t = A x_{t-1} + B a_t + N(0, Q); o_t = C x_t + N(0, R)."""

    A: Floats
    B: Floats
    C: Floats
    Q: Floats
    R: Floats


def linear_gaussian(n: int, obs: int, act: int, rng: np.random.Generator) -> LinearGaussian:
    """Return a random stable system with `n` latent dimensions, a spectral radius of 0.85 to 0.97, and noise."""
    A = rng.standard_normal((n, n))
    A *= rng.uniform(0.85, 0.97) / np.abs(np.linalg.eigvals(A)).max()
    B = 0.5 * rng.standard_normal((n, act))
    C = rng.standard_normal((obs, n))
    return LinearGaussian(A, B, C, Q=0.1 * np.eye(n), R=0.3 * np.eye(obs))


def simulate_linear_gaussian(
    system: LinearGaussian, episodes: int, steps: int, rng: np.random.Generator
) -> list[Episode]:
    """Return episodes with actions drawn uniformly from [−1, 1]."""
    n, act, obs = len(system.A), system.B.shape[1], len(system.C)
    state_noise, reading_noise = np.linalg.cholesky(system.Q).T, np.linalg.cholesky(system.R).T

    def read(x: Floats) -> Floats:
        return x @ system.C.T + rng.standard_normal((episodes, obs)) @ reading_noise

    x = rng.standard_normal((episodes, n))
    actions = rng.uniform(-1, 1, (steps, episodes, act))
    observations = [read(x)]
    for a in actions:
        x = x @ system.A.T + a @ system.B.T + rng.standard_normal((episodes, n)) @ state_noise
        observations.append(read(x))
    seen = np.stack(observations, axis=1)
    return [Episode(seen[i], actions[:, i]) for i in range(episodes)]


def kalman_predictions(system: LinearGaussian, episodes: Sequence[Episode]) -> list[Floats]:
    """Return E[o_t | o_{0:t-1}, a_{1:t}] for every step of every episode, [time, obs] each, given the true parameters.

    The filter is time-varying and exact from the first step on: the gains are K_t = P_t Cᵀ (C P_t Cᵀ + R)⁻¹,
    starting from P_0 = I.
    """
    A, B, C = system.A, system.B, system.C
    P, gains = np.eye(len(A)), []
    for _ in range(max(len(episode) for episode in episodes)):
        K = P @ C.T @ np.linalg.inv(C @ P @ C.T + system.R)
        gains.append(K)
        P = A @ (P - K @ C @ P) @ A.T + system.Q
    out = []
    for episode in episodes:
        x, predictions = np.zeros(len(A)), []
        for K, o, a in zip(gains, episode.observations, episode.actions, strict=False):
            x = A @ (x + K @ (o - C @ x)) + B @ a
            predictions.append(C @ x)
        out.append(np.stack(predictions))
    return out


def kalman_distributions(system: LinearGaussian, episodes: Iterable[Episode]) -> list[tuple[Floats, Floats]]:
    """Return mean and covariance of o_t given o_{0:t-1} and a_{1:t}, for every step of every episode.

    Readings that are NaN are missing: the filter conditions on the others, which is exact.
    """
    A, B, C = system.A, system.B, system.C
    out = []
    for episode in episodes:
        x, P, means, covariances = np.zeros(len(A)), np.eye(len(A)), [], []
        for o, a in zip(episode.observations, episode.actions, strict=False):
            seen = ~np.isnan(o)
            Cs = C[seen]
            K = P @ Cs.T @ np.linalg.inv(Cs @ P @ Cs.T + system.R[np.ix_(seen, seen)])
            x = A @ (x + K @ (o[seen] - Cs @ x)) + B @ a
            P = A @ (P - K @ Cs @ P) @ A.T + system.Q
            means.append(C @ x)
            covariances.append(C @ P @ C.T + system.R)
        out.append((np.stack(means), np.stack(covariances)))
    return out


@dataclass(frozen=True, eq=False)
class ControlledHMM:
    """s_0 ~ first; s_t ~ transition[a_t, s_{t-1}]; o_t ~ emission[s_t]."""

    transition: Floats
    """[action, state, next state]"""
    emission: Floats
    """[state, symbol]"""
    first: Floats
    """[state]: the stationary distribution under uniformly random actions, so that all steps are distributed alike."""

    @property
    def symbols(self) -> int:
        return self.emission.shape[1]

    @property
    def actions(self) -> int:
        return self.transition.shape[0]


def controlled_hmm(states: int, symbols: int, actions: int, rng: np.random.Generator) -> ControlledHMM:
    """Return a random model with uneven transitions and emissions (Dirichlet ½ and 0.3)."""
    transition = rng.dirichlet(np.full(states, 0.5), (actions, states))
    emission = rng.dirichlet(np.full(symbols, 0.3), states)
    # π (M − I) = 0 and Σπ = 1, as one least-squares problem.
    balance = np.vstack([transition.mean(axis=0).T - np.eye(states), np.ones(states)])
    first = np.linalg.lstsq(balance, np.eye(states + 1)[-1], rcond=None)[0]
    return ControlledHMM(transition, emission, np.maximum(first, 0) / np.maximum(first, 0).sum())


def simulate_hmm(hmm: ControlledHMM, episodes: int, steps: int, rng: np.random.Generator) -> list[Episode]:
    """Return episodes of symbols (one column of whole numbers) under uniformly random actions."""

    def draw(p: Floats) -> NDArray[np.int64]:
        return np.minimum((p.cumsum(axis=-1) < rng.random((len(p), 1))).sum(axis=-1), p.shape[-1] - 1)

    s = draw(np.tile(hmm.first, (episodes, 1)))
    actions = rng.integers(hmm.actions, size=(steps, episodes))
    observations = [draw(hmm.emission[s])]
    for a in actions:
        s = draw(hmm.transition[a, s])
        observations.append(draw(hmm.emission[s]))
    seen, done = np.stack(observations, axis=1).astype(np.float64), actions.T.astype(np.float64)
    return [Episode(o[:, None], a[:, None]) for o, a in zip(seen, done, strict=True)]


def one_hot(hmm: ControlledHMM, episodes: Iterable[Episode]) -> list[Episode]:
    """Return the same episodes with symbols as one-hot vectors, as filters need them."""
    seen, done = np.eye(hmm.symbols), np.eye(hmm.actions)
    return [Episode(seen[_symbols(e.observations)], done[_symbols(e.actions)]) for e in episodes]


def bayes_predictions(hmm: ControlledHMM, episodes: Iterable[Episode]) -> list[Floats]:
    """Return P(o_t | o_{0:t-1}, a_{1:t}) for every step of every episode, [time, symbols] each, by Bayes rule."""
    out = []
    for episode in episodes:
        observations, actions = _symbols(episode.observations), _symbols(episode.actions)
        belief, predictions = hmm.first, []
        for o, a in zip(observations, actions, strict=False):
            belief = belief * hmm.emission[:, o]
            belief = (belief / belief.sum()) @ hmm.transition[a]
            predictions.append(belief @ hmm.emission)
        out.append(np.stack(predictions))
    return out


def _symbols(column: NDArray) -> NDArray[np.int64]:
    return column[:, 0].astype(np.int64)
