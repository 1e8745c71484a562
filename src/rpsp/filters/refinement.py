"""Refinement: backpropagation through time on recorded episodes, keeping the best held-out iterate.

Before any policy is learned, a filter's parameters are moved downhill on its prediction error. What comes back never
predicts the held-out episodes worse than what was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch, masked_mean
from rpsp.data.windows import future_mask, stack_future
from rpsp.filters.base import AbstractFilter, compiled_unroll, prediction_loss, trainable, unroll
from rpsp.filters.kernel_bayes import KernelBayesFilter

F = TypeVar("F", bound=AbstractFilter)


@dataclass(frozen=True)
class RefinementSettings:
    """How a filter is refined."""

    epochs: int = 20
    """Passes over the data."""
    learning_rate: float = 3e-3
    """Adam's: growing over the first tenth of the steps, then decaying to nothing along a cosine."""
    truncate: int = 50
    """Steps that gradients flow back through."""
    minibatch: int = 4
    """Segments of `truncate` steps in one gradient."""
    max_norm: float = 1.0
    """Gradients are clipped to this norm."""


class Refined(NamedTuple):
    """A refined filter and its held-out error, first as it was given, then after every epoch."""

    filter: AbstractFilter
    errors: list[float]
    best_epoch: int


class Futures(eqx.Module):
    """The k steps from each step on, for the horizon loss."""

    actions: Float[Numbers, "row time k act"]
    observations: Float[Numbers, "row time k obs"]
    mask: Bool[Numbers, "row time"]


def refine(
    filter: AbstractFilter,
    batch: Batch,
    held_out: Batch,
    settings: RefinementSettings | None = None,
    *,
    key: PRNGKeyArray,
) -> Refined:
    """Adam on the prediction error by truncated backpropagation through time, in minibatches of short segments.

    Segments start from the states that the filter had there at the beginning of the epoch. Non-finite gradients are
    skipped; parameters that predict held-out episodes worse than those given are never returned.
    """
    settings = settings or RefinementSettings()
    batch, held_out = _without_filler(batch), _without_filler(held_out)
    data, held = with_futures(filter, batch), with_futures(filter, held_out)
    segments = _segments(data, settings.truncate)
    rows, size = jax.tree.leaves(segments)[0].shape[0], min(settings.minibatch, jax.tree.leaves(segments)[0].shape[0])
    per_epoch = -(-rows // size)
    optimiser = _optimiser(settings.learning_rate, settings.max_norm, max(1, settings.epochs * per_epoch))
    which = trainable(filter)
    state = optimiser.init(eqx.filter(filter, which))
    errors, best, best_epoch = [float(_held_out_error(filter, held))], filter, 0
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    for epoch in range(1, settings.epochs + 1):
        initial = _initial_states(filter, batch, settings.truncate)
        order = rng.permutation(rows)
        # The last minibatch is filled up from the first, so that every minibatch has one shape.
        order = np.concatenate([order, order])[: per_epoch * size].reshape(per_epoch, size)
        filter, state = _epoch(filter, state, which, segments, initial, order, optimiser)
        errors.append(float(_held_out_error(filter, held)))
        if errors[-1] < min(errors[:-1], default=np.inf):
            best, best_epoch = filter, epoch
    return Refined(best, errors, best_epoch)


@cache
def _optimiser(learning_rate: float, max_norm: float, steps: int) -> optax.GradientTransformation:
    """Adam with clipping, skipping non-finite gradients. One object per setting, so that `_epoch` compiles once for it.

    Steps grow over the first tenth: a fitted filter stands in a narrow valley, which Adam's first steps would leave.
    """
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, max(1, steps // 10), max(2, steps))
    return optax.apply_if_finite(
        optax.chain(optax.clip_by_global_norm(max_norm), optax.adam(schedule)),
        max_consecutive_errors=2**30,
    )


def _without_filler(batch: Batch) -> Batch:
    """Zeros wherever there is no step: even a masked infinity would make its gradient 0 · ∞."""
    mask = np.asarray(batch.mask)

    def blank(x: Numbers) -> Numbers:
        x = np.asarray(x)
        return np.where(mask[..., None] if x.ndim > 2 else mask, x, 0) if x.dtype != bool else x

    return jax.tree.map(blank, batch)


def horizon_loss(filter: KernelBayesFilter, states: Float[Array, "row time q"], futures: Futures) -> Float[Array, ""]:
    """‖W_horᵀ(q_t ⊗ ψ_a(a_{t:t+k-1})) − o_{t:t+k-1}‖² / k, averaged over the steps that have such a future."""
    errors = jax.vmap(jax.vmap(filter.predict_horizon))(states, jnp.asarray(futures.actions)) - futures.observations
    return masked_mean(jnp.sum(errors**2, axis=-1).mean(axis=-1), jnp.asarray(futures.mask))


def with_futures(filter: AbstractFilter, batch: Batch) -> tuple[Batch, Futures | None]:
    """A batch with the windows that this filter's loss needs: the paper's filter is refined on its whole horizon."""
    if not isinstance(filter, KernelBayesFilter):
        return batch, None
    k = filter.future_length
    actions, observations = np.asarray(batch.actions), np.asarray(batch.observations)
    return batch, Futures(stack_future(actions, k), stack_future(observations, k), future_mask(batch, k))


def _loss(filter: AbstractFilter, states: Array, data: tuple[Batch, Futures | None]) -> Float[Array, ""]:
    batch, futures = data
    loss = prediction_loss(filter, states, batch)
    if futures is not None:
        assert isinstance(filter, KernelBayesFilter)
        loss = loss + horizon_loss(filter, states, futures)
    return loss


@eqx.filter_jit
def _held_out_error(filter: AbstractFilter, data: tuple[Batch, Futures | None]) -> Float[Array, ""]:
    return _loss(filter, unroll(filter, data[0]), data)


@eqx.filter_jit
def _epoch(filter, state, which, segments, initial, order, optimiser):
    """One pass over the segments in this order, as one compiled scan over minibatches."""
    moving, fixed = eqx.partition(filter, which)

    def minibatch_step(carry, chosen):
        moving, state = carry
        batch, futures, q = jax.tree.map(lambda x: jnp.asarray(x)[chosen], (*segments, initial))

        def loss(moving):
            filter = eqx.combine(moving, fixed)
            return _loss(filter, unroll(filter, batch, q), (batch, futures))

        updates, state = optimiser.update(jax.grad(loss)(moving), state, moving)
        return (eqx.apply_updates(moving, updates), state), None

    (moving, state), _ = jax.lax.scan(minibatch_step, (moving, state), order)
    return eqx.combine(moving, fixed), state


def _segments(data: tuple[Batch, Futures | None], length: int) -> tuple[Batch, Futures | None]:
    """[row, time, …] → [row · segments, length, …], the last segment of a row filled up with masked filler."""

    def cut(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x)
        count = -(-x.shape[1] // length)
        padded = np.pad(x, [(0, 0), (0, count * length - x.shape[1])] + [(0, 0)] * (x.ndim - 2))
        return padded.reshape(x.shape[0] * count, length, *x.shape[2:])

    return jax.tree.map(cut, data)


def _initial_states(filter: AbstractFilter, batch: Batch, length: int) -> Float[np.ndarray, "segments q"]:
    """The states before each segment's first column."""
    states = np.asarray(compiled_unroll(filter, batch))[:, length - 1 :: length]
    count = -(-batch.shape[1] // length)
    first = np.broadcast_to(np.asarray(filter.init()), (states.shape[0], 1, states.shape[2]))
    return np.concatenate([first, states], axis=1)[:, :count].reshape(-1, states.shape[2])
