"""The sentinel explains every end that says nothing itself, is quiet about all others, and holds nobody up."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from rpsp import sentinel

NOTES = """
import os, signal, sys, time
from rpsp import sentinel
sentinel.start()
sentinel.note_resume("rpsp resume runs/one")
sentinel.note_place("Cart-v0, iteration 3 of seed 0")
sentinel.note_step(57)
print(os.getpid(), flush=True)
"""
FINALLY = "try:\n    {}\nfinally:\n    sentinel.dismiss()\n"


def ended(program: str, notes: str = NOTES) -> tuple[int, str, float]:
    """The exit code of a program, what it said on stderr, and the seconds until nobody held its output open."""
    process = subprocess.Popen(
        [sys.executable, "-c", notes + program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid, "the command keeps its process id"
    began = time.monotonic()
    _, error = process.communicate(timeout=60)
    return process.returncode, error, time.monotonic() - began


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -11),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("os.closerange(3, 100); os._exit(0)", 0),
        ("os.fork() or (os.close(1), os.close(2), time.sleep(20), os._exit(0)); os._exit(3)", 3),
    ],
)
def test_an_end_without_a_word_is_explained(program: str, code: int) -> None:
    found, error, seconds = ended(program)
    (paragraph,) = error.splitlines()
    assert found == code and paragraph.startswith("rpsp: the process ended without warning")
    assert "in Cart-v0, iteration 3 of seed 0, step 57; " in paragraph
    assert paragraph.endswith("go on with: rpsp resume runs/one") and seconds < 10


@pytest.mark.parametrize(
    ("program", "code", "last"),
    [
        (FINALLY.format("pass"), 0, None),
        (FINALLY.format("sys.exit(4)"), 4, None),
        (FINALLY.format("raise ValueError(1)"), 1, "ValueError: 1"),
        (FINALLY.format("signal.raise_signal(signal.SIGINT)"), -2, "KeyboardInterrupt"),
        (FINALLY.format("os.closerange(3, 100)"), 0, None),
        (FINALLY.format("os.fork() or (os.close(1), os.close(2), time.sleep(20), os._exit(0))"), 0, None),
        ("sentinel.dismiss(); os._exit(6)", 6, None),
    ],
)
def test_an_ordinary_end_is_none_of_its_business(program: str, code: int, last: str | None) -> None:
    reset = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
    found, error, seconds = ended(program, reset + NOTES)
    assert found == code and "without warning" not in error and seconds < 10
    assert (error.splitlines() or [None])[-1] == last


def test_signals_of_the_terminal_do_not_reach_it() -> None:
    program = "os.kill(sentinel._Shared.child, signal.SIGINT); os.kill(sentinel._Shared.child, signal.SIGTERM)\n"
    program += "assert os.getsid(sentinel._Shared.child) != os.getsid(0)\ntime.sleep(0.2)\nos._exit(3)"
    assert "step 57" in ended(program)[1]


def test_without_a_sentinel_notes_do_nothing_and_with_one_cost_next_to_nothing() -> None:
    sentinel.note_place("nowhere")
    sentinel.note_step(3)
    sentinel.dismiss()
    program = "began = time.perf_counter()\nfor i in range(100_000):\n    sentinel.note_step(i)\n"
    program += "spent = time.perf_counter() - began\nsentinel.dismiss()\nsys.exit(f'{spent}')"
    assert float(ended(program)[1]) / 100_000 < 5e-6
