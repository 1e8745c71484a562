"""Draw docs/figures/defaults.svg: learning curves of the suite, a panel for each task."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.defaults.suite import suite
from rpsp.experiments import figures

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
SHOWN = "trpo", "ppo", "sac", "ppo-pink-entropy", "ppo-pink", "sac-pink"
COLOURS = dict(zip(SHOWN, ("#999999", "#56B4E9", "#E69F00", "#0072B2", "#009E73", "#D55E00"), strict=True))
COLUMNS = 4


def draw_curves(rows: list[dict[str, Any]], budget: int = 100_000) -> None:
    """Draw the mean training scores of runs of one length, velocities hidden, on the tuning seeds."""
    known, _ = suite()
    found: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for row in rows:
        if (row["budget"], row["version"]) == (budget, "hidden") and row["seed"] >= 100 and row["candidate"] in SHOWN:
            score = known[row["task"]].score
            found[row["task"], row["candidate"]].append([np.nan if x is None else score(x) for x in row["curve"]])
    tasks = [name for name in known if any(task == name for task, _ in found)]
    if not tasks:
        return
    count = -(-len(tasks) // COLUMNS)
    figure, axes = plt.subplots(
        count, COLUMNS, figsize=(10, 2.1 * count + 0.5), sharex=True, sharey=True, layout="constrained", squeeze=False
    )
    steps = budget / 1000 * (np.arange(10) + 0.5) / 10
    for axis, task in zip(axes.flat, tasks, strict=False):
        axis.set_title(task, fontsize=9)
        for name in SHOWN:
            if curves := found.get((task, name)):
                axis.plot(steps, np.mean(curves, axis=0), color=COLOURS[name], label=name, linewidth=1.5)
    for axis in axes.flat[len(tasks) :]:
        axis.axis("off")
    axes[0, 0].set_ylim(-0.15, 1.05)
    figure.supxlabel("thousand steps", fontsize=9)
    figure.supylabel("score in training", fontsize=9)
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        [handles[n] for n in SHOWN if n in handles],
        [n for n in SHOWN if n in handles],
        ncols=6,
        loc="outside upper center",
        fontsize=8,
    )
    figures.save(figure, FIGURES, "defaults")
