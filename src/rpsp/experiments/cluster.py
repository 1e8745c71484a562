"""Execute jobs on a Ray cluster. Every run is a task with one core.

A node works in a temporary directory, so no shared file system is needed. It sends new files to the driver every
`EVERY` seconds at most, and the driver writes them into its run directory. If a node dies, its run is given to another
node, which continues from the last checkpoint that was sent.
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
from rpsp.experiments.locks import is_locked
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.versions import versions
from rpsp.experiments.workers import Beat, Job, Worker, begin, settle

CHECKPOINTS = "checkpoints/"
EVERY = 10.0
"""Minimum number of seconds between two parcels."""
LOSSES = 3
"""A run fails if so many nodes in a row die before they send a checkpoint."""
STALE = 3600.0
"""Age in seconds after which an unlocked temporary directory is removed. A killed task has left it."""
AHEAD = 500
"""Number of tasks submitted to Ray at a time. It exceeds the number of cores, so that an autoscaling cluster grows."""


class Parcel(NamedTuple):
    """The changes of a run directory since the last parcel."""

    files: dict[str, bytes]
    """Content of new and changed files, by path."""
    checkpoints: list[int]
    """All checkpoints that exist now. The receiver removes others."""
    code: int | None = None
    """Exit code of the process; None while it is running."""
    said: str = ""
    """Output of the process, after it has ended."""
    lost: bool = False
    """Whether the node died."""


def connect(address: str | None) -> int:
    """Connect to a Ray cluster.

    Args:
        address: address of the cluster. None: the cluster that this machine belongs to.

    Returns:
        The number of cores that the cluster has now.

    Raises:
        UsageError: if Ray is not installed, or no cluster answers.
    """
    try:
        import ray  # optional extra
    except ImportError as error:
        raise UsageError("backend: ray is not installed; run `pip install rpsp[ray]`.") from error
    before = signal.getsignal(signal.SIGTERM)  # Ray replaces the handler
    try:
        if address is not None and ":" in address:  # Ray itself would retry for a long time and print many lines
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
    except Exception as error:  # Ray raises many types
        where = "on this machine" if address is None else f"at {address!r}"
        raise UsageError(
            f"address: no Ray cluster answers {where} ({_last_line(error).rstrip('.')}); start one with `ray start "
            "--head`, give its address, or set RAY_AUTH_MODE and RAY_AUTH_TOKEN to the values it was started with."
        ) from error
    signal.signal(signal.SIGTERM, before)
    return int(ray.cluster_resources().get("CPU", 0))


def run_there(jobs: Sequence[Job], workers: int | None = None) -> Generator[Beat, None, None]:
    """Run jobs on the cluster that `connect` joined.

    Args:
        jobs: the runs to train.
        workers: maximum number of runs at the same time. Default: as many as the cluster has cores.

    Yields:
        A `Beat` about every 0.1 seconds. Closing the iterator stops the runs.
    """
    import ray  # optional extra

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
            time.sleep(0.1)  # not in `ray.wait`, which treats every signal as Ctrl-C
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
    """Return the next parcel, or a parcel with the reason of the failure."""
    import ray  # optional extra
    from ray.exceptions import RayError, RayTaskError  # optional extra

    try:
        return ray.get(next(stream))  # pyright: ignore[reportReturnType]
    except (RayTaskError, StopIteration) as error:  # an exception in the task, which would happen again
        return Parcel({}, [], RpspError.exit_code, f"rpsp: {_last_line(error)}")
    except RayError as error:
        said = f"rpsp: its node died, {LOSSES} times in a row ({_last_line(error)})."
        return Parcel({}, [], RpspError.exit_code, said, lost=True)


def _train(place: str, config: TrainConfig, given: Parcel, every: float) -> Generator[Parcel, None, None]:
    """Continue a run on a node of the cluster, and yield the changes of its directory.

    Args:
        place: the run directory on the driver.
        config: the configuration of the run.
        given: the content of the run directory.
        every: minimum number of seconds between two parcels.
    """
    for left in Path(tempfile.gettempdir()).glob("rpsp-run-*"):
        if left.stat().st_mtime < time.time() - STALE and not is_locked(left / "run"):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="rpsp-run-") as folder:
        directory = Path(folder) / "run"
        unpack(directory, given)
        sent: dict[str, Any] = {}
        pack(directory, sent)
        write_json(directory / "versions.json", versions())
        yield Parcel({}, [])  # reports that the task is running
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
    """Return the files of a run directory that have changed. A process may write to the directory at the same time.

    Args:
        directory: the run directory.
        sent: time and size of the files in earlier parcels. It is updated.
    """
    files: dict[str, bytes] = {}
    checkpoints = RunDirectory(directory).numbers()
    paths = []
    for folder, within, names in os.walk(directory):  # it ignores directories that vanish
        within[:] = [name for name in within if not name.startswith(".")]
        paths += [Path(folder, name) for name in names if not name.startswith(".")]
    # Read checkpoints first. Metrics are written before checkpoints, so they then contain all iterations of these.
    for name, path in sorted(((p.relative_to(directory).as_posix(), p) for p in paths), key=_checkpoints_first):
        try:
            seen = path.stat()
            if sent.get(name) != (seen.st_mtime_ns, seen.st_size):
                files[name] = path.read_bytes()
                sent[name] = (seen.st_mtime_ns, seen.st_size)
        except FileNotFoundError:  # a checkpoint that was removed meanwhile
            continue
    return Parcel(files, checkpoints)


def _checkpoints_first(item: tuple[str, Path]) -> bool:
    return not item[0].startswith(CHECKPOINTS)


def unpack(directory: Path, parcel: Parcel) -> None:
    """Apply a parcel to a run directory. As in training, metrics are written first, then checkpoints, then results.

    Raises:
        RpspError: if the parcel contains a path outside the directory.
    """
    files, checkpoints = RunDirectory(directory), defaultdict(dict)
    for name in parcel.files:
        if name.startswith("/") or ".." in name.split("/"):
            raise RpspError(f"a node sent a file named {name!r}, which is outside {directory}; nothing was written.")
    for name, data in parcel.files.items():
        if name.startswith(CHECKPOINTS):
            checkpoints[name.split("/")[1]][name.split("/")[2]] = data
        elif name != "results.json":
            write_bytes(directory / name, data)
    for name, parts in checkpoints.items():
        if len(parts) == 2:  # otherwise it was removed while it was read
            files.write_checkpoint(name, parts)
    if parcel.checkpoints:
        files.keep(parcel.checkpoints)
    if "results.json" in parcel.files:
        write_bytes(directory / "results.json", parcel.files["results.json"])


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
