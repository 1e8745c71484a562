"""Rows 10 and 11: the same seed gives the same bits, whatever computes them; and a user's own loop the same actions."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from amounts import amount, report
from comparing import tamed
from processes import checkpoints, metrics, spawn

import rpsp
from rpsp.envs.wrappers import ObserveOnly
from rpsp.experiments.agents import TrainedAgent, load
from rpsp.experiments.finished_runs import Run
from rpsp.training.acting import View, _Noise, _seed_sequence
from rpsp.training.rollouts import ACTING, Collected, collect

# ---------------------------------------------------------------------------------------------------------------------
# 10: threads and processes
# ---------------------------------------------------------------------------------------------------------------------


def hashed(directory: Path) -> str:
    """SHA-256 of all checkpoints and metrics."""
    total = hashlib.sha256("\n".join(metrics(directory)).encode())
    for name, data in checkpoints(directory).items():
        total.update(name.encode() + data)
    return total.hexdigest()


@pytest.mark.parametrize("method", ["fm2", "rpsi-trpo", "rpsp-alt", "rpsi-ppo"][: amount(1, 4)])
def test_threads_and_processes_give_the_same_bits(method: str, tmp_path: Path) -> None:
    """Two processes side by side, with one thread of physics and with two.

    Both may use the same cores, so both compile the same programs. The number of BLAS threads changes its sums: the
    command line sets it to one.
    """
    sizes = ["--dimension", "6", "--epochs", "3"] if method == "rpsp-alt" else []
    arguments = [
        "Hopper-v5", "--method", method, "--iterations", "3", "--samples", "600", "--max-episode-steps", "100",
        "--exploration-episodes", "20", "--num-envs", "6", "--seed", "3", "--quiet", *sizes,
    ]  # fmt: skip
    processes = []
    for n in (1, 2):
        out = tmp_path / str(len(processes))
        flags = ["train", *arguments, "--threads", str(n), "--out", str(out)]
        cache = tmp_path / f"compiled {len(processes)}"  # each compiles for itself
        processes.append(spawn(cache, *flags, OPENBLAS_NUM_THREADS="1"))
    for process in processes:
        assert process.communicate(timeout=600)[1] == "" and process.returncode == 0
    hashes = [hashed(tmp_path / str(i)) for i in range(len(processes))]
    assert len(set(hashes)) == 1
    report(10, f"{method} on Hopper-v5: 2 processes, 1 and 2 threads of physics, one hash")


# ---------------------------------------------------------------------------------------------------------------------
# 11: a user's own loop
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    given: dict[str, Any] = {"samples": 600, "num_envs": 5, "exploration_episodes": 30, "threads": 1, "verbose": False}
    return rpsp.train(
        "InvertedPendulum-v5", "rpsi-trpo", out=tmp_path_factory.mktemp("runs") / "run", iterations=2, **given
    )


def rollout(agent: TrainedAgent, steps: int, rows: int, deterministic: bool) -> Collected:
    """As training does it, with a row for each of several environments."""
    assert agent.make_envs is not None
    return collect(
        agent.agent,
        agent.make_envs(rows),
        scaling=agent.scaling,
        samples=steps,
        seed=agent.seed,
        iteration=5,
        deterministic=deterministic,
    )


@pytest.mark.parametrize("rows", [1, 5])
def test_a_users_own_loop_acts_as_the_rollout_did(run: Run, rows: int) -> None:
    """A plain Gymnasium environment, reset with the seeds of the rollout's episodes; its own actions lead it on.

    `predict` and the rollout are two programs and round differently (by 1e-7). A falling pole and a steep policy multiply
    that difference: hence a policy that is less steep, and a tolerance of 1e-5.
    """
    agent = tamed(load(run.directory))
    env = ObserveOnly(gymnasium.make("InvertedPendulum-v5", max_episode_steps=200), [0, 1])
    steps = amount(300, 1000)
    collected = rollout(agent, steps, rows, True)
    state, apart, done = None, 0.0, 0
    for number, episode in enumerate(collected.episodes):
        seed = int(_seed_sequence(agent.seed, ACTING, 5, 1, number).generate_state(1)[0])
        observation, _ = env.reset(seed=seed)
        for step, expected in enumerate(episode.actions):
            action, state = agent.predict(observation, state, step == 0)
            apart = max(apart, float(np.abs(action / 3.0 - expected).max()))  # its range is −3 … 3
            observation, *_ = env.step(action)
            done += 1
    assert done >= steps and len(collected.episodes) > 1 and apart <= 1e-5
    assert np.concatenate([episode.actions for episode in collected.episodes]).std() > 0.002, "it does something"
    resets = len(collected.episodes)
    report(
        11,
        f"{done} steps, {resets} resets, {rows} rows in the rollout: actions of `predict` differ by {apart:.1e} at most",
    )


def test_with_the_same_noise_random_actions_are_the_same(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`predict` draws noise of its own; given the rollout's, it acts as the rollout did, on what the rollout saw."""
    agent, steps = load(run.directory), amount(300, 1000)
    collected = rollout(agent, steps, 1, False)
    apart, nothing = 0.0, np.zeros((1, 0))
    for number, episode in enumerate(collected.episodes):
        noise = _Noise(agent.units, 1, lambda _, n=number: _seed_sequence(agent.seed, ACTING, 5, 0, n))

        def drawn(episodes: np.ndarray, steps: np.ndarray, noise: _Noise = noise) -> np.ndarray:
            begin = np.flatnonzero(steps == 0).tolist()
            return noise.at(View(int(steps[0]), begin, steps >= 0, steps == 0, nothing, nothing, episodes))

        monkeypatch.setattr(agent, "_noise", drawn)
        state = None
        for step, (seen, expected) in enumerate(zip(episode.observations[:-1], episode.actions, strict=True)):
            action, state = agent.predict(agent.scaling.decode(seen), state, step == 0, deterministic=False)
            apart = max(apart, float(np.abs(action / 3.0 - expected).max()))
    assert collected.samples >= steps and apart <= 1e-6
    report(11, f"{collected.samples} random steps with the rollout's noise: actions differ by {apart:.1e} at most")
