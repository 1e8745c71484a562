"""A limit on how long someone else's code may take: an environment that hangs must not hang the run.

Around a call stands `with Patience(25):`, which costs it a microsecond. When the time is up, three things happen in turn.

1. The call is interrupted, wherever it waits: in `time.sleep`, in a read from a pipe or a socket, in a loop. `Overdue` is
   raised inside it.
2. Compiled code that does not return to Python cannot be interrupted. A few seconds later the process says so and ends
   itself, with the exit code of an environment that failed.
3. If that code does not even let other threads run, the system ends the process (SIGALRM).

Only in the main thread: nowhere else can Python be interrupted. Time for which the process is suspended (Ctrl-Z, or a
cluster's SIGTSTP) does not count.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from functools import cache

# Imported by name: a program (or its tests) may replace functions of `time`, and this clock must go on.
from time import monotonic, sleep
from typing import Any

from rpsp import sentinel
from rpsp.errors import EnvironmentFailure, refuse_windows

refuse_windows()


MAIN = threading.main_thread().ident or 0
SIGNAL = signal.SIGVTALRM
"""What the interruption comes as: hardly anybody else's."""
PULSE = 0.25
"""Seconds between two looks at the clock."""


def grace(seconds: float) -> float:
    """Seconds between the first and the second; 1.5 s later comes the third: after 30 s in all, if at most 25 are allowed.
    Where fewer are there is time to wait longer, because on a busy machine a process may stand still for a while.
    """
    return min(8.0, max(3.0, 28.0 - seconds))


class Overdue(BaseException):
    """The time is up. No `Exception`, so that code which tries again whatever happens does not try again."""


class _Clock:
    """What the call under way is allowed. There is only one: calls are made in the main thread."""

    deadline = math.inf
    grace = 0.0


class Patience:
    """With this, what is done takes at most so many seconds (0: any number), or is `Overdue`."""

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds

    def __enter__(self) -> None:
        if self.seconds and threading.get_ident() == MAIN:
            _watch()
            _Clock.grace = grace(self.seconds)
            signal.setitimer(signal.ITIMER_REAL, self.seconds + _Clock.grace + 1.5)
            _Clock.deadline = monotonic() + self.seconds

    def __exit__(self, *_: Any) -> None:
        if self.seconds and threading.get_ident() == MAIN:
            _Clock.deadline = math.inf
            signal.setitimer(signal.ITIMER_REAL, 0)


@cache
def _watch() -> None:
    """Look at the clock from now on."""
    signal.signal(SIGNAL, _interrupt)
    if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, _suspend)
    threading.Thread(target=_look, daemon=True).start()


def _interrupt(number: int, frame: Any) -> None:
    if monotonic() > _Clock.deadline:  # it may have returned in the meantime
        raise Overdue


def _suspend(number: int, frame: Any) -> None:
    """Stop the process, as it would have been, but first the clock."""
    deadline, _Clock.deadline = _Clock.deadline, math.inf
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    began = monotonic()
    os.kill(os.getpid(), signal.SIGSTOP)
    signal.setitimer(signal.ITIMER_REAL, left)
    _Clock.deadline = deadline + monotonic() - began


def _look() -> None:
    interrupted = math.inf
    while True:
        sleep(PULSE)
        deadline = _Clock.deadline
        if monotonic() <= deadline:
            continue
        if deadline != interrupted:
            interrupted = deadline
            signal.pthread_kill(MAIN, SIGNAL)
        elif monotonic() > deadline + _Clock.grace:
            sentence = (
                "rpsp: the environment hangs in compiled code that cannot be interrupted, so the process ends here; "
                "all finished iterations are saved, and `rpsp resume` goes on from there."
            )
            print(sentence, file=sys.stderr, flush=True)
            sentinel.dismiss()
            os._exit(EnvironmentFailure.exit_code)
