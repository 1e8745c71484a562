"""The protocol of an algorithm: what it does to an agent, and which parameters it may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from rpsp.algorithms.policies import Agent
from rpsp.data.batches import Batch
from rpsp.data.scaling import Scaling
from rpsp.filters.base import trainable

Memory = Any
"""What a rule remembers from one step to the next: a tree of arrays."""
Select = Callable[[Agent], Any]
"""Agent → a tree of booleans, True at the parameters that a rule may move."""
Vector = Float[Array, " theta"]
"""The parameters that a rule moves, end to end."""


class UpdateRule(NamedTuple):
    """A pair of pure functions: `state = init(agent)`, then `agent, state, diagnostics = step(agent, state, batch)`.

    A step that is not done says so by a diagnostic `skipped` of 1, and if that is because its numbers were not finite, by
    `unsound` as well.
    """

    init: Callable[[Agent], Memory]
    step: Callable[[Agent, Memory, Batch], tuple[Agent, Memory, dict[str, Array]]]
    name: str = "update"
    """What its diagnostics are filed under where several rules work in sequence."""
    select: Select = lambda agent: trainable(agent)
    """Which parameters it may move."""
    refitted: Callable[[Agent, Memory], Memory] | None = None
    """What becomes of its memory when the filter was refitted and coordinates mean what they meant; None: it stays."""
    explored: Callable[[Agent, Memory, Batch], Memory] | None = None
    """What it keeps of the exploration, before the first step; None: nothing."""
    in_units: Callable[[Agent, Memory, Scaling], Memory] | None = None
    """(agent before the change, memory, new scaling of its input) → memory: critics and optimiser moments are rescaled.
    None: nothing in the memory depends on the scaling."""
    squashed: bool = False
    """Whether its policy is a `SquashedPolicy` where actions are numbers."""

    def moves_filter(self, agent: Agent) -> bool:
        """Whether states change with its steps."""
        return _moves_filter(self.select, agent)


def _moves_filter(select: Select, agent: Agent) -> bool:
    return any(jax.tree.leaves(select(agent).filter))


def run_key(seed: int, weights: Array) -> PRNGKeyArray:
    """A key of this run alone: a rule knows nothing of the run's seed, but the policy's first weights tell runs apart."""
    return jax.random.fold_in(jax.random.key(seed), jax.lax.bitcast_convert_type(jnp.sum(weights), jnp.uint32))


def everything(agent: Agent) -> Any:
    """All parameters, of the filter and of the policy; never a field declared `constant`."""
    return trainable(agent)


def policy_only(agent: Agent) -> Any:
    """θ_re: the reactive policy's parameters."""
    return eqx.tree_at(lambda marks: marks.filter, trainable(agent), replace_fn=_nothing)


def filter_only(agent: Agent) -> Any:
    """θ_PSR: the filter's parameters."""
    return eqx.tree_at(lambda marks: marks.policy, trainable(agent), replace_fn=_nothing)


def _nothing(marks: Any) -> Any:
    return jax.tree.map(lambda _: False, marks)
