"""What is recorded about an agent: its prediction error, and how far a step has changed it."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rpsp.algorithms.base import Diagnostics
from rpsp.algorithms.objectives import distributions, mean_kl
from rpsp.algorithms.policies import Agent
from rpsp.data import trees
from rpsp.data.batches import Batch
from rpsp.filters.base import predictions, unroll


@eqx.filter_jit
def diagnose(old: Agent, new: Agent, batch: Batch, moved: bool) -> Diagnostics:
    """Return the normalised one-step error of the filter and of persistence, and the KL from the old to the new agent.

    Args:
        old: the agent that acted.
        new: the agent after the step.
        batch: the episodes.
        moved: whether the filter has changed.
    """
    batch = trees.as_jax(batch)
    mask = jnp.asarray(batch.mask)
    before = unroll(old.filter, batch) if batch.states is None else jnp.asarray(batch.states)
    # The states of a new filter must be computed, which takes as long as acting did: a log needs only every fourth row.
    rows = slice(None, None, 4 if moved else 1)
    after = unroll(new.filter, trees.take(batch, rows)) if moved else before
    predicted = predictions(old.filter, before, jnp.asarray(batch.actions))
    return {
        "prediction_error": _normalised(predicted, batch, old.filter.used),
        "persistence_error": _normalised(_last_readings(batch), batch, old.filter.used),
        "whole_kl": mean_kl(distributions(old.policy, before[rows]), distributions(new.policy, after), mask[rows]),
    }


def _last_readings(batch: Batch) -> Float[Array, "row time obs"]:
    """Return the latest reading of every sensor before each step; 0, the mean, before the first one of an episode."""

    def advance(latest: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        start, o = at
        latest = jnp.where(jnp.isnan(o), jnp.where(start[:, None], 0.0, latest), jnp.nan_to_num(o))
        return latest, latest

    before = jnp.asarray(batch.previous_observations)
    by_time = trees.swap((jnp.asarray(batch.starts), before))
    return trees.swap(jax.lax.scan(advance, jnp.zeros_like(before[:, 0]), by_time)[1])


def _normalised(
    predicted: Float[Array, "row time obs"], batch: Batch, used: Float[Array, " obs"] | None
) -> Float[Array, ""]:
    """Return squared error divided by variance, pooled over dimensions: 0 is perfect, 1 is as good as the mean.

    Readings that are missing (NaN) are left out.

    Args:
        predicted: the predictions.
        batch: the episodes.
        used: 1 at dimensions that count, 0 at others. None: all count.
    """
    actual = jnp.asarray(batch.observations)
    mask = jnp.asarray(batch.mask)[..., None] & ~jnp.isnan(actual)

    def mean(x: Array) -> Array:
        return jnp.sum(jnp.where(mask, x, 0.0), axis=(0, 1)) / jnp.maximum(jnp.sum(mask, axis=(0, 1)), 1)

    weights = 1.0 if used is None else used
    variance = jnp.sum(weights * mean((actual - mean(actual)) ** 2))
    return jnp.sum(weights * mean((predicted - actual) ** 2)) / jnp.maximum(variance, 1e-12)
