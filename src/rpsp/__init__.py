"""Recurrent predictive state policy networks: reinforcement learning under partial observability.

The public names are imported when they are first used, so that `import rpsp` and `rpsp --help` are fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpsp.algorithms.alternating import InSequence
    from rpsp.algorithms.base import AbstractAlgorithm, everything, filter_only, policy_only
    from rpsp.algorithms.policies import Agent
    from rpsp.algorithms.ppo import Ppo
    from rpsp.algorithms.sac import Sac
    from rpsp.algorithms.trpo import Trpo
    from rpsp.algorithms.vrpg import Vrpg
    from rpsp.data.batches import Batch
    from rpsp.data.episodes import Episode
    from rpsp.data.logs import read_log
    from rpsp.data.recordings import load_episodes, save_episodes
    from rpsp.envs.make import make
    from rpsp.experiments.agents import load
    from rpsp.experiments.methods import METHODS, Method
    from rpsp.experiments.models import PredictiveStateModel
    from rpsp.experiments.runs import train
    from rpsp.experiments.sharing.packing import pack
    from rpsp.filters.base import AbstractFilter, constant, unroll
    from rpsp.filters.belief import Belief
    from rpsp.filters.inference import Inference
    from rpsp.filters.memory import FiniteMemory, Recurrent
    from rpsp.filters.refinement import refined
    from rpsp.filters.tabular import Tabular
    from rpsp.filters.two_stage import KernelBayes
    from rpsp.training.rollouts import explore
    from rpsp.training.state import LoopSettings

    __version__: str

_HOMES = {
    "METHODS": "rpsp.experiments.methods",
    "AbstractAlgorithm": "rpsp.algorithms.base",
    "AbstractFilter": "rpsp.filters.base",
    "Agent": "rpsp.algorithms.policies",
    "Batch": "rpsp.data.batches",
    "Belief": "rpsp.filters.belief",
    "Episode": "rpsp.data.episodes",
    "FiniteMemory": "rpsp.filters.memory",
    "InSequence": "rpsp.algorithms.alternating",
    "Inference": "rpsp.filters.inference",
    "KernelBayes": "rpsp.filters.two_stage",
    "LoopSettings": "rpsp.training.state",
    "Method": "rpsp.experiments.methods",
    "Ppo": "rpsp.algorithms.ppo",
    "PredictiveStateModel": "rpsp.experiments.models",
    "Recurrent": "rpsp.filters.memory",
    "Sac": "rpsp.algorithms.sac",
    "Tabular": "rpsp.filters.tabular",
    "Trpo": "rpsp.algorithms.trpo",
    "Vrpg": "rpsp.algorithms.vrpg",
    "constant": "rpsp.filters.base",
    "everything": "rpsp.algorithms.base",
    "explore": "rpsp.training.rollouts",
    "filter_only": "rpsp.algorithms.base",
    "load": "rpsp.experiments.agents",
    "load_episodes": "rpsp.data.recordings",
    "make": "rpsp.envs.make",
    "pack": "rpsp.experiments.sharing.packing",
    "policy_only": "rpsp.algorithms.base",
    "read_log": "rpsp.data.logs",
    "refined": "rpsp.filters.refinement",
    "save_episodes": "rpsp.data.recordings",
    "train": "rpsp.experiments.runs",
    "unroll": "rpsp.filters.base",
}

__all__ = [
    "METHODS",
    "AbstractAlgorithm",
    "AbstractFilter",
    "Agent",
    "Batch",
    "Belief",
    "Episode",
    "FiniteMemory",
    "InSequence",
    "Inference",
    "KernelBayes",
    "LoopSettings",
    "Method",
    "Ppo",
    "PredictiveStateModel",
    "Recurrent",
    "Sac",
    "Tabular",
    "Trpo",
    "Vrpg",
    "constant",
    "everything",
    "explore",
    "filter_only",
    "load",
    "load_episodes",
    "make",
    "pack",
    "policy_only",
    "read_log",
    "refined",
    "save_episodes",
    "train",
    "unroll",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # start-up time: slower to import than this module

        return version("rpsp")
    if name not in _HOMES:
        raise AttributeError(f"module 'rpsp' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "__version__"])
