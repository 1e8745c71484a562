"""SAC with the full state and without memory: learning curves, evaluated without noise every 10,000 steps.

    python -m benchmarks.offpolicy_reference run Hopper-v5 plain --seed 100 --steps 100000 --out curves
    python -m benchmarks.offpolicy_reference gather curves

`run` appends one line per evaluation to a file in the folder `curves`. `gather` adds the curves of a folder to
benchmarks/results/offpolicy_reference.json. A run that ended early contributes the evaluations that it has made.

The state is the observation of the task; Ant shows no contact forces, as Ant-v4. Steps include the 10,000 random steps of
the exploration, as in the published curves. Published returns at 300,000 steps on the v4 tasks are in `PUBLISHED`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

RESULT = Path(__file__).parent / "results" / "offpolicy_reference.json"
TASKS: dict[str, dict[str, Any]] = {
    "Hopper-v5": {},
    "Walker2d-v5": {},
    "HalfCheetah-v5": {},
    "Ant-v5": {"env_args": ["include_cfrc_ext_in_observation=false"]},
}
PUBLISHED = {
    "SAC": {"Hopper-v5": 2160, "Walker2d-v5": 2470, "HalfCheetah-v5": 8593, "Ant-v5": 3532},
    "CrossQ": {"Hopper-v5": 2644, "Walker2d-v5": 5941, "HalfCheetah-v5": 10012, "Ant-v5": 5712},
    "SimbaV2": {"Hopper-v5": 3502, "Walker2d-v5": 5499, "HalfCheetah-v5": 9892, "Ant-v5": 6200},
}
WIDE: dict[str, Any] = {"hidden": [256, 256]}
RESIDUAL: dict[str, Any] = {"hidden": [128], "body": "residual"}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": WIDE,
    "plain, 3e-4": WIDE | {"learning_rate": 3e-4},
    "plain, not normed": WIDE | {"normed": False},
    "plain, every 50": WIDE | {"learn_every": 50},
    "plain, scale": WIDE | {"running_scale": True},
    "residual": RESIDUAL,
    "residual, scale": RESIDUAL | {"running_scale": True},
    "residual, scale, 3e-4": RESIDUAL | {"running_scale": True, "learning_rate": 3e-4},
    "residual, 3e-4": RESIDUAL | {"learning_rate": 3e-4},
    "residual, every 50": RESIDUAL | {"learn_every": 50},
}
"""Settings of `fm2-sac` with a window of one observation. "plain" are its defaults with larger layers."""
EVALUATE_EVERY = 10_000
KEPT = "mean_return", "critic_loss", "entropy", "temperature", "value", "skipped"


def run(
    task: Annotated[str, tyro.conf.Positional],
    variant: Annotated[str, tyro.conf.Positional],
    out: Path,
    seed: int = 100,
    steps: int = 100_000,
    episodes: int = 10,
) -> None:
    """Train one agent, and append its evaluations to a file.

    Args:
        task: a key of `TASKS`.
        variant: a key of `VARIANTS`.
        out: folder of the file.
        seed: the seed. Settings are chosen on seeds from 100 on.
        steps: environment steps, exploration included.
        episodes: episodes of an evaluation.
    """
    from benchmarks.prepared import prepared
    from rpsp.experiments.agents import EVALUATING
    from rpsp.training.loop import train
    from rpsp.training.rollouts import collect

    given = TASKS[task] | VARIANTS[variant]
    config, make_envs, recipe, amounts = prepared(env=task, method="fm2-sac", window=1, seed=seed, threads=1, **given)
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{task}__{variant.replace(', ', '_').replace(' ', '-')}__{seed}.jsonl"
    started, evaluating, due = time.perf_counter(), 0.0, EVALUATE_EVERY
    with file.open("w", encoding="utf-8") as log:
        log.write(json.dumps({"task": task, "variant": variant, "settings": given, "seed": seed}) + "\n")
        tests = make_envs(episodes)
        for training, record in train(recipe, make_envs(config.num_envs), amounts, sys.maxsize):
            if training.samples < due:
                continue
            begun = time.perf_counter()
            collected = collect(
                training.agent, tests, scaling=training.scaling, episodes=episodes, seed=seed, iteration=EVALUATING,
                deterministic=True,
            )  # fmt: skip
            evaluating += time.perf_counter() - begun
            line = {
                "steps": training.samples,
                "eval_return": float(np.mean(collected.returns)),
                "eval_std": float(np.std(collected.returns)),
                "seconds": time.perf_counter() - started - evaluating,
            } | {name: record[name] for name in KEPT if name in record}
            log.write(json.dumps({name: float(f"{x:.5g}") for name, x in line.items()}) + "\n")
            log.flush()
            due += EVALUATE_EVERY * (1 + (training.samples - due) // EVALUATE_EVERY)
            if training.samples >= steps:
                return


def gather(folder: Annotated[Path, tyro.conf.Positional]) -> None:
    """Add the curves of a folder to the result file; a run of the same task, variant and seed is replaced."""
    known = json.loads(RESULT.read_text(encoding="utf-8"))["runs"] if RESULT.exists() else []
    runs = {_name(run): run for run in known}
    for file in sorted(folder.glob("*.jsonl")):
        head, *lines = [
            json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")
        ]
        if lines:
            curve = {
                name: [line.get(name) for line in lines] for name in ("steps", "eval_return", "eval_std", "seconds")
            }
            curve |= {name: [line.get(name) for line in lines] for name in KEPT}
            runs[_name(head)] = head | curve
    rows = [json.dumps(runs[name]) for name in sorted(runs)]
    about = json.dumps(" ".join((__doc__ or "").split("\n\n")[0].split()))
    published = json.dumps(PUBLISHED)
    text = f'{{"about": {about},\n"published": {published},\n"runs": [\n' + ",\n".join(rows) + "\n]}\n"
    RESULT.write_text(text, encoding="utf-8")
    for name in sorted(runs):
        print(*name, *(f"{x:.0f}" for x in runs[name]["eval_return"]))


def _name(run: dict[str, Any]) -> tuple[str, str, int]:
    return run["task"], run["variant"], run["seed"]


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": run, "gather": gather})
