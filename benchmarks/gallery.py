"""The pictures of the README and the docs: what a belief fitted to a hopping Hopper expects."""

from __future__ import annotations

from pathlib import Path

from benchmarks.fm2_data import trained_policy_data
from rpsp.experiments import figures
from rpsp.experiments.models import PredictiveStateModel

NAMES = ["height", "torso angle", "thigh angle", "leg angle", "foot angle"]


def main() -> None:
    into = Path(__file__).parents[1] / "docs" / "figures"
    episodes = trained_policy_data("Hopper-v5", iterations=50, samples=10_000, seed=0)
    fitting, shown = episodes[::2], episodes[1::2]
    model = PredictiveStateModel().fit(fitting)
    figures.save(figures.prediction_fan(model, shown, names=NAMES), into, "forecasts")
    figures.save(figures.error_by_horizon(model.errors, "Hopper, positions only"), into, "error_by_horizon")
    figures.save(figures.coordinate_meaning(model, shown, names=NAMES), into, "coordinates")


if __name__ == "__main__":
    main()
