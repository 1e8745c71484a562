"""Wrappers against hand-computed expectations, single against vector, and every message for bad input."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Sequence, Text
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rpsp.envs.disturbances import Delay, Disturbance, Dropout, Latency, Noise, Selection, _checked_steps
from rpsp.envs.guards import FailureGuard
from rpsp.envs.make import _check_at_least, make
from rpsp.envs.mujoco_batch import MujocoBatch
from rpsp.envs.tasks import TASKS, Task
from rpsp.envs.vector import Autoreset, DisturbedBatch, SerialBatch, sensors
from rpsp.envs.wrappers import (
    ActionLatency,
    ActionLimit,
    ObservationDropout,
    ObservationLatency,
    ObservationNoise,
    ObserveOnly,
)
from rpsp.errors import EnvironmentFailure, UsageError


@pytest.fixture(autouse=True)
def _away_from_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to MUJOCO_LOG.TXT where it stands


class Counter(gymnasium.Env):
    """Observes (steps since reset, the action executed); ends after `length` steps. Makes disturbances countable."""

    observation_space: gymnasium.Space = Box(0.0, 1e6, (2,), np.float64)
    action_space: gymnasium.Space = Box(1.0, 5.0, (1,), np.float32)

    def __init__(self, length: int = 10**6, bad_step: int | None = None, bad: str = "observation") -> None:
        self.length, self.bad_step, self.bad = length, bad_step, bad
        self.stepped = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return np.array([0.0, 0.0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        self.stepped += 1
        self.executed = float(np.asarray(action).item())
        observation, reward = np.array([self.count, self.executed]), 1.0
        if self.count == self.bad_step:
            if self.bad == "observation":
                observation[1] = np.inf
            elif self.bad == "reward":
                reward = float("nan")
            else:
                raise RuntimeError("the gripper fell off")
        return observation, reward, self.count >= self.length, False, {}


class DiscreteCounter(Counter):
    observation_space = Discrete(1000)
    action_space = Discrete(3, start=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return 0, super().reset(seed=seed)[1]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return int(observation[0]), reward, terminated, truncated, info


def _run(env: gymnasium.Env, actions: list[float], seed: int | None = 0) -> np.ndarray:
    observations = [env.reset(seed=seed)[0]]
    observations += [env.step(np.array([action], np.float32))[0] for action in actions]
    return np.array(observations)


# -- single wrappers, by hand ------------------------------------------------------------------------------------------


def test_observe_only_selects_in_order_and_keeps_the_bounds() -> None:
    env = ObserveOnly(gymnasium.make("CartPole-v1"), (2, 0))
    full = gymnasium.make("CartPole-v1")
    np.testing.assert_array_equal(env.reset(seed=3)[0], full.reset(seed=3)[0][[2, 0]])
    np.testing.assert_array_equal(env.step(1)[0], full.step(1)[0][[2, 0]])
    whole = full.observation_space
    assert isinstance(whole, Box)
    assert env.observation_space == Box(whole.low[[2, 0]], whole.high[[2, 0]], dtype=np.float32)


def test_a_limit_clips_actions_and_narrows_their_space() -> None:
    """The range of Counter is [1, 5]: limited to 3 it is [1, 3], whose middle, the null action of a latency, is 2."""
    env = ActionLimit(Counter(), 3.0)
    assert env.action_space == Box(1.0, 3.0, (1,), np.float32)
    np.testing.assert_array_equal(_run(env, [1.5, 4.5, 0.0])[:, 1], [0, 1.5, 3, 1])
    for late in (0, 1):
        envs = make(Counter, 2, action_limit=3.0, act_latency=late)
        assert envs.single_action_space == env.action_space
        assert envs.action_space == Box(1.0, 3.0, (2, 1), np.float32)
        envs.reset(seed=0)
        seen = [envs.step(np.array([[a], [5.0]], np.float32))[0][:, 1].tolist() for a in (1.5, 4.5)]
        assert seen == ([[2, 2], [1.5, 3]] if late else [[1.5, 3], [3, 3]])


def test_a_limit_of_a_batched_task_is_that_of_gymnasiums_environment_given_clipped_actions() -> None:
    ours = make("InvertedPendulum-v5", 2, observe="all", action_limit=1.0, autoreset_mode="Disabled")
    theirs = gymnasium.make("InvertedPendulum-v5")
    assert isinstance(ours.unwrapped, MujocoBatch)
    assert ours.single_action_space == Box(-1.0, 1.0, (1,), np.float32)
    np.testing.assert_array_equal(ours.reset(seed=4)[0][0], theirs.reset(seed=4)[0])
    for action in (0.3, 2.5, -3.0, -0.9):
        seen = ours.step(np.full((2, 1), action, np.float32))[0]
        clipped = np.array([np.clip(action, -1, 1)], np.float32)
        np.testing.assert_array_equal(seen[0], theirs.step(clipped)[0])
    rendered = make("InvertedPendulum-v5", 1, action_limit=1.0, render_mode="rgb_array")  # an ordinary environment
    assert rendered.single_action_space == ours.single_action_space


def test_a_limit_gives_bounds_to_unbounded_actions_and_none_beyond_the_environments_own() -> None:
    class Free(Counter):
        action_space = Box(np.array([-np.inf, -1.0, 0.0]), np.array([np.inf, 0.5, 9.0]), dtype=np.float64)

    space = make(Free, action_limit=2.0).single_action_space
    assert space == Box(np.array([-2.0, -1.0, 0.0]), np.array([2.0, 0.5, 2.0]), dtype=np.float64)


def test_relative_noise_of_limited_actions_is_measured_with_these() -> None:
    """In one step, the spread of Counter's second reading is that of its action; the first counts the steps."""

    class Brief(Counter):
        def __init__(self) -> None:
            super().__init__(length=50)

    seen = {}
    for limit in (None, 2.0):
        envs = make(Brief, 400, relative_noise=0.5, action_limit=limit, seed=0)
        seen[limit] = np.std(envs.reset()[0][:, 1])
    # Uniform on [1, 5] and on [1, 2]; one reading in 51 is the 0 of a reset.
    assert 0.8 < seen[None] / (0.5 * 4 / 12**0.5) < 1.25
    assert 0.8 < seen[2.0] / (0.5 * 1 / 12**0.5) < 1.4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ("CartPole-v1", 1.0),
            r"action_limit=1 needs actions that are real numbers in a Box, .*Discrete\(2\); leave it out",
        ),
        (("Hopper-v5", 0.0), "action_limit .* greater than 0 and finite, got 0"),
        (("Hopper-v5", float("nan")), "action_limit .* greater than 0 and finite, got nan"),
        ((Counter, 0.5), r"action_limit=0.5 leaves no range of the actions .*Box\(1.0, 5.0.*; give a larger limit"),
    ],
)
def test_where_a_limit_cannot_apply(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make(given[0], action_limit=given[1])


def test_an_argument_that_the_environment_does_not_have_is_named() -> None:
    for id in ("Hopper-v5", "Pendulum-v1"):
        with pytest.raises(UsageError, match=f"nosuch: {id} has no such argument"):
            make(id, nosuch=1)


def test_noise_has_the_right_size_and_leaves_the_environment_alone() -> None:
    clean, noisy = Counter(), ObservationNoise(Counter(), 0.3)
    actions = [2.0] * 3000
    difference = _run(noisy, actions) - _run(clean, actions)
    assert difference.shape == (3001, 2)
    assert (difference != 0).all(), "every reading, the first included"
    assert abs(difference.mean()) < 0.02
    assert abs(difference.std() - 0.3) < 0.01
    assert abs(np.corrcoef(difference.T)[0, 1]) < 0.06
    assert noisy.observation_space == Box(-np.inf, np.inf, (2,), np.float64)
    # The environment's own random stream is where it would be without noise.
    plain = gymnasium.make("Hopper-v5")
    wrapped = ObservationNoise(gymnasium.make("Hopper-v5"), 0.1)
    plain.reset(seed=5)
    wrapped.reset(seed=5)
    np.testing.assert_array_equal(plain.reset()[0], wrapped.env.reset()[0])


@pytest.mark.parametrize("id", ["Pendulum-v1", "CartPole-v1", "MountainCarContinuous-v0"])
def test_relative_noise_on_classic_controls_positions(id: str) -> None:
    with (
        closing(make(id, 2, observe="positions", relative_noise=0.1)) as noisy,
        closing(make(id, 2, observe="positions")) as plain,
    ):
        seen, true = (envs.reset(seed=0)[0] for envs in (noisy, plain))
    assert seen.shape == true.shape and (seen != true).all()


def test_relative_noise_is_in_each_readings_own_units() -> None:
    """Seen through two coordinates of which one moves a hundred times as far as the other."""
    rows = [
        make("Hopper-v5", n, observe=(0, 7), relative_noise=sigma, seed=3)
        for n, sigma in ((50, 0.0), (50, 0.5), (1, 0.5))
    ]
    clean, noisy, alone = (envs.reset(seed=range(envs.num_envs))[0] for envs in rows)
    np.testing.assert_array_equal(noisy[0], alone[0])  # however many there are
    spread = (noisy - clean).std(axis=0)
    random = make("Hopper-v5", 1, observe=(0, 7))
    random.reset(seed=0)
    random.action_space.seed(1)
    seen = []
    for number in range(3000):
        reading, _, terminated, *_ = random.step(random.action_space.sample())
        seen.append(reading[0])
        if terminated[0]:
            random.reset(seed=[number], options={"reset_mask": np.ones(1, bool)})
    np.testing.assert_allclose(spread, 0.5 * np.std(seen, axis=0), rtol=0.3)
    assert spread[1] > 20 * spread[0]
    with pytest.raises(UsageError, match="give only one"):
        make("Hopper-v5", relative_noise=0.1, obs_noise=0.1)
    with pytest.raises(UsageError, match="relative_noise must be 0 or more"):
        make("Hopper-v5", relative_noise=-0.1)


def test_an_environment_that_fails_while_relative_noise_is_measured_is_named() -> None:
    class Hangs(Counter):
        def step(self, action: Any) -> Any:
            time.sleep(60)

    made: list[Counter] = []

    def second_is_missing() -> Counter:
        made.append(Counter())
        if len(made) == 2:
            raise OSError("no second robot")
        return made[-1]

    with pytest.raises(EnvironmentFailure, match=r"raised RuntimeError: the gripper fell off .* in 3 of 3 episodes"):
        make(lambda: Counter(bad_step=1, bad="raise"), relative_noise=0.1)
    with pytest.raises(EnvironmentFailure, match="took longer than its step_timeout"):
        make(Hangs, relative_noise=0.1, step_timeout=0.3)
    with pytest.raises(EnvironmentFailure, match="raised OSError while being made: no second robot"):
        make(second_is_missing, relative_noise=0.1)


def test_noise_keeps_single_precision_and_turns_integers_into_floats() -> None:
    env = ObservationNoise(gymnasium.make("CartPole-v1"), 0.1)
    observation, _ = env.reset(seed=0)
    assert observation.dtype == env.observation_space.dtype == np.float32
    assert observation in env.observation_space
    whole = Counter()
    whole.observation_space = Box(0, 9, (2,), np.int64)
    assert ObservationNoise(whole, 0.1).observation_space.dtype == np.float64


def test_latency_repeats_the_reset_s_reading_first() -> None:
    env = ObservationLatency(Counter(), 2)
    for _ in range(2):  # the second episode must not see the first one's readings
        assert _run(env, [1.0] * 5)[:, 0].tolist() == [0, 0, 0, 1, 2, 3]


def test_action_latency_executes_the_null_action_first() -> None:
    env = ActionLatency(Counter(), 2)
    for _ in range(2):
        # 3 is the middle of the action space [1, 5].
        assert _run(env, [1.5, 2.5, 4.5, 5.0])[:, 1].tolist() == [0, 3, 3, 1.5, 2.5]


def test_action_latency_does_not_round_actions() -> None:
    env = ActionLatency(Counter(), 1)
    env.reset(seed=0)
    third = np.array([4 / 3])
    env.step(third)
    assert env.step(third)[0][1] == 4 / 3


def test_latency_of_discrete_spaces() -> None:
    seen = ObservationLatency(DiscreteCounter(), 1)
    assert [seen.reset(seed=0)[0], *(seen.step(1)[0] for _ in range(3))] == [0, 0, 1, 2]
    late = ActionLatency(DiscreteCounter(), 1)
    late.reset(seed=0)
    counter: Any = late.unwrapped
    executed = []
    for action in (3, 2):
        late.step(action)
        executed.append(counter.executed)
    assert executed == [1, 3], "the first action of the space stands in"


def test_dropout_repeats_whole_readings_at_the_right_rate() -> None:
    env = ObservationDropout(Counter(), 0.25)
    seen = _run(env, [2.0] + [3.0, 4.0] * 2000)
    assert seen[0].tolist() == [0, 0]
    lost = seen[1:, 0] != np.arange(1, len(seen))
    assert abs(lost.mean() - 0.25) < 0.03
    np.testing.assert_array_equal(seen[1:][lost], seen[:-1][lost], err_msg="the last delivered one, all of it")


def test_dropout_always_delivers_the_reset() -> None:
    env = ObservationDropout(Counter(), 0.99)
    for seed in range(20):
        assert _run(env, [1.0] * 3, seed)[0].tolist() == [0, 0]


@pytest.mark.parametrize("wrap", [lambda env: ObservationNoise(env, 0.5), lambda env: ObservationDropout(env, 0.5)])
def test_the_seed_decides_the_disturbance(wrap: Callable[[gymnasium.Env], gymnasium.Env]) -> None:
    actions = [1.0] * 30
    env = wrap(Counter())
    first, again = _run(env, actions, 7), _run(env, actions, 7)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, _run(wrap(Counter()), actions, 7))
    assert (first != _run(env, actions, 8)).any()
    _run(env, actions, 7)
    onward = _run(env, actions, None)
    assert (first != onward).any(), "without a seed the stream goes on"


