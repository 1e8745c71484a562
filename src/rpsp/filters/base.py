"""The filter protocol, unrolling over a batch, forecasts and prediction errors.

A filter keeps a state q_t, which is a function of all observations and actions before step t. It predicts o_t from q_t
and a_t.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# The results of its differentiation, loops and linear algebra are unknown, too.
# scipy has no stubs.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from scipy.linalg import block_diag

from rpsp.data import trees
from rpsp.data.arrays import Numbers, PyTree
from rpsp.data.batches import Batch, masked_mean
from rpsp.errors import UsageError


class AbstractFilter(eqx.Module):
    """Base class of all filters.

    The methods process a single trajectory. Use `jax.vmap` for several.

    Subclasses define `init`, `update` and `predict`. A subclass that has been imported is known to every command:
    checkpoints may contain it. A filter whose update starts with costly features that do not depend on the state also
    overrides `prepare` and `advance`, such that

        update(q, a, o) = advance(q, prepare(a, o))

    where q is the state, a the action and o the observation.
    """

    @property
    def size(self) -> int:
        """Number of coordinates of q."""
        return self.init().shape[0]

    @abc.abstractmethod
    def init(self) -> Float[Array, " q"]:
        """Return q_0, the state before the first observation."""

    @abc.abstractmethod
    def update(
        self, q: Float[Array, " q"], action: Float[Array, " act"], observation: Float[Array, " obs"]
    ) -> Float[Array, " q"]:
        """Return the next state, q_{t+1} = f(q_t, a_t, o_t).

        Args:
            q: the state q_t.
            action: a_t.
            observation: o_t.
        """

    @abc.abstractmethod
    def predict(self, q: Float[Array, " q"], action: Float[Array, " act"]) -> Float[Array, " obs"]:
        """Return the predicted observation, E[o_t | q_t, a_t].

        Args:
            q: the state q_t.
            action: a_t.
        """

    def prepare(self, action: Float[Array, " act"], observation: Float[Array, " obs"]) -> PyTree:
        """Return the part of the update that does not depend on the state.

        It is computed for many steps at once, outside the scan over time. Override it together with `advance`.

        Args:
            action: a_t.
            observation: o_t.

        Returns:
            The second argument of `advance`. Default: the action and the observation.
        """
        return action, observation

    def advance(self, q: Float[Array, " q"], prepared: PyTree) -> Float[Array, " q"]:
        """Return the next state, q_{t+1}, from the result of `prepare`.

        Args:
            q: the state q_t.
            prepared: the result of `prepare(a_t, o_t)`.
        """
        return self.update(q, *prepared)

    @property
    def view(self) -> Float[Numbers, "q x"] | None:
        """Projection P of what policies see: they get Pᵀ q instead of the state q. Default: None, the whole state.

        For filters that must remember more than the policy shall see.
        """
        return None

    @property
    def baseline_view(self) -> Float[Numbers, "q x"] | None:
        """Projection of what linear baselines see. Default: None, the whole state, also where policies see less."""
        return None

    @property
    def accepts_gaps(self) -> bool:
        """Whether `update` accepts observations with NaN, which means that a reading is missing. Default: False."""
        return False

    @property
    def used(self) -> Float[Array, " obs"] | None:
        """1 at observations that enter the state, and 0 at those that are ignored. Default: None, all enter.

        Errors in metrics, and those by which refits are judged, leave out observations that are ignored.
        """
        return None

    @property
    def horizon(self) -> int:
        """Number of steps that `predict_horizon` predicts; 0 if it is not defined. Refinement minimises their error."""
        return 0

    def predict_horizon(self, q: Float[Array, " q"], actions: Float[Array, "k act"]) -> Float[Array, "k obs"]:
        """Return E[o_{t:t+k-1} | q_t, a_{t:t+k-1}], where k is `horizon`. Override it together with `horizon`.

        Args:
            q: the state q_t.
            actions: a_{t:t+k-1}.
        """
        raise NotImplementedError(f"{type(self).__name__} predicts one step only")

    def exported(self) -> tuple[str, dict[str, np.ndarray]]:
        """Return the filter as arrays, for `rpsp export`.

        Returns:
            The name of the update function in act.py (`rpsp.experiments.acting_template`), and the arrays that it needs.

        Raises:
            UsageError: if act.py has no function for this filter. This is the default.
        """
        raise UsageError(f"export: act.py has no update for {type(self).__name__}; use rpsp.load(...).predict instead.")

    def exported_prediction(self) -> tuple[str, dict[str, np.ndarray]] | None:
        """Return the prediction as arrays, for `rpsp export`.

        Returns:
            The name of the prediction in act.py, and the arrays that it needs; None if act.py has none for this filter,
            which is the default.
        """
        return None

    def coordinate_name(self, i: int) -> str | None:
        """Return the meaning of coordinate i for figures and reports, or None if it has no name. Default: None."""
        return None


def constant(**kwargs: Any) -> Any:
    """Declare a field whose arrays do not change after fitting, such as features, projections and bounds.

    These arrays get no gradients and are not part of the optimiser state. Keyword arguments are passed to `eqx.field`.
    """
    return eqx.field(metadata={"constant": True}, **kwargs)


def trainable(tree: Any) -> Any:
    """Return a tree of booleans: True at every floating-point array that may change after fitting.

    These are all except those in fields declared `constant`, and those in fields that a module lists in `frozen`, a static
    field with the names of parameters that are constant in this instance only.
    """

    def mark(path: tuple[Any, ...], leaf: Any) -> bool:
        node = tree
        for key in path:
            if isinstance(key, GetAttrKey):
                declared = {field.name: field for field in dataclasses.fields(node)}[key.name]
                if declared.metadata.get("constant") or key.name in getattr(node, "frozen", ()):
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
    """Return the pre-state q_t of a step. Acting and training both use this function.

        q_t = f(q_{t-1}, a_{t-1}, o_{t-1})
        q_1 = f(q_0, 0, o_0)                  at the first step of an episode

    where f is the filter update, q_0 the initial state and o_0 the reset observation, which is treated as the outcome
    of a null action.

    Args:
        filter: the filter.
        q: q_{t-1}. Ignored at the first step of an episode.
        previous_action: a_{t-1}. Ignored at the first step of an episode.
        previous_observation: o_{t-1}; o_0 at the first step of an episode.
        start: whether this is the first step of an episode.
    """
    prepared = filter.prepare(jnp.where(start, 0.0, previous_action), previous_observation)
    return filter.advance(jnp.where(start, filter.init(), q), prepared)


def unroll(
    filter: AbstractFilter, batch: Batch, initial: Float[Array, "row q"] | None = None
) -> Float[Array, "row time q"]:
    """Compute the pre-states q_t of all steps of a batch, with one scan over time.

    Args:
        filter: the filter.
        batch: the episodes.
        initial: the states before the first column, for rows that continue an episode. Default: q_0.

    Returns:
        The pre-states, of shape [row, time, q].
    """
    rows = batch.mask.shape[0]
    if initial is None:
        initial = jnp.broadcast_to(filter.init(), (rows, filter.size))

    starts = jnp.asarray(batch.starts)
    previous_actions = jnp.where(starts[..., None], 0.0, batch.previous_actions)
    prepared = _of_each_step(filter.prepare, previous_actions, jnp.asarray(batch.previous_observations))

    def scanned(q: Array, at: tuple[PyTree, Array]) -> tuple[Array, Array]:
        prepared, start = at
        q = jax.vmap(filter.advance)(jnp.where(start[:, None], filter.init(), q), prepared)
        return q, q

    return trees.swap(jax.lax.scan(scanned, initial, trees.swap((prepared, starts)))[1])


def _of_each_step(function: Callable[..., PyTree], *given: Float[Array, "row time _"]) -> PyTree:
    """Apply a function to every step.

    Processes 1024 steps at a time so that intermediate features, which are much larger than inputs and outputs, fit in
    cache.
    """
    rows, time = given[0].shape[:2]
    steps = tuple(x.reshape(rows * time, x.shape[2]) for x in given)

    def of_one(given: tuple[Array, ...]) -> PyTree:
        return function(*given)

    found = jax.lax.map(of_one, steps, batch_size=1024)
    return trees.map(lambda x: x.reshape(rows, time, *x.shape[1:]), found)


compiled_unroll = eqx.filter_jit(unroll)
"""`unroll`, compiled once per filter structure and batch shape. Parameters are arguments, so that a refitted filter
needs no new compilation."""


def reached(filter: AbstractFilter, *batches: Batch) -> Float[np.ndarray, "n q"]:
    """Return the pre-states of all steps of some batches in float64, without padding. Used to fit input scales."""
    return np.concatenate([np.asarray(compiled_unroll(filter, b), np.float64)[np.asarray(b.mask)] for b in batches])


Tree = TypeVar("Tree")


def to_float32(filter: Tree) -> Tree:
    """Convert the floating-point arrays of a filter to JAX arrays in float32, for running it."""
    return trees.map(lambda x: jnp.asarray(np.asarray(x, np.float32)) if _is_floating(x) else x, filter)


def to_float64(filter: Tree) -> Tree:
    """Convert the floating-point arrays of a filter to NumPy arrays in float64, for fitting it."""
    return trees.map(lambda x: np.asarray(x, np.float64) if _is_floating(x) else x, filter)


def random_like(filter: Tree, *, key: PRNGKeyArray) -> Tree:
    """Return the filter with random values in all trainable arrays.

    This is the ablation of the fitted initialisation (random_PSR).

    Matrices and tensors are drawn from N(0, 1/fan_in), where fan_in is the size of the first axis; vectors from
    N(0, 1/size).

    Args:
        filter: a fitted filter.
        key: random key.
    """
    moving, fixed = trees.partition(filter, trainable(filter))
    arrays = jax.tree.leaves(moving)
    keys = jax.random.split(key, len(arrays))
    drawn = [
        jax.random.normal(k, x.shape, jnp.float32) / np.sqrt(max(1, *x.shape[:1]))
        for k, x in zip(keys, arrays, strict=True)
    ]
    return trees.combine(jax.tree.unflatten(jax.tree.structure(moving), drawn), fixed)


def _is_floating(x: Any) -> bool:
    return isinstance(x, np.ndarray | jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)


def predictions(
    filter: AbstractFilter, states: Float[Array, "row time q"], actions: Float[Array, "row time act"]
) -> Float[Array, "row time obs"]:
    """Return the predictions E[o_t | q_t, a_t] of all steps."""
    return _of_each_step(filter.predict, states, actions)


def one_step_error(filter: AbstractFilter, batch: Batch, of: Bool[np.ndarray, " obs"] | None = None) -> float:
    """Return the mean squared error of E[o_t | q_t, a_t] over all readings of a batch. Missing ones (NaN) are left out.

    Args:
        filter: the filter.
        batch: the episodes.
        of: which observation dimensions. Default: all.
    """
    mask = np.asarray(batch.mask)
    errors = np.asarray(compiled_predictions(filter, batch))[mask] - np.asarray(batch.observations)[mask]
    squares = np.square(errors if of is None else errors[:, of], dtype=np.float64)
    return float(np.nanmean(squares) if np.isnan(batch.observations).any() else np.mean(squares))


@eqx.filter_jit
def compiled_predictions(filter: AbstractFilter, batch: Batch) -> Float[Array, "row time obs"]:
    """Return E[o_t | q_t, a_t] of all steps. Compiled once per filter structure and batch shape."""
    return predictions(filter, unroll(filter, batch), jnp.asarray(batch.actions))


def forecast(
    filter: AbstractFilter, q: Float[Array, " q"], actions: Float[Array, "horizon act"]
) -> Float[Array, "horizon obs"]:
    """Predict the next `horizon` observations, given the actions of these steps.

    The filter is updated with each prediction as if it had been observed. This is exact if the update is linear in the
    observation (a Kalman filter, Bayes rule on a probability table).

    Args:
        filter: the filter.
        q: the state q_t.
        actions: a_t, a_{t+1}, …

    Returns:
        The predictions of o_t, o_{t+1}, …
    """

    def advance(q: Array, action: Array) -> tuple[Array, Array]:
        expected = filter.predict(q, action)
        return filter.update(q, action, expected), expected

    return jax.lax.scan(advance, q, actions)[1]


class Concatenated(AbstractFilter):
    """Two filters whose states are concatenated. Predictions are those of the first filter.

    The `+obs` methods use a predictive state as `first` and an `ObservationWindow` as `second`.
    """

    first: AbstractFilter
    second: AbstractFilter

    def init(self) -> Float[Array, " q"]:
        """Return the concatenated initial states."""
        return jnp.concatenate([self.first.init(), self.second.init()])

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        """Update both states."""
        return self.advance(q, self.prepare(action, observation))

    def prepare(self, action: Array, observation: Array) -> PyTree:
        """Prepare both filters."""
        return self.first.prepare(action, observation), self.second.prepare(action, observation)

    def advance(self, q: Array, prepared: PyTree) -> Float[Array, " q"]:
        """Advance both states."""
        n = self.first.size
        return jnp.concatenate([self.first.advance(q[:n], prepared[0]), self.second.advance(q[n:], prepared[1])])

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        """Predict with the first filter."""
        return self.first.predict(q[: self.first.size], action)

    @property
    def used(self) -> Float[Array, " obs"] | None:
        """Those of the first filter, which makes the predictions."""
        return self.first.used

    @property
    def view(self) -> Float[Numbers, "q x"] | None:
        """Block-diagonal: the view of each, where a filter without one shows its whole state."""
        if self.first.view is None and self.second.view is None:
            return None
        return block_diag(*(np.eye(f.size) if f.view is None else f.view for f in (self.first, self.second)))

    @property
    def accepts_gaps(self) -> bool:
        """Whether both filters accept them."""
        return self.first.accepts_gaps and self.second.accepts_gaps

    @property
    def baseline_view(self) -> Float[Numbers, "q x"] | None:
        """Block-diagonal, as `view`."""
        views = [f.baseline_view for f in (self.first, self.second)]
        if all(v is None for v in views):
            return None
        sizes = self.first.size, self.second.size
        return block_diag(*(np.eye(n) if v is None else v for n, v in zip(sizes, views, strict=True)))


def read_errors(predicted: Float[Array, "*n obs"], observed: Float[Array, "*n obs"]) -> Float[Array, "*n obs"]:
    """Return predictions minus readings; 0 where a reading is missing (NaN), in value and gradient."""
    return jnp.where(jnp.isnan(observed), 0.0, predicted - jnp.nan_to_num(observed))


def prediction_loss(
    filter: AbstractFilter,
    states: Float[Array, "row time q"],
    batch: Batch,
    *,
    per: Bool[Array, "row time"] | None = None,
) -> Float[Array, ""]:
    """Compute the prediction loss.

        ℓ₂ = (1/M) Σ_{i=1}^M Σ_t ‖E[o_t | q_t, a_t] − o_t‖²

    where the norm is over observation dimensions, t are the steps of episode i and M is the number of steps, or of
    episodes in the paper's definition.

    Args:
        filter: the filter.
        states: the pre-states q_t.
        batch: the episodes.
        per: flags that are counted to get M, as in `masked_mean`. `per=batch.ends` is the paper's definition.
            Default: the mean over steps.
    """
    errors = read_errors(predictions(filter, states, jnp.asarray(batch.actions)), jnp.asarray(batch.observations))
    return masked_mean(jnp.sum(errors**2, axis=-1), jnp.asarray(batch.mask), per=per)
