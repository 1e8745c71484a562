"""Distributions over actions, reactive policies, and the agent. No optimiser.

All functions process a single state; use `vmap` for several.
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, Concatenated, constant


class AbstractDistribution(eqx.Module):
    """Base class of distributions over actions."""

    def sample(self, noise: Float[Array, " act"]) -> Float[Array, " act"]:
        """Return a random action.

        Args:
            noise: standard noise, of the kind that the distribution defines.
        """
        raise NotImplementedError

    def mode(self) -> Float[Array, " act"]:
        """Return the most probable action, which a deterministic policy takes."""
        raise NotImplementedError

    def log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        raise NotImplementedError

    def kl(self, other: AbstractDistribution) -> Float[Array, ""]:
        """Return KL(self ‖ other). Both must be of the same class."""
        raise NotImplementedError

    def entropy(self) -> Float[Array, ""]:
        raise NotImplementedError


class Gaussian(AbstractDistribution):
    """N(μ, diag(exp(log_std))²)."""

    mean: Float[Array, " act"]
    log_std: Float[Array, " act"]

    def sample(self, noise: Float[Array, " act"]) -> Float[Array, " act"]:
        """Return a = μ + σ ε, with ε ~ N(0, I)."""
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> Float[Array, " act"]:
        return self.mean

    def log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        """Return log N(a; μ, σ²) = −Σ_i ((a_i − μ_i)² / 2σ_i² + log σ_i + log(2π)/2)."""
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(z**2 / 2 + self.log_std + jnp.log(2 * jnp.pi) / 2)

    def kl(self, other: AbstractDistribution) -> Float[Array, ""]:
        """Return KL(N(μ, σ²) ‖ N(μ', σ'²)) = Σ_i (log σ'_i/σ_i + (σ_i² + (μ_i − μ'_i)²) / 2σ'_i² − 1/2)."""
        assert isinstance(other, Gaussian)
        log_ratio = self.log_std - other.log_std
        z = (self.mean - other.mean) * jnp.exp(-other.log_std)
        # expm1, because two nearly equal policies differ by less than float32 can tell 1 + x from 1.
        return jnp.sum((jnp.expm1(2 * log_ratio) + z**2) / 2 - log_ratio)

    def entropy(self) -> Float[Array, ""]:
        """Return Σ_i (log σ_i + log(2πe)/2)."""
        return jnp.sum(self.log_std + jnp.log(2 * jnp.pi * jnp.e) / 2)


class SquashedGaussian(AbstractDistribution):
    """a = tanh(u) with u ~ N(μ, diag(exp(log_std))²). Actions are inside (−1, 1)."""

    mean: Float[Array, " act"]
    log_std: Float[Array, " act"]

    @property
    def gaussian(self) -> Gaussian:
        """The distribution of u."""
        return Gaussian(self.mean, self.log_std)

    def sample(self, noise: Float[Array, " act"]) -> Float[Array, " act"]:
        """Return a = tanh(μ + σ ε), with ε ~ N(0, I)."""
        return jnp.tanh(self.gaussian.sample(noise))

    def sample_and_log_prob(self, noise: Float[Array, " act"]) -> tuple[Float[Array, " act"], Float[Array, ""]]:
        """Return an action and its log-probability, which is exact also near ±1."""
        u = self.gaussian.sample(noise)
        return jnp.tanh(u), self.gaussian.log_prob(u) - _log_slope(u)

    def mode(self) -> Float[Array, " act"]:
        """Return tanh(μ), the median. It is used in place of the most probable action."""
        return jnp.tanh(self.mean)

    def log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        """Return log π(a) = log N(u; μ, σ²) − Σ_i log(1 − tanh²(u_i)), with u = artanh(a)."""
        u = jnp.arctanh(jnp.clip(action, -1 + 1e-6, 1 - 1e-6))
        return self.gaussian.log_prob(u) - _log_slope(u)

    def kl(self, other: AbstractDistribution) -> Float[Array, ""]:
        """Return the KL divergence of the Gaussians. KL is invariant under a shared bijection, here tanh."""
        assert isinstance(other, SquashedGaussian)
        return self.gaussian.kl(other.gaussian)

    def entropy(self) -> Float[Array, ""]:
        """Return the entropy of the Gaussian, an upper bound: the exact entropy has no closed form."""
        return self.gaussian.entropy()


