"""Beliefs as observations: those of the library's own rollouts and of `model.filter`, in any Gymnasium loop."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit
from small_training import LIMIT, SETTINGS, drifting, window
from small_training import Drift as Point
from tasks import Corridor

import rpsp
from rpsp.algorithms.trpo import Trpo
from rpsp.errors import UsageError
from rpsp.experiments.agents import TrainedAgent
from rpsp.training.actions import units_of
from rpsp.training.loop import begin
from rpsp.training.rollouts import collect, explore
from rpsp.training.state import Recipe
from rpsp.wrappers import BeliefObservation, BeliefTracker


class Played(gymnasium.Env):
    """Returns recorded observations, whatever the actions."""

    def __init__(self, observations: Any, spaces: Any):
        self.recorded, (self.observation_space, self.action_space) = list(observations), spaces

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        return self.recorded[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.now += 1
        return self.recorded[self.now], 0.0, False, False, {}


def drift() -> Any:
    return TimeLimit(Point(), LIMIT)


@pytest.fixture(scope="module")
def model() -> rpsp.PredictiveStateModel:
    return rpsp.PredictiveStateModel("inference", past=2, future=2).fit(explore(drifting(), episodes=40, seed=0))


def test_beliefs_are_those_of_a_rollout_of_the_library() -> None:
    envs = drifting(2)
    training, _ = begin(Recipe(window, Trpo()), envs, SETTINGS)
    agent = TrainedAgent(training.agent, training.scaling, units_of(envs.single_action_space))
    found = collect(training.agent, envs, scaling=training.scaling, episodes=4, seed=1, iteration=0, keep_states=True)
    assert found.states is not None
    spaces = envs.single_observation_space, envs.single_action_space
    for episode, states in zip(found.episodes, found.states, strict=True):
        env = BeliefObservation(Played(training.scaling.decode(episode.observations), spaces), agent)
        belief, _ = env.reset()
        for action, state in zip(agent.units.decode(episode.actions), states, strict=True):
            np.testing.assert_allclose(belief, state, rtol=1e-6, atol=1e-6)
            belief, *_ = env.step(action)
    assert max(map(len, found.episodes)) > 3


@pytest.mark.parametrize("keep", [False, True])
def test_beliefs_are_those_of_the_model_over_the_executed_actions(model: Any, keep: bool) -> None:
    env, plain = BeliefObservation(drift(), model, keep_observation=keep), drift()
    rng = np.random.default_rng(0)
    for seed in (3, 4):  # the second episode forgets the first
        seen, shown = [plain.reset(seed=seed)[0]], [env.reset(seed=seed)[0]]
        done: list[Any] = []
        for _ in range(6):
            action = rng.uniform(-2, 2, 1).astype(np.float32)
            (
                reading,
                *_,
            ) = plain.step(action)
            seen.append(reading)
            shown.append(env.step(action)[0])
            done.append(action)
        beliefs = model.filter(np.array(seen), np.array(done))
        expected = np.concatenate([beliefs, np.array(seen)], axis=1) if keep else beliefs
        np.testing.assert_allclose(np.array(shown), expected, rtol=1e-5, atol=1e-6)


def test_actions_beyond_the_bounds_are_those_that_the_environment_executes(model: Any) -> None:
    spaces = drift().observation_space, drift().action_space
    observations = np.random.default_rng(0).normal(size=(2, 2))
    after = []
    for action in (2.0, 7.0, -2.0):
        env = BeliefObservation(Played(observations, spaces), model)
        env.reset()
        after.append(env.step(np.array([action], np.float32))[0])
    assert np.array_equal(after[0], after[1]) and not np.allclose(after[0], after[2])


def test_symbols_count_from_where_their_spaces_do() -> None:
    envs = rpsp.make("tasks:Corridor-v0", 2)
    model = rpsp.PredictiveStateModel("tabular").fit(explore(envs, episodes=60, seed=0))
    space = envs.single_observation_space
    assert isinstance(space, Discrete) and space.start == 1
    env, plain = BeliefObservation(Corridor(), model), Corridor()
    seen, shown, done = [plain.reset(seed=0)[0]], [env.reset(seed=0)[0]], []
    for action in (1, 2, 2, 1):
        seen.append(plain.step(action)[0])
        shown.append(env.step(action)[0])
        done.append(action)
    beliefs = model.filter(np.array(seen)[:, None] - 1, np.array(done)[:, None] - plain.action_space.start)
    np.testing.assert_allclose(np.array(shown), beliefs, rtol=1e-5, atol=1e-6)


def test_rows_of_a_tracker_start_each_for_itself(model: Any) -> None:
    rng = np.random.default_rng(0)
    spaces = drift().observation_space, drift().action_space
    both, alone = BeliefTracker(model, *spaces, rows=2), BeliefTracker(model, *spaces)
    both.begin(rng.normal(size=(2, 2)))
    both.advance(rng.normal(size=(2, 1)), rng.normal(size=(2, 2)))
    before = both.beliefs
    fresh = rng.normal(size=(2, 2))
    found = both.begin(fresh, np.array([False, True]))
    assert np.array_equal(found[0], before[0])
    np.testing.assert_allclose(found[1:], alone.begin(fresh[1:]), rtol=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")  # advice: it is wrapped, and spaces have no bounds
def test_the_wrapper_is_an_environment_as_gymnasium_checks_them(model: Any) -> None:
    check_env(BeliefObservation(drift(), model), skip_render_check=True)


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (Box(-1, 1, (3,)), Box(-1, 1, (1,)), "env: its observations have size 3, but the model was fitted to"),
        (Box(-1, 1, (2,)), Box(-1, 1, (4,)), "env: its actions have size 4, but the model was fitted to"),
    ],
)
def test_another_environment_is_refused(model: Any, observations: Any, actions: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BeliefObservation(Played([], (observations, actions)), model)


def test_a_model_without_a_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="not fitted yet"):
        BeliefObservation(drift(), rpsp.PredictiveStateModel())
    wrong: Any = drift()
    with pytest.raises(UsageError, match="model: is a TimeLimit; give a fitted"):
        BeliefObservation(drift(), wrong)
