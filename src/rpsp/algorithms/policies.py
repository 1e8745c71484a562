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
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.algorithms.networks import BODIES, Body, Network
from rpsp.data.arrays import Numbers
from rpsp.data.scaling import Scaling
from rpsp.filters.base import AbstractFilter


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
        body: kind of network, a key of `networks.BODIES`.
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
        body: Body = "plain",
        key: PRNGKeyArray,
    ):
        self.network = BODIES[body](inputs, actions, hidden=hidden, scaling=scaling, view=view, key=key)
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
        body: kind of network, a key of `networks.BODIES`.
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
        body: Body = "plain",
        key: PRNGKeyArray,
    ):
        self.network = BODIES[body](inputs, 2 * actions, hidden=hidden, scaling=scaling, view=view, key=key)

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
        body: kind of network, a key of `networks.BODIES`.
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
        body: Body = "plain",
        key: PRNGKeyArray,
    ):
        self.network = BODIES[body](inputs, actions, hidden=hidden, scaling=scaling, view=view, key=key)

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.network.layers[-1].bias.shape[0]  # pyright: ignore[reportOptionalMemberAccess]

    def __call__(self, q: Float[Array, " q"]) -> Categorical:
        """Return the distribution with the logits of a state."""
        return Categorical(self.network(q))


class Agent(eqx.Module):
    """The parameters θ = (θ_PSR, θ_re): a filter, and the reactive policy on its states."""

    filter: AbstractFilter
    policy: AbstractPolicy
