"""Algorithms in sequence on one batch; the paper's alternating optimisation is TRPO, then VRPG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from rpsp.algorithms.base import Memory, Select, UpdateRule, _moves_filter
from rpsp.algorithms.policies import Agent
from rpsp.data.batches import Batch
from rpsp.data.scaling import Scaling


def in_sequence(*rules: UpdateRule) -> UpdateRule:
    """One rule after the other on the same batch; the diagnostics of `trpo` become `trpo/kl` and so on.

    The paper's alternating optimisation is `in_sequence(trpo(select=policy_only), vrpg(select=filter_only))`.
    """
    names = [rule.name for rule in rules]
    # Two rules of one name are told apart by their place.
    names = [name if names.count(name) == 1 else f"{name}{i}" for i, name in enumerate(names, 1)]

    def init(agent: Agent) -> tuple[Memory, ...]:
        return tuple(rule.init(agent) for rule in rules)

    def select(agent: Agent) -> Any:
        marks = [rule.select(agent) for rule in rules]
        return jax.tree.map(lambda *each: any(each), *marks)

    def refitted(agent: Agent, state: tuple[Memory, ...]) -> tuple[Memory, ...]:
        pairs = zip(rules, state, strict=True)
        return tuple(memory if rule.refitted is None else rule.refitted(agent, memory) for rule, memory in pairs)

    def explored(agent: Agent, state: tuple[Memory, ...], batch: Batch) -> tuple[Memory, ...]:
        pairs = zip(rules, state, strict=True)
        return tuple(memory if rule.explored is None else rule.explored(agent, memory, batch) for rule, memory in pairs)

    def in_units(agent: Agent, state: tuple[Memory, ...], units: Scaling) -> tuple[Memory, ...]:
        pairs = zip(rules, state, strict=True)
        return tuple(memory if rule.in_units is None else rule.in_units(agent, memory, units) for rule, memory in pairs)

    step = _InSequence(tuple(rule.step for rule in rules), tuple(names), tuple(rule.select for rule in rules))
    return UpdateRule(
        init,
        step,
        "+".join(names),
        select,
        refitted if any(rule.refitted for rule in rules) else None,
        explored if any(rule.explored for rule in rules) else None,
        in_units if any(rule.in_units for rule in rules) else None,
        squashed=any(rule.squashed for rule in rules),
    )


class _InSequence(eqx.Module):
    """The steps of several rules, one after the other."""

    steps: tuple[Callable[..., Any], ...]
    names: tuple[str, ...]
    selects: tuple[Select, ...]

    def __call__(self, agent: Agent, state: tuple[Memory, ...], batch: Batch) -> tuple[Agent, tuple, dict[str, Array]]:
        states, diagnostics = [], {}
        for name, step, select, memory in zip(self.names, self.steps, self.selects, state, strict=True):
            agent, memory, found = step(agent, memory, batch)
            states.append(memory)
            diagnostics |= {f"{name}/{key}": value for key, value in found.items()}
            if _moves_filter(select, agent):
                batch = forgetting_states(batch)
        return agent, tuple(states), diagnostics


def forgetting_states(batch: Batch) -> Batch:
    """The batch without the states acted on: they are no longer those of the filter."""
    return eqx.tree_at(lambda b: b.states, batch, None, is_leaf=lambda x: x is None)
