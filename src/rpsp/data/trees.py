"""Trees of arrays, such as batches and agents: a tree of type T in, a tree of type T out.

jax and equinox have these functions too, but their annotations lose the type of the tree.
"""

# jax and equinox leave the types of trees unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

T = TypeVar("T")


@overload
def map(function: Callable[[Any], Any], tree: T) -> T: ...
@overload
def map(function: Callable[[Any, Any], Any], tree: T, other: Any, /) -> T: ...
def map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to every leaf of a tree, or to the corresponding leaves of two trees."""
    return jax.tree.map(function, tree, *others)


def as_jax(tree: T) -> T:
    """Convert every leaf to a JAX array."""
    return map(jnp.asarray, tree)


def where(condition: Array, yes: T, no: T) -> T:
    """Return the leaves of `yes` if the condition is True, otherwise those of `no`."""
    return map(lambda yes, no: jnp.where(condition, yes, no), yes, no)


def take(tree: T, index: Any) -> T:
    """Index the first axis of every leaf."""
    return map(lambda x: x[index], tree)


def stack(trees: Sequence[T]) -> T:
    """Stack the corresponding leaves of some trees along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def swap(tree: T) -> T:
    """Swap the first two axes of every leaf: [row, time, …] ↔ [time, row, …]."""
    return map(lambda x: jnp.swapaxes(x, 0, 1), tree)


def replace(where: Callable[[T], Any], tree: T, value: Any) -> T:
    """Return the tree with other values at the nodes that `where` returns."""
    return eqx.tree_at(where, tree, value, is_leaf=lambda x: x is None)


def only(tree: Any, marks: Any) -> Any:
    """Return the tree with None instead of every leaf whose mark is False."""
    return eqx.filter(tree, marks)


def partition(tree: T, marks: Any) -> tuple[T, T]:
    """Split a tree into the leaves whose mark is True, and the others. None stands for leaves of the other part."""
    return eqx.partition(tree, marks)


def combine(first: T, second: T) -> T:
    """Put the parts of `partition` together again."""
    return eqx.combine(first, second)


def flatten(tree: T) -> tuple[Float[Array, " theta"], Callable[[Array], T]]:
    """Concatenate all leaves to one vector θ. Also returns the inverse function."""
    return ravel_pytree(tree)
