"""Adam's moments after a change of input scale."""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy. optax has no stubs.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rpsp.algorithms.networks import Network
from rpsp.data import trees
from rpsp.data.scaling import Scaling


def adam_in_units(adam: Any, change: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
    """Return an optax state in which `change` was applied to (first moments, second moments) of Adam."""

    def changed(state: Any) -> Any:
        if not isinstance(state, optax.ScaleByAdamState):
            return state
        first, second = change(state.mu, state.nu)
        return state._replace(mu=first, nu=second)

    return jax.tree.map(changed, adam, is_leaf=lambda state: isinstance(state, optax.ScaleByAdamState))


def moments_in_units(first: Network, second: Network, network: Network, scaling: Scaling) -> tuple[Network, Network]:
    """Rescale Adam's moments of a network whose input changes from z = (q − μ)/s to z' = (q − μ')/s'.

    `networks.in_units` keeps the function: W' = W (s'/s), c' = c + W (μ' − μ)/s. With r = s/s' and d = (μ − μ')/s' the
    gradients become

        ∇_W' = r ∇_W + d ∇_c    and    ∇_c' = ∇_c,

    for every column of W. Hence the moments of the bias c stay as they are, and those of W become

        m' = r m + d m_c    and    v' = r² v + d² v_c.

    m' is exact. v' is exact where only the scale changes (d = 0); otherwise it leaves out the term 2 r d E[∇_W ∇_c], which
    Adam does not keep.

    Args:
        first: Adam's first moments m, in the form of the network.
        second: its second moments v.
        network: the network before the change.
        scaling: the new scaling, μ' and s'.

    Returns:
        The first and second moments for the rescaled network.
    """
    m, v = first.layers[0], second.layers[0]
    # None: not among the parameters that change.
    if m.weight is None or m.bias is None or v.bias is None:  # pyright: ignore[reportUnnecessaryComparison]
        return first, second
    mean, scale = (np.asarray(x, np.float64) for x in (network.mean, network.scale))
    r, d = scale / scaling.scale, (mean - scaling.mean) / scaling.scale
    m_weight = np.asarray(m.weight, np.float64) * r + np.asarray(m.bias, np.float64)[:, None] * d
    v_weight = np.asarray(v.weight, np.float64) * r**2 + np.asarray(v.bias, np.float64)[:, None] * d**2
    replaced = (
        trees.replace(lambda n: n.layers[0].weight, moments, jnp.asarray(weight, jnp.float32))
        for moments, weight in ((first, m_weight), (second, v_weight))
    )
    return next(replaced), next(replaced)


def policy_moments_in_units(first: Any, second: Any, policy: Any, scaling: Scaling) -> tuple[Any, Any]:
    """`moments_in_units` for a policy whose input goes into its field `network`."""
    networks = moments_in_units(first.network, second.network, policy.network, scaling)
    m, v = (
        trees.replace(lambda p: p.network, policy, network)
        for policy, network in zip((first, second), networks, strict=True)
    )
    return m, v
