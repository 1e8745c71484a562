"""Two-stage regression and counting against the exact Bayes filter, and stage by stage against plain counts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.systems import (
    ControlledHMM,
    bayes_predictions,
    kalman_predictions,
    linear_gaussian,
    one_hot,
    simulate_hmm,
    simulate_linear_gaussian,
)

import rpsp.data.windows
import rpsp.filters.two_stage
from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.data.linalg import outer
from rpsp.data.windows import flat, window_index
from rpsp.errors import UsageError
from rpsp.filters.base import compiled_unroll, one_step_error, predictions, trainable, unroll
from rpsp.filters.kernel_bayes import KernelBayesFilter
from rpsp.filters.tabular import Tabular, fit_tabular
from rpsp.filters.two_stage import (
    KernelBayes,
    _Chunks,
    _Derived,
    _features,
    _lower,
    _stage1,
    _symmetric,
    fit_predictions,
    fit_two_stage,
    one_hot_maps,
)

PAST, FUTURE = 2, 1
SETTINGS = KernelBayes(
    past=PAST,
    future=FUTURE,
    dimension=64,  # more than the features have: nothing is projected away
    state_dimension=2,  # the rank of the system
    padded=False,
    stage1_ridge=1e-3,
    conditional_ridge=1e-3,
    division_ridge=1e-6,
    stage2_ridge=1e-3,
    ridge=1e-6,
)


def test_predictions_are_frozen_after_the_refinement_and_not_before() -> None:
    rng = np.random.default_rng(0)
    system = linear_gaussian(2, 2, 1, rng)
    batch, held = (pack(simulate_linear_gaussian(system, 10, 20, rng)) for _ in range(2))
    small = KernelBayes(past=3, future=2, dimension=4, history_dimension=8, frequencies=20, epochs=3)
    key = jax.random.key(0)
    fitted, free, frozen, refitted = (
        belief.fit(batch, held, key=key)
        for belief in (
            replace(small, epochs=0),
            small,
            replace(small, train_predictions=False),
            replace(small, train_predictions=False, epochs=0, refit_epochs=3),
        )
    )
    assert isinstance(free, KernelBayesFilter) and isinstance(frozen, KernelBayesFilter)
    np.testing.assert_array_equal(free.W_pred, frozen.W_pred)
    assert not np.array_equal(fitted.W_pred, frozen.W_pred)  # refined
    assert (free.frozen, frozen.frozen) == ((), ("W_pred",))
    marks = trainable(frozen)
    assert not marks.W_pred and marks.W_ext_xi and marks.q0 and trainable(free).W_pred
    again = replace(small, train_predictions=False, refit_epochs=3).refit(refitted, batch, held, key=key)
    assert isinstance(again, KernelBayesFilter) and again.frozen == ("W_pred",)
    np.testing.assert_array_equal(again.W_pred, frozen.W_pred)  # the same key, the same epochs


def small_hmm() -> ControlledHMM:
    """Two states, two symbols, two actions, none of them deterministic; starts where random actions settle."""
    transition = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.3, 0.7], [0.6, 0.4]]])
    emission = np.array([[0.85, 0.15], [0.2, 0.8]])
    flow = transition.mean(axis=0)
    first = np.array([flow[1, 0], flow[0, 1]]) / (flow[1, 0] + flow[0, 1])
    return ControlledHMM(transition, emission, first)


@cache
def episodes(count: int, seed: int) -> Batch:
    hmm = small_hmm()
    return pack(one_hot(hmm, simulate_hmm(hmm, count, 30, np.random.default_rng(seed))))


guesses = eqx.filter_jit(lambda f, batch: predictions(f, unroll(f, batch), jnp.asarray(batch.actions)))


def bayes_error(filter) -> float:
    """Root mean square difference from the exact Bayes filter's predictions on fresh episodes."""
    hmm = small_hmm()
    test = simulate_hmm(hmm, 40, 30, np.random.default_rng(99))
    exact = np.stack(bayes_predictions(hmm, test))
    return float(np.sqrt(np.mean((np.asarray(guesses(filter, pack(one_hot(hmm, test)))) - exact) ** 2)))


