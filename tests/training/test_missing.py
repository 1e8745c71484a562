"""Training while readings are missing: the same states in rollout and training, rivals with marks, and refits."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from small_training import LIMIT, Drift, numbers

from rpsp.algorithms.trpo import Trpo
from rpsp.data.batches import pack
from rpsp.data.episodes import Episode
from rpsp.envs.make import make
from rpsp.filters.base import Concatenated, compiled_unroll, one_step_error, prediction_loss
from rpsp.filters.belief import Belief
from rpsp.filters.gaps import GapFilter
from rpsp.filters.gaps_fit import has_gaps
from rpsp.filters.inference import Inference
from rpsp.filters.marked import MarkedFilter, with_marks
from rpsp.filters.memory import FiniteMemory, Recurrent
from rpsp.training.diagnostics import diagnose
from rpsp.training.loop import advance, begin
from rpsp.training.rollouts import collect
from rpsp.training.state import Recipe, Training, TrainingSettings

BELIEFS: dict[str, Belief] = {
    "inference": Inference(past=3, future=2, bumps=10, rounds=1, dimension=4),
    "window": FiniteMemory(window=2),
    "gru": Recurrent(units=4, epochs=0),
}
SETTINGS = TrainingSettings(samples=60, exploration_episodes=12, missing=True, hidden=(4,))


@cache
def envs() -> Any:
    return make(lambda: TimeLimit(Drift(), LIMIT), 3, dropout=0.2, outage="0.1:3", missing="nan")


@cache
def begun(name: str) -> Training:
    return begin(Recipe(BELIEFS[name], Trpo()), envs(), SETTINGS)[0]


@pytest.mark.parametrize("name", BELIEFS)
def test_rollout_and_training_compute_the_same_states(name: str) -> None:
    training = begun(name)
    assert isinstance(training.agent.filter, GapFilter if name == "inference" else MarkedFilter)
    assert training.agent.filter.accepts_gaps
    found = collect(training.agent, envs(), scaling=training.scaling, episodes=4, seed=1, iteration=0, keep_states=True)
    batch = pack(found.episodes, states=found.states)
    assert has_gaps(batch) and batch.states is not None
    states = np.asarray(compiled_unroll(training.agent.filter, batch))
    mask = np.asarray(batch.mask)
    np.testing.assert_allclose(states[mask], batch.states[mask], atol=1e-4)  # float32, two programs
    assert np.isfinite(states).all()
    watched = diagnose(training.agent, training.agent, batch, False)
    assert all(np.isfinite(float(x)) for x in watched.values())
    assert np.isfinite(one_step_error(training.agent.filter, batch))


@pytest.mark.parametrize("name", ["inference", "gru"])
def test_an_iteration_is_finite_and_repeatable(name: str) -> None:
    recipe = Recipe(BELIEFS[name], Trpo())
    after = [advance(recipe, envs(), SETTINGS, begun(name)) for _ in range(2)]
    for training, record in after:
        assert record["unsound"] == 0 and np.isfinite(numbers(training.agent)).all()
    np.testing.assert_array_equal(numbers(after[0][0].agent), numbers(after[1][0].agent))  # one program, run twice


def test_refits_fill_gaps_and_keep_the_size_of_the_state() -> None:
    """With the last two observations beside the state, which get marks."""
    settings = TrainingSettings(
        samples=60,
        exploration_episodes=12,
        missing=True,
        hidden=(4,),
        plus_obs=2,
        refit_before=(1,),
        refit_above=0.0,
        refit_kl=1e6,
    )
    recipe = Recipe(BELIEFS["inference"], Trpo())
    training, _ = begin(recipe, envs(), settings)
    agent: Any = training.agent
    assert isinstance(agent.filter, Concatenated) and isinstance(agent.filter.second, MarkedFilter)
    assert agent.filter.accepts_gaps
    assert agent.policy.network.layers[0].weight.shape[1] == 8 + agent.filter.first.inner.size
    training, _ = advance(recipe, envs(), settings, training)
    training, record = advance(recipe, envs(), settings, training)
    assert record["refit_accepted"] in (0.0, 1.0) and record["refit_error_after"] > 0
    assert training.agent.filter.size == agent.filter.size


def test_marks_and_last_readings() -> None:
    nan = np.nan
    episode = Episode(np.array([[1.0, nan], [nan, nan], [nan, 5.0], [2.0, nan]]), np.zeros((3, 1)))
    batch = pack([episode, episode], row_length=7)
    marked = with_marks(batch)
    expected = [[1, 0, 1, 0], [1, 0, 0, 0], [1, 5, 0, 1], [2, 5, 1, 0]]
    for first in (0, 3):
        np.testing.assert_array_equal(marked.previous_observations[0, first : first + 3], expected[:3])
        np.testing.assert_array_equal(marked.observations[0, first : first + 3], expected[1:])
    filter = MarkedFilter(FiniteMemory(window=2).fit(marked, marked, key=jax.random.key(0)), 2)
    states = np.asarray(compiled_unroll(filter, batch))[0, 2]
    np.testing.assert_array_equal(states, [*expected[1], *expected[2], 1, 5])


def test_missing_readings_have_no_prediction_loss() -> None:
    filter = begun("inference").agent.filter
    rng = np.random.default_rng(0)
    whole = Episode(rng.normal(size=(9, 2)), rng.normal(size=(8, 1)))
    gone = rng.random((9, 2)) < 0.4
    gone[0] = False
    batch = pack([Episode(np.where(gone, np.nan, whole.observations), whole.actions)])
    states = compiled_unroll(filter, batch)
    loss = float(prediction_loss(filter, states, batch))
    predicted = jax.vmap(filter.predict)(states[0], jnp.asarray(batch.actions[0]))
    squares = np.where(gone[1:], 0.0, np.asarray(predicted) - whole.observations[1:]) ** 2
    assert loss == pytest.approx(squares.sum() / 8, rel=1e-5)
