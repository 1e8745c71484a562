"""Several runs at once: the numbers of each are those it has alone, whoever is beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small_training import SETTINGS, Made, drifting, numbers, predicting, window

from rpsp.algorithms.alternating import InSequence
from rpsp.algorithms.base import AbstractAlgorithm, everything, filter_only, policy_only
from rpsp.algorithms.policies import Agent
from rpsp.algorithms.ppo import Ppo
from rpsp.algorithms.sac import Sac
from rpsp.algorithms.trpo import Trpo
from rpsp.algorithms.vrpg import Vrpg
from rpsp.data.batches import Batch
from rpsp.errors import DivergedError
from rpsp.filters.memory import GRU, observation_window
from rpsp.training.loop import train
from rpsp.training.refits import Refitted
from rpsp.training.state import Recipe, Record, Training, TrainingSettings
from rpsp.training.together import Step, train_together

ROWS, ITERATIONS = 3, 3
SEEDS = [replace(SETTINGS, seed=seed) for seed in (0, 1, 2)]


gru = Made(lambda batch, held_out, key: GRU(4, 2, 1, key=key))


def alone(recipe: Recipe, settings: TrainingSettings, iterations: int = ITERATIONS) -> list[tuple[Training, Record]]:
    return list(train(recipe, drifting(ROWS), settings, iterations))


def together(recipe: Recipe, trainings: list[Training | None], iterations: int = ITERATIONS) -> list[Step]:
    found = train_together([recipe] * 3, lambda n: drifting(ROWS * n), SEEDS, iterations, trainings, threads=2)
    return [step for steps in found for step in steps]


def same(steps: list[Step], expected: list[tuple[Training, Record]]) -> None:
    """Equal but for rounding, which learning makes no larger than this in a few iterations."""
    for step, (training, record) in zip(steps, expected, strict=True):
        assert step.training is not None and step.training.iteration == training.iteration
        reproducible = {k: v for k, v in record.items() if not k.endswith(("_seconds", "_per_second"))}
        assert {k: step.record[k] for k in reproducible} == pytest.approx(reproducible, rel=2e-3, abs=2e-4)
        np.testing.assert_allclose(numbers(step.training.agent), numbers(training.agent), rtol=2e-3, atol=2e-4)


def alternating() -> Recipe:
    return Recipe(gru, InSequence(Trpo(), Vrpg(moves=filter_only, truncate=5, filter_kl=0.02)))


RECIPES = {
    "trpo": Recipe(window, Trpo()),
    "through time": Recipe(gru, Trpo(moves=everything)),
    "alternating": alternating(),
    "ppo": Recipe(window, Ppo(passes=2, minibatch=32)),
    "sac": Recipe(window, Sac(minibatch=16, capacity=100, hidden=(8,), ratio=0.5)),
    "sac, interleaved": Recipe(window, Sac(minibatch=16, capacity=100, hidden=(8,), ratio=0.5, learn_every=9)),
}


LONG = "sac, interleaved", "alternating"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in RECIPES])
def test_each_run_has_the_numbers_it_has_alone(name: str) -> None:
    recipe = RECIPES[name]
    steps = together(recipe, [None] * 3)
    assert [step.run for step in steps] == [0, 1, 2] * (ITERATIONS + 1)
    for run, settings in enumerate(SEEDS):
        same([step for step in steps if step.run == run], alone(recipe, settings))


def test_recipes_that_were_made_one_by_one_go_together() -> None:
    """As those of several runs are, each made of its own settings."""
    recipes = [alternating() for _ in SEEDS]
    found = train_together(recipes, lambda n: drifting(ROWS * n), SEEDS, 1, [None] * 3, threads=2)
    assert [len(steps) for steps in found] == [3, 3]


def test_runs_that_a_refit_sets_apart_go_on_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refit(recipe: Recipe, settings: TrainingSettings, training: Training) -> Refitted:
        other = Agent(observation_window(1, 2, 1), training.agent.policy)
        return Refitted(other if settings.seed == 1 else training.agent, training.memory, {})

    monkeypatch.setattr("rpsp.training.together.refit_if_due", refit)  # that of a run alone is another's
    recipe = RECIPES["trpo"]
    steps = together(recipe, [None] * 3)
    assert [step.run for step in steps] == [0, 1, 2] * (ITERATIONS + 1)
    for run, settings in enumerate(SEEDS):
        same([step for step in steps if step.run == run], alone(recipe, settings))


def test_those_behind_go_first_and_then_all_together() -> None:
    recipe = RECIPES["trpo"]
    expected = [alone(recipe, settings) for settings in SEEDS]
    steps = together(recipe, [expected[0][2][0], None, expected[2][1][0]])  # after 2, 0 and 1 iterations
    assert [step.run for step in steps] == [1, 1, 1, 2, 0, 1, 2]
    for run, done in ((0, 2), (1, -1), (2, 1)):
        same([step for step in steps if step.run == run], expected[run][done + 1 :])


def of_its_own_size(batch: Batch, held_out: Batch, key: Any) -> Any:
    """A window of one observation for the second seed, of two for the others."""
    second = jax.random.key_data(key) == jax.random.key_data(jax.random.split(jax.random.key(1))[0])
    return observation_window(1 if second.all() else 2, 2, 1)


def test_agents_of_another_shape_advance_by_themselves() -> None:
    recipe = Recipe(Made(of_its_own_size), Trpo())
    steps = together(recipe, [None] * 3)
    assert [step.run for step in steps] == [0, 1, 2, *[0, 2, 1] * ITERATIONS]
    for run, settings in enumerate(SEEDS):
        same([step for step in steps if step.run == run], alone(recipe, settings))


def test_a_run_that_diverges_takes_no_other_with_it() -> None:
    def marked(batch: Batch, held_out: Batch, key: Any) -> Any:
        second = of_its_own_size(batch, held_out, key).size == 2
        return predicting(jnp.full((6, 2), 9.0 if second else 1.0))

    class Spoiling(AbstractAlgorithm):
        def init(self, agent: Agent, *, key: Any) -> Any:
            return ()

        def step(self, agent: Any, memory: Any, batch: Batch, *, key: Any) -> Any:
            bad = jnp.where(agent.filter.W_pred[0, 0] == 9, jnp.nan, 0.0)
            moved = jax.tree.map(lambda x: x + bad if eqx.is_inexact_array(x) else x, agent.policy)
            return eqx.tree_at(lambda a: a.policy, agent, moved), memory, {}

        def select(self, agent: Agent) -> Any:
            return policy_only(agent)

    recipe = Recipe(Made(marked), Spoiling())
    steps = together(recipe, [None] * 3)
    assert [step.run for step in steps] == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 2]
    assert isinstance(steps[7].error, DivergedError) and steps[7].training is None
    assert "iteration 1 of seed 1" in str(steps[7].error)
    for run in (0, 2):
        same([step for step in steps if step.run == run], alone(recipe, SEEDS[run]))


class Wandering(AbstractAlgorithm):
    """As a user may write one: random changes of the policy, of a size that is a setting."""

    size: float = 0.1
    shrink: float = 0.0
    """0 drops a term of the program."""

    def init(self, agent: Agent, *, key: Any) -> Any:
        return jax.random.normal(key, (3,))

    def step(self, agent: Agent, memory: Any, batch: Batch, *, key: Any) -> Any:
        theta, restore = ravel_pytree(eqx.filter(agent, policy_only(agent)))
        moved = theta + self.size * jax.random.normal(key, theta.shape)
        if eqx.is_array(self.shrink) or self.shrink > 0:
            moved = moved * (1 - self.shrink)
        agent = eqx.combine(restore(moved), agent)
        return agent, memory + 1, {"drawn": moved[0], "remembered": memory[0]}

    def select(self, agent: Agent) -> Any:
        return policy_only(agent)


@pytest.mark.parametrize("name", ["ppo", pytest.param("vrpg", marks=pytest.mark.slow), "wandering"])
def test_agents_may_differ_in_the_sizes_of_their_steps(name: str) -> None:
    """As a sweep over learning rates does; what changes the program, such as a loss that is dropped, sets one apart."""
    recipes = {
        "ppo": [Recipe(window, Ppo(rate, passes=2, minibatch=32, clip=0.1 + rate)) for rate in (1e-3, 1e-2, 1e-2)],
        "vrpg": [Recipe(gru, Vrpg(rate, prediction_weight=w)) for rate, w in ((1e-3, 1.0), (1e-2, 0.0), (1e-2, 2.0))],
        "wandering": [Recipe(window, Wandering(*given)) for given in ((0.1, 0.01), (0.2, 0.0), (0.1, 0.02))],
    }[name]
    found = train_together(recipes, lambda n: drifting(ROWS * n), SEEDS, ITERATIONS, [None] * 3, threads=2)
    steps = [step for steps in found for step in steps]
    order = [0, 1, 2] if name == "ppo" else [0, 2, 1]
    assert [step.run for step in steps] == [0, 1, 2, *order * ITERATIONS]
    for run, (recipe, settings) in enumerate(zip(recipes, SEEDS, strict=True)):
        same([step for step in steps if step.run == run], alone(recipe, settings))
