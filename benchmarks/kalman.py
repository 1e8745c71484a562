"""Filters compared with the Kalman filter with known parameters, on random linear-Gaussian systems with inputs.

2 to 6 latent dimensions, 1 and 2 observations, one input, three random systems each; 200 episodes of 100 steps to
fit, and 200 others to test. Figures are one-step mean squared errors divided by that of the Kalman filter. The
future has ten observations: five steps of two sensors, or ten steps of one (six latent dimensions are not
observable from five).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.systems import kalman_predictions, linear_gaussian, simulate_linear_gaussian
from rpsp.data.episodes import Episode
from rpsp.experiments.models import PredictiveStateModel

EPISODES, STEPS, SYSTEMS = 200, 100, 3


def main() -> dict[str, Any]:
    rows = []
    for latent in range(2, 7):
        for seen in (1, 2):
            kinds: dict[str, dict[str, Any]] = {
                "inference": {"kind": "inference", "future": 10 // seen},
                "inference, past 20": {"kind": "inference", "future": 10 // seen, "past": 20},
                "kernel-bayes, two-stage": {"kind": "kernel-bayes", "future": 10 // seen, "epochs": 0},
                "kernel-bayes, refined": {"kind": "kernel-bayes", "future": 10 // seen},
            }
            ratios = {
                # One system each is enough to see the kernel-Bayes filter, whose refinement takes its time.
                name: [
                    one_step_ratio(latent, seen, number, **settings)
                    for number in range(1 if "kernel" in name else SYSTEMS)
                ]
                for name, settings in kinds.items()
            }
            rows.append({"latent": latent, "observations": seen} | ratios)
            print(rows[-1], flush=True)
    every = [r for row in rows for r in row["inference"]]
    return {"rows": rows, "inference": {"worst": max(every), "mean": float(np.mean(every)), "systems": len(every)}}


def one_step_ratio(latent: int, seen: int, number: int, **settings: Any) -> float:
    """Return the one-step error of a model of a random system of these sizes, divided by the Kalman filter's."""
    rng = np.random.default_rng([latent, seen, number])
    system = linear_gaussian(latent, seen, 1, rng)
    train = simulate_linear_gaussian(system, EPISODES, STEPS, rng)
    test = simulate_linear_gaussian(system, EPISODES, STEPS, rng)
    model = PredictiveStateModel(**settings).fit(train)
    predicted = [model.predict(*_pair(episode))[:, 0] for episode in test]
    return _error(predicted, test) / _error(kalman_predictions(system, test), test)


def _pair(episode: Episode) -> tuple[np.ndarray, np.ndarray]:
    return episode.observations, episode.actions


def _error(predicted: list[np.ndarray], episodes: list[Episode]) -> float:
    return float(np.mean([np.mean((p - e.observations[1:]) ** 2) for p, e in zip(predicted, episodes, strict=True)]))


if __name__ == "__main__":
    main()
