"""Networks of policies and critics, and the scaling of their inputs."""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.data import trees
from rpsp.data.arrays import Numbers
from rpsp.data.moments import Moments, scale_of
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, Concatenated, constant


class Network(eqx.Module):
    """Fully connected ReLU network with standardised inputs.

    The inputs are z = (Pᵀ q − mean) / scale, where P is the `view` of the filter, or z = (q − mean) / scale without one. The
    weights of the output layer are zero at first, so that the output is the same for all inputs.

    Args:
        inputs: number of coordinates of z.
        outputs: number of outputs.
        hidden: sizes of the hidden layers.
        scaling: mean and scale of the inputs. None: 0 and 1.
        view: P. None: all of q.
        key: random key of the weights.
    """

    layers: tuple[eqx.nn.Linear, ...]
    mean: Float[Array, " x"] = constant()
    scale: Float[Array, " x"] = constant()
    view: Float[Array, "q x"] | None = constant()
    """P."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        hidden: Sequence[int],
        scaling: Scaling | None,
        view: Float[Numbers, "q x"] | None = None,
        key: PRNGKeyArray,
    ):
        if min(inputs, *hidden, outputs) < 1:
            raise UsageError(f"hidden={list(hidden)}: a layer between {inputs} inputs and {outputs} outputs is empty.")
        sizes = self.sizes(inputs, outputs, hidden)
        keys = jax.random.split(key, len(sizes))
        *inner, last = (eqx.nn.Linear(m, n, key=k) for (m, n), k in zip(sizes, keys, strict=True))
        self.layers = (*inner, trees.map(lambda x: jnp.zeros_like(x), last))
        self.mean = jnp.zeros(inputs) if scaling is None else jnp.asarray(scaling.mean, jnp.float32)
        self.scale = jnp.ones(inputs) if scaling is None else jnp.asarray(scaling.scale, jnp.float32)
        self.view = None if view is None else jnp.asarray(view, jnp.float32)

    @staticmethod
    def sizes(inputs: int, outputs: int, hidden: Sequence[int]) -> list[tuple[int, int]]:
        """Return the number of inputs and outputs of every layer."""
        return list(pairwise([inputs, *hidden, outputs]))

    def seen(self, q: Float[Array, " q"]) -> Float[Array, " x"]:
        """Return Pᵀ q, the part of a state that the network sees, before its scaling."""
        return q if self.view is None else q @ self.view

    def __call__(self, q: Float[Array, " q"]) -> Float[Array, " out"]:
        """Return the output of the network for a state."""
        x = (self.seen(q) - self.mean) / self.scale
        for layer in self.layers[:-1]:
            x = jax.nn.relu(self.normalised(layer(x)))
        return self.layers[-1](x)

    def normalised(self, x: Float[Array, " units"]) -> Float[Array, " units"]:
        """Hook for normalising pre-activations; identity here."""
        return x


class NormedNetwork(Network):
    """A `Network` with layer normalisation (Ba et al. 2016): pre-activations are standardised for each input.

    Its output is bounded, however far an input is from the training data.
    """

    def normalised(self, x: Float[Array, " units"]) -> Float[Array, " units"]:
        """Standardise pre-activations."""
        return jax.nn.standardize(x)


EXPANSION = 4
"""Number of inner units of a residual block per unit of its width."""


class ResidualNetwork(Network):
    """Residual network with layer normalisation, similar to SimBa (Lee et al. 2024). Not in the paper.

        h_0 = E z + e,    h_i = h_{i−1} + B_i relu(A_i N(h_{i−1}) + a_i) + b_i,    output = W N(h_n) + w

    where z are the inputs of a `Network`, N standardises a vector, and block i = 1, …, n has 4 inner units per unit of h.
    N has no weights of its own, because a linear layer follows it. `hidden` gives the width once per block. The output is
    bounded, however far an input is from the training data.
    """

    @staticmethod
    def sizes(inputs: int, outputs: int, hidden: Sequence[int]) -> list[tuple[int, int]]:
        """Return the number of inputs and outputs of every layer: E, (A_i, B_i) of each block, W."""
        if len(set(hidden)) != 1:
            raise UsageError(
                f"hidden={list(hidden)}: the blocks of a residual body all have the same width; give it once for each "
                "block, such as 128 128."
            )
        width = hidden[0]
        return [
            (inputs, width),
            *len(hidden) * [(width, EXPANSION * width), (EXPANSION * width, width)],
            (width, outputs),
        ]

    def __call__(self, q: Float[Array, " q"]) -> Float[Array, " out"]:
        """Return the output of the network for a state."""
        first, *inner, last = self.layers
        h = first((self.seen(q) - self.mean) / self.scale)
        for widening, narrowing in zip(inner[::2], inner[1::2], strict=True):
            h = h + narrowing(jax.nn.relu(widening(jax.nn.standardize(h))))
        return last(jax.nn.standardize(h))


Body = Literal["plain", "residual"]
BODIES: dict[Body, type[Network]] = {"plain": Network, "residual": ResidualNetwork}
"""The kinds of networks, by the setting `body`."""


def with_first_layer(network: Network, W: np.ndarray, bias: np.ndarray, scaling: Scaling) -> Network:
    """Replace the first layer of a network, and the scaling of its input."""
    replacements = [W, bias, scaling.mean, scaling.scale]
    return trees.replace(
        lambda n: [n.layers[0].weight, n.layers[0].bias, n.mean, n.scale],
        network,
        [jnp.asarray(x, jnp.float32) for x in replacements],
    )


def in_units(network: Network, scaling: Scaling) -> Network:
    """Change the scaling of a network's input without changing the function of q.

        W z + c = W (s'/s) z' + W (μ' − μ)/s + c

    where z = (q − μ)/s is the old input, z' = (q − μ')/s' the new one, and W and c are the first layer.
    """
    first = network.layers[0]
    W, bias, mean, scale = (np.asarray(x, np.float64) for x in (first.weight, first.bias, network.mean, network.scale))
    return with_first_layer(network, W * (scaling.scale / scale), bias + W @ ((scaling.mean - mean) / scale), scaling)


def standardised(network: Network, mean: Float[Array, "*x"], scale: Float[Array, "*x"]) -> Network:
    """Return a network with another scaling of its input, and the same weights. Its function changes."""
    return trees.replace(lambda n: [n.mean, n.scale], network, [mean, scale])


def with_fixed_norms(network: Network) -> Network:
    """Return a network whose hidden layers have weights W of the norm that they have at first, on average.

        (W, b) ← (W, b) √(n / 3) / ‖W‖

    where n is the number of units and b are the biases. Behind layer normalisation the function of a layer does not depend
    on the norm of (W, b), but the effective step size is divided by it, and gradients make the norm grow (Lyle et al. 2024).
    The output layer stays as it is.
    """

    def fixed(layer: eqx.nn.Linear) -> eqx.nn.Linear:
        W, bias = layer.weight, layer.bias
        assert bias is not None
        factor = jnp.sqrt(W.shape[0] / 3) / jnp.maximum(jnp.sqrt(jnp.sum(W**2)), 1e-12)
        return trees.replace(lambda a: [a.weight, a.bias], layer, [factor * W, factor * bias])

    *inner, last = network.layers
    return trees.replace(lambda n: n.layers, network, (*map(fixed, inner), last))


SMALLEST_RUNNING_SCALE = 1e-3
"""Smallest running scale of an input, as a fraction of the largest one."""


def running_scaling(moments: Moments) -> tuple[Float[Array, " x"], Float[Array, " x"]]:
    """Return mean and scale that standardise every coordinate of what has been seen.

    Args:
        moments: the moments of Pᵀ q.
    """
    scale = scale_of(moments)
    return moments.mean, jnp.maximum(scale, SMALLEST_RUNNING_SCALE * jnp.max(scale))


def input_scaling(filter: AbstractFilter, states: Float[np.ndarray, "n q"], least: float = 1.0) -> Scaling:
    """Fit the scaling of a policy's input: zero mean, and one scale per filter, its largest standard deviation.

    The last coordinates of a predictive state have a hundredth of the spread of the first ones on exploration data. With a
    scale of their own they would amplify noise, and leave that range as soon as the policy learns.

    Args:
        filter: the filter. The filters of a `Concatenated` are scaled separately. If it has a `view`, the coordinates are
            those of the view.
        states: states of the filter.
        least: smallest scale of a coordinate as a fraction of the largest one. With the default 1 all are equal; with less,
            each coordinate is scaled by its own standard deviation, but by no less than this.
    """
    if isinstance(filter, Concatenated):
        n = filter.first.size
        parts = input_scaling(filter.first, states[:, :n], least), input_scaling(filter.second, states[:, n:], least)
        return Scaling(*(np.concatenate(both) for both in zip(*((p.mean, p.scale) for p in parts), strict=True)))
    if filter.view is not None:
        states = states @ np.asarray(filter.view, np.float64)
    spread = states.std(axis=0)
    largest = spread.max()  # a filter none of whose coordinates moves has units of 1
    return Scaling(states.mean(axis=0), np.maximum(spread, least * largest) if largest > 1e-9 else np.ones_like(spread))
