"""The callbacks that settings ask for."""

from __future__ import annotations

from rpsp.experiments.callbacks.base import Callback
from rpsp.experiments.callbacks.evaluation import Evaluation
from rpsp.experiments.callbacks.loggers import LOGGERS
from rpsp.experiments.config import TrainConfig


def asked_for(config: TrainConfig) -> list[Callback]:
    """Return the callbacks of a configuration: evaluation and loggers.

    Raises:
        UsageError: if a logger's package is not installed, or a number is out of range.
    """
    found: list[Callback] = []
    if config.eval_every is not None:
        found.append(Evaluation(config.eval_every, config.eval_episodes))
    names = {*config.logger, *(["tensorboard"] if config.tensorboard else [])}
    return [*found, *(LOGGERS[name]() for name in LOGGERS if name in names)]
