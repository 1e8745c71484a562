"""Sweeps: what a file means, what a mistake in it says, and that no interruption changes a number."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from commands import cli, contents, trained
from processes import TINY, checkpoints, metrics, spawn

from rpsp.errors import UsageError
from rpsp.experiments.results import read_results
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.sweeps import Speed, Standing, Sweep, expected_speed, prepare, remaining_seconds
from rpsp.experiments.workers import FAILURE

pytestmark = pytest.mark.usefixtures("elsewhere")

AMOUNTS: dict[str, Any] = {name: value for name, value in TINY.items() if name != "threads"}
SMALL: dict[str, Any] = {"tasks": ["tasks:Drift-v0"], "methods": ["fm2"], "iterations": 2, **AMOUNTS}


def toml(content: dict[str, Any]) -> str:
    """A table of settings as TOML."""

    def word(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{name} = {word(inner)}" for name, inner in value.items()) + "}"
        return "[" + ", ".join(map(word, value)) + "]" if isinstance(value, list) else json.dumps(value)

    return "".join(f"{name} = {word(value)}\n" for name, value in content.items())


def places(**given: Any) -> list[str]:
    return [run.place for run in Sweep.of(SMALL | given).runs]


# ---------------------------------------------------------------------------------------------------------------------
# What a file means
# ---------------------------------------------------------------------------------------------------------------------


def test_every_combination_is_a_run_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'tasks = ["Hopper-v5", {env = "Swimmer-v5", obs_noise = 0.1, iterations = 7}]\n'
        'methods = ["reg-gru", {method = "rpsp-alt", dimension = 10}]\n'
        "seeds = [3, 5]\nmax-kl = 0.02\n[grid]\nlearning_rate = [1e-2, 1e-3]\nhidden = [[8], [8, 8]]\n"
    )
    sweep = Sweep.read(tmp_path / "mine.toml")
    assert sweep.name == "mine" and len(sweep.runs) == len({run.place for run in sweep.runs}) == 2 * 2 * 2 * 2 * 2
    assert [run.config.seed for run in sweep.runs] == [3] * 16 + [5] * 16, "one seed of everything first"
    found = {run.place: run.config for run in sweep.runs}
    config = found["Swimmer-v5__obs_noise=0.1/rpsp-alt__hidden=8__max_kl=0.02__learning_rate=0.01__dimension=10/s5"]
    assert config.sensors.obs_noise == 0.1 and config.iterations == 7 and config.settings.dimension == 10
    assert {r.config.settings.max_kl for r in sweep.runs} == {0.02}
    assert Sweep.of(dict(SMALL, seeds=2)).runs == Sweep.of(dict(SMALL, seeds=[0, 1])).runs


def test_a_place_depends_on_the_run_alone() -> None:
    """So a sweep can be extended and what is done stays done."""
    assert places(tasks=["Hopper-v5"]) == ["Hopper-v5/fm2/s0"]
    assert places(tasks=["Hopper-v5"], methods=["fm2", "fm5"], seeds=2)[0] == "Hopper-v5/fm2/s0"
    assert places(tasks=[{"env": "Hopper-v5", "observe": "all"}]) == ["Hopper-v5__observe=all/fm2/s0"]
    rates = places(tasks=["Hopper-v5"], methods=["rpsp-alt"], grid={"learning_rate": [1e-3, 1e-2]})
    assert rates == ["Hopper-v5/rpsp-alt/s0", "Hopper-v5/rpsp-alt__learning_rate=0.01/s0"], "1e-3 is the default"
    del SMALL["samples"]
    try:
        sizes = places(tasks=["Hopper-v5"], grid={"samples": [1000, 2000]})
    finally:
        SMALL["samples"] = TINY["samples"]
    assert sizes == ["Hopper-v5/fm2__samples=1000/s0", "Hopper-v5/fm2__samples=2000/s0"]
    own = places(tasks=["Hopper-v5"], methods=["tasks:tracing"], grid={"max_kl": [0.02, 0.03]})
    assert len(set(own)) == 2, "the defaults of one's own method are not known"


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no tasks": ({"tasks": None}, "mine: tasks: None is not a list"),
    "empty tasks": ({"tasks": []}, "mine: tasks: [] is not a list with entries"),
    "a task alone": ({"tasks": "Hopper-v5"}, "mine: tasks: 'Hopper-v5' is not a list"),
    "a number for a task": ({"tasks": [3]}, "mine: tasks: 3 is not a table of settings."),
    "a task without a name": ({"tasks": [{"obs_noise": 0.1}]}, "names no env"),
    "a method in a task": ({"tasks": [{"env": "Hopper-v5", "method": "fm2"}]}, "tasks: method: cannot be given in an entry"),
    "an unknown task's setting": ({"tasks": [{"env": "a", "obs_nois": 1}]}, "tasks: obs_nois: there is no such setting; "
                                  "did you mean 'obs_noise'?"),
    "a task twice": ({"tasks": ["Hopper-v5", {"env": "Hopper-v5"}]}, "occurs twice; give every run once."),
    "the same task in other words": ({"tasks": ["Hopper-v5", {"env": "Hopper-v5", "obs_noise": 0.0}]},
                                     "the run Hopper-v5/fm2/s0 occurs twice"),
    "only its length differs": ({"iterations": None, "tasks": [{"env": "Hopper-v5", "iterations": 3},
                                {"env": "Hopper-v5", "iterations": 4}]}, "with a different iterations"),
    "empty methods": ({"methods": []}, "mine: methods: [] is not a list with entries"),
    "an unknown method": ({"methods": ["fm3"]}, "method: 'fm3' is not one of"),
    "a method twice": ({"methods": ["fm2", "fm2"]}, "methods: 'fm2' occurs twice"),
    "zero seeds": ({"seeds": 0}, "mine: seeds: 0 is neither a whole number ≥ 1 nor a list"),
    "no seeds": ({"seeds": []}, "mine: seeds: [] is neither"),
    "true seeds": ({"seeds": True}, "mine: seeds: True is neither"),
    "half a seed": ({"seeds": [0.5]}, "mine: seeds: [0.5] is neither"),
    "a negative seed": ({"seeds": [-1]}, "mine: seeds: [-1] is neither"),
    "a seed twice": ({"seeds": [1, 1]}, "mine: seeds: [1, 1] contains a seed twice"),
    "a seed alone": ({"seed": 3}, "mine: seed: cannot be given in a sweep; use seeds."),
    "threads": ({"threads": 2}, "mine: threads: cannot be given in a sweep"),
    "an unknown key": ({"iteratons": 3}, "mine: iteratons: there is no such setting; did you mean 'iterations'?"),
    "an unknown list": ({"task": ["Hopper-v5"]}, "mine: task: cannot be given in a sweep; use tasks."),
    "environments": ({"envs": ["Hopper-v5"]}, "mine: envs: cannot be given in a sweep; use tasks."),
    "an environment alone": ({"tasks": None, "env": "Hopper-v5"}, "mine: env: cannot be given in a sweep; use tasks."),
    "an unknown key of the grid": ({"grid": {"learning_rat": [1.0]}}, "grid: learning_rat: there is no such setting"),
    "a grid of nothing": ({"grid": {"max_kl": []}}, "mine: grid: max_kl: [] is not a list of values to try."),
    "a grid of one": ({"grid": {"max_kl": 0.1}}, "mine: grid: max_kl: 0.1 is not a list of values to try."),
    "a grid of methods": ({"grid": {"method": ["fm2"]}}, "grid: method: cannot be given in a grid; use methods."),
    "not a grid": ({"grid": 3}, "mine: grid: 3 is not a table of settings."),
    "a value twice": ({"grid": {"max_kl": [0.1, 0.1]}}, "fm2__max_kl=0.1/s0 occurs twice"),
    "grid and top": ({"max_kl": 0.1, "grid": {"max_kl": [0.2]}},
                     "max_kl: is given for every run (0.1) and in grid (0.2); give one."),
    "grid and method": ({"methods": [{"method": "fm2", "max_kl": 0.1}], "grid": {"max_kl": [0.2]}},
                        "max_kl: is given for methods (0.1) and in grid (0.2)"),
    "task and top": ({"tasks": [{"env": "Hopper-v5", "iterations": 3}]},
                     "iterations: is given for every run (2) and in tasks (3); give one."),
    "text for a number": ({"max_kl": "small"}, "mine: max_kl: 'small' is not a finite number."),
    "text in the grid": ({"grid": {"max_kl": ["small"]}}, "mine: max_kl: 'small' is not a finite number."),
    "a plugin that is none": ({"plugin": "missing"}, "plugin: 'missing' cannot be imported"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_sweep_is_one_sentence(mistake: str) -> None:
    given, words = MISTAKES[mistake]
    content = {name: value for name, value in (SMALL | given).items() if value is not None or name == "tasks"}
    with pytest.raises(UsageError) as caught:
        Sweep.of(content, where="mine: ")
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_mistake_that_only_the_environment_knows_is_found_before_anything_runs(tmp_path: Path, capsys: Any) -> None:
    for given, words in (
        ({"tasks": ["Hoper-v5"]}, "did you mean"),
        ({"samples": 19}, "less than one episode"),
        ({"max_kl": -1.0}, "max_kl"),
    ):
        (tmp_path / "mine.toml").write_text(toml(SMALL | given), encoding="utf-8")
        assert cli("sweep", "mine.toml") == 2
        error = capsys.readouterr().err
        assert words in error and len(error.splitlines()) == 1
    for flags, words in ((["--jobs", "0"], "jobs: 0"), (["--address", "a:1"], "give --backend ray")):
        assert cli("sweep", "mine.toml", *flags) == 2
        assert words in capsys.readouterr().err
    assert cli("sweep", "missing.toml") == 2 and "missing.toml" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# ---------------------------------------------------------------------------------------------------------------------
# How long it will take
# ---------------------------------------------------------------------------------------------------------------------


def test_what_is_left_is_reckoned_from_runs_of_the_same_kind_or_guessed(tmp_path: Path) -> None:
    sweep = Sweep.of(SMALL | {"tasks": ["Hopper-v5"], "methods": ["fm2", "fm5"], "seeds": 3, "samples": 2000,
                              "iterations": 10})  # fmt: skip
    jobs = {job.name: job for job in prepare(sweep, tmp_path)}
    new = {name: Standing(job, 0, False, False, None, None) for name, job in jobs.items()}
    started = json.loads((Path(rpsp_file()) / "speeds.json").read_text(encoding="utf-8"))["start_seconds"]
    guess = expected_speed(jobs["Hopper-v5/fm2/s0"].config)
    one = started + guess.initial_seconds + 10 * guess.iteration_seconds
    assert remaining_seconds(list(new.values()), 6) == (pytest.approx(one), 6), "all at once"
    assert remaining_seconds(list(new.values()), 2) == (pytest.approx(3 * one), 6), "three after one another"
    double = expected_speed(
        next(iter(prepare(Sweep.of(SMALL | {"tasks": ["Hopper-v5"], "samples": 4000}), tmp_path))).config
    )
    assert double.iteration_seconds == pytest.approx(2 * guess.iteration_seconds), "in proportion to samples"
    # Of fm2 one is done and one is halfway: they tell how long the third takes, and nobody tells of fm5.
    speeds = Speed(100.0, 3.0), Speed(100.0, 5.0)
    for seed, (done, speed) in enumerate(zip((10, 5), speeds, strict=True)):
        name = f"Hopper-v5/fm2/s{seed}"
        new[name] = Standing(jobs[name], done, done == 10, True, speed, 0.0)
    seconds, guessed = remaining_seconds(list(new.values()), 1)
    assert guessed == 3 and seconds == pytest.approx(2 * started + 5 * 4.0 + 100.0 + 10 * 4.0 + 3 * one)


def rpsp_file() -> Path:
    import rpsp.experiments.sweeps

    return Path(rpsp.experiments.sweeps.__file__).parent


# ---------------------------------------------------------------------------------------------------------------------
# Running
# ---------------------------------------------------------------------------------------------------------------------


def swept(cache: Path, content: dict[str, Any], *flags: str, **more: str) -> Any:
    Path("mine.toml").write_text(toml(content), encoding="utf-8")
    return spawn(cache, "sweep", "mine.toml", "--out", "out", *flags, **more)


def done(process: Any, patience: float = 200.0) -> tuple[str, str]:
    printed, error = process.communicate(timeout=patience)
    assert process.returncode == 0, error
    return printed, error


def iterations(content: dict[str, Any]) -> int:
    """Done by all runs together."""
    return sum(max(RunDirectory(Path("out", run.place)).numbers(), default=0) for run in Sweep.of(content).runs)


def killed(cache: Path, content: dict[str, Any], at: int) -> None:
    """The driver of a sweep is killed when so many iterations are done; its workers are not told."""
    process = swept(cache, content, "--quiet")
    deadline = time.monotonic() + 200
    while iterations(content) < at:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def same_as_alone(content: dict[str, Any], elsewhere: Path) -> None:
    for run in Sweep.of(content).runs:
        config = run.config
        alone = trained(elsewhere / run.place, config.iterations or 0, config.method, config.env, seed=config.seed)
        assert metrics(Path("out", run.place)) == metrics(alone.directory), run.place
        assert checkpoints(Path("out", run.place)) == checkpoints(alone.directory), run.place


@pytest.mark.slow
def test_a_sweep_that_is_killed_twice_gives_the_numbers_of_bare_runs(cache: Path, tmp_path: Path) -> None:
    content = SMALL | {"methods": ["fm2-ppo"], "seeds": 3, "iterations": 20}
    killed(cache, content, 5)
    killed(cache, content, 25)
    assert 25 <= iterations(content) < 60
    printed, _ = done(swept(cache, content, "--json"))
    results = json.loads(printed.splitlines()[-1])
    assert (results["runs"], results["finished"], results["failed"]) == (3, 3, {})
    # The runs that the kills left unfinished, and no others, are named; which they are depends on the scheduler.
    (finished,) = re.findall(r"^out: 3 runs, (\d) finished", printed, re.MULTILINE)
    named = [run.place for run in Sweep.of(content).runs if f"{run.place}: final return" in printed]
    assert 1 <= results["interrupted"] <= 3 and len(named) == 3 - int(finished) >= 1
    same_as_alone(content, tmp_path / "alone")
    found, doubts = read_results(["out"])
    assert len(found) == 3 and not doubts and {r.task for r in found} == {"tasks:Drift-v0"}
    # What is finished is left alone; what is added is done.
    before = contents(Path("out"))
    printed, _ = done(swept(cache, content))
    assert "3 runs, 3 finished, 0 interrupted, 0 to begin" in printed and contents(Path("out")) == before
    more = content | {"seeds": 1, "iterations": 21}
    printed, _ = done(swept(cache, more, "--dry-run", "--json"))
    assert "1 run, 0 finished, 1 interrupted, 0 to begin" in printed and "measured on runs" in printed
    expected = json.loads(printed.splitlines()[-1])
    assert expected["expected_from_table"] == 0 and 0 < expected["expected_seconds"] < 60
    assert contents(Path("out")) == before, "a dry run changes nothing"
    done(swept(cache, more))
    same_as_alone(more, tmp_path / "longer")


def test_what_fails_is_named_and_does_not_hinder_the_others(cache: Path, tmp_path: Path) -> None:
    short, long = ({"env": "tasks:Drift-v0", "iterations": n, "obs_noise": n / 1000} for n in (2, 40))
    content = {**SMALL, "tasks": [long, short]}
    del content["iterations"]
    process = swept(cache, content, "--json", BREAK_AFTER="600")
    printed, error = process.communicate(timeout=200)
    first, *rest = error.splitlines()
    (name,) = (run.place for run in Sweep.of(content).runs if run.config.iterations == 40)
    assert process.returncode == 6 and "1 of 2 runs failed" in first and "rpsp sweep mine.toml --out out" in first
    sentence = (tmp_path / "out" / name / FAILURE).read_text(encoding="utf-8").strip()
    assert "gearbox" in sentence and rest == [f"{name}: {sentence}"]
    results = json.loads(printed.splitlines()[-1])
    assert results["finished"] == 1 and results["failed"] == {name: sentence}
    assert [r.failure for r in read_results(["out"])[0]] == ["", sentence]
    done(swept(cache, content))
    assert not (tmp_path / "out" / name / FAILURE).exists()
    assert [r.finished for r in read_results(["out"])[0]] == [True, True]


def test_a_directory_of_another_configuration_is_refused(tmp_path: Path, capsys: Any) -> None:
    (run,) = Sweep.of(SMALL).runs
    trained(tmp_path / "out" / run.place, 2)
    before = contents(tmp_path / "out")
    for given, words in (
        ({"samples": 80}, "samples: 'out/"),
        ({"iterations": 1}, "iterations: 1 is less than the 2 already done in 'out/"),
    ):
        Path("mine.toml").write_text(toml(SMALL | given), encoding="utf-8")
        assert cli("sweep", "mine.toml", "--out", "out") == 2
        error = capsys.readouterr().err
        assert words in error and "--out" in error and len(error.splitlines()) == 1
    Path("mine.toml").write_text(toml(SMALL), encoding="utf-8")
    with RunDirectory(Path("out")).locked():
        assert cli("sweep", "mine.toml", "--out", "out") == 0, "there is nothing to do"
        Path("mine.toml").write_text(toml(SMALL | {"seeds": 2}), encoding="utf-8")
        assert cli("sweep", "mine.toml", "--out", "out") == 2
    assert "'out' is in use by another process" in capsys.readouterr().err
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_stops_the_workers_and_says_how_to_go_on(number: int, code: int, cache: Path) -> None:
    content = SMALL | {"iterations": 100_000}
    process = swept(cache, content)
    while iterations(content) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code
    assert error.endswith("all finished iterations are saved; go on with: rpsp sweep mine.toml --out out\n")
    (run,) = Sweep.of(content).runs
    with RunDirectory(Path("out", run.place)).locked():
        assert not (Path("out", run.place) / FAILURE).exists()


@pytest.mark.slow
def test_two_tasks_three_methods_two_seeds(cache: Path, tmp_path: Path, monkeypatch: Any) -> None:
    content: dict[str, Any] = {
        "tasks": [{"env": "tasks:Drift-v0", **AMOUNTS}, {"env": "InvertedPendulum-v5", "samples": 400,
                  "max_episode_steps": 40, "exploration_episodes": 30}],
        "methods": ["fm2", {"method": "rpsi-trpo", "past": 4, "bumps": 30},
                    {"method": "rpsp-alt", "dimension": 6, "epochs": 2}],
        "seeds": 2,
        "iterations": 6,
    }  # fmt: skip
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    done(swept(cache, content), 900)
    (tmp_path / "killed").mkdir()
    monkeypatch.chdir(tmp_path / "killed")
    killed(cache, content, 12)
    killed(cache, content, 36)
    assert iterations(content) < 72
    done(swept(cache, content), 900)
    for run in Sweep.of(content).runs:
        one, other = (tmp_path / name / "out" / run.place for name in ("whole", "killed"))
        assert metrics(one) == metrics(other) and checkpoints(one) == checkpoints(other), run.place
