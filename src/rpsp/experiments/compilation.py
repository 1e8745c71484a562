"""A persistent cache of compiled programs, so that a command need not compile programs of earlier commands again.

It is jax's own cache, in `$XDG_CACHE_HOME/rpsp/xla` (default: `~/.cache/rpsp/xla`), and on by default. A cached program
is the machine code that was compiled before, so results do not depend on whether a program comes from the cache. Each
kind of CPU has its own directory, because machines with different instruction sets may share a home directory.

The cache stays off if `RPSP_COMPILATION_CACHE=off` is set, if jax has a cache directory already
(`JAX_COMPILATION_CACHE_DIR`), or if the directory cannot be written or is open to other users.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache as jax_cache

VARIABLE = "RPSP_COMPILATION_CACHE"
OFF = "off", "0", "no", "false"
"""Values of the environment variable that turn the cache off."""
MAX_BYTES = 1 << 30
"""Maximum size of the cache. The least recently used entries are removed first."""
CPU_FIELDS = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
    "Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "isa", "uarch",
)  # fmt: skip
"""Fields of /proc/cpuinfo that determine the instruction set of a CPU (x86, ARM, RISC-V)."""

_decided: ContextVar[bool] = ContextVar("decided", default=False)
"""Whether an outer call has already turned the cache on or off."""


@contextmanager
def compilation_cached(wanted: bool = True) -> Iterator[None]:
    """Use the persistent cache inside this context, and restore jax's settings afterwards. Also usable as a decorator.

    Args:
        wanted: False turns the cache off, also for nested calls.
    """
    outermost = not _decided.get()
    token = _decided.set(True)
    directory = cache_directory() if wanted and outermost and _free() else None
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    try:
        if directory is not None:
            _prune(directory.parent)
            # If the disk is full or an entry is damaged, the program is compiled again.
            warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
            _configure(dict(zip(SETTINGS, (str(directory), 0.0), strict=True)))
        yield
    finally:
        _decided.reset(token)
        if directory is not None:
            _configure(before)


SETTINGS = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
"""Settings of jax that are changed: the directory, and the minimum compile time of cached programs (0: cache all)."""


def _configure(settings: dict[str, object]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()  # jax opens its cache once, at the first compilation


def _free() -> bool:
    """Return whether neither the user nor the program has configured jax's cache."""
    off = os.environ.get(VARIABLE, "").strip().lower() in OFF
    names = "jax_enable_compilation_cache", "jax_compilation_cache_dir"
    enabled, directory = (getattr(jax.config, name) for name in names)
    return not off and enabled and directory is None


def cache_directory() -> Path | None:
    """Return the cache directory for this kind of CPU, and create it if necessary.

    The programs in it are executed, so it must belong to this user, and nobody else may write to it.

    Returns:
        The directory, or None if it cannot be used safely.
    """
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if not home.is_absolute():
            home = Path.home() / ".cache"
        path = home / "rpsp" / "xla" / _machine()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.stat()
        private = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return path if private and os.access(path, os.W_OK | os.X_OK) else None
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None


def _machine() -> str:
    """Return a short hash of the CPU's model and instruction set, or of the machine's name if these are unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        known = {line for line in lines if line.partition(":")[0].strip() in CPU_FIELDS}
    except OSError:
        known = set()
    known = known or {platform.processor(), platform.node()}
    return hashlib.sha256("\n".join([platform.machine(), *sorted(known)]).encode()).hexdigest()[:16]


def _prune(root: Path) -> None:
    """Remove the least recently used files until the rest fits into MAX_BYTES."""
    with suppress(OSError):
        found = [(path, path.stat()) for path in root.rglob("*") if path.is_file()]
        excess = sum(status.st_size for _, status in found) - MAX_BYTES
        for path, status in sorted(found, key=lambda entry: max(entry[1].st_atime, entry[1].st_mtime)):
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= status.st_size
