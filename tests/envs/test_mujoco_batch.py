"""MujocoBatch against Gymnasium's own environments, step for step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rpsp.envs.make  # registers rpsp/Hopper-v5 and the others
from rpsp.envs.mujoco_batch import MujocoBatch
from rpsp.envs.mujoco_formulas import BATCHED_IDS
from rpsp.envs.rows import row_seeds, rows_to_reset
from rpsp.errors import UsageError

assert rpsp.envs.make


@pytest.fixture(autouse=True)
def _away_from_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to MUJOCO_LOG.TXT where it stands


def _same(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    for name, our, their in zip(("observation", "reward", "terminated", "truncated"), ours, theirs, strict=False):
        np.testing.assert_array_equal(our, their, err_msg=name)


def _compare_with_gymnasium(id: str, steps: int, dtype: type = np.float32, **kwargs: Any) -> None:
    """Every row against an environment of its own, reset whenever it ends: now with a seed, now without."""
    num_envs = 4
    singles = [gymnasium.make(id, disable_env_checker=True, **kwargs) for _ in range(num_envs)]
    batch = MujocoBatch(id, num_envs, threads=2, **kwargs)
    assert batch.single_observation_space == singles[0].observation_space
    assert batch.single_action_space == singles[0].action_space
    assert isinstance(batch.single_action_space, Box)
    low, high = batch.single_action_space.low, batch.single_action_space.high
    random = np.random.default_rng(0)

    observations, _ = batch.reset(seed=11)
    _same((observations,), (np.stack([env.reset(seed=11 + row)[0] for row, env in enumerate(singles)]),))
    endings = 0
    for step in range(steps):
        actions = random.uniform(low, high, (num_envs, *low.shape)).astype(dtype)
        ours = batch.step(actions)
        theirs = [env.step(action) for env, action in zip(singles, actions, strict=True)]
        _same(ours, tuple(np.array(column) for column in list(zip(*theirs, strict=True))[:4]))
        assert not ours[4]["failed"].any()
        ended = ours[2] | ours[3]
        if ended.any():
            endings += ended.sum()
            seeds = [100 * step + row if step % 2 else None for row in range(num_envs)]
            observations, _ = batch.reset(seed=seeds, options={"reset_mask": ended})
            for row in np.flatnonzero(ended):
                _same((observations[row],), singles[row].reset(seed=seeds[row])[:1])
    assert endings > 0, "the comparison never crossed a reset"


@pytest.mark.parametrize("id", BATCHED_IDS)
def test_equals_gymnasium_bit_for_bit(id: str) -> None:
    _compare_with_gymnasium(id, 300, max_episode_steps=70)


@pytest.mark.parametrize(
    ("id", "kwargs"),
    [
        ("InvertedPendulum-v5", {"reset_noise_scale": 0.1, "frame_skip": 3}),
        ("Hopper-v5", {"healthy_z_range": (1.21, 2), "healthy_angle_range": (-5, 5), "healthy_state_range": (-3, 3)}),
        ("Swimmer-v5", {"forward_reward_weight": 2.5, "exclude_current_positions_from_observation": False}),
        ("HalfCheetah-v5", {"ctrl_cost_weight": 0.7, "reset_noise_scale": 0.3}),
        ("Hopper-v5", {"terminate_when_unhealthy": False, "exclude_current_positions_from_observation": False}),
        ("Hopper-v5", {"healthy_reward": 3.0, "healthy_angle_range": (-0.05, 0.1), "healthy_state_range": (-5.0, 5.0)}),
        ("Hopper-v5", {"healthy_z_range": (0.5, 1.24), "healthy_angle_range": (-9.0, 9.0), "frame_skip": 1}),
        ("Walker2d-v5", {"healthy_z_range": (1.0, 1.3), "forward_reward_weight": 3.0}),
        ("Ant-v5", {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.1}),
        ("Ant-v5", {"contact_force_range": (-0.2, 0.3), "healthy_z_range": (0.5, 0.9), "main_body": "torso"}),
        ("Ant-v5", {"main_body": 4, "exclude_current_positions_from_observation": False}),
    ],
)
def test_equals_gymnasium_with_the_task_s_own_settings(id: str, kwargs: dict[str, Any]) -> None:
    _compare_with_gymnasium(id, 150, max_episode_steps=60, **kwargs)


WEIGHTS = {"forward_reward_weight": 10, "ctrl_cost_weight": 0, "healthy_reward": 0}
"""The reward of the authors' Hopper: ten times the forward velocity."""


@pytest.mark.parametrize("id", [id for id in BATCHED_IDS if id != "InvertedPendulum-v5"])
def test_equals_gymnasium_with_the_authors_reward(id: str) -> None:
    own = {"Swimmer-v5", "HalfCheetah-v5"}  # never fall, so they have no reward for being healthy
    weights = {name: weight for name, weight in WEIGHTS.items() if id not in own or name != "healthy_reward"}
    _compare_with_gymnasium(id, 120, max_episode_steps=50, **weights)


