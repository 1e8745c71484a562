"""Distributions over actions, the reactive policies that give them, and the agent. No optimiser.

Everything is written for one state; `vmap` outside.
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.data.arrays import Numbers
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, Concatenated, constant


class AbstractDistribution(eqx.Module):
    """What every distribution over actions offers."""

    def sample(self, noise: Float[Array, " act"]) -> Float[Array, " act"]:
        """An action, made of standard noise of the kind's own."""
        raise NotImplementedError

    def mode(self) -> Float[Array, " act"]:
        """The most probable action: what a deterministic policy does."""
        raise NotImplementedError

    def log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        raise NotImplementedError

    def kl(self, other: AbstractDistribution) -> Float[Array, ""]:
        """KL(self ‖ other), of two distributions of one kind."""
        raise NotImplementedError

    def entropy(self) -> Float[Array, ""]:
        raise NotImplementedError


class Gaussian(AbstractDistribution):
    """N(μ, diag(exp(log_std))²)."""

    mean: Float[Array, " act"]
    log_std: Float[Array, " act"]

    def sample(self, noise: Float[Array, " act"]) -> Float[Array, " act"]:
        """a = μ + σ ε, with ε ~ N(0, I)."""
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> Float[Array, " act"]:
        return self.mean

    def log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        """log N(a; μ, σ²) = −Σ_i ((a_i − μ_i)² / 2σ_i² + log σ_i + log(2π)/2)."""
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(z**2 / 2 + self.log_std + jnp.log(2 * jnp.pi) / 2)

    def kl(self, other: AbstractDistribution) -> Float[Array, ""]:
        """KL(N(μ, σ²) ‖ N(μ', σ'²)) = Σ_i (log σ'_i/σ_i + (σ_i² + (μ_i − μ'_i)²) / 2σ'_i² − 1/2)."""
        assert isinstance(other, Gaussian)
        log_ratio = self.log_std - other.log_std
        z = (self.mean - other.mean) * jnp.exp(-other.log_std)
        # expm1, because two nearly equal policies differ by less than float32 can tell 1 + x from 1.
        return jnp.sum((jnp.expm1(2 * log_ratio) + z**2) / 2 - log_ratio)

    def entropy(self) -> Float[Array, ""]:
        """Σ_i (log σ_i + log(2πe)/2)."""
        return jnp.sum(self.log_std + jnp.log(2 * jnp.pi * jnp.e) / 2)


class SquashedGaussian(AbstractDistribution):
    """a = tanh(u) with u ~ N(μ, diag(exp(log_std))²): inside (−1, 1), whatever the Gaussian."""

    mean: Float[Array, " act"]
    log_std: Float[Array, " act"]

    @property
    def gaussian(self) -> Gaussian:
        """The distribution of u."""
        return Gaussian(self.mean, self.log_std)

    def sample(self, noise: Float[Array, " act"]) -> Float[Array, " act"]:
        """a = tanh(μ + σ ε), with ε ~ N(0, I)."""
        return jnp.tanh(self.gaussian.sample(noise))

    def sample_and_log_prob(self, noise: Float[Array, " act"]) -> tuple[Float[Array, " act"], Float[Array, ""]]:
        """The action and its log-probability, exact however near to ±1 it is."""
        u = self.gaussian.sample(noise)
        return jnp.tanh(u), self.gaussian.log_prob(u) - _log_slope(u)

    def mode(self) -> Float[Array, " act"]:
        """tanh(μ): the median, which is what is meant by the most probable action here."""
        return jnp.tanh(self.mean)

    def log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        """log π(a) = log N(u; μ, σ²) − Σ_i log(1 − tanh²(u_i)), u = artanh(a)."""
        u = jnp.arctanh(jnp.clip(action, -1 + 1e-6, 1 - 1e-6))
        return self.gaussian.log_prob(u) - _log_slope(u)

    def kl(self, other: AbstractDistribution) -> Float[Array, ""]:
        """That of the Gaussians: one and the same map of both changes nothing."""
        assert isinstance(other, SquashedGaussian)
        return self.gaussian.kl(other.gaussian)

    def entropy(self) -> Float[Array, ""]:
        """That of the Gaussian, an upper bound: there is no closed form after the squashing."""
        return self.gaussian.entropy()


