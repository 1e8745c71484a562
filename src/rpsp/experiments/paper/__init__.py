"""Part of the split of a larger module."""

from rpsp.experiments.paper.curves import Curve, Found, far_enough
from rpsp.experiments.paper.planning import Plan, draw, finished, judge, peers, plan, together
from rpsp.experiments.paper.tables import (
    CURVES,
    DIFFERENCES,
    EVERY,
    EXPERIMENTS,
    PEERS,
    TUNING,
    Experiment,
    candidates,
    find,
    label_of,
    labels_of,
    task_labels,
)

__all__ = [
    "CURVES",
    "DIFFERENCES",
    "EVERY",
    "EXPERIMENTS",
    "PEERS",
    "TUNING",
    "Curve",
    "Experiment",
    "Found",
    "Plan",
    "candidates",
    "draw",
    "far_enough",
    "find",
    "finished",
    "judge",
    "label_of",
    "labels_of",
    "peers",
    "plan",
    "task_labels",
    "together",
]