def test_noise_and_dropout_draw_from_different_streams() -> None:
    disturbances = Noise(1.0), Dropout(0.5)
    for disturbance in disturbances:
        disturbance.attach(1, Counter.observation_space, Counter.action_space)
        disturbance.start(np.array([0]), [3], np.zeros((1, 2)))
    own = seeding.np_random(3)[0]
    seeds: list[Any] = [
        generator.bit_generator.seed_seq for generator in (*(d._generators[0] for d in disturbances), own)
    ]
    assert len({tuple(seed.generate_state(4)) for seed in seeds}) == 3


def test_wrappers_can_be_made_again_from_their_spec() -> None:
    env = gymnasium.make("CartPole-v1")
    env = ObservationDropout(ObservationLatency(ObservationNoise(ObserveOnly(env, (0, 2)), 0.1), 2), 0.3)
    env = ActionLatency(env, 1)
    assert env.spec is not None
    again = gymnasium.make(env.spec)
    for step_seen in zip(_cart(env), _cart(again), strict=True):
        np.testing.assert_array_equal(*step_seen)


def _cart(env: gymnasium.Env) -> list[np.ndarray]:
    return [env.reset(seed=1)[0], *(env.step(step % 2)[0] for step in range(8))]


# -- single and vector are the same ------------------------------------------------------------------------------------

