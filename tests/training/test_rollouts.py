"""Which episodes are played, in which units, and that acting and training see the same states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from rpsp.algorithms.policies import Agent, CategoricalPolicy, GaussianPolicy
from rpsp.data.batches import pack
from rpsp.data.episodes import Episode
from rpsp.data.scaling import OneHot, Scaling
from rpsp.envs.make import make
from rpsp.errors import DivergedError, EnvironmentFailure, UsageError
from rpsp.filters.base import AbstractFilter, Concatenated, compiled_unroll
from rpsp.filters.memory import GRU, observation_window
from rpsp.training.actions import ActionRange, action_units
from rpsp.training.rollouts import collect, explore

IDENTITY = Scaling(np.zeros(2), np.ones(2))


@pytest.fixture(autouse=True)
def _away_from_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to MUJOCO_LOG.TXT where it stands


class Counter(gymnasium.Env):
    """Observes (steps since reset, the action executed); episodes last as long as `lengths` say, one after another."""

    observation_space: gymnasium.Space = Box(-1e6, 1e6, (2,), np.float64)
    action_space: gymnasium.Space = Box(1.0, 5.0, (1,), np.float32)

    def __init__(self, lengths: list[int], *, bad: Callable[[int, int], bool] = lambda episode, step: False) -> None:
        self.lengths, self.bad = lengths, bad
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return np.array([0.0, 0.0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        seen = np.array([self.count, float(np.asarray(action).reshape(-1)[0])])
        if self.bad(self.episode, self.count):
            seen[0] = np.nan
        return seen, float(self.count), self.count >= self.lengths[self.episode % len(self.lengths)], False, {}


def counters(*lengths: list[int], **kwargs: Any) -> Any:
    """A row for every list of lengths."""
    remaining: Iterator[list[int]] = iter(lengths)
    return make(lambda: Counter(next(remaining), **kwargs), len(lengths))


def window_agent(*, observations: int = 2, actions: int = 1, policy: type = GaussianPolicy) -> Agent:
    window = observation_window(2, observations, actions)
    return Agent(window, policy(window.size, actions, key=jax.random.key(0)))


def gather(agent: Agent, envs: Any, samples: int, **kwargs: Any) -> Any:
    settings: dict[str, Any] = {"scaling": IDENTITY, "seed": 0, "iteration": 0} | kwargs
    return collect(agent, envs, samples=samples, **settings)


def equal(one: list[Episode], other: list[Episode]) -> bool:
    fields = ("observations", "actions", "drawn_actions", "rewards")
    return len(one) == len(other) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for a, b in zip(one, other, strict=True) for name in fields
    )


# Units of actions


def test_actions_are_clipped_to_the_environments_own_range() -> None:
    collected = gather(window_agent(), counters([30], [30]), 60)
    assert len(collected.episodes) == 2
    for episode in collected.episodes:
        assert np.abs(episode.drawn_actions).max() > 1  # what the likelihood sees
        np.testing.assert_array_equal(episode.actions, np.clip(episode.drawn_actions, -1, 1))  # what the filter sees
        executed = episode.observations[1:, 1]  # what the environment got: its range is 1 … 5
        np.testing.assert_allclose(executed, 3 + 2 * episode.actions[:, 0], rtol=1e-6)
        assert executed.min() == 1 and executed.max() == 5


def test_a_range_without_bounds_is_left_alone() -> None:
    class Free(Counter):
        action_space = Box(np.array([-np.inf, 0.0]), np.array([np.inf, 4.0]), dtype=np.float64)

    units = action_units(make(lambda: Free([5])))
    assert isinstance(units, ActionRange) and units.size == 2
    drawn = np.array([[50.0, 3.0]])
    np.testing.assert_array_equal(units.clip(drawn), [[50.0, 1.0]])
    np.testing.assert_array_equal(units.decode(units.clip(drawn)), [[50.0, 4.0]])


# Exploring


def test_exploration_is_random_and_repeatable() -> None:
    def run(rows: int, seed: int = 0) -> list[Episode]:
        return explore(make("InvertedPendulum-v5", rows), episodes=12, seed=seed)

    episodes = run(4)
    assert len(episodes) == 12
    assert equal(episodes, run(4))
    assert equal(episodes, run(7))  # an episode depends on its number, not on its row
    assert not equal(episodes, run(4, seed=1))
    drawn = np.concatenate([episode.drawn_actions for episode in episodes if episode.drawn_actions is not None])
    assert abs(drawn.mean()) < 0.4 and 0.7 < drawn.std() < 1.3
    np.testing.assert_array_equal(np.concatenate([episode.actions for episode in episodes]), np.clip(drawn, -1, 1))


def test_short_episodes_are_drawn_again() -> None:
    episodes = explore(counters([3, 8, 2, 9, 9], [1, 8]), episodes=4, seed=0, min_length=5)
    assert [len(episode) for episode in episodes].count(8) >= 2 and min(map(len, episodes)) >= 5
    assert len(episodes) == 4


def test_exploration_that_never_gets_long_enough_says_so() -> None:
    with pytest.raises(UsageError, match=r"min_length=5.*only 0.*smaller future"):
        explore(counters([3], [2]), episodes=2, seed=0, min_length=5, max_tries=20)
    with pytest.raises(UsageError, match=r"min_length=5.*40 samples are wanted"):
        explore(counters([3], [2]), samples=40, seed=0, min_length=5, max_tries=20)


def test_exploration_takes_episodes_or_samples() -> None:
    episodes = explore(counters([3, 8], [4, 8]), samples=30, seed=0, min_length=5)
    assert [len(episode) for episode in episodes] == [8] * 4  # 16 after the first two, 32 after the next
    for wrong in ({"episodes": 0}, {"samples": 0}, {}, {"episodes": 3, "samples": 3}):
        with pytest.raises(UsageError, match=r"episodes=|samples="):
            explore(counters([3]), seed=0, **wrong)


def test_discrete_actions_are_explored_as_symbols() -> None:
    envs = make("CartPole-v1", 3)
    episodes = explore(envs, episodes=6, seed=0)
    actions = np.concatenate([episode.actions for episode in episodes])
    assert actions.shape[1] == 1 and set(np.unique(actions)) == {0.0, 1.0}


# Collecting


def test_the_batch_rule_by_hand() -> None:
    """After lockstep 2: 2 finished + 2 running < 6, row 0 starts again. After 3: 2 + 1 + 3 = 6, no more are started."""
    collected = gather(window_agent(), counters([2], [5]), 6)
    assert [len(episode) for episode in collected.episodes] == [2, 5, 2]
    np.testing.assert_array_equal(collected.returns, [3, 15, 3])
    assert collected.stats == pytest.approx(
        {
            "mean_return": 7,
            "std_return": np.sqrt(32),
            "mean_length": 3,
            "episodes": 3,
            "samples": 9,
            "dropped_episodes": 0,
        }
    )
    assert collected.episodes[0].terminated and not collected.episodes[0].truncated


def test_a_batch_that_is_full_at_a_lockstep_starts_nothing_more() -> None:
    for samples, expected in ((30, 3), (31, 6)):
        assert len(gather(window_agent(), counters([10], [10], [10]), samples).episodes) == expected


def test_an_episode_has_its_reset_observation_first() -> None:
    (first, *_) = gather(
        window_agent(), counters([4]), 4, scaling=Scaling(np.array([1.0, 0]), np.array([2.0, 1]))
    ).episodes
    np.testing.assert_allclose(first.observations[:, 0], (np.arange(5) - 1) / 2)  # scaled
    np.testing.assert_array_equal(first.rewards, [1, 2, 3, 4])


def test_the_same_seed_gives_the_same_episodes_whatever_the_threads() -> None:
    agent = window_agent()

    def run(seed: int = 3, iteration: int = 5, threads: int = 1) -> list[Episode]:
        envs = make("InvertedPendulum-v5", 4, threads=threads)
        return gather(agent, envs, 100, seed=seed, iteration=iteration).episodes

    episodes = run()
    assert equal(episodes, run(threads=2))
    assert not equal(episodes, run(seed=4))
    assert not equal(episodes, run(iteration=6))
    resets = {episode.observations[0].tobytes() for episode in episodes}
    assert len(resets) == len(episodes)  # every episode has a seed of its own


@pytest.mark.parametrize("kind", ["window", "gru", "both"])
def test_acting_and_training_compute_the_same_states(kind: str) -> None:
    """The rollout's q_t against `unroll` on the packed batch, over many resets, with actions that are clipped."""
    window = observation_window(2, 2, 1)
    gru = GRU(8, 2, 1, key=jax.random.key(1))
    beliefs: dict[str, AbstractFilter] = {"window": window, "gru": gru, "both": Concatenated(gru, window)}
    belief = beliefs[kind]
    policy = GaussianPolicy(belief.size, 1, log_std=0.5, key=jax.random.key(0))
    weight = jax.random.normal(jax.random.key(2), (1, 16))
    agent = Agent(belief, eqx.tree_at(lambda p: p.network.layers[-1].weight, policy, weight))
    scaling = Scaling(np.array([0.01, -0.02]), np.array([0.1, 0.05]))
    collected = gather(agent, make("InvertedPendulum-v5", 5), 300, scaling=scaling, keep_states=True)
    assert len(collected.episodes) > 20 and collected.states is not None
    assert any(np.abs(episode.drawn_actions).max() > 1 for episode in collected.episodes)
    batch = pack(collected.episodes, row_length=64)
    states = np.asarray(compiled_unroll(belief, batch))
    starts = np.argwhere(batch.starts & batch.mask)
    for episode, acted in zip(collected.episodes, collected.states, strict=True):
        assert acted.shape == (len(episode), belief.size)
        first = episode.observations[0].astype(np.float32)
        ((row, time),) = [at for at in starts if np.array_equal(batch.previous_observations[tuple(at)], first)]
        np.testing.assert_allclose(acted, states[row, time : time + len(episode)], atol=1e-5)


