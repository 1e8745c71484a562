"""Every structure of spaces through every command: train, resume, eval, watch, export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.helpers.structured import LIMIT, STRUCTURES, register

import rpsp
from rpsp.errors import UsageError
from rpsp.experiments import acting_template
from rpsp.experiments.config import FitConfig
from rpsp.experiments.export import export
from rpsp.experiments.files import read_json
from rpsp.experiments.fitting import fit
from rpsp.experiments.report import write_report
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.runs import resume
from rpsp.experiments.video.playing import play

IDS = dict(zip(STRUCTURES, register(), strict=True))


QUICK = "nested dict", "masked symbols", "images"
KINDS = [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow) for kind in STRUCTURES]


@pytest.mark.parametrize("kind", KINDS)
def test_train_resume_evaluate_and_export(kind: str, tmp_path: Path) -> None:
    """The environment itself refuses actions that are not in its space, and forbidden ones."""
    given: dict[str, Any] = {"method": "fm1", "samples": 20, "exploration_samples": 40, "num_envs": 2, "hidden": (4,)}
    run = rpsp.train(IDS[kind], iterations=1, out=str(tmp_path / "run"), verbose=False, **given)
    say, show = (lambda line: None), (lambda *given: None)
    resumed = resume([Path(run.directory)], say, show, iterations=2)
    assert resumed.results["iterations"] == 2
    agent = rpsp.load(run.directory)
    assert agent.evaluate(2).returns.tolist() == [LIMIT, LIMIT]

    env = gymnasium.make(IDS[kind])
    observation, info = env.reset(seed=0)
    state, envs, rows = None, agent.environments(1), []
    flat, _ = envs.reset(seed=[0])
    for step in range(LIMIT):
        action, state = agent.predict(observation, state, episode_start=step == 0, action_mask=info.get("action_mask"))
        assert env.action_space.contains(action)
        rows.append((flat[0], agent.act(flat[0], None)[0]))
        observation, _, _, _, info = env.step(action)
        flat = envs.step(np.asarray(agent.act(flat, None)[0]))[0]

    written = export(Path(run.directory))
    assert written["largest_difference_of_a_step"] < 1e-4
    policy = acting_template.load(Path(written["directory"]) / "policy.npz")
    for row, done in rows[:3]:
        np.testing.assert_allclose(policy.step(row)[0], done, atol=1e-4)  # numpy in float64, the agent in float32


@pytest.mark.slow
def test_a_video_and_a_report_show_the_names(tmp_path: Path) -> None:
    given: dict[str, Any] = {"method": "fm1", "samples": 20, "exploration_samples": 40, "num_envs": 2, "hidden": (4,)}
    id = IDS["nested dict"]
    run = rpsp.train(id, observe="imu/gyro,gear", iterations=1, out=str(tmp_path / "run"), verbose=False, **given)
    agent = rpsp.load(run.directory)
    assert play(agent).names == ["imu/gyro[0]", "imu/gyro[1]", "imu/gyro[2]", "gear=1", "gear=2", "gear=3"]
    write_report([Path(run.directory)], tmp_path / "page.html")
    assert "imu/gyro[2]" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_video_shows_what_is_expected_and_what_came(tmp_path: Path) -> None:
    given: dict[str, Any] = {"method": "fm1", "samples": 20, "exploration_samples": 40, "num_envs": 2, "hidden": (4,)}
    run = rpsp.train(IDS["images"], iterations=0, image_components=3, out=str(tmp_path / "run"), verbose=False, **given)
    first, *_ = RunDirectory(Path(run.directory)).metrics()
    assert 0 < first["image_residual"] < 1
    agent = rpsp.load(run.directory)
    assert agent.coordinate_names == ["camera, component 0", "camera, component 1", "camera, component 2", "speed[0]"]
    watched = play(agent)
    assert watched.scenes is not None and len(watched.scenes) == LIMIT
    assert watched.observations.shape == (LIMIT + 1, 4)
    envs = agent.environments(1)
    state = agent.act(envs.reset(seed=[0])[0])[1]
    assert agent.expect(state).shape == (1, 257)  # the expected picture and the speed, in their own units


def test_bad_masks_and_observations_of_an_agent(tmp_path: Path) -> None:
    given: dict[str, Any] = {"method": "fm1", "samples": 20, "exploration_samples": 40, "num_envs": 2, "hidden": (4,)}
    run = rpsp.train(IDS["masked"], iterations=0, out=str(tmp_path / "run"), verbose=False, **given)
    agent = rpsp.load(run.directory)
    observation, info = gymnasium.make(IDS["masked"]).reset(seed=0)
    with pytest.raises(UsageError, match="action_mask: is missing; this agent was trained with masks"):
        agent.predict(observation)
    with pytest.raises(UsageError, match="action_mask: has 2 entries; give 3"):
        agent.predict(observation, action_mask=info["action_mask"][:2])
    with pytest.raises(UsageError, match="1: is missing; there is tuple"):
        agent.predict(observation[:1], action_mask=info["action_mask"])
    action, _ = agent.predict(observation, action_mask=[0, 1, 0])
    assert action == 1
    batch = tuple(np.stack([part, part]) for part in observation)
    actions, _ = agent.predict(batch, action_mask=[[0, 1, 0], [0, 0, 1]])
    assert actions.tolist() == [1, 2]


@pytest.mark.slow
def test_fit_keeps_the_names(tmp_path: Path) -> None:
    fitted = fit(FitConfig(IDS["nested dict"], samples=200, kind="gru", out=str(tmp_path / "fit"), settings=None))
    assert "imu/gyro[2]" in read_json(Path(fitted["directory"]) / "results.json")["observation_names"]