_PAIRS: list[tuple[Callable[[gymnasium.Env], gymnasium.Env], Callable[[], Disturbance]]] = [
    (lambda env: ObserveOnly(env, [3, 1]), lambda: Selection([3, 1])),
    (lambda env: ObservationNoise(env, 0.2), lambda: Noise(0.2)),
    (lambda env: ObservationLatency(env, 3), lambda: Latency(3)),
    (lambda env: ActionLatency(env, 2), lambda: Delay(2)),
    (lambda env: ObservationDropout(env, 0.4), lambda: Dropout(0.4)),
]


@settings(max_examples=15, deadline=None)
@given(
    pairs=st.lists(st.sampled_from(_PAIRS), min_size=1, max_size=3), seeded=st.booleans(), seed=st.integers(0, 10**6)
)
def test_row_of_a_wrapped_batch_equals_the_wrapped_environment(pairs: Any, seeded: bool, seed: int) -> None:
    """In any order and number, across resets with and without seeds, while other rows wait finished."""
    rows = 3
    singles: list[gymnasium.Env] = [gymnasium.make("Hopper-v5", max_episode_steps=12) for _ in range(rows)]
    batch: Any = MujocoBatch("Hopper-v5", rows, max_episode_steps=12, threads=1)
    for single, vector in pairs:
        if batch.single_observation_space.shape[0] < 4 and single is _PAIRS[0][0]:
            continue
        singles = [single(env) for env in singles]
        batch = DisturbedBatch(batch, vector())
    random = np.random.default_rng(seed)
    seen, _ = batch.reset(seed=seed)
    np.testing.assert_array_equal(seen, [env.reset(seed=seed + row)[0] for row, env in enumerate(singles)])
    assert seen in batch.observation_space
    last, waited = seen, np.zeros(rows, int)
    for step in range(40):
        actions = random.uniform(-1, 1, (rows, 3)).astype(np.float32)
        seen, _, terminated, truncated, _ = batch.step(actions)
        for row in range(rows):
            expected = last[row] if waited[row] else singles[row].step(actions[row])[0]
            np.testing.assert_array_equal(seen[row], expected)
        waited[terminated | truncated] += 1
        ready = waited > np.arange(rows)  # some rows wait a while for their reset
        if ready.any():
            seeds = [seed + step + row if seeded else None for row in range(rows)]
            seen, _ = batch.reset(seed=seeds, options={"reset_mask": ready})
            for row in np.flatnonzero(ready):
                np.testing.assert_array_equal(seen[row], singles[row].reset(seed=seeds[row])[0])
            waited[ready] = 0
        last = seen


