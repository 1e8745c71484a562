"""Predictive states for discrete observations: probability tables, learned by counting and one regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.data.linalg import NormalEquations
from rpsp.data.windows import Windows, window_index
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, one_step_error, to_float32, to_float64
from rpsp.filters.belief import Belief, check_at_least


class TabularFilter(AbstractFilter):
    """Filter for discrete observations and actions, conditioned by Bayes rule.

    The state q_t is the probability table P(o_{t:t+k-1} | do a_{t:t+k-1}). Observations and actions are one-hot
    vectors. An observation can also be a distribution, over which the update averages. An update with the prediction of
    the filter itself is therefore an exact marginalisation. q_0, before the first observation, is a table of zeros.
    """

    W_ext: Float[Numbers, "o_k a_k p"]
    """Maps the state to the extended table P(o_{t:t+k} | do a_{t:t+k}). A tensor with axes [future observations, future
    actions, extended table]."""
    W_first: Float[Numbers, "o o_k a_k"]
    """The first table q_1 for each reset observation."""
    actions: int = eqx.field(static=True)
    """Number of actions."""

    @property
    def size(self) -> int:
        return self.W_first.shape[1] * self.W_first.shape[2]

    def init(self) -> Float[Array, " q"]:
        return jnp.zeros(self.size)

    def exported(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the arrays of act.py's `tabular`, with the part of W_ext for each action and observation as
        `W[a, o][o_k, q, a_k]`.
        """
        f = to_float64(self)
        symbols, o_k, a_k = f.W_first.shape
        W = np.reshape(f.W_ext, (o_k * a_k, symbols, o_k, f.actions, a_k))
        return "tabular", {"W": W.transpose(3, 1, 2, 0, 4), "first": np.reshape(f.W_first, (symbols, -1))}

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """Return q_{t+1} = P(o_{t+1:t+k}, o_t | a_{t:t+k}) / P(o_t | a_t), from p_t = W_ext q_t; q_1 = W_first o_0."""
        first = jnp.tensordot(observation, self.W_first, 1)
        table = self.condition(self.extend(q), action, observation)
        return jnp.where(jnp.any(q != 0), table, first).reshape(-1)

    def extend(self, q: Float[Array, " q"]) -> Float[Array, "o o_k a a_k"]:
        """Return p_t = W_ext q_t, the table of k + 1 observations given k + 1 actions.

        The first observation and the first action have axes of their own.
        """
        symbols, o_k, a_k = self.W_first.shape
        p = jnp.tensordot(q.reshape(o_k, a_k), self.W_ext, 2)
        return p.reshape(symbols, o_k, self.actions, a_k)

    def condition(
        self, p: Float[Array, "o o_k a a_k"], action: Float[Array, " a"], observation: Float[Array, " o"]
    ) -> Float[Array, "o_k a_k"]:
        """Condition the extended table on an action and an observation by Bayes rule.

            P(future | o_t, a_t) = P(future, o_t | a_t) / P(o_t | a_t)

        where future is o_{t+1:t+k} given a_{t+1:t+k}. Tables from a regression can have negative entries and do not sum
        to one, so they are clipped to ≥ 0 and every column is normalised.

        Args:
            p: the extended table p_t.
            action: a_t.
            observation: o_t.
        """
        joint = jnp.maximum(jnp.tensordot(p, action, ((2,), (0,))), 0.0)  # [o, o_k, a_k] given this action
        totals = joint.sum(axis=1, keepdims=True)
        # A column without mass after clipping (an impossible observation) becomes uniform instead of zero. It is
        # divided by one, because a division by almost 0 has NaN or infinite gradients even where the result is not
        # used.
        left = totals > 1e-12
        given = jnp.where(left, joint / jnp.where(left, totals, 1.0), 1.0 / joint.shape[1])
        return jnp.tensordot(observation, given, 1)

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """Return P(o_t | q_t, a_t).

        This is the table of the state, summed over later observations and averaged over later actions.
        """
        symbols, o_k, a_k = self.W_first.shape
        table = q.reshape(symbols, o_k // symbols, self.actions, a_k // self.actions)
        return jnp.tensordot(table.sum(axis=1).mean(axis=2), action, ((1,), (0,)))


@dataclass(frozen=True)
class Tabular(Belief):
    """For discrete observations and actions: a `TabularFilter`, learned by counting."""

    discrete: ClassVar[bool] = True

    past: int = 2
    """Number of observations and actions in a history."""
    future: int = 2
    """Number of observations and actions in the table of a state (k)."""
    max_rank: int = 12
    """Largest rank of the state. The rank is chosen on held-out episodes, because too large a rank makes the filter
    drift."""
    ridge: float = 1e-3
    """Ridge of stage 2 (on sums)."""
    smoothing: float = 1.0
    """Number of pseudo-counts. They shrink probabilities with few samples towards the average over histories."""

    def __post_init__(self) -> None:
        """Check the settings."""
        check_at_least(self, 1, "past", "future", "max_rank")

    @property
    def min_length(self) -> int:
        """k + 1 steps: the future and the extended future."""
        return self.future + 1

    def fit(self, batch: Batch, held_out: Batch, *, key: PRNGKeyArray) -> TabularFilter:
        """Fit by counting and one regression. Uses no random numbers."""
        for name, x in (("observations", batch.observations), ("actions", batch.actions)):
            if not np.isin(x, (0, 1)).all():
                raise UsageError(f"method: tabular is for symbols, and the {name} are numbers; try rpsi-trpo.")
        return fit_tabular(batch, held_out, self)


def fit_tabular(batch: Batch, held_out: Batch, settings: Tabular | None = None) -> TabularFilter:
    """Fit a filter for discrete observations by counting and one regression.

    Stage 1 counts. For each history h (the last `past` observations and actions) it estimates the table
    P(o_{t:t+k-1} | h, a_{t:t+k-1}) and the same table with one more step.

    Stage 2 regresses the longer tables on the shorter ones. Histories are the instruments and are weighted by their
    counts. The shorter tables are first projected on their leading directions. The number of directions, the rank of
    the system, is the one that predicts held-out episodes best.

    Args:
        batch: training episodes with one-hot observations and actions.
        held_out: held-out episodes.
        settings: default: `Tabular()`.

    Raises:
        UsageError: if the tables would be too large, or the episodes are too short.
    """
    settings = settings or Tabular()
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


MAX_ENTRIES = 20_000_000  # of W_ext, the map from tables of k steps to tables of k + 1 steps


class _Codes(NamedTuple):
    """Windows of symbols, each encoded as one integer."""

    history: Int[np.ndarray, " n"]
    reset: Int[np.ndarray, " n"]
    """The reset observation at the first step of an episode, −1 elsewhere."""
    short: Int[np.ndarray, "2 n"]
    """o_{t:t+k-1} and a_{t:t+k-1}."""
    long: Int[np.ndarray, "2 n"]
    """o_{t:t+k} and a_{t:t+k}."""


def _codes(w: Windows, starts: Bool[np.ndarray, " n"], symbols: int, actions: int, settings: Tabular) -> _Codes:
    past, future = settings.past, settings.future
    seen, done = w.history[:, : past * symbols], w.history[:, past * symbols : -1].reshape(-1, past, actions)
    # A padded action is a null vector, whose argmax is 0. An additional symbol tells it from action 0.
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
    """Encode a sequence of symbols as one integer. The first symbol is the most significant digit."""
    digits = one_hot.reshape(len(one_hot), length, size).argmax(axis=2)
    return digits @ size ** np.arange(length - 1, -1, -1)


def _tables(
    group: Int[np.ndarray, " n"], outcome_given: Int[np.ndarray, "2 n"], shape: tuple[int, int, int], smoothing: float
) -> Float[np.ndarray, "groups outcomes givens"]:
    """Estimate P(outcome | group, given) by counting, with `smoothing` pseudo-counts from P(outcome | given)."""
    counts = np.bincount(np.ravel_multi_index((group, *outcome_given), shape), minlength=np.prod(shape)).reshape(shape)
    overall = counts.sum(axis=0) + 1 / shape[1]
    overall = overall / overall.sum(axis=0)
    return (counts + smoothing * overall) / (counts.sum(axis=1, keepdims=True) + smoothing)
