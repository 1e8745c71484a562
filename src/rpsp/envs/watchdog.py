"""A time limit for calls of foreign code, so that an environment that hangs does not hang the run.

Use `with Patience(25):` around a call. It adds about a microsecond. When the time is up, there are three stages.

1. The call is interrupted and `Overdue` is raised inside it. This works in Python loops, in `time.sleep`, and in reads
   from pipes and sockets.
2. Compiled code that does not return to Python cannot be interrupted. A few seconds later the process prints a message
   and exits, with the exit code of a failed environment.
3. If that code does not let other threads run, the operating system ends the process (SIGALRM).

The limit applies only in the main thread, because Python cannot be interrupted in others. Time during which the process
is suspended (Ctrl-Z, or SIGTSTP of a cluster) does not count.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from functools import cache

# Imported by name, so that this module still works if a program or a test replaces functions of `time`.
from time import monotonic, sleep
from typing import Any

from rpsp import sentinel
from rpsp.errors import EnvironmentFailure, refuse_windows

refuse_windows()


MAIN = threading.main_thread().ident or 0
SIGNAL = signal.SIGVTALRM
"""Signal used to interrupt; rarely used by other code."""
PULSE = 0.25
"""Seconds between checks of the time limit."""


def grace(seconds: float) -> float:
    """Return the seconds between stage 1 and stage 2. Stage 3 follows 1.5 seconds after stage 2.

    With a limit of at most 25 seconds, stage 3 comes at the latest 30 seconds after the beginning of the call. Shorter
    limits get a longer grace period (at most 8 seconds), because a process on a busy machine can be paused for a while.

    Args:
        seconds: the time limit.
    """
    return min(8.0, max(3.0, 28.0 - seconds))


class Overdue(BaseException):
    """The time limit was exceeded. Not an `Exception`, so that code that retries after any exception does not retry."""


class _Clock:
    """Deadline of the current call. There is only one, because calls are made in the main thread."""

    deadline = math.inf
    grace = 0.0


class Patience:
    """Context manager that limits the time of its body. Raises `Overdue` in the body when the time is up.

    Args:
        seconds: the time limit. Default: 0 (no limit).
    """

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
    """Install the signal handlers and start the thread that checks the time limit. Runs only once."""
    signal.signal(SIGNAL, _interrupt)
    if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, _suspend)
    threading.Thread(target=_look, daemon=True).start()


def _interrupt(number: int, frame: Any) -> None:
    if monotonic() > _Clock.deadline:  # the call may have returned in the meantime
        raise Overdue


def _suspend(number: int, frame: Any) -> None:
    """Suspend the process, as SIGTSTP does by default, and stop the clock meanwhile."""
    deadline, _Clock.deadline = _Clock.deadline, math.inf
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    began = monotonic()
    os.kill(os.getpid(), signal.SIGSTOP)
    signal.setitimer(signal.ITIMER_REAL, left)
    _Clock.deadline = deadline + monotonic() - began


def _look() -> None:
    """Check the time limit periodically, in a thread of its own."""
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
                "all finished iterations are saved, and `rpsp resume` continues from there."
            )
            print(sentence, file=sys.stderr, flush=True)
            sentinel.dismiss()
            os._exit(EnvironmentFailure.exit_code)
