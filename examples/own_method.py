"""Your own method: a filter with its belief, and an algorithm, in one file, usable from every command.

The filter is an α-β tracker: it estimates the observation and its rate of change, and corrects both by a fraction of
the prediction error. Its two gains are trained to minimise the prediction error. The algorithm is REINFORCE.

    cd examples
    rpsp train InvertedPendulum-v5 --method own_method:tracker --iterations 60 --out runs/tracker
    rpsp eval runs/tracker --plugin own_method                # name the module again, so that it is imported
    rpsp train InvertedPendulum-v5 --method own_method:reinforced --iterations 60 --learning-rate 0.003
    rpsp fit InvertedPendulum-v5 --kind own_method:Tracking --epochs 10
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jaxtyping import Array, Float, PRNGKeyArray

import rpsp
from rpsp.algorithms import objectives

# ---------------------------------------------------------------------------------------------------------------------
# A filter: init, update, predict
# ---------------------------------------------------------------------------------------------------------------------


class Tracker(rpsp.AbstractFilter):
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


# ---------------------------------------------------------------------------------------------------------------------
# Its belief: settings, fit
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tracking(rpsp.Belief):
    """Fits a tracker: gains of 1, then backpropagation of the prediction error through time."""

    epochs: int = 20
    """Number of epochs of training to predict."""

    def fit(self, batch: rpsp.Batch, held_out: rpsp.Batch, *, key: PRNGKeyArray) -> Tracker:
        """Return the tracker with the smallest error on held-out episodes."""
        first = Tracker(jnp.ones(2), jnp.zeros((batch.actions.shape[-1], batch.observations.shape[-1])))
        return rpsp.refined(first, batch, held_out, self.epochs, key=key)


# ---------------------------------------------------------------------------------------------------------------------
# An algorithm: init, step
# ---------------------------------------------------------------------------------------------------------------------


class Reinforce(rpsp.AbstractAlgorithm):
    """One Adam step on ℓ₁ = −Σ log π(a_t | q_t) (R_t − b_t). The filter does not change."""

    learning_rate: float = 1e-2
    """Step size of Adam."""
    discount: float = 0.99
    """γ."""

    def init(self, agent: rpsp.Agent, *, key: PRNGKeyArray) -> Any:
        """Return Adam's initial state."""
        return optax.adam(self.learning_rate).init(eqx.filter(agent, self.select(agent)))

    @eqx.filter_jit
    def step(
        self, agent: rpsp.Agent, memory: Any, batch: rpsp.Batch, *, key: PRNGKeyArray
    ) -> tuple[rpsp.Agent, Any, dict[str, Array]]:
        """Return the new agent, Adam's new state, and numbers for the log."""
        states, mask = rpsp.unroll(agent.filter, batch), jnp.asarray(batch.mask)
        returns = objectives.rewards_to_go(batch, self.discount)
        baseline = objectives.linear_baseline(objectives.fit_baseline(states, returns, mask), states)
        A = objectives.advantages(returns, baseline, mask)
        moving, fixed = eqx.partition(agent, self.select(agent))

        def loss(moving: rpsp.Agent) -> Array:
            policy = eqx.combine(moving, fixed).policy
            return objectives.policy_loss(objectives.distributions(policy, states), batch, A)

        value, gradient = eqx.filter_value_and_grad(loss)(moving)
        updates, memory = optax.adam(self.learning_rate).update(gradient, memory)
        new = eqx.combine(eqx.apply_updates(moving, updates), fixed)
        before, after = (objectives.distributions(each.policy, states) for each in (agent, new))
        return new, memory, {"policy_loss": value, "kl": objectives.mean_kl(before, after, mask)}

    def select(self, agent: rpsp.Agent) -> Any:
        """Return a tree of booleans: only the policy's parameters change."""
        return rpsp.policy_only(agent)


# ---------------------------------------------------------------------------------------------------------------------
# Two methods
# ---------------------------------------------------------------------------------------------------------------------

tracker = rpsp.Method("tracker", Tracking(), rpsp.Trpo(), "an α-β tracker; TRPO")
reinforced = rpsp.Method("reinforced", Tracking(), Reinforce(), "an α-β tracker; REINFORCE")


def main(iterations: int = 60, out: str | None = None) -> None:
    """Train the first method on position-only cart-pole.

    Args:
        iterations: Number of training iterations.
        out: Run directory. Default: a new directory under runs/.
    """
    run = rpsp.train("InvertedPendulum-v5", "own_method:tracker", iterations=iterations, out=out)
    learned: Any = run.agent.agent.filter
    gains = np.asarray(learned.gains)
    print(
        f"final return {run.results['final_return']:.0f}; gains learned from the data: α {gains[0]:.2f}, β {gains[1]:.2f}"
    )


if __name__ == "__main__":
    tyro.cli(main)
