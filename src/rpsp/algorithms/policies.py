"""Distributions over actions, reactive policies and the agent.

Everything is written for one state. Use `vmap` for several.
"""

# jax's stubs leave the type of devices unknown, and with it that of most functions of jax.numpy.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.data import trees
from rpsp.data.arrays import Numbers
from rpsp.data.scaling import Scaling
from rpsp.errors import UsageError
from rpsp.filters.base import AbstractFilter, Concatenated, constant


class AbstractDistribution(eqx.Module):
    """A distribution over actions."""

    def sample(self, noise: Float[Array, " act"]) -> Float[Array, " act"]:
        """Draw an action.

        Args:
            noise: standard normal numbers, or standard Gumbel numbers for `Categorical`.
        """
        raise NotImplementedError

    def mode(self) -> Float[Array, " act"]:
        """Return the most probable action, which a deterministic policy takes."""
        raise NotImplementedError

    def log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        """Return log π(a) of an action."""
        raise NotImplementedError

    def kl(self, other: AbstractDistribution) -> Float[Array, ""]:
        """Return KL(self ‖ other) of two distributions of the same class."""
        raise NotImplementedError

    def entropy(self) -> Float[Array, ""]:
        """Return the entropy, −E[log π(a)]."""
        raise NotImplementedError


class Gaussian(AbstractDistribution):
    """Normal distribution N(μ, diag(exp(log_std))²)."""

    mean: Float[Array, " act"]
    log_std: Float[Array, " act"]

    def sample(self, noise: Float[Array, " act"]) -> Float[Array, " act"]:
        """Return a = μ + σ ε, with ε ~ N(0, I)."""
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> Float[Array, " act"]:
        """Return μ."""
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
    """Distribution of a = tanh(u) with u ~ N(μ, diag(exp(log_std))²). Actions are inside (−1, 1)."""

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
        """Return an action and its log-probability, which is exact even for actions close to ±1."""
        u = self.gaussian.sample(noise)
        return jnp.tanh(u), self.gaussian.log_prob(u) - _log_slope(u)

    def mode(self) -> Float[Array, " act"]:
        """Return tanh(μ), which is the median. It is used in place of the mode."""
        return jnp.tanh(self.mean)

    def log_prob(self, action: Float[Array, " act"]) -> Float[Array, ""]:
        """Return log π(a) = log N(u; μ, σ²) − Σ_i log(1 − tanh²(u_i)), u = artanh(a)."""
        u = jnp.arctanh(jnp.clip(action, -1 + 1e-6, 1 - 1e-6))
        return self.gaussian.log_prob(u) - _log_slope(u)

    def kl(self, other: AbstractDistribution) -> Float[Array, ""]:
        """Return the KL of the Gaussians: KL is invariant under a shared bijection."""
        assert isinstance(other, SquashedGaussian)
        return self.gaussian.kl(other.gaussian)

    def entropy(self) -> Float[Array, ""]:
        """Return the entropy of the Gaussian, which is an upper bound. There is no closed form."""
        return self.gaussian.entropy()


def _log_slope(u: Float[Array, " act"]) -> Float[Array, ""]:
    """Return Σ_i log(1 − tanh²(u_i)) = Σ_i 2 (log 2 − u_i − softplus(−2 u_i)), also where tanh rounds to ±1 in float32."""
    return jnp.sum(2 * (jnp.log(2.0) - u - jax.nn.softplus(-2 * u)))


class Categorical(AbstractDistribution):
    """Distribution P(a_i = 1) ∝ exp(logits_i) over one-hot actions."""

    logits: Float[Array, " act"]

    def sample(self, noise: Float[Array, " act"]) -> Float[Array, " act"]:
        """Return the one-hot vector of argmax_i (logits_i + g_i), with g_i ~ Gumbel(0, 1)."""
        return self._one_hot(jnp.argmax(self.logits + noise))

    def mode(self) -> Float[Array, " act"]:
        """Return the one-hot vector of argmax_i logits_i."""
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


