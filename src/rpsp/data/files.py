"""Read files of bounded size and write files atomically."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import IO

from rpsp.errors import FileFormatError, StorageError

MAX_BYTES = 4 << 30  # models of this package have a few megabytes; larger files are refused


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """Read a file.

    Args:
        path: the file.
        most: maximum size in bytes.

    Raises:
        FileFormatError: if the file is missing, is not a regular file, is too large or cannot be read.
    """
    try:
        kind = path.stat()
        if not stat.S_ISREG(kind.st_mode) and not stat.S_ISDIR(kind.st_mode):
            raise FileFormatError(f"{path}: is not a regular file; not read.")
        if kind.st_size > most:
            raise FileFormatError(
                f"{path}: has {kind.st_size} bytes, more than {most}, and is not an rpsp file; not read."
            )
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FileFormatError(f"{path}: there is no such file.") from error
    except IsADirectoryError as error:
        raise FileFormatError(f"{path}: is a directory; give the file in it.") from error
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error.strerror}).") from error


def write_through(file: IO[bytes], data: bytes) -> None:
    """Write data to a file and wait until it is on disk (fsync)."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


PART = ".part"
"""Suffix of temporary files, as in `.config.json.x8s2k1qa.part` for `config.json`."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: write a temporary file in the same directory, fsync, rename.

    Raises:
        StorageError: if the file cannot be written. The temporary file is removed and an existing file stays unchanged.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=PART, delete=False) as file:
            temporary = file.name
            write_through(file, data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise StorageError(f"{path}: {len(data)} bytes could not be written ({error.strerror}).") from error
