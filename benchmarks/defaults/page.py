"""Write docs/defaults.md from benchmarks/results/defaults.json: one table of scores, one of returns."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.defaults.curves import draw_curves
from benchmarks.defaults.suite import suite
from rpsp.experiments.results_page.markdown import table

PAGE = Path(__file__).parents[2] / "docs" / "defaults.md"
HEAD = """# What the default learns

The suite of `benchmarks/defaults` holds what people try first. A score is 0 for random actions and 1 for the best return
known with the full state ([sources](https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md), or a controller
that knows the equations). It is that of the most probable actions, 20 episodes after the run. Everything here is drawn from
`benchmarks/results/defaults.json`; `python -m benchmarks.defaults --help` runs it again. Seeds from 100 are for choices,
seeds below 100 for claims.

![Learning curves of the candidates on the tasks of the suite](figures/defaults.svg)

## The choice

| known before training | default |
|---|---|
| continuous actions between bounds, at most a million steps | `--method rpsi-sac --pink-noise 1` |
| continuous actions without bounds, or more than a million steps | `--method rpsi-ppo --pink-noise 0.5` |
| discrete actions | `--method rpsi-ppo --pink-noise 0.5 --entropy-weight 0.01` |

- **Pink noise finds rewards that white noise does not.** Of 100 random episodes, 78 reach the flag of MountainCarContinuous
  with pink noise and 4 with white noise; on Acrobot 22 and none; on MountainCar none
  (`benchmarks/results/exploration.json`). After 50,000 steps of MountainCarContinuous, SAC with pink noise has 94.6 of 96.7
  in two runs, and with white noise 0. On Acrobot, PPO with an entropy bonus alone stays at −500; with pink noise it reaches
  −86. On Pendulum, pink noise is not needed.
- **SAC learns from fewer steps where actions are continuous.** After 50,000 steps of Drone it has 178 of 186 and PPO 151;
  on Tank they are equal. With discrete actions, SAC stays at −500 on Acrobot.
- **Refits stay on for discrete actions.** Without them (`ppo-still`), one of two Acrobot seeds is worse, and the other
  tasks are as good. Refits took 8 to 51 % of the time of these short runs, compilation included, on a busy machine.
  This share has [no limit](decisions.md#training). SAC has no refits.

**What is not measured yet:** 300,000 steps; the robots except Swimmer; Box2D; useless sensors; the full state; five seeds
for claims; other libraries beside these runs.
`python -m benchmarks.defaults --tasks cheap mujoco own box2d --steps 300000` runs what is missing.
The second row of the choice rests on [up to a million steps of the robots](training/ppo.md#after-a-million-steps), made
without pink noise.
"""
CANDIDATES = "## The candidates\n"


def write_page(rows: list[dict[str, Any]]) -> None:
    draw_curves(rows)
    PAGE.write_text("\n".join([HEAD, *sections(rows), CANDIDATES, candidates()]).rstrip() + "\n", encoding="utf-8")


def candidates() -> str:
    """Return the table of candidates and their settings."""

    def words(settings: Mapping[str, Any]) -> str:
        return ", ".join(f"`{name} = {json.dumps(value)}`" for name, value in settings.items())

    return table(["candidate", "settings"], [[name, words(settings)] for name, settings in suite()[1].items()])


def sections(rows: list[dict[str, Any]]) -> list[str]:
    """Return a section for every budget, version and kind of seeds."""
    kinds: dict[tuple[int, str, bool], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        kinds[row["budget"], row["version"], row["seed"] >= 100].append(row)
    return [_section(*kind, kinds[kind]) for kind in sorted(kinds)]


def _section(budget: int, version: str, tuning: bool, rows: list[dict[str, Any]]) -> str:
    known, _ = suite()
    names = sorted({row["candidate"] for row in rows})
    tasks = [name for name in known if any(row["task"] == name for row in rows)]
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        found[row["task"], row["candidate"]].append(row["evaluation"])
    lines = [[task, *(_cell(known[task].score, found[task, name]) for name in names)] for task in tasks]
    means = ["mean score", *(_mean(known, tasks, name, found) for name in names)]
    seen = "velocities hidden" if version == "hidden" else "the full state"
    seeds = "tuning seeds" if tuning else "seeds of claims"
    title = f"## {budget:,} steps, {seen}, {seeds}\n"
    return "\n".join([title, table(["task: return (score), runs", *names], [*lines, means]), ""])


def _cell(score: Any, values: list[float]) -> str:
    if not values:
        return "–"
    mean = float(np.mean(values))
    return f"{mean:,.4g} ({score(mean):.2f}), {len(values)}"


def _mean(known: Any, tasks: list[str], name: str, found: dict[tuple[str, str], list[float]]) -> str:
    if not all(found[task, name] for task in tasks):
        return "not all run"
    return f"{np.mean([known[task].score(float(np.mean(found[task, name]))) for task in tasks]):.2f}"
