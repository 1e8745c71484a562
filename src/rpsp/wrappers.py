"""Gymnasium wrappers of a single environment: disturbances of observations and actions, and beliefs as observations."""

from __future__ import annotations

from rpsp.envs.wrappers import (
    ActionLatency,
    ActionLimit,
    ObservationDropout,
    ObservationLatency,
    ObservationNoise,
    ObserveOnly,
    SensorOutage,
    SensorRate,
)
from rpsp.experiments.belief_observation import BeliefObservation, BeliefTracker

__all__ = [
    "ActionLatency",
    "ActionLimit",
    "BeliefObservation",
    "BeliefTracker",
    "ObservationDropout",
    "ObservationLatency",
    "ObservationNoise",
    "ObserveOnly",
    "SensorOutage",
    "SensorRate",
]