def test_make_applies_the_disturbances_in_the_documented_order() -> None:
    envs = make("Hopper-v5", 2, observe="0,4,1", obs_noise=0.1, obs_latency=2, act_latency=1, dropout=0.3, seed=5)
    single: gymnasium.Env = ObserveOnly(gymnasium.make("Hopper-v5"), (0, 4, 1))
    single = ObservationDropout(ObservationLatency(ObservationNoise(single, 0.1), 2), 0.3)
    single = ActionLatency(single, 1)
    np.testing.assert_array_equal(envs.reset()[0][1], single.reset(seed=6)[0])
    for step in range(8):
        action = np.full(3, 0.1 * step)
        np.testing.assert_array_equal(envs.step(np.stack([action] * 2))[0][1], single.step(action)[0])


def test_a_disturbance_refuses_a_batch_that_resets_itself() -> None:
    with pytest.raises(UsageError, match=r"AutoresetMode\.DISABLED and wrap Autoreset"):
        DisturbedBatch(SyncVectorEnv([Counter]), Noise(0.1))


# -- failure guard -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["observation", "reward"])
def test_guard_ends_an_episode_at_a_number_that_is_not_finite(bad: str) -> None:
    env = FailureGuard(Counter(bad_step=3, bad=bad))
    assert env.reset(seed=0)[1] == {"failed": False}
    assert [env.step([2.0])[4]["failed"] for _ in range(2)] == [False, False]
    for _ in range(3):  # then it stays ended
        observation, reward, terminated, truncated, info = env.step([4.0])
        assert observation.tolist() == [2, 2]
        assert (reward, terminated, truncated, info) == (0.0, False, True, {"failed": True})
    assert env.unwrapped.stepped == 3  # type: ignore
    env.reset()
    assert env.step([1.0])[4] == {"failed": False}


