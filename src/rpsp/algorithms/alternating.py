"""Algorithms in sequence on one batch. The paper's alternating optimisation is TRPO, then VRPG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from rpsp.algorithms.base import AbstractAlgorithm, Diagnostics, Memory
from rpsp.algorithms.policies import Agent
from rpsp.data import trees
from rpsp.data.batches import Batch
from rpsp.data.scaling import Scaling


class InSequence(AbstractAlgorithm):
    """Several algorithms, one after the other on the same batch.

    The paper's alternating optimisation is `InSequence(Trpo(moves=policy_only), Vrpg(moves=filter_only))`. The memory is
    the tuple of their memories. Diagnostics get a prefix: `kl` of TRPO becomes `trpo/kl`. Algorithms of the same name are
    numbered by their position, as in `trpo1/kl`.
    """

    algorithms: tuple[AbstractAlgorithm, ...]

    def __init__(self, *algorithms: AbstractAlgorithm):
        self.algorithms = algorithms

    @property
    def off_policy(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether any of them is."""
        return any(algorithm.off_policy for algorithm in self.algorithms)

    @property
    def squashed(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether any of them needs a `SquashedPolicy`."""
        return any(algorithm.squashed for algorithm in self.algorithms)

    @property
    def gains_from_gpu(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether any of them does."""
        return any(algorithm.gains_from_gpu for algorithm in self.algorithms)

    @property
    def scales_inputs(self) -> bool:
        """Whether any of them does."""
        return any(algorithm.scales_inputs for algorithm in self.algorithms)

    @property
    def names(self) -> list[str]:
        """The prefix of each algorithm's diagnostics."""
        names = [algorithm.name for algorithm in self.algorithms]
        return [name if names.count(name) == 1 else f"{name}{i}" for i, name in enumerate(names, 1)]

    @property
    def name(self) -> str:
        """The names, joined by +."""
        return "+".join(self.names)

    @property
    def parts(self) -> tuple[AbstractAlgorithm, ...]:
        """The parts of each."""
        return tuple(part for algorithm in self.algorithms for part in algorithm.parts)

    def with_settings(self, values: Mapping[str, Any]) -> InSequence:
        """Return the sequence with other settings. A setting that several algorithms have is changed in all of them."""
        return InSequence(*(algorithm.with_settings(values) for algorithm in self.algorithms))

    def select(self, agent: Agent) -> Any:
        """Return a tree of booleans: the parameters that any of them may change."""
        marks = [algorithm.select(agent) for algorithm in self.algorithms]
        return jax.tree.map(lambda *each: any(each), *marks)

    def init(self, agent: Agent, *, key: PRNGKeyArray) -> tuple[Memory, ...]:
        """Return the memory of each."""
        keys = jax.random.split(key, len(self.algorithms))
        return tuple(algorithm.init(agent, key=own) for algorithm, own in zip(self.algorithms, keys, strict=True))

    def step(
        self, agent: Agent, memory: tuple[Memory, ...], batch: Batch, *, key: PRNGKeyArray
    ) -> tuple[Agent, tuple[Memory, ...], Diagnostics]:
        """Apply each step to the agent that the previous one returned."""
        memories: list[Memory] = []
        diagnostics: Diagnostics = {}
        keys = jax.random.split(key, len(self.algorithms))
        for name, algorithm, own, own_key in zip(self.names, self.algorithms, memory, keys, strict=True):
            agent, own, found = algorithm.step(agent, own, batch, key=own_key)
            memories.append(own)
            diagnostics |= {f"{name}/{key}": value for key, value in found.items()}
            if algorithm.moves_filter(agent):
                batch = forgetting_states(batch)
        return agent, tuple(memories), diagnostics

    def on_exploration(self, agent: Agent, memory: tuple[Memory, ...], batch: Batch) -> tuple[Memory, ...]:
        """Call the hook of each."""
        return self._each("on_exploration", agent, memory, batch)

    def on_refit(self, agent: Agent, memory: tuple[Memory, ...]) -> tuple[Memory, ...]:
        """Call the hook of each."""
        return self._each("on_refit", agent, memory)

    def on_new_units(self, agent: Agent, memory: tuple[Memory, ...], scaling: Scaling) -> tuple[Memory, ...]:
        """Call the hook of each."""
        return self._each("on_new_units", agent, memory, scaling)

    def _each(self, hook: str, agent: Agent, memory: tuple[Memory, ...], *more: Any) -> tuple[Memory, ...]:
        """Call a hook of each algorithm with its own memory."""
        pairs = zip(self.algorithms, memory, strict=True)
        return tuple(getattr(algorithm, hook)(agent, own, *more) for algorithm, own in pairs)


def forgetting_states(batch: Batch) -> Batch:
    """Return the batch without its recorded states, which are outdated once the filter has changed."""
    return trees.replace(lambda b: b.states, batch, None)
