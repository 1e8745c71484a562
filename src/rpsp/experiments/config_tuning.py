"""Settings of `rpsp tune`. `rpsp.experiments.config` has those of other commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rpsp.experiments.config import Sensors


@dataclass(frozen=True)
class TuneConfig:
    """Search for good settings with Optuna (extra `tune`). The same command continues an interrupted search.

    The first trial is the default setting. At the end, the best setting is compared with it on new seeds.
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV|FILE")]
    """A Gymnasium id, or a TOML file of the settings of `rpsp train` with a table [space] of the values to try."""
    method: str | None = None
    """A name from `rpsp methods`, or your own method as package.module:attribute. Default: as `rpsp train`."""
    sensors: tyro.conf.OmitArgPrefixes[Sensors] = Sensors()  # noqa: RUF009 - frozen
    iterations: int | None = None
    """Number of iterations of a trial. Default: as `rpsp train`."""
    steps: int | None = None
    """Number of environment steps of a trial, exploration included, instead of --iterations."""
    trials: int = 40
    """Number of trials, the default setting included."""
    seeds: int = 2
    """Number of seeds of a trial. Its value is their mean return over the last ten iterations."""
    first_seed: int = 100
    """The first of these seeds. Claims are made on others."""
    pruner: Literal["median", "hyperband", "none"] = "median"
    """When bad trials are ended early. median: after a quarter and a half of the iterations.
    hyperband: after a ninth and a third. none: never."""
    verify: int = 5
    """Number of new seeds (from 1000) on which the best setting is compared with the default. 0: none."""
    jobs: int | None = None
    """Number of runs to train at the same time. Default: one for each core."""
    backend: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: a running Ray cluster (extra `ray`)."""
    address: str | None = None
    """Address of the Ray cluster, such as 10.0.0.1:6379. Default: the cluster that this machine belongs to."""
    plugin: str | None = None
    """Modules to import first, as a,b: those that register environments, or define methods."""
    out: str | None = None
    """Directory of the search. Default: runs/tune-ENV__METHOD."""
    json: bool = False
    """Print the results as one JSON object on the last line."""
    quiet: bool = False
    """Print errors only (and the JSON object with --json)."""
