"""Small agents, training states and run directories made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rpsp.algorithms.alternating import InSequence
from rpsp.algorithms.base import AbstractAlgorithm, filter_only
from rpsp.algorithms.policies import Agent, GaussianPolicy
from rpsp.algorithms.ppo import Ppo
from rpsp.algorithms.trpo import Trpo
from rpsp.algorithms.vrpg import Vrpg
from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.data.scaling import Scaling
from rpsp.experiments.run_directory import RunDirectory
from rpsp.filters.memory import observation_window
from rpsp.training.loop import Training

SCALING = Scaling(np.array([0.1, -0.2]), np.array([1.0, 3.0]))


class Remembering(AbstractAlgorithm):
    """Changes nothing; its memory has a typed key."""

    def init(self, agent: Agent, *, key: Any) -> Any:
        return jax.random.key(3), jnp.zeros(2)

    def step(self, agent: Agent, memory: Any, batch: Batch, *, key: Any) -> Any:
        return agent, memory, {}


ALGORITHMS = {
    "trpo": Trpo(),
    "vrpg": Vrpg(),
    "ppo": Ppo(hidden=(3,)),
    "alternating": InSequence(Trpo(), Vrpg(moves=filter_only)),
    "typed key": Remembering(),
}


def agent_of(number: int, policy: Any = GaussianPolicy) -> Agent:
    filter = observation_window(2, 2, 1)
    return Agent(filter, policy(filter.size, 1, hidden=(3,), key=jax.random.key(number)))


def training_of(number: int, algorithm: AbstractAlgorithm = ALGORITHMS["trpo"], **others: Any) -> Training:
    """A run after so many iterations, every number of whose memory is another."""
    rng = np.random.default_rng(number)
    agent = agent_of(number)

    def other(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(number)
        return jnp.asarray(rng.integers(0, 100, leaf.shape), leaf.dtype) + jnp.asarray(0.5).astype(leaf.dtype)

    episodes = [Episode(rng.normal(size=(5, 2)), rng.normal(size=(4, 1)), rng.normal(size=4)) for _ in range(3)]
    fields = {
        "iteration": number,
        "samples": 100 * number,
        "rows": 4,
        "agent": agent,
        "memory": jax.tree.map(other, algorithm.init(agent, key=jax.random.key(0))),
        "scaling": SCALING,
        "recent": (pack(episodes), pack(episodes[:1])),
        "sound": jax.tree.map(lambda leaf: leaf + 1 if eqx.is_inexact_array(leaf) else leaf, agent),
        "astray": 3,
        "halvings": 1,
    }
    return Training(**(fields | others))


def run_of(path: Path, returns: list[float]) -> RunDirectory:
    """A run with these returns: checkpoint n acted iteration n."""
    run = RunDirectory(path)
    for n, mean_return in enumerate([None, *returns]):
        run.append({"exploration_samples": 3} if mean_return is None else record(n - 1, mean_return))
        run.save(training_of(n))
    return run


def record(n: int, mean_return: float) -> dict[str, float]:
    return {"iteration": n, "mean_return": mean_return}


def plain(tree: Any) -> list[Any]:
    """Every leaf of a tree, keys as their data."""
    leaves = jax.tree.leaves(tree)
    is_key = [isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
    return [jax.random.key_data(x) if key else x for x, key in zip(leaves, is_key, strict=True)]


def assert_same(one: Training, other: Training) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(plain(one), plain(other), strict=True):
        assert type(a) is type(b)
        assert np.asarray(a).dtype == np.asarray(b).dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
