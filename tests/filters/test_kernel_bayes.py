"""Predictive states with exact parameters are the Bayes filter; by hand where it can be done by hand."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.systems import ControlledHMM, bayes_predictions, controlled_hmm, one_hot, simulate_hmm

from rpsp.data.batches import pack
from rpsp.filters.base import compiled_unroll, forecast, predictions, to_float32
from rpsp.filters.features import OneHotSequence
from rpsp.filters.kernel_bayes import KernelBayesFilter
from rpsp.filters.tabular import TabularFilter


def future_tables(hmm: ControlledHMM, k: int) -> np.ndarray:
    """P(o_{1:k} | s_0, do a_{1:k}) as [state, o sequence, a sequence], first symbol most significant."""
    tables = np.ones((len(hmm.first), 1, 1))
    for _ in range(k):
        tables = np.einsum("asi,io,ipb->sopab", hmm.transition, hmm.emission, tables)
        states, o, p, a, b = tables.shape
        tables = tables.reshape(states, o * p, a * b)
    return tables


def flattened(tables: np.ndarray) -> np.ndarray:
    return tables.reshape(len(tables), -1)


def from_state(hmm: ControlledHMM, k: int, longer: np.ndarray) -> np.ndarray:
    """W with q W = b · longer wherever q = b · tables of length k: exact if those tables tell the states apart."""
    tables = flattened(future_tables(hmm, k))
    assert np.linalg.matrix_rank(tables) == len(hmm.first)
    return np.linalg.pinv(tables) @ flattened(longer)


def exact_tabular(hmm: ControlledHMM, k: int) -> TabularFilter:
    tables = future_tables(hmm, k)
    beliefs = hmm.first[:, None] * hmm.emission
    W_first = np.einsum("so,spb->opb", beliefs / beliefs.sum(axis=0), tables)
    W_ext = from_state(hmm, k, future_tables(hmm, k + 1)).reshape(*tables.shape[1:], -1)
    return to_float32(TabularFilter(W_ext, W_first, hmm.actions))


def exact_kernel_bayes(hmm: ControlledHMM, k: int) -> KernelBayesFilter:
    """Indicators as features, identities as projections: the state is the table P(o_{t:t+k-1} | do a_{t:t+k-1})."""
    O, A = hmm.symbols, hmm.actions  # noqa: E741
    o_k, a_k = O**k, A**k
    q = o_k * a_k
    longer = future_tables(hmm, k + 1).reshape(-1, O, o_k, A, a_k).transpose(0, 2, 1, 4, 3)  # later ⊗ now
    now = np.einsum("asi,io->soa", hmm.transition, hmm.emission)
    words, moves = list(itertools.product(range(O), repeat=k)), list(itertools.product(range(A), repeat=k))
    W_pred, W_hor = np.zeros((o_k, a_k, A, O)), np.zeros((o_k, a_k, a_k, k, O))
    for (i, word), (j, move) in itertools.product(enumerate(words), enumerate(moves)):
        W_pred[i, j, move[0], word[0]] = A / a_k  # sum over later observations, average over later actions
        for step, symbol in enumerate(word):
            W_hor[i, j, j, step, symbol] = 1
    return to_float32(
        KernelBayesFilter(
            q0=hmm.first @ flattened(future_tables(hmm, k)),
            W_ext_xi=from_state(hmm, k, longer),
            W_ext_o=from_state(hmm, k, now),
            W_pred=W_pred.reshape(q * A, O),
            W_hor=W_hor.reshape(q * a_k, k * O),
            phi_o=OneHotSequence((O,)),
            phi_a=OneHotSequence((A,)),
            psi_a=OneHotSequence((A,) * k),
            U_xi_o=np.eye(o_k * O).reshape(o_k, O, -1).transpose(1, 0, 2),
            U_xi_a=np.eye(a_k * A).reshape(a_k, A, -1).transpose(1, 2, 0),
            U_oo=np.einsum("ij,ik->ijk", np.eye(O), np.eye(O)),
            U_q=np.eye(q).reshape(o_k, a_k, q),
            ridge=np.asarray(1e-9),
            low=np.full(q, -10.0),
            high=np.full(q, 10.0),
            future_length=k,
        )
    )


@pytest.fixture(scope="module", params=[(2, 2, 2, 0), (3, 3, 2, 2)], ids=str)
def hmm(request) -> ControlledHMM:
    *sizes, seed = request.param
    return controlled_hmm(*sizes, np.random.default_rng(seed))


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("exact", [exact_tabular, exact_kernel_bayes])
def test_exact_parameters_give_the_exact_filter(hmm, exact, k):
    filter = exact(hmm, k)
    episodes = simulate_hmm(hmm, 5, 30, np.random.default_rng(0))
    batch = pack(one_hot(hmm, episodes))  # of one length: row i is episode i
    guesses = predictions(filter, compiled_unroll(filter, batch), jnp.asarray(batch.actions))
    np.testing.assert_allclose(guesses, np.stack(bayes_predictions(hmm, episodes)), atol=2e-3 if k == 2 else 1e-3)


@pytest.mark.parametrize("k", [1, 2])
def test_states_are_the_tables_they_stand_for(hmm, k):
    episodes = simulate_hmm(hmm, 2, 10, np.random.default_rng(1))
    batch = pack(one_hot(hmm, episodes))
    for filter in (exact_tabular(hmm, k), exact_kernel_bayes(hmm, k)):
        states = np.asarray(compiled_unroll(filter, batch))
        for i, episode in enumerate(episodes):
            belief = hmm.first
            symbols, moves = episode.observations[:, 0].astype(int), episode.actions[:, 0].astype(int)
            for t in range(len(episode)):
                belief = belief * hmm.emission[:, symbols[t]]
                belief = belief / belief.sum()
                np.testing.assert_allclose(states[i, t], belief @ flattened(future_tables(hmm, k)), atol=2e-3)
                belief = belief @ hmm.transition[moves[t]]


def test_tabular_soft_evidence_marginalises_exactly(hmm):
    """A forecast filters in its own predictions; for Bayes rule on tables that is P(o_{t+j} | history, actions)."""
    filter = exact_tabular(hmm, 1)
    belief = np.random.default_rng(0).dirichlet(np.ones(len(hmm.first)))
    q = jnp.asarray(belief @ flattened(future_tables(hmm, 1)), jnp.float32)
    moves = np.array([0, 1, 1, 0, 1])
    ahead = forecast(filter, q, jnp.asarray(np.eye(hmm.actions)[moves], jnp.float32))
    for move, guess in zip(moves, ahead, strict=True):
        belief = belief @ hmm.transition[move]
        np.testing.assert_allclose(guess, belief @ hmm.emission, atol=1e-4)


def test_horizon_prediction_is_open_loop(hmm):
    filter = exact_kernel_bayes(hmm, 2)
    belief = np.random.default_rng(0).dirichlet(np.ones(len(hmm.first)))
    q = jnp.asarray(belief @ flattened(future_tables(hmm, 2)), jnp.float32)
    ahead = filter.predict_horizon(q, jnp.asarray(np.eye(hmm.actions)[[1, 0]], jnp.float32))
    one = belief @ hmm.transition[1]
    np.testing.assert_allclose(ahead, [one @ hmm.emission, one @ hmm.transition[0] @ hmm.emission], atol=1e-5)


def by_hand() -> TabularFilter:
    """Two symbols, two actions, one step of future; parameters are not used by `condition`."""
    return to_float32(TabularFilter(np.zeros((2, 2, 16)), np.zeros((2, 2, 2)), 2))


def test_condition_by_hand():
    """Under a_t = 1: P(o_t, o_{t+1} | a_{t+1}) is 6/20 2/20 | 3/20 9/20 for a_{t+1} = 0 and 4/20 4/20 | 12/20 0 for 1."""
    p = np.full((2, 2, 2, 2), np.nan, np.float32)  # [o_t, o_{t+1}, a_t, a_{t+1}]; a_t = 0 must not be looked at
    p[:, :, 0, :] = 7.0
    p[:, :, 1, 0] = np.array([[6, 2], [3, 9]]) / 20
    p[:, :, 1, 1] = np.array([[4, 4], [12, 0]]) / 20
    action, first, second = jnp.array([0.0, 1.0]), jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])
    condition = by_hand().condition
    np.testing.assert_allclose(condition(jnp.asarray(p), action, first), [[3 / 4, 1 / 2], [1 / 4, 1 / 2]], rtol=1e-6)
    np.testing.assert_allclose(condition(jnp.asarray(p), action, second), [[1 / 4, 1], [3 / 4, 0]], rtol=1e-6)
    # Soft evidence: a quarter of one answer and three quarters of the other.
    soft = condition(jnp.asarray(p), action, jnp.array([0.25, 0.75]))
    np.testing.assert_allclose(soft, [[3 / 8, 7 / 8], [5 / 8, 1 / 8]], rtol=1e-6)


def test_condition_mends_what_regression_breaks():
    """Entries below zero count as zero, columns sum to one, and an impossible observation leaves a uniform table."""
    p = np.zeros((2, 2, 2, 2), np.float32)
    p[0, :, 0, 0], p[0, :, 0, 1], p[1, :, 0, 0] = [0.3, -0.1], [0.1, 0.3], [-0.2, -0.1]
    action = jnp.array([1.0, 0.0])
    condition = by_hand().condition
    np.testing.assert_allclose(condition(jnp.asarray(p), action, jnp.array([1.0, 0.0])), [[1, 0.25], [0, 0.75]])
    np.testing.assert_allclose(condition(jnp.asarray(p), action, jnp.array([0.0, 1.0])), np.full((2, 2), 0.5))
    gradient = jax.grad(lambda p: condition(p, action, jnp.array([0.3, 0.7]))[0, 0])(jnp.asarray(p))
    assert np.isfinite(gradient).all()


def test_extend_by_hand():
    """The extended table is linear in the state, and its axes are [o_t, o_{t+1:t+k}, a_t, a_{t+1:t+k}]."""
    rng = np.random.default_rng(0)
    W_ext = rng.standard_normal((2, 2, 2, 2, 2, 2))
    filter = to_float32(TabularFilter(W_ext.reshape(2, 2, 16), np.zeros((2, 2, 2)), 2))
    q = rng.standard_normal((2, 2))
    p = filter.extend(jnp.asarray(q.reshape(-1), jnp.float32))
    np.testing.assert_allclose(p, np.einsum("ij,ijklmn->klmn", q, W_ext), rtol=1e-5, atol=1e-6)


def test_tabular_predict_by_hand():
    """k = 2: sum over the second observation, average over the second action."""
    rng = np.random.default_rng(0)
    table = rng.random((2, 2, 2, 2))  # [o_1, o_2, a_1, a_2]
    filter = to_float32(TabularFilter(np.zeros((4, 4, 64)), np.zeros((2, 4, 4)), 2))
    guess = filter.predict(jnp.asarray(table.reshape(-1), jnp.float32), jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(guess, [table[o, :, 1, :].sum() / 2 for o in (0, 1)], rtol=1e-5)


def test_kernel_bayes_by_hand():
    """One feature of everything: q' = U_q · U_ξo v · C_ex · U_ξa φ_a, with v = C φ_o / (C² + λ)."""

    class Scale(eqx.Module):
        by: float

        def __call__(self, x):
            return self.by * x

    def filled(value: float, *shape: int) -> np.ndarray:
        return np.full(shape, value)

    filter = to_float32(
        KernelBayesFilter(
            q0=filled(1.0, 1),
            W_ext_xi=filled(2.0, 1, 1),
            W_ext_o=filled(3.0, 1, 1),
            W_pred=filled(5.0, 1, 1),
            W_hor=filled(1.0, 1, 1),
            phi_o=Scale(7.0),
            phi_a=Scale(11.0),
            psi_a=Scale(1.0),
            U_xi_o=filled(13.0, 1, 1, 1),
            U_xi_a=filled(17.0, 1, 1, 1),
            U_oo=filled(19.0, 1, 1, 1),
            U_q=filled(23.0, 1, 1, 1),
            ridge=np.asarray(1e5),
            low=filled(-1e6, 1),
            high=filled(1e6, 1),
            future_length=1,
        )
    )
    q, a, o = 0.5, 0.25, 2.0
    C_ex, C_oo = q * 2, q * 3 * (11 * a) * 19
    v = C_oo * (7 * o) / (C_oo**2 + 1e5)
    expected = 23 * 13 * v * C_ex * 17 * (11 * a)
    q, a, o = (jnp.array([x]) for x in (q, a, o))
    np.testing.assert_allclose(filter.update(q, a, o), [expected], rtol=1e-5)
    np.testing.assert_allclose(filter.predict(q, a), [0.5 * 11 * 0.25 * 5], rtol=1e-6)
    boxed = eqx.tree_at(lambda f: (f.low, f.high), filter, (jnp.array([-1.0]), jnp.array([1.5])))
    assert expected > 1.5 and float(boxed.update(q, a, o)[0]) == 1.5
