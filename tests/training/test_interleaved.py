"""Learning while episodes are in progress: what the lots hold, which agent acts, and that nothing large is copied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_training import SETTINGS, drifting, numbers, window

from rpsp.algorithms.base import AbstractAlgorithm, policy_only
from rpsp.algorithms.policies import Agent
from rpsp.algorithms.sac import Sac
from rpsp.data.batches import Batch
from rpsp.training.interleaved import Interleaved
from rpsp.training.loop import begin, train
from rpsp.training.rollouts import collect
from rpsp.training.state import STEP_STREAM, Recipe, Training, key_for

IDLE = Sac(minibatch=1000, capacity=1000, hidden=(8,), learn_every=7)
"""It stores, and never has the minibatch that it needs to learn."""


def rollout(algorithm: AbstractAlgorithm, rows: int, training: Training) -> tuple[Interleaved, Any]:
    key = key_for(SETTINGS.seed, STEP_STREAM, 0)
    learner = Interleaved(algorithm, training.agent, training.memory, key, rows=rows)
    collected = collect(
        training.agent, drifting(rows), scaling=training.scaling, samples=60, seed=0, iteration=0, keep_states=True,
        learner=learner,
    )  # fmt: skip
    return learner, collected


@pytest.fixture(scope="module")
def begun() -> Training:
    return begin(Recipe(window, IDLE), drifting(), SETTINGS)[0]


@pytest.mark.parametrize("rows", [1, 3])
def test_the_lots_are_the_steps_of_the_episodes(begun: Training, rows: int) -> None:
    learner, collected = rollout(IDLE, rows, begun)
    fresh = learner.memory.fresh
    count = int(fresh.steps)
    assert count == collected.samples and count % IDLE.learn_every, "the last lot is padded"
    found = {name: np.asarray(getattr(fresh.stored, name))[:count] for name in ("q", "reward", "start", "executed")}
    states = np.concatenate(collected.states)
    order = [np.lexsort(x.T) for x in (found["q"], states)] if rows > 1 else [np.arange(count)] * 2
    np.testing.assert_array_equal(found["q"][order[0]], states[order[1]])
    rewards = np.concatenate([episode.rewards for episode in collected.episodes])
    np.testing.assert_array_equal(found["reward"][order[0]], rewards[order[1]].astype(np.float32))
    before = np.concatenate([np.vstack([np.zeros((1, 1)), e.actions[:-1]]) for e in collected.episodes])
    np.testing.assert_array_equal(found["executed"][order[0]], before[order[1]].astype(np.float32))
    starts = np.concatenate([np.arange(len(e)) == 0 for e in collected.episodes])
    np.testing.assert_array_equal(found["start"][order[0]], starts[order[1]])
    terminated = np.concatenate([(np.arange(len(e)) == len(e) - 1) & e.terminated for e in collected.episodes])
    np.testing.assert_array_equal(np.asarray(fresh.stored.terminated)[:count][order[0]], terminated[order[1]])


def test_what_learning_keeps_is_not_copied(begun: Training) -> None:
    learner, _ = rollout(IDLE, 3, begun)
    assert learner.memory.stored.q is begun.memory.stored.q
    assert learner.memory.fresh.stored.q is not begun.memory.fresh.stored.q


class Stepping(AbstractAlgorithm):
    """Adds one to the policy's `log_std`, from −9 on, with every lot."""

    @property
    def interval(self) -> int:
        return 3

    def init(self, agent: Agent, *, key: Any) -> Any:
        return jnp.zeros(())

    def learn(self, agent: Agent, memory: Any, lot: Batch, *, key: Any) -> Any:
        return eqx.tree_at(lambda a: a.policy.log_std, agent, agent.policy.log_std + 1), memory + 1

    def step(self, agent: Agent, memory: Any, batch: Batch, *, key: Any) -> Any:
        return agent, memory, {"lots": memory}

    def select(self, agent: Agent) -> Any:
        return policy_only(agent)


def test_the_agent_that_acts_is_one_lot_behind(begun: Training) -> None:
    """What is drawn in lot n is what the agent after lot n − 2 draws of the same noise."""
    start = begin(Recipe(window, Stepping()), drifting(1), replace(SETTINGS, log_std=-9.0))[0]
    _, collected = rollout(Stepping(), 1, start)
    drawn = np.concatenate([episode.drawn_actions for episode in collected.episodes])[:, 0]
    fixed = collect(start.agent, drifting(1), scaling=start.scaling, samples=60, seed=0, iteration=0)
    first, second = drawn[:6], np.concatenate([e.drawn_actions for e in fixed.episodes])[:6, 0]
    np.testing.assert_array_equal(first, second)  # two lots: nothing learned has acted yet
    assert len(fixed.episodes[0]) >= 9, "the first episode has three lots"
    noise = fixed.episodes[0].drawn_actions[:9, 0]
    np.testing.assert_allclose(drawn[:9], np.exp(np.repeat([0, 0, 1], 3)) * noise, rtol=1e-4)


@pytest.mark.parametrize("running_scale", [False, True])
def test_a_run_that_learns_while_acting_resumes_bit_for_bit(running_scale: bool) -> None:
    recipe = Recipe(window, Sac(minibatch=16, capacity=100, hidden=(8,), learn_every=9, running_scale=running_scale))
    whole = list(train(recipe, drifting(), SETTINGS, 3))
    again = list(train(recipe, drifting(), SETTINGS, 3, whole[1][0]))
    for (training, record), (expected, recorded) in zip(again, whole[2:], strict=True):
        assert eqx.tree_equal(training, expected)
        assert {k: v for k, v in record.items() if "second" not in k} == {
            k: v for k, v in recorded.items() if "second" not in k
        }
    assert not np.array_equal(numbers(whole[0][0].agent), numbers(whole[1][0].agent))
    assert jax.tree.structure(whole[0][0].memory) == jax.tree.structure(whole[-1][0].memory)
    assert int(whole[-1][0].memory.fresh.steps) == 0
