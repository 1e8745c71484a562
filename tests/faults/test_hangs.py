"""Row 6: environments that raise, hang or lose their process are made anew; what passes leaves no trace."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from amounts import FULL, amount, report
from faulty import Faulty
from processes import FLAGS, TINY, checkpoints, metrics, spawn
from tasks import Drift

from rpsp.cli import main
from rpsp.envs.watchdog import Overdue, Patience
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.configure import configured
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.runs import start

KINDS = [
    "raises", "sleeps", "its process dies", "waits for a pipe", "reset raises", "tries again and again",
    "its process hangs", "spins", "reset not finite",
]  # fmt: skip
ITERATIONS = 3


@pytest.fixture(autouse=True)
def _as_it_was() -> Any:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    Faulty.plan("", 0)
    assert all(child.poll() is not None for child in Faulty.children), "no process is left behind"


def trained(out: Path, step_timeout: float = 0.5) -> list[str]:
    """A short run; what it said."""
    said: list[str] = []
    given = TINY | {"env": "faulty:Faulty-v0", "method": "fm2", "iterations": ITERATIONS, "out": str(out)}
    start(configured(given | {"step_timeout": step_timeout}), said.append, lambda record, pace: None)
    return said


def cli(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit:
        main(list(arguments))
    return int(exit.value.code or 0)


def test_a_fault_that_passes_leaves_no_trace(tmp_path: Path) -> None:
    rng, whole, once = random.Random(6), tmp_path / "whole", tmp_path / "once"
    Faulty.plan("", 0)
    trained(whole)
    steps, longest, faults = Faulty.count, 0.0, amount(len(KINDS), 50)
    for i in range(faults):
        # A reset that fails must have one after it.
        Faulty.plan(KINDS[i % len(KINDS)], rng.randint(1, steps - 20))
        said = trained(once)
        assert sum("created again, attempt 2 of 3" in line for line in said) == 1, (Faulty.kind, said)
        assert Faulty.times == 1 and len(Faulty.durations) == 1
        assert metrics(once) == metrics(whole) and checkpoints(once) == checkpoints(whole), (Faulty.kind, Faulty.at)
        longest = max(longest, *Faulty.durations)
        shutil.rmtree(once)
    assert longest < 0.5 + 10.0  # generous: on a busy machine the watching thread waits for its turn
    report(
        6,
        f"{faults} of {faults} environments that raised, hung or lost their process were made anew, and the run had the "
        f"bytes of the undisturbed one; a limit of 0.5 s ended every hang within {longest:.1f} s",
    )


@pytest.mark.parametrize("kind", ["raises", "sleeps"])
def test_a_fault_that_lasts_ends_the_run_and_loses_nothing(kind: str, tmp_path: Path, capsys: Any) -> None:
    """In full, with the limit that holds unless another is given."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    limit = TrainConfig.step_timeout if FULL else 0.5
    Faulty.plan("", 0)
    trained(whole)
    Faulty.plan(kind, Faulty.count - 30, lasts=True)
    flags = ["--method", "fm2", "--seed", "0", "--iterations", str(ITERATIONS), "--step-timeout", str(limit), *FLAGS]
    assert cli("train", "faulty:Faulty-v0", *flags, "--out", str(out)) == 6
    first, *rest = capsys.readouterr().err.splitlines()
    what = "raised RuntimeError" if kind == "raises" else "took longer than its step_timeout"
    assert first.startswith(f"rpsp: Faulty-v0 {what}") and "created again 2 times" in first
    assert f"iteration {ITERATIONS - 1} of seed 0" in first and " step " in first
    assert ("episodes failed" in first) == (kind == "raises"), "the third time it is more than a fifth of them"
    assert len(rest) == 1 and f"rpsp resume {out}" in rest[0]
    assert (Faulty.times > 3 if kind == "raises" else Faulty.times == 3) and max(Faulty.durations) < limit + 10.0
    assert RunDirectory(out).numbers()[-1] == ITERATIONS - 1
    if kind == "sleeps":
        report(
            6, f"a limit of {limit:g} s ended the longest of 3 hangs after {max(Faulty.durations):.2f} s; then exit 6"
        )
    Faulty.plan("", 0)
    main(["resume", str(out), "--quiet"])
    assert metrics(out) == metrics(whole) and checkpoints(out) == checkpoints(whole)


class Shaky(Drift):
    """Raises in one step of a hundred, in the same ones for the same seed."""

    def step(self, action: Any) -> Any:
        if self.np_random.random() < 0.01:
            raise RuntimeError("a cable is loose")
        return super().step(action)


gymnasium.register("Shaky-v0", Shaky, max_episode_steps=20)


