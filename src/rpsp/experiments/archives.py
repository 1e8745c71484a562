"""Zip archives of a few files with checksums, read so that a hostile file can only be refused.

Every entry is stored uncompressed, so no file is larger unpacked than packed. `manifest.json` lists the size and the
SHA-256 of every other entry.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rpsp.data.files import read_bytes, write_bytes
from rpsp.errors import FileFormatError, StorageError

MANIFEST = "manifest.json"
MAX_SIZE = 1 << 30
"""Maximum size of an archive in bytes; ours have less than a megabyte."""
MAX_TEXT = 16 << 20
"""Maximum size of an entry that is not a safetensors file."""
MAX_DIRECTORY = 1 << 16
"""Maximum size of the list of entries at the end of an archive."""
END = struct.Struct("<4s4H2LH")
"""The end of a zip archive without comment: signature, disks, entries, size and place of the list of entries."""
DATE = (1980, 1, 1, 0, 0, 0)
"""The date of every entry, so that the same contents are the same bytes."""


def write_archive(path: Path, files: Mapping[str, bytes], format: int, *, overwrite: bool = False) -> None:
    """Write files and their checksums to an archive, atomically.

    Raises:
        StorageError: if the archive exists and `overwrite` is False, or it cannot be written.
    """
    if path.exists() and not overwrite:
        raise StorageError(f"{path}: already exists; choose another path or remove it.")
    listed = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    manifest = (json.dumps({"format": format, "files": listed}, indent=2) + "\n").encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {MANIFEST: manifest, **files}.items():
            archive.writestr(zipfile.ZipInfo(name, DATE), data)
    write_bytes(path, buffer.getvalue())


def read_archive(path: Path, required: Collection[str], optional: Collection[str], format: int) -> dict[str, bytes]:
    """Read and check an archive. Nothing is unpacked to disk.

    Args:
        path: the file.
        required: names of the entries that it must contain.
        optional: names of the entries that it may contain.
        format: the format number that is read.

    Returns:
        The content of each entry by name, without the manifest.

    Raises:
        FileFormatError: if it is no such archive, is damaged or too large, or contains anything else.
    """
    data = read_bytes(path, MAX_SIZE)
    try:
        files = _entries(data, {MANIFEST, *required, *optional})
        manifest = json.loads(files.pop(MANIFEST))
        if manifest["format"] != format:
            raise ValueError(f"its format is {manifest['format']!r}, and this version of rpsp reads format {format}")
        _check(files, manifest["files"], required)
    except (ValueError, KeyError, TypeError, RecursionError, EOFError, NotImplementedError, struct.error) as error:
        raise FileFormatError(f"{path}: is not an agent that `rpsp pack` wrote, or is damaged ({error}).") from error
    except (zipfile.BadZipFile, RuntimeError) as error:
        raise FileFormatError(f"{path}: is not a zip archive, or is damaged ({error}).") from error
    return files


def _entries(data: bytes, known: Collection[str]) -> dict[str, bytes]:
    """Return the entries of an archive. Checks sizes and names before anything is read."""
    if len(data) < END.size:
        raise ValueError("it is too short")
    signature, _, _, _, count, size, _, comment = END.unpack(data[-END.size :])
    if signature != b"PK\x05\x06" or comment:
        raise ValueError("it does not end as a zip archive")
    if count > len(known) or size > MAX_DIRECTORY:
        raise ValueError(f"it lists {count} entries in {size} bytes")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        listed = archive.infolist()
        names = [info.filename for info in listed]
        if len(set(names)) < len(names) or not set(names) <= set(known):
            raise ValueError(f"it contains unknown or repeated entries: {', '.join(map(repr, names))[:200]}")
        for info in listed:
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
                raise ValueError(f"{info.filename} is compressed or encrypted")
            if info.file_size > (MAX_SIZE if info.filename.endswith(".safetensors") else MAX_TEXT):
                raise ValueError(f"{info.filename} has {info.file_size} bytes")
        if sum(info.file_size for info in listed) > len(data):
            raise ValueError("its entries overlap")
        return {info.filename: archive.read(info) for info in listed}


def _check(files: Mapping[str, bytes], listed: Any, required: Collection[str]) -> None:
    """Raise `ValueError` if the entries are not those that the manifest lists, with their checksums."""
    if set(files) != set(listed):
        raise ValueError("its entries are not those of its manifest")
    if missing := [name for name in required if name not in files]:
        raise ValueError(f"it contains no {missing[0]}")
    for name, content in files.items():
        if listed[name] != {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}:
            raise ValueError(f"{name} does not match its checksum")
