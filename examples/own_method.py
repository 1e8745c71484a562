"""Your own method: a filter and an algorithm in one file, usable from every command.

The filter is an α-β tracker: it estimates the observation and its rate of change, and corrects both by a fraction of
the prediction error. Its two gains are trained to minimise the prediction error. The algorithm is REINFORCE.

    cd examples
    rpsp train InvertedPendulum-v5 --method own_method:tracker --iterations 60 --out runs/tracker
    rpsp eval runs/tracker --plugin own_method                # name the module again, so that it is imported
    rpsp train InvertedPendulum-v5 --method own_method:reinforced --iterations 60
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jaxtyping import Array, Float, PRNGKeyArray
from rpsp.experiments.recipes import Belief

import rpsp
from rpsp.algorithms.base import AbstractAlgorithm, Diagnostics, policy_only
from rpsp.algorithms.objectives import (
    advantages,
    distributions,
    fit_baseline,
    linear_baseline,
    mean_kl,
    policy_loss,
    rewards_to_go,
)
from rpsp.algorithms.policies import Agent
from rpsp.data.batches import Batch
from rpsp.experiments.checkpoints import READABLE
from rpsp.experiments.methods import Method, MethodSettings
from rpsp.filters.base import AbstractFilter, unroll
from rpsp.filters.refinement import refine

# ---------------------------------------------------------------------------------------------------------------------
# A filter: init, update, predict
# ---------------------------------------------------------------------------------------------------------------------


class Tracker(AbstractFilter):
    """q = [x, v, 1]: x ← ô + α e and v ← v + Ba + β e, with prediction ô = x + v + Ba and error e = o − ô."""

    # The last coordinate is 0 before the first observation, which is used without correction.
    gains: Float[Array, " gain"]
    """α and β."""
    push: Float[Array, "act obs"]
    """B: effect of an action on the rate of change."""

    def init(self) -> Float[Array, " q"]:
        return jnp.zeros(2 * self.push.shape[1] + 1)

    def update(self, q: Array, action: Array, observation: Array) -> Float[Array, " q"]:
        n = self.push.shape[1]
        expected = self.predict(q, action)
        unexpected = observation - expected
        x = expected + self.gains[0] * unexpected
        v = q[n : 2 * n] + action @ self.push + self.gains[1] * unexpected
        begun = q[-1] > 0
        return jnp.concatenate([jnp.where(begun, x, observation), jnp.where(begun, v, 0.0), jnp.ones(1)])

    def predict(self, q: Array, action: Array) -> Float[Array, " obs"]:
        n = self.push.shape[1]
        return q[:n] + q[n : 2 * n] + action @ self.push


READABLE["Tracker"] = Tracker  # allow checkpoints to contain this class


def tracking(settings: MethodSettings) -> Belief:
    """Start with gains of 1, then minimise the prediction error on exploration data through time."""

    def initialise(batch: Batch, held: Batch, rng: np.random.Generator, key: Array) -> AbstractFilter:
        first = Tracker(jnp.array([1.0, 1.0]), jnp.zeros((batch.actions.shape[-1], batch.observations.shape[-1])))
        return refine(first, batch, held, key=key).filter

    return Belief(initialise)


# ---------------------------------------------------------------------------------------------------------------------
# An algorithm: init, step
# ---------------------------------------------------------------------------------------------------------------------


class Reinforce(AbstractAlgorithm):
    """One Adam step on ℓ₁ = −Σ log π(a_t | q_t) (R_t − b_t); the filter is frozen."""

    learning_rate: float = 1e-2
    """Step size of Adam."""
    discount: float = 0.99
    """γ."""

    def init(self, agent: Agent, *, key: PRNGKeyArray) -> Any:
        """Return Adam's initial state."""
        return optax.adam(self.learning_rate).init(eqx.filter(agent, policy_only(agent)))

    @eqx.filter_jit
    def step(self, agent: Agent, memory: Any, batch: Batch, *, key: PRNGKeyArray) -> tuple[Agent, Any, Diagnostics]:
        """Return the new agent, Adam's new state, and numbers for the log."""
        states, mask = unroll(agent.filter, batch), jnp.asarray(batch.mask)
        returns = rewards_to_go(batch, self.discount)
        baseline = linear_baseline(fit_baseline(states, returns, mask), states)
        A = advantages(returns, baseline, mask)
        moving, fixed = eqx.partition(agent, policy_only(agent))

        def loss(moving: Agent) -> Array:
            return policy_loss(distributions(eqx.combine(moving, fixed).policy, states), batch, A)

        value, gradient = eqx.filter_value_and_grad(loss)(moving)
        updates, memory = optax.adam(self.learning_rate).update(gradient, memory)
        new = eqx.combine(eqx.apply_updates(moving, updates), fixed)
        kl = mean_kl(distributions(agent.policy, states), distributions(new.policy, states), mask)
        return new, memory, {"policy_loss": value, "kl": kl}

    def select(self, agent: Agent) -> Any:
        """Return a tree of booleans: only the policy's parameters change."""
        return policy_only(agent)


def reinforce(settings: MethodSettings) -> AbstractAlgorithm:
    """REINFORCE with the settings of a row."""
    return Reinforce(settings.learning_rate, settings.discount)


# ---------------------------------------------------------------------------------------------------------------------
# Two methods
# ---------------------------------------------------------------------------------------------------------------------

tracker = Method("tracker", tracking, "policy_alone", "an α-β tracker; TRPO")
reinforced = Method("reinforced", tracking, reinforce, "an α-β tracker; REINFORCE", {"learning_rate": 1e-2})


def main(iterations: int = 60, out: str | None = None) -> None:
    """Train the first method on position-only cart-pole.

    Args:
        iterations: Number of training iterations.
        out: Run directory. Default: a new directory under runs/.
    """
    run = rpsp.train("InvertedPendulum-v5", "own_method:tracker", iterations=iterations, out=out)
    learned: Any = rpsp.load(run.directory).agent.filter
    gains = np.asarray(learned.gains)
    print(
        f"final return {run.results['final_return']:.0f}; gains learned from the data: α {gains[0]:.2f}, β {gains[1]:.2f}"
    )


if __name__ == "__main__":
    tyro.cli(main)