def test_a_deterministic_agent_does_the_most_probable_action() -> None:
    collected = gather(window_agent(), counters([5]), 5, deterministic=True)
    np.testing.assert_array_equal(collected.episodes[0].drawn_actions, np.zeros((5, 1)))


def test_failed_episodes_are_dropped_and_counted() -> None:
    envs = counters([6], [6], bad=lambda episode, step: episode == 0 and step == 3)
    collected = gather(window_agent(), envs, 20)
    assert collected.dropped == 2 and collected.samples >= 20
    assert all(np.isfinite(episode.observations).all() and len(episode) == 6 for episode in collected.episodes)


def test_an_environment_that_always_fails_is_reported() -> None:
    with pytest.raises(
        DivergedError,
        match="12 of 12 episodes failed in iteration 7 of seed 0: in the first of them observation 0 was nan",
    ):
        gather(window_agent(), counters([6], bad=lambda episode, step: step == 2), 20, iteration=7)
    with pytest.raises(DivergedError, match="12 of 12 episodes failed in the exploration"):
        explore(counters([6], bad=lambda episode, step: step == 2), seed=0, episodes=5)


@pytest.mark.parametrize(("bad", "fine"), [(2, True), (5, True), (6, False)])
def test_a_fifth_of_a_whole_batch_may_fail_however_early_it_does(bad: int, fine: bool) -> None:
    """Of 20 + 5 episodes five may fail, and of 20 + 6 six may not, though they come first; of three, two may."""
    wanted = 1 if bad == 2 else 20
    envs = counters([6], bad=lambda episode, step: episode < bad and step == 2)
    if fine:
        assert gather(window_agent(), envs, 6 * wanted).dropped == bad
    else:
        with pytest.raises(DivergedError):
            gather(window_agent(), envs, 6 * wanted)


