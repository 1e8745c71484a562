"""Learning while episodes are in progress: the steps of a rollout go to the algorithm a few at a time. Not in the paper.

A rollout is cut into lots of `AbstractAlgorithm.interval` steps, over all rows of an agent, at least one in every row. After
a lot, the agent that acts next is the one learned from all lots before it, and `AbstractAlgorithm.learn` is given the lot
itself. So the agent that acts is one lot behind. On an accelerator the next lot is therefore acted on the CPU while the
gradients of this one are computed; the results do not depend on it.

Lots have one shape and the last one is padded, so that one program is compiled. A lot depends on the rows of one agent
only. So each of several agents in one rollout gets the lots that it gets alone; once its episodes are over, its lots are
empty.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray

from rpsp.algorithms.base import AbstractAlgorithm
from rpsp.algorithms.policies import Agent
from rpsp.data.arrays import Numbers
from rpsp.data.batches import Batch
from rpsp.training.acting import View, lockstep
from rpsp.training.frames import Frame
from rpsp.training.stepping import Ends


class Interleaved:
    """An agent, or several, that learns during a rollout.

    Args:
        algorithm: its algorithm; those of several agents are stacked along a first axis.
        agent: the agent, stacked likewise.
        memory: the memory of its algorithm, stacked likewise.
        key: the random key of the rollout, or one per agent. Each lot has a key of its own.
        rows: number of rows of one agent.
        agents: number of agents.
    """

    def __init__(
        self,
        algorithm: AbstractAlgorithm,
        agent: Agent,
        memory: Any,
        key: PRNGKeyArray | Key[Array, " agent"],
        *,
        rows: int,
        agents: int = 1,
    ):
        self.agent, self.memory = agent, memory
        self._algorithm, self._key, self._agents = algorithm, key, agents
        self._length = max(1, algorithm.interval // rows)
        self._frames: list[dict[str, np.ndarray]] = []
        self._lots = 0
        self._acting = lockstep(agent, False, agents)

    def act(
        self, q: Numbers, executed: Numbers, seen: Numbers, starts: Numbers, noise: Numbers
    ) -> tuple[np.ndarray, np.ndarray]:
        """Filter and act in all rows, as `acting.lockstep` does, with the agent of the moment."""
        return self._acting(q, executed, seen, starts, noise)

    def watch(self, view: View, frame: Frame, ends: Ends) -> None:
        """Add a lockstep to the lot, and learn from the lot if it is full. The last step of a failed episode is left out."""
        over = ends.terminated | ends.truncated
        self._frames.append(
            {
                "starts": view.starts,
                "previous_observations": frame.seen,
                "previous_actions": np.where(view.starts[:, None], 0, view.executed),
                "drawn_actions": frame.drawn,
                "actions": frame.executed,
                "observations": frame.observations,
                "rewards": frame.rewards,
                "ends": over,
                "truncated": over & ~ends.terminated,
                "mask": view.running & ~ends.failed,
                "states": frame.states,
            }
        )
        if len(self._frames) == self._length:
            self.flush()

    def flush(self) -> None:
        """Learn from the lot, full or not, unless it is empty."""
        if not self._frames:
            return
        lot = Batch(**{name: self._rows([frame[name] for frame in self._frames]) for name in self._frames[0]})
        if self._agents > 1:
            lot = jax.tree.map(lambda x: x.reshape(self._agents, -1, *x.shape[1:]), lot)
        self._frames, self._lots = [], self._lots + 1
        if self._lots > 1:  # before the next gradients are started: afterwards this would wait for them
            self._acting = lockstep(self.agent, False, self._agents)
        fold = jax.random.fold_in
        key = fold(self._key, self._lots) if self._agents == 1 else jax.vmap(fold, (0, None))(self._key, self._lots)
        learn = _one_learns if self._agents == 1 else _all_learn
        changed, kept = learn(self._algorithm, self.agent, self.memory, lot, key)
        self.agent, self.memory = _with_kept(changed, kept, (self.agent, self.memory))

    def _rows(self, steps: list[np.ndarray]) -> np.ndarray:
        """Return [row, time, …] of one value of each lockstep, padded."""
        found = np.stack(steps, axis=1)
        if (missing := self._length - len(steps)) > 0:
            # Repeated, because zeros are no state of some filters; outside of the mask they are not used.
            last = found[:, -1:] if found.dtype != np.bool_ else np.zeros_like(found[:, -1:])
            found = np.concatenate([found, np.repeat(last, missing, axis=1)], axis=1)
        return found.astype(np.float32) if found.dtype == np.float64 else found


@eqx.filter_jit
def _one_learns(
    algorithm: AbstractAlgorithm, agent: Agent, memory: Any, lot: Batch, key: PRNGKeyArray
) -> tuple[Any, tuple[int | None, ...]]:
    """Let one agent learn from a lot. Returns the new (agent, memory) as `_without_kept` does."""
    return _without_kept(algorithm.learn(agent, memory, lot, key=key), (agent, memory))


@eqx.filter_jit
def _all_learn(
    algorithms: AbstractAlgorithm, agents: Agent, memories: Any, lots: Batch, keys: Key[Array, " agent"]
) -> tuple[Any, tuple[int | None, ...]]:
    """Let several agents learn from their lots. Returns the new (agents, memories) as `_without_kept` does."""

    def learn(algorithm: AbstractAlgorithm, agent: Agent, memory: Any, lot: Batch, key: PRNGKeyArray) -> Any:
        return algorithm.learn(agent, memory, lot, key=key)

    return _without_kept(eqx.filter_vmap(learn)(algorithms, agents, memories, lots, keys), (agents, memories))


def _without_kept(new: Any, old: Any) -> tuple[Any, tuple[int | None, ...]]:
    """Return a tree without the arrays that it has from another tree, and their places there.

    A compiled function copies what it returns, also what it was given. A replay buffer has a hundred megabytes.
    """
    places = {id(leaf): place for place, leaf in enumerate(jax.tree.leaves(old)) if eqx.is_array(leaf)}
    leaves, structure = jax.tree.flatten(new)
    kept = tuple(places.get(id(leaf)) for leaf in leaves)
    return jax.tree.unflatten(structure, [x if k is None else False for x, k in zip(leaves, kept, strict=True)]), kept


def _with_kept(new: Any, kept: tuple[int | None, ...], old: Any) -> Any:
    """Put the arrays back that `_without_kept` left out."""
    given = jax.tree.leaves(old)
    leaves, structure = jax.tree.flatten(new)
    return jax.tree.unflatten(structure, [x if k is None else given[k] for x, k in zip(leaves, kept, strict=True)])
