"""Rows 1, 2, 12 and 14: processes killed, interrupted, and two in one place. What is left is what would have been."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from amounts import FULL, amount, report
from processes import FLAGS, at_checkpoint, checkpoints, metrics, spawn
from small_runs import training_of

from rpsp.cli import main
from rpsp.errors import PENDING
from rpsp.experiments.run_directory import RunDirectory
from rpsp.training import loop as training

ENDLESS = ["--iterations", "100000"]
TASKS = {
    "CartPole-v1, fm2": [
        "CartPole-v1", "--method", "fm2", "--samples", "200", "--max-episode-steps", "50", "--num-envs", "4",
        "--exploration-episodes", "10",
    ],
    "InvertedPendulum-v5, rpsi-trpo": [
        "InvertedPendulum-v5", "--method", "rpsi-trpo", "--samples", "400", "--max-episode-steps", "40",
        "--exploration-episodes", "30", "--threads", "1",
    ],
    "Pendulum-v1 disturbed, rpsp-alt": [
        "Pendulum-v1", "--method", "rpsp-alt", "--obs-noise", "0.1", "--obs-latency", "1", "--dropout", "0.2",
        "--dimension", "5", "--samples", "300", "--max-episode-steps", "30", "--exploration-episodes", "20",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where processes share what they have compiled."""
    return tmp_path_factory.mktemp("compiled")


def undisturbed(cache: Path, out: Path, disturbed: Path, arguments: list[str], *plugin: str) -> None:
    """Go on with what was disturbed for two iterations more, do the same in one go, and compare every byte."""
    iterations = ["--iterations", str((RunDirectory(disturbed).numbers() or [0])[-1] + 2), "--quiet"]
    commands = (
        ["resume", str(disturbed), *iterations, *plugin],
        ["train", *arguments, "--out", str(out), *iterations],
    )
    for command in commands:
        _, error = (process := spawn(cache, *command)).communicate(timeout=600)
        assert process.returncode == 0, error
    assert metrics(disturbed) == metrics(out)
    assert checkpoints(disturbed) == checkpoints(out)
    assert not list(disturbed.glob("checkpoints/.*")), "what was left half-written is gone"


# ---------------------------------------------------------------------------------------------------------------------
# 1: SIGKILL
# ---------------------------------------------------------------------------------------------------------------------


def kill_at_random(cache: Path, out: Path, arguments: list[str], kills: int, rng: random.Random) -> None:
    """Kill a run again and again: most often some moment after new iterations, else at any moment of its beginning."""
    command = ["train", *arguments, *ENDLESS, "--out", str(out), "--quiet"]
    for _ in range(kills):
        process = spawn(cache, *command)
        if rng.random() < 0.75:
            at_checkpoint(process, out, (RunDirectory(out).numbers() or [-1])[-1] + rng.randint(1, 3))
            time.sleep(rng.uniform(0, 0.1))
        else:
            time.sleep(rng.uniform(0.2, 4.0))
        process.kill()
        _, error = process.communicate()
        assert process.returncode == -signal.SIGKILL, error
        if (out / "config.json").exists():
            command = ["resume", str(out), "--quiet"]


def test_a_run_that_is_killed_at_random_is_the_same_run(cache: Path, tmp_path: Path) -> None:
    rng, kills = random.Random(1), amount(2, 50)
    tasks = list(TASKS)[: amount(1, 3)]
    for i, task in enumerate(tasks):
        share = len(range(i, kills, len(tasks)))
        killed, whole = tmp_path / f"killed {i}", tmp_path / f"whole {i}"
        kill_at_random(cache, killed, TASKS[task], share, rng)
        undisturbed(cache, whole, killed, TASKS[task])
    report(
        1,
        f"{kills} of {kills} SIGKILLs over {len(tasks)} tasks and methods: parameters and metrics byte-identical to "
        "the undisturbed runs",
    )


# ---------------------------------------------------------------------------------------------------------------------
# 2: SIGKILL while saving
# ---------------------------------------------------------------------------------------------------------------------

SAVE_FOR_EVER = """
import json, os, random, signal, sys, time
from pathlib import Path
from rpsp.experiments.checkpoints import read_tree
from rpsp.experiments.checkpoint_files import COUNTERS
from rpsp.experiments.run_directory import RunDirectory
from rpsp.training.loop import Training

# Everything is of numpy, so that jax starts no threads, which a fork would lose.
template, kills, *places = sys.argv[1:]
tree, extra = read_tree(Path(template))
rng, hit = random.Random(2), 0


def check(run):
    run.clean()
    assert not list(run.checkpoints.glob(".*")), "what was left half-written must go"
    for number in run.numbers():
        run._parse(number)


def save_for_ever(run, ready):
    with run.locked():
        check(run)
        os.write(ready, b".")
        n = (run.numbers() or [-1])[-1]
        while True:
            n += 1
            run.save(Training(**tree_fields, **(extra | {"iteration": n})))


tree_fields = json.loads(extra.pop("names"))
tree_fields = dict(zip(tree_fields, tree, strict=True))
for kill in range(int(kills)):
    run = RunDirectory(Path(places[kill % len(places)]))
    ready, begun = os.pipe()
    if (child := os.fork()) == 0:
        os.close(ready)
        save_for_ever(run, begun)
    os.close(begun)
    assert os.read(ready, 1) == b".", "a checkpoint is unreadable"
    os.close(ready)
    time.sleep(rng.uniform(0, 0.1))
    while kill >= int(kills) - len(places) and not run.numbers():
        time.sleep(0.001)  # on a busy machine no save may have been finished yet
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    hit += bool(list(run.checkpoints.glob(".*")))
for place in places:
    check(RunDirectory(Path(place)))
print(hit)
"""