def test_guard_remembers_an_observation_that_is_overwritten() -> None:
    counter = Counter(bad_step=2)
    buffer, step = np.zeros(2), counter.step

    def step_into_the_buffer(action: Any) -> Any:
        observation, *rest = step(action)
        buffer[:] = observation
        return buffer, *rest

    counter.step = step_into_the_buffer
    env = FailureGuard(counter)
    env.reset(seed=0)
    env.step([2.0])
    assert env.step([2.0])[0].tolist() == [1, 2]


def _break_position(positions: Any, velocities: Any, warnings: Any) -> None:
    positions[1] = np.nan


def _break_velocity(positions: Any, velocities: Any, warnings: Any) -> None:
    velocities[0] = 1e15


def _break_warning(positions: Any, velocities: Any, warnings: Any) -> None:
    warnings[2] = 1


@pytest.mark.parametrize("break_it", [_break_position, _break_velocity, _break_warning])
@pytest.mark.parametrize("id", ["Hopper-v5", "HalfCheetah-v5"])
def test_guard_and_batch_agree_on_a_diverged_simulation(break_it: Callable[..., None], id: str) -> None:
    guarded, batch = FailureGuard(gymnasium.make(id)), MujocoBatch(id, 1)
    guarded.reset(seed=0)
    batch.reset(seed=0)
    still = np.zeros_like(batch.action_space.sample())
    good = guarded.step(still[0])[0]
    batch.step(still)
    simulation: Any = guarded.unwrapped
    break_it(simulation.data.qpos, simulation.data.qvel, simulation.data.warning.number)
    break_it(batch.simulation.qpos[0], batch.simulation.qvel[0], batch.simulation.warning[0, :, 1])
    for _ in range(2):
        ours, theirs = batch.step(still), guarded.step(still[0])
        np.testing.assert_array_equal(theirs[0], good)
        np.testing.assert_array_equal(ours[0][0], good)
        assert [column[0] for column in ours[1:4]] == list(theirs[1:4]) == [0.0, False, True]
        assert ours[4]["failed"][0]
        assert theirs[4]["failed"]
    assert not guarded.reset(seed=0)[1]["failed"]
    assert not guarded.step(still[0])[4]["failed"]


def test_guard_notices_time_running_backwards() -> None:
    env = FailureGuard(gymnasium.make("Swimmer-v5"))
    env.reset(seed=0)
    for _ in range(3):
        assert not env.step(np.zeros(2))[4]["failed"]
    simulation: Any = env.unwrapped
    simulation.data.time = 0.0
    assert env.step(np.zeros(2))[4]["failed"]


def test_guard_refuses_a_reset_that_is_not_finite() -> None:
    env = Counter()
    env.reset = lambda **_: (np.array([np.nan, 0]), {})  # type: ignore
    with pytest.raises(EnvironmentFailure, match="reset to an observation that is not finite"):
        FailureGuard(env).reset()


# -- make --------------------------------------------------------------------------------------------------------------


VISIBLE = {"InvertedPendulum-v5": [0, 1], "Swimmer-v5": [0, 1, 2], "Hopper-v5": [*range(5)], "Walker2d-v5": [*range(8)]}
"""The paper's masks."""


@pytest.mark.parametrize("task", TASKS.values(), ids=str)
def test_paper_tasks_know_their_masks_and_limits(task: Any) -> None:
    envs, visible = make(task.id, 2), VISIBLE[task.id]
    assert isinstance(envs.unwrapped, MujocoBatch)
    full = gymnasium.make(task.id)
    np.testing.assert_array_equal(envs.reset(seed=1)[0][1], full.reset(seed=2)[0][visible])
    assert sensors(envs)[0] == visible
    assert envs.single_observation_space.shape == (len(visible),)
    assert envs.spec is not None
    assert envs.spec.max_episode_steps == task.max_episode_steps
    assert make(task.id, observe="all").single_observation_space == full.observation_space


def test_the_paper_s_protocol() -> None:
    rows = {
        task.id: (
            task.max_episode_steps,
            task.batch_samples,
            task.exploration_episodes,
            task.iterations,
        )
        for task in TASKS.values()
    }
    assert rows == {
        "InvertedPendulum-v5": (200, 2_000, 100, 200),
        "Swimmer-v5": (500, 10_000, 50, 500),
        "Hopper-v5": (1000, 10_000, 100, 500),
        "Walker2d-v5": (1000, 10_000, 100, 500),
    }


def test_the_mask_follows_the_observation_structure() -> None:
    envs = make("Hopper-v5", exclude_current_positions_from_observation=False)
    assert sensors(envs)[0] == list(range(6)), "the position along the track is observed as well"
    assert not {"visible", "observe", "mask"} & {field.name for field in fields(Task)}, "there is one source only"


@pytest.mark.parametrize(
    ("id", "positions"),
    [
        ("CartPole-v1", [0, 2]),
        ("MountainCar-v0", [0]),
        ("MountainCarContinuous-v0", [0]),
        ("Pendulum-v1", [0, 1]),
        ("Acrobot-v1", [0, 1, 2, 3]),
        ("Ant-v5", list(range(13))),
        ("Humanoid-v5", list(range(22))),
        ("rpsp/HalfCheetah-v5", list(range(8))),
    ],
)
def test_positions_of_other_environments(id: str, positions: list[int]) -> None:
    envs, full = make(id, observe="positions"), gymnasium.make(id)
    np.testing.assert_array_equal(envs.reset(seed=3)[0][0], full.reset(seed=3)[0][positions])
    assert make(id).single_observation_space == full.observation_space, "unless told otherwise everything is seen"


