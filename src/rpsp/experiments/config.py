"""Settings of the commands: frozen dataclasses, one docstring per field. Flags and configuration share these names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Sensors:
    """What the agent gets to see of an environment, and how badly."""

    observe: str | None = None
    """positions, all, or indices such as 0,1,2. The paper's four tasks know theirs; elsewhere everything is seen."""
    obs_noise: float = 0.0
    """Standard deviation of Gaussian noise on every reading."""
    obs_latency: int = 0
    """Steps by which readings come late."""
    act_latency: int = 0
    """Steps by which actions take effect late."""
    dropout: float = 0.0
    """Probability that a reading is lost and the last one repeats."""


@dataclass(frozen=True)
class FitConfig:
    """Fit a predictive-state model to an environment's exploration or to recorded episodes, and say how good it is."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV|DATA")]
    """A Gymnasium id (also module:Env-v0), an .npz recording, or minari:ID."""
    kind: Literal["inference", "kernel-bayes", "gru", "tabular"] = "inference"
    """inference (ours), kernel-bayes (the paper's), gru, or tabular (symbols)."""
    sensors: tyro.conf.OmitArgPrefixes[Sensors] = Sensors()
    samples: int = 10_000
    """Steps of exploration with random actions (environments only)."""
    seed: int = 0
    """Of exploration, features and splits."""
    past: int | None = None
    """Steps of history; the kind's default if not given."""
    future: int | None = None
    """Steps of future that a state predicts; the kind's default if not given."""
    dimension: int | None = None
    """Coordinates of the state; the kind's default if not given."""
    epochs: int | None = None
    """Epochs of refinement by backpropagation through time; the kind's default if not given."""
    out: str | None = None
    """The run directory; without it one is named under runs/."""
    inspect: bool = False
    """Draw the figures of `rpsp inspect` as well."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


@dataclass(frozen=True)
class InspectConfig:
    """Draw what the belief of a fitted model knows: its forecasts, its errors, what its coordinates mean."""

    directory: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """A run directory of `rpsp fit`."""
    horizon: int = 10
    """Steps that the forecasts reach ahead."""
    json: bool = False
    """Print one JSON object as the last line."""
    quiet: bool = False
    """Print nothing but errors (and the JSON object, if asked for)."""


@dataclass(frozen=True)
class DoctorConfig:
    """Say what this machine has: versions, devices, rendering, extras."""

    json: bool = False
    """Print one JSON object as the last line."""
