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
from jaxtyping import Bool, Float, Int

from rpsp.errors import UsageError
from rpsp.features import FeatureMap, OneHotSequence, fit_fourier
from rpsp.filters import compiled_unroll, one_step_error, to_float32, to_float64
from rpsp.linalg import NormalEquations, conditional_operators, outer, randomized_svd
from rpsp.psr import KernelBayesFilter, TabularFilter
from rpsp.trajectories import Batch
from rpsp.windows import WindowIndex, Windows, chunked, flat, window_index


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
    performed, observations = flat(batch.performed).astype(np.float64), flat(batch.observations).astype(np.float64)
    one_step, horizon = NormalEquations(*filter.W_pred.shape), NormalEquations(*filter.W_hor.shape)
    for steps in chunked(np.flatnonzero(flat(batch.mask))):
        one_step.add(outer(states[steps], filter.phi_a(performed[steps])), observations[steps])
    for steps, w in window_index(batch, 1, filter.future_length).chunks():
        horizon.add(outer(states[steps], filter.psi_a(w.future_actions)), w.future_observations)
    solved = one_step.solve(ridge), horizon.solve(ridge)
    return to_float32(eqx.tree_at(lambda f: (f.W_pred, f.W_hor), filter, solved))


@dataclass(frozen=True)
class TabularSettings:
    """How the discrete model is learned."""

    past: int = 2
    """Symbols of history that are told apart."""
    future: int = 2
    """Symbols of future in a state's table."""
    max_rank: int = 12
    """Ranks of the state up to this one compete on held-out episodes: a direction too many makes the filter drift."""
    ridge: float = 1e-3
    """Ridge of stage 2 (on sums)."""
    smoothing: float = 1.0
    """Pseudo-counts that draw what was rarely tried towards the average over histories."""


def fit_tabular(batch: Batch, held_out: Batch, settings: TabularSettings | None = None) -> TabularFilter:
    """Learn the discrete predictive state by counting and one regression, from one-hot episodes.

    Stage 1 counts: for each history h (the last `past` symbols), P(o_{t:t+k-1} | h, a_{t:t+k-1}) and the same one step
    longer. Stage 2 regresses the longer tables on the shorter, each history weighted by its count: the histories are the
    instruments. The shorter tables are first projected on their leading directions, as many as predict held-out episodes
    best: the rank of the system.
    """
    settings = settings or TabularSettings()
    symbols, actions = batch.observations.shape[-1], batch.performed.shape[-1]
    o_k, a_k = symbols**settings.future, actions**settings.future
    if (entries := o_k * a_k * symbols * o_k * actions * a_k) > MAX_ENTRIES:
        raise UsageError(
            f"future: {symbols} symbols and {actions} actions over {settings.future} steps make a W_ext of {entries:,} "
            f"entries, more than {MAX_ENTRIES:,}; choose a smaller future, or merge symbols."
        )
    index = window_index(batch, settings.past, settings.future)
    chunks = [_codes(w, index.since_start[steps] == 0, symbols, actions, settings) for steps, w in index.chunks()]
    c = _Codes(*(np.concatenate(parts, axis=-1) for parts in zip(*chunks, strict=True)))
    found, history = np.unique(c.history, return_inverse=True)
    weights = np.sqrt(np.bincount(history))[:, None]
    q = _tables(history, c.short, (len(found), o_k, a_k), settings.smoothing).reshape(len(found), -1)
    extended_shape = (len(found), symbols * o_k, actions * a_k)
    p = _tables(history, c.long, extended_shape, settings.smoothing).reshape(len(found), -1)
    began = c.reset >= 0
    W_first = _tables(c.reset[began], c.short[:, began], (symbols, o_k, a_k), settings.smoothing)
    directions = np.linalg.svd(weights * q, full_matrices=False)[2].T

    def with_rank(rank: int) -> TabularFilter:
        U = directions[:, :rank]
        equations = NormalEquations(rank, p.shape[1]).add(weights * (q @ U), weights * p)
        W_ext = U @ equations.solve(settings.ridge)
        return to_float32(TabularFilter(W_ext.reshape(o_k, a_k, -1), W_first, actions))

    candidates = (with_rank(rank) for rank in range(1, min(settings.max_rank, directions.shape[1]) + 1))
    return min(candidates, key=lambda filter: one_step_error(filter, held_out))


MAX_ENTRIES = 20_000_000  # of the map from tables of k steps to tables of k + 1


class _Codes(NamedTuple):
    """Windows of symbols as whole numbers."""

    history: Int[np.ndarray, " n"]
    reset: Int[np.ndarray, " n"]
    """The reset observation where an episode starts, −1 elsewhere."""
    short: Int[np.ndarray, "2 n"]
    """o_{t:t+k-1} and a_{t:t+k-1}."""
    long: Int[np.ndarray, "2 n"]
    """o_{t:t+k} and a_{t:t+k}."""


def _codes(w: Windows, starts: Bool[np.ndarray, " n"], symbols: int, actions: int, settings: TabularSettings) -> _Codes:
    past, future = settings.past, settings.future
    seen, done = w.history[:, : past * symbols], w.history[:, past * symbols : -1].reshape(-1, past, actions)
    # A padded action is a null vector: argmax would call it symbol 0, so "none" gets a symbol of its own.
    done = np.concatenate([1 - done.sum(axis=2, keepdims=True), done], axis=2).reshape(len(seen), -1)
    observed = _sequence(seen, symbols, past)
    short = _sequence(w.future_observations, symbols, future), _sequence(w.future_actions, actions, future)
    later = _sequence(w.shifted_observations, symbols, future), _sequence(w.shifted_actions, actions, future)
    now = w.observation.argmax(axis=1) * symbols**future, w.action.argmax(axis=1) * actions**future
    return _Codes(
        history=observed * (actions + 1) ** past + _sequence(done, actions + 1, past),
        reset=np.where(starts, observed % symbols, -1),
        short=np.stack(short),
        long=np.stack(now) + np.stack(later),
    )


def _sequence(one_hot: Float[np.ndarray, "n k_size"], size: int, length: int) -> Int[np.ndarray, " n"]:
    """The number of a sequence of symbols, first symbol most significant."""
    digits = one_hot.reshape(len(one_hot), length, size).argmax(axis=2)
    return digits @ size ** np.arange(length - 1, -1, -1)


def _tables(
    group: Int[np.ndarray, " n"], outcome_given: Int[np.ndarray, "2 n"], shape: tuple[int, int, int], smoothing: float
) -> Float[np.ndarray, "groups outcomes givens"]:
    """P(outcome | group, given) by counting, drawn by `smoothing` pseudo-counts towards P(outcome | given)."""
    counts = np.bincount(np.ravel_multi_index((group, *outcome_given), shape), minlength=np.prod(shape)).reshape(shape)
    overall = counts.sum(axis=0) + 1 / shape[1]
    overall = overall / overall.sum(axis=0)
    return (counts + smoothing * overall) / (counts.sum(axis=1, keepdims=True) + smoothing)


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