def _log_slope(u: Float[Array, " act"]) -> Float[Array, ""]:
    """Σ_i log(1 − tanh²(u_i)) = Σ_i 2 (log 2 − u_i − softplus(−2 u_i)), safe where tanh is ±1 in float32."""
    return jnp.sum(2 * (jnp.log(2.0) - u - jax.nn.softplus(-2 * u)))


class Categorical(AbstractDistribution):
    """P(a_i = 1) ∝ exp(logits_i), over one-hot actions."""

    logits: Float[Array, " act"]

    def sample(self, noise: Float[Array, " act"]) -> Float[Array, " act"]:
        """a = argmax_i (logits_i + g_i), with g_i ~ Gumbel(0, 1)."""
        return self._one_hot(jnp.argmax(self.logits + noise))

    def mode(self) -> Float[Array, " act"]:
        return self._one_hot(jnp.argmax(self.logits))

    def log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        """log P(a) = Σ_i a_i log p_i."""
        return jnp.sum(action * jax.nn.log_softmax(self.logits))

    def kl(self, other: AbstractDistribution) -> Float[Array, ""]:
        """KL(p ‖ p') = Σ_i p_i (log p_i − log p'_i)."""
        assert isinstance(other, Categorical)
        ours, theirs = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return jnp.sum(jnp.exp(ours) * (ours - theirs))

    def entropy(self) -> Float[Array, ""]:
        """−Σ_i p_i log p_i."""
        log_p = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_p) * log_p)

    def _one_hot(self, symbol: Array) -> Float[Array, " act"]:
        return jax.nn.one_hot(symbol, self.logits.shape[0], dtype=self.logits.dtype)


