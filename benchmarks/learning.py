"""Learning curves: many runs in parallel, each on one core, gathered into one file.

    python -m benchmarks.learning benchmarks/learning_plan.json --out benchmarks/results/learning.json --minutes 120

A plan is a JSON list of {"env", "method", "seeds", "iterations", "settings"}. Runs that do not finish in time
contribute their finished iterations. The file has one row for each run: its plan, and returns, prediction errors
and samples of each iteration.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import tyro

KEPT = ("mean_return", "total_samples", "prediction_error", "persistence_error", "whole_kl", "steps_per_second")


def main(
    plan: Annotated[Path, tyro.conf.Positional], out: Path, minutes: float = 9.0, jobs: int = os.cpu_count() or 1
) -> None:
    """Run a plan."""
    waiting = [row | {"seed": seed} for row in json.loads(plan.read_text(encoding="utf-8")) for seed in row["seeds"]]
    deadline = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        runs = [(run, Path(folder) / f"{i}.jsonl") for i, run in enumerate(waiting)]
        todo, working = list(runs), {}
        while (todo or working) and time.monotonic() < deadline:
            for core in sorted(set(range(jobs)) - set(working)):
                if todo:
                    run, file = todo.pop(0)
                    working[core] = subprocess.Popen(
                        [sys.executable, "-m", "benchmarks.learning_run", json.dumps(run), str(file), str(core)]
                    )
            time.sleep(0.2)
            working = {core: process for core, process in working.items() if process.poll() is None}
        for process in working.values():
            process.kill()
            process.wait()
        rows = [curve(run, file) for run, file in runs]
    out.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")
    for row in rows:
        print(describe(row))


def curve(run: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the plan of one run and its results."""
    run = {key: value for key, value in run.items() if key != "seeds"}
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    failed = next((r["failed"] for r in records if "failed" in r), None)
    records = [r for r in records if "iteration" in r]
    return run | {"failed": failed} | {name: [_short(r[name]) for r in records] for name in KEPT}


def describe(row: dict[str, Any]) -> str:
    """Print means of ten iterations that end at 10, 20, …"""
    returns = row["mean_return"]
    blocks = [f"{sum(returns[i - 10 : i]) / 10:.0f}" for i in range(10, len(returns) + 1, 10)]
    speed = sum(row["steps_per_second"]) / max(1, len(returns))
    settings = json.dumps(row.get("settings", {}))
    failure = f"  FAILED {row['failed']}" if row["failed"] else ""
    return (
        f"{row['env']:20} {row['method']:14} s{row['seed']} {settings} n={len(returns)} {speed:.0f}/s  "
        f"{' '.join(blocks)}{failure}"
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")


if __name__ == "__main__":
    tyro.cli(main)
