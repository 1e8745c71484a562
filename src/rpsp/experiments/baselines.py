"""Held-out errors of a fitted filter beside those of simple baselines."""

from __future__ import annotations

import numpy as np

from rpsp.data.batches import Batch
from rpsp.data.windows import longest_episode
from rpsp.filters.base import AbstractFilter
from rpsp.filters.evaluation import forecasts, normalised_errors
from rpsp.filters.rivals import fit_autoregression, mean_prediction, persistence

RIVAL_PAST = 10
"""History length of the autoregressive baseline."""


def errors_beside_baselines(
    name: str,
    filter: AbstractFilter,
    batch: Batch,
    held: Batch,
    *,
    rng: np.random.Generator,
    full: tuple[Batch, Batch] | None = None,
) -> dict[str, list[float]]:
    """Return held-out normalised errors over the horizon, of a filter and of the baselines.

    Args:
        name: name of the filter.
        filter: the filter.
        batch: training episodes.
        held: held-out episodes.
        rng: random generator.
        full: both without gaps, for the baselines, if readings are missing. Errors are those of readings that came.
    """
    horizon = min(10, longest_episode(held))
    fitted, read = full or (batch, held)
    errors = {name: normalised_errors(forecasts(filter, held, horizon))}
    rivals: dict[str, AbstractFilter] = {
        f"linear AR({RIVAL_PAST})": fit_autoregression(fitted, read, past=RIVAL_PAST, rng=rng),
        "persistence": persistence(batch.previous_observations.shape[-1], batch.actions.shape[-1]),
        "mean": mean_prediction(fitted),
    }
    for rival, other in rivals.items():
        errors[rival] = normalised_errors(forecasts(other, read, horizon, actual=held.observations))
    return {name: [float(e) for e in values] for name, values in errors.items()}