def _log_slope(u: Float[Array, " act"]) -> Float[Array, ""]:
    """Return Σ_i log(1 − tanh²(u_i)) = Σ_i 2 (log 2 − u_i − softplus(−2 u_i)), finite where tanh is ±1 in float32."""
    return jnp.sum(2 * (jnp.log(2.0) - u - jax.nn.softplus(-2 * u)))


class Categorical(AbstractDistribution):
    """P(a_i = 1) ∝ exp(logits_i), over one-hot actions."""

    logits: Float[Array, " act"]

    def sample(self, noise: Float[Array, " act"]) -> Float[Array, " act"]:
        """Return the one-hot action of argmax_i (logits_i + g_i), with g_i ~ Gumbel(0, 1)."""
        return self._one_hot(jnp.argmax(self.logits + noise))

    def mode(self) -> Float[Array, " act"]:
        return self._one_hot(jnp.argmax(self.logits))

    def log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        """Return log P(a) = Σ_i a_i log p_i."""
        return jnp.sum(action * jax.nn.log_softmax(self.logits))

    def kl(self, other: AbstractDistribution) -> Float[Array, ""]:
        """Return KL(p ‖ p') = Σ_i p_i (log p_i − log p'_i)."""
        assert isinstance(other, Categorical)
        ours, theirs = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return jnp.sum(jnp.exp(ours) * (ours - theirs))

    def entropy(self) -> Float[Array, ""]:
        """Return −Σ_i p_i log p_i."""
        log_p = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_p) * log_p)

    def _one_hot(self, symbol: Array) -> Float[Array, " act"]:
        return jax.nn.one_hot(symbol, self.logits.shape[0], dtype=self.logits.dtype)


