"""Fit a model to recorded data and forecast: an oven with a noisy thermometer and an unmeasured heating coil.

python examples/recorded_data.py        # writes oven.npz, oven.safetensors and oven.png, and prints errors
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tyro

import rpsp


def record(steps: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one log: temperatures [steps + 1, 1], power [steps, 1], and the coil's temperature for evaluation.

    Power heats the coil, the coil heats the oven, and the oven loses heat. Future readings of the thermometer depend on
    the temperature of the coil.
    """
    coil, oven = rng.uniform(50, 150), rng.uniform(50, 100)
    power, readings, powers, coils = 0.0, [oven + rng.normal()], [], [coil]
    for step in range(steps):
        if step % 15 == 0:
            power = rng.uniform(0, 1)
        coil += 30 * power - 0.1 * (coil - oven)
        oven += 0.05 * (coil - oven) - 0.03 * (oven - 20)
        readings.append(oven + rng.normal())  # one degree of noise
        powers.append(power)
        coils.append(coil)
    return np.array(readings)[:, None], np.array(powers)[:, None], np.array(coils)


def main(episodes: int = 60, out: Path = Path()) -> None:
    """Record, fit, forecast.

    Args:
        episodes: Number of episodes of 200 steps to fit the model to.
        out: Directory for the files.
    """
    rng = np.random.default_rng(0)
    logs = [record(200, rng) for _ in range(episodes + 20)]
    rpsp.save_episodes(out / "oven.npz", [log[:2] for log in logs[:episodes]], overwrite=True)

    model = rpsp.PredictiveStateModel(past=20, future=10).fit(rpsp.load_episodes(out / "oven.npz"))
    model.save(out / "oven.safetensors", overwrite=True)

    # Forecast errors on new logs, compared with persistence (no change).
    fresh = logs[episodes:]
    seen = np.stack([readings[:, 0] for readings, _, _ in fresh])
    forecasts = np.stack([model.predict(readings, powers, horizon=10) for readings, powers, _ in fresh])[..., 0]
    count = forecasts.shape[1]  # steps with at least ten steps after them
    print("root mean square error in degrees, one of which is the thermometer's own:")
    for ahead in (1, 5, 10):
        truth = seen[:, ahead : ahead + count]
        ours, stays = (np.sqrt(np.mean((x - truth) ** 2)) for x in (forecasts[..., ahead - 1], seen[:, :count]))
        print(f"  {ahead:2} steps ahead: model {ours:.2f}, persistence {stays:.2f}")

    # The coil was never in the data. A linear map of the belief still recovers its temperature.
    beliefs = [np.c_[model.filter(readings, powers), np.ones(len(readings))] for readings, powers, _ in logs]
    hidden = [coils for *_, coils in logs]
    weights, *_ = np.linalg.lstsq(np.concatenate(beliefs[:episodes]), np.concatenate(hidden[:episodes]), rcond=None)
    errors = np.concatenate(hidden[episodes:]) - np.concatenate(beliefs[episodes:]) @ weights
    share = 1 - errors.var() / np.concatenate(hidden[episodes:]).var()
    print(f"the coil's temperature, read off the belief: R² {share:.3f}")

    from rpsp.experiments import figures

    print(f"figure: {figures.save(figures.error_by_horizon(model.errors, 'An oven'), out, 'oven')}")


if __name__ == "__main__":
    tyro.cli(main)
