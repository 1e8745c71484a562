"""Loggers: TensorBoard, Weights & Biases and MLflow. Each needs the extra of its name."""

from __future__ import annotations

import importlib
import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rpsp.data.files import write_bytes
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.callbacks.base import Logger, RunState
from rpsp.experiments.files import read_json

IDENTITY = "logs.json"
"""The file of a run directory with the ids of the run in Weights & Biases and MLflow. A resumed run continues its logs."""
MOST_PARAMETERS = 100
"""Number of parameters that MLflow takes at once."""
MOST_CHARACTERS = 500
"""Length at which the text of a parameter is cut for MLflow."""


def _module(name: str, package: str, extra: str) -> Any:
    """Import the package of an extra, or raise `UsageError`."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(f"{name}: {package} is not installed; run `pip install rpsp[{extra}]`.") from error


def _known(directory: Path) -> dict[str, Any]:
    try:
        return read_json(directory / IDENTITY)
    except FileFormatError:  # a new run, or a damaged file: a new log is begun
        return {}


def _remember(directory: Path, name: str, identity: str) -> None:
    content = _known(directory) | {name: identity}
    write_bytes(directory / IDENTITY, (json.dumps(content) + "\n").encode())


class TensorBoardLogger(Logger):
    """Write TensorBoard files to `tensorboard/` in the run directory. Needs the extra `tensorboard`."""

    name = "tensorboard"

    def __init__(self) -> None:
        self._class = _module(self.name, "tensorboardX", "tensorboard").SummaryWriter

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


class WandbLogger(Logger):
    """Log to Weights & Biases. Needs the extra `wandb`.

    The mode, the server and the key are those of wandb: WANDB_MODE=offline writes to the run directory, and `wandb sync`
    uploads it later. A resumed run continues its log. Metrics are drawn over `total_samples`.

    Args:
        project: the name of the project.
        **arguments: further arguments of `wandb.init`, such as entity, group, tags or mode.
    """

    name = "wandb"

    def __init__(self, project: str = "rpsp", **arguments: Any):
        self._wandb = _module(self.name, "wandb", "wandb")
        self._arguments = {
            "project": project,
            "settings": self._wandb.Settings(silent=True, console="off"),
            **arguments,
        }

    def open(self, run: RunState) -> None:
        """Begin the log, or continue it."""
        identity = _known(run.directory).get(self.name) or secrets.token_hex(4)
        given = {"id": identity, "resume": "allow", "dir": str(run.directory), "name": run.directory.name}
        given |= {"config": run.settings, "reinit": "create_new"} | self._arguments
        try:
            self._run = self._wandb.init(**given)
        except self._wandb.errors.Error as error:
            raise UsageError(
                f"wandb: the log cannot be begun ({error}); run `wandb login`, or set WANDB_MODE=offline."
            ) from error
        _remember(run.directory, self.name, self._run.id)
        self._run.define_metric("*", step_metric="total_samples")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics. A background process sends them."""
        self._run.log({**metrics, "total_samples": step})

    def close(self, run: RunState) -> None:
        """Write the results of the run into its summary, and end the log."""
        if run.results is not None:
            self._run.summary.update(_numbers(run.results))
        self._run.finish(exit_code=0 if run.results is not None else 1)


class MlflowLogger(Logger):
    """Log to MLflow. Needs the extra `mlflow`.

    The tracking server is that of MLFLOW_TRACKING_URI, or else MLflow's default, a file `mlflow.db` in the current
    directory. A resumed run continues its log.

    Args:
        experiment: the name of the experiment.
        tracking_uri: the tracking server. Default: as described above.
    """

    name = "mlflow"

    def __init__(self, experiment: str = "rpsp", *, tracking_uri: str | None = None):
        self._mlflow = _module(self.name, "mlflow", "mlflow")
        self._experiment, self._uri = experiment, tracking_uri

    def open(self, run: RunState) -> None:
        """Begin the log, or continue it."""
        try:
            self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
            self._id = self._begun(run)
        except self._mlflow.exceptions.MlflowException as error:
            raise UsageError(
                f"mlflow: the log cannot be begun ({str(error)[:200]}); check MLFLOW_TRACKING_URI."
            ) from error
        _remember(run.directory, self.name, self._id)

    def _begun(self, run: RunState) -> str:
        """Return the id of the run in MLflow, a new one or that of the run that is continued."""
        entities = self._mlflow.entities
        if (identity := _known(run.directory).get(self.name)) is not None:
            self._client.update_run(identity, status="RUNNING")
            return identity
        found = self._client.get_experiment_by_name(self._experiment)
        home = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        identity = self._client.create_run(home, run_name=run.directory.name).info.run_id
        given = [entities.Param(name, str(value)[:MOST_CHARACTERS]) for name, value in run.settings.items()]
        for first in range(0, len(given), MOST_PARAMETERS):
            self._client.log_batch(identity, params=given[first : first + MOST_PARAMETERS])
        return identity

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics."""
        now = int(1000 * time.time())
        batch = [self._mlflow.entities.Metric(_plain(name), float(v), now, step) for name, v in metrics.items()]
        self._client.log_batch(self._id, metrics=batch)

    def close(self, run: RunState) -> None:
        """Mark the run as finished or failed."""
        self._client.set_terminated(self._id, "FINISHED" if run.results is not None else "FAILED")


def _plain(name: str) -> str:
    """Return the name of a metric with the characters that MLflow allows."""
    return "".join(c if c.isalnum() or c in "_-./ " else "-" for c in name)


def _numbers(results: Mapping[str, Any]) -> dict[str, float]:
    return {k: v for k, v in results.items() if isinstance(v, int | float) and not isinstance(v, bool)}


LOGGERS: dict[str, type[Logger]] = {cls.name: cls for cls in (TensorBoardLogger, WandbLogger, MlflowLogger)}
"""The loggers by the names that `--logger` takes."""
