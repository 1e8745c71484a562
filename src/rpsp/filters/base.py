"""The filter protocol, its unrolling over a batch, forecasts, and one-step errors. No reward.

A filter keeps q_t, a function of everything before step t, and predicts o_t from q_t and a_t.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from rpsp.data.batches import Batch, masked_mean


class AbstractFilter(eqx.Module):
    """What every belief offers. Written for one trajectory; `vmap` outside."""

    @property
    def size(self) -> int:
        """The number of coordinates of q."""
        return self.init().shape[0]

    def init(self) -> Float[Array, " q"]:
        """q_0, before anything is seen."""
        raise NotImplementedError

    def update(
        self, q: Float[Array, " q"], action: Float[Array, " act"], observation: Float[Array, " obs"]
    ) -> Float[Array, " q"]:
        """q_{t+1} = f(q_t, a_t, o_t)."""
        raise NotImplementedError

    def predict(self, q: Float[Array, " q"], action: Float[Array, " act"]) -> Float[Array, " obs"]:
        """E[o_t | q_t, a_t]."""
        raise NotImplementedError

    def prepare(self, action: Float[Array, " act"], observation: Float[Array, " obs"]) -> PyTree:
        """What of the update does not depend on the state: computed for many steps at once, outside the scan.

        A filter whose update begins with costly features overrides this and `advance`; others need not know of it.
        """
        return action, observation

    def advance(self, q: Float[Array, " q"], prepared: PyTree) -> Float[Array, " q"]:
        """The rest of the update: `update(q, a, o) = advance(q, prepare(a, o))`."""
        return self.update(q, *prepared)


def constant(**kwargs: Any) -> Any:
    """A field whose arrays are fixed once fitted: features, projections, bounds. No gradient and no optimiser sees it."""
    return eqx.field(metadata={"constant": True}, **kwargs)


def trainable(tree: Any) -> Any:
    """A tree of booleans: True at every floating-point array that is not inside a field declared `constant`."""

    def mark(path: tuple, leaf: Any) -> bool:
        node = tree
        for key in path:
            if isinstance(key, GetAttrKey):
                declared = {field.name: field for field in dataclasses.fields(node)}[key.name]
                if declared.metadata.get("constant"):
                    return False
                node = getattr(node, key.name)
            else:
                node = node[getattr(key, "idx", getattr(key, "key", None))]
        return eqx.is_inexact_array(leaf)

    return jax.tree_util.tree_map_with_path(mark, tree)


def step(
    filter: AbstractFilter,
    q: Float[Array, " q"],
    previous_action: Float[Array, " act"],
    previous_observation: Float[Array, " obs"],
    start: Bool[Array, ""],
) -> Float[Array, " q"]:
    """q_t from q_{t-1}, or from q_0 where an episode starts. The one step that acting and training share.

    At a start the reset observation is filtered in as if a null action had caused it: q_1 = f(q_0, 0, o_0).
    """
    prepared = filter.prepare(jnp.where(start, 0.0, previous_action), previous_observation)
    return filter.advance(jnp.where(start, filter.init(), q), prepared)


def unroll(
    filter: AbstractFilter, batch: Batch, initial: Float[Array, "row q"] | None = None
) -> Float[Array, "row time q"]:
    """The pre-states q_t of every step of a batch, by one scan over time.

    `initial` are the states before the first column, for rows that continue an episode instead of starting one.
    """
    rows = batch.mask.shape[0]
    if initial is None:
        initial = jnp.broadcast_to(filter.init(), (rows, filter.size))

    starts = jnp.asarray(batch.starts)
    previous_actions = jnp.where(starts[..., None], 0.0, batch.previous_actions)
    prepared = _of_each_step(filter.prepare, previous_actions, jnp.asarray(batch.previous_observations))

    def scanned(q: Array, at: tuple) -> tuple[Array, Array]:
        prepared, start = at
        q = jax.vmap(filter.advance)(jnp.where(start[:, None], filter.init(), q), prepared)
        return q, q

    by_time = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (prepared, starts))
    return jnp.swapaxes(jax.lax.scan(scanned, initial, by_time)[1], 0, 1)


def _of_each_step(function: Callable[..., PyTree], *given: Float[Array, "row time _"]) -> PyTree:
    """What a function gives of every step by itself.

    Of some steps at a time: features in the making are much wider than what goes in or comes out, and of so many a cache
    holds them.
    """
    rows, time = given[0].shape[:2]
    steps = tuple(x.reshape(rows * time, x.shape[2]) for x in given)
    found = jax.lax.map(lambda x: function(*x), steps, batch_size=1024)
    return jax.tree.map(lambda x: x.reshape(rows, time, *x.shape[1:]), found)


compiled_unroll = eqx.filter_jit(unroll)
"""`unroll`, compiled once per filter structure and batch shape; parameters are arguments, so a refit costs nothing."""


def reached(filter: AbstractFilter, *batches: Batch) -> Float[np.ndarray, "n q"]:
    """The pre-states of every step of some batches, filler left out, in float64: what scales are fitted to."""
    return np.concatenate([np.asarray(compiled_unroll(filter, b), np.float64)[np.asarray(b.mask)] for b in batches])


Tree = TypeVar("Tree")


def to_float32(filter: Tree) -> Tree:
    """A filter fitted in float64, ready to run: its floating-point arrays as jax arrays."""
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float32)) if _is_floating(x) else x, filter)


def to_float64(filter: Tree) -> Tree:
    """A filter ready to be fitted: its floating-point arrays as numpy arrays."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64) if _is_floating(x) else x, filter)


