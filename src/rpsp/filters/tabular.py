"""The discrete predictive state: tables conditioned by Bayes rule, learned by counting and one regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.data.linalg import NormalEquations
from rpsp.data.windows import Windows, window_index
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, one_step_error, to_float32


class TabularFilter(AbstractFilter):
    """The discrete case: q_t is a probability table P(o_{t:t+k-1} | do a_{t:t+k-1}), and conditioning is Bayes rule.

    Observations and actions are one-hot vectors. A soft observation (a distribution) is averaged over: filtering in the
    model's own prediction marginalises exactly. The empty table, all zeros, means that nothing is known yet (q_0).
    """

    W_ext: Float[Numbers, "o_k a_k p"]
    """State → extended table P(o_{t:t+k} | do a_{t:t+k}), as a tensor [future observations, future actions, extended]."""
    W_first: Float[Numbers, "o o_k a_k"]
    """The table after each reset observation."""
    actions: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.W_first.shape[1] * self.W_first.shape[2]

    def init(self) -> Float[Array, " q"]:
        return jnp.zeros(self.size)

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """q_{t+1} = P(o_{t+1:t+k}, o_t | a_{t:t+k}) / P(o_t | a_t), from p_t = W_ext q_t; q_1 = W_first o_0."""
        first = jnp.tensordot(observation, self.W_first, 1)
        table = self.condition(self.extend(q), action, observation)
        return jnp.where(jnp.any(q != 0), table, first).reshape(-1)

    def extend(self, q: Float[Array, " q"]) -> Float[Array, "o o_k a a_k"]:
        """p_t = W_ext q_t: the table of k + 1 observations given k + 1 actions, the first of each set apart."""
        symbols, o_k, a_k = self.W_first.shape
        p = jnp.tensordot(q.reshape(o_k, a_k), self.W_ext, 2)
        return p.reshape(symbols, o_k, self.actions, a_k)

    def condition(
        self, p: Float[Array, "o o_k a a_k"], action: Float[Array, " a"], observation: Float[Array, " o"]
    ) -> Float[Array, "o_k a_k"]:
        """Bayes rule: keep the slice of a_t, then P(future | o_t, a_t) = P(future, o_t | a_t) / P(o_t | a_t).

        Regression does not know that a table sums to one; clipping to ≥ 0 and renormalising each column does.
        """
        joint = jnp.maximum(jnp.tensordot(p, action, ((2,), (0,))), 0.0)  # [o, o_k, a_k] given this action
        totals = joint.sum(axis=1, keepdims=True)
        # A column that lost all its mass to clipping (the observation was impossible) becomes uniform, not zero; and is
        # divided by one, because a division by almost nothing has no finite gradient even where it is not used.
        left = totals > 1e-12
        given = jnp.where(left, joint / jnp.where(left, totals, 1.0), 1.0 / joint.shape[1])
        return jnp.tensordot(observation, given, 1)

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """P(o_t | q_t, a_t): the state's own table, summed over later observations and averaged over later actions."""
        symbols, o_k, a_k = self.W_first.shape
        table = q.reshape(symbols, o_k // symbols, self.actions, a_k // self.actions)
        return jnp.tensordot(table.sum(axis=1).mean(axis=2), action, ((1,), (0,)))


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
    symbols, actions = batch.observations.shape[-1], batch.actions.shape[-1]
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
