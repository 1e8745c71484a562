"""Runs: the same seed gives the same bits, killed or not; every mistake is one sentence, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tasks
from commands import cli, contents, trained
from gymnasium.spaces import Box
from processes import FLAGS, PATH, TINY, checkpoints, metrics, spawn
from tasks import Drift

import rpsp
from rpsp.errors import DivergedError, EnvironmentFailure, UsageError
from rpsp.experiments import execution, run_writer
from rpsp.experiments.agents import load
from rpsp.experiments.configure import configured
from rpsp.experiments.finished_runs import Run
from rpsp.experiments.methods import METHODS
from rpsp.experiments.progress import Pace
from rpsp.experiments.resolve import AMOUNTS, EXPLORATION, read_config, resolve
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.runs import resume, start
from rpsp.experiments.words import mean_with_error
from rpsp.experiments.workers import AT_ONCE, Beat, Failure, Job, begin, bundles, settle

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """PPO for five iterations, never interrupted."""
    return trained(tmp_path_factory.mktemp("runs") / "done", 5, "fm2-ppo")


# ---------------------------------------------------------------------------------------------------------------------
# What a run leaves
# ---------------------------------------------------------------------------------------------------------------------


def test_a_run_directory_is_whole(done: Run) -> None:
    assert {p.name for p in done.directory.iterdir()} == {
        ".lock", "checkpoints", "command.txt", "config.json", "metrics.jsonl", "results.json", "spaces.json",
        "versions.json",
    }  # fmt: skip
    assert [r["iteration"] for r in done.metrics] == [0, 1, 2, 3, 4]
    results = json.loads((done.directory / "results.json").read_text(encoding="utf-8"))
    returns = [r["mean_return"] for r in done.metrics]
    assert results["final_return"] == pytest.approx(np.mean(returns)) and results["best_return"] == max(returns)
    assert results["area_under_curve"] == pytest.approx(sum(returns)) and results["iterations"] == 5
    config = read_config(done.directory)
    assert (config.env, config.method, config.samples) == ("tasks:Drift-v0", "fm2-ppo", 60)
    assert config.settings.hidden == (64, 64), "a row's own defaults"
    assert done.agent.checkpoint == 5


def test_amounts_that_are_left_open_are_the_papers_or_suit_the_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def amounts(env: str, **given: Any) -> tuple[int | None, ...]:
        config = configured({"env": env, "method": "rpsi-trpo", **given})
        found = resolve(config, lambda n: rpsp.make(env, n, max_episode_steps=config.max_episode_steps))
        return tuple(getattr(found, name) for name in (*AMOUNTS, *EXPLORATION))

    assert amounts("InvertedPendulum-v5") == (200, 2000, 200, 10, 100, None)
    assert amounts("InvertedPendulum-v5", method="fm2-sac") == (300, 1000, 200, 5, None, 10_000)
    assert amounts("tasks:Drift-v0") == (100, 2000, 20, 100, None, 2000)
    assert amounts("CartPole-v1") == (100, 5000, 500, 10, None, 20_000)
    assert amounts("tasks:Drift-v0", samples=60, iterations=0) == (0, 60, 20, 3, None, 2000)
    assert amounts("tasks:Drift-v0", exploration_episodes=7)[4:] == (7, None)
    assert amounts("tasks:Endless-v0", max_episode_steps=30_000)[1:] == (30_000, 30_000, 1, None, 300_000)
    # A method may want shorter iterations; then it has as many more of them.
    monkeypatch.setitem(METHODS, "fm2-ppo", replace(METHODS["fm2-ppo"], samples=2000))
    assert amounts("InvertedPendulum-v5", method="fm2-ppo") == (200, 2000, 200, 10, 100, None)
    assert amounts("Hopper-v5", method="fm2-ppo") == (2500, 2000, 1000, 2, 100, None)
    assert amounts("Hopper-v5", method="fm2-ppo", samples=5000) == (500, 5000, 1000, 5, 100, None)


# ---------------------------------------------------------------------------------------------------------------------
# The same bits
# ---------------------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits_and_another_does_not(done: Run, tmp_path: Path) -> None:
    again, other = trained(tmp_path / "again", 5, "fm2-ppo"), trained(tmp_path / "other", 1, "fm2-ppo", seed=1)
    assert metrics(again.directory) == metrics(done.directory)
    assert checkpoints(again.directory) == checkpoints(done.directory)
    assert metrics(other.directory)[1] != metrics(done.directory)[1]


def test_resuming_goes_on_as_if_nothing_had_happened(done: Run, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    trained(out, 2, "fm2-ppo")
    assert cli("resume", str(out), "--iterations", "5", "--json") == 0
    printed = capsys.readouterr().out
    assert f"resuming from checkpoint 2 in {out}" in printed
    assert json.loads(printed.splitlines()[-1])["iterations"] == 5
    assert metrics(out) == metrics(done.directory)
    assert checkpoints(out) == checkpoints(done.directory)
    assert read_config(out).iterations == 5


def test_a_damaged_checkpoint_costs_an_iteration_and_no_more(done: Run, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    trained(out, 3, "fm2-ppo")
    (out / "checkpoints" / "000003" / "state.safetensors").write_bytes(b"nonsense")
    assert cli("resume", str(out), "--iterations", "5") == 0
    printed = capsys.readouterr().out
    assert "skipped a damaged checkpoint" in printed and "000003" in printed and "from checkpoint 2" in printed
    assert metrics(out) == metrics(done.directory) and checkpoints(out) == checkpoints(done.directory)
    for path in out.glob("checkpoints/*/manifest.json"):
        path.unlink()
    before = contents(out)
    assert cli("resume", str(out), "--iterations", "6") == 3
    error = capsys.readouterr().err
    assert "no checkpoint can be read" in error and len(error.splitlines()) == 1
    assert contents(out) == before, "a run whose checkpoints are all damaged is not begun anew"


@pytest.mark.parametrize("command", ["eval", "watch", "export", "report"])
def test_a_damaged_checkpoint_that_is_not_used_is_named(command: str, done: Run, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    shutil.copytree(done.directory, out)
    damaged = out / "checkpoints" / "000005" / "state.safetensors"
    damaged.write_bytes(b"nonsense")
    more = {"eval": ["--episodes", "1"], "watch": ["--steps", "3", "--format", "gif"]}.get(command, [])
    assert cli(command, str(out), *more) == 0
    sentence = f"skipped a damaged checkpoint: {damaged}: its contents do not match its checksum"
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith(sentence)]
    if command == "report":
        assert sentence in (out / "report.html").read_text(encoding="utf8")
    if command == "eval":
        with pytest.warns(UserWarning, match="skipped a damaged checkpoint"):
            assert load(out).checkpoint == 4


def test_a_crash_between_metrics_and_checkpoint_leaves_no_trace(done: Run, tmp_path: Path, monkeypatch: Any) -> None:
    """At the initialisation, where there is no checkpoint yet, and later."""

    class Crash(BaseException):
        pass

    out, saved = tmp_path / "run", RunDirectory.save
    for at in (0, 2):

        def save(self: RunDirectory, training: Any, at: int = at) -> Path:
            if training.iteration == at:
                raise Crash
            return saved(self, training)

        monkeypatch.setattr(RunDirectory, "save", save)
        with pytest.raises(Crash):
            if out.exists():
                cli("resume", str(out))
            else:
                trained(out, 5, "fm2-ppo")
    monkeypatch.setattr(RunDirectory, "save", saved)
    assert cli("resume", str(out), "--quiet") == 0
    assert metrics(out) == metrics(done.directory) and checkpoints(out) == checkpoints(done.directory)


def test_a_finished_run_is_left_alone(done: Run, capsys: Any) -> None:
    before = contents(done.directory)
    assert cli("resume", str(done.directory), "--json") == 0
    printed = capsys.readouterr().out
    assert "all 5 iterations" in printed and "--iterations" in printed
    assert json.loads(printed.splitlines()[-1])["final_return"] == done.results["final_return"]
    assert contents(done.directory) == before
    for wrong, words in (("3", "the 5 iterations already done"), ("-1", "-1")):
        assert cli("resume", str(done.directory), "--iterations", wrong) == 2
        assert words in capsys.readouterr().err
    assert contents(done.directory) == before


def test_results_of_an_evaluation_survive_a_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained(out, 1)
    assert cli("eval", str(out), "--episodes", "2", "--quiet") == 0
    assert cli("resume", str(out), "--iterations", "2", "--quiet") == 0
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert results["iterations"] == 2 and results["evaluation"]["episodes"] == 2


def test_a_second_process_is_refused(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    trained(out, 1)
    before = contents(out)
    with RunDirectory(out).locked():
        assert cli("resume", str(out), "--iterations", "9") == 2
    assert "in use by another process" in capsys.readouterr().err
    assert contents(out) == before, "not even the configuration of a run in use is changed"


# ---------------------------------------------------------------------------------------------------------------------
# Killed and interrupted, in processes of their own
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_seeds_are_two_runs_and_resume_as_one(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["train", "tasks:Drift-v0", "--method", "fm2", "--iterations", "2", "--seed", "3", "--seeds", "2"]
    process = spawn(cache, *command, "--out", str(out), "--json", *FLAGS)
    printed, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    results = json.loads(printed.splitlines()[-1])
    assert [run["seed"] for run in results["runs"]] == [3, 4] and results["failed"] == {}
    assert results["final_return"] == pytest.approx(np.mean([run["final_return"] for run in results["runs"]]))
    alone = trained(tmp_path / "alone", 2, seed=4)
    assert metrics(out / "s4") == metrics(alone.directory) != metrics(out / "s3")
    # One of them is killed in the middle; the whole goes on.
    (out / "s3" / "results.json").unlink()
    again = spawn(cache, "resume", str(out), "--iterations", "3", "--plugin", "tasks", "--json")
    printed, error = again.communicate(timeout=120)
    assert again.returncode == 0, error
    assert [run["iterations"] for run in json.loads(printed.splitlines()[-1])["runs"]] == [3, 3]


def test_several_seeds_give_an_object_of_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_this_process(jobs: list[Job]) -> Iterator[Beat]:
        for job in jobs:
            begin(job)
            resume([job.directory], print, lambda record, pace: None)
            yield Beat([], [(job, None)])

    monkeypatch.setattr(execution, "run_here", in_this_process)
    several = trained(tmp_path / "runs", 2, seed=3, seeds=2)
    assert [run.directory.name for run in several.runs] == ["s3", "s4"] and several.directory == tmp_path / "runs"
    assert [(record["seed"], record["iteration"]) for record in several.metrics] == [(3, 0), (3, 1), (4, 0), (4, 1)]
    assert several.metrics[2:] == [{"seed": 4, **record} for record in several.runs[1].metrics]
    returns = [run.results["final_return"] for run in several.runs]
    assert returns[0] != returns[1] and several.best is several.runs[int(np.argmax(returns))]
    expected = several.best.agent.predict([0.1, 0.2])[0]
    np.testing.assert_array_equal(several.agent.predict([0.1, 0.2])[0], expected)
    # Runs without a return are never the best ones.
    members = tuple(replace(run, results=run.results | {"final_return": None}) for run in several.runs[:1])
    assert replace(several, members=(*members, several.runs[1])).best is several.runs[1]
    assert several.best.runs == [several.best] and several.best.best is several.best


@pytest.mark.slow
def test_a_seed_that_fails_is_named_and_the_others_are_done(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = ["--method", "fm2", "--iterations", "2", "--seeds", "2", "--out", str(out), *FLAGS]
    process = spawn(cache, "train", "tasks:Drift-v0", *flags, BREAK_AFTER="150")
    _, error = process.communicate(timeout=120)
    assert process.returncode == 6 and "2 of 2 runs failed" in error and "gearbox" in error
    assert "Traceback" not in error and f"rpsp resume {out}" in error
    again = spawn(cache, "resume", str(out), "--plugin", "tasks")
    assert again.wait(120) == 0


def test_several_runs_go_on_together_and_each_can_go_on_alone(tmp_path: Path, capsys: Any) -> None:
    outs = [trained(tmp_path / f"s{seed}", 1, seed=seed).directory for seed in (0, 1)]
    assert cli("resume", *map(str, outs), "--iterations", "2", "--json") == 0
    together = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    assert [run["seed"] for run in together] == [0, 1] and [run["iterations"] for run in together] == [2, 2]
    assert cli("resume", str(outs[1]), "--iterations", "3", "--quiet") == 0
    alone = trained(tmp_path / "alone", 3, seed=1)
    returns = [[record["mean_return"] for record in Run(d, {}).metrics] for d in (outs[1], alone.directory)]
    assert returns[0] == pytest.approx(returns[1], rel=1e-3)
    other = trained(tmp_path / "other", 1, "fm1", num_envs=2).directory
    assert cli("resume", str(outs[0]), str(other), "--iterations", "4") == 2
    assert "num_envs: is 2 in " in capsys.readouterr().err
    assert cli("resume", *map(str, outs), "--iterations", "1") == 2


def test_of_several_runs_only_those_that_diverge_fail(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    from rpsp.training import together

    def diverging(recipe: Any, envs: Any, settings: Any, training: Any) -> Any:
        if settings.seed == 1 and training.iteration == 1:
            raise DivergedError("gone astray.")
        return advance(recipe, envs, settings, training)

    advance, outs = together.advance, [trained(tmp_path / f"s{seed}", 1, seed=seed).directory for seed in (0, 1)]
    monkeypatch.setattr(together, "advance", diverging)
    monkeypatch.setattr(together, "advance_together", lambda envs, r, s, t, _: diverging(r[1], envs, s[1], t[1]))
    assert cli("resume", *map(str, outs), "--iterations", "2") == 4
    assert "1 of 2 runs failed: s1: gone astray." in capsys.readouterr().err
    jobs = [Job(out.name, out, replace(read_config(out), iterations=2)) for out in outs]
    assert [settle(job, 4, "rpsp: 1 of 2 runs failed") for job in jobs] == [None, Failure("gone astray.", 4)]


def test_runs_of_a_method_for_a_gpu_are_one_bundle_and_all_others_are_by_themselves(tmp_path: Path) -> None:
    def job(method: str, seed: int, device: str) -> Job:
        config = configured({"env": "tasks:Drift-v0", "method": method, "seed": seed, "device": device})
        return Job(f"{method}/s{seed}", tmp_path, config)

    many = [job("fm2", seed, "gpu") for seed in range(AT_ONCE + 1)]
    few = [job("fm1", 0, "gpu"), job("fm1", 1, "gpu"), job("fm1", 2, "cpu"), job("fm1", 3, "cpu")]
    assert bundles([few[0], *many, *few[1:]]) == [few[:2], many[:-1], many[-1:], [few[2]], [few[3]]]


def test_large_checkpoints_are_written_less_often_and_an_interruption_loses_nothing(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(
        run_writer, "LARGE", 0
    )  # every checkpoint is large, so that each takes its time from ten iterations
    saved: list[int] = []
    save = RunDirectory.save

    def slowly(self: RunDirectory, training: Any) -> Path:
        saved.append(training.iteration)
        time.sleep(0.05)
        return save(self, training)

    monkeypatch.setattr(RunDirectory, "save", slowly)
    whole = trained(tmp_path / "whole", 20)
    assert saved[0] == 0 and saved[-1] == 20 and len(saved) < 15

    def interrupt(record: Any, pace: Any) -> None:
        if record.get("iteration") == 9:
            raise KeyboardInterrupt

    out = tmp_path / "run"
    given = TINY | {"env": "tasks:Drift-v0", "method": "fm2", "iterations": 20, "out": str(out)}
    with pytest.raises(KeyboardInterrupt):
        start(configured(given), lambda line: None, interrupt)
    assert RunDirectory(out).numbers()[-1] == 10
    assert cli("resume", str(out), "--quiet") == 0
    assert metrics(out) == metrics(whole.directory)


# ---------------------------------------------------------------------------------------------------------------------
# Environments that fail
# ---------------------------------------------------------------------------------------------------------------------


def test_an_environment_that_raises_ends_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    out = tmp_path / "run"
    monkeypatch.setenv("BREAK_AFTER", "400")
    code = cli("train", "tasks:Drift-v0", "--method", "fm2", "--iterations", "9", "--out", str(out), *FLAGS)
    first, *rest = capsys.readouterr().err.splitlines()
    assert code == 6 and "Drift-v0" in first and "gearbox" in first
    assert rest == [f"all finished iterations are saved; to continue: rpsp resume {out} --plugin tasks"]
    saved = RunDirectory(out).numbers()[-1]
    assert 0 < saved < 9
    monkeypatch.delenv("BREAK_AFTER")
    assert cli("resume", str(out), "--quiet") == 0
    whole = trained(tmp_path / "whole", 9)
    assert metrics(out) == metrics(whole.directory) and checkpoints(out) == checkpoints(whole.directory)


def test_an_environment_that_raises_at_once_leaves_no_directory(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("BREAK_AFTER", "10")
    assert cli("train", "tasks:Drift-v0", "--method", "fm2", "--out", str(tmp_path / "run"), *FLAGS) == 6
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_an_episode_with_a_number_that_is_none_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setenv("NAN_AFTER", "250")
    flags = ["--method", "fm2", "--iterations", "5", "--out", str(tmp_path / "run"), "--json"]
    assert cli("train", "tasks:Drift-v0", *flags, *FLAGS) == 0
    printed = capsys.readouterr().out
    records = Run(tmp_path / "run", {}).metrics
    assert [r["dropped_episodes"] for r in records].count(1) == 1 and len(records) == 5
    assert all(np.isfinite(r["mean_return"]) for r in records)
    assert printed.count("dropped 1") == 1 and json.loads(printed.splitlines()[-1])["dropped_episodes"] == 1


@pytest.mark.parametrize("observe", [[0], (0,), np.array([0]), range(1)])
def test_observe_may_be_a_sequence_and_numbers_numpys(observe: Any, tmp_path: Path) -> None:
    """As the guide to environments of one's own has it."""
    config = configured(
        {"env": "CartPole-v1", "method": "fm2", "observe": observe, "seed": np.int64(1), "max_kl": np.float32(0.5)}
    )
    assert config.sensors.observe == "0" and config.settings.max_kl == 0.5
    assert type(config.seed) is int and config.seed == 1
    json.dumps(asdict(config))
    with pytest.raises(UsageError, match=r"max_kl: .*inf.* is not a finite number"):
        configured({"env": "CartPole-v1", "method": "fm2", "max_kl": np.float32(np.inf)})


