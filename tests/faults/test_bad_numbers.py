"""Row 5: numbers that are none, simulations that warn and clocks that run backwards cost an episode, not the run."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import gymnasium
import jax
import numpy as np
import pytest
from amounts import amount, report
from processes import FLAGS, TINY, checkpoints, metrics
from tasks import Drift

from rpsp.cli import main
from rpsp.envs.mujoco_batch import MujocoBatch
from rpsp.experiments.configure import configured
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.runs import start
from rpsp.training import rollouts


class Rubbish(Drift):
    """`tasks.Drift`, with rubbish for an observation or a reward at the steps in `at`, counted over all copies."""

    at: ClassVar[set[int]] = set()
    count: ClassVar[int] = 0
    every: ClassVar[bool] = False
    """Whether every second episode is rubbish."""
    episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        assert np.isfinite(action).all(), "an action that is not finite reached the environment"
        Rubbish.count += 1
        if Rubbish.count in self.at or (Rubbish.every and self.episode % 2):
            bad = (np.nan, np.inf, -np.inf)[Rubbish.count % 3]
            if Rubbish.count % 2:
                observation[Rubbish.count % len(observation)] = bad
            else:
                reward = bad
            terminated = bool(Rubbish.count % 5 == 0)
        return observation, reward, terminated, truncated, info


gymnasium.register("Rubbish-v0", Rubbish, max_episode_steps=20)


@pytest.fixture(autouse=True)
def _as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to MUJOCO_LOG.TXT where it stands
    monkeypatch.setattr(Rubbish, "at", set())
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def played(out: Path, begin: Callable[[], None], **given: Any) -> int:
    """Train, and call `begin` after the exploration; how many episodes were dropped. Every number must be finite."""
    dropped = 0

    def look(record: dict[str, float], pace: Any) -> None:
        nonlocal dropped
        if "iteration" not in record:
            begin()
        dropped += int(record.get("dropped_episodes", 0))

    config = configured({"method": "fm2", "out": str(out), **given})
    start(config, lambda line: None, look)
    files = RunDirectory(out)
    agent = files.agent()[0]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(eqx.filter(agent, eqx.is_inexact_array)))
    records = files.metrics()
    assert all(np.isfinite(value) for record in records for value in record.values())
    assert len(records) == given["iterations"] + 1
    return dropped


def test_numbers_that_are_none_in_observations_and_rewards(tmp_path: Path) -> None:
    faults, apart = amount(4, 40), 120
    rng = np.random.default_rng(5)

    def begin() -> None:
        Rubbish.count = 0
        Rubbish.at = {apart * i + int(rng.integers(1, apart // 2)) for i in range(1, faults + 1)}

    # Seldom more than one episode of the ten or so of an iteration: more than two would be a fifth.
    given = TINY | {"env": "test_bad_numbers:Rubbish-v0", "samples": 90, "iterations": (faults + 2) * apart // 90}
    dropped = played(tmp_path / "run", begin, **given)
    assert dropped == faults == len([n for n in Rubbish.at if n <= Rubbish.count])
    report(5, f"{dropped} of {faults} episodes with NaN or ±inf in an observation or a reward dropped and counted")


def test_actions_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults, count, real = amount(4, 30), 0, rollouts._Noise.at
    began = False

    def at(self: Any, view: Any) -> Any:
        nonlocal count
        noise = real(self, view)
        count += began
        if began and count % 40 == 0 and count // 40 <= faults:
            noise[np.flatnonzero(view.running)[0]] = (np.nan, np.inf)[count // 40 % 2]
        return noise

    def begin() -> None:
        nonlocal began
        began = True

    monkeypatch.setattr(rollouts._Noise, "at", at)
    iterations = (faults + 1) * 40 * 3 // 90 + 2
    given = TINY | {"env": "test_bad_numbers:Rubbish-v0", "samples": 90, "iterations": iterations}
    dropped = played(tmp_path / "run", begin, **given)
    assert dropped == faults <= count // 40
    report(5, f"{dropped} of {faults} episodes with an action that was not finite dropped and counted, none executed")


def broken(simulation: Any, row: int, kind: int) -> None:
    match kind:
        case 0:
            simulation.qpos[row, 1] = np.nan
        case 1:
            simulation.qvel[row, 0] = 1e15
        case 2:
            simulation.warning[row, 2, 1] = 1
        case 3:
            simulation.time[row] = -1.0


def test_simulations_that_warn_and_clocks_that_run_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults, count, real = amount(4, 30), 0, MujocoBatch.step
    began = False

    def step(self: Any, actions: Any) -> Any:
        nonlocal count
        count += began
        running = np.flatnonzero(~(self._terminated | self._truncated))
        if began and count % 60 == 0 and count // 60 <= faults and len(running):
            broken(self.simulation, running[0], count // 60 % 4)
        return real(self, actions)

    def begin() -> None:
        nonlocal began
        began = True

    monkeypatch.setattr(MujocoBatch, "step", step)
    iterations = (faults + 2) * 60 * 4 // 200 + 2
    given = {"env": "InvertedPendulum-v5", "max_episode_steps": 30, "samples": 200, "num_envs": 4, "threads": 1}
    dropped = played(tmp_path / "run", begin, **given, exploration_episodes=8, iterations=iterations)
    assert dropped == faults <= count // 60
    report(5, f"{dropped} of {faults} simulations with NaN, huge speeds, warnings or time running backwards dropped")


def test_more_than_a_fifth_of_a_batch_ends_the_run_and_loses_nothing(tmp_path: Path, capsys: Any) -> None:
    out, whole = tmp_path / "run", tmp_path / "whole"
    arguments = ["test_bad_numbers:Rubbish-v0", "--method", "fm2", *FLAGS, "--json"]
    main(["train", *arguments, "--iterations", "3", "--out", str(whole)])
    main(["train", *arguments, "--iterations", "2", "--out", str(out)])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["iterations"] == 2
    before = checkpoints(out)
    Rubbish.every = True
    try:
        with pytest.raises(SystemExit) as exit:
            main(["resume", str(out), "--iterations", "3"])
    finally:
        Rubbish.every = False
    assert exit.value.code == 4
    first, second = capsys.readouterr().err.splitlines()
    assert re.search(
        r"failed in iteration 2 of seed 0: in the first of them (observation [01]|the reward) was (nan|-?inf);", first
    )
    assert "the simulation diverges" in first and "smaller time step" in first
    assert "all finished iterations are saved" in second and f"rpsp resume {out}" in second
    assert checkpoints(out) == before
    main(["resume", str(out), "--iterations", "3", "--quiet"])
    assert metrics(out) == metrics(whole) and checkpoints(out) == checkpoints(whole)
    report(
        5, "half of the episodes bad: exit 4 with advice, and resumed without them the run has the undisturbed bytes"
    )