def test_an_environment_that_raises_now_and_then_loses_these_episodes_and_no_more(tmp_path: Path, capsys: Any) -> None:
    flags = ["--method", "fm2", "--iterations", "6", *FLAGS, "--exploration-episodes=40", "--json"]
    main(["train", "test_hangs:Shaky-v0", *flags, "--out", str(tmp_path / "run")])
    said = capsys.readouterr().out.splitlines()
    assert sum("a cable is loose" in line for line in said) == 2, "made anew twice, and then no more"
    assert "attempt 3 of 3; from now on, episodes in which it raises are dropped" in "".join(said)
    assert json.loads(said[-1])["dropped_episodes"] > 0 and json.loads(said[-1])["iterations"] == 6


@pytest.mark.parametrize("kind", ["raises", "sleeps"])
def test_a_fault_while_relative_noise_is_measured_is_one_sentence(kind: str, tmp_path: Path, capsys: Any) -> None:
    Faulty.plan(kind, 5, lasts=True)
    flags = ["--method", "fm2", "--relative-noise", "0.1", "--step-timeout", "0.5", *FLAGS]
    assert cli("train", "faulty:Faulty-v0", *flags, "--out", str(tmp_path / "run")) == 6
    (sentence,) = capsys.readouterr().err.splitlines()
    what = "raised RuntimeError" if kind == "raises" else "took longer than its step_timeout"
    assert sentence.startswith(f"rpsp: Faulty-v0 {what}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("kind", "code"), [("compiled", 6), ("compiled, alone", -signal.SIGALRM)][: amount(1, 2)])
def test_what_cannot_be_interrupted_ends_the_process(kind: str, code: int, tmp_path: Path) -> None:
    out, limit = tmp_path / "run", 1.0
    flags = ["--method", "fm2", "--iterations", "100000", "--step-timeout", str(limit), "--out", str(out), *FLAGS]
    process = spawn(tmp_path / "compiled", "train", "faulty:Faulty-v0", *flags, FAULT=kind, FAULT_AT="2000")
    last, deadline = time.monotonic(), time.monotonic() + 300
    saved: list[int] = []
    while process.poll() is None and time.monotonic() < deadline:
        if (now := RunDirectory(out).numbers()) != saved:
            saved, last = now, time.monotonic()
        time.sleep(0.01)
    lasted = time.monotonic() - last
    _, error = process.communicate(timeout=10)
    assert process.returncode == code and lasted < limit + 60.0 and saved[-1] > 0
    if code == 6:
        assert "cannot be interrupted" in error.splitlines()[-1] and "Traceback" not in error
    report(
        6,
        f"a hang in compiled code: the process ended {lasted:.1f} s after its last iteration, with code {code} (limit 1 s)",
    )
    Faulty.plan("", 0)
    main(["resume", str(out), "--iterations", str(saved[-1] + 1), "--quiet", "--plugin", "faulty"])
    assert RunDirectory(out).numbers()[-1] == saved[-1] + 1


@pytest.mark.parametrize(
    ("kind", "at", "code", "where"),
    [("crashes", 10, -signal.SIGSEGV, "the exploration of seed 0"), ("leaves", 200, 3, r"iteration \d+ of seed 0")],
)
def test_a_process_that_is_gone_without_a_word_is_explained(
    kind: str, at: int, code: int, where: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    flags = ["--method", "fm2", "--iterations", "20", "--out", str(out), *FLAGS]
    process = spawn(tmp_path / "compiled", "train", "faulty:Faulty-v0", *flags, FAULT=kind, FAULT_AT=str(at))
    _, error = process.communicate(timeout=300)
    assert process.returncode == code, error
    last = error.splitlines()[-1]
    assert last.startswith("rpsp: the process ended without warning")
    assert re.search(rf"it was in Faulty-v0, {where}, step [1-9]", last), last
    assert last.endswith(f"all finished iterations are saved; go on with: rpsp resume {out} --plugin faulty")
    Faulty.plan("", 0)
    main(["resume", str(out), "--iterations", "6", "--quiet", "--plugin", "faulty"])
    assert RunDirectory(out).numbers()[-1] == 6


def test_the_time_for_which_a_process_is_suspended_does_not_count() -> None:
    program = """
import time
from rpsp.envs import watchdog as patience
patience.grace = lambda seconds: 0.5
for i in range(30):
    with patience.Patience(1.0):
        print(i, flush=True)
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass
print("done")
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, encoding="utf-8")
    assert process.stdout is not None
    while process.stdout.readline() != "9\n":
        pass
    process.send_signal(signal.SIGTSTP)
    time.sleep(4)  # longer than any limit
    assert process.poll() is None
    process.send_signal(signal.SIGCONT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and printed.endswith("done\n")


def test_the_clock_goes_on_whatever_others_put_into_the_module_time(monkeypatch: Any) -> None:
    def broken(*_: Any) -> float:
        raise KeyboardInterrupt

    with Patience(1.0):
        monkeypatch.setattr(time, "sleep", broken)
        monkeypatch.setattr(time, "monotonic", broken)
        threading.Event().wait(0.6)  # it has looked at least twice
    monkeypatch.undo()
    with pytest.raises(Overdue), Patience(0.3):
        threading.Event().wait(20)
