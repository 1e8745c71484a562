"""JSON files, and new run directories. Files are written atomically. A new run never uses a directory with files."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rpsp.data.files import read_bytes, write_bytes
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.versions import versions

Say = Callable[[str], None]
"""A function that shows a message to the user."""
MAX_JSON = 64 << 20  # maximum size of a file in bytes; ours have a few thousand


def free_directory(out: str | None, name: str) -> Path:
    """Return the path of a new run directory.

    Args:
        out: the path. None: runs/NAME__TIME.
        name: the name of the run.

    Raises:
        UsageError: if the path exists and is not an empty directory.
    """
    path = Path(out) if out is not None else Path("runs") / f"{name}__{time.strftime('%Y%m%d-%H%M%S')}"
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        going_on = (
            f"continue it with `rpsp resume {shlex.quote(str(path))}`, " if (path / "checkpoints").is_dir() else ""
        )
        raise UsageError(
            f"out: {str(path)!r} exists and is not empty; {going_on}choose another directory or remove it."
        )
    return path


def write_json(path: Path, content: Any) -> None:
    """Write an object to a JSON file, atomically."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises `FileFormatError` if it is missing or damaged."""
    try:
        content = json.loads(read_bytes(path, MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: is not JSON ({error}).") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: contains no JSON object.")
    return content


def record_settings(directory: Path, config: Any) -> None:
    """Write config.json, command.txt and versions.json: the settings, the command and the versions of packages."""
    write_json(directory / "config.json", dataclasses.asdict(config))
    write_bytes(directory / "command.txt", (shlex.join(["rpsp", *sys.argv[1:]]) + "\n").encode())
    write_json(directory / "versions.json", versions())
