"""JSON files and run directories. Files are written atomically, and nothing that exists is overwritten."""

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
MAX_JSON = 64 << 20  # bytes of a file; ours have a few thousand


def free_directory(out: str | None, name: str) -> Path:
    """Where a run may go: `out` itself, or a name made of the run and the time under runs/. Must be new or empty."""
    path = Path(out) if out is not None else Path("runs") / f"{name}__{time.strftime('%Y%m%d-%H%M%S')}"
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        going_on = (
            f"go on with it by `rpsp resume {shlex.quote(str(path))}`, " if (path / "checkpoints").is_dir() else ""
        )
        raise UsageError(
            f"out: {str(path)!r} exists and is not empty; {going_on}choose another directory or remove it."
        )
    return path


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = json.loads(read_bytes(path, MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: is not JSON ({error}).") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: holds no JSON object.")
    return content


def record_settings(directory: Path, config: Any) -> None:
    """config.json, command.txt and versions.json: what was asked for, and of which versions."""
    write_json(directory / "config.json", dataclasses.asdict(config))
    write_bytes(directory / "command.txt", (shlex.join(["rpsp", *sys.argv[1:]]) + "\n").encode())
    write_json(directory / "versions.json", versions())
