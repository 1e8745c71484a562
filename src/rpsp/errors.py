"""What can go wrong for a user, each with the exit code the command line gives it.

A message is one sentence that names the field, the value and the remedy.
"""

from __future__ import annotations

import sys

FAILED_SHARE = 0.2
"""Share of the episodes of a batch that may fail, by readings that are not finite or by exceptions, before a run ends."""
PENDING: list[KeyboardInterrupt] = []
"""A signal that came. What it raises may be lost where compiled code calls Python; a run looks here between iterations."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, with another exit code."""


class RpspError(Exception):
    """Every error this package raises on purpose; `exit_code` is what `rpsp` exits with."""

    exit_code = 1


class UsageError(RpspError, ValueError):
    """A wrong argument, setting or piece of data."""

    exit_code = 2


class FileFormatError(RpspError):
    """A file that is damaged, foreign, or of another version."""

    exit_code = 3


class DivergedError(RpspError):
    """A fit or a run whose numbers are no longer finite."""

    exit_code = 4


class StorageError(RpspError):
    """The disk refused: full, read-only, or something already there that would be overwritten."""

    exit_code = 5


class EnvironmentFailure(RpspError):
    """The environment raised, hung, or cannot be used."""

    exit_code = 6


def refuse_windows() -> None:
    """Raise a `UsageError` on Windows. Call it before using file locks, interval timers or POSIX signals.

    Models, filters and recordings need none of these and work without this check.
    """
    if sys.platform == "win32":
        raise UsageError(
            "platform: rpsp does not run on Windows, whose Python has no fcntl, setitimer, SIGTSTP or pthread_kill; use "
            "WSL2 (https://learn.microsoft.com/windows/wsl), Linux or macOS."
        )
