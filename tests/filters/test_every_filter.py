"""One conformance test for every filter, and what each of the plain ones must be."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.systems import controlled_hmm, linear_gaussian, one_hot, simulate_hmm, simulate_linear_gaussian

from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.filters.base import (
    AbstractFilter,
    Concatenated,
    compiled_unroll,
    forecast,
    one_step_error,
    predictions,
    random_like,
    step,
    to_float32,
    to_float64,
    trainable,
    unroll,
)
from rpsp.filters.inference import Inference, fit_inference
from rpsp.filters.memory import GRU, FiniteMemory, HistoryWindow, history_window, observation_window
from rpsp.filters.refinement import prediction_loss
from rpsp.filters.residual import ResidualKernelBayes
from rpsp.filters.tabular import Tabular, fit_tabular
from rpsp.filters.two_stage import KernelBayes, fit_two_stage

LENGTHS = (17, 30, 9, 12, 1, 25)  # packed into rows that hold several episodes, and filler


@cache
def continuous() -> tuple[Batch, list[Episode]]:
    """Data to fit on, and episodes of several lengths to filter: two observations, one action."""
    rng = np.random.default_rng(0)
    system = linear_gaussian(2, 2, 1, rng)
    fit, test = (simulate_linear_gaussian(system, n, 30, rng) for n in (40, len(LENGTHS)))
    return pack(fit), shortened(test)


@cache
def discrete() -> tuple[Batch, list[Episode]]:
    """The same with three symbols and two actions."""
    rng = np.random.default_rng(0)
    hmm = controlled_hmm(3, 3, 2, rng)
    fit, test = (one_hot(hmm, simulate_hmm(hmm, n, 30, rng)) for n in (100, len(LENGTHS)))
    return pack(fit), shortened(test)


def shortened(episodes: list[Episode]) -> list[Episode]:
    return [Episode(e.observations[: n + 1], e.actions[:n]) for e, n in zip(episodes, LENGTHS, strict=True)]


def kernel_bayes() -> AbstractFilter:
    settings = KernelBayes(past=4, future=2, dimension=6, history_dimension=20, frequencies=40)
    return fit_two_stage(continuous()[0], settings, rng=np.random.default_rng(0))


FILTERS: dict[str, tuple[Callable, Callable[[], AbstractFilter], set[str]]] = {
    "kernel-bayes": (continuous, kernel_bayes, {".q0", ".W_ext_xi", ".W_ext_o", ".W_pred", ".W_hor"}),
    "random kernel-bayes": (
        continuous,
        lambda: random_like(made("kernel-bayes"), key=jax.random.key(2)),
        {".q0", ".W_ext_xi", ".W_ext_o", ".W_pred", ".W_hor"},
    ),
    "tabular": (discrete, lambda: fit_tabular(discrete()[0], discrete()[0], Tabular()), {".W_ext", ".W_first"}),
    "inference": (
        continuous,
        lambda: fit_inference(
            continuous()[0],
            continuous()[0],
            Inference(past=4, future=2, bumps=20, rounds=3),
            rng=np.random.default_rng(0),
        ),
        {".W", ".W_first", ".W_pred"},
    ),
    "residual": (
        continuous,
        lambda: ResidualKernelBayes(
            past=4, future=2, dimension=6, history_dimension=20, frequencies=40, linear_dimension=4, epochs=0
        ).fit(continuous()[0], continuous()[0], key=jax.random.key(0)),
        {f".residual.{name}" for name in ("q0", "W_ext_xi", "W_ext_o", "W_pred", "W_hor")},
    ),
    "window": (continuous, lambda: observation_window(3, 2, 1), {".W_pred"}),
    "history window": (continuous, lambda: history_window(3, 2, 1), {".W_pred"}),
    "history window, compressed": (
        continuous,
        lambda: FiniteMemory(3, actions=True, dimension=4).fit(*[continuous()[0]] * 2, key=jax.random.key(0)),
        {".W_pred"},
    ),
    "gru": (
        continuous,
        lambda: GRU(7, 2, 1, key=jax.random.key(0)),
        {
            *(f".cell.{name}" for name in ("weight_ih", "weight_hh", "bias", "bias_n")),
            *(".decoder.weight", ".decoder.bias", ".q0"),
        },
    ),
    "kernel-bayes + window": (
        continuous,
        lambda: Concatenated(made("kernel-bayes"), observation_window(2, 2, 1)),
        {".second.W_pred", *(f".first.{name}" for name in ("q0", "W_ext_xi", "W_ext_o", "W_pred", "W_hor"))},
    ),
}


@cache
def made(name: str) -> AbstractFilter:
    return FILTERS[name][1]()


@eqx.filter_jit
def updated(filter: AbstractFilter, q, action, observation):
    """One compilation of `update` and `predict` per filter, for every test below."""
    q, action, observation = (jnp.asarray(x, jnp.float32) for x in (q, action, observation))
    return filter.update(q, action, observation), filter.predict(q, action)


@eqx.filter_jit
def stepped(filter: AbstractFilter, q, executed, seen, start):
    """One step as an actor takes it; at a start its last action is still lying about."""
    executed = jnp.where(start, 5.0, jnp.asarray(executed, jnp.float32))
    return step(filter, q, executed, jnp.asarray(seen, jnp.float32), jnp.asarray(start))


# A random filter's kernel Bayes rule amplifies rounding from step to step.
TOLERANCE = {"random kernel-bayes": 5e-4}

every_filter = pytest.mark.parametrize("name", FILTERS)


def data(name: str) -> tuple[Batch, list[Episode]]:
    episodes = FILTERS[name][0]()[1]
    return pack(episodes, row_length=40), episodes


@every_filter
def test_shapes_and_finiteness(name):
    filter, (_, episodes) = made(name), data(name)
    episode = episodes[0]
    q = filter.init()
    assert q.shape == (filter.size,)
    for action, observation in zip(episode.actions, episode.observations, strict=False):
        q, prediction = updated(filter, q, action, observation)
        assert q.shape == (filter.size,) and q.dtype == jnp.float32
        assert prediction.shape == observation.shape and prediction.dtype == jnp.float32
        assert np.isfinite(q).all() and np.isfinite(prediction).all()


@every_filter
def test_unroll_equals_a_loop_over_each_episode(name):
    """No state leaks from one episode of a row into the next, nor from filler, nor from anything after a step."""
    filter, (batch, episodes) = made(name), data(name)
    assert batch.mask.sum(axis=1).max() > max(LENGTHS) and not batch.mask.all()  # rows are shared, filler is there
    states = np.asarray(compiled_unroll(filter, batch))
    assert np.isfinite(states).all()
    tolerance = TOLERANCE.get(name, 1e-5)
    for row, t in np.argwhere(batch.mask & batch.starts):
        length = int(batch.ends[row, t:].argmax()) + 1
        (episode,) = (
            e
            for e in episodes
            if len(e) == length and np.allclose(e.observations[:-1], batch.previous_observations[row, t : t + length])
        )
        q, action = filter.init(), np.zeros(episode.actions.shape[1])
        acting = jnp.full(filter.size, 7.0)  # the state an actor has left from the episode before
        for i in range(len(episode)):
            q, _ = updated(filter, q, action, episode.observations[i])
            acting = stepped(filter, acting, action, episode.observations[i], jnp.asarray(i == 0))
            np.testing.assert_allclose(states[row, t + i], q, rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(states[row, t + i], acting, rtol=tolerance, atol=tolerance)
            action = episode.actions[i]


@every_filter
def test_nothing_later_changes_a_state(name):
    """q_t and the prediction of o_t know nothing of o_t, and q_t nothing of a_t."""
    filter, (batch, _) = made(name), data(name)
    t = 6
    later = np.arange(batch.shape[1]) > t
    changed = eqx.tree_at(
        lambda b: (b.previous_observations, b.previous_actions, b.observations, b.actions),
        batch,
        (
            np.where(later[:, None], 1 - batch.previous_observations, batch.previous_observations),
            np.where(later[:, None], 1 - batch.previous_actions, batch.previous_actions),
            1 - batch.observations,
            1 - batch.actions,
        ),
    )
    before, after = (np.asarray(compiled_unroll(filter, b)) for b in (batch, changed))
    np.testing.assert_array_equal(before[:, : t + 1], after[:, : t + 1])
    assert not np.array_equal(before[:, t + 1], after[:, t + 1])


@every_filter
def test_plain_jit_and_vmap_agree(name):
    filter, (batch, _) = made(name), data(name)
    states = jnp.asarray(compiled_unroll(filter, batch)[0, 3:8])
    a, o = jnp.asarray(batch.actions[0, 3:8]), jnp.asarray(batch.observations[0, 3:8])
    together = jax.jit(jax.vmap(lambda q, a, o: (filter.update(q, a, o), filter.predict(q, a))))(states, a, o)
    plain = filter.update(states[0], a[0], o[0]), filter.predict(states[0], a[0])
    for i in range(len(states)):
        alone = updated(filter, states[i], a[i], o[i])
        for x, y, z in zip(alone, together, plain, strict=True):
            np.testing.assert_allclose(x, y[i], rtol=1e-4, atol=1e-5)
            assert i or np.allclose(x, z, rtol=1e-4, atol=1e-5)


@every_filter
def test_reset_observation_is_not_lost(name):
    """The null action of the first step must not kill the state: different reset observations, different states."""
    filter = made(name)
    one, other = (e.observations[0] for e in data(name)[1][:2])
    if np.array_equal(one, other):
        other = np.roll(one, 1)
    null = np.zeros(data(name)[1][0].actions.shape[1])
    states = [updated(filter, filter.init(), null, o)[0] for o in (one, other)]
    assert np.abs(states[0] - states[1]).max() > 1e-3
    assert min(np.abs(q).max() for q in states) > 1e-3


def named_leaves(tree) -> dict[str, object]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


@every_filter
def test_constants_are_not_trainable(name):
    filter = made(name)
    marks = named_leaves(trainable(filter))
    assert {path for path, mark in marks.items() if mark} == FILTERS[name][2]
    assert set(marks) == set(named_leaves(filter))  # a mark for every array, and none besides


@every_filter
def test_gradients_are_finite_and_spare_constants(name):
    filter, (batch, _) = made(name), data(name)
    moving, fixed = eqx.partition(filter, trainable(filter))

    @eqx.filter_jit
    def gradient(moving, fixed, batch):
        def loss(moving):
            filter = eqx.combine(moving, fixed)
            return prediction_loss(filter, unroll(filter, batch), batch)

        return jax.grad(loss)(moving)

    gradients = named_leaves(gradient(moving, fixed, batch))
    assert set(gradients) == FILTERS[name][2]  # absent for constants
    for path, g in gradients.items():
        assert np.isfinite(g).all(), path
        # W_hor and a second filter's predictions take no part in one-step prediction; everything else must.
        unused = path.endswith("W_hor") or path.startswith(".second") or (name == "window" and path == ".q0")
        assert unused or np.abs(g).max() > 0, path


@every_filter
def test_forecast_filters_its_own_predictions(name):
    filter, (batch, _) = made(name), data(name)
    q = first = jnp.asarray(compiled_unroll(filter, batch)[0, 5])
    actions = batch.actions[0, 5:8]
    expected = []
    for a in actions:
        expected.append(updated(filter, q, a, batch.observations[0, 0])[1])
        q, _ = updated(filter, q, a, expected[-1])
    ahead = eqx.filter_jit(forecast)(filter, first, jnp.asarray(actions))
    np.testing.assert_allclose(ahead, expected, rtol=1e-4, atol=1e-5)
    one = eqx.filter_jit(forecast)(filter, first, jnp.asarray(actions[:1]))
    np.testing.assert_allclose(one, expected[:1], rtol=1e-5, atol=1e-6)


@every_filter
def test_one_step_error_is_the_mean_over_real_steps(name):
    filter, (batch, _) = made(name), data(name)
    guesses = eqx.filter_jit(predictions)(filter, compiled_unroll(filter, batch), jnp.asarray(batch.actions))
    squares = (np.asarray(guesses, np.float64) - batch.observations)[batch.mask] ** 2
    assert one_step_error(filter, batch) == pytest.approx(squares.sum() / (sum(LENGTHS) * squares.shape[1]), rel=1e-5)


def test_a_row_can_continue_from_given_states():
    filter, (batch, _) = made("gru"), data("gru")
    whole = compiled_unroll(filter, batch)
    rest = jax.tree.map(lambda x: x[:, 7:], batch)
    np.testing.assert_allclose(unroll(filter, rest, whole[:, 6]), whole[:, 7:], rtol=1e-5, atol=1e-6)


def test_observation_window_remembers_the_last_readings():
    filter, (batch, episodes) = made("window"), data("window")
    states = np.asarray(compiled_unroll(filter, pack(episodes[:1])))[0]
    o = np.concatenate([np.zeros((2, 2)), episodes[0].observations])  # zeros before the episode began
    for t in range(len(episodes[0])):
        np.testing.assert_allclose(states[t], o[t : t + 3].reshape(-1), rtol=1e-6)
    guesses = np.asarray(predictions(filter, compiled_unroll(filter, batch), jnp.asarray(batch.actions)))
    np.testing.assert_array_equal(
        guesses[batch.mask], batch.previous_observations[batch.mask]
    )  # persistence, until fitted


def test_history_window_remembers_the_last_actions_and_readings():
    filter, (batch, episodes) = made("history window"), data("history window")
    states = np.asarray(compiled_unroll(filter, pack(episodes[:1])))[0]
    executed = np.concatenate([np.zeros((1, 1)), episodes[0].actions])  # the null action caused the reset observation
    pairs = np.concatenate([executed, episodes[0].observations], axis=1)
    pairs = np.concatenate([np.zeros((2, 3)), pairs])  # zeros before the episode began
    for t in range(len(episodes[0])):
        np.testing.assert_allclose(states[t], pairs[t : t + 3].reshape(-1), rtol=1e-6)
    guesses = np.asarray(predictions(filter, compiled_unroll(filter, batch), jnp.asarray(batch.actions)))
    np.testing.assert_array_equal(
        guesses[batch.mask], batch.previous_observations[batch.mask]
    )  # persistence, until fitted


def test_a_compressed_window_is_seen_in_its_principal_components():
    batch, key = continuous()[0], jax.random.key(0)
    plain = FiniteMemory(window=3, actions=True).fit(batch, batch, key=key)
    small = FiniteMemory(window=3, actions=True, dimension=4).fit(batch, batch, key=key)
    assert isinstance(plain, HistoryWindow) and plain.view is None and small.view is not None
    windows = np.asarray(compiled_unroll(small, batch), np.float64)[batch.mask]
    np.testing.assert_array_equal(windows, np.asarray(compiled_unroll(plain, batch))[batch.mask])
    values, vectors = np.linalg.eigh(np.cov(windows.T, bias=True))
    values, vectors = values[::-1][:4], vectors[:, ::-1][:, :4]
    expected = np.abs(windows @ vectors) / np.sqrt(values + 1e-3 * values[0])
    np.testing.assert_allclose(np.abs(windows @ np.asarray(small.view)), expected, rtol=1e-3, atol=1e-4)
    seen = windows @ np.asarray(small.view)
    np.testing.assert_allclose(np.var(seen, axis=0), values / (values + 1e-3 * values[0]), rtol=1e-3)
    # Observations alone can be compressed as well, and never to more than there are.
    alone = FiniteMemory(window=2, dimension=100).fit(batch, batch, key=key)
    assert alone.size == 4 and alone.view is not None and alone.view.shape == (4, 4)
    np.testing.assert_allclose(
        compiled_unroll(alone, batch)[batch.mask], compiled_unroll(observation_window(2, 2, 1), batch)[batch.mask]
    )


def test_concatenated_shows_the_view_of_each():
    small, window = made("history window, compressed"), observation_window(2, 2, 1)
    assert Concatenated(window, window).view is None and small.view is not None
    view = Concatenated(small, window).view
    q = np.arange(13.0)
    np.testing.assert_allclose(q @ np.asarray(view), [*(q[:9] @ np.asarray(small.view)), *q[9:]], rtol=1e-6)


def test_concatenated_is_both_side_by_side():
    both, psr = made("kernel-bayes + window"), made("kernel-bayes")
    batch, _ = data("kernel-bayes")
    states = np.asarray(compiled_unroll(both, batch))
    parts = [np.asarray(compiled_unroll(f, batch)) for f in (psr, observation_window(2, 2, 1))]
    np.testing.assert_allclose(states, np.concatenate(parts, axis=-1), rtol=1e-5, atol=1e-5)
    actions = jnp.asarray(batch.actions)
    np.testing.assert_allclose(
        predictions(both, jnp.asarray(states), actions), predictions(psr, jnp.asarray(parts[0]), actions), rtol=1e-5
    )


def test_random_like_redraws_what_is_trainable_and_nothing_else():
    fitted = made("kernel-bayes")
    drawn = [random_like(fitted, key=jax.random.key(i)) for i in (0, 0, 1)]
    which = trainable(fitted)
    moved, kept = (named_leaves(x) for x in eqx.partition(drawn[0], which))
    fitted_moved, fitted_kept = (named_leaves(x) for x in eqx.partition(fitted, which))
    for path, x in moved.items():
        assert x.shape == fitted_moved[path].shape and x.dtype == jnp.float32
        if x.size > 200:
            assert float(jnp.std(x)) == pytest.approx(x.shape[0] ** -0.5, rel=0.2)
            assert abs(float(jnp.mean(x))) < 5 * x.shape[0] ** -0.5 / x.size**0.5
        np.testing.assert_array_equal(x, named_leaves(drawn[1])[path])  # the same key, the same draw
        assert not np.array_equal(x, named_leaves(drawn[2])[path])
    assert kept.keys() == fitted_kept.keys() and kept
    for path, x in kept.items():
        assert x is fitted_kept[path]
    assert len({np.asarray(x).reshape(-1)[0] for x in moved.values()}) == len(moved)  # no key used twice


def test_precision_conversions():
    filter = made("gru")
    double = to_float64(filter)
    assert all(
        isinstance(x, np.ndarray) and x.dtype == np.float64 for x in jax.tree.leaves(eqx.filter(double, eqx.is_array))
    )
    assert eqx.tree_equal(to_float32(double), filter)
