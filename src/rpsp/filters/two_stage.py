"""Two-stage regression: windows and features to a `KernelBayesFilter`. No gradients, no environment.

Everything is ridge regression in float64, summed over chunks of steps, so that memory does not grow with the data and
no local optimum can be met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float

from rpsp.data.batches import Batch
from rpsp.data.linalg import NormalEquations, conditional_operators, outer, randomized_svd
from rpsp.data.windows import WindowIndex, Windows, chunked, flat, window_index
from rpsp.filters.base import compiled_unroll, to_float32, to_float64
from rpsp.filters.features import FeatureMap, OneHotSequence, fit_fourier
from rpsp.filters.kernel_bayes import KernelBayesFilter


@dataclass(frozen=True)
class TwoStageSettings:
    """How the paper's filter is initialised."""

    past: int = 10
    """Steps of history."""
    future: int = 5
    """Steps of future that a state predicts (the paper's k)."""
    padded: bool = True
    """Pad the past at an episode's start; the paper's letter drops those steps instead."""
    dimension: int = 20
    """d: of every projected feature, and of the state unless that is given apart."""
    state_dimension: int | None = None
    """Of the state alone: the rank of the system, where features are exact."""
    history_dimension: int = 100
    """Features of the past."""
    frequencies: int = 300
    """Random Fourier frequencies before projection; 1000 in the paper changes little and costs time."""
    percentile: float = 95.0
    """Kernel width as a percentile of pairwise distances."""
    conditional: bool = False
    """Stage 1 regresses A on h ⊗ B directly, instead of the joint A ⊗ B and B ⊗ B on h."""
    stage1_ridge: float = 0.01
    """Ridge of joint stage 1 (on sums)."""
    conditional_ridge: float = 10.0
    """Ridge of conditional stage 1, which has d times as many weights to hold down."""
    division_ridge: float = 0.01
    """λ of the conditional operators C_AB C_BB (C_BB² + λI)⁻¹ of joint stage 1."""
    stage2_ridge: float = 1.0
    """Ridge of stage 2 and of the predictions (on sums)."""
    ridge: float = 1e-3
    """λ of the filter's kernel Bayes rule."""
    clamp: float = 5.0
    """States, and what the Fourier features see, are clamped to so many standard deviations a coordinate."""


class Maps(NamedTuple):
    """The five feature maps."""

    history: FeatureMap
    phi_o: FeatureMap
    phi_a: FeatureMap
    psi_o: FeatureMap
    psi_a: FeatureMap


def one_hot_maps(symbols: int, actions: int, past: int, future: int) -> Maps:
    """Indicators of whole windows: with them the filter's tables are exact, and kernel Bayes rule is Bayes rule."""
    return Maps(
        history=OneHotSequence((symbols,) * past + (actions,) * past),
        phi_o=OneHotSequence((symbols,)),
        phi_a=OneHotSequence((actions,)),
        psi_o=OneHotSequence((symbols,) * future),
        psi_a=OneHotSequence((actions,) * future),
    )


SAMPLE = 4_000  # steps on which widths and projections are fitted; the regressions use every step


def fit_maps(index: WindowIndex, settings: TwoStageSettings, *, rng: np.random.Generator) -> Maps:
    """Random Fourier features of each window, projected by randomized SVD."""
    w = index.sample(SAMPLE, rng=rng)
    d, h = settings.dimension, settings.history_dimension
    windows = (w.history, h), (w.observation, d), (w.action, d), (w.future_observations, d), (w.future_actions, d)
    options = {"frequencies": settings.frequencies, "percentile": settings.percentile, "clamp": settings.clamp}
    return Maps(*(fit_fourier(data, size, rng=rng, **options) for data, size in windows))


