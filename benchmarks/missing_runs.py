"""Training while readings are missing: beliefs that are told what is missing, and rivals.

    python -m benchmarks.missing_runs Hopper-v5 dropout --seeds 0 1 2 --out results/     # one core; a file for each run
    python -m benchmarks.missing_runs --table results/                                   # gathers all files

Positions are observed. Three disturbances: 30 % of the observations are lost (dropout), every sensor falls silent for 20
steps with probability 0.01 per step (outage), and the second sensor, the torso's angle, is read every ten steps (rate).
`marked` is direct inference that is told what is missing (--missing nan), `repeated` the same method without marks, `window`
the last five observations and `gru` a GRU, both with the last readings and the same marks as inputs. Figures are mean
training returns of the last ten iterations.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

STEPS, SAMPLES = 160_000, 4_000
DISTURBANCES: dict[str, dict[str, Any]] = {
    "dropout": {"dropout": 0.3},
    "outage": {"outage": "0.01:20"},
    "rate": {"sensor_rate": "1:10"},
}
METHODS: dict[str, dict[str, Any]] = {
    "marked": {"method": "rpsi-ppo", "missing": "nan"},
    "repeated": {"method": "rpsi-ppo"},
    "window": {"method": "fm2-ppo", "window": 5, "missing": "nan"},
    "gru": {"method": "gru32", "missing": "nan"},
}
TASKS = "Hopper-v5", "Walker2d-v5", "HalfCheetah-v5"


def run(task: str, disturbance: str, name: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Train one run, and return its settings and returns."""
    from benchmarks.prepared import prepared
    from rpsp.training.loop import train

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    given = {"env": task, "observe": "positions", "seed": seed, "samples": SAMPLES, "steps": steps, "threads": 1}
    config, make_envs, recipe, amounts = prepared(**given, **DISTURBANCES[disturbance], **METHODS[name])
    assert config.iterations  # resolved
    began, records = time.monotonic(), []
    envs = make_envs(config.num_envs)
    try:
        for training, record in train(recipe, envs, amounts, config.iterations):
            if "iteration" in record:
                records.append(record)
            if training.samples >= steps:
                break
    finally:
        envs.close()
    kept = {key: [_short(r[key]) for r in records] for key in ("mean_return", "total_samples", "prediction_error")}
    about = {"task": task, "disturbance": disturbance, "name": name, "seed": seed, "steps": steps}
    return about | {"seconds": _short(time.monotonic() - began)} | kept


def table(folder: Path) -> dict[str, Any]:
    """Gather the files of runs: returns of each run, and means with standard errors of each cell."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    for each in runs:
        row = cells.setdefault(f"{each['task']}, {each['disturbance']}", {})
        row.setdefault(each["name"], {})[str(each["seed"])] = _short(float(np.mean(each["mean_return"][-10:])))
    for row in cells.values():
        for seeds in row.values():
            values = list(seeds.values())
            error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else None
            seeds |= {"mean": _short(float(np.mean(values))), "error": None if error is None else _short(float(error))}
    return {"steps": STEPS, "cells": cells}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def main(arguments: list[str]) -> None:
    if arguments[0] == "--table":
        print(json.dumps(table(Path(arguments[1])), indent=1))
        return
    options = {"--seeds": ["0"], "--names": list(METHODS), "--steps": [str(STEPS)], "--out": ["."]}
    chosen = ""
    for word in arguments[2:]:
        if word.startswith("--"):
            chosen, options[word] = word, []
        else:
            options[chosen].append(word)
    out = Path(options["--out"][0])
    out.mkdir(parents=True, exist_ok=True)
    for seed in map(int, options["--seeds"]):
        for name in options["--names"]:
            file = out / f"{arguments[0]}_{arguments[1]}_{name}_{seed}.json"
            found = run(arguments[0], arguments[1], name, seed, int(options["--steps"][0]))
            file.write_text(json.dumps(found) + "\n", encoding="utf-8")
            print(file.name, found["seconds"], found["mean_return"][-1], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
