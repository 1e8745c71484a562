"""Callbacks for `rpsp.train(..., callbacks=[...])`: the protocol, and ready ones."""

from __future__ import annotations

from rpsp.experiments.callbacks.base import Callback, Logger, RunState
from rpsp.experiments.callbacks.evaluation import Evaluation
from rpsp.experiments.callbacks.loggers import MlflowLogger, TensorBoardLogger, WandbLogger
from rpsp.experiments.callbacks.stopping import EarlyStopping, StopAtReturn, TimeLimit
from rpsp.experiments.callbacks.videos import Video

__all__ = [
    "Callback",
    "EarlyStopping",
    "Evaluation",
    "Logger",
    "MlflowLogger",
    "RunState",
    "StopAtReturn",
    "TensorBoardLogger",
    "TimeLimit",
    "Video",
    "WandbLogger",
]