@pytest.mark.parametrize("observe", ["0, 2", [0, 2], (0, 2), np.array([0, 2]), range(0, 3, 2)])
def test_observe_takes_indices_in_any_form(observe: Any) -> None:
    assert make("CartPole-v1", observe=observe).single_observation_space.shape == (2,)


def test_short_names_mean_the_long_ones() -> None:
    long, short = make("Hopper-v5", obs_noise=0.1, obs_latency=1), make("Hopper-v5", noise=0.1, latency=1)
    np.testing.assert_array_equal(long.reset(seed=0)[0], short.reset(seed=0)[0])
    np.testing.assert_array_equal(long.step(np.ones((1, 3)))[0], short.step(np.ones((1, 3)))[0])


def test_seed_is_that_of_the_first_reset_only() -> None:
    envs = make("Hopper-v5", 3, seed=40)
    first = envs.reset()[0]
    np.testing.assert_array_equal(first, make("Hopper-v5", 3).reset(seed=40)[0])
    assert (first != envs.reset()[0]).any()
    given = make("Hopper-v5", 3, seed=40)
    np.testing.assert_array_equal(given.reset(seed=[42, 41, 40])[0], first[::-1])  # type: ignore


@pytest.mark.parametrize("id", ["CartPole-v1", "Hopper-v5"])
def test_finished_rows_wait_and_masked_resets_restart_them(id: str) -> None:
    envs = make(id, 2, max_episode_steps=4, dropout=0.3, autoreset_mode=AutoresetMode.DISABLED)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED
    envs.reset(seed=0)
    actions = np.zeros_like(envs.action_space.sample())
    envs.step(actions)
    envs.step(actions)
    options = {"reset_mask": np.array([False, True])}
    envs.reset(seed=np.array([7, 9]), options=options)  # type: ignore
    assert "reset_mask" in options, "the caller's options stay as they are"
    envs.step(actions)
    last = envs.step(actions)
    assert last[3].tolist() == [True, False]
    for _ in range(2):
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        np.testing.assert_array_equal(observations[0], last[0][0])
        assert rewards[0] == 0
        assert truncated[0]
        assert not terminated[0]
        assert infos["failed"].tolist() == [False, False]
        assert infos["failed"].dtype == np.bool_
    fresh, infos = envs.reset(seed=[7, 9], options={"reset_mask": np.array([True, True])})  # type: ignore
    singles = [make(id).reset(seed=seed)[0][0] for seed in (7, 9)]
    np.testing.assert_array_equal(fresh, singles)
    assert infos["failed"].tolist() == [False, False]
    assert not envs.step(actions)[3].any()


