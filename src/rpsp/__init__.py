"""Recurrent predictive state policy networks: reinforcement learning under partial observability.

The public names are imported when they are first used, so that `import rpsp` and `rpsp --help` are fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpsp.data.episodes import Episode
    from rpsp.data.recordings import load_episodes, save_episodes
    from rpsp.envs.make import make
    from rpsp.experiments.agents import load
    from rpsp.experiments.models import PredictiveStateModel
    from rpsp.experiments.runs import train
    from rpsp.training.rollouts import explore

    __version__: str

_HOMES = {
    "Episode": "rpsp.data.episodes",
    "PredictiveStateModel": "rpsp.experiments.models",
    "explore": "rpsp.training.rollouts",
    "load": "rpsp.experiments.agents",
    "load_episodes": "rpsp.data.recordings",
    "make": "rpsp.envs.make",
    "save_episodes": "rpsp.data.recordings",
    "train": "rpsp.experiments.runs",
}

__all__ = ["Episode", "PredictiveStateModel", "explore", "load", "load_episodes", "make", "save_episodes", "train"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # start-up time: slower to import than this module

        return version("rpsp")
    if name not in _HOMES:
        raise AttributeError(f"module 'rpsp' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "__version__"])
