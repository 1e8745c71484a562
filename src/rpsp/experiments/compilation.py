"""A persistent cache of compiled programs: a command does not compile again what an earlier one has compiled.

It is jax's own cache, in `$XDG_CACHE_HOME/rpsp/xla` (default: `~/.cache/rpsp/xla`), and on by default. A cached program is
the machine code that was compiled before, so results do not depend on whether a program came from the cache. Each kind of
CPU has a directory of its own, because machines with different instruction sets may share a home directory.

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
"""Size of the cache; beyond it the entries that were not used for longest are removed."""
CPU_FIELDS = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
    "Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "isa", "uarch",
)  # fmt: skip
"""Lines of /proc/cpuinfo that say which instructions a CPU has (x86, ARM, RISC-V)."""

_decided: ContextVar[bool] = ContextVar("decided", default=False)
"""Whether an outer call has turned the cache on or off already."""


@contextmanager
def compilation_cached(wanted: bool = True) -> Iterator[None]:
    """Use the persistent cache inside this context, and restore jax's settings afterwards. Also a decorator.

    Args:
        wanted: False turns the cache off, for all calls inside as well.
    """
    outermost = not _decided.get()
    token = _decided.set(True)
    directory = cache_directory() if wanted and outermost and _free() else None
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    try:
        if directory is not None:
            _prune(directory.parent)
            # A full disk or a damaged entry only means that a program is compiled again.
            warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
            _configure(dict(zip(SETTINGS, (str(directory), 0.0), strict=True)))
        yield
    finally:
        _decided.reset(token)
        if directory is not None:
            _configure(before)


SETTINGS = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
"""The settings of jax that are changed: where, and how long a program must compile to be kept (0: keep all)."""


def _configure(settings: dict[str, object]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()  # jax opens its cache once, at the first compilation


def _free() -> bool:
    """Whether neither the user nor the program has decided about jax's cache."""
    off = os.environ.get(VARIABLE, "").strip().lower() in OFF
    names = "jax_enable_compilation_cache", "jax_compilation_cache_dir"
    enabled, directory = (getattr(jax.config, name) for name in names)
    return not off and enabled and directory is None


def cache_directory() -> Path | None:
    """The directory for programs of this machine's kind, created if necessary; None if it cannot be used safely.

    Programs in it are executed, so it must belong to this user and be writable by nobody else.
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
    """A short hash of the CPU's model and instruction set, where they are known, otherwise of the machine's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        known = {line for line in lines if line.partition(":")[0].strip() in CPU_FIELDS}
    except OSError:
        known = set()
    known = known or {platform.processor(), platform.node()}
    return hashlib.sha256("\n".join([platform.machine(), *sorted(known)]).encode()).hexdigest()[:16]


def _prune(root: Path) -> None:
    """Remove the files that were not used for longest until the rest fits into MAX_BYTES."""
    with suppress(OSError):
        found = [(path, path.stat()) for path in root.rglob("*") if path.is_file()]
        excess = sum(status.st_size for _, status in found) - MAX_BYTES
        for path, status in sorted(found, key=lambda entry: max(entry[1].st_atime, entry[1].st_mtime)):
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= status.st_size
