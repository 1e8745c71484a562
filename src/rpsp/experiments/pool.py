"""Many runs at once on this machine: a process for every run, bound to one core; on a GPU, one for all runs of a method.

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

from rpsp.errors import FileFormatError, RpspError
from rpsp.experiments.config import TrainConfig, plugin_flag
from rpsp.experiments.files import read_json, record_settings

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
    here, waiting, working = cores(), bundles(jobs), {}
    workers = workers or (1 if any(len(bundle) > 1 for bundle in waiting) else len(here))
    deadline = time.monotonic() + PATIENCE
    with tempfile.TemporaryDirectory(prefix="rpsp-compiled-") as compiled:
        try:
            while waiting or working:
                for slot in set(range(workers)) - set(working):
                    late = time.monotonic() > deadline
                    free = (bundle for bundle in waiting if late or not any(held(job.directory) for job in bundle))
                    if (bundle := next(free, None)) is not None:
                        waiting.remove(bundle)
                        for job in bundle:
                            begin(job)
                        core = here[slot % len(here)] if len(bundle) == 1 else None
                        working[slot] = (bundle, Worker(bundle, compiled, core))
                time.sleep(0.1)
                ended = []
                for slot, (bundle, worker) in list(working.items()):
                    if (code := worker.process.poll()) is not None:
                        del working[slot]
                        ended += [(job, settle(job, code, worker.said())) for job in bundle]
                yield Beat([job for bundle, _ in working.values() for job in bundle], ended)
        finally:
            for _, worker in working.values():
                worker.process.terminate()
            for _, worker in working.values():
                worker.stop()


AT_ONCE = 64
"""So many agents at most are trained together."""
TOGETHER = "env", "sensors", "max_episode_steps", "num_envs", "iterations", "device", "step_timeout"
"""What they must have in common."""


def bundles(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs that one process does together: those of a method for a GPU; all others by themselves."""
    found: dict[object, list[list[Job]]] = {}
    for job in jobs:
        alike = job.name
        if job.config.device == "gpu":
            alike = job.config.method, *(getattr(job.config, name) for name in TOGETHER)
        found.setdefault(alike, [[]])
        if len(found[alike][-1]) == AT_ONCE:
            found[alike].append([])
        found[alike][-1].append(job)
    return [bundle for same in found.values() for bundle in same]


def begin(job: Job) -> None:
    """Leave the settings in the run directory, unless it has been begun already; why it failed before is forgotten."""
    (job.directory / FAILURE).unlink(missing_ok=True)
    if not (job.directory / "config.json").exists():
        record_settings(job.directory, job.config)


def settle(job: Job, code: int, said: str) -> Failure | None:
    """Keep why a process failed beside the run, unless it has done so itself. Of several runs some may be done."""
    from rpsp.data.files import write_bytes

    own = job.directory / FAILURE
    if code == 0 or (not own.exists() and done(job)):
        return None
    if own.exists():
        return Failure(own.read_text(encoding="utf8").strip(), code if code > 0 else RpspError.exit_code)
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
    write_bytes(own, (sentence + "\n").encode())
    return Failure(sentence, code if code > 0 else RpspError.exit_code)


def done(job: Job) -> bool:
    """Whether the run has come to its end."""
    try:
        return read_json(job.directory / "results.json").get("iterations") == job.config.iterations
    except (FileFormatError, AttributeError):  # not there, or damaged, which the run itself will say
        return False


def held(directory: Path) -> bool:
    """Return whether another process works in a run directory. Creates no file and no directory."""
    from rpsp.experiments.run_directory import RunDirectory

    return RunDirectory(directory).is_locked()


class Worker:
    """A process that goes on with a run, or with several: `rpsp resume`, which begins those without a checkpoint yet."""

    def __init__(self, jobs: Sequence[Job], compiled: str | None = None, core: int | None = None):
        job = jobs[0]
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
        arguments = [
            "resume",
            *(str(job.directory) for job in jobs),
            "--iterations",
            str(job.config.iterations),
            "--quiet",
        ]
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


# Its thread keeps `main` from starting a sentinel, which is not needed: the driver says how its processes ended.
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
