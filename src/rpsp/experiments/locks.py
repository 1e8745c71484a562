"""Locks on directories, so that two processes never write to the same run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rpsp.errors import StorageError, UsageError, refuse_windows

LOCK = ".lock"
"""The file in a directory that is locked. It stays when the lock is released."""


class InUse(UsageError):
    """Error: another process has locked the directory."""

    def __init__(self, path: Path):
        super().__init__(f"out: {str(path)!r} is in use by another process; wait for it, or stop it.")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory. The lock is released at the end of the context, or when the process ends.

    Raises:
        InUse: if another process has locked the directory.
        StorageError: if the directory cannot be written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK).open("w")
    except OSError as error:
        raise StorageError(f"{directory}: cannot be written to ({error.strerror}).") from error
    with file:
        try:
            _lock(file, shared=False)
        except OSError as error:
            raise InUse(directory) from error
        yield


def is_locked(directory: Path) -> bool:
    """Return whether another process has locked the directory. Creates no file and no directory."""
    try:
        file = (directory / LOCK).open("rb")
    except OSError:  # no lock file, or an unreadable one, which `locked` will report
        return False
    with file:
        try:
            _lock(file, shared=True)  # released when the file is closed
        except OSError:
            return True
        return False


def _lock(file: IO[Any], *, shared: bool) -> None:
    """Lock an open file until it is closed. Raises `OSError` if another process has locked it."""
    refuse_windows()
    import fcntl  # platform: does not exist on Windows

    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
