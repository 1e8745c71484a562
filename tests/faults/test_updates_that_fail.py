"""Row 9: an update whose numbers are not finite is skipped; after five in a row the run goes back, in smaller steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from amounts import amount, report
from comparing import KEY, stepping
from processes import TINY, checkpoints, metrics
from tasks import Drift

from rpsp.algorithms.alternating import InSequence
from rpsp.algorithms.base import AbstractAlgorithm, filter_only
from rpsp.algorithms.policies import Agent, GaussianPolicy
from rpsp.algorithms.ppo import Ppo
from rpsp.algorithms.trpo import Trpo
from rpsp.algorithms.vrpg import Vrpg
from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.envs.make import make
from rpsp.errors import DivergedError
from rpsp.experiments.configure import configured
from rpsp.experiments.methods import Method
from rpsp.experiments.progress import line
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.runs import resume, start
from rpsp.filters.memory import FiniteMemory, observation_window
from rpsp.training.loop import ASTRAY, HALVINGS, Recipe, Training, TrainingSettings, train


def same(one: Any, other: Any) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in leaves)


def replaced(change: Callable[[np.ndarray], Any], *fields: str) -> Callable[[Batch], Batch]:
    """A batch with these fields changed."""

    def corrupt(batch: Batch) -> Batch:
        found = [np.array(getattr(batch, name)) for name in fields]
        return eqx.tree_at(lambda b: [getattr(b, name) for name in fields], batch, [change(x) for x in found])

    return corrupt


CORRUPTIONS = {
    "a reward that is no number": replaced(lambda x: np.where(np.arange(x.shape[1]) == 2, np.nan, x), "rewards"),
    "infinite rewards": replaced(lambda x: x + np.inf, "rewards"),
    "rewards that add up to infinity": replaced(lambda x: np.full_like(x, 3e38), "rewards"),
    "an exploding state": replaced(lambda x: np.full_like(x, 3e38), "previous_observations", "observations"),
    "actions without a probability": replaced(lambda x: np.full_like(x, 3e38), "drawn_actions"),
}
ALGORITHMS = {
    "trpo": Trpo(),
    "vrpg": Vrpg(),
    "vrpg in a trust region": Vrpg(filter_kl=0.01),
    "ppo": Ppo(passes=2, minibatch=16, hidden=(4,)),
    "alternating": InSequence(Trpo(), Vrpg(moves=filter_only)),
}
SINGULAR = Trpo(baseline_ridge=0.0), replaced(np.zeros_like, "previous_observations", "observations")
"""A regression of returns on states that are all the same, and nothing to make it regular."""


def some_batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    episodes = [Episode(rng.normal(size=(9, 2)), rng.normal(size=(8, 1)), rng.normal(size=8)) for _ in range(3)]
    return pack(episodes, row_length=8)


def marked(found: dict[str, Any], name: str) -> bool:
    """Whether any algorithm says so."""
    return any(key.split("/")[-1] == name and value == 1 for key, value in found.items())


def test_an_update_without_finite_numbers_is_skipped_and_counted() -> None:
    window = observation_window(2, 2, 1)
    agent = Agent(window, GaussianPolicy(window.size, 1, hidden=(4,), key=jax.random.key(0)))
    algorithms = list(ALGORITHMS.values())[: amount(2, len(ALGORITHMS))]
    pairs = [SINGULAR, *((algorithm, corrupt) for algorithm in algorithms for corrupt in CORRUPTIONS.values())]
    injected = amount(len(pairs), 30)
    for i in range(injected):
        algorithm, corrupt = pairs[i % len(pairs)]
        memory = algorithm.init(agent, key=KEY)
        new, after, found = algorithm.step(agent, memory, corrupt(some_batch(i)), key=KEY)
        assert marked(found, "unsound") and marked(found, "skipped"), (i, found)
        if "+" not in algorithm.name:  # of two algorithms the other may have moved
            assert same(agent, new) and same(memory, after), i
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(eqx.filter(new, eqx.is_inexact_array)))
        # The same algorithm goes on as if nothing had happened.
        moved, _, found = algorithm.step(new, after, some_batch(i), key=KEY)
        assert not same(moved, new) and not marked(found, "unsound")
    report(9, f"{injected} of {injected} updates without finite numbers skipped and counted; the next one was done")


# ---------------------------------------------------------------------------------------------------------------------
# Rolled back
# ---------------------------------------------------------------------------------------------------------------------


def failing(
    algorithm: AbstractAlgorithm, when: Callable[[int], bool], numbers: list[int] | None = None
) -> AbstractAlgorithm:
    """The algorithm with infinite rewards in the steps n for which `when(n)`; `numbers` counts them over restarts."""
    numbers = [0] if numbers is None else numbers

    def step(real: Any, agent: Agent, memory: Any, batch: Batch, key: Any) -> Any:
        n, numbers[0] = numbers[0], numbers[0] + 1
        return real(agent, memory, CORRUPTIONS["infinite rewards"](batch) if when(n) else batch, key=key)

    return stepping(algorithm, step)


SETTINGS = TrainingSettings(samples=60, exploration_episodes=8, hidden=(4,))


def recipe_of(algorithm: AbstractAlgorithm) -> Recipe:
    return Recipe(FiniteMemory(window=2), algorithm)


def envs() -> Any:
    return make(Drift, 3, max_episode_steps=20)


def test_after_five_in_a_row_the_run_goes_back_and_halves_its_steps() -> None:
    """Iterations 3 … 6 fail, four of them; and 9 … 13, five."""
    algorithm = Trpo()
    bad = {3, 4, 5, 6, *range(9, 14)}
    history = list(train(recipe_of(failing(algorithm, bad.__contains__)), envs(), SETTINGS, 16))
    states: list[Training] = [state for state, _ in history]
    records = [record for _, record in history[1:]]
    assert [n for n, record in enumerate(records) if "astray" in record] == sorted(bad)
    assert [n for n, record in enumerate(records) if "rolled_back" in record] == [13]
    assert same(states[7].agent, states[3].agent) and states[7].halvings == 0, "four in a row change nothing"
    # Iteration 8 was the last that could be updated: it was acted by agent 8, and its update made agent 9.
    assert same(states[13].agent, states[9].agent) and not same(states[9].agent, states[8].agent)
    assert same(states[14].agent, states[8].agent) and states[14].halvings == 1 and states[14].astray == 0
    assert records[13]["step_scale"] == records[15]["step_scale"] == 0.5 and "step_scale" not in records[12]
    # From there on steps are half as long: with the whole step from the same state, the middle is where it went.
    whole = eqx.tree_at(lambda t: t.halvings, states[14], 0)
    ((further, _),) = train(recipe_of(algorithm), envs(), SETTINGS, 15, whole)
    middle = jax.tree.map(lambda a, b: (a + b) / 2 if eqx.is_inexact_array(a) else a, states[14].agent, further.agent)
    for a, b in zip(jax.tree.leaves(middle), jax.tree.leaves(states[15].agent), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    report(9, "after 5 skipped updates in a row: back to the agent of the last good iteration, steps half as long")


def test_where_nothing_helps_the_run_ends_with_advice() -> None:
    history = []
    with pytest.raises(DivergedError, match="no update has finite numbers, however small its step"):
        for state, _ in train(recipe_of(failing(Trpo(), lambda n: True)), envs(), SETTINGS, 100):
            history.append(state)
    assert history[-1].iteration == ASTRAY * (HALVINGS + 1) - 1 and history[-1].halvings == HALVINGS


COUNTS = [0]
DUE = {2, 3, 4, 5, 6}
astray = Method("astray", FiniteMemory(), failing(Trpo(), DUE.__contains__, COUNTS), "loses its way")


def test_a_run_that_goes_back_says_so_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Put down and taken up again after every iteration, and never put down: the same bytes."""

    def trained(out: Path, iterations: int) -> list[str]:
        said: list[str] = []
        show = lambda record, pace: said.append(line(record, pace))  # noqa: E731
        if out.exists():
            resume([out], said.append, show, iterations)
        else:
            given = TINY | {"env": "tasks:Drift-v0", "method": "test_updates_that_fail:astray", "out": str(out)}
            start(configured(given | {"iterations": iterations}), said.append, show)
        return said

    COUNTS[0] = 0
    said = trained(tmp_path / "whole", 9)
    assert (
        sum("update not finite (5 in a row)  rolled back, step sizes × 0.5 from now on" in text for text in said) == 1
    )
    assert sum("update not finite" in text for text in said) == 5
    COUNTS[0] = 0
    for n in range(1, 10):
        trained(tmp_path / "pieces", n)
    assert metrics(tmp_path / "pieces") == metrics(tmp_path / "whole")
    assert checkpoints(tmp_path / "pieces") == checkpoints(tmp_path / "whole")
    assert RunDirectory(tmp_path / "whole").read(9, Trpo()).halvings == 1
