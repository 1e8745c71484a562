"""Reading files of bounded size, and writing them atomically."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import IO

from rpsp.errors import FileFormatError, StorageError

MAX_BYTES = 4 << 30  # a model of this project is a few megabytes; nothing sensible is larger


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """A file's contents, or a sentence that says why not."""
    try:
        kind = path.stat()
        if not stat.S_ISREG(kind.st_mode) and not stat.S_ISDIR(kind.st_mode):
            raise FileFormatError(f"{path}: is not a plain file; not read.")
        if kind.st_size > most:
            raise FileFormatError(f"{path}: has {kind.st_size} bytes, more than {most}, and is no rpsp file; not read.")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FileFormatError(f"{path}: there is no such file.") from error
    except IsADirectoryError as error:
        raise FileFormatError(f"{path}: is a directory; give the file in it.") from error
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error.strerror}).") from error


def write_through(file: IO[bytes], data: bytes) -> None:
    """Write, and come back when it is on the disk."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


PART = ".part"
"""How the name of a temporary file ends: `.config.json.x8s2k1qa.part` for `config.json`."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: a temporary file beside it, fsync, rename."""
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
