"""Pairs of critics Q_1, Q_2 of states and actions: networks whose arrays have a leading axis of 2.

A critic sees of the state what the policy sees, in the same scaling, and the action as it is.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# The results of its differentiation, loops and linear algebra are unknown, too. scipy has no stubs.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.linalg import block_diag

from rpsp.algorithms.adam import moments_in_units
from rpsp.algorithms.networks import Network, NormedNetwork, in_units, standardised
from rpsp.algorithms.value_distributions import expectation
from rpsp.data import trees
from rpsp.data.scaling import Scaling


def pair(
    policy: Network, actions: int, *, outputs: int = 1, hidden: Sequence[int], normed: bool, key: PRNGKeyArray
) -> Network:
    """Return two critics with random weights.

    Args:
        policy: the network of the policy. The critics are of the same kind.
        actions: size of an action.
        outputs: number of outputs: 1, or the number of atoms of a distribution.
        hidden: sizes of the hidden layers.
        normed: whether critics of the plain kind have layer normalisation.
        key: random key of the weights.
    """
    scaling = _with_actions(Scaling(np.asarray(policy.mean), np.asarray(policy.scale)), actions)
    view = None if policy.view is None else block_diag(policy.view, np.eye(actions))  # all of the action
    kind: type[Network] = type(policy)
    if normed and kind is Network:
        kind = cast(type[Network], NormedNetwork)
    return trees.stack(
        [
            kind(len(scaling.mean), outputs, hidden=hidden, scaling=scaling, view=view, key=k)
            for k in jax.random.split(key)
        ]
    )


def outputs(critics: Network, q: Float[Array, "n q"], action: Float[Array, "n act"]) -> Float[Array, "2 n out"]:
    """Return the outputs of both critics for states and actions."""
    inputs = jnp.concatenate([q, action], axis=1)

    def of_one(critic: Network) -> Array:
        return jax.vmap(critic)(inputs)

    return jax.vmap(of_one)(critics)


def values(critics: Network, q: Float[Array, "n q"], action: Float[Array, "n act"]) -> Float[Array, "2 n"]:
    """Return Q_i(q, a) of both critics."""
    return expectation(outputs(critics, q, action))


def pair_in_units(critics: Network, scaling: Scaling, actions: int) -> Network:
    """Change the scaling of the critics' states without changing their values.

    Args:
        critics: the critics.
        scaling: the new scaling of the policy's input.
        actions: size of an action.
    """
    of_critics = _with_actions(scaling, actions)
    return trees.stack([in_units(trees.take(critics, i), of_critics) for i in (0, 1)])


def pair_moments_in_units(
    first: Network, second: Network, critics: Network, scaling: Scaling, actions: int
) -> tuple[Network, Network]:
    """Return Adam's first and second moments of two critics for the rescaled critics, as `moments_in_units` does."""
    of_critics = _with_actions(scaling, actions)
    take = trees.take
    pairs = [moments_in_units(take(first, i), take(second, i), take(critics, i), of_critics) for i in (0, 1)]
    m, v = zip(*pairs, strict=True)
    return trees.stack(m), trees.stack(v)


def pair_standardised(critics: Network, mean: Float[Array, " x"], scale: Float[Array, " x"]) -> Network:
    """Return the critics with another scaling of their states, and the same weights."""
    n = len(mean)
    return standardised(critics, critics.mean.at[:, :n].set(mean), critics.scale.at[:, :n].set(scale))


def _with_actions(scaling: Scaling, actions: int) -> Scaling:
    """Return the scaling of states and actions; actions are not rescaled."""
    return Scaling(np.concatenate([scaling.mean, np.zeros(actions)]), np.concatenate([scaling.scale, np.ones(actions)]))
