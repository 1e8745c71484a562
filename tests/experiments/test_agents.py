"""A trained agent in a user's hands: `predict` does in anyone's loop what the agent did in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import tamed
from tasks import Corridor

import rpsp
from rpsp.cli import main
from rpsp.envs.wrappers import ObserveOnly
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.agents import EVALUATING, ActingState, TrainedAgent, load
from rpsp.experiments.finished_runs import Run
from rpsp.training.acting import _seed_sequence
from rpsp.training.rollouts import ACTING

TINY: dict[str, Any] = {"verbose": False, "num_envs": 2, "threads": 1}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Position-only cart-pole, five iterations: a policy that is no longer the same everywhere."""
    return rpsp.train(
        "InvertedPendulum-v5",
        "fm2",
        out=tmp_path_factory.mktemp("run") / "run",
        iterations=5,
        samples=200,
        exploration_episodes=10,
        max_kl=0.2,
        **TINY,
    )


@pytest.fixture(scope="module")
def symbols(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Symbols in and out, both counted from 1."""
    return rpsp.train(
        "tasks:Corridor-v0",
        "tabular",
        out=tmp_path_factory.mktemp("run") / "symbols",
        iterations=40,
        samples=80,
        exploration_episodes=60,
        max_kl=0.05,
        **TINY,
    )


def own_loop(agent: TrainedAgent, env: gymnasium.Env, seed: int, state: Any = None) -> tuple[list[Any], float, Any]:
    """One episode as a user writes it."""
    observation, _ = env.reset(seed=seed)
    start, done, actions, total = True, False, [], 0.0
    while not done:
        action, state = agent.predict(observation, state, episode_start=start)
        assert env.action_space.contains(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        actions.append(np.array(action, ndmin=1, copy=True))
        total, start, done = total + float(reward), False, terminated or truncated
    return actions, total, state


@pytest.mark.parametrize("carried", [False, True])
def test_a_users_own_loop_does_what_the_evaluation_did(run: Run, carried: bool) -> None:
    """Over resets: with the state of the episode before and a start mark, or with None."""
    agent = tamed(load(run.directory))
    collected = agent.evaluate(4, seed=7)
    env = ObserveOnly(gymnasium.make("InvertedPendulum-v5", max_episode_steps=200), [0, 1])
    state, drawn = None, []
    for number, (episode, expected) in enumerate(zip(collected.episodes, collected.returns, strict=True)):
        seed = int(_seed_sequence(7, ACTING, EVALUATING, 1, number).generate_state(1)[0])
        actions, total, state = own_loop(agent, env, seed, state if carried else None)
        np.testing.assert_allclose(np.array(actions), 3.0 * episode.actions, atol=1e-5)  # its range is −3 … 3
        # Given the very same observations, the very same actions.
        again = None
        for seen, did in zip(episode.observations[:-1], episode.actions, strict=True):
            action, again = agent.predict(agent.scaling.decode(seen), again, again is None)
            np.testing.assert_allclose(action, 3.0 * did, atol=1e-6)
        assert total == pytest.approx(expected, rel=1e-6)
        drawn.append(episode.actions)
    assert np.concatenate(drawn).std() > 0.002, "an agent that always does the same would prove nothing"


def test_rows_are_as_one_by_one(run: Run) -> None:
    agent = tamed(load(run.directory))
    rng = np.random.default_rng(0)
    observations, starts = 0.1 * rng.normal(size=(6, 3, 2)), rng.random((6, 3)) < 0.3
    state, singles = None, [None, None, None]
    for at, marks in zip(observations, starts, strict=True):
        together, state = agent.predict(at, state, marks)
        assert together.shape == (3, 1) and isinstance(state, ActingState)
        for row in range(3):
            action, singles[row] = agent.predict(at[row], singles[row], bool(marks[row]))
            assert action.shape == (1,)
            np.testing.assert_allclose(action, together[row], atol=1e-6)


def test_noise_derives_from_the_seed_and_never_repeats(run: Run) -> None:
    def actions(agent: TrainedAgent, state: Any = None) -> list[np.ndarray]:
        """Two episodes of the same observations."""
        found = []
        for episode in range(2):
            for step in range(4):
                action, state = agent.predict(np.zeros((2, 2)), state, step == 0, deterministic=False)
                found.append(action)
            state = None if episode == 0 else state
        return found

    first = actions(load(run.directory))
    np.testing.assert_array_equal(first, actions(load(run.directory)))
    other = load(run.directory)
    other.seed = 99
    assert not np.array_equal(first, actions(other))
    assert len({round(float(x), 6) for x in np.ravel(first) if abs(x) < 3}) == sum(abs(x) < 3 for x in np.ravel(first))


def test_it_says_what_it_expects(run: Run) -> None:
    agent = load(run.directory)
    _, state = agent.predict(np.array([0.01, 0.02]))
    expected = agent.expect(state)
    predicted = agent.agent.filter.predict(jnp.asarray(state.q[0]), jnp.asarray(state.executed[0]))
    np.testing.assert_allclose(expected[0], agent.scaling.decode(np.asarray(predicted, np.float64)), rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"observation": np.zeros(3)}, r"observation: has shape \(3,\); give shape \(2,\)"),
        ({"observation": np.zeros(1)}, r"observation: has shape \(1,\)"),
        ({"observation": 0.0}, r"observation: has shape \(\)"),
        (
            {"observation": [0.0, np.nan]},
            r"observation: \[0\.0, nan\] contains NaN or infinite values.*repeat the last finite",
        ),
        ({"observation": np.zeros((2, 3))}, r"observation: has shape \(2, 3\)"),
        ({"observation": np.zeros((3, 2))}, "state: has 2 environments, the observation has 3"),
        ({"observation": np.zeros(2)}, "state: has 2 environments, the observation has 1"),
        ({"observation": np.zeros((2, 2)), "episode_start": [True] * 3}, "episode_start: has 3"),
        ({"observation": "0.1"}, r"observation: '0\.1' \(str\) is not an array of numbers; give the observation"),
        ({"observation": ["0.1", "0.2"]}, r"observation: .* \(list\) is not an array of numbers"),
        (
            {"observation": {"angle": 0.1}},
            r"observation: .*angle.* \(dict\) is not an array of numbers; give the observation as one array",
        ),
        ({"observation": [[0.1, 0.2], [0.1]]}, r"observation: .* \(list\) is not an array of numbers"),
        (
            {"observation": np.zeros((0, 2))},
            r"observation: is empty, with shape \(0, 2\); give at least one",
        ),
    ],
)
def test_what_does_not_fit_is_refused(run: Run, given: dict[str, Any], words: str) -> None:
    agent = load(run.directory)
    _, state = agent.predict(np.zeros((2, 2)))
    with pytest.raises(UsageError, match=words):
        agent.predict(**({"state": state} | given))


def test_a_state_of_another_agent_is_refused(run: Run, symbols: Run) -> None:
    agent, other = load(run.directory), load(symbols.directory)
    _, state = other.predict(2)
    sizes = rf"\({other.agent.filter.size},\) .* \({agent.agent.filter.size},\) and \(1,\)"
    for use in (lambda: agent.predict(np.zeros(2), state), lambda: agent.expect(state)):
        with pytest.raises(UsageError, match=f"state: belongs to another agent: its q has shape {sizes}"):
            use()
    # Called directly: the checked annotations of the tests refuse a tuple before predict can.
    with pytest.raises(UsageError, match="state: is a tuple; give the state that the last call of predict"):
        agent._check_state(tuple(state))


def test_last_best_or_a_number(run: Run) -> None:
    assert load(run.directory).checkpoint == 5
    returns = [record["mean_return"] for record in run.metrics]
    assert load(run.directory, "best").checkpoint == int(np.argmax(returns))
    third = load(run.directory, 3)
    assert third.checkpoint == 3
    assert not np.array_equal(*(a.agent.policy.network.layers[0].weight for a in (third, load(run.directory))))
    with pytest.raises(UsageError, match="'newest' is not one of last, best"):
        load(run.directory, "newest")
    with pytest.raises(UsageError, match="99 is not one of"):
        load(run.directory, 99)


def test_what_is_no_run_is_said(tmp_path: Path, capsys: Any) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileFormatError, match=r"contains no config\.json|nowhere: is not a directory") as caught:
            rpsp.load(path)
        assert caught.value.exit_code == 3
    with pytest.raises(SystemExit) as exit:
        main(["eval", str(tmp_path)])
    assert exit.value.code == 3 and capsys.readouterr().err.startswith(f"rpsp: {tmp_path}: contains no config.json")


def test_an_evaluation_is_repeatable_and_is_not_training(run: Run) -> None:
    agent = load(run.directory)
    one, again, other = (agent.evaluate(3, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.returns, again.returns)
    firsts = [c.episodes[0].observations[0].tobytes() for c in (one, other)]
    assert firsts[0] != firsts[1] and len(one.episodes) == 3
    drawn = agent.evaluate(3, deterministic=False).episodes[0]
    assert not np.allclose(drawn.actions[:3], one.episodes[0].actions[:3])


# ---------------------------------------------------------------------------------------------------------------------
# Symbols
# ---------------------------------------------------------------------------------------------------------------------


def test_a_table_learns_a_corridor(symbols: Run) -> None:
    returns = [record["mean_return"] for record in symbols.metrics]
    assert np.mean(returns[:2]) < 0.5 and np.mean(returns[-3:]) > 0.85
    assert symbols.metrics[0]["prediction_error"] < symbols.metrics[0]["persistence_error"]


def test_symbols_are_in_the_environments_own_numbers(symbols: Run) -> None:
    agent = load(symbols.directory)
    collected = agent.evaluate(5, seed=3)
    env = gymnasium.wrappers.TimeLimit(Corridor(), 12)
    for number, expected in enumerate(collected.returns):
        seed = int(_seed_sequence(3, ACTING, EVALUATING, 1, number).generate_state(1)[0])
        actions, total, _ = own_loop(agent, env, seed)
        assert {int(a[0]) for a in actions} <= {1, 2} and total == expected
    action, state = agent.predict(3)
    assert isinstance(action, np.integer) and action in (1, 2)
    many, _ = agent.predict(np.array([1, 2, 3]))
    assert many.shape == (3,) and many[2] == action
    assert agent.expect(state).sum() == pytest.approx(1, abs=0.05)  # a distribution over symbols
    for wrong in (0, 4):
        with pytest.raises(UsageError, match="observations"):
            agent.predict(wrong)
