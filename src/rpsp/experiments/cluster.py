"""The same jobs on a Ray cluster: every run a task of one core, its files sent to the driver's directory as it goes.

A node works in a directory of its own, so none needs to be shared; what it has done is sent after an iteration, at most
every few seconds. A run whose node dies is given to another with what was sent last, and goes on from that checkpoint.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rpsp.data.files import write_bytes
from rpsp.errors import RpspError, UsageError
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.files import write_json
from rpsp.experiments.pool import Beat, Job, Worker, begin, held, settle
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.versions import versions

CHECKPOINTS = "checkpoints/"
EVERY = 10.0
"""Seconds between two parcels, at least."""
LOSSES = 3
"""A run that loses so many nodes in a row without finishing an iteration is given up."""
STALE = 3600.0
"""Seconds after which a directory in which nothing is at work was left by a task that was killed."""
AHEAD = 500
"""Tasks that are handed to Ray at a time: more than there are cores, so that a cluster that can grow does."""


class Parcel(NamedTuple):
    """What has changed in a run directory since the last parcel."""

    files: dict[str, bytes]
    checkpoints: list[int]
    """All that there are now; others may go."""
    code: int | None = None
    """With which the process ended; None while it is at work."""
    said: str = ""
    """What it printed, once it has ended."""
    lost: bool = False
    """Whether the node died under it."""


def connect(address: str | None) -> int:
    """Join a cluster; how many cores it has now."""
    try:
        import ray
    except ImportError as error:
        raise UsageError("backend: ray is not installed; `pip install rpsp[ray]`.") from error
    before = signal.getsignal(signal.SIGTERM)  # Ray puts one of its own there
    try:
        if address is not None and ":" in address:  # Ray itself would try for long, and print a line for every time
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
    except Exception as error:  # Ray's are many
        where = "on this machine" if address is None else f"at {address!r}"
        raise UsageError(
            f"address: no Ray cluster answers {where} ({_last_line(error).rstrip('.')}); start one with `ray start --head`, "
            "name it, or set RAY_AUTH_MODE and RAY_AUTH_TOKEN as it was started with."
        ) from error
    signal.signal(signal.SIGTERM, before)
    return int(ray.cluster_resources().get("CPU", 0))


def run_there(jobs: Sequence[Job], workers: int | None = None) -> Generator[Beat, None, None]:
    """Do these runs, all that the cluster has cores for or so many at a time. Closing the iterator stops them."""
    import ray

    task: Any = ray.remote(num_cpus=1, max_retries=0)(_train)
    waiting, losses = deque(jobs), dict.fromkeys((job.name for job in jobs), 0)
    handed: dict[Any, Job] = {}
    at_work = set()
    try:
        while waiting or handed:
            while waiting and len(handed) < (workers or AHEAD):
                job = waiting.popleft()
                begin(job)
                stream = task.options(num_gpus=int(job.config.device == "gpu")).remote(
                    str(job.directory), job.config, pack(job.directory, {}), EVERY
                )
                handed[stream] = job
            ended = []
            time.sleep(0.1)  # and not in `wait`, which takes every signal for Ctrl-C
            for stream in ray.wait(list(handed), num_returns=len(handed), timeout=0)[0]:
                job, parcel = handed[stream], _receive(stream)
                at_work.add(stream)
                unpack(job.directory, parcel)
                if any(name.startswith(CHECKPOINTS) for name in parcel.files):
                    losses[job.name] = 0
                losses[job.name] += parcel.lost
                if parcel.code is not None:
                    del handed[stream]
                    if parcel.lost and losses[job.name] < LOSSES:
                        waiting.appendleft(job)
                    else:
                        ended.append((job, settle(job, parcel.code, parcel.said)))
            yield Beat([job for stream, job in handed.items() if stream in at_work], ended)
    finally:
        for stream in handed:
            ray.cancel(stream)


def _receive(stream: Any) -> Parcel:
    """The next parcel; where none comes, one that says why."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return ray.get(next(stream))  # pyright: ignore[reportReturnType]
    except (RayTaskError, StopIteration) as error:  # a mistake, which would come again
        return Parcel({}, [], RpspError.exit_code, f"rpsp: {_last_line(error)}")
    except RayError as error:
        said = f"rpsp: the node it was on died, {LOSSES} times in a row ({_last_line(error)})."
        return Parcel({}, [], RpspError.exit_code, said, lost=True)


def _train(place: str, config: TrainConfig, given: Parcel, every: float) -> Generator[Parcel, None, None]:
    """On a node: go on with a run from what is given, and send what changes."""
    for left in Path(tempfile.gettempdir()).glob("rpsp-run-*"):
        if left.stat().st_mtime < time.time() - STALE and not held(left / "run"):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="rpsp-run-") as folder:
        directory = Path(folder) / "run"
        unpack(directory, given)
        sent: dict[str, Any] = {}
        pack(directory, sent)
        write_json(directory / "versions.json", versions())
        yield Parcel({}, [])  # at work
        worker = Worker([Job("", directory, config)])
        try:
            last = time.monotonic()
            while (code := worker.process.poll()) is None:
                time.sleep(0.2)
                if time.monotonic() > last + every and (parcel := pack(directory, sent)).files:
                    yield parcel
                    last = time.monotonic()
        finally:
            worker.stop()
        results = directory / "results.json"
        if code == 0:
            write_json(results, json.loads(results.read_bytes()) | {"directory": place})
        yield pack(directory, sent)._replace(code=code, said=worker.said())


def pack(directory: Path, sent: dict[str, Any]) -> Parcel:
    """What is not in `sent` as it is now; it is added there. A process may be at work in the directory all the while."""
    files: dict[str, bytes] = {}
    checkpoints = RunDirectory(directory).numbers()
    paths = []
    for folder, within, names in os.walk(directory):  # which does not mind what vanishes
        within[:] = [name for name in within if not name.startswith(".")]
        paths += [Path(folder, name) for name in names if not name.startswith(".")]
    # Checkpoints first: by the time that metrics are read, they know of all that these have done.
    for name, path in sorted(((p.relative_to(directory).as_posix(), p) for p in paths), key=_checkpoints_first):
        try:
            seen = path.stat()
            if sent.get(name) != (seen.st_mtime_ns, seen.st_size):
                files[name] = path.read_bytes()
                sent[name] = (seen.st_mtime_ns, seen.st_size)
        except FileNotFoundError:  # a checkpoint that was no longer needed
            continue
    return Parcel(files, checkpoints)


def _checkpoints_first(item: tuple[str, Path]) -> bool:
    return not item[0].startswith(CHECKPOINTS)


def unpack(directory: Path, parcel: Parcel) -> None:
    """Bring a run directory to where the sender's is. As in a run itself: metrics, then checkpoints, results at last."""
    files, checkpoints = RunDirectory(directory), defaultdict(dict)
    for name in parcel.files:
        if name.startswith("/") or ".." in name.split("/"):
            raise RpspError(
                f"a node sent a file named {name!r}, which would lie outside {directory}; nothing was written."
            )
    for name, data in parcel.files.items():
        if name.startswith(CHECKPOINTS):
            checkpoints[name.split("/")[1]][name.split("/")[2]] = data
        elif name != "results.json":
            write_bytes(directory / name, data)
    for name, parts in checkpoints.items():
        if len(parts) == 2:  # else it was being removed as it was read
            files.write_checkpoint(name, parts)
    if parcel.checkpoints:
        files.keep(parcel.checkpoints)
    if "results.json" in parcel.files:
        write_bytes(directory / "results.json", parcel.files["results.json"])


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
