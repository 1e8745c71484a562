"""What Algorithm 1 needs, of settings of `rpsp train`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rpsp.experiments.config import TrainConfig
from rpsp.experiments.configure import configured
from rpsp.experiments.execution import ingredients
from rpsp.experiments.resolve import environment_maker, resolve
from rpsp.training.state import Recipe, TrainingSettings


class Prepared(NamedTuple):
    """A run that could begin."""

    config: TrainConfig
    """Every amount filled in."""
    make_envs: Callable[..., Any]
    recipe: Recipe
    amounts: TrainingSettings


def prepared(**given: Any) -> Prepared:
    """A run by the flat names of its settings."""
    config = configured(given)
    make_envs = environment_maker(config)
    assert make_envs is not None
    config = resolve(config, make_envs)
    return Prepared(config, make_envs, *ingredients(config))
