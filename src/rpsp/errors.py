"""The exceptions of this package, with the exit codes of the command line.

A message is one sentence that names the field, the value and a remedy.
"""

from __future__ import annotations

import signal
import sys

POSIX = "setitimer", "SIGVTALRM", "SIGTSTP", "pthread_kill"
"""What runs need of the module `signal`."""
FAILED_SHARE = 0.2
"""A run ends if more than this share of the episodes of a batch fail (NaN or infinite values, exceptions)."""
PENDING: list[KeyboardInterrupt] = []
"""Signals received. The exception that a signal raises can get lost where compiled code calls Python, so a run checks
this list between iterations."""


class Terminated(KeyboardInterrupt):
    """SIGTERM was received. Treated like Ctrl-C, with another exit code."""


class RpspError(Exception):
    """Base class of the exceptions of this package. The command line exits with `exit_code`."""

    exit_code = 1


class UsageError(RpspError, ValueError):
    """Invalid argument, setting or data."""

    exit_code = 2


class FileFormatError(RpspError):
    """A file is damaged, has an unknown format or was written by an incompatible version."""

    exit_code = 3


class DivergedError(RpspError):
    """A fit or a run produced NaN or infinite values."""

    exit_code = 4


class StorageError(RpspError):
    """A file cannot be written: the disk is full or read-only, or the file exists and must not be overwritten."""

    exit_code = 5


class EnvironmentFailure(RpspError):
    """The environment raised an exception, hung or cannot be used."""

    exit_code = 6


def refuse_windows() -> None:
    """Raise a `UsageError` on Windows, and wherever Python has no file locks or POSIX signals.

    Call it before using file locks, interval timers or POSIX signals. Models, filters and recordings use none of these
    and do not call it.
    """
    if sys.platform == "win32":
        raise UsageError(
            "platform: rpsp does not run on Windows, whose Python has no fcntl, setitimer, SIGTSTP or pthread_kill; "
            "use WSL2 (https://learn.microsoft.com/windows/wsl), Linux or macOS."
        )
    try:
        import fcntl  # noqa: F401 - platform: does not exist everywhere
    except ImportError as error:
        raise UsageError(
            "platform: this Python has no fcntl, which locks run directories; use Linux or macOS."
        ) from error
    if missing := [name for name in POSIX if not hasattr(signal, name)]:
        raise UsageError(
            f"platform: this Python has no signal.{missing[0]}, which limits the time of steps; use Linux or macOS."
        )
