"""Loggers: TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rpsp.errors import UsageError
from rpsp.experiments.callbacks.base import Logger, RunState


class TensorBoardLogger(Logger):
    """Write TensorBoard files to `tensorboard/` in the run directory. Needs the extra `tensorboard`."""

    name = "tensorboard"

    def __init__(self) -> None:
        try:
            from tensorboardX import SummaryWriter  # optional extra # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UsageError(
                "tensorboard: tensorboardX is not installed; run `pip install rpsp[tensorboard]`."
            ) from error
        self._class: Any = SummaryWriter

    def open(self, run: RunState) -> None:
        """Open a file of events."""
        self._writer = self._class(str(run.directory / "tensorboard"))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write scalars."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, run: RunState) -> None:
        """Close the file."""
        self._writer.close()


LOGGERS: dict[str, type[Logger]] = {cls.name: cls for cls in (TensorBoardLogger,)}
"""The loggers by the names that `--logger` takes."""
