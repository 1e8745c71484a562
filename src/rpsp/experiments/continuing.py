"""The command `rpsp forecast`: continue a log with a fitted model, with bands."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from rpsp.data.files import write_bytes
from rpsp.data.logs import Log, Segment
from rpsp.data.scaling import OneHot
from rpsp.errors import StorageError, UsageError
from rpsp.experiments import figures
from rpsp.experiments.config import Columns, ForecastConfig
from rpsp.experiments.files import Say, read_json
from rpsp.experiments.fitting import log_of
from rpsp.experiments.forecasting import checked_level
from rpsp.experiments.models import PredictiveStateModel
from rpsp.experiments.plugins import import_plugin

NAMES = "episode", "row", "sensor", "forecast", "std", "low", "high", "read"
"""Columns of the table."""


class Continuation(NamedTuple):
    """The forecast of the last rows of one episode."""

    segment: Segment
    """The rows."""
    known: int
    """Number of rows whose readings were used."""
    mean: Float[np.ndarray, "horizon obs"]
    std: Float[np.ndarray, "horizon obs"]
    low: Float[np.ndarray, "horizon obs"]
    high: Float[np.ndarray, "horizon obs"]

    @property
    def read(self) -> Float[np.ndarray, "horizon obs"]:
        """What was read in the forecast rows, NaN where nothing was."""
        return self.segment.observations[self.known :]


def forecast(config: ForecastConfig, say: Say = lambda line: None) -> dict[str, Any]:
    """Forecast the last rows of every episode of a log, and write a table and a figure.

    Args:
        config: the settings of `rpsp forecast`.
        say: called with every progress message.

    Returns:
        The paths of the table and the figure, the number of forecast rows, and the share of readings in the bands.

    Raises:
        UsageError: if a setting is invalid, or the log does not suit the model.
        FileFormatError: if a file cannot be read.
        StorageError: if the table exists.
    """
    import_plugin(config.plugin)
    path = Path(config.model)
    path = path / "model.safetensors" if path.is_dir() else path
    table = Path(config.out or f"{Path(config.log).stem}-forecast.csv")
    if table.suffix != ".csv":
        raise UsageError(f"out: {str(table)!r} does not end in .csv; the table is a CSV file.")
    if table.exists():
        raise StorageError(f"{table}: exists already; choose another file with --out.")
    if config.horizon < 1:
        raise UsageError(f"horizon: {config.horizon} is not a whole number ≥ 1.")
    checked_level(config.level)
    model = PredictiveStateModel.load(path)
    if isinstance(model.observations, OneHot):
        raise UsageError("model: predicts symbols, which have no bands; use PredictiveStateModel.forecast in Python.")
    log = log_of(config.log, _columns(config, path.parent))
    found = [c for s in log.segments if (c := continued(model, s, config.horizon, config.level)) is not None]
    if not found:
        raise UsageError(
            f"horizon: no episode of {config.log} has more than {config.horizon} rows; choose a smaller horizon."
        )
    write_bytes(table, _table(found, log).encode())
    last, names = found[-1], list(log.observations)
    drawn = figures.continuation(
        last.segment.observations, last.known, last.mean, (last.low, last.high), names, config.level, table.stem
    )
    figure = figures.save(drawn, table.parent, table.stem)
    read, low, high = (np.concatenate([getattr(c, name) for c in found]) for name in ("read", "low", "high"))
    compared = ~np.isnan(read)
    inside = float(np.mean((low <= read)[compared] & (read <= high)[compared])) if compared.any() else None
    say(f"forecast {len(read)} rows in {len(found)} episodes: {table}, {figure}")
    if inside is not None:
        say(f"{inside:.0%} of {compared.sum()} readings are in the bands, which should contain {config.level:.0%}")
    return {"table": str(table), "figure": str(figure), "rows": len(read), "in_bands": inside}


def continued(model: PredictiveStateModel, segment: Segment, horizon: int, level: float) -> Continuation | None:
    """Forecast the last rows of a part of a log.

    Args:
        model: the model.
        segment: the rows. Rows at its end without any reading are those to forecast.
        horizon: number of rows to forecast if there are readings to the end.
        level: share of readings that the bands contain.

    Returns:
        The forecast. None if too few rows remain to forecast from.
    """
    seen = np.flatnonzero(~np.isnan(segment.observations).all(axis=1))
    known = int(seen[-1]) + 1 if len(seen) else 0
    if known == len(segment.actions):
        known -= horizon
    if known < 1:
        return None
    past, done = segment.observations[:known], segment.actions
    # The command of the last known row is the first that has no result yet.
    given = past, done[: known - 1], done[known - 1 : -1]
    mean, std = model.forecast(*given, return_std=True)
    return Continuation(segment, known, mean, std, *model.forecast_interval(*given, level))


def _columns(config: ForecastConfig, directory: Path) -> Columns:
    """Return the columns of the log: those named, otherwise those of the log that the model was fitted to."""
    settings = directory / "config.json"
    before = read_json(settings).get("columns", {}) if settings.exists() else {}
    given = {name: value for name, value in dataclasses.asdict(config.columns).items() if value is not None}
    return Columns(**(before | given))


def _table(found: list[Continuation], log: Log) -> str:
    """Return the table as CSV, a line per row of the log and sensor."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(NAMES)
    for c in found:
        for step, row in enumerate(range(c.known, len(c.segment.actions))):
            for i, sensor in enumerate(log.observations):
                numbers = (f"{part[step, i]:.8g}" for part in (c.mean, c.std, c.low, c.high, c.read))
                cells = ("" if number == "nan" else number for number in numbers)
                writer.writerow((c.segment.name, c.segment.row + row, sensor, *cells))
    return text.getvalue()
