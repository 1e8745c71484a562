"""Rows 3 and 4: checkpoints that are damaged, and disks that take no more."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from amounts import amount, report
from processes import FLAGS, checkpoints, metrics
from small_runs import ALGORITHMS, assert_same, run_of, training_of

from rpsp.cli import main
from rpsp.errors import StorageError
from rpsp.experiments.run_directory import RunDirectory

# ---------------------------------------------------------------------------------------------------------------------
# 3: damage
# ---------------------------------------------------------------------------------------------------------------------


def test_every_flipped_byte_and_every_cut_is_found(tmp_path: Path) -> None:
    """In the state and in the manifest; a file keeps its name and its place in the directory."""
    run, rng = run_of(tmp_path, [1.0, 2.0]), random.Random(4)
    before = training_of(1)
    files = {path: path.read_bytes() for path in (run.checkpoints / "000002").iterdir()}
    assert {path.name for path in files} == {"state.safetensors", "manifest.json"}

    def flipped(data: bytes) -> bytes:
        at = rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :]

    flips, cuts = amount(30, 500), amount(6, 50)
    damages: list[Callable[[bytes], bytes]] = [flipped] * flips
    damages += [lambda data: data[: rng.randrange(len(data))]] * cuts
    for i, damage in enumerate(damages):
        path = sorted(files)[i % 2]
        path.write_bytes(damage(files[path]))
        found = run.restore(ALGORITHMS["trpo"])
        assert found is not None
        training, complaints = found
        assert training.iteration == 1 and len(complaints) == 1 and "000002" in complaints[0]
        path.write_bytes(files[path])
        if i % 50 == 0:
            assert_same(training, before)
    assert_same(run.read(2, ALGORITHMS["trpo"]), training_of(2))
    report(
        3,
        f"{flips} of {flips} flipped bytes and {cuts} of {cuts} truncations (half of them in the manifest) found, the "
        "checkpoint before used, one warning each",
    )


# ---------------------------------------------------------------------------------------------------------------------
# 4: disks
# ---------------------------------------------------------------------------------------------------------------------


class Disk:
    """A file system of its own, which can be filled up and made read-only."""

    def __init__(self, path: Path):
        self.path = path

    def leave(self, free: int) -> None:
        """Fill it but for so many bytes."""
        self.make_room()
        status = os.statvfs(self.path)
        with (self.path / "filler").open("wb") as file:
            file.write(bytes(status.f_bavail * status.f_frsize - free))

    def make_room(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may mount nothing")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """What a full disk is where nothing may be mounted: writing on in a file of so many bytes fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def refused_save(run: RunDirectory, number: int) -> None:
    """A save fails with the path and the bytes, and the checkpoints before are as they were."""
    files = checkpoints(run.path)
    with pytest.raises(StorageError, match=rf"{number:06d}: \d{{4,}} bytes could not be written \(.+\)\.$"):
        run.save(training_of(number))
    assert checkpoints(run.path) == files and not list(run.checkpoints.glob(".*"))
    assert_same(run.read(number - 1, ALGORITHMS["trpo"]), training_of(number - 1))


def test_a_save_that_meets_a_limit_leaves_the_last_one(tmp_path: Path) -> None:
    run = run_of(tmp_path, [1.0])
    size, times = (run.checkpoints / "000001" / "state.safetensors").stat().st_size, amount(5, 50)
    for limit in random.Random(5).choices(range(size), k=times):
        with files_of_at_most(limit):
            refused_save(run, 2)
    run.save(training_of(2))
    assert run.numbers() == [0, 1, 2]
    report(4, f"{times} saves that met a limit of size: the checkpoint before intact, path and bytes named")


def test_a_full_disk_leaves_the_last_checkpoint(disk: Disk) -> None:
    run, times = run_of(disk.path, [1.0]), amount(5, 50)
    pages = sum(-(-p.stat().st_size // 4096) for p in (run.checkpoints / "000001").iterdir())
    for i in range(times):
        disk.leave(4096 * (i % pages))
        refused_save(run, 2)
    disk.make_room()
    run.save(training_of(2))
    assert run.numbers() == [0, 1, 2]
    report(
        4,
        f"{times} saves on a full disk: the checkpoint before intact, path and bytes named",
    )


def cli(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit:
        main(list(arguments))
    return int(exit.value.code or 0)


def test_a_run_on_a_disk_that_is_full_or_read_only_ends_with_5_and_goes_on_later(
    disk: Disk, tmp_path: Path, capsys: Any
) -> None:
    out, whole = disk.path / "run", tmp_path / "whole"
    train = ["train", "tasks:Drift-v0", "--method", "fm2", "--quiet", *FLAGS]
    main([*train, "--iterations", "2", "--out", str(out)])
    main([*train, "--iterations", "4", "--out", str(whole)])
    for hinder, restore in (
        (lambda: disk.leave(4096), disk.make_room),
        (lambda: disk.remount("ro"), lambda: disk.remount("rw")),
    ):
        files = checkpoints(out)
        hinder()
        assert cli("resume", str(out), "--iterations", "4", "--quiet") == 5
        error = capsys.readouterr().err
        assert str(out) in error and len(error.splitlines()) <= 2 and "Traceback" not in error
        restore()
        assert checkpoints(out) == files
    main(["resume", str(out), "--iterations", "4", "--quiet"])
    assert metrics(out) == metrics(whole) and checkpoints(out) == checkpoints(whole)
    report(4, "a run whose disk was full, then read-only: exit 5 each time, then resumed and byte-identical")