def fit_two_stage(
    batch: Batch, settings: TwoStageSettings | None = None, *, rng: np.random.Generator, maps: Maps | None = None
) -> KernelBayesFilter:
    """Initialise the paper's filter by two-stage regression (section 3.1 and appendix 1 of the paper).

    Stage 1 denoises: E[C_{ψo|ψa} | h], E[C_{ξo|ξa} | h], E[C_{oo|φa} | h]. The first, projected, are the states q.
    Stage 2 is linear: W_ext from q to the other two. Predictions are regressed on the states that the filter reaches.
    """
    settings = settings or TwoStageSettings()
    index = window_index(batch, settings.past, settings.future, padded=settings.padded)
    maps = maps or fit_maps(index, settings, rng=rng)
    sample = index.sample(SAMPLE, rng=rng)
    some = _features(sample, maps)
    U = _Derived(*(randomized_svd(x, settings.dimension, rng=rng) for x in some.derived))
    chunks = _Chunks(index, maps)
    denoise = _stage1(chunks, U, settings)

    U_q = randomized_svd(denoise(some)[0], settings.state_dimension or settings.dimension, rng=rng)
    d = U_q.shape[1]
    xi_o, xi_a, oo = (u.shape[1] for u in U)
    phi_o, phi_a, psi_o, psi_a = (x.shape[1] for x in (some.phi_o, some.phi_a, some.psi_o, some.psi_a))
    stage2 = NormalEquations(d, xi_o * xi_a + oo * phi_a)
    total, squares = np.zeros(d), np.zeros(d)
    for f in chunks:
        state, extended, covariance = denoise(f)
        q = state @ U_q
        stage2.add(q, np.concatenate([extended, covariance], axis=1))
        total, squares = total + q.sum(axis=0), squares + (q**2).sum(axis=0)
    W_ext_xi, W_ext_o = np.split(stage2.solve(settings.stage2_ridge), [xi_o * xi_a], axis=1)
    q0 = total / stage2.count
    spread = settings.clamp * np.sqrt(np.maximum(squares / stage2.count - q0**2, 1e-12))

    filter = KernelBayesFilter(
        q0=q0,
        W_ext_xi=W_ext_xi,
        W_ext_o=W_ext_o,
        W_pred=np.zeros((d * phi_a, sample.observation.shape[1])),
        W_hor=np.zeros((d * psi_a, sample.future_observations.shape[1])),
        phi_o=maps.phi_o,
        phi_a=maps.phi_a,
        psi_a=maps.psi_a,
        U_xi_o=U.xi_o.reshape(psi_o, phi_o, xi_o).transpose(1, 0, 2),
        U_xi_a=U.xi_a.reshape(psi_a, phi_a, xi_a).transpose(1, 2, 0),
        U_oo=_symmetric(U.oo.T, phi_o),
        U_q=U_q.reshape(psi_o, psi_a, d),
        ridge=np.asarray(settings.ridge),
        low=q0 - spread,
        high=q0 + spread,
        future_length=settings.future,
    )
    return fit_predictions(filter, batch, settings.stage2_ridge)


def fit_predictions(filter: KernelBayesFilter, batch: Batch, ridge: float) -> KernelBayesFilter:
    """Regress W_pred and W_hor on the states that the filter itself reaches, which is where they will be used.

    W_pred: ridge from q_t ⊗ φ_a(a_t) to o_t. W_hor: ridge from q_t ⊗ ψ_a(a_{t:t+k-1}) to o_{t:t+k-1}.
    """
    filter = to_float64(filter)
    states = flat(compiled_unroll(filter, batch)).astype(np.float64)
    actions, observations = flat(batch.actions).astype(np.float64), flat(batch.observations).astype(np.float64)
    one_step, horizon = NormalEquations(*filter.W_pred.shape), NormalEquations(*filter.W_hor.shape)
    for steps in chunked(np.flatnonzero(flat(batch.mask))):
        one_step.add(outer(states[steps], filter.phi_a(actions[steps])), observations[steps])
    for steps, w in window_index(batch, 1, filter.future_length).chunks():
        horizon.add(outer(states[steps], filter.psi_a(w.future_actions)), w.future_observations)
    solved = one_step.solve(ridge), horizon.solve(ridge)
    return to_float32(eqx.tree_at(lambda f: (f.W_pred, f.W_hor), filter, solved))


class _Derived(NamedTuple):
    """The derived features, or the projections of them: ψ_o(t+1) ⊗ φ_o(t), ψ_a(t+1) ⊗ φ_a(t), φ_o φ_oᵀ."""

    xi_o: np.ndarray
    xi_a: np.ndarray
    oo: np.ndarray


