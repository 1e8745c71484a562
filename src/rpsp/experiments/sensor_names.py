"""Names of the observations of an agent, for reports and videos."""

from __future__ import annotations

from rpsp.experiments.config import TrainConfig

OBSERVATIONS = {
    "InvertedPendulum": ("cart position", "pole angle"),
    "Swimmer": ("front angle", "first joint", "second joint"),
    "Hopper": ("height", "torso angle", "thigh angle", "leg angle", "foot angle"),
    "Walker2d": (
        "height", "torso angle", "right thigh", "right leg", "right foot", "left thigh", "left leg", "left foot",
    ),
}  # fmt: skip
"""Names of the positions in the paper's tasks."""


def observation_names(config: TrainConfig, count: int) -> list[str]:
    """Return a name for each observation that the agent receives."""
    known = OBSERVATIONS.get((config.env or "").rpartition("-v")[0], ())
    observe = config.sensors.observe or "positions"
    indices = range(count) if observe in ("positions", "all") else [int(i) for i in observe.split(",")]
    return [known[i] if i < len(known) else f"observation {i}" for i in indices][:count]
