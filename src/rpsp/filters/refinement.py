"""Refinement: train a fitted filter on recorded episodes by backpropagation through time.

Refinement reduces the prediction error of the filter before a policy is trained. It returns the iterate with the
smallest error on held-out episodes, which can be the initial filter.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy. optax has no stubs.
# The results of its differentiation, loops and linear algebra are unknown, too.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from rpsp.data import trees
from rpsp.data.arrays import Numbers, PyTree
from rpsp.data.batches import Batch, masked_mean
from rpsp.data.randomness import generator
from rpsp.data.windows import future_mask, stack_future
from rpsp.filters.base import AbstractFilter, compiled_unroll, prediction_loss, trainable, unroll

F = TypeVar("F", bound=AbstractFilter)


@dataclass(frozen=True)
class RefinementSettings:
    """Settings of `refine`."""

    epochs: int = 20
    """Number of passes over the data."""
    learning_rate: float = 3e-3
    """Largest learning rate of Adam. It increases linearly during the first tenth of the steps, then decays to 0 as a
    cosine."""
    truncate: int = 50
    """Number of steps through which gradients are propagated."""
    minibatch: int = 4
    """Number of segments of `truncate` steps in a minibatch."""
    max_norm: float = 1.0
    """Gradients are clipped to this global norm."""


class Refined(NamedTuple):
    """The result of `refine`."""

    filter: AbstractFilter
    """The filter with the smallest held-out error."""
    errors: list[float]
    """Held-out errors: of the initial filter, then after every epoch."""
    best_epoch: int
    """The epoch of `filter`; 0 for the initial filter."""


class Futures(eqx.Module):
    """The next k actions and observations of each step, for the horizon loss."""

    actions: Float[Numbers, "row time k act"]
    observations: Float[Numbers, "row time k obs"]
    mask: Bool[Numbers, "row time"]
    """True at steps from which k steps are inside the episode."""


def refine(
    filter: AbstractFilter,
    batch: Batch,
    held_out: Batch,
    settings: RefinementSettings | None = None,
    *,
    key: PRNGKeyArray,
) -> Refined:
    """Refine a filter with Adam on its prediction error, by truncated backpropagation through time.

    Episodes are cut into short segments, which are used in random minibatches. A segment starts from the state that the
    filter reached there at the beginning of the epoch. Updates with NaN or infinite gradients are skipped. The held-out
    error of the returned filter is never larger than that of the given one.

    Args:
        filter: the filter to refine.
        batch: training episodes.
        held_out: held-out episodes.
        settings: default: `RefinementSettings()`.
        key: random key of the order of the segments.

    Returns:
        The best filter, and the held-out errors of all epochs.
    """
    settings = settings or RefinementSettings()
    batch, held_out = _without_filler(batch), _without_filler(held_out)
    data, held = with_futures(filter, batch), with_futures(filter, held_out)
    segments = _segments(data, settings.truncate)
    rows, size = jax.tree.leaves(segments)[0].shape[0], min(settings.minibatch, jax.tree.leaves(segments)[0].shape[0])
    per_epoch = -(-rows // size)
    optimiser = _optimiser(settings.learning_rate, settings.max_norm, max(1, settings.epochs * per_epoch))
    which = trainable(filter)
    state = optimiser.init(trees.only(filter, which))
    errors, best, best_epoch = [float(_held_out_error(filter, held))], filter, 0
    rng = generator(key)
    for epoch in range(1, settings.epochs + 1):
        initial = _initial_states(filter, batch, settings.truncate)
        order = rng.permutation(rows)
        # The last minibatch is filled up with segments of the first one, so that all minibatches have the same shape.
        order = np.concatenate([order, order])[: per_epoch * size].reshape(per_epoch, size)
        filter, state = _epoch(filter, state, which, segments, initial, order, optimiser)
        errors.append(float(_held_out_error(filter, held)))
        if errors[-1] < min(errors[:-1], default=np.inf):
            best, best_epoch = filter, epoch
    return Refined(best, errors, best_epoch)


def refined(filter: F, batch: Batch, held_out: Batch, epochs: int, *, key: PRNGKeyArray) -> F:
    """Return the filter after `epochs` epochs of `refine` with its default settings; unchanged if `epochs` is 0."""
    if epochs == 0:
        return filter
    return cast(F, refine(filter, batch, held_out, RefinementSettings(epochs=epochs), key=key).filter)


@cache
def _optimiser(learning_rate: float, max_norm: float, steps: int) -> optax.GradientTransformation:
    """Create Adam with gradient clipping, which skips NaN or infinite gradients.

    The result is cached, so that `_epoch` is compiled only once per setting. The learning rate warms up over the first
    tenth of the steps: a fitted filter lies in a narrow valley of the loss, which the first steps of Adam would leave.
    """
    schedule = optax.warmup_cosine_decay_schedule(0.0, learning_rate, max(1, steps // 10), max(2, steps))
    return optax.apply_if_finite(
        optax.chain(optax.clip_by_global_norm(max_norm), optax.adam(schedule)),
        max_consecutive_errors=2**30,
    )


def _without_filler(batch: Batch) -> Batch:
    """Set padding to 0. An infinite value would give NaN gradients (0 · ∞) even where it is masked."""
    mask = np.asarray(batch.mask)

    def blank(x: Numbers) -> Numbers:
        x = np.asarray(x)
        return np.where(mask[..., None] if x.ndim > 2 else mask, x, 0) if x.dtype != bool else x

    return trees.map(blank, batch)


def horizon_loss(filter: AbstractFilter, states: Float[Array, "row time q"], futures: Futures) -> Float[Array, ""]:
    """Compute the k-step prediction loss.

        ‖W_horᵀ(q_t ⊗ ψ_a(a_{t:t+k-1})) − o_{t:t+k-1}‖² / k

    averaged over the steps t that have k steps left in their episode. ψ_a are the features of k actions.

    Args:
        filter: the filter, with the weights W_hor.
        states: the pre-states q_t.
        futures: the next k actions and observations of each step.
    """
    errors = jax.vmap(jax.vmap(filter.predict_horizon))(states, jnp.asarray(futures.actions)) - futures.observations
    return masked_mean(jnp.sum(errors**2, axis=-1).mean(axis=-1), jnp.asarray(futures.mask))


def with_futures(filter: AbstractFilter, batch: Batch) -> tuple[Batch, Futures | None]:
    """Return the batch and the windows that the loss of this filter needs.

    A filter with a `horizon` of k steps is refined on all of them. Other filters need no windows (None).
    """
    k = filter.horizon
    if k == 0:
        return batch, None
    actions, observations = np.asarray(batch.actions), np.asarray(batch.observations)
    return batch, Futures(stack_future(actions, k), stack_future(observations, k), future_mask(batch, k))


def _loss(filter: AbstractFilter, states: Array, data: tuple[Batch, Futures | None]) -> Float[Array, ""]:
    """Return the prediction loss, plus the horizon loss if there are futures."""
    batch, futures = data
    loss = prediction_loss(filter, states, batch)
    if futures is not None:
        loss = loss + horizon_loss(filter, states, futures)
    return loss


@eqx.filter_jit
def _held_out_error(filter: AbstractFilter, data: tuple[Batch, Futures | None]) -> Float[Array, ""]:
    return _loss(filter, unroll(filter, data[0]), data)


@eqx.filter_jit
def _epoch(
    filter: AbstractFilter,
    state: optax.OptState,
    which: PyTree,
    segments: tuple[Batch, Futures | None],
    initial: Numbers,
    order: Numbers,
    optimiser: optax.GradientTransformation,
) -> tuple[AbstractFilter, optax.OptState]:
    """Do one pass over the segments in the given order, as one compiled scan over minibatches."""
    moving, fixed = trees.partition(filter, which)

    def minibatch_step(
        carry: tuple[PyTree, optax.OptState], chosen: Array
    ) -> tuple[tuple[PyTree, optax.OptState], None]:
        moving, state = carry
        batch, futures, q = trees.map(lambda x: jnp.asarray(x)[chosen], (*segments, initial))

        def loss(moving: PyTree) -> Array:
            filter = trees.combine(moving, fixed)
            return _loss(filter, unroll(filter, batch, q), (batch, futures))

        updates, state = optimiser.update(jax.grad(loss)(moving), state, moving)
        return (eqx.apply_updates(moving, updates), state), None

    (moving, state), _ = jax.lax.scan(minibatch_step, (moving, state), order)
    return trees.combine(moving, fixed), state


def _segments(data: tuple[Batch, Futures | None], length: int) -> tuple[Batch, Futures | None]:
    """Cut rows into segments: [row, time, …] → [row · segments, length, …]. The last segment of a row is padded."""

    def cut(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x)
        count = -(-x.shape[1] // length)
        padded = np.pad(x, [(0, 0), (0, count * length - x.shape[1])] + [(0, 0)] * (x.ndim - 2))
        return padded.reshape(x.shape[0] * count, length, *x.shape[2:])

    return trees.map(cut, data)


def _initial_states(filter: AbstractFilter, batch: Batch, length: int) -> Float[np.ndarray, "segments q"]:
    """Return the state before the first column of each segment."""
    states = np.asarray(compiled_unroll(filter, batch))[:, length - 1 :: length]
    count = -(-batch.shape[1] // length)
    first = np.broadcast_to(np.asarray(filter.init()), (states.shape[0], 1, states.shape[2]))
    return np.concatenate([first, states], axis=1)[:, :count].reshape(-1, states.shape[2])
