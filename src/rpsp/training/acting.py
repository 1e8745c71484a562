"""One compiled step of filter and policy for all rows of a vector environment, and the random numbers it uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from rpsp.algorithms.policies import Agent
from rpsp.data.arrays import Numbers
from rpsp.data.scaling import OneHot, Scaling
from rpsp.filters.base import AbstractFilter, step
from rpsp.training.actions import ActionRange, ActionSymbols
from rpsp.training.pink_noise import noise_of

BLOCK = 256  # steps of an episode whose noise is drawn at a time


def _encoder(scalings: Sequence[Scaling | OneHot], rows: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the scaling of the observations of several agents that have `rows` rows each."""
    each = [scaling for scaling in scalings if isinstance(scaling, Scaling)]
    if len(each) < len(scalings):  # symbols are the same to all
        return scalings[0].encode
    mean, scale = (np.repeat([getattr(scaling, name) for scaling in each], rows, axis=0) for name in ("mean", "scale"))
    return lambda readings: (readings - mean) / scale


Lockstep = Callable[[Numbers, Numbers, Numbers, Numbers, Numbers], tuple[np.ndarray, np.ndarray]]
"""Of all rows: states, what was executed and is seen, who starts, and the noise, to states and the actions drawn."""


def lockstep(agent: Agent, deterministic: bool, agents: int = 1) -> Lockstep:
    """Return the compiled step of filter and policy of an agent, or of several agents.

    The agent is flattened once, because flattening it at every step costs as much as the step.

    Args:
        agent: the agent; several agents are stacked along a first axis.
        deterministic: whether to take the most probable action instead of sampling.
        agents: number of agents. Each gets the same number of rows.
    """
    leaves, structure = jax.tree.flatten(agent)
    is_array = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
    # On the CPU, wherever the agent was trained: a thousand tiny calls would each wait for a GPU.
    cpu = jax.devices("cpu")[0]
    arrays = jax.device_put([leaf for leaf, array in zip(leaves, is_array, strict=True) if array], cpu)
    others = tuple(None if array else leaf for leaf, array in zip(leaves, is_array, strict=True))
    return partial(_compile_lockstep(structure, others, deterministic, agents), arrays)


