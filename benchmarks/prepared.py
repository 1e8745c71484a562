"""What Algorithm 1 needs, from settings of `rpsp train`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rpsp.experiments.config import TrainConfig
from rpsp.experiments.configure import configured
from rpsp.experiments.execution import ingredients
from rpsp.experiments.resolve import environment_maker, resolve
from rpsp.training.state import Recipe, TrainingSettings


class Prepared(NamedTuple):
    """A run that is ready to begin."""

    config: TrainConfig
    """The configuration, with all defaults filled in."""
    make_envs: Callable[..., Any]
    recipe: Recipe
    amounts: TrainingSettings


def prepared(**given: Any) -> Prepared:
    """Prepare a run from settings by their flat names."""
    config = configured(given)
    make_envs = environment_maker(config)
    assert make_envs is not None
    config = resolve(config, make_envs)
    return Prepared(config, make_envs, *ingredients(config))