def test_an_action_that_is_not_finite_costs_its_episode_and_is_never_executed() -> None:
    executed: list[float] = []

    class Listening(Counter):
        def step(self, action: Any) -> Any:
            executed.append(float(np.asarray(action).reshape(-1)[0]))
            if self.episode == 1 and self.count == 3:
                return np.array([99.0, 0.0]), 0.0, False, False, {}
            return super().step(action)

    class Dividing(AbstractFilter):
        """The last observation, but 0/0 where 99 is seen."""

        def init(self) -> jax.Array:
            return jnp.zeros(2)

        def update(self, q: jax.Array, action: jax.Array, observation: jax.Array) -> jax.Array:
            return observation * (observation[0] - 99.0) / (observation[0] - 99.0)

        def predict(self, q: jax.Array, action: jax.Array) -> jax.Array:
            return q

    agent = Agent(Dividing(), GaussianPolicy(2, 1, key=jax.random.key(0)))
    collected = gather(agent, make(lambda: Listening([6]), 2), 30, keep_states=True)
    assert collected.dropped == 2, "the second episode of each row"
    assert all(len(episode) == 6 for episode in collected.episodes) and np.isfinite(executed).all()
    assert np.isfinite(np.concatenate(collected.states)).all()


def test_an_environment_that_raises_is_named_with_its_step() -> None:
    class Broken(Counter):
        def step(self, action: Any) -> Any:
            if self.count == 2:
                raise RuntimeError("the gearbox is gone")
            return super().step(action)

    gymnasium.register("Broken-v0", lambda: Broken([9]))
    with pytest.raises(EnvironmentFailure, match=r"Broken-v0.*gearbox.*step 3.* episodes failed in iteration 0"):
        gather(window_agent(), make("Broken-v0"), 20)
    with pytest.raises(EnvironmentFailure, match=r"Broken-v0.*gearbox.*step 3"):
        explore(make("Broken-v0"), episodes=2, seed=0, drop_raising=False)