def two_stage(batch: Batch, conditional: bool = False):
    settings = replace(SETTINGS, conditional=conditional)
    return fit_two_stage(batch, settings, rng=np.random.default_rng(0), maps=one_hot_maps(2, 2, PAST, FUTURE))


FITS = {
    "joint": lambda n, seed: two_stage(episodes(n, seed)),
    "conditional": lambda n, seed: two_stage(episodes(n, seed), conditional=True),
    "tabular": lambda n, seed: fit_tabular(
        episodes(n, seed), episodes(n // 5, seed + 50), Tabular(past=PAST, future=FUTURE)
    ),
}


@pytest.mark.parametrize(
    "kind", ["tabular", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("joint", "conditional"))]
)
def test_error_falls_with_the_root_of_the_data(kind):
    """Ten times the data, √10 = 3.2 times less error (at least 2.5), towards the exact filter and not towards a bias."""
    few, many = (np.mean([bayes_error(FITS[kind](n, seed)) for seed in (0, 1, 2)]) for n in (100, 1000))
    assert few / many > 2.5
    assert many < 0.02  # the exact predictions themselves vary by 0.13


def test_joint_and_conditional_agree_where_every_window_was_seen():
    """With indicators both are the same conditional frequencies, up to their ridges."""
    joint, conditional = (two_stage(episodes(1000, 0), conditional=c) for c in (False, True))
    batch = episodes(40, 7)
    np.testing.assert_allclose(guesses(joint, batch), guesses(conditional, batch), atol=2e-3)


@pytest.mark.parametrize("conditional", [False, True])
def test_stage_1_is_counting(conditional):
    """E[C_{A|B} | h] with indicators is, for each history, the frequency of A among the windows with that B."""
    settings = replace(
        SETTINGS, conditional=conditional, stage1_ridge=1e-9, conditional_ridge=1e-9, division_ridge=1e-12
    )
    index, maps = window_index(episodes(100, 0), PAST, FUTURE, padded=False), one_hot_maps(2, 2, PAST, FUTURE)
    f = _features(index.cut(index.steps), maps)
    state, extended, covariance = _stage1(
        _Chunks(index, maps), _Derived(*(np.eye(x.shape[1]) for x in f.derived)), settings
    )(f)
    assert state.dtype == extended.dtype == covariance.dtype == np.float64
    pairs = [
        (state, f.psi_o, f.psi_a),
        (extended, f.derived.xi_o, f.derived.xi_a),
        (covariance, f.derived.oo, f.phi_a),
    ]
    history = f.history.argmax(axis=1)
    for denoised, A, B in pairs:
        denoised = denoised.reshape(len(A), A.shape[1], B.shape[1])
        for h in np.unique(history):
            here = history == h
            for b in range(B.shape[1]):
                among = here & (B[:, b] == 1)
                assert among.any()
                expected = np.broadcast_to(A[among].mean(axis=0), (here.sum(), A.shape[1]))
                np.testing.assert_allclose(denoised[here, :, b], expected, atol=1e-4)


def test_everything_is_fitted_in_float64(monkeypatch):
    seen = set()

    class Watched(rpsp.filters.two_stage.NormalEquations):
        def add(self, X, Y):
            seen.update([X.dtype, Y.dtype, self.XtX.dtype, self.XtY.dtype])
            return super().add(X, Y)

    monkeypatch.setattr(rpsp.filters.two_stage, "NormalEquations", Watched)
    filter = two_stage(episodes(20, 0))
    fit_tabular(episodes(20, 0), episodes(20, 1))
    assert seen == {np.dtype(np.float64)}
    assert filter.W_ext_xi.dtype == filter.U_q.dtype == jnp.float32  # and run in float32


