"""Slow sensors, outages and random latency: by hand, marked and repeated, single against vector, and messages."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from rpsp.envs.make import make
from rpsp.envs.silence import RandomLatency, as_text, latency, parsed_latency, parsed_outage, parsed_rate
from rpsp.envs.vector import sensors
from rpsp.envs.wrappers import ObservationDropout, ObservationLatency, ObserveOnly, SensorOutage, SensorRate
from rpsp.errors import UsageError

LENGTH = 400


class Clock(gymnasium.Env):
    """Three sensors that all read the number of steps since the reset; the third is missing at every seventh step."""

    observation_space: gymnasium.Space = Box(-1.0, 1e6, (3,), np.float32)
    action_space: gymnasium.Space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, gaps: bool = False) -> None:
        self.gaps = gaps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._read(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._read(), 0.0, False, self.count == LENGTH, {}

    def _read(self) -> Any:
        seen = np.full(3, self.count, np.float32)
        return np.where([False, False, self.gaps and self.count % 7 == 3], np.nan, seen).astype(np.float32)


def played(env: gymnasium.Env, seed: int | None = 0) -> np.ndarray:
    first = env.reset(seed=seed)[0]
    return np.array([first, *(env.step(np.zeros(1))[0] for _ in range(LENGTH))])


def held(marked: np.ndarray) -> np.ndarray:
    """The last values, in the place of NaN."""
    known = np.where(np.isnan(marked), -1, marked)  # the clocks only go forward
    return np.maximum.accumulate(known, axis=0)


def test_a_slow_sensor_is_read_at_the_reset_and_every_n_steps() -> None:
    seen = played(SensorRate(Clock(), {0: 10, 2: 3}, mark=True))
    steps = np.arange(LENGTH + 1)
    for sensor, every in ((0, 10), (1, 1), (2, 3)):
        np.testing.assert_array_equal(~np.isnan(seen[:, sensor]), steps % every == 0)
        read = steps % every == 0
        np.testing.assert_array_equal(seen[read, sensor], steps[read])
    np.testing.assert_array_equal(played(SensorRate(Clock(), "0:10,2:3")), held(seen))


def test_outages_silence_single_sensors_for_their_length() -> None:
    env = SensorOutage(Clock(), 0.02, 5, mark=True)
    silent = np.concatenate([np.isnan(played(env, seed)) for seed in range(20)])
    assert not silent[:: LENGTH + 1].any(), "resets are read"
    expected = 5 * 0.02 / (1 + 5 * 0.02)  # a sensor that works for 1/P steps is then silent for L
    assert abs(silent.mean() - expected) < 0.015
    assert abs(np.corrcoef(silent[:, 0], silent[:, 1])[0, 1]) < 0.1, "sensors fail independently of each other"
    edges = np.diff(np.concatenate([[0], silent[1 : LENGTH + 1, 0].astype(int), [0]]))
    lengths = (np.flatnonzero(edges < 0) - np.flatnonzero(edges > 0))[:-1]  # the last one may be cut off
    assert len(lengths) and (lengths % 5 == 0).all()
    np.testing.assert_array_equal(played(SensorOutage(Clock(), 0.02, 5), 3), held(played(env, 3)))


def test_random_latency_delivers_the_newest_that_has_arrived() -> None:
    seen = played(ObservationLatency(Clock(), "1-3", mark=True))[:, 0]
    steps = np.arange(LENGTH + 1)
    came = ~np.isnan(seen)
    age = (steps - seen)[came][1:]
    assert set(age) == {1, 2, 3} and seen[0] == 0
    assert (np.diff(seen[came]) > 0).all(), "never an older one after a newer one"
    late = steps - held(seen[:, None])[:, 0]
    assert late.max() <= 3, "nothing is more than three steps old"
    assert 0.5 < came.mean() < 0.9
    np.testing.assert_array_equal(played(ObservationLatency(Clock(), (1, 3)))[:, 0], held(seen[:, None])[:, 0])


def test_dropout_marks_whole_observations() -> None:
    seen = played(ObservationDropout(Clock(), 0.3, mark=True))
    lost = np.isnan(seen)
    assert not lost[0].any() and (lost.all(axis=1) == lost.any(axis=1)).all() and abs(lost[1:, 0].mean() - 0.3) < 0.08
    np.testing.assert_array_equal(played(ObservationDropout(Clock(), 0.3)), held(seen))


def test_a_batch_is_the_single_environments() -> None:
    given = {"dropout": 0.2, "outage": (0.05, 4), "sensor_rate": {1: 3}, "obs_latency": (0, 2), "missing": "nan"}
    envs: Any = make("Hopper-v5", 3, **given)
    single: gymnasium.Env = gymnasium.make("Hopper-v5")
    single = ObserveOnly(single, range(5))
    single = SensorOutage(SensorRate(single, {1: 3}, True), 0.05, 4, True)
    single = ObservationDropout(ObservationLatency(single, (0, 2), True), 0.2, True)
    np.testing.assert_array_equal(envs.reset(seed=[3, 4, 5])[0][1], single.reset(seed=4)[0])
    action = np.full((3, 3), 0.2, np.float32)
    batch = np.array([envs.step(action)[0][1] for _ in range(12)])
    np.testing.assert_array_equal(batch, np.array([single.step(action[0])[0] for _ in range(12)]))
    assert 0.2 < np.isnan(batch).mean() < 0.9
    assert sensors(envs)[1] == 1
    envs.close()


def test_an_environment_may_miss_readings_where_the_user_says_so() -> None:
    envs: Any = make(lambda: Clock(gaps=True), 2, missing="nan", autoreset_mode="Disabled")
    envs.reset(seed=0)
    for step in range(1, 9):
        seen, _, _, truncated, infos = envs.step(np.zeros((2, 1)))
        assert np.isnan(seen[0, 2]) == (step % 7 == 3) and not infos["failed"].any() and not truncated.any()
    strict: Any = make(lambda: Clock(gaps=True), 1, autoreset_mode="Disabled")
    strict.reset(seed=0)
    failed = [strict.step(np.zeros((1, 1)))[4]["failed"][0] for _ in range(4)]
    assert failed == [False, False, True, True]


def test_settings_as_text() -> None:
    assert parsed_rate("0:10, 3:2") == {0: 10, 3: 2} and parsed_rate(4) == 4 and parsed_rate({1: 5}) == {1: 5}
    assert parsed_outage("0.01:20") == (0.01, 20) == parsed_outage((0.01, 20))
    assert parsed_latency("0-3") == (0, 3) == parsed_latency((0, 3)) and parsed_latency(2) == (2, 2)
    assert not isinstance(latency("2"), RandomLatency) and isinstance(latency("0-1"), RandomLatency)
    assert as_text("outage", (0.01, 20)) == "0.01:20" and as_text("obs_latency", [0, 3]) == "0-3"
    assert as_text("sensor_rate", {0: 10}) == "0:10" and as_text("sensor_rate", 10) == 10
    assert as_text("outage", None) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"outage": "0.1"}, r"outage: '0.1' is not understood; .* such as 0.01:20"),
        ({"outage": "1.5:20"}, r"outage: the probability must be at least 0 and below 1, got 1.5"),
        ({"outage": "0.1:-2"}, r"outage: the duration must be a whole number, 0 or more, got -2"),
        ({"sensor_rate": "0"}, r"sensor_rate: '0' is not understood; give 10"),
        ({"sensor_rate": "2:0"}, r"sensor_rate: '2:0' is not understood"),
        ({"sensor_rate": "7:2"}, r"there is no sensor 7, the observation has 3 numbers; give indices from 0 to 2"),
        ({"obs_latency": "3-1"}, r"obs_latency: 3-1 ends before it begins; give the smaller number first"),
        ({"obs_latency": "few"}, r"obs_latency .* must be a whole number, 0 or more, got 'few'"),
        ({"missing": "none"}, r"missing: 'none' is not known; give 'nan'"),
    ],
)
def test_what_is_not_understood(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(Clock, 1, **given)


def test_symbols_cannot_be_marked() -> None:
    with pytest.raises(UsageError, match=r"missing='nan' needs observations in a 1-D Box, .* Discrete"):
        make("FrozenLake-v1", 1, missing="nan", dropout=0.1)