def test_the_authors_reward_is_ten_times_the_velocity() -> None:
    batch, random = MujocoBatch("Hopper-v5", 3, **WEIGHTS), np.random.default_rng(0)
    batch.reset(seed=1)
    for _ in range(5):
        before = batch.simulation.qpos[:, 0].copy()
        rewards = batch.step(random.uniform(-1, 1, (3, 3)))[1]
        way = batch.simulation.qpos[:, 0] - before
        np.testing.assert_allclose(rewards, 10 * way / 0.008, rtol=1e-12)  # 4 steps of 2 ms
        assert np.abs(rewards).min() > 0


def test_equals_gymnasium_with_double_precision_actions() -> None:
    _compare_with_gymnasium("Hopper-v5", 100, np.float64)


def _trajectory(batch: MujocoBatch) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    observations, _ = batch.reset(seed=5)
    seen = [observations]
    for _ in range(60):
        observations, rewards, terminated, truncated, _ = batch.step(random.uniform(-1, 1, batch.action_space.shape))
        seen += [observations, rewards]
        if (ended := terminated | truncated).any():
            seen.append(batch.reset(options={"reset_mask": ended})[0])
    batch.close()
    return seen


def test_threads_do_not_change_the_numbers() -> None:
    one, three = (_trajectory(MujocoBatch("Walker2d-v5", 7, threads=threads)) for threads in (1, 3))
    assert len(one) == len(three)
    for our, their in zip(one, three, strict=True):
        np.testing.assert_array_equal(our, their)


def test_time_limit_is_the_task_s_own_unless_given() -> None:
    for limit, expected in ((None, 1000), (3, 3)):
        batch = MujocoBatch("Swimmer-v5", 1, max_episode_steps=limit)
        batch.reset(seed=0)
        for step in range(1, expected + 1):
            assert batch.step(np.zeros((1, 2)))[3][0] == (step == expected)


def test_a_finished_row_waits_unsimulated_while_the_others_go_on() -> None:
    batch = MujocoBatch("InvertedPendulum-v5", 2, max_episode_steps=400)
    batch.reset(seed=0)
    push = np.array([[3.0], [0.0]])
    while not (last := batch.step(push))[2][0]:
        pass
    time = batch.simulation.time.copy()
    for _ in range(3):
        observations, rewards, terminated, truncated, infos = batch.step(push)
        np.testing.assert_array_equal(observations[0], last[0][0])
        assert (rewards[0], terminated[0], truncated[0], infos["failed"][0]) == (0.0, True, False, False)
        assert rewards[1] == 1.0
    assert batch.simulation.time[0] == time[0]
    assert batch.simulation.time[1] > time[1]


def test_masked_reset_restarts_only_the_masked_rows() -> None:
    batch = MujocoBatch("Hopper-v5", 3)
    batch.reset(seed=0)
    before = batch.step(np.ones((3, 3)))[0]
    options = {"reset_mask": np.array([False, True, False])}
    after, infos = batch.reset(seed=[9, 9, 9], options=options)
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    np.testing.assert_array_equal(after[1], gymnasium.make("Hopper-v5").reset(seed=9)[0])
    assert infos["failed"].tolist() == [False] * 3
    assert list(options) == ["reset_mask"]


def test_returned_arrays_are_the_caller_s() -> None:
    batch = MujocoBatch("Hopper-v5", 2)
    first, _ = batch.reset(seed=0)
    kept = first.copy()
    second = batch.step(np.ones((2, 3)))
    np.testing.assert_array_equal(first, kept)
    for array in second[:4]:
        array[:] = 1  # must not reach into the batch
    third = batch.step(np.ones((2, 3)))
    assert not third[2].any()
    assert not third[3].any()
    assert not (third[0] == 1).all()


def _position_nan(batch: MujocoBatch) -> None:
    batch.simulation.qpos[1, 2] = np.nan


def _velocity_huge(batch: MujocoBatch) -> None:
    batch.simulation.qvel[1, 1] = 1e12


def _time_turned_back(batch: MujocoBatch) -> None:
    batch.simulation.time[1] = -1.0


def _warning_counted(batch: MujocoBatch) -> None:
    batch.simulation.warning[1, 0, 1] = 1


@pytest.mark.parametrize("break_it", [_position_nan, _velocity_huge, _time_turned_back, _warning_counted])
def test_a_diverged_simulation_ends_the_episode(break_it: Callable[[MujocoBatch], None]) -> None:
    batch = MujocoBatch("Hopper-v5", 3)
    batch.reset(seed=0)
    good = batch.step(np.zeros((3, 3)))[0]
    break_it(batch)
    for _ in range(2):  # the second time, the row waits
        observations, rewards, terminated, truncated, infos = batch.step(np.zeros((3, 3)))
        np.testing.assert_array_equal(observations[1], good[1])
        assert infos["failed"].tolist() == truncated.tolist() == [False, True, False]
        assert not terminated.any()
        assert (rewards == 0).tolist() == [False, True, False]
    batch.reset(seed=1, options={"reset_mask": np.array([False, True, False])})
    assert not batch.step(np.zeros((3, 3)))[4]["failed"].any()