def test_chunks_do_not_matter(monkeypatch):
    batch = continuous()[0]
    settings = KernelBayes(past=4, future=2, dimension=5, history_dimension=15, frequencies=30)
    whole = fit_two_stage(batch, settings, rng=np.random.default_rng(0))
    monkeypatch.setattr(rpsp.data.windows, "CHUNK", 101)
    pieces = fit_two_stage(batch, settings, rng=np.random.default_rng(0))
    np.testing.assert_allclose(guesses(pieces, batch), guesses(whole, batch), atol=2e-3)
    np.testing.assert_allclose(pieces.q0, whole.q0, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pieces.W_ext_xi, whole.W_ext_xi, rtol=1e-3, atol=1e-4)


@cache
def continuous() -> tuple[Batch, list[Episode], float]:
    """Data, test episodes and the Kalman filter's error on them: two latent dimensions, one input, two readings."""
    rng = np.random.default_rng(0)
    system = linear_gaussian(2, 2, 1, rng)
    fit, test = (simulate_linear_gaussian(system, n, 30, rng) for n in (50, 30))
    exact = kalman_predictions(system, test)
    error = np.mean([(p - e.observations[1:]) ** 2 for p, e in zip(exact, test, strict=True)])
    return pack(fit), test, float(error)


@cache
def fourier_filter(conditional: bool):
    settings = KernelBayes(past=4, future=2, dimension=8, history_dimension=20, frequencies=60)
    if conditional:  # regresses on h ⊗ B, ten times as many inputs: wants more ridge
        settings = replace(settings, conditional=True, stage1_ridge=1.0)
    return fit_two_stage(continuous()[0], settings, rng=np.random.default_rng(0))


