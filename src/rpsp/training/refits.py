"""On-policy refits: the filter is fitted again to the policy's own data. Not in the paper.

A filter that was fitted to random exploration predicts badly once the policy has learned and visits other states. A refit
must preserve what the policy does. The direct-inference filter keeps the meaning of its coordinates; for other filters
the policy's first layer is expressed in the new coordinates by regression. Then the policy is trained to imitate, on the
new states, what it did on the old ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from rpsp.algorithms.policies import Agent, Network, input_scaling, with_first_layer
from rpsp.data.batches import Batch
from rpsp.data.linalg import ridge
from rpsp.data.scaling import Scaling
from rpsp.filters.base import AbstractFilter, Concatenated, reached, trainable
from rpsp.filters.inference import InferenceSettings, refit_inference


class Refit(NamedTuple):
    """How a filter is refitted."""

    fit: Callable[[Agent, Batch, Batch, np.random.Generator], Agent]
    """(agent, recent on-policy data, held-out part of them, rng) → agent."""
    same_coordinates: bool
    """Whether the coordinates of a state keep their meaning."""


def keep_coordinates(settings: InferenceSettings) -> Refit:
    """Refit the direct-inference filter. Coordinates keep their meaning, so the policy hardly changes."""

    def fit(agent: Agent, batch: Batch, held_out: Batch, rng: np.random.Generator) -> Agent:
        new = _with_belief(agent, refit_inference(_belief(agent), batch, held_out, settings, rng=rng))
        old_states, new_states = (reached(a.filter, batch, held_out) for a in (agent, new))
        return _imitator(new, agent.policy, old_states, new_states, rng)

    return Refit(fit, same_coordinates=True)


def new_coordinates(fit: Callable[[Batch, np.random.Generator], AbstractFilter]) -> Refit:
    """Fit a new filter, express the policy's first layer in its states, and train the policy to imitate the old one."""

    def refit(agent: Agent, batch: Batch, held_out: Batch, rng: np.random.Generator) -> Agent:
        new = _with_belief(agent, fit(batch, rng))
        old_states, new_states = (reached(a.filter, batch, held_out) for a in (agent, new))
        policy: Any = agent.policy
        scaling = input_scaling(new.filter, new_states)
        network = re_expressed(policy.network, old_states, new_states, scaling)
        new = eqx.tree_at(lambda a: a.policy.network, new, network)
        return _imitator(new, policy, old_states, new_states, rng)

    return Refit(refit, same_coordinates=False)


def re_expressed(
    network: Network, old: np.ndarray, new: np.ndarray, scaling: Scaling, penalty: float = 1e-5
) -> Network:
    """Express a network of states q in new states q'.

    With z ≈ A z' + b by ridge regression, the first layer W z + c becomes W A z' + (W b + c).

    Args:
        network: the network; W and c are the weight and bias of its first layer.
        old: the states q; z is q in the network's scaling.
        new: the states q' at the same steps; z' is q' in the new scaling.
        scaling: the new scaling.
        penalty: ridge per sample.
    """
    z = (old - np.asarray(network.mean)) / np.asarray(network.scale)
    z_new = np.insert(scaling.encode(new), 0, 1.0, axis=1)
    b, *A = ridge(z_new, z, penalty * len(z))
    first = network.layers[0]
    W = np.asarray(first.weight, np.float64)
    bias = np.asarray(first.bias, np.float64) + W @ b
    return with_first_layer(network, W @ np.transpose(A), bias, scaling)


IMITATED = 4096  # steps on which a policy imitates: one size, one compilation


def _imitator(new: Agent, old: Any, old_states: np.ndarray, new_states: np.ndarray, rng: np.random.Generator) -> Agent:
    """Return the new agent with a policy that imitates the old one at the same steps."""
    some = rng.choice(len(old_states), min(len(old_states), IMITATED), replace=False)
    (home,) = old.network.mean.devices()  # the fit may run on another device; this runs where the policy learns
    with jax.default_device(home):
        pairs = (jnp.asarray(x[some], jnp.float32) for x in (old_states, new_states))
        return eqx.tree_at(lambda a: a.policy.network, new, imitating(new.policy, old, *pairs))


@eqx.filter_jit
def imitating(
    policy: Any, old: Any, old_states: Float[Array, "n q_old"], new_states: Float[Array, "n q"], *, steps: int = 400
) -> Network:
    """Minimise mean_t KL(π_old(· | q_t) ‖ π(· | q'_t)) over the network of π by Adam, and return the better network.

    π_old is the old policy on the old states q_t, and π is `policy` on the new states q'_t. A linear change of the first
    layer cannot undo a nonlinear change of the states; the other layers can, in part.
    """
    moving, fixed = eqx.partition(policy.network, trainable(policy.network))
    optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, steps))
    targets = jax.vmap(old)(old_states)

    def loss(moving: Any) -> Array:
        imitator = eqx.tree_at(lambda p: p.network, policy, eqx.combine(moving, fixed))
        return jnp.mean(jax.vmap(lambda target, q: target.kl(imitator(q)))(targets, new_states))

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        moving, state = carry
        updates, state = optimiser.update(jax.grad(loss)(moving), state)
        return (optax.apply_updates(moving, updates), state), None

    moved = jax.lax.scan(step, (moving, optimiser.init(moving)), None, steps)[0][0]
    nearer = loss(moved) < loss(moving)
    return eqx.combine(jax.tree.map(lambda new, old: jnp.where(nearer, new, old), moved, moving), fixed)


def _belief(agent: Agent) -> Any:
    """Return the filter that is fitted: with +obs, the first of the two."""
    return agent.filter.first if isinstance(agent.filter, Concatenated) else agent.filter


def _with_belief(agent: Agent, filter: AbstractFilter) -> Agent:
    if isinstance(agent.filter, Concatenated):
        filter = Concatenated(filter, agent.filter.second)
    return Agent(filter, agent.policy)
