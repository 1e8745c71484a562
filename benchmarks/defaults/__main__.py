"""Run the suite of defaults: `python -m benchmarks.defaults --tasks cheap --candidates trpo ppo --steps 100000`.

Every run has its directory, so that the command can be interrupted and repeated: finished runs are skipped, others
continue, and `--steps 300000` afterwards goes on from 100000. At its end the finished runs are evaluated and
benchmarks/results/defaults.json and docs/defaults.md are written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import tyro

from benchmarks.defaults import environments
from benchmarks.defaults.page import write_page
from benchmarks.defaults.suite import SCALES, Task, suite
from rpsp.experiments.runs import evaluate
from rpsp.experiments.sweeps import Sweep, carry_out, open_backend, prepare, standing
from rpsp.experiments.workers import Beat, Job

RESULTS = SCALES.with_name("defaults.json")
EPISODES = 20
"""Episodes of an evaluation."""


def main(
    tasks: tuple[str, ...] = ("cheap",),
    candidates: tuple[str, ...] = ("trpo", "ppo", "sac"),
    versions: tuple[str, ...] = ("hidden",),
    steps: int = 100_000,
    seeds: tuple[int, ...] = (100, 101),
    out: Path = Path("runs/defaults"),
    results: Path = RESULTS,
    add: tuple[Path, ...] = (),
    jobs: int = 1,
    random: bool = False,
    list: bool = False,
) -> None:
    """Run, evaluate and write the page.

    Args:
        tasks: names of tasks or of groups.
        candidates: names of candidates.
        versions: hidden, full, or both.
        steps: environment steps of a run.
        seeds: seeds; 100 and more are for choices, 0 and more for claims.
        out: directory of all runs.
        results: the file of results. The page is written from the default one only.
        add: files of results to add to it, instead of running anything.
        jobs: number of runs at a time.
        random: only measure the ends of the scores.
        list: only list the tasks.
    """
    known, settings = suite()
    if list:
        for task in known.values():
            print(f"{task.name:34} {task.group:10} {task.env}")
        return
    if random:
        write(SCALES, {task.name: measured_scale(task) for task in known.values() if _installed(task)})
        return
    if add:
        for path in add:
            write_rows(results, json.loads(path.read_text(encoding="utf-8")))
        if results == RESULTS:
            write_page(json.loads(RESULTS.read_text(encoding="utf-8")))
        return
    chosen = [task for task in known.values() if task.group in tasks or task.name in tasks]
    for task in chosen:
        for version in versions:
            for name in candidates:
                plan = Sweep.of(
                    {"tasks": [task.versions[version]], "methods": [{"method": "rpsi-trpo", **settings[name]}]}
                    | {"seeds": [*seeds], "steps": steps, "compilation_cache": True},
                    where=f"{task.name}: ",
                )
                about = {"task": task.name, "version": version, "candidate": name, "budget": steps}
                write_rows(results, run(prepare(plan, out / name), out / name, about, jobs))
    if results == RESULTS:
        write_page(json.loads(RESULTS.read_text(encoding="utf-8")))


def run(jobs: Sequence[Job], out: Path, about: dict[str, Any], at_once: int) -> list[dict[str, Any]]:
    """Run what is missing, evaluate it, and return its rows of the results."""
    left = [job for job in jobs if not standing(job).finished]
    if left:
        out.mkdir(parents=True, exist_ok=True)
        failed = carry_out(left, out, open_backend("local", at_once)[0], _silent)
        for name, failure in failed.items():
            print(f"{name}: {failure.sentence}", flush=True)
    rows = []
    for job in jobs:
        if standing(job).finished:
            row = about | {"seed": job.config.seed} | outcome(job.directory, about["budget"])
            rows.append(row)
            print({name: row[name] for name in (*KEY, "final", "evaluation", "minutes")}, flush=True)
    return rows


def write_rows(path: Path, new: Sequence[dict[str, Any]]) -> None:
    """Add rows to a file of results. They replace those of the same runs."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    kept = {_key(row): row for row in (*rows, *new)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, sorted(kept.values(), key=lambda row: tuple(map(str, _key(row)))))


KEY = ("task", "version", "candidate", "budget", "seed")


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def _silent(beat: Beat) -> None:
    pass


def outcome(directory: Path, budget: int) -> dict[str, Any]:
    """Return what the results keep of a finished run.

    `curve` has the mean return of the training episodes in every tenth of the budget, `final` is the last of them, and
    `evaluation` is the mean return of the most probable actions afterwards.
    """
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    records = [record for record in records if "iteration" in record]
    tenth = np.minimum([10 * record["total_samples"] // budget for record in records], 9)
    returns, weights = (np.array([record[name] for record in records]) for name in ("mean_return", "episodes"))
    curve = [
        float(f"{np.average(returns[tenth == i], weights=weights[tenth == i]):.5g}") if (tenth == i).any() else None
        for i in range(10)
    ]
    played = evaluate(directory, EPISODES, "last", 0, True)
    parts = {name: sum(record[f"{name}_seconds"] for record in records) for name in ("refit", "acting", "update")}
    results = json.loads((directory / "results.json").read_text(encoding="utf-8"))
    return {
        "curve": curve,
        "final": next(value for value in reversed(curve) if value is not None),
        "evaluation": float(f"{played['mean_return']:.5g}"),
        "minutes": round(results["wall_seconds"] / 60, 2),
        "refits": round(parts["refit"] / max(1e-9, sum(parts.values())), 3),
    }


def measured_scale(task: Task, episodes: int = 100) -> dict[str, float]:
    """Return the mean return of uniformly random actions, and the best known return."""
    hidden = task.versions["hidden"]
    env = gymnasium.make(task.env, **hidden.get("env_args", {}), max_episode_steps=hidden.get("max_episode_steps"))
    env.action_space.seed(0)
    total = 0.0
    for seed in range(episodes):
        env.reset(seed=seed)
        over = False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated
            total += float(reward)
    best = environments.reference_return(task.env.rpartition(":")[2]) if task.best is None else task.best
    return {"random": float(f"{total / episodes:.5g}"), "best": float(f"{best:.5g}")}


def _installed(task: Task) -> bool:
    """Return whether the task can be made. Those of group box2d need `gymnasium[box2d]`."""
    try:
        gymnasium.make(task.env, **task.versions["hidden"].get("env_args", {})).close()
    except gymnasium.error.DependencyNotInstalled as error:
        print(f"{task.name}: left out, {error}")
        return False
    return True


def write(path: Path, content: Any) -> None:
    """Write JSON with one line for each entry."""
    if isinstance(content, dict):
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
    else:
        text = "[\n" + ",\n".join(json.dumps(row) for row in content) + "\n]\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
