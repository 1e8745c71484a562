"""What an update rule is, and which parameters it may move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array

from rpsp.filters import trainable
from rpsp.policies import Agent
from rpsp.trajectories import Batch

Memory = Any
"""What a rule remembers from one step to the next: a tree of arrays."""
Select = Callable[[Agent], Any]
"""Agent → a tree of booleans, True at the parameters that a rule may move."""


class UpdateRule(NamedTuple):
    """A pair of pure functions: `state = init(agent)`, then `agent, state, diagnostics = step(agent, state, batch)`."""

    init: Callable[[Agent], Memory]
    step: Callable[[Agent, Memory, Batch], tuple[Agent, Memory, dict[str, Array]]]


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
