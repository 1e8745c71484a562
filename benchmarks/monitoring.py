"""Coverage of bands and detection of failing sensors, on recordings of four tasks under random actions.

    python -m benchmarks.monitoring [TASK …] [FILE.json]

Positions are observed, with noise of a tenth of each sensor's standard deviation. Two sets of episodes of 100 steps or
less, of 20,000 steps each: one to fit direct inference, one to test. Coverage is the share of test readings in the bands of
horizons 1, 2, 5 and 10. The continuous ranked probability score (CRPS) is that of Gaussian forecasts, in standard deviations
of the sensors, averaged over horizons 1 to 10; AR(10) has the covariance of its residuals.

For detection, one sensor of a test episode fails at a random step: bias (two standard deviations are added), drift (0.2 more
in every step), stuck (it repeats its last reading) or spike (four standard deviations, once). The statistic is the smallest
p-value of the last ten steps together (spike: of one step) within ten steps after the fault began; the area under the
receiver operating curve (AUC) compares it with the same steps of undisturbed episodes. A sensor that is stuck is also judged
by the number of steps for which a sensor has repeated its reading.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from rpsp.data.episodes import Episode
from rpsp.envs.make import make
from rpsp.experiments import forecasting
from rpsp.experiments.models import PredictiveStateModel
from rpsp.filters.rivals import fit_autoregression
from rpsp.filters.uncertainty_fit import fit_noise, steps_of, uncalibrated
from rpsp.training.rollouts import explore

TASKS = "InvertedPendulum-v5", "Swimmer-v5", "Hopper-v5", "Walker2d-v5"
LEVELS, HORIZONS = (0.5, 0.8, 0.9, 0.95), (1, 2, 5, 10)
FAULTS = "bias", "drift", "stuck", "spike"
WITHIN, BEFORE = 10, 12


def main(tasks: tuple[str, ...] = TASKS) -> dict[str, Any]:
    rows = []
    for task in tasks:
        rows.append({"task": task} | measured(task))
        print(rows[-1], flush=True)
    return {"rows": rows}


def measured(task: str) -> dict[str, Any]:
    train, test = recorded(task, 20_000, 0), recorded(task, 20_000, 1)
    began = time.process_time()
    model = PredictiveStateModel().fit(train)
    seconds = time.process_time() - began
    long = [e for e in test if len(e) >= max(HORIZONS)]
    found = model.coverage(long, LEVELS, max(HORIZONS))[[h - 1 for h in HORIZONS]]
    off = float(np.abs(found - np.array(LEVELS)).max())
    return {
        "seconds": _short(seconds),
        "coverage": {str(level): [_short(x) for x in found[:, j]] for j, level in enumerate(LEVELS)},
        "largest deviation of coverage": _short(off),
        "CRPS": {name: _short(x) for name, x in scores(model, train, long).items()},
        **detection(model, [e for e in test if len(e) >= BEFORE + WITHIN + 1]),
    }


def recorded(task: str, samples: int, seed: int) -> list[Episode]:
    envs = make(task, 10, observe="positions", relative_noise=0.1, max_episode_steps=100, threads=1)
    try:
        found = explore(envs, samples=samples, seed=seed, min_length=11)
    finally:
        envs.close()
    return [dataclasses.replace(e, rewards=None, drawn_actions=None) for e in found]


def scores(model: PredictiveStateModel, train: list[Episode], test: list[Episode]) -> dict[str, float]:
    """Return the CRPS of the model and of AR(10)."""
    cut = len(train) // 5
    fitted, held, batch = (model.encode(x) for x in (train[cut:], train[:cut], test))
    autoregression = fit_autoregression(fitted, held, rng=np.random.default_rng(0))
    steps = steps_of(autoregression, fitted, held)
    uncertainties = {"inference": (model.uncertainty, model.fitted)}
    uncertainties["AR(10)"] = uncalibrated(fit_noise(*steps), steps[0]), autoregression
    return {name: _crps(*pair, batch) for name, pair in uncertainties.items()}


def _crps(uncertainty: Any, filter: Any, batch: Any) -> float:
    from rpsp.data.windows import flat, window_index
    from rpsp.filters.base import compiled_unroll

    steps = window_index(batch, 1, max(HORIZONS) - 1).steps
    ahead = (steps := steps[:: -(-len(steps) // 4000)])[:, None] + np.arange(max(HORIZONS))
    states = flat(compiled_unroll(filter, batch))[steps]
    mean, covariance = forecasting.moments(uncertainty, filter, states, flat(batch.actions)[ahead])
    std = forecasting.standard_deviations(np.asarray(covariance, np.float64))
    z = (flat(batch.observations)[ahead] - np.asarray(mean)) / std
    return float(np.mean(std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))))


def detection(model: PredictiveStateModel, test: list[Episode]) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    spread = np.concatenate([e.observations for e in test]).std(axis=0)
    usual, faulty = (
        {"ten": [], "one": [], "still": []},
        {fault: [] for fault in (*FAULTS, "stuck, by repeated readings")},
    )
    alarms: list[np.ndarray] = []
    for e in test[:150]:
        at = int(rng.integers(BEFORE, len(e) - WITHIN + 1))
        clean = model.surprise(e.observations, e.actions)
        alarms.append(np.stack([clean.p, clean.recent], axis=1))
        usual["ten"].append(_least(clean.recent, at))
        usual["one"].append(_least(clean.p, at))
        usual["still"].append(_least(-clean.still.max(axis=1), at))
        for fault in FAULTS:
            o = broken(e.observations, fault, at, int(rng.integers(len(spread))), spread)
            found = model.surprise(o, e.actions)
            faulty[fault].append(_least(found.p if fault == "spike" else found.recent, at))
            if fault == "stuck":
                faulty["stuck, by repeated readings"].append(_least(-found.still.max(axis=1), at))
    against = {"spike": "one", "stuck, by repeated readings": "still"}
    areas = {f: _short(area(usual[against.get(f, "ten")], values)) for f, values in faulty.items()}
    every = np.concatenate(alarms)
    rates = {str(p): [_short(float((x[~np.isnan(x)] < p).mean())) for x in every.T] for p in (0.05, 0.01)}
    return {"episodes": len(usual["one"]), "AUC": areas, "false alarms, one step and last ten": rates}


def broken(observations: np.ndarray, fault: str, at: int, sensor: int, spread: np.ndarray) -> np.ndarray:
    """Return the observations with a sensor that fails from step `at` on."""
    o = observations.copy()
    left = np.arange(len(o) - at)
    if fault == "bias":
        o[at:, sensor] += 2 * spread[sensor]
    elif fault == "drift":
        o[at:, sensor] += 0.2 * spread[sensor] * (left + 1)
    elif fault == "stuck":
        o[at:, sensor] = o[at - 1, sensor]
    else:
        o[at, sensor] += 4 * spread[sensor]
    return o


def _least(p: np.ndarray, at: int) -> float:
    return float(np.nanmin(p[at - 1 : at - 1 + WITHIN]))


def area(usual: list[float], faulty: list[float]) -> float:
    """Return the probability that a faulty episode has a smaller p-value than an undisturbed one; ties count half."""
    a, b = np.array(usual)[:, None], np.array(faulty)[None]
    return float(np.mean((b < a) + 0.5 * (a == b)))


def _short(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    names = tuple(word for word in sys.argv[1:] if not word.endswith(".json"))
    results = main(names or TASKS)
    for file in (word for word in sys.argv[1:] if word.endswith(".json")):
        Path(file).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