def random_like(filter: Tree, *, key: PRNGKeyArray) -> Tree:
    """The same filter with every trainable array drawn anew: the ablation of a fitted initialisation (random_PSR).

    A matrix or tensor is drawn from N(0, 1/fan_in), its first axis being the fan-in; a vector from N(0, 1/size).
    """
    moving, fixed = eqx.partition(filter, trainable(filter))
    arrays, structure = jax.tree.flatten(moving)
    keys = jax.random.split(key, len(arrays))
    drawn = [
        jax.random.normal(k, x.shape, jnp.float32) / np.sqrt(max(1, *x.shape[:1]))
        for k, x in zip(keys, arrays, strict=True)
    ]
    return eqx.combine(jax.tree.unflatten(structure, drawn), fixed)


def _is_floating(x: Any) -> bool:
    return isinstance(x, np.ndarray | jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)


def predictions(
    filter: AbstractFilter, states: Float[Array, "row time q"], actions: Float[Array, "row time act"]
) -> Float[Array, "row time obs"]:
    """E[o_t | q_t, a_t] at every step."""
    return _of_each_step(filter.predict, states, actions)


def one_step_error(filter: AbstractFilter, batch: Batch) -> float:
    """The mean squared error of E[o_t | q_t, a_t] over all steps and observation dimensions of a batch."""
    errors = np.asarray(_one_step(filter, batch))[np.asarray(batch.mask)]
    return float(np.mean(np.square(errors, dtype=np.float64)))


@eqx.filter_jit
def _one_step(filter: AbstractFilter, batch: Batch) -> Float[Array, "row time obs"]:
    return predictions(filter, unroll(filter, batch), jnp.asarray(batch.actions)) - batch.observations


def forecast(
    filter: AbstractFilter, q: Float[Array, " q"], actions: Float[Array, "horizon act"]
) -> Float[Array, "horizon obs"]:
    """Predict `horizon` steps ahead from q_t, given the actions of those steps: each prediction is filtered in as if seen.

    Exact where the update is linear in the observation (a Kalman filter, Bayes rule on a probability table).
    """

    def advance(q: Array, action: Array) -> tuple[Array, Array]:
        expected = filter.predict(q, action)
        return filter.update(q, action, expected), expected

    return jax.lax.scan(advance, q, actions)[1]


class Concatenated(AbstractFilter):
    """The states of two filters side by side, the predictions of the first: `+obs` is Concatenated(psr, window)."""

    first: AbstractFilter
    second: AbstractFilter

    def init(self) -> Float[Array, " q"]:
        return jnp.concatenate([self.first.init(), self.second.init()])

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        return self.advance(q, self.prepare(action, observation))

    def prepare(self, action: Array, observation: Array) -> PyTree:
        return self.first.prepare(action, observation), self.second.prepare(action, observation)

    def advance(self, q: Array, prepared: PyTree) -> Float[Array, " q"]:
        n = self.first.size
        return jnp.concatenate([self.first.advance(q[:n], prepared[0]), self.second.advance(q[n:], prepared[1])])

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        return self.first.predict(q[: self.first.size], action)


def prediction_loss(
    filter: AbstractFilter,
    states: Float[Array, "row time q"],
    batch: Batch,
    *,
    per: Bool[Array, "row time"] | None = None,
) -> Float[Array, ""]:
    """ℓ₂ = (1/M) Σ_{i=1}^M Σ_t ‖E[o_t | q_t, a_t] − o_t‖², summed over observation dimensions.

    The paper's M are the episodes of a batch: `per=batch.ends`. Unless told, the mean is over steps.
    """
    errors = predictions(filter, states, jnp.asarray(batch.actions)) - batch.observations
    return masked_mean(jnp.sum(errors**2, axis=-1), jnp.asarray(batch.mask), per=per)