def test_killed_while_it_saves_every_checkpoint_is_readable(tmp_path: Path) -> None:
    from rpsp.experiments.checkpoint_files import COUNTERS
    from rpsp.experiments.checkpoints import write_tree

    training, kills = training_of(0), amount(12, 200)
    names = [f for f in training.__dataclass_fields__ if f not in COUNTERS]
    plain = jax.tree.map(np.asarray, tuple(getattr(training, name) for name in names))
    extra = {name: getattr(training, name) for name in COUNTERS} | {"names": json.dumps(names)}
    write_tree(tmp_path / "template", plain, extra)
    places = [str(tmp_path / f"run {i}") for i in range(amount(3, 10))]
    done = subprocess.run(
        [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path / "template"), str(kills), *places],
        capture_output=True,
        encoding="utf-8",
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    saved = 0
    for place in places:
        saved += RunDirectory(Path(place)).numbers()[-1] + 1
    report(
        2,
        f"{kills} SIGKILLs in a save loop ({saved} saves, {int(done.stdout)} kills in the middle of one): 0 checkpoints "
        "unreadable, all leftovers cleaned at the next start",
    )


# ---------------------------------------------------------------------------------------------------------------------
# 12: SIGTERM and SIGINT
# ---------------------------------------------------------------------------------------------------------------------


def interrupt_at_random(out: Path, cache: Callable[[], Path], times: int, rng: random.Random) -> int:
    """Signals while it explores, fits, refines and compiles, and between and in iterations; how many before any was done."""
    early = 0
    command = ["train", *REFINED, *ENDLESS, "--out", str(out)]
    for i in range(times):
        number, code = ((signal.SIGINT, 130), (signal.SIGTERM, 143))[i % 2]
        process = spawn(cache(), *command)
        assert process.stdout is not None
        process.stdout.readline()  # by which it has begun
        if i % 3 == 2:
            at_checkpoint(process, out, (RunDirectory(out).numbers() or [-1])[-1] + 1)
            time.sleep(rng.uniform(0, 0.3))
        else:
            time.sleep(rng.uniform(0, amount(2, 6)))
        process.send_signal(number)
        _, error = process.communicate(timeout=600)
        assert process.returncode == code, error
        assert error.splitlines()[-1].startswith("rpsp: interrupted; all finished iterations are saved; to continue: ")
        assert error.splitlines()[-1].endswith(f"rpsp resume {out} --plugin tasks") and "Traceback" not in error
        assert "without warning" not in error
        early += not RunDirectory(out).numbers()
        command = ["resume", str(out), "--plugin", "tasks"]
    return early


REFINED = ["tasks:Drift-v0", "--method", *(["reg-gru", "--units", "8", "--epochs", "30"] if FULL else ["fm2"]), *FLAGS]


def test_interrupted_at_any_moment_it_is_saved_and_goes_on(tmp_path: Path) -> None:
    out, times = tmp_path / "run", amount(2, 30)
    caches = itertools.count()  # in full every process has to compile everything itself
    early = interrupt_at_random(out, lambda: tmp_path / f"{amount(0, next(caches))}", times, random.Random(3))
    undisturbed(tmp_path / "0", tmp_path / "whole", out, REFINED, "--plugin", "tasks")
    report(
        12,
        f"{times} of {times} SIGINTs and SIGTERMs, {early} of them before the first checkpoint (exploring, refining, "
        "compiling): exit 130 and 143, everything saved, byte-identical afterwards",
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_somebody_swallows_ends_the_run_after_the_iteration(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """As happens to one that comes while compiled code calls Python."""
    real, before = training.collect, [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

    def collect(*given: Any, **named: Any) -> Any:
        if named["iteration"] == 1:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(number)
        return real(*given, **named)

    monkeypatch.setattr(training, "collect", collect)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as exit:
            main(["train", "tasks:Drift-v0", "--method", "fm2", *ENDLESS, "--out", str(tmp_path / "run"), *FLAGS])
    finally:
        for n, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(n, handler)
    assert exit.value.code == code and "all finished iterations are saved" in capsys.readouterr().err
    assert RunDirectory(tmp_path / "run").numbers()[-1] == 2
    assert not PENDING, "what this program does next is not interrupted"


# ---------------------------------------------------------------------------------------------------------------------
# 14: two processes, one directory
# ---------------------------------------------------------------------------------------------------------------------


def test_of_two_processes_the_second_is_refused(cache: Path, tmp_path: Path) -> None:
    times, begin = amount(1, 10), ["train", "tasks:Drift-v0", "--method", "fm2", "--iterations", "2", "--quiet", *FLAGS]
    assert spawn(cache, *begin, "--out", str(tmp_path / "alone")).wait(200) == 0
    for i in range(times):
        out = tmp_path / f"run {i}"
        one = spawn(cache, *begin, "--out", str(out))
        if i % 2:  # else they begin at once
            at_checkpoint(one, out, 0)
        other = spawn(cache, *begin, "--out", str(out))
        ended = [(process.communicate(timeout=200)[1], process.returncode) for process in (one, other)]
        assert sorted(code for _, code in ended) == [0, 2], ended
        refusal = next(error for error, code in ended if code == 2)
        assert "is in use" in refusal or "exists and is not empty" in refusal
        assert len(refusal.splitlines()) == 1
        assert metrics(out) == metrics(tmp_path / "alone") and checkpoints(out) == checkpoints(tmp_path / "alone")
    report(14, f"{times} of {times} times the second process was refused, and the run was as if it had been alone")
