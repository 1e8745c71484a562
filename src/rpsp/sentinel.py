"""Explain a command that ended without a message: a crash in compiled code, `os._exit` in an environment, `kill -9`.

`start` forks a small process, the sentinel, before any large import. The sentinel waits until the process of the
command has ended. It then reads from shared memory whether the end was normal (`dismiss` was called). If not, it prints
one paragraph: what the command was doing and how to continue. The command keeps its process id, its signals and its
exit code.

The command writes notes to the shared memory. Noting a step takes about 0.1 µs. Without a sentinel, notes have no
effect.
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
"""Positions in the shared memory of the step, the flag of a normal end, the place and the command to continue with."""
PULSE = 1.0
"""Seconds between checks whether the command is still running, unless the pipe reports its end earlier."""


class _Shared:
    """The command's side of the connection to its sentinel. The defaults mean that there is no sentinel."""

    memory: mmap.mmap | None = None
    counter: memoryview | None = None
    pipe = -1
    child = 0


def start() -> None:
    """Fork the sentinel.

    Does nothing if there is a sentinel already, if the system cannot fork, or if other threads are running, which a
    fork would lose.
    """
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
    except OSError:  # the limit of processes is reached: continue without a sentinel
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
    """Tell the sentinel that the command ends normally, and wait at most one second until it has ended."""
    if _Shared.memory is None:
        return
    _Shared.memory[DONE] = 1
    child = _Shared.child
    _forget()
    for _ in range(200):
        try:
            if os.waitpid(child, os.WNOHANG)[0]:
                return
        except ChildProcessError:  # other code has waited for it
            return
        time.sleep(0.005)


def note_place(place: str) -> None:
    """Note which environment is used and for what, as in "Hopper-v5, iteration 3 of seed 0". "" means none."""
    _write(PLACE, place)
    note_step(0)


def note_step(step: int) -> None:
    """Note the number of the step that is about to be made."""
    if _Shared.counter is not None:
        _Shared.counter[0] = step


def note_resume(command: str) -> None:
    """Note the command that continues from the saved results."""
    _write(RESUME, command)


def _write(where: slice, text: str) -> None:
    if _Shared.memory is not None:
        size = where.stop - where.start
        _Shared.memory[where] = text.encode(errors="replace")[: size - 1].ljust(size, b"\0")


def _read(memory: mmap.mmap, where: slice) -> str:
    return memory[where].partition(b"\0")[0].decode(errors="replace")


def _forget() -> None:
    """Disconnect from the sentinel. Also called in processes that the command forks, which would keep the pipe open."""
    if _Shared.memory is not None:
        with suppress(OSError):  # an environment may have closed all files
            os.close(_Shared.pipe)
        _Shared.memory, _Shared.counter, _Shared.pipe = None, None, -1


def _watch(pipe: int, memory: mmap.mmap, command: int) -> None:
    """Wait for the end of the command and print an explanation unless the end was normal."""
    os.setsid()
    for name in os.listdir("/dev/fd"):
        if int(name) not in (2, pipe):
            with suppress(OSError):  # the descriptor of the listing itself is closed already
                os.close(int(name))
    while os.getppid() == command and not memory[DONE]:
        # The pipe reports the end at once. Another process may keep it open, so the parent process is checked as well.
        select.select([pipe], [], [], PULSE)
        if os.getppid() == command and not memory[DONE]:
            time.sleep(0.01)  # the pipe can close shortly before its process ends
    if not memory[DONE]:
        os.write(2, (explanation(memory) + "\n").encode(errors="replace"))


def explanation(memory: mmap.mmap) -> str:
    """Return the paragraph that explains the end of a command with these notes."""
    place, step = _read(memory, PLACE), int.from_bytes(memory[COUNTER], sys.byteorder)
    where = "it was not using an environment at that moment"
    if place:
        where = f"it was in {place}" + (f", step {step}" if step else "")
    resume = _read(memory, RESUME)
    then = f"all finished iterations are saved; go on with: {resume}" if resume else "nothing was begun"
    return (
        "rpsp: the process ended without warning, for example by a crash in compiled code, os._exit() in an "
        f"environment, kill -9 or lack of memory; {where}; {then}"
    )
