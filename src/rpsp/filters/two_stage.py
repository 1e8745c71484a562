"""Two-stage regression, which fits a `KernelBayesFilter` to episodes.

All steps are ridge regressions in float64. Their sums are accumulated over chunks of steps, so that memory does not
grow with the amount of data. There are no local optima.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from rpsp.data import trees
from rpsp.data.batches import Batch
from rpsp.data.linalg import NormalEquations, conditional_operators, outer, randomized_svd
from rpsp.data.randomness import generator
from rpsp.data.windows import WindowIndex, Windows, chunked, flat, window_index
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, compiled_unroll, one_step_error, random_like, to_float32, to_float64
from rpsp.filters.belief import Belief, check_at_least
from rpsp.filters.features import FeatureMap, OneHotSequence, fit_fourier
from rpsp.filters.kernel_bayes import KernelBayesFilter
from rpsp.filters.refinement import refined


@dataclass(frozen=True)
class KernelBayes(Belief):
    """The paper's belief: a `KernelBayesFilter`, fitted by two-stage regression and refined through time."""

    kind: ClassVar[str] = "kernel-bayes"

    past: int = 10
    """Length of the history, in steps."""
    future: int = 5
    """Length of the future that a state predicts, in steps (k in the paper)."""
    padded: bool = True
    """Pad the past at the beginning of an episode. If False, these steps are left out, as described in the paper."""
    dimension: int = 20
    """d: number of projected features of each kind, and of state coordinates unless `state_dimension` is given."""
    state_dimension: int | None = None
    """Number of state coordinates: the rank of the system if the features are exact. Default: `dimension`."""
    history_dimension: int = 100
    """Number of features of the history."""
    frequencies: int = 300
    """Number of random Fourier frequencies before projection. 1000, as in the paper, changes little and is slower."""
    percentile: float = 95.0
    """The kernel width is this percentile of pairwise distances."""
    conditional: bool = False
    """In stage 1, regress A on h ⊗ B instead of A ⊗ B and B ⊗ B on h (A: observations, B: actions, h: history)."""
    stage1_ridge: float = 0.01
    """Ridge of joint stage 1, `conditional=False` (on sums)."""
    conditional_ridge: float = 10.0
    """Ridge of conditional stage 1. It is larger, because there are d times as many weights."""
    division_ridge: float = 0.01
    """λ of the conditional operators C_AB C_BB (C_BB² + λI)⁻¹ of joint stage 1."""
    stage2_ridge: float = 1.0
    """Ridge of stage 2 and of the predictions (on sums)."""
    ridge: float = 1e-3
    """λ of the filter's kernel Bayes rule."""
    clamp: float = 5.0
    """States and the inputs of Fourier features are clipped to this many standard deviations, per coordinate."""
    epochs: int = 20
    """Number of refinement epochs (backpropagation through time) after the regression."""
    refit_epochs: int = 0
    """Number of refinement epochs of a refit. 0: none, as in version 0.4.0."""
    refit_from: Literal["regression", "filter", "both"] = "regression"
    """What a refit refines: a new two-stage regression, the filter in use, or both; the smaller held-out error wins."""
    random: bool = False
    """Initialise the parameters at random before the refinement, instead of by regression (the paper's random PSR)."""
    train_predictions: bool = True
    """Train W_pred, the weights of the one-step prediction, with the policy. If False, only refinement trains them."""

    def __post_init__(self) -> None:
        """Check the settings."""
        check_at_least(self, 1, "past", "future", "dimension", "state_dimension", "history_dimension", "frequencies")
        ridges = "stage1_ridge", "conditional_ridge", "division_ridge", "stage2_ridge", "ridge"
        check_at_least(self, 0, "epochs", "refit_epochs", "clamp", "percentile", *ridges)
        if self.percentile > 100:
            raise UsageError(f"percentile: {self.percentile} must be between 0 and 100.")

    @property
    def min_length(self) -> int:
        """Minimum length of an episode: k + 1 steps, the future and the shifted future."""
        return self.future + 1

    def fit(self, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> AbstractFilter:
        """Fit by two-stage regression, then refine by backpropagation through time."""
        return self._initialised(batch, held_out, self.epochs, key=key, random=self.random)

    def refit(self, filter: AbstractFilter, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> AbstractFilter:
        """Repeat the initialisation on recent episodes: regression, then refinement. State coordinates change.

        With `refit_from="both"`, the filter in use is refined as well, and the filter with the smaller one-step error on
        held-out episodes is returned.
        """
        candidates: list[AbstractFilter] = []
        if self.refit_from != "filter":
            candidates.append(self._initialised(batch, held_out, self.refit_epochs, key=key))
        if self.refit_from != "regression":
            candidates.append(refined(filter, batch, held_out, self.refit_epochs, key=jax.random.fold_in(key, 1)))
        return min(candidates, key=lambda found: one_step_error(found, held_out))

    def _initialised(
        self, batch: Batch, held_out: Batch, epochs: int, *, key: PRNGKeyArray, random: bool = False
    ) -> KernelBayesFilter:
        """Regress, refine for some epochs, then freeze what the policy's algorithm shall not train."""
        fit_key, random_key, refine_key = jax.random.split(key, 3)
        filter = fit_two_stage(batch, self, rng=generator(fit_key))
        if random:
            filter = random_like(filter, key=random_key)
        filter = refined(filter, batch, held_out, epochs, key=refine_key)
        # Only now, because refinement trains all parameters.
        return filter if self.train_predictions else replace(filter, frozen=("W_pred",))


class Maps(NamedTuple):
    """The five feature maps."""

    history: FeatureMap
    """Of the history h_t."""
    phi_o: FeatureMap
    """φ_o, of one observation."""
    phi_a: FeatureMap
    """φ_a, of one action."""
    psi_o: FeatureMap
    """ψ_o, of k observations."""
    psi_a: FeatureMap
    """ψ_a, of k actions."""


def one_hot_maps(symbols: int, actions: int, past: int, future: int) -> Maps:
    """Create indicator features of whole windows, for discrete observations and actions.

    With them the operators of the filter are exact probability tables, and kernel Bayes rule is Bayes rule.

    Args:
        symbols: number of observation symbols.
        actions: number of actions.
        past: length of the history.
        future: length of the future.
    """
    return Maps(
        history=OneHotSequence((symbols,) * past + (actions,) * past),
        phi_o=OneHotSequence((symbols,)),
        phi_a=OneHotSequence((actions,)),
        psi_o=OneHotSequence((symbols,) * future),
        psi_a=OneHotSequence((actions,) * future),
    )


SAMPLE = 4_000  # steps to which widths and projections are fitted; the regressions use all steps


def fit_maps(index: WindowIndex, settings: KernelBayes, *, rng: np.random.Generator) -> Maps:
    """Fit random Fourier features of each window, projected by randomized SVD."""
    w = index.sample(SAMPLE, rng=rng)
    d, h = settings.dimension, settings.history_dimension
    windows = (w.history, h), (w.observation, d), (w.action, d), (w.future_observations, d), (w.future_actions, d)
    fit = partial(
        fit_fourier, rng=rng, frequencies=settings.frequencies, percentile=settings.percentile, clamp=settings.clamp
    )
    return Maps(*(fit(data, size) for data, size in windows))


def fit_two_stage(
    batch: Batch, settings: KernelBayes | None = None, *, rng: np.random.Generator, maps: Maps | None = None
) -> KernelBayesFilter:
    """Fit a kernel Bayes filter by two-stage regression (section 3.1 and appendix 1 of the paper).

    Stage 1 estimates the operators E[C_{ψo|ψa} | h], E[C_{ξo|ξa} | h] and E[C_{oo|φa} | h] from the history h. C_{A|B}
    is the conditional operator of A given B; φ, ψ and ξ are features of 1, k and k + 1 steps; the index o stands for
    observations, a for actions and oo for the covariance of φ_o. Projections of the first operator are the states q.

    Stage 2 is a linear regression from q to the other two operators, with weights W_ext. Predictions are then regressed
    on the states that the filter reaches.

    Args:
        batch: training episodes.
        settings: default: `KernelBayes()`.
        rng: random generator.
        maps: feature maps. Default: random Fourier features fitted to the batch.

    Raises:
        UsageError: if the episodes are too short.
    """
    settings = settings or KernelBayes()
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
    """Fit the predictions of a filter to the states that it reaches, where they will be used.

    W_pred is the ridge regression from q_t ⊗ φ_a(a_t) to o_t, and W_hor the one from q_t ⊗ ψ_a(a_{t:t+k-1}) to
    o_{t:t+k-1}.

    Args:
        filter: a filter with a fitted update.
        batch: training episodes.
        ridge: ridge of both regressions (on sums).
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
    return to_float32(trees.replace(lambda f: (f.W_pred, f.W_hor), filter, solved))


class _Derived(NamedTuple):
    """The derived features ψ_o(t+1) ⊗ φ_o(t), ψ_a(t+1) ⊗ φ_a(t) and φ_o φ_oᵀ, or their projections."""

    xi_o: np.ndarray
    xi_a: np.ndarray
    oo: np.ndarray


class _Features(NamedTuple):
    """The features of the windows of some steps."""

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
    """The features of all steps, in chunks of bounded size. A single chunk is kept for the next pass."""

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
    """Return the lower triangle of φ φᵀ for every row φ."""
    i, j = np.tril_indices(phi.shape[1])
    return phi[:, i] * phi[:, j]


def _symmetric(lower: Float[np.ndarray, "n d_d1_2"], d: int) -> Float[np.ndarray, "n d d"]:
    """Convert lower triangles to symmetric matrices."""
    i, j = np.tril_indices(d)
    full = np.zeros((len(lower), d, d))
    full[:, i, j] = full[:, j, i] = lower
    return full


def _pairs(f: _Features, U: _Derived) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (A, B) of the three stage-1 regressions: state, extended state and covariance of φ_o."""
    xi_o, xi_a, oo = (x @ u for x, u in zip(f.derived, U, strict=True))
    return [(f.psi_o, f.psi_a), (xi_o, xi_a), (oo, f.phi_a)]


def _stage1(
    chunks: _Chunks, U: _Derived, settings: KernelBayes
) -> Callable[[_Features], list[Float[np.ndarray, "n a_b"]]]:
    """Fit the three stage-1 regressions.

    Joint: A ⊗ B and B ⊗ B are regressed on h, and C_{A|B} = C_AB C_BB (C_BB² + λI)⁻¹ for every sample.
    Conditional: A is regressed on h ⊗ B, and C_{A|B} is the result for a given h, as a map of B.

    Returns:
        A function that computes the denoised operators C_{A|B} of any features.
    """

    def problems(f: _Features) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return inputs and outputs of the regression of each pair."""
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
        out: list[np.ndarray] = []
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