# The methods of distributions as functions, for `vmap` over many.


def log_prob(dist: AbstractDistribution, action: Float[Array, " act"]) -> Float[Array, ""]:
    """Return log π(a) of an action."""
    return dist.log_prob(action)


def kl(old: AbstractDistribution, new: AbstractDistribution) -> Float[Array, ""]:
    """Return KL(π_old ‖ π_new)."""
    return old.kl(new)


def entropy(dist: AbstractDistribution) -> Float[Array, ""]:
    """Return the entropy."""
    return dist.entropy()


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
        sizes = [inputs, *hidden, outputs]
        if min(sizes) < 1:
            raise UsageError(f"hidden={list(hidden)}: a layer between {inputs} inputs and {outputs} outputs is empty.")
        keys = jax.random.split(key, len(sizes) - 1)
        *inner, last = (eqx.nn.Linear(m, n, key=k) for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
        self.layers = (*inner, trees.map(lambda x: jnp.zeros_like(x), last))
        self.mean = jnp.zeros(inputs) if scaling is None else jnp.asarray(scaling.mean, jnp.float32)
        self.scale = jnp.ones(inputs) if scaling is None else jnp.asarray(scaling.scale, jnp.float32)
        self.view = None if view is None else jnp.asarray(view, jnp.float32)

    def __call__(self, q: Float[Array, " q"]) -> Float[Array, " out"]:
        """Return the output of the network for a state."""
        x = ((q if self.view is None else q @ self.view) - self.mean) / self.scale
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


class AbstractPolicy(eqx.Module):
    """A reactive policy: maps a state to a distribution over actions."""

    def __call__(self, q: Float[Array, " q"]) -> AbstractDistribution:
        """Return the distribution of actions in a state."""
        raise NotImplementedError


class GaussianPolicy(AbstractPolicy):
    """The paper's reactive policy, π(a | q) = N(μ(q), diag(exp(log_std))²). `log_std` is the paper's **r**.

    Args:
        inputs: size of the state.
        actions: size of an action.
        hidden: sizes of the hidden layers.
        log_std: initial value of `log_std`.
        scaling: scaling of the input, which is not trained. Default: none.
        key: random key of the initial weights.
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
        """Return N(μ(q), diag(exp(log_std))²)."""
        return Gaussian(self.network(q), self.log_std)


class SquashedPolicy(AbstractPolicy):
    """π(a | q) = tanh of N(μ(q), diag(σ(q))²). The spread depends on the state; log σ is limited to [−5, 2].

    Args:
        inputs: size of the state.
        actions: size of an action.
        hidden: sizes of the hidden layers.
        scaling: scaling of the input, which is not trained. Default: none.
        key: random key of the initial weights.
    """

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
        """Size of an action."""
        return self.network.layers[-1].bias.shape[0] // 2  # pyright: ignore[reportOptionalMemberAccess]

    def __call__(self, q: Float[Array, " q"]) -> SquashedGaussian:
        """Return the distribution of tanh(u), u ~ N(μ(q), diag(σ(q))²)."""
        mean, log_std = jnp.split(self.network(q), 2)
        return SquashedGaussian(mean, jnp.clip(log_std, -5.0, 2.0))


class CategoricalPolicy(AbstractPolicy):
    """π(a | q) = softmax(logits(q)), for discrete actions as one-hot vectors.

    Args:
        inputs: size of the state.
        actions: number of actions.
        hidden: sizes of the hidden layers.
        scaling: scaling of the input, which is not trained. Default: none.
        key: random key of the initial weights.
    """

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
        """Return the distribution with the logits of a state."""
        return Categorical(self.network(q))


class Agent(eqx.Module):
    """The parameters θ = (θ_PSR, θ_re): a filter, and the reactive policy on its states."""

    filter: AbstractFilter
    policy: AbstractPolicy
