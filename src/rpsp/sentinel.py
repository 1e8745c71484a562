"""Explain a command that ended without a word: a crash in compiled code, `os._exit` in an environment, `kill -9`.

`start` forks a small process before anything large is imported. It waits until the command's process is gone and then
reads from shared memory whether that was an ordinary end (`dismiss` was called). If not, it prints one paragraph: where
the command was and how to go on. The command keeps its process id, its signals and its exit code.

The command leaves notes in the shared memory. To note a step costs about 0.1 µs. Without a sentinel, notes do nothing.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress

SIZE = 8192
COUNTER, DONE, PLACE, RESUME = slice(0, 8), 8, slice(64, 2048), slice(2048, SIZE)
"""Where in the shared memory the step, the mark of an ordinary end, the place and the command to go on with lie."""
PULSE = 1.0
"""Seconds between two looks at whether the command is still there, if the pipe does not say so before."""


class _Shared:
    """What the command knows of its sentinel; empty where there is none."""

    memory: mmap.mmap | None = None
    counter: memoryview | None = None
    pipe = -1
    child = 0


def start() -> None:
    """Fork the sentinel, unless there is one, the system cannot fork, or other threads run, which a fork would lose."""
    if not hasattr(os, "fork") or _Shared.memory is not None or threading.active_count() > 1:
        return
    memory, command = mmap.mmap(-1, SIZE), os.getpid()
    reading, writing = os.pipe()
    blocked = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        child = os.fork()
        if child == 0:
            try:
                _watch(reading, memory, command)
            finally:
                os._exit(0)
    except OSError:  # no more processes are allowed: the command goes on without
        os.close(reading)
        os.close(writing)
        return
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(reading)
    _Shared.memory, _Shared.counter = memory, memoryview(memory)[COUNTER].cast("Q")
    _Shared.pipe, _Shared.child = writing, child
    os.register_at_fork(after_in_child=_forget)


def dismiss() -> None:
    """Tell the sentinel that the command ends in an ordinary way, and wait until it is gone."""
    if _Shared.memory is None:
        return
    _Shared.memory[DONE] = 1
    child = _Shared.child
    _forget()
    for _ in range(200):
        try:
            if os.waitpid(child, os.WNOHANG)[0]:
                return
        except ChildProcessError:  # somebody else has waited for it
            return
        time.sleep(0.005)


def note_place(place: str) -> None:
    """Note which environment is being used and for what, as in "Hopper-v5, iteration 3 of seed 0"; "" for none."""
    _write(PLACE, place)
    note_step(0)


def note_step(step: int) -> None:
    """Note which step is about to be made."""
    if _Shared.counter is not None:
        _Shared.counter[0] = step


def note_resume(command: str) -> None:
    """Note the command that goes on with what is saved."""
    _write(RESUME, command)


def _write(where: slice, text: str) -> None:
    if _Shared.memory is not None:
        size = where.stop - where.start
        _Shared.memory[where] = text.encode(errors="replace")[: size - 1].ljust(size, b"\0")


def _read(memory: mmap.mmap, where: slice) -> str:
    return memory[where].partition(b"\0")[0].decode(errors="replace")


def _forget() -> None:
    """Let go of the sentinel; also in processes that the command forks, which would hold its pipe open."""
    if _Shared.memory is not None:
        with suppress(OSError):  # an environment may have closed everything
            os.close(_Shared.pipe)
        _Shared.memory, _Shared.counter, _Shared.pipe = None, None, -1


def _watch(pipe: int, memory: mmap.mmap, command: int) -> None:
    """Wait for the end of the command; explain it unless it was ordinary."""
    os.setsid()
    for name in os.listdir("/dev/fd"):
        if int(name) not in (2, pipe):
            with suppress(OSError):  # that of the listing itself is closed already
                os.close(int(name))
    while os.getppid() == command and not memory[DONE]:
        # The end of the pipe comes at once; should another process hold it open, the parent is looked at as well.
        select.select([pipe], [], [], PULSE)
        if os.getppid() == command and not memory[DONE]:
            time.sleep(0.01)  # a pipe may end a moment before its process does
    if not memory[DONE]:
        os.write(2, (explanation(memory) + "\n").encode(errors="replace"))


def explanation(memory: mmap.mmap) -> str:
    """The paragraph for a command that has left these notes."""
    place, step = _read(memory, PLACE), int.from_bytes(memory[COUNTER], sys.byteorder)
    where = "it was not using an environment at that moment"
    if place:
        where = f"it was in {place}" + (f", step {step}" if step else "")
    resume = _read(memory, RESUME)
    then = f"all finished iterations are saved; go on with: {resume}" if resume else "nothing was begun"
    return (
        "rpsp: the process ended without warning, as by a crash in compiled code, os._exit() in an environment, kill -9 or "
        f"a lack of memory; {where}; {then}"
    )