class Network(eqx.Module):
    """ReLU layers on standardised inputs. The output layer is initialised with zeros."""

    layers: tuple[eqx.nn.Linear, ...]
    mean: Float[Array, " q"] = constant()
    scale: Float[Array, " q"] = constant()

    def __init__(self, inputs: int, outputs: int, *, hidden: Sequence[int], scaling: Scaling | None, key: PRNGKeyArray):
        sizes = [inputs, *hidden, outputs]
        if min(sizes) < 1:
            raise UsageError(f"hidden={list(hidden)}: a layer between {inputs} inputs and {outputs} outputs is empty.")
        keys = jax.random.split(key, len(sizes) - 1)
        *inner, last = (eqx.nn.Linear(m, n, key=k) for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
        self.layers = (*inner, jax.tree.map(jnp.zeros_like, last))
        self.mean = jnp.zeros(inputs) if scaling is None else jnp.asarray(scaling.mean, jnp.float32)
        self.scale = jnp.ones(inputs) if scaling is None else jnp.asarray(scaling.scale, jnp.float32)

    def __call__(self, q: Float[Array, " q"]) -> Float[Array, " out"]:
        x = (q - self.mean) / self.scale
        for layer in self.layers[:-1]:
            x = jax.nn.relu(self.normalised(layer(x)))
        return self.layers[-1](x)

    def normalised(self, x: Float[Array, " units"]) -> Float[Array, " units"]:
        """Hook for normalising pre-activations; identity here."""
        return x


class NormedNetwork(Network):
    """A `Network` with layer normalisation (Ba et al. 2016) of the pre-activations.

    Its output is bounded, also for inputs far from the training data.
    """

    def normalised(self, x: Float[Array, " units"]) -> Float[Array, " units"]:
        return jax.nn.standardize(x)


def with_first_layer(network: Network, W: np.ndarray, bias: np.ndarray, scaling: Scaling) -> Network:
    """Return the network with another first layer.

    Args:
        network: the network.
        W: the new weights.
        bias: the new bias.
        scaling: the new scaling of the input.
    """
    replacements = [W, bias, scaling.mean, scaling.scale]
    return eqx.tree_at(
        lambda n: [n.layers[0].weight, n.layers[0].bias, n.mean, n.scale],
        network,
        [jnp.asarray(x, jnp.float32) for x in replacements],
    )


def in_units(network: Network, scaling: Scaling) -> Network:
    """Return the same function of q with another scaling of the input.

        W z + c = W (s'/s) z' + W (μ' − μ)/s + c

    where z = (q − μ)/s is the input in the current scaling, z' = (q − μ')/s' in the new one, and W, c are weights
    and bias of the first layer.
    """
    first = network.layers[0]
    W, bias, mean, scale = (np.asarray(x, np.float64) for x in (first.weight, first.bias, network.mean, network.scale))
    return with_first_layer(network, W * (scaling.scale / scale), bias + W @ ((scaling.mean - mean) / scale), scaling)


def input_scaling(filter: AbstractFilter, states: Float[np.ndarray, "n q"], least: float = 1.0) -> Scaling:
    """Return the scaling of a policy's input: zero mean, and by default one scale for all coordinates of a filter.

    That scale is the largest standard deviation. On exploration data, the last coordinates of a predictive state
    have a hundredth of the standard deviation of the first ones. Scaled one by one, they would become noise, and
    leave their range as soon as the policy learns something.

    Args:
        filter: the filter. A concatenated filter has one scale for each part.
        states: states that it reached.
        least: each coordinate is scaled by its own standard deviation, but at least by this fraction of the largest.
            Default: 1, so that all are scaled by the largest one.
    """
    if isinstance(filter, Concatenated):
        n = filter.first.size
        parts = input_scaling(filter.first, states[:, :n], least), input_scaling(filter.second, states[:, n:], least)
        return Scaling(*(np.concatenate(both) for both in zip(*((p.mean, p.scale) for p in parts), strict=True)))
    spread = states.std(axis=0)
    largest = spread.max()  # a filter none of whose coordinates moves has units of 1
    return Scaling(states.mean(axis=0), np.maximum(spread, least * largest) if largest > 1e-9 else np.ones_like(spread))


class AbstractPolicy(eqx.Module):
    """Base class of reactive policies, which map a state to a distribution over actions."""

    def __call__(self, q: Float[Array, " q"]) -> AbstractDistribution:
        raise NotImplementedError


class GaussianPolicy(AbstractPolicy):
    """The paper's reactive policy, π(a | q) = N(μ(q), diag(exp(log_std))²). The paper's **r** is `log_std`.

    `scaling` standardises the input. It is fitted to the states of the exploration, and constant for gradients.
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
        key: PRNGKeyArray,
    ):
        self.network = Network(inputs, actions, hidden=hidden, scaling=scaling, key=key)
        self.log_std = jnp.full(actions, log_std, jnp.float32)

    def __call__(self, q: Float[Array, " q"]) -> Gaussian:
        return Gaussian(self.network(q), self.log_std)


class SquashedPolicy(AbstractPolicy):
    """π(a | q) is tanh of N(μ(q), diag(σ(q))²). σ depends on the state, with log σ between −5 and 2."""

    network: Network

    def __init__(
        self,
        inputs: int,
        actions: int,
        *,
        hidden: Sequence[int] = (16,),
        scaling: Scaling | None = None,
        key: PRNGKeyArray,
    ):
        self.network = Network(inputs, 2 * actions, hidden=hidden, scaling=scaling, key=key)

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
        key: PRNGKeyArray,
    ):
        self.network = Network(inputs, actions, hidden=hidden, scaling=scaling, key=key)

    def __call__(self, q: Float[Array, " q"]) -> Categorical:
        return Categorical(self.network(q))


class Agent(eqx.Module):
    """θ = (θ_PSR, θ_re): a filter and a reactive policy on its states."""

    filter: AbstractFilter
    policy: AbstractPolicy
