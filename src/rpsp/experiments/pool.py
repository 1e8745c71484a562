"""Many runs at once on this machine: a process for every run, bound to one core.

A process of its own gives its memory back and takes no other run with it when it dies. What it would cost, compiling anew,
is saved by a cache that the processes share. A process whose driver dies, however it dies, ends itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from rpsp.errors import RpspError, UsageError
from rpsp.experiments.config import TrainConfig, plugin_flag
from rpsp.experiments.runner import record_settings

FAILURE = "failure.txt"
"""In a run directory: why the run failed when it was last tried, in one sentence."""
PATIENCE = 60.0
"""Seconds until a directory that another process holds is given up; one whose driver was killed lets go sooner."""


@dataclass(frozen=True)
class Job:
    """A run to be done: what it is called, where it goes, and its resolved configuration."""

    name: str
    directory: Path
    config: TrainConfig


class Failure(NamedTuple):
    """Why a run failed, in one sentence, and the exit code for it."""

    sentence: str
    code: int


class Beat(NamedTuple):
    """What is at work now, and what has ended since the last beat."""

    working: list[Job]
    ended: list[tuple[Job, Failure | None]]


def cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def run_here(jobs: Sequence[Job], workers: int | None = None) -> Generator[Beat, None, None]:
    """Do these runs, so many at a time: one a core unless told otherwise. Closing the iterator stops them, all saved."""
    here, waiting, working = cores(), list(jobs), {}
    deadline = time.monotonic() + PATIENCE
    with tempfile.TemporaryDirectory(prefix="rpsp-compiled-") as compiled:
        try:
            while waiting or working:
                for slot in set(range(workers or len(here))) - set(working):
                    free = (job for job in waiting if time.monotonic() > deadline or not held(job.directory))
                    if (job := next(free, None)) is not None:
                        waiting.remove(job)
                        begin(job)
                        working[slot] = (job, Worker(job, compiled, here[slot % len(here)]))
                time.sleep(0.1)
                ended = []
                for slot, (job, worker) in list(working.items()):
                    if (code := worker.process.poll()) is not None:
                        del working[slot]
                        ended.append((job, settle(job, code, worker.said())))
                yield Beat([job for job, _ in working.values()], ended)
        finally:
            for _, worker in working.values():
                worker.process.terminate()
            for _, worker in working.values():
                worker.stop()


def begin(job: Job) -> None:
    """Leave the settings in the run directory, unless it has been begun already."""
    if not (job.directory / "config.json").exists():
        record_settings(job.directory, job.config)


def settle(job: Job, code: int, said: str) -> Failure | None:
    """Keep why a process failed beside the run; or forget it, now that it did not."""
    from rpsp.experiments.checkpoints import write_bytes

    if code == 0:
        (job.directory / FAILURE).unlink(missing_ok=True)
        return None
    lines = [line for line in said.splitlines() if line.strip()]
    complaints = [line.removeprefix("rpsp: ") for line in lines if line.startswith("rpsp: ")]
    if complaints:
        sentence = complaints[-1]
    elif code < 0:
        sentence = f"its process was ended by {signal.Signals(-code).name}."
        if -code == signal.SIGKILL:
            sentence += " Perhaps memory ran out; try fewer --jobs."
    else:
        sentence = lines[-1] if lines else f"its process ended with code {code}."
    write_bytes(job.directory / FAILURE, (sentence + "\n").encode())
    return Failure(sentence, code if code > 0 else RpspError.exit_code)


def held(directory: Path) -> bool:
    """Whether another process is at work there."""
    from rpsp.experiments.run_directory import RunDirectory

    try:
        with RunDirectory(directory).locked():
            return False
    except UsageError:
        return True


class Worker:
    """A process that goes on with one run: `rpsp resume`, which begins it where there is no checkpoint yet."""

    def __init__(self, job: Job, compiled: str | None = None, core: int | None = None):
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # so that several share a GPU
        }
        if job.config.device == "cpu":
            environment["JAX_PLATFORMS"] = "cpu"
        if compiled is not None and "JAX_COMPILATION_CACHE_DIR" not in environment:
            environment |= {
                "JAX_COMPILATION_CACHE_DIR": compiled,
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
        arguments = ["resume", str(job.directory), "--iterations", str(job.config.iterations), "--quiet"]
        arguments += plugin_flag(job.config)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        if core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self.process.pid, {core})

    def said(self) -> str:
        """What the process has printed so far."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def stop(self) -> None:
        """Let it save what it has, and end it."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE / 2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_PROGRAM = "from rpsp.experiments.pool import follow; follow(); from rpsp.cli import main; main()"


def follow() -> None:
    """End this process when the one that holds the other end of its input is gone."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)  # which saves
        time.sleep(PATIENCE / 2)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
