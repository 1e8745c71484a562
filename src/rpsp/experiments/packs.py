"""A trained agent as one file: a zip archive of safetensors and JSON. Nothing in it can run.

manifest.json      format, sizes and SHA-256 of all others
agent.safetensors  filter, policy and the scaling of observations
config.json        the settings of the run, without those of the machine that computed it
spaces.json        the spaces of observations and actions
versions.json      the versions of packages
facts.json         what the model card says, as JSON
README.md          the model card
curve.png          the learning curve, if there is one
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpsp.algorithms.policies import Agent
from rpsp.data.scaling import OneHot, Scaling
from rpsp.errors import FileFormatError
from rpsp.experiments.archives import read_archive, write_archive
from rpsp.experiments.checkpoints import check_fit, parse_tree, tree_bytes
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.resolve import config_of
from rpsp.experiments.spaces import describe_space, spaces_of
from rpsp.training.actions import units_of

FORMAT = 1
SUFFIX = ".rpsp"
AGENT, CONFIG, SPACES, VERSIONS = "agent.safetensors", "config.json", "spaces.json", "versions.json"
FACTS, CARD, CURVE = "facts.json", "README.md", "curve.png"
REQUIRED, OPTIONAL = (AGENT, CONFIG, SPACES, VERSIONS, FACTS, CARD), (CURVE,)
OF_THE_MACHINE: dict[str, Any] = {
    "out": None, "config": None, "threads": None, "device": "auto", "logger": (), "tensorboard": False, "json": False,
    "quiet": False, "compilation_cache": True,
}  # fmt: skip
"""Settings that say where a run was computed, and the values that a pack has instead."""


@dataclass(frozen=True)
class Pack:
    """The content of a pack."""

    agent: Agent
    scaling: Scaling | OneHot
    checkpoint: int
    """Number of iterations that the agent was trained for."""
    config: TrainConfig
    spaces: Mapping[str, Any]
    versions: Mapping[str, str]
    facts: Mapping[str, Any]
    card: str
    curve: bytes | None = None
    """A PNG of the learning curve."""


def write_pack(path: Path, pack: Pack, *, overwrite: bool = False) -> None:
    """Write a pack, atomically.

    Raises:
        StorageError: if the file exists and `overwrite` is False, or it cannot be written.
    """
    settings = dataclasses.asdict(dataclasses.replace(pack.config, **OF_THE_MACHINE))
    files = {
        AGENT: tree_bytes((pack.agent, pack.scaling), {"iteration": pack.checkpoint}),
        CONFIG: _json(settings),
        SPACES: _json({name: describe_space(space) for name, space in pack.spaces.items()}),
        VERSIONS: _json(dict(pack.versions)),
        FACTS: _json(dict(pack.facts)),
        CARD: pack.card.encode(),
    }
    write_archive(path, files | ({} if pack.curve is None else {CURVE: pack.curve}), FORMAT, overwrite=overwrite)


def read_pack(path: Path) -> Pack:
    """Read and check a pack.

    Raises:
        FileFormatError: if it is damaged, or of another version.
        UnknownModules: if it needs modules of a user that are not imported.
    """
    files = read_archive(path, REQUIRED, OPTIONAL, FORMAT)
    config = config_of(_object(files, CONFIG, path), path / CONFIG)
    tree, extra = parse_tree(files[AGENT], path / AGENT)
    spaces = spaces_of(_object(files, SPACES, path), path / SPACES)
    try:
        agent, scaling = tree
        number = extra["iteration"]
        if not isinstance(agent, Agent) or not isinstance(scaling, Scaling | OneHot):
            raise TypeError("it contains no agent")
        if not isinstance(number, int) or not 0 <= number < 2**60:
            raise ValueError(f"its number of iterations is {number!r}")
        check_fit(agent.filter, scaling, units_of(spaces["action"]).size, agent.policy)
        card = files[CARD].decode()
    except (TypeError, ValueError, KeyError) as error:
        raise FileFormatError(f"{path}: is not an agent that this version of rpsp can use ({error}).") from error
    facts, versions = _object(files, FACTS, path), _object(files, VERSIONS, path)
    return Pack(agent, scaling, number, config, spaces, versions, facts, card, files.get(CURVE))


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _object(files: Mapping[str, bytes], name: str, path: Path) -> dict[str, Any]:
    """Return the JSON object of an entry."""
    try:
        content = json.loads(files[name])
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: {name} is not JSON ({error}).") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: {name} contains no JSON object.")
    return content