def test_the_form_that_the_guide_shows_trains(tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "own_environment.md"
    assert "`observe=[0, 2]`" in guide.read_text(encoding="utf8")
    run = trained(tmp_path / "run", 1, env="CartPole-v1", observe=[0, 2], seed=np.int64(1), max_episode_steps=20)
    assert run.agent.scaling.mean.shape == (2,) and read_config(run.directory).sensors.observe == "0,2"


@pytest.mark.parametrize("observe", [[0.5], 3, [True], [None]])
def test_observe_of_anything_else_is_one_sentence(observe: Any) -> None:
    with pytest.raises(UsageError, match=r"observe=.* is not understood; give all, positions, or indices, as in"):
        configured({"env": "CartPole-v1", "observe": observe})


def test_wrong_values_are_one_sentence_where_nothing_checks_annotations(tmp_path: Path) -> None:
    """In a process of its own, because the annotations are checked in this one."""
    program = """
import rpsp, rpsp.errors
for wrong in (
    lambda: rpsp.train(None),
    lambda: rpsp.train("CartPole-v1", seed=1.5),
    lambda: rpsp.make("CartPole-v1", observe=[0.5]),
    lambda: rpsp.PredictiveStateModel(seed="a"),
):
    try:
        wrong()
    except rpsp.errors.UsageError as error:
        print(error)
"""
    process = spawn(tmp_path / "compiled", code=program, PYTHONIOENCODING="utf-8")
    said, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    train, seed, make, model = said.splitlines()
    assert train.startswith("env: None is neither a Gymnasium id") and "a function without arguments" in train
    assert seed == "seed: 1.5 is not a whole number."
    assert make.startswith("observe=[0.5] is not understood")
    assert model == "seed: 'a' is not a whole number ≥ 0."


def test_a_factory_trains_and_loads_but_cannot_be_kept_in_a_file(tmp_path: Path, monkeypatch: Any) -> None:
    out = tmp_path / "run"
    run = trained(out, 1, env=Drift, max_episode_steps=20)
    assert metrics(out)[1:] == metrics(trained(tmp_path / "named", 1).directory)[1:]
    action, _ = load(out).predict(np.zeros(2))
    assert action.shape == (1,) and run.results["env"] == "a factory"
    with pytest.raises(UsageError, match="envs"):
        load(out).evaluate(1)
    assert cli("resume", str(out), "--iterations", "2") == 2
    with pytest.raises(UsageError, match="seeds: 2 seeds are trained in separate processes"):
        trained(tmp_path / "two", 1, env=Drift, max_episode_steps=20, seeds=2)
    monkeypatch.setenv("BREAK_AFTER", str(Drift.steps + 300))
    with pytest.raises(EnvironmentFailure, match="gearbox") as caught:
        trained(tmp_path / "broken", 50, env=Drift, max_episode_steps=20)
    assert "go on with" not in str(caught.value.__notes__)
    assert load(tmp_path / "broken").checkpoint


@pytest.mark.parametrize("before", ["missing", "empty"])
@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_fails_at_once_leaves_an_empty_directory_as_it_was(
    before: str, seeds: int, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    out = tmp_path / "run"
    if before == "empty":
        out.mkdir()
    monkeypatch.setenv("BREAK_AFTER", "10")
    monkeypatch.setenv("PYTHONPATH", PATH)
    more = [] if seeds == 1 else ["--seeds", str(seeds)]
    assert cli("train", "tasks:Drift-v0", "--method", "fm2", "--out", str(out), "--quiet", *FLAGS, *more) == 6
    assert "gearbox" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == (["run"] if before == "empty" else [])


def test_a_run_that_fails_at_once_removes_no_file_of_the_user(tmp_path: Path) -> None:
    out = tmp_path / "run"

    class Logging(Drift):
        """Writes into the run directory, then fails."""

        def step(self, action: Any) -> Any:
            (out / "notes.txt").write_text("mine", encoding="utf-8")
            raise RuntimeError("the gearbox is gone")

    with pytest.raises(EnvironmentFailure, match="gearbox"):
        trained(out, 1, env=Logging, max_episode_steps=20)
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes
# ---------------------------------------------------------------------------------------------------------------------

MISTAKES = {
    "no environment": ([], 2, "env: no environment"),
    "unknown environment": (["InvertedPendulm-v5"], 2, "did you mean InvertedPendulum-v5"),
    "unknown environment of a module": (["tasks:Drft-v0"], 2, "did you mean tasks:Drift-v0"),
    "environment of one's own": (["Drft-v7"], 2, "module:Env-v0"),
    "unknown module": (["tasksss:Drift-v0"], 2, "tasksss"),
    "unknown method": (["tasks:Drift-v0", "--method", "rpsi-trop"], 2, "did you mean 'rpsi-trpo'?"),
    "unknown row": (["tasks:Drift-v0", "--method", "tasks:nothing"], 2, "tasks:nothing"),
    "unknown row's module": (["tasks:Drift-v0", "--method", "missing:row"], 2, "missing:row"),
    "not a row": (["tasks:Drift-v0", "--method", "tasks:Drift"], 2, "'tasks:Drift' is a type, not an rpsp.Method"),
    "unknown plugin": (["tasks:Drift-v0", "--plugin", "missing"], 2, "plugin: 'missing'"),
    "unknown flag": (["tasks:Drift-v0", "--max-kll", "1"], 2, "max-kl"),
    "unknown device": (["tasks:Drift-v0", "--device", "abacus"], 2, "abacus"),
    "text": (["tasks:InADict-v0"], 2, "observations (words): are in a Text space"),
    "stacked images": (["tasks:AnImage-v0"], 2, "4-D Box of shape (4, 8, 8, 3), and at most 3 dimensions"),
    "sequences": (["tasks:ManyActions-v0"], 2, "actions: are in a Sequence space"),
    "whole actions": (["tasks:WholeActions-v0"], 2, "whole numbers"),
    "no bounds for SAC": (["tasks:Unbounded-v0", "--method", "fm2-sac", *FLAGS], 2, "give them bounds"),
    "a reset without a seed": (["tasks:Seedless-v0", *FLAGS], 2, "Seedless.reset takes no seed and no options; define"),
    "a word for a count": (["tasks:Drift-v0", "--iterations", "abc"], 2, "iterations: 'abc' is not a whole number; see"),
    "a word for a step": (["tasks:Drift-v0", "--method", "fm2", "--max-kl=x"], 2, "max_kl: 'x' is not a number; see"),
    "commas in a list": (["tasks:Drift-v0", "--hidden", "16,16"], 2, "'16,16' is not a list of whole numbers, as in"),
    "another command's flag": (["tasks:Drift-v0", "--jobs", "2"], 2, "no option of `rpsp train`; it is one of `rpsp"),
    "two plugins": (["tasks:Drift-v0", "--plugin", "a", "--plugin=b"], 2, "plugin: is given more than once; give several"),
    "too late": (["tasks:Drift-v0", "--act-latency", "20"], 2, "act_latency: 20 steps is not less than"),
    "no time limit": (["tasks:Endless-v0"], 2, "no time limit; give one, for example --max-episode-steps 1000 ("),
    "batch smaller than an episode": (["tasks:Drift-v0", "--samples", "19"], 2, "less than one episode"),
    "existing directory": (["tasks:Drift-v0", "--out", "there"], 2, "is not empty; choose another directory"),
    "existing run": (["tasks:Drift-v0", "--out", "run"], 2, "continue it with `rpsp resume run`"),
    "file for directory": (["tasks:Drift-v0", "--out", "there/precious"], 2, "exists"),
    "beneath a file": (["tasks:Drift-v0", "--out", "there/precious/run"], 5, "there/precious/run"),
    "samples": (["tasks:Drift-v0", "--samples", "0"], 2, "samples: 0"),
    "iterations": (["tasks:Drift-v0", "--iterations", "-1"], 2, "iterations: -1"),
    "seeds": (["tasks:Drift-v0", "--seeds", "0"], 2, "seeds: 0"),
    "seed": (["tasks:Drift-v0", "--seed", "-1"], 2, "seed: -1"),
    "environments": (["tasks:Drift-v0", "--num-envs", "0"], 2, "num_envs: 0"),
    "threads": (["tasks:Drift-v0", "--threads", "-2"], 2, "threads: -2"),
    "exploration twice": (
        ["tasks:Drift-v0", "--exploration-episodes", "9", "--exploration-samples", "90"], 2, "exploration_samples: 90",
    ),
    "exploration": (["tasks:Drift-v0", "--exploration-episodes", "0"], 2, "exploration_episodes: 0"),
    "episode": (["tasks:Drift-v0", "--max-episode-steps", "0"], 2, "max_episode_steps"),
    "kl": (["tasks:Drift-v0", "--method", "fm2", "--max-kl", "0"], 2, "max_kl"),
    "learning rate": (["tasks:Drift-v0", "--method", "fm2-ppo", "--learning-rate", "-1"], 2, "learning_rate"),
    "discount": (["tasks:Drift-v0", "--discount", "1.5"], 2, "discount"),
    "past": (["tasks:Drift-v0", "--past", "0"], 2, "past: 0"),
    "future": (["tasks:Drift-v0", "--future", "-1"], 2, "future: -1"),
    "dimension": (["tasks:Drift-v0", "--dimension", "0"], 2, "dimension: 0"),
    "epochs": (["tasks:Drift-v0", "--method", "rpsp-alt", "--epochs", "-1"], 2, "epochs: -1"),
    "window": (["tasks:Drift-v0", "--method", "fm2", "--window", "0"], 2, "window: 0"),
    "hidden": (["tasks:Drift-v0", "--hidden", "16", "0"], 2, "hidden: (16, 0)"),
    "plus_obs": (["tasks:Drift-v0", "--plus-obs", "-1"], 2, "plus_obs: -1"),
    "spread": (["tasks:Drift-v0", "--log-std", "nan"], 2, "log_std"),
    "noise": (["tasks:Drift-v0", "--obs-noise", "-1"], 2, "obs_noise"),
    "observe": (["tasks:Drift-v0", "--observe", "7"], 2, "7"),
    "windows longer than any episode": (["tasks:Drift-v0", "--future", "30", *FLAGS], 2, "smaller future"),
    "tables of numbers": (["tasks:Drift-v0", "--method", "tabular", *FLAGS], 2, "tabular is for symbols"),
    "a word for a number": (["tasks:Drift-v0", "--samples", "many"], 2, "many"),
    "missing file": (["tasks:Drift-v0", "--config", "missing.toml"], 2, "missing.toml"),
    "not toml": (["tasks:Drift-v0", "--config", "not.toml"], 2, "is not TOML"),
    "misspelt key": (["tasks:Drift-v0", "--config", "misspelt.toml"], 2, "did you mean 'iterations'?"),
    "text for a number": (["--config", "text.toml"], 2, "text.toml: samples: 'many' is not a whole number"),
    "number for a text": (["--config", "number.toml"], 2, "number.toml: method: 3 is not a string"),
    "number for a plugin": (["--config", "plugin.toml"], 2, "plugin.toml: plugin: 3 is not a string"),
    "number for a list": (["--config", "list.toml"], 2, "list.toml: hidden: 16 is not a list"),
    "true for a number": (["--config", "true.toml"], 2, "true.toml: seed: True is not a whole number"),
    "infinity": (["--config", "infinite.toml"], 2, "infinite.toml: max_kl: inf is not a finite number"),
    "resume nothing": (["resume", "nowhere"], 3, "nowhere: is not a directory"),
    "resume something else": (["resume", "there"], 3, "there: contains no config.json"),
    "resume a fit": (["resume", "fitted"], 3, "not the configuration of an `rpsp train` run"),
    "resume rubbish": (["resume", "rubbish"], 3, "is not JSON"),
    "eval nothing": (["eval", "nowhere"], 3, "nowhere: is not a directory"),
}  # fmt: skip

FILES = {
    "not.toml": "samples = = 3",
    "misspelt.toml": "iteratons = 3",
    "text.toml": 'env = "tasks:Drift-v0"\nsamples = "many"',
    "number.toml": "method = 3",
    "plugin.toml": "plugin = 3",
    "list.toml": 'env = "tasks:Drift-v0"\nhidden = 16',
    "true.toml": 'env = "tasks:Drift-v0"\nseed = true',
    "infinite.toml": 'env = "tasks:Drift-v0"\nmethod = "fm2"\nmax_kl = inf',
    "there/precious": "data",
    "run/checkpoints/000001/agent": "",
    "fitted/config.json": '{"source": "Hopper-v5", "sensors": {}}',
    "rubbish/config.json": "{",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing(mistake: str, tmp_path: Path, capsys: Any) -> None:
    arguments, code, words = MISTAKES[mistake]
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    before = {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    command = arguments if arguments[:1] in (["resume"], ["eval"]) else ["train", *arguments]
    assert cli(*command) == code
    error = capsys.readouterr().err
    assert words in error and len(error.splitlines()) == 1 and error.startswith("rpsp: ")
    assert {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_what_fails_all_seeds_alike_is_said_once_and_leaves_nothing(tmp_path: Path, capsys: Any) -> None:
    flags = ["--device", "gpu", "--seeds", "2", "--out", str(tmp_path / "run")]
    assert cli("train", "InvertedPendulum-v5", *flags) == 2
    assert capsys.readouterr().err.startswith("rpsp: device: jax finds no GPU;")
    assert not (tmp_path / "run").exists()


def test_a_reading_that_never_changes_is_told(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    flags = ["--method", "fm2", "--iterations", "0", *FLAGS]
    assert cli("train", "tasks:Drift-v0", "--out", str(tmp_path / "moving"), *flags) == 0
    assert "never changed" not in capsys.readouterr().out
    monkeypatch.setattr(Drift, "observe", lambda self: np.array([self.x[0], 3.0]))
    assert cli("train", "tasks:Drift-v0", "--out", str(tmp_path / "dead"), *flags) == 0
    assert "; 1 observations never changed" in capsys.readouterr().out


def test_time_is_foretold_without_the_iteration_that_compiles(monkeypatch: Any) -> None:
    now = iter([60.0, 61.0, 62.0])
    monkeypatch.setattr("rpsp.experiments.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    pace = Pace(100)
    pace.advance(1)
    assert pace.eta == "–"
    pace.advance(2)
    assert pace.eta == "1:38"  # a second each
    pace.advance(3)
    assert pace.eta == "1:37"


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (1618.4, 195.7, "1,620 ± 200"),
        (127_459.0, 8514.0, "127,500 ± 8,500"),
        (46.53, 1.77, "46.5 ± 1.8"),
        (46.53, 0.0123, "46.530 ± 0.012"),
        (199.9871, 0.0363, "199.99 ± 0.04"),
        (36_124.0, 0.0363, "36,124.00 ± 0.04"),
        (2.4, 0.024, "2.400 ± 0.024"),
        (0.02345, 0.000123, "0.02345 ± 0.00012"),
        (12.34, 9.96, "12 ± 10"),  # an error that is rounded up has no third digit
        (-100.52, 11.9, "-101 ± 12"),
        (-3.0, 4500.0, "0 ± 4,500"),
        (0.0, 0.5, "0.00 ± 0.50"),
        (500.0, 0.0, "500.0 ± 0"),
        (868.7, np.nan, "868.7"),
        (np.nan, 1.0, "–"),
        (None, None, "–"),
    ],
)
def test_mean_and_error_are_rounded_to_the_same_digit(mean: Any, error: Any, text: str) -> None:
    assert mean_with_error(mean, error) == text


CHANGED = {
    "action_space": Box(-2.0, 4.0, (1,), np.float32),
    "observation_space": Box(-np.inf, np.inf, (3,), np.float64),
}


def test_an_environment_that_is_no_longer_what_it_was_is_refused(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    out = trained(tmp_path / "run", 1).directory
    kept = (out / "spaces.json").read_bytes()
    for name, space in CHANGED.items():
        with monkeypatch.context() as patch:
            patch.setattr(Drift, name, space)
            for command in (["eval"], ["export"], ["resume", "--iterations", "2"]):
                assert cli(command[0], str(out), *command[1:]) == 2
                what = name.removesuffix("_space")
                assert (
                    f"rpsp: env: its {what} space is {space}, but the run was trained with Box("
                    in capsys.readouterr().err
                )
    assert (out / "spaces.json").read_bytes() == kept
    assert cli("resume", str(out), "--iterations", "2") == 0
    assert metrics(out) == metrics(trained(tmp_path / "whole", 2).directory)


def test_the_time_of_a_run_is_that_of_all_its_parts(tmp_path: Path) -> None:
    out = trained(tmp_path / "run", 1).directory
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").replace('"acting_seconds": ', '"acting_seconds": 100')
    (out / "metrics.jsonl").write_text(lines, encoding="utf-8")
    assert cli("resume", str(out), "--iterations", "2") == 0
    assert json.loads((out / "results.json").read_text(encoding="utf-8"))["wall_seconds"] > 100


SLOW = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(0.01); print('imported')"


def test_an_import_is_not_cut_short(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "slowly.py").write_text(SLOW, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = spawn(
        cache, "train", "CartPole-v1", "--plugin", "slowly", "--out", str(tmp_path / "run"), PYTHONPATH=path
    )
    said, complained = process.communicate(timeout=100)
    assert process.returncode == 130 and "imported" in said
    assert complained.startswith("rpsp: interrupted; ") and len(complained.splitlines()) == 1


def test_a_disk_that_is_full_is_said_and_the_run_can_be_resumed(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    real, out = os.fsync, tmp_path / "run"

    def full(descriptor: int) -> None:
        if (RunDirectory(out).numbers() or [0])[-1] >= 2:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    flags = ["--method", "fm2", "--iterations", "4", "--out", str(out), "--quiet"]
    assert cli("train", "tasks:Drift-v0", *flags, *FLAGS) == 5
    first, *rest = capsys.readouterr().err.splitlines()
    assert "No space left" in first and rest == [
        f"all finished iterations are saved; to continue: rpsp resume {out} --plugin tasks"
    ]
    monkeypatch.setattr(os, "fsync", real)
    assert cli("resume", str(out), "--quiet") == 0
    assert metrics(out) == metrics(trained(tmp_path / "whole", 4).directory)


def test_an_iteration_acts_while_the_one_before_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    from rpsp.training import loop as training

    collect, append, acting = training.collect, RunDirectory.append, threading.Event()

    def noticed(*given: Any, **named: Any) -> Any:
        if named["iteration"] == 1:
            acting.set()
        return collect(*given, **named)

    def slow(self: RunDirectory, record: Any) -> None:
        if record.get("iteration") == 0:
            assert acting.wait(30)
        append(self, record)

    monkeypatch.setattr(training, "collect", noticed)
    monkeypatch.setattr(RunDirectory, "append", slow)
    run = trained(tmp_path / "run", 2)
    assert [r["iteration"] for r in run.metrics] == [0, 1] and RunDirectory(run.directory).numbers()[-1] == 2


def test_an_agent_that_diverges_is_reported(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    from rpsp.training import loop as training

    real = training.collect

    def collect(agent: Any, *given: Any, **named: Any) -> Any:
        import equinox as eqx

        if named["iteration"] == 2:
            agent = eqx.tree_at(lambda a: a.policy.log_std, agent, replace_fn=lambda x: x * np.nan)
        return real(agent, *given, **named)

    monkeypatch.setattr(training, "collect", collect)
    out = tmp_path / "run"
    flags = ["--method", "fm2", "--iterations", "4", "--out", str(out), "--quiet"]
    assert cli("train", "tasks:Drift-v0", *flags, *FLAGS) == 4
    assert "iteration 2" in capsys.readouterr().err and RunDirectory(out).numbers() == [0, 1, 2]


# ---------------------------------------------------------------------------------------------------------------------
# Configurations
# ---------------------------------------------------------------------------------------------------------------------


def test_a_file_of_settings_and_flags_that_go_before_it(tmp_path: Path, monkeypatch: Any) -> None:
    started: list[Any] = []

    def instead(config: Any, *_: Any, **__: Any) -> Any:
        started.append(config)
        raise UsageError("enough")

    monkeypatch.setattr("rpsp.experiments.runs.start", instead)
    (tmp_path / "mine.toml").write_text(
        'env = "tasks:Drift-v0"\nmethod = "fm5"\nsamples = 500\nmax-kl = 0.05\nhidden = [8, 8]\nobs_noise = 1\n'
    )
    cli("train", "--config", "mine.toml")
    cli("train", "CartPole-v1", "--config=mine.toml", "--samples", "900", "--method=fm1", "--obs-noise", "0.5")
    cli("train", "CartPole-v1", "--method", "rpsi-ppo")
    file, flags, row = started
    assert (file.env, file.method, file.samples, file.settings.max_kl) == ("tasks:Drift-v0", "fm5", 500, 0.05)
    assert file.settings.hidden == (8, 8) and file.sensors.obs_noise == 1.0 and file.settings.window == 5
    assert (flags.env, flags.method, flags.samples, flags.settings.max_kl) == ("CartPole-v1", "fm1", 900, 0.05)
    assert flags.settings.window == 1 and flags.sensors.obs_noise == 0.5 and flags.settings.hidden == (8, 8)
    assert row.settings.hidden == (64, 64) and row.settings.refit_before, "the row's defaults, not those of another"


def test_nothing_is_begun_for_an_environment_without_a_name() -> None:
    with pytest.raises(UsageError, match="not a Gymnasium id"):
        start(configured({"env": "a factory"}), print, lambda *_: None)
    assert tasks.Drift is Drift