def test_an_action_that_is_not_a_number_fails_only_its_own_row() -> None:
    batch = MujocoBatch("Hopper-v5", 2)
    batch.reset(seed=0)
    assert batch.step(np.array([[0, 0, 0], [0, np.nan, 0]]))[4]["failed"].tolist() == [False, True]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_registered_batch_autoresets_like_gymnasium(mode: AutoresetMode) -> None:
    ours = gymnasium.make_vec(
        "rpsp/Hopper-v5", num_envs=3, vectorization_mode="vector_entry_point", autoreset_mode=mode, threads=2
    )
    theirs = SyncVectorEnv([lambda: gymnasium.make("Hopper-v5")] * 3, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] == mode
    np.testing.assert_array_equal(ours.reset(seed=4)[0], theirs.reset(seed=4)[0])
    random = np.random.default_rng(1)
    resets = 0
    for _ in range(120):
        actions = random.uniform(-1, 1, (3, 3)).astype(np.float32)
        our, their = ours.step(actions), theirs.step(actions)
        _same(our, their)
        ended = our[2] | our[3]
        resets += ended.sum()
        assert ("final_obs" in our[4]) == ("final_obs" in their[4])
        if "final_obs" in our[4]:
            np.testing.assert_array_equal(our[4]["_final_obs"], their[4]["_final_obs"])
            for our_final, their_final in zip(our[4]["final_obs"], their[4]["final_obs"], strict=True):
                np.testing.assert_array_equal(our_final, their_final)
            assert our[4]["final_info"]["failed"].shape == (3,)
    assert resets > 5


def test_registered_the_gymnasium_way() -> None:
    for id in BATCHED_IDS:
        batch = gymnasium.make_vec(f"rpsp/{id}", num_envs=2)
        assert isinstance(batch.unwrapped, MujocoBatch)
        assert batch.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
        assert batch.spec is not None
        assert batch.spec.max_episode_steps == gymnasium.spec(id).max_episode_steps
        assert type(gymnasium.make(f"rpsp/{id}").unwrapped) is type(gymnasium.make(id).unwrapped)
    limited = gymnasium.make_vec("rpsp/Swimmer-v5", num_envs=2, max_episode_steps=2)
    limited.reset(seed=0)
    assert [limited.step(np.zeros((2, 2)))[3].all() for _ in range(2)] == [False, True]


def test_disabled_autoreset_waits() -> None:
    batch = gymnasium.make_vec(
        "rpsp/Swimmer-v5", num_envs=2, max_episode_steps=1, autoreset_mode=AutoresetMode.DISABLED
    )
    batch.reset(seed=0)
    first = batch.step(np.ones((2, 2)))
    second = batch.step(np.ones((2, 2)))
    np.testing.assert_array_equal(first[0], second[0])
    assert second[3].all()
    assert not second[1].any()


def test_seeds_and_masks() -> None:
    assert row_seeds(None, 2) == [None, None]
    assert row_seeds(7, 3) == [7, 8, 9]
    assert row_seeds(np.int64(7), 2) == [7, 8]
    numbers = row_seeds(np.array([3, 1]), 2)
    assert numbers == [3, 1]
    assert all(type(number) is int for number in numbers)
    with pytest.raises(UsageError, match="3 entries for 2 environments"):
        row_seeds([1, 2, 3], 2)
    assert rows_to_reset(None, 2).tolist() == rows_to_reset({}, 2).tolist() == [0, 1]
    assert rows_to_reset({"reset_mask": np.array([False, True])}, 2).tolist() == [1]
    for mask in (np.array([1, 0]), np.array([True]), np.array([False, False])):
        with pytest.raises(UsageError, match=r"reset_mask.*2 booleans"):
            rows_to_reset({"reset_mask": mask}, 2)


def test_bad_arguments_say_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"cannot step 'CartPole-v1'; give one of .*Hopper-v5"):
        MujocoBatch("CartPole-v1")
    with pytest.raises(UsageError, match="num_envs must be at least 1, got 0"):
        MujocoBatch("Hopper-v5", 0)
    with pytest.raises(UsageError, match="threads must be at least 1, got 0"):
        MujocoBatch("Hopper-v5", threads=0)
    batch = MujocoBatch("Hopper-v5", 2)
    batch.reset(seed=0, options={"reset_mask": np.array([True, False])})
    with pytest.raises(gymnasium.error.ResetNeeded, match="never reset"):
        batch.step(np.zeros((2, 3)))
    batch.reset(seed=0)
    with pytest.raises(UsageError, match=r"actions have shape \(3,\); give \(2, 3\)"):
        batch.step(np.zeros(3))


def test_a_model_of_gymnasium_is_made_without_warnings(capfd, tmp_path):
    MujocoBatch("HalfCheetah-v5").close()
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())  # MuJoCo keeps a log where it runs


def test_a_model_of_the_users_own_is_warned_about(capfd):
    model = Path(gymnasium.__file__).parent / "envs/mujoco/assets/half_cheetah.xml"
    MujocoBatch("HalfCheetah-v5", xml_file=str(model)).close()
    assert "settotalmass" in capfd.readouterr().err
