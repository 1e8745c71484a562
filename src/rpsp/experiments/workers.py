"""Run many training runs on this machine, in worker processes.

On CPUs every run has its own process, pinned to one core. On a GPU one process trains all runs of a method together.
Separate processes return their memory when they end, and a crash affects no other run. The workers share a compilation
cache, so that each program is compiled once. A worker ends itself when the process that started it dies for any reason.
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

from rpsp.data.files import write_bytes
from rpsp.errors import FileFormatError, RpspError
from rpsp.experiments.budget import Budget
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.files import read_json, record_settings
from rpsp.experiments.locks import is_locked
from rpsp.experiments.plugins import plugin_flag

FAILURE = "failure.txt"
"""File in a run directory that contains the reason of the last failure, in one sentence."""
PATIENCE = 60.0
"""Seconds to wait for directories that are locked by other processes.

Afterwards their runs are started anyway and report the lock as an error. Workers whose driver was killed unlock sooner.
"""


@dataclass(frozen=True)
class Job:
    """A run to train: its name, its run directory and its resolved configuration."""

    name: str
    directory: Path
    config: TrainConfig


class Failure(NamedTuple):
    """The reason of a failed run, in one sentence, and its exit code."""

    sentence: str
    code: int


class Beat(NamedTuple):
    """Progress report: the jobs that are running, and those that ended since the last report."""

    working: list[Job]
    ended: list[tuple[Job, Failure | None]]


def cores() -> list[int]:
    """Return the CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def run_here(jobs: Sequence[Job], workers: int | None = None) -> Generator[Beat, None, None]:
    """Run jobs on this machine.

    Args:
        jobs: the runs to train.
        workers: number of processes at a time. Default: one for each core (1 if runs are trained together on a GPU).

    Yields:
        A `Beat` about every 0.1 seconds. Closing the iterator stops the workers; they save their finished iterations.
    """
    here, waiting, working = cores(), bundles(jobs), {}
    workers = workers or (1 if any(len(bundle) > 1 for bundle in waiting) else len(here))
    deadline = time.monotonic() + PATIENCE
    with tempfile.TemporaryDirectory(prefix="rpsp-compiled-") as compiled:
        try:
            while waiting or working:
                for slot in set(range(workers)) - set(working):
                    late = time.monotonic() > deadline
                    free = (bundle for bundle in waiting if late or not any(is_locked(job.directory) for job in bundle))
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
"""Maximum number of runs that one process trains together."""
TOGETHER = (
    "env", "sensors", "max_episode_steps", "num_envs", "iterations", "steps", "minutes", "device", "step_timeout",
)  # fmt: skip
"""Settings in which runs that are trained together must agree."""


def bundles(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group jobs by process: GPU jobs of the same method and task share a process, all others have one each."""
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
    """Write the settings into a new run directory, and remove the failure message of an earlier attempt."""
    (job.directory / FAILURE).unlink(missing_ok=True)
    if not (job.directory / "config.json").exists():
        record_settings(job.directory, job.config)


def settle(job: Job, code: int, said: str) -> Failure | None:
    """Find out whether a job failed, and write the reason into its run directory unless the worker has done so.

    A job may be done although its process failed, because a process may train several jobs.

    Args:
        job: the job.
        code: the exit code of its process.
        said: what the process printed.

    Returns:
        The failure, or None if the job is done.
    """
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
        sentence = f"its process was killed by {signal.Signals(-code).name}."
        if -code == signal.SIGKILL:
            sentence += " The machine may have run out of memory; try fewer --jobs."
    else:
        sentence = lines[-1] if lines else f"its process ended with exit code {code}."
    write_bytes(own, (sentence + "\n").encode())
    return Failure(sentence, code if code > 0 else RpspError.exit_code)


def done(job: Job) -> bool:
    """Return whether the budget of a run is spent, or one of its callbacks has stopped it."""
    try:
        results = read_json(job.directory / "results.json")
        iterations, steps = int(results["iterations"]), int(results["samples"])
        stopped = bool(results.get("stopped_by"))
        return stopped or Budget.of(vars(job.config)).spent(iterations, steps, float(results["wall_seconds"]))
    except (
        FileFormatError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ):  # missing or damaged; the run itself will report that
        return False


class Worker:
    """A process that executes `rpsp resume` on one or several runs. Runs without a checkpoint start from the beginning.

    Args:
        jobs: the runs, with the same number of iterations and the same plugins.
        compiled: directory of a shared compilation cache. Default: none.
        core: the CPU core to pin the process to. Default: any.
    """

    def __init__(self, jobs: Sequence[Job], compiled: str | None = None, core: int | None = None):
        job = jobs[0]
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # so that several processes can share a GPU
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
            *Budget.of(vars(job.config)).flags,
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
        """Return what the process has printed so far."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def stop(self) -> None:
        """Terminate the process. It has time to save; after that it is killed."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE / 2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


# `follow` starts a thread, and with a second thread `main` starts no sentinel. None is needed, because the driver
# reports how its workers ended.
_PROGRAM = "from rpsp.experiments.workers import follow; follow(); from rpsp.cli import main; main()"


def follow() -> None:
    """End this process when its standard input closes, which means that the driver has ended."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)  # its handler saves the run
        time.sleep(PATIENCE / 2)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