class Network(eqx.Module):
    """Layers of ReLU units over z-scored inputs; the output layer is zero at first, so that all states start alike.

    The inputs are z = (Pᵀ q − mean) / scale, where P is the `view` of the filter, or z = (q − mean) / scale without one.

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
        sizes = [inputs, *hidden, outputs]
        if min(sizes) < 1:
            raise UsageError(f"hidden={list(hidden)}: a layer between {inputs} inputs and {outputs} outputs is empty.")
        keys = jax.random.split(key, len(sizes) - 1)
        *inner, last = (eqx.nn.Linear(m, n, key=k) for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
        self.layers = (*inner, jax.tree.map(jnp.zeros_like, last))
        self.mean = jnp.zeros(inputs) if scaling is None else jnp.asarray(scaling.mean, jnp.float32)
        self.scale = jnp.ones(inputs) if scaling is None else jnp.asarray(scaling.scale, jnp.float32)
        self.view = None if view is None else jnp.asarray(view, jnp.float32)

    def __call__(self, q: Float[Array, " q"]) -> Float[Array, " out"]:
        x = ((q if self.view is None else q @ self.view) - self.mean) / self.scale
        for layer in self.layers[:-1]:
            x = jax.nn.relu(self.normalised(layer(x)))
        return self.layers[-1](x)

    def normalised(self, x: Float[Array, " units"]) -> Float[Array, " units"]:
        """What enters the units of a layer: here as it is."""
        return x


class NormedNetwork(Network):
    """… whose layers standardise what enters their units, for every input by itself (layer normalisation, Ba et al. 2016).

    Its output is bounded, however far an input lies from all that it has learned.
    """

    def normalised(self, x: Float[Array, " units"]) -> Float[Array, " units"]:
        return jax.nn.standardize(x)


def with_first_layer(network: Network, W: np.ndarray, bias: np.ndarray, scaling: Scaling) -> Network:
    """The network with another first layer, for inputs in these units."""
    replacements = [W, bias, scaling.mean, scaling.scale]
    return eqx.tree_at(
        lambda n: [n.layers[0].weight, n.layers[0].bias, n.mean, n.scale],
        network,
        [jnp.asarray(x, jnp.float32) for x in replacements],
    )


def in_units(network: Network, scaling: Scaling) -> Network:
    """The same function of q, its input in other units: W z + c = W (s'/s) z' + W (μ' − μ)/s + c, z = (q − μ)/s."""
    first = network.layers[0]
    W, bias, mean, scale = (np.asarray(x, np.float64) for x in (first.weight, first.bias, network.mean, network.scale))
    return with_first_layer(network, W * (scaling.scale / scale), bias + W @ ((scaling.mean - mean) / scale), scaling)


def input_scaling(filter: AbstractFilter, states: Float[np.ndarray, "n q"], least: float = 1.0) -> Scaling:
    """The units of a policy's input: zero mean, and of all coordinates of one filter the largest standard deviation.

    z-scored one by one, the last coordinates of a predictive state, which have a hundredth of the first ones' spread on
    exploration data, would be blown up to as much noise, and leave that range as soon as the policy learns something. Or
    a coordinate's own standard deviation, but no less than the fraction `least` of the largest. If the filter has a
    `view`, coordinates are those of the view.
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


class AbstractPolicy(eqx.Module):
    """A reactive policy: a state in, a distribution over actions out."""

    def __call__(self, q: Float[Array, " q"]) -> AbstractDistribution:
        raise NotImplementedError


class GaussianPolicy(AbstractPolicy):
    """π(a | q) = N(μ(q), diag(exp(log_std))²): the paper's reactive policy, whose **r** is `log_std`.

    `scaling` are the units its input is z-scored in: fitted to the states of the exploration data, then constant.
    """

    network: Network
    log_std: Float[Array, " act"]

    def __init__(
        self,
        inputs: int,
        actions: int,
        *,
        hidden: Sequence[int] = (16,),
        log_std: float = 0.0,
        scaling: Scaling | None = None,
        view: Float[Numbers, "q x"] | None = None,
        key: PRNGKeyArray,
    ):
        self.network = Network(inputs, actions, hidden=hidden, scaling=scaling, view=view, key=key)
        self.log_std = jnp.full(actions, log_std, jnp.float32)

    def __call__(self, q: Float[Array, " q"]) -> Gaussian:
        return Gaussian(self.network(q), self.log_std)


class SquashedPolicy(AbstractPolicy):
    """π(a | q) = tanh of N(μ(q), diag(σ(q))²): spread depends on the state, log σ between −5 and 2."""

    network: Network

    def __init__(
        self,
        inputs: int,
        actions: int,
        *,
        hidden: Sequence[int] = (16,),
        scaling: Scaling | None = None,
        view: Float[Numbers, "q x"] | None = None,
        key: PRNGKeyArray,
    ):
        self.network = Network(inputs, 2 * actions, hidden=hidden, scaling=scaling, view=view, key=key)

    @property
    def actions(self) -> int:
        return self.network.layers[-1].bias.shape[0] // 2  # pyright: ignore[reportOptionalMemberAccess]

    def __call__(self, q: Float[Array, " q"]) -> SquashedGaussian:
        mean, log_std = jnp.split(self.network(q), 2)
        return SquashedGaussian(mean, jnp.clip(log_std, -5.0, 2.0))


class CategoricalPolicy(AbstractPolicy):
    """π(a | q) = softmax(logits(q)), for discrete actions as one-hot vectors."""

    network: Network

    def __init__(
        self,
        inputs: int,
        actions: int,
        *,
        hidden: Sequence[int] = (16,),
        scaling: Scaling | None = None,
        view: Float[Numbers, "q x"] | None = None,
        key: PRNGKeyArray,
    ):
        self.network = Network(inputs, actions, hidden=hidden, scaling=scaling, view=view, key=key)

    def __call__(self, q: Float[Array, " q"]) -> Categorical:
        return Categorical(self.network(q))


class Agent(eqx.Module):
    """θ = (θ_PSR, θ_re): a filter and the reactive policy on its states."""

    filter: AbstractFilter
    policy: AbstractPolicy
