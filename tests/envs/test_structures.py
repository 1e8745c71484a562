"""Layouts of structured spaces: against Gymnasium's own flattening, there and back, and what is refused."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from tests.helpers.structured import NESTED, STEERING, STRUCTURES, Structured

from rpsp.envs.make import make
from rpsp.envs.structures import Actions, MixedActions, Observations, describe, mask_size, rebuild
from rpsp.envs.vector import observation_names
from rpsp.errors import UsageError


@pytest.mark.parametrize("kind", [kind for kind in STRUCTURES if kind != "images"])
def test_rows_are_those_of_gymnasium(kind: str) -> None:
    space = STRUCTURES[kind][0]
    layout = Observations(space)
    space.seed(1)
    values = [space.sample() for _ in range(5)]
    for value in values:
        np.testing.assert_allclose(layout.flatten(value), spaces.flatten(space, value), rtol=1e-6)  # float32 or float64
        assert layout.flat.contains(layout.flatten(value))
    assert len(set(layout.names)) == layout.flat.shape[0]
    assert layout.batch_of(values[0]) == ()


def test_names_and_order_of_a_nested_structure() -> None:
    assert Observations(NESTED).names == [
        "flags[0]", "flags[1]", "gear=1", "gear=2", "gear=3",
        "imu/acc[0,0]", "imu/acc[0,1]", "imu/acc[1,0]", "imu/acc[1,1]", "imu/gyro[0]", "imu/gyro[1]", "imu/gyro[2]",
        "pair/0=0", "pair/0=1", "pair/1",
    ]  # fmt: skip
    assert Observations(Box(0, 1, (1, 2))).names == ["observation[0,0]", "observation[0,1]"]
    assert Actions(STEERING).names == ["steer[0]", "steer[1]", "gear", "lights[0]", "lights[1]"]


def test_a_batch_is_its_rows() -> None:
    layout = Observations(NESTED)
    NESTED.seed(3)
    values = [NESTED.sample() for _ in range(3)]
    batch = {
        "imu": {name: np.stack([value["imu"][name] for value in values]) for name in ("gyro", "acc")},
        "gear": np.array([value["gear"] for value in values]),
        "flags": np.stack([value["flags"] for value in values]),
        "pair": tuple(np.stack([value["pair"][i] for value in values]) for i in range(2)),
    }
    assert layout.batch_of(batch) == (3,)
    np.testing.assert_array_equal(layout.flatten(batch, (3,)), [layout.flatten(value) for value in values])


@pytest.mark.parametrize("space", [STEERING, MultiBinary(3), MultiDiscrete([[2, 3]]), Tuple((Discrete(4, start=-1),)),
                                   Dict(a=Box(-1, 1, (2, 2)), b=Box(0, 2, (), np.float64)),
                                   MultiDiscrete([3, 2], start=[1, 5])])  # fmt: skip
def test_actions_there_and_back(space: spaces.Space[Any]) -> None:
    layout = Actions(space)
    layout.flat.seed(2)
    for _ in range(20):
        row = layout.flat.sample()
        own = layout.unflatten(row)
        assert space.contains(own)
        np.testing.assert_allclose(layout.flatten(own), row, rtol=1e-6)  # boxes of float32 inside rows of float64
    rows = np.stack([layout.flat.sample() for _ in range(4)])
    np.testing.assert_allclose(layout.flatten(layout.unflatten(rows), (4,)), rows, rtol=1e-6)


@pytest.mark.parametrize("space", [NESTED, STEERING, MultiBinary((2, 2)), Box(0, 255, (4, 4, 3), np.uint8),
                                   Box(np.array([-np.inf, 0]), np.array([1, np.inf])), Discrete(3, start=2),
                                   Box(-(2**62), 2**62, (1,), np.int64), MixedActions(np.zeros(1), np.ones(1), (2, 3)),
                                   MultiDiscrete([3, 2], start=[1, 5])])  # fmt: skip
def test_spaces_as_json(space: spaces.Space[Any]) -> None:
    assert rebuild(describe(space)) == space


@pytest.mark.parametrize(
    ("observe", "names"),
    [
        ("imu/gyro[2],gear", ["imu/gyro[2]", "gear=1", "gear=2", "gear=3"]),
        (["imu/acc[0,1]", "flags[1]"], ["imu/acc[0,1]", "flags[1]"]),
        ("imu/*[0*", ["imu/acc[0,0]", "imu/acc[0,1]", "imu/gyro[0]"]),
        ("pair", ["pair/0=0", "pair/0=1", "pair/1"]),
        ("3,imu/gyro[0],3", ["gear=2", "imu/gyro[0]"]),
    ],
)
def test_observe_by_name(observe: Any, names: list[str]) -> None:
    envs = make(lambda: Structured("nested dict"), 2, observe=observe)
    assert observation_names(envs) == names
    layout, env = Observations(NESTED), Structured("nested dict")
    row = layout.flatten(env.reset(seed=5)[0])
    np.testing.assert_array_equal(envs.reset(seed=[5, 6])[0][0], row[[layout.names.index(name) for name in names]])


def test_a_vector_environment_takes_the_environments_own_actions() -> None:
    envs = make(lambda: Structured("dict actions"), 2)
    envs.reset(seed=0)
    batch = {"steer": np.zeros((2, 2), np.float32), "gear": np.array([1, 3]), "lights": np.zeros((2, 2), np.int8)}
    envs.step(batch)  # the environment asserts that its action is in its space
    envs.step(np.array([[0.5, -0.5, 2, 0, 1], [0, 0, 0, 1, 1]]))


def test_masks_end_the_observation_and_are_not_disturbed() -> None:
    envs = make(lambda: Structured("masked"), 3, obs_noise=10.0, dropout=0.5)
    assert mask_size(envs) == 3
    rows = [envs.reset(seed=0)[0], *(envs.step(np.zeros(3, int))[0] for _ in range(4))]
    masks = np.concatenate(rows)[:, -3:]
    assert set(masks.ravel()) == {0.0, 1.0}
    inside: Any = envs.unwrapped
    np.testing.assert_array_equal(masks[-3:], [env.unwrapped.mask for env in inside.envs])
    assert mask_size(make(lambda: Structured("masked"), action_mask="off")) == 0


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "observations: are in a Text space, which has no fixed number of entries; give a Box"),
        (Dict(a=spaces.Sequence(Discrete(2))), r"observations \(a\): are in a Sequence space"),
        (Tuple((spaces.Graph(Box(0, 1, (2,)), None),)), r"observations \(0\): are in a Graph space"),
        (spaces.OneOf((Discrete(2), Box(0, 1, (1,)))), "observations: are in a OneOf space"),
        (Box(0, 1, (2, 2, 2, 2)), r"4-D Box of shape \(2, 2, 2, 2\), and at most 3 dimensions .* give single frames"),
        (Dict({}), "is empty"),
    ],
)
def test_what_remains_unsupported(space: spaces.Space[Any], message: str) -> None:
    def env() -> gymnasium.Env:
        made = Structured("numbers")
        made.observation_space = space
        return made

    with pytest.raises(UsageError, match=message):
        make(env)


def test_spaces_that_are_too_large() -> None:
    with pytest.raises(UsageError, match="observations: have 2,000,000 entries, more than 1,000,000, because symbols"):
        Observations(Dict({"a": Discrete(2_000_000)}))
    for content in ({"binary": [10**6, 10**6]}, {"low": 0, "high": 1, "shape": [10**9], "dtype": "float32"}):
        with pytest.raises(ValueError, match="is too large"):
            rebuild(content)


def test_whole_numbers_in_a_box_of_actions() -> None:
    with pytest.raises(UsageError, match=r"actions \(a\): are whole numbers in a Box.*; give a Discrete"):
        Actions(Dict(a=Box(0, 3, (1,), np.int64), b=Discrete(2)))


def test_a_name_that_selects_nothing() -> None:
    with pytest.raises(UsageError, match=r"observe='imu/giro' is the name of no observation; .* of flags\[0\], "):
        make(lambda: Structured("nested dict"), observe="gear,imu/giro")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda o: {k: v for k, v in o.items() if k != "gear"},
            "returned an observation whose gear: is missing; there is",
        ),
        (lambda o: o | {"imu": {"gyro": o["imu"]["gyro"]}}, "imu/acc: is missing; there is gyro"),
        (lambda o: o | {"flags": np.zeros(3, np.int8)}, r"flags: has shape \(3,\), and its space is MultiBinary\(2\)"),
        (lambda o: o | {"gear": 4}, r"gear: is \[4\], which is not in Discrete\(3, start=1\)"),
    ],
)
def test_an_observation_that_does_not_fit_its_space(change: Any, message: str) -> None:
    class Changing(Structured):
        def step(self, action: Any) -> Any:
            observation, *rest = super().step(action)
            return change(observation), *rest

    envs = make(lambda: Changing("nested dict"))
    envs.reset(seed=0)
    with pytest.raises(UsageError, match=message):
        envs.step(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.zeros(3, np.int8), r"is \[0, 0, 0\], which forbids every action; allow at least one, or end the episode"),
        (np.ones(4, np.int8), "has 4 entries, and there are 3 values"),
        (None, r"info\['action_mask'\] is missing in a step, and was there before"),
    ],
)
def test_masks_that_make_no_sense(mask: Any, message: str) -> None:
    class Wrong(Structured):
        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            return *rest, {} if mask is None else {"action_mask": mask}

    envs = make(lambda: Wrong("masked"))
    envs.reset(seed=0)
    with pytest.raises(UsageError, match=message):
        envs.step(np.zeros(1, int))


def test_masks_where_there_are_none() -> None:
    with pytest.raises(UsageError, match="action_mask='on' needs actions that are symbols"):
        make(lambda: Structured("numbers"), action_mask="on")
    with pytest.raises(UsageError, match=r"action_mask='on' needs info\['action_mask'\] of reset and step"):
        make("CartPole-v1", action_mask="on")
    with pytest.raises(UsageError, match="action_mask='yes' is not understood; give auto, on, off"):
        make("CartPole-v1", action_mask="yes")
