"""`rpsp watch`: the episode of `rpsp eval`, its forecasts, its frames, and what is said where nothing can be rendered."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from PIL import Image

import rpsp
from rpsp.algorithms.policies import Agent, CategoricalPolicy, GaussianPolicy
from rpsp.data.scaling import OneHot, Scaling
from rpsp.errors import EnvironmentFailure, UsageError
from rpsp.experiments import doctor, video
from rpsp.experiments.agents import TrainedAgent
from rpsp.experiments.video import playing
from rpsp.filters.memory import GRU, observation_window
from rpsp.training.actions import units_of


class Drift(gymnasium.Env):
    """Two numbers that drift; its picture has as many white rows as steps were done."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - Gymnasium's habit
    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.at = 0, self.np_random.normal(size=2)
        return self.at.copy(), {}

    def step(self, action):
        self.steps += 1
        self.at += [0.1, float(action[0])]
        return self.at.copy(), 1.5, self.steps == 25, False, {}

    def render(self):
        picture = np.zeros((40, 60, 3), np.uint8)
        picture[: self.steps] = 255
        return picture


class Blind(Drift):
    metadata = {"render_modes": []}  # noqa: RUF012


class Symbols(Blind):
    """Three symbols in turn, counted from 7."""

    observation_space, action_space = Discrete(3, start=7), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 7, {}

    def step(self, action):
        self.steps += 1
        return 7 + self.steps % 3, 1.0, self.steps == 25, False, {}


def make_agent(cls=Drift) -> TrainedAgent:
    def make_envs(num_envs, render_mode=None):
        return rpsp.make(lambda: cls(render_mode), num_envs)

    units = units_of(cls.action_space)
    if cls is Symbols:
        filter = observation_window(2, 3, 2)
        policy = CategoricalPolicy(filter.size, 2, key=jax.random.key(1))
        return TrainedAgent(Agent(filter, policy), OneHot(3), units, make_envs, 3, first=7)
    filter = GRU(4, 2, 1, key=jax.random.key(0))
    policy = GaussianPolicy(4, 1, key=jax.random.key(1))
    policy = jax.tree.map(lambda x: x + 0.3 if x.ndim == 2 else x, policy)  # as made, it does nothing
    return TrainedAgent(Agent(filter, policy), Scaling(np.array([1.0, 0.0]), np.array([2.0, 3.0])), units, make_envs, 3)


def test_episode_is_the_first_of_eval():
    agent = make_agent()
    episode, evaluated = video.play(agent, seed=4), agent.evaluate(1, seed=4).episodes[0]
    np.testing.assert_allclose(agent.scaling.encode(episode.observations), evaluated.observations, atol=1e-6)
    assert episode.rewards.sum() == 37.5 and episode.shown == range(25) and episode.frames_per_second == 20
    assert episode.scenes is not None
    assert [int(scene[:, 0, 0].sum() / 255) for scene in episode.scenes] == list(range(25))
    assert len(video.play(agent, steps=9).rewards) == 9


def test_forecast_goes_on_as_the_policy_would():
    agent = make_agent()
    episode = video.play(agent, steps=6)
    state = None
    for observation in episode.observations[:4]:
        _, state = agent.predict(observation, state, episode_start=state is None)
    assert state is not None
    filter, q, action = agent.agent.filter, state.q[0], state.executed[0]
    for expected in episode.forecasts[3]:
        predicted = filter.predict(jax.numpy.asarray(q), jax.numpy.asarray(action))
        np.testing.assert_allclose(expected, agent.scaling.decode(np.asarray(predicted)), atol=1e-5)
        q = filter.update(jax.numpy.asarray(q), jax.numpy.asarray(action), predicted)
        action = np.clip(np.asarray(agent.agent.policy(q).mode()), -1, 1)
    assert np.ptp(episode.forecasts[3][:, 1]) > 0


def test_long_episodes_skip_frames(monkeypatch):
    monkeypatch.setattr(playing, "MOST_FRAMES", 10)
    episode = video.play(make_agent())
    assert episode.shown == range(0, 25, 4) and episode.scenes is not None
    assert [int(scene[:, 0, 0].sum() / 255) for scene in episode.scenes] == list(episode.shown)
    assert episode.frames_per_second == 5


def test_frames(tmp_path):
    episode = video.play(make_agent(), steps=5)
    frames = list(video.pictures(episode, "a title"))
    assert {frame.shape for frame in frames} == {(576, 576 + 704, 3)}
    plots = video.Plots(episode, "a title")
    assert np.array_equal(plots.at(3), frames[3][:, 576:]), "a frame must not depend on those before it"
    assert not np.array_equal(frames[3], frames[4])
    video.write_video(tmp_path / "new" / "a.gif", iter(frames), 20.0)
    with Image.open(tmp_path / "new" / "a.gif") as image:
        assert (image.n_frames, image.size, image.info["duration"]) == (5, (640, 288), 50)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.gif"]


