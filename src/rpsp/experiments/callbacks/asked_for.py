"""The callbacks that settings ask for."""

from __future__ import annotations

from rpsp.experiments.callbacks.base import Callback
from rpsp.experiments.callbacks.evaluation import Evaluation
from rpsp.experiments.callbacks.loggers import LOGGERS
from rpsp.experiments.callbacks.stopping import StopAtReturn, TimeLimit
from rpsp.experiments.config import TrainConfig


def asked_for(config: TrainConfig) -> list[Callback]:
    """Return the callbacks of a configuration: evaluation, stopping and loggers.

    Raises:
        UsageError: if a logger's package is not installed, or a number is out of range.
    """
    found: list[Callback] = []
    if config.eval_every is not None:
        found.append(Evaluation(config.eval_every, config.eval_episodes))
    if config.stop_at_return is not None:
        metric = "mean_return" if config.eval_every is None else "eval_return"
        found.append(StopAtReturn(config.stop_at_return, metric=metric))
    if config.max_hours is not None:
        found.append(TimeLimit(hours=config.max_hours))
    names = {*config.logger, *(["tensorboard"] if config.tensorboard else [])}
    return [*found, *(LOGGERS[name]() for name in LOGGERS if name in names)]