@pytest.mark.parametrize("conditional", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_fourier_features_come_near_the_kalman_filter(conditional):
    _, test, kalman = continuous()
    error = one_step_error(fourier_filter(conditional), pack(test))
    persistence = np.mean([np.diff(e.observations, axis=0) ** 2 for e in test])
    variance = np.mean([(e.observations - np.mean([e.observations for e in test], axis=(0, 1))) ** 2 for e in test])
    assert kalman < error < 1.35 * kalman
    assert error < 0.7 * min(persistence, variance)


def test_predictions_solve_their_normal_equations_on_reached_states():
    """(ΦᵀΦ + λI) W = ΦᵀY for Φ = q_t ⊗ φ_a(a_t), and for the horizon Φ = q_t ⊗ ψ_a(a_{t:t+k-1})."""
    batch, filter = continuous()[0], fourier_filter(False)
    states = flat(compiled_unroll(filter, batch)).astype(np.float64)
    w = window_index(batch, 1, 2)
    windows = w.cut(w.steps)
    one = (
        outer(states, np.asarray(filter.phi_a(jnp.asarray(flat(batch.actions))), np.float64)),
        flat(batch.observations),
    )
    actions = np.asarray(filter.psi_a(jnp.asarray(windows.future_actions, jnp.float32)), np.float64)
    ahead = outer(states[w.steps], actions), windows.future_observations
    for (phi, y), W in ((one, filter.W_pred), (ahead, filter.W_hor)):
        expected = np.linalg.solve(phi.T @ phi + np.eye(phi.shape[1]), phi.T @ y)
        np.testing.assert_allclose(W, expected, atol=1e-3)
    again = fit_predictions(filter, batch, 1.0)
    np.testing.assert_allclose(again.W_pred, filter.W_pred, atol=1e-3)


def test_states_stay_in_their_box():
    """Readings far beyond anything seen cannot blow the filter up."""
    batch, filter = continuous()[0], fourier_filter(False)
    wild = eqx.tree_at(lambda b: b.previous_observations, batch, 1e3 * batch.previous_observations)
    states = np.asarray(compiled_unroll(filter, wild))
    assert (states >= filter.low).all() and (states <= filter.high).all()


def test_symmetric_undoes_lower():
    phi = np.random.default_rng(0).standard_normal((4, 3))
    np.testing.assert_array_equal(_symmetric(_lower(phi), 3), phi[:, :, None] * phi[:, None, :])


def test_too_short_for_any_window():
    short = pack([Episode(np.zeros((5, 1)), np.zeros((4, 1)))])
    with pytest.raises(UsageError, match=r"longest has 4 steps.*needs 6.*future=3"):
        fit_two_stage(short, KernelBayes(past=3, future=5), rng=np.random.default_rng(0))


def test_one_short_episode_and_constant_readings_are_enough_to_fit():
    rng = np.random.default_rng(0)
    observations = np.column_stack([rng.standard_normal(21), np.full(21, 3.0)])
    batch = pack([Episode(observations, np.zeros((20, 1)))])
    filter = fit_two_stage(batch, rng=rng)
    assert np.isfinite(guesses(filter, batch)).all()


def counter(count: int, seed: int) -> Batch:
    """o_t = (o_{t-1} + a_t) mod 3: nothing is hidden and nothing is random."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        a = rng.integers(2, size=20)
        o = (rng.integers(3) + np.concatenate([[0], np.cumsum(a)])) % 3
        out.append(Episode(np.eye(3)[o], np.eye(2)[a]))
    return pack(out)


def test_tabular_learns_a_deterministic_machine():
    filter = fit_tabular(counter(100, 0), counter(20, 1), Tabular(past=1, future=2))
    batch = counter(30, 2)
    p = np.asarray(guesses(filter, batch))
    assert (p.argmax(axis=-1) == batch.observations.argmax(axis=-1)).all()
    settled = ~batch.starts  # the first table is counted from the starts alone, and smoothed
    np.testing.assert_allclose(p[settled], batch.observations[settled], atol=0.01)


def test_tabular_states_and_predictions_are_distributions():
    filter = FITS["tabular"](100, 0)
    batch = episodes(40, 7)
    states = np.asarray(compiled_unroll(filter, batch)).reshape(*batch.shape, 2, 2)
    assert states.min() >= 0
    np.testing.assert_allclose(states.sum(axis=2), 1, atol=1e-4)
    np.testing.assert_allclose(np.asarray(guesses(filter, batch)).sum(axis=-1), 1, atol=1e-4)


def test_tabular_first_state_is_counted_from_starts():
    """W_first[o_0] is P(o_1 | o_0, a_1) with one pseudo-count drawn from P(o_1 | a_1) over all starts."""
    batch = episodes(100, 0)
    filter = fit_tabular(batch, batch, Tabular(past=1, future=1))
    start = batch.starts & batch.mask
    o0, a, o1 = (x[start].argmax(axis=-1) for x in (batch.previous_observations, batch.actions, batch.observations))
    counts = np.zeros((2, 2, 2))
    np.add.at(counts, (o0, o1, a), 1)
    overall = counts.sum(axis=0) + 0.5
    overall /= overall.sum(axis=0)
    np.testing.assert_allclose(filter.W_first, (counts + overall) / (counts.sum(axis=1, keepdims=True) + 1), rtol=1e-5)


def test_a_refit_can_start_from_a_new_regression_from_the_filter_in_use_or_from_the_better_of_both():
    """After 0 epochs: the regression with the same key, the filter itself, and the one that predicts better."""
    rng = np.random.default_rng(0)
    system = linear_gaussian(2, 2, 1, rng)
    batch, held = (pack(simulate_linear_gaussian(system, n, 30, rng)) for n in (20, 5))
    small = KernelBayes(past=3, future=2, dimension=5, history_dimension=15, frequencies=30, epochs=0)
    key = jax.random.key(3)
    good = small.fit(batch, held, key=key)
    bad = eqx.tree_at(lambda f: f.W_pred, good, good.W_pred + 1.0)

    def refitted(start: str, filter: KernelBayesFilter) -> KernelBayesFilter:
        return replace(small, refit_from=start).refit(filter, batch, held, key=key)

    assert_same(refitted("regression", bad), good)
    assert_same(refitted("filter", bad), bad)
    assert_same(refitted("both", bad), good)
    refined = replace(small, refit_from="filter", refit_epochs=3).refit(good, batch, held, key=key)
    assert_same(replace(small, refit_from="both").refit(refined, batch, held, key=key), refined)
    assert one_step_error(refined, held) < one_step_error(good, held)


def assert_same(found: KernelBayesFilter, expected: KernelBayesFilter) -> None:
    """The same arrays, bit for bit."""
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