@pytest.mark.skipif(video.encoder() is None, reason="no ffmpeg: pip install imageio-ffmpeg")
def test_mp4(tmp_path):
    episode = video.play(make_agent(), steps=7)
    video.write_video(tmp_path / "a.mp4", video.pictures(episode), 20.0)
    program = video.encoder()
    assert program is not None
    read = subprocess.run(
        [program, "-i", str(tmp_path / "a.mp4"), "-f", "null", "-"], capture_output=True, encoding="utf-8", check=True
    )
    assert re.findall(r"frame=\s*(\d+)", read.stderr)[-1] == "7" and "1280x576" in read.stderr


def test_without_pictures_the_plots_are_shown():
    episode = video.play(make_agent(Blind), steps=4)
    assert episode.scenes is None
    assert {frame.shape for frame in video.pictures(episode)} == {(576, 704, 3)}


def test_symbols():
    episode = video.play(make_agent(Symbols), steps=4)
    assert episode.names == ["symbol 7", "symbol 8", "symbol 9"]
    np.testing.assert_array_equal(episode.observations, np.eye(3)[[0, 1, 2, 0, 1]])
    assert len(list(video.pictures(episode))) == 4


def test_what_cannot_be_watched(monkeypatch):
    agent = make_agent()
    monkeypatch.setattr(Drift, "render", lambda self: 1 / 0)
    with pytest.raises(EnvironmentFailure, match=r"ZeroDivisionError.*apt-get install libegl1"):
        video.play(agent)
    agent.make_envs = None
    with pytest.raises(UsageError, match="made by a function"):
        video.play(agent)


def test_ghosts_of_what_is_not_known_to_be_a_position():
    agent = make_agent()
    assert agent.make_envs is not None
    assert video.Ghost.of(agent.make_envs(1)) is None and video.play(agent, steps=2).caption == ""
    for id, observe, columns, joints in (
        ("InvertedPendulum-v5", "positions", [0, 1], [0, 1]),
        ("Hopper-v5", [7, 2, 0], [1, 2], [3, 1]),  # a speed among them; the root's x is no observation
        ("Swimmer-v5", "all", [0, 1, 2], [2, 3, 4]),
    ):
        ghost = video.Ghost.of(rpsp.make(id, observe=observe, render_mode="rgb_array", obs_latency=2))
        assert ghost is not None and (ghost.columns, ghost.joints, ghost.ahead) == (columns, joints, 12)
        assert ("unobserved" in ghost.caption) == (id != "InvertedPendulum-v5")
    assert video.Ghost.of(rpsp.make("Hopper-v5", observe=[7], render_mode="rgb_array")) is None
    assert video.Ghost.of(rpsp.make("InvertedDoublePendulum-v5", render_mode="rgb_array")) is None


GHOST = """
import numpy as np
import rpsp
from rpsp.experiments import video
from rpsp.experiments.video import frames, ghost

envs = rpsp.make("InvertedPendulum-v5", observe="positions", obs_latency=2, render_mode="rgb_array")
robot, scenes, moments, seen = video.Ghost.of(envs), [], [], [envs.reset(seed=0)[0][0]]
for step in range(20):
    scenes.append(ghost.rendered(envs))
    moments.append(robot.present())
    seen.append(envs.step(np.full((1, 1), 0.05))[0][0])
future = np.array(seen[1 : 1 + frames.HORIZON])  # what a perfect belief expects, at step 0, of the observations after it
drawn = robot.over(scenes[0], moments[0], future)
nobody = robot._drawn(0.0)


def outline(picture):
    return (np.abs(picture.astype(int) - nobody) > 8).any(axis=2)


there, elsewhere = outline(scenes[ghost.AHEAD]), outline(scenes[0])
changed = (drawn != scenes[0]).any(axis=2)
print((changed & there).sum() / (changed | there).sum(), (elsewhere & there).sum() / (elsewhere | there).sum())
future[:] = np.nan
print(np.array_equal(robot.over(scenes[0], moments[0], future), scenes[0]))
"""


@pytest.fixture
def headless():
    """For a process of its own: how to render is decided when mujoco is imported."""
    if not doctor.rendering().startswith("works"):
        pytest.skip("nothing can be rendered here: apt-get install libegl1")
    return os.environ | {"MUJOCO_GL": "egl"}


def test_the_ghost_of_a_perfect_belief_is_where_the_robot_will_be(headless):
    done = subprocess.run(
        [sys.executable, "-c", GHOST], env=headless, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    overlap, overlap_of_the_present, untouched = done.stdout.split()
    assert float(overlap) > 0.97 and float(overlap_of_the_present) < 0.8 and untouched == "True"


def test_command(tmp_path, headless):
    out = tmp_path / "run"
    rpsp.train("InvertedPendulum-v5", "fm2", iterations=1, samples=200, exploration_episodes=5, out=out, verbose=False)
    command = [sys.executable, "-m", "rpsp.cli", "watch", str(out), "--format", "gif", "--steps", "6", "--json"]
    done = subprocess.run(command, env=headless, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["video"] == str(out / "video" / "000001-seed0.gif") and results["video"] in done.stdout
    assert results["steps"] == results["return"] == results["frames"] <= 6
    with Image.open(results["video"]) as image:
        assert image.n_frames == results["frames"]
        left = np.asarray(image.convert("RGB"))[:, :288]
    assert left.std() > 5, "the scene is empty"
