"""Predictive distributions and missing readings, beside the Kalman filter that knows the system.

The random linear-Gaussian systems of `kalman`, one each with seeds that were not used to choose settings (number 5): 200
episodes of 100 steps to fit, 200 others to test. Log-likelihoods are means over steps, in nats. With gaps, each reading of
each sensor is missing with probability 0.3, in the test episodes alone and in those of the fit as well; errors are mean
squared errors one step ahead, divided by that of the Kalman filter that knows the system and what is missing. Coverage is
the share of test observations in bands of the model, for horizons 1, 2, 5 and 10. Times are CPU seconds of this process.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.systems import kalman_distributions, linear_gaussian, simulate_linear_gaussian
from rpsp.data.episodes import Episode
from rpsp.experiments.models import PredictiveStateModel

EPISODES, STEPS, NUMBER, MISSING = 200, 100, 5, 0.3
HORIZONS, LEVELS = (1, 2, 5, 10), (0.5, 0.8, 0.9, 0.95)


def main() -> dict[str, Any]:
    rows = []
    for latent in range(2, 7):
        for seen in (1, 2):
            rows.append({"latent": latent, "observations": seen} | _system(latent, seen))
            print(rows[-1], flush=True)
    return {"rows": rows}


def _system(latent: int, seen: int) -> dict[str, Any]:
    rng = np.random.default_rng([latent, seen, NUMBER])
    system = linear_gaussian(latent, seen, 1, rng)
    train, test = (simulate_linear_gaussian(system, EPISODES, STEPS, rng) for _ in range(2))
    train_gaps, test_gaps = _dropped(train, rng), _dropped(test, rng)
    settings = {"kind": "inference", "future": 10 // seen}
    model = PredictiveStateModel(**settings).fit(train)
    exact = _log_likelihood(kalman_distributions(system, test), test)
    tolerant = PredictiveStateModel(**settings, missing="nan")
    errors = {}
    for name, data in (("fitted without gaps", train), ("fitted with gaps", train_gaps)):
        began = time.process_time()
        tolerant.fit(data)
        errors[f"seconds, {name}"] = time.process_time() - began
        predicted = [tolerant.predict(e.observations, e.actions)[:, 0] for e in test_gaps]
        kalman = [mean for mean, _ in kalman_distributions(system, test_gaps)]
        errors[f"error, {name}"] = _error(predicted, test) / _error(kalman, test)
        errors[f"log-likelihood with gaps, {name}"] = tolerant.log_likelihood(test_gaps)
    return {
        "log-likelihood": model.log_likelihood(test),
        "log-likelihood, Kalman": exact,
        "log-likelihood with gaps, Kalman": _log_likelihood(kalman_distributions(system, test_gaps), test_gaps),
        **errors,
        "coverage": _coverage(model, test),
    }


def _dropped(episodes: list[Episode], rng: np.random.Generator) -> list[Episode]:
    """Return the episodes with NaN in the place of a share of the readings."""
    return [
        Episode(np.where(rng.random(e.observations.shape) < MISSING, np.nan, e.observations), e.actions)
        for e in episodes
    ]


def _log_likelihood(distributions: list[tuple[np.ndarray, np.ndarray]], episodes: list[Episode]) -> float:
    """Return the mean log-density of the readings that came."""
    found = []
    for (means, covariances), episode in zip(distributions, episodes, strict=True):
        for mean, covariance, o in zip(means, covariances, episode.observations[1:], strict=True):
            seen = ~np.isnan(o)
            error, part = (o - mean)[seen], covariance[np.ix_(seen, seen)]
            square = error @ np.linalg.solve(part, error)
            found.append(-0.5 * (square + np.linalg.slogdet(2 * np.pi * part)[1]))
    return float(np.mean(found))


def _error(predicted: list[np.ndarray], episodes: list[Episode]) -> float:
    return float(np.mean([np.mean((p - e.observations[1:]) ** 2) for p, e in zip(predicted, episodes, strict=True)]))


def _coverage(model: PredictiveStateModel, test: list[Episode]) -> dict[str, list[float]]:
    """Return the share of observations in the bands, by level, for each horizon."""
    inside: dict[str, list[np.ndarray]] = {str(level): [] for level in LEVELS}
    for e in test:
        count = len(e) - max(HORIZONS) + 1
        truth = e.observations[np.arange(count)[:, None] + np.array(HORIZONS)]
        for level in LEVELS:
            low, high = model.predict_interval(e.observations, e.actions, max(HORIZONS), level)
            at = np.array(HORIZONS) - 1
            inside[str(level)].append((low[:, at] <= truth) & (truth <= high[:, at]))
    return {level: np.concatenate(found).mean(axis=(0, 2)).round(4).tolist() for level, found in inside.items()}


if __name__ == "__main__":
    main()