@lru_cache(maxsize=32)
def _compile_lockstep(
    structure: Any, others: tuple, deterministic: bool, agents: int
) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Compile q_t = f(q_{t-1}, a_{t-1}, o_{t-1}) and a_t ~ π(· | q_t) for all rows; parameters are arguments."""

    def all_rows(arrays, given):
        remaining = iter(arrays)
        leaves = [next(remaining) if other is None else other for other in others]
        agent: Agent = jax.tree.unflatten(structure, leaves)

        def row(given):
            q, start, rest = jnp.split(given, (agent.filter.size, agent.filter.size + 1))
            actions = jax.eval_shape(lambda q: agent.policy(q).mode(), q).shape[0]
            executed, noise, seen = jnp.split(rest, (actions, 2 * actions))
            q = step(agent.filter, q, executed, seen, start[0] == 1)
            dist = agent.policy(q)
            return jnp.concatenate([q, dist.mode() if deterministic else dist.sample(noise)])

        return jax.vmap(row)(given)

    @jax.jit
    def compiled(arrays, given):
        if agents == 1:
            return all_rows(arrays, given)
        found = jax.vmap(all_rows)(arrays, given.reshape(agents, -1, given.shape[1]))
        return found.reshape(len(given), -1)

    def lockstep(arrays, q, executed, seen, starts, noise):
        # One array in and one out: JAX takes longer over each than numpy takes to join them all.
        given = np.concatenate((q, starts[:, None], executed, noise, seen), axis=1, dtype=np.float32)
        found = np.asarray(compiled(arrays, given))
        return found[:, : q.shape[1]], found[:, q.shape[1] :]

    return lockstep


Tracking = Callable[[Numbers, Numbers, Numbers, Numbers], np.ndarray]
"""Of all rows: states, what was executed and is seen, and who starts, to the states after it."""


def tracking(filter: AbstractFilter) -> Tracking:
    """Return the compiled step of a filter alone, for all rows of a vector environment.

    Args:
        filter: the filter.
    """
    leaves, structure = jax.tree.flatten(filter)
    is_array = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
    cpu = jax.devices("cpu")[0]  # as in `lockstep`
    arrays = jax.device_put([leaf for leaf, array in zip(leaves, is_array, strict=True) if array], cpu)
    others = tuple(None if array else leaf for leaf, array in zip(leaves, is_array, strict=True))
    return partial(_compile_tracking(structure, others), arrays)


@lru_cache(maxsize=32)
def _compile_tracking(structure: Any, others: tuple) -> Callable[..., np.ndarray]:
    """Compile q_t = f(q_{t-1}, a_{t-1}, o_{t-1}) for all rows; parameters are arguments."""

    @jax.jit
    def compiled(arrays, q, executed, seen, starts):
        remaining = iter(arrays)
        leaves = [next(remaining) if other is None else other for other in others]
        filter: AbstractFilter = jax.tree.unflatten(structure, leaves)
        return jax.vmap(partial(step, filter))(q, executed, seen, starts)

    return lambda *given: np.asarray(compiled(*given))


class _Noise:
    """The random numbers of every row's actions: one stream per episode, from which a block of steps is drawn at a time.

    They are drawn outside the compiled step. Deriving a key for every step in there took longer than the step itself.

    Args:
        units: the action space.
        num_envs: number of rows.
        stream: returns the root of an episode's random numbers by its row and number.
        pink: returns the fraction of pink noise in an episode, likewise. Default: 0.
    """

    def __init__(
        self,
        units: ActionRange | ActionSymbols,
        num_envs: int,
        stream: Callable[[int, int], np.random.SeedSequence],
        pink: Callable[[int, int], float] = lambda row, number: 0.0,
    ):
        self._units, self._stream, self._pink = units, stream, pink
        self._generators: list[Any] = [None] * num_envs
        self._block = np.zeros((BLOCK, num_envs, units.size), np.float32)
        self._due: list[set[int]] = [set() for _ in range(BLOCK)]
        """The rows whose blocks begin at this lockstep, counted modulo their length."""
        self._phase = [0] * num_envs
        """Where a row is among them."""

    def at(self, view: View) -> Float[np.ndarray, "row act"]:
        """Return the noise of this lockstep. In rows without an episode it is left over from earlier ones."""
        now = view.now % BLOCK
        for row in view.begin:
            number = int(view.episodes[row])
            rng = np.random.default_rng(self._stream(row, number))
            self._generators[row] = noise_of(self._units, self._pink(row, number), rng)
            self._due[self._phase[row]].discard(row)
            self._due[now].add(row)
            self._phase[row] = now
        for row in self._due[now]:
            if view.running[row]:
                drawn = self._generators[row](BLOCK)
                self._block[now:, row], self._block[:now, row] = drawn[: BLOCK - now], drawn[BLOCK - now :]
        return self._block[now].copy()


class View(NamedTuple):
    """What is known before a lockstep. Entries of rows without an episode have no meaning."""

    now: int
    """The locksteps before it."""
    begin: Sequence[int]
    """The rows that start an episode now."""
    running: Bool[np.ndarray, " row"]
    starts: Bool[np.ndarray, " row"]
    seen: Float[np.ndarray, "row obs"]
    executed: Float[np.ndarray, "row act"]
    episodes: Int[np.ndarray, " row"]
    """The number of the episode that a row is in."""


def _seed_sequence(seed: int, *where: int) -> np.random.SeedSequence:
    """Return the root of all random numbers at this place in a run."""
    return np.random.SeedSequence(seed, spawn_key=where)