@pytest.mark.parametrize(("every", "fails"), [(8, False), (3, True)])
@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_an_episode_in_which_it_raises_is_dropped_and_counted(every: int, fails: bool, error: Any) -> None:
    """Every eighth episode: they are left out. Every third, which is more than a fifth: it is over."""
    begun = raised = 0

    class Shaky(Counter):
        def reset(self, **kwargs: Any) -> Any:
            nonlocal begun
            begun += 1
            self.doomed = begun % every == 0
            return super().reset(**kwargs)

        def step(self, action: Any) -> Any:
            nonlocal raised
            if self.doomed and self.count == 2:
                raised += 1
                raise error(f"for the {raised}. time")
            return super().step(action)

    envs = make(lambda: Shaky([5]), 2)
    for play in (lambda: explore(envs, episodes=24, seed=0), lambda: gather(window_agent(), envs, 120).episodes):
        begun = raised = 0
        if fails:
            with pytest.raises(
                EnvironmentFailure, match=r"raised .*for the \d+\. time.*, the last time; .* episodes failed"
            ):
                play()
        else:
            found = play()
            assert raised >= 3 and begun == len(found) + raised, "every other episode is kept"
            assert {len(episode) for episode in found} == {5}
    if not fails:
        begun = raised = 0
        assert gather(window_agent(), envs, 120).dropped == raised >= 3


def test_an_agent_that_has_diverged_is_reported() -> None:
    agent = window_agent()
    agent = eqx.tree_at(lambda a: a.policy.log_std, agent, jnp.full(1, jnp.nan))
    with pytest.raises(DivergedError, match="iteration 0"):
        gather(agent, counters([5]), 5)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_environments_that_reset_themselves_give_the_same_episodes(mode: AutoresetMode) -> None:
    def explored(mode: AutoresetMode) -> list[Any]:
        envs = make("InvertedPendulum-v5", 2, autoreset_mode=mode, latency=1)
        found = explore(envs, episodes=5, seed=3)
        envs.reset(seed=0)
        assert envs.step(envs.action_space.sample())[0].shape == (2, 2), "they can be used afterwards"
        return [episode.observations for episode in found]

    for one, other in zip(explored(mode), explored(AutoresetMode.DISABLED), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_registered_batch_can_be_explored() -> None:
    envs = gymnasium.make_vec("rpsp/InvertedPendulum-v5", num_envs=2, vectorization_mode="vector_entry_point")
    assert len(explore(envs, episodes=3, seed=0)) == 3


def test_environments_whose_autoreset_cannot_be_switched_off_are_refused() -> None:
    envs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with pytest.raises(UsageError, match=r"CartPole-v1 resets by itself.*autoreset_mode"):
        gather(window_agent(), envs, 5)
    with pytest.raises(UsageError, match="samples=0"):
        gather(window_agent(), counters([5]), 0)


def test_discrete_actions_are_one_hot() -> None:
    agent = window_agent(observations=4, actions=2, policy=CategoricalPolicy)
    collected = gather(agent, make("CartPole-v1", 3), 100, scaling=Scaling(np.zeros(4), np.ones(4)))
    actions = np.concatenate([episode.actions for episode in collected.episodes])
    assert (actions.sum(axis=1) == 1).all() and set(np.unique(actions)) == {0.0, 1.0}


def test_discrete_observations_are_encoded_by_the_callers_scaling() -> None:
    class Symbols(Counter):
        observation_space = Discrete(5, start=1)
        action_space = Discrete(3, start=2)

        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            super().reset(**kwargs)
            return 1, {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert action in (2, 3, 4)
            _, *rest = super().step(action)
            return int(action), *rest  # the agent sees what it did

    envs = make(lambda: Symbols([7]), 2)
    (explored, *_) = explore(envs, episodes=2, seed=0)
    assert explored.observations.shape == (8, 1) and explored.observations[0, 0] == 0
    np.testing.assert_array_equal(explored.observations[1:, 0], explored.actions[:, 0] + 1)
    agent = window_agent(observations=5, actions=3, policy=CategoricalPolicy)
    (episode, *_) = gather(agent, envs, 14, scaling=OneHot(5)).episodes
    assert episode.observations.shape == (8, 5)
    np.testing.assert_array_equal(episode.observations[1:].argmax(axis=1), episode.actions.argmax(axis=1) + 1)
