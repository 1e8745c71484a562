"""`rpsp pack`: write the agent of a run to one file with a model card."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.agents import TrainedAgent, load
from rpsp.experiments.compilation import compilation_cached
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.files import Say, read_json
from rpsp.experiments.labels import flat_settings, method_label, task_label
from rpsp.experiments.methods import METHODS
from rpsp.experiments.packs import SUFFIX, Pack, write_pack
from rpsp.experiments.resolve import read_config
from rpsp.experiments.results import read_results
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.run_writer import summary
from rpsp.experiments.sharing.cards import card
from rpsp.experiments.statistics import mean_and_error

LICENCES = 100
"""Maximum length of the name of a licence."""


@compilation_cached()
def pack(
    directory: str | Path,
    file: str | Path | None = None,
    checkpoint: str = "last",
    episodes: int = 20,
    licence: str = "unspecified",
    say: Say = lambda line: None,
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the agent of a run, with a model card, to one file.

    Args:
        directory: the run directory.
        file: the file. Default: the name of the run directory with the suffix .rpsp, in the current directory.
        checkpoint: "last", "best", or a number of iterations.
        episodes: number of new episodes for the return in the card. 0: the agent is not evaluated.
        licence: the licence under which the agent is shared, such as "cc-by-4.0".
        say: called with messages.
        overwrite: whether an existing file may be replaced.

    Returns:
        The path of the file, its size, and what the card says.

    Raises:
        UsageError: if an argument is invalid.
        FileFormatError: if the run has no checkpoint, or is damaged.
        StorageError: if the file exists, or cannot be written.
    """
    if episodes < 0 or episodes == 1:
        raise UsageError(f"episodes: {episodes} is neither 0 nor a whole number ≥ 2, as an interval needs.")
    if not licence.isprintable() or not 0 < len(licence) <= LICENCES:
        raise UsageError(f"licence: {licence[:LICENCES]!r} is not the name of a licence, such as 'cc-by-4.0'.")
    directory = Path(directory)
    path = Path(directory.resolve().name + SUFFIX) if file is None else Path(file)
    config = read_config(directory)
    agent = load(directory, int(checkpoint) if checkpoint.isdecimal() else checkpoint, say=say)
    facts = facts_of(directory, config, agent) | {"file": path.name, "licence": licence}
    if episodes and agent.make_envs is None:
        say("the environment was made by a function, which is not known here, so the agent is not evaluated")
    elif episodes:
        say(f"playing {episodes} episodes for the model card")
        facts["evaluation"] = _evaluated(agent, episodes)
    try:
        versions = read_json(directory / "versions.json")
    except FileFormatError:
        versions = {}
    curve = _curve(directory)
    assert agent.checkpoint is not None  # loaded from one
    made = Pack(
        agent=agent.agent,
        scaling=agent.scaling,
        checkpoint=agent.checkpoint,
        config=config,
        spaces=agent.spaces,
        versions=versions,
        facts=facts,
        card=card(facts, versions, curve is not None),
        curve=curve,
    )
    write_pack(path, made, overwrite=overwrite)
    return {**facts, "file": str(path), "bytes": path.stat().st_size}


def facts_of(directory: Path, config: TrainConfig, agent: TrainedAgent) -> dict[str, Any]:
    """Return what is known of an agent from the files of its run, up to its checkpoint."""
    records = [r for r in RunDirectory(directory).metrics() if r.get("iteration", math.inf) < (agent.checkpoint or 0)]
    found = summary(vars(config), directory, records)
    settings, row = flat_settings(dataclasses.asdict(config)), METHODS.get(config.method)
    last = records[-1] if records else {}
    errors = {name: _finite(last.get(name)) for name in ("prediction_error", "persistence_error")}
    return {
        "env": config.env,
        "task": task_label(settings),
        "method": method_label(settings),
        "about": row.about if row is not None else "a method of its author's own",
        "seed": config.seed,
        "iterations": found["iterations"],
        "steps": found["samples"],
        "training_return": found["final_return"],
        "observation_space": str(agent.spaces["observation"]),
        "action_space": str(agent.spaces["action"]),
        **errors,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _evaluated(agent: TrainedAgent, episodes: int) -> dict[str, Any]:
    """Return the mean return of new episodes with its 95 % interval (Student's t)."""
    returns = agent.evaluate(episodes).returns
    mean, error = mean_and_error(np.asarray(returns, float))
    half = float(stdtrit(len(returns) - 1, 0.975) * error) if len(returns) > 1 else math.nan
    return {
        "mean": float(mean),
        "low": float(mean) - half,
        "high": float(mean) + half,
        "episodes": len(returns),
        "std": float(np.std(returns)),
    }


def _curve(directory: Path) -> bytes | None:
    """Return the learning curve of a run as a PNG; None if it has no iteration."""
    from rpsp.experiments.figures.appearance import save  # start-up time: matplotlib
    from rpsp.experiments.figures.curves import learning_curves

    found, _ = read_results([directory])
    if not found or not len(found[0].returns):
        return None
    with tempfile.TemporaryDirectory(prefix="rpsp-curve-") as folder:
        return save(learning_curves(found), Path(folder), "curve", width=900).read_bytes()