class _Features(NamedTuple):
    """The windows of some steps under the maps."""

    history: Float[np.ndarray, "n h"]
    phi_o: Float[np.ndarray, "n phi_o"]
    phi_a: Float[np.ndarray, "n phi_a"]
    psi_o: Float[np.ndarray, "n psi_o"]
    psi_a: Float[np.ndarray, "n psi_a"]
    derived: _Derived


def _features(w: Windows, maps: Maps) -> _Features:
    phi_o, phi_a = maps.phi_o(w.observation), maps.phi_a(w.action)
    derived = _Derived(
        xi_o=outer(maps.psi_o(w.shifted_observations), phi_o),
        xi_a=outer(maps.psi_a(w.shifted_actions), phi_a),
        oo=_lower(phi_o),
    )
    psi_o, psi_a = maps.psi_o(w.future_observations), maps.psi_a(w.future_actions)
    return _Features(maps.history(w.history), phi_o, phi_a, psi_o, psi_a, derived)


class _Chunks:
    """The features of all steps, a bounded number at a time; kept for the next pass where one chunk is all there is."""

    def __init__(self, index: WindowIndex, maps: Maps):
        self.index, self.maps = index, maps
        self.only: _Features | None = None

    def __iter__(self) -> Iterator[_Features]:
        if self.only is not None:
            yield self.only
            return
        for _, w in self.index.chunks():
            features = _features(w, self.maps)
            if len(self.index) == len(features.history):
                self.only = features
            yield features


def _lower(phi: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d_d1_2"]:
    """The lower triangle of φ φᵀ, row by row."""
    i, j = np.tril_indices(phi.shape[1])
    return phi[:, i] * phi[:, j]


def _symmetric(lower: Float[np.ndarray, "n d_d1_2"], d: int) -> Float[np.ndarray, "n d d"]:
    """Lower triangles back to symmetric matrices."""
    i, j = np.tril_indices(d)
    full = np.zeros((len(lower), d, d))
    full[:, i, j] = full[:, j, i] = lower
    return full


def _pairs(f: _Features, U: _Derived) -> list[tuple[np.ndarray, np.ndarray]]:
    """(A, B) of the three stage-1 regressions: state, extended state, immediate covariance."""
    xi_o, xi_a, oo = (x @ u for x, u in zip(f.derived, U, strict=True))
    return [(f.psi_o, f.psi_a), (xi_o, xi_a), (oo, f.phi_a)]


def _stage1(
    chunks: _Chunks, U: _Derived, settings: TwoStageSettings
) -> Callable[[_Features], list[Float[np.ndarray, "n a_b"]]]:
    """Fit the three stage-1 regressions; the function returned gives the denoised operators C_{A|B} of any features.

    Joint: A ⊗ B and B ⊗ B are regressed on h, and C_{A|B} = C_AB C_BB (C_BB² + λI)⁻¹ sample by sample.
    Conditional: A is regressed on h ⊗ B, and C_{A|B} is that regression with h filled in.
    """

    def problems(f: _Features) -> list[tuple[np.ndarray, np.ndarray]]:
        """Inputs and outputs of the regressions behind each pair."""
        if settings.conditional:
            return [(outer(f.history, B), A) for A, B in _pairs(f, U)]
        return [(f.history, np.concatenate([outer(A, B), outer(B, B)], axis=1)) for A, B in _pairs(f, U)]

    equations: list[NormalEquations] = []
    for f in chunks:
        for i, (X, Y) in enumerate(problems(f)):
            if i == len(equations):
                equations.append(NormalEquations(X.shape[1], Y.shape[1]))
            equations[i].add(X, Y)
    ridge = settings.conditional_ridge if settings.conditional else settings.stage1_ridge
    solutions = [e.solve(ridge) for e in equations]

    def denoise(f: _Features) -> list[np.ndarray]:
        out = []
        for W, (A, B) in zip(solutions, _pairs(f, U), strict=True):
            n, a, b = len(A), A.shape[1], B.shape[1]
            if settings.conditional:
                operators = (f.history @ W.reshape(-1, b * a)).reshape(n, b, a).transpose(0, 2, 1)
            else:
                C_ab, C_bb = np.split(f.history @ W, [a * b], axis=1)
                operators = conditional_operators(C_ab.reshape(n, a, b), C_bb.reshape(n, b, b), settings.division_ridge)
            out.append(operators.reshape(n, a * b))
        return out

    return denoise