def test_any_factory_and_any_module_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    envs = make(lambda: Counter(length=50), 2, max_episode_steps=3, observe=[0])
    envs.reset(seed=0)
    assert [envs.step(np.full((2, 1), 2.0))[3].all() for _ in range(3)] == [False, False, True]
    (tmp_path / "my_lab.py").write_text(
        "import gymnasium\ngymnasium.register('MyCart-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert make("my_lab:MyCart-v0", observe="1").reset(seed=0)[0].shape == (1, 1)


def test_discrete_observations_stay_discrete() -> None:
    envs = make(DiscreteCounter, 2, latency=1, dropout=0.2)
    assert envs.single_observation_space == Discrete(1000)
    envs.reset(seed=0)
    assert envs.step(np.array([1, 1]))[0] in envs.observation_space
    assert make("FrozenLake-v1").reset(seed=0)[0].shape == (1,)


def test_rendering_uses_gymnasium_s_own_environments() -> None:
    envs = make("Hopper-v5", render_mode="rgb_array")
    assert isinstance(envs.unwrapped, SerialBatch)
    assert envs.render_mode == "rgb_array"
    np.testing.assert_array_equal(envs.reset(seed=0)[0], make("Hopper-v5").reset(seed=0)[0])


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_autoreset_modes_are_gymnasium_s(mode: AutoresetMode) -> None:
    ours = make("CartPole-v1", 3, autoreset_mode=mode)
    theirs = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    np.testing.assert_array_equal(ours.reset(seed=0)[0], theirs.reset(seed=0)[0])
    random = np.random.default_rng(0)
    for _ in range(80):
        actions = random.integers(0, 2, 3)
        our, their = ours.step(actions), theirs.step(actions)
        for our_column, their_column in zip(our[:4], their[:4], strict=True):
            np.testing.assert_array_equal(our_column, their_column)
        assert our[4]["failed"].tolist() == [False] * 3
        assert ("final_obs" in our[4]) == ("final_obs" in their[4])


def test_an_ordinary_loop_goes_through_many_episodes() -> None:
    envs = make(lambda: Counter(length=3), 2)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP, "Gymnasium's own default"
    envs.reset(seed=0)
    seen = [envs.step(np.full((2, 1), 2.0)) for _ in range(8)]
    assert [step[0][0, 0] for step in seen] == [1, 2, 3, 0, 1, 2, 3, 0]
    assert [bool(step[2].all()) for step in seen] == [False, False, True, False] * 2


def test_autoreset_reports_a_failure_once() -> None:
    for mode, seen in ((AutoresetMode.NEXT_STEP, "failed"), (AutoresetMode.SAME_STEP, "final_info")):
        envs = Autoreset(SerialBatch([lambda: Counter(bad_step=2)]), mode)
        envs.reset(seed=0)
        actions = np.full((1, 1), 2.0)
        assert not envs.step(actions)[4]["failed"][0]
        infos = envs.step(actions)[4]
        assert (infos[seen] if seen == "failed" else infos[seen]["failed"])[0]
        assert not envs.step(actions)[4]["failed"][0]


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs must be a whole number, 1 or more, got 0"),
        ({"obs_noise": -0.1}, r"obs_noise .* must be 0 or more, got -0\.1; give a standard deviation"),
        ({"noise": float("nan")}, "obs_noise .* must be 0 or more, got nan"),
        ({"obs_latency": -1}, "obs_latency .* 0 or more, got -1"),
        ({"act_latency": -2}, "act_latency .* 0 or more, got -2"),
        ({"dropout": 1.0}, r"dropout .* below 1, got 1\.0; give the fraction"),
        ({"dropout": -0.1}, r"dropout .* at least 0 .* got -0\.1"),
        ({"noise": 0.1, "obs_noise": 0.1}, r"obs_noise=0\.1 and noise=0\.1 mean the same; give only one"),
        ({"latency": 0, "obs_latency": 1}, "obs_latency=1 and latency=0 mean the same"),
        ({"observe": "0,4"}, "observe='0,4' does not fit an observation of 4 numbers; .* from 0 to 3"),
        ({"observe": [-1]}, "observe='-1' does not fit"),
        ({"observe": []}, "observe='' does not fit .* one or more"),
        ({"observe": "velocities"}, "observe='velocities' is not understood; give all, positions, pixels, or"),
        ({"max_episode_steps": 0}, "max_episode_steps must be a whole number, 1 or more, got 0"),
        ({"seed": -3}, "seed must be a whole number, 0 or more, got -3"),
        ({"autoreset_mode": "later"}, "autoreset_mode='later' is not one of Gymnasium's; give 'NextStep'"),
    ],
)
def test_bad_arguments_name_field_value_and_remedy(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("CartPole-v1", **arguments)


def test_fractions_are_refused_where_whole_numbers_are_meant() -> None:
    # The checks themselves: `make` is annotated, and the tests check annotations first.
    with pytest.raises(UsageError, match=r"num_envs must be a whole number, 1 or more, got 2\.5"):
        _check_at_least("num_envs", 2.5, 1)
    with pytest.raises(UsageError, match=r"obs_latency must be a whole number, 0 or more, got 1\.5"):
        _checked_steps("obs_latency", 1.5)


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("Hoper-v5", "id='Hoper-v5' is not a registered environment; did you mean Hopper-v5"),
        ("hopper-v5", "did you mean Hopper-v5"),
        ("Hopper-v77", "did you mean Hopper-v5"),
        ("Qwzx", r"id='Qwzx' is not a registered environment; gymnasium\.pprint_registry\(\) lists .* module:Env-v0"),
        ("no_such_module_at_all:Env-v0", "names a module that cannot be imported .*no_such_module_at_all"),
    ],
)
def test_unknown_ids(id: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(id)


def _with_spaces(observation: gymnasium.Space | None = None, action: gymnasium.Space | None = None) -> Counter:
    env = Counter()
    env.observation_space = observation or env.observation_space
    env.action_space = action or env.action_space
    return env


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"observation": Dict(a=Text(3))}, r"observations \(a\): are in a Text space"),
        ({"observation": Box(-1, 1, (0,))}, "observations: are in .*, which is empty; give one or more numbers"),
        ({"action": Sequence(Discrete(3))}, r"actions: are in a Sequence space"),
    ],
)
def test_unsupported_spaces(spaces: dict[str, gymnasium.Space], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(lambda: _with_spaces(**spaces))


@pytest.mark.parametrize("arguments", [{"observe": "0"}, {"noise": 0.1}])
def test_what_a_discrete_observation_cannot_have(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"needs observations in a 1-D Box, .* Discrete\(1000\)"):
        make(DiscreteCounter, **arguments)


def test_positions_that_nobody_knows() -> None:
    with pytest.raises(UsageError, match=r"observe='positions' is not known for Reacher-v5; give the indices"):
        make("Reacher-v5", observe="positions")
    with pytest.raises(UsageError, match="not known for this environment"):
        make(Counter, observe="positions")


def test_an_environment_that_raises_is_named() -> None:
    # An argument that there is not is a mistake of the caller, see above; a value that does not fit is told as it was.
    with pytest.raises(EnvironmentFailure, match=r"Hopper-v5 raised TypeError while being made: .*frame_skip"):
        make("Hopper-v5", frame_skip="three")

    def no_robot() -> gymnasium.Env:
        raise OSError("no robot on /dev/ttyUSB0")

    with pytest.raises(EnvironmentFailure, match=r"raised OSError while being made: no robot .*test_make\.py, line"):
        make(no_robot)
    envs = make(lambda: Counter(bad_step=1, bad="raise"))
    envs.reset(seed=0)
    with pytest.raises(EnvironmentFailure, match="raised RuntimeError while being stepped: the gripper fell off"):
        envs.step(np.full((1, 1), 2.0))


def test_system_exit_is_a_failure_of_the_environment_and_an_interrupt_is_none() -> None:
    class Leaves(Counter):
        error: type[BaseException] = SystemExit

        def step(self, action: Any) -> Any:
            raise self.error(3)

    envs = make(Leaves)
    envs.reset(seed=0)
    with pytest.raises(EnvironmentFailure, match="raised SystemExit while being stepped: 3"):
        envs.step(np.full((1, 1), 2.0))
    Leaves.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        envs.step(np.full((1, 1), 2.0))

    def gone() -> gymnasium.Env:
        sys.exit("no licence")

    with pytest.raises(EnvironmentFailure, match="raised SystemExit while being made: no licence"):
        make(gone)


def test_an_exception_ends_its_row_alone_and_the_environment_is_made_anew() -> None:
    made: list[Counter] = []

    def factory() -> Counter:
        made.append(Counter(bad_step=2 if len(made) == 1 else None, bad="raise"))
        return made[-1]

    envs = SerialBatch([factory, factory])
    envs.end_raising_episodes(True)
    envs.reset(seed=0)
    for _ in range(2):
        observations, rewards, terminated, truncated, infos = envs.step(np.full((2, 1), 3.0))
    assert truncated.tolist() == infos["failed"].tolist() == [False, True] and not terminated.any()
    assert infos["raised"][0] is None and infos["raised"][1].startswith("RuntimeError: the gripper fell off (")
    np.testing.assert_array_equal(observations, [[2, 3], [1, 3]])  # the last good one
    assert rewards.tolist() == [1, 0] and len(made) == 2
    envs.reset(seed=1, options={"reset_mask": np.array([False, True])})
    assert len(made) == 3
    for _ in range(4):
        *_, infos = envs.step(np.full((2, 1), 3.0))
    assert not infos["failed"].any() and "raised" not in infos


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("reset", lambda returned: returned[0], r"Odd\.reset returned one ndarray; it must return observation, info"),
        ("reset", lambda returned: (returned[0][:1], {}), r"of shape \(1,\), and its observation_space is Box.*agree"),
        (
            "step",
            lambda returned: (*returned[:3], {}),
            "returned 4 values; it must return observation, reward, terminated",
        ),
        (
            "step",
            lambda returned: (returned[0], np.ones(1), *returned[2:]),
            r"the reward array\(\[1\.\]\); it must be one",
        ),
        ("step", lambda returned: (*returned[:4], None), "returned the info None; it must be a dictionary"),
    ],
)
@pytest.mark.parametrize("limit", [None, 100])  # of a time limit, which takes apart what is returned before we can
def test_what_an_environment_returns_in_another_form_is_named(
    method: str, change: Callable[[Any], Any], message: str, limit: int | None
) -> None:
    class Odd(Counter): ...

    setattr(Odd, method, lambda self, *args, **kwargs: change(getattr(Counter, method)(self, *args, **kwargs)))
    envs = make(Odd, max_episode_steps=limit)
    with pytest.raises(UsageError, match=message):
        envs.reset(seed=0)
        envs.step(np.full((1, 1), 2.0))


def test_a_symbol_that_is_none_is_named() -> None:
    class Odd(DiscreteCounter):
        observation_space = Discrete(2)

    envs = make(Odd)
    envs.reset(seed=0)
    with pytest.raises(UsageError, match=r"Odd returned the observation 2 .*Discrete\(2\)"):
        for _ in range(3):
            envs.step(np.zeros(1, np.int64))


def test_environments_must_be_several() -> None:
    one = Counter()
    make(lambda: one, num_envs=1)
    with pytest.raises(UsageError, match=r"returned the same .*Counter.* twice.*a new one at every call"):
        make(lambda: one, num_envs=2)


def test_wrong_calls_are_not_blamed_on_the_environment() -> None:
    envs = make("CartPole-v1", 2)
    with pytest.raises(UsageError, match="reset_mask"):
        envs.reset(options={"reset_mask": np.array([False, False])})
    with pytest.raises(UsageError, match="1 entries for 2"):
        envs.reset(seed=[1])  # type: ignore
    with pytest.raises(UsageError, match="g cannot be passed on to a factory"):
        make(Counter, g=9.81)
