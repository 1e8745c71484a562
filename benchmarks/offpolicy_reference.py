"""SAC with the full state and without memory: learning curves, evaluated without noise every 10,000 steps.

    python -m benchmarks.offpolicy_reference run Hopper-v5 full "full, 1e-4" --steps 100000 --out curves
    python -m benchmarks.offpolicy_reference gather curves

`run` appends one line per evaluation to a file in the folder `curves`. `gather` adds the curves of a folder to
benchmarks/results/offpolicy_reference.json. A run that ended early contributes the evaluations that it has made.

The state is the observation of the task; Ant shows no contact forces, as Ant-v4. Variants with a belief see positions only.
Steps include the 10,000 random steps of the exploration, as in the published curves. Published returns at 300,000 steps on
the v4 tasks are in `PUBLISHED`.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

RESULT = Path(__file__).parent / "results" / "offpolicy_reference.json"
ACTIONS = {"Hopper-v5": 3, "Walker2d-v5": 6, "HalfCheetah-v5": 6, "Ant-v5": 8}
"""The tasks, and the number of actions of each."""
WITHOUT_FORCES: dict[str, Any] = {"env_args": ["include_cfrc_ext_in_observation=false"]}
STATE: dict[str, Any] = {"method": "fm2-sac", "window": 1, "observe": "all"}
BELIEF: dict[str, Any] = {"method": "rpsi-sac", "observe": "positions"}
PUBLISHED = {
    "SAC": {"Hopper-v5": 2160, "Walker2d-v5": 2470, "HalfCheetah-v5": 8593, "Ant-v5": 3532},
    "CrossQ": {"Hopper-v5": 2644, "Walker2d-v5": 5941, "HalfCheetah-v5": 10012, "Ant-v5": 5712},
    "SimbaV2": {"Hopper-v5": 3502, "Walker2d-v5": 5499, "HalfCheetah-v5": 9892, "Ant-v5": 6200},
}
PLAIN: dict[str, Any] = {"hidden": [256, 256], "learning_rate": 3e-4}
SMALL: dict[str, Any] = {"hidden": [64, 64], "learning_rate": 1e-3}
"""The defaults of `fm2-sac`."""
FULL: dict[str, Any] = {
    "hidden": [256],
    "body": "residual",
    "running_scale": True,
    "scale_rewards": True,
    "atoms": 101,
    "learning_rate": 3e-4,
}
MEAN = FULL | {"atoms": 1}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "plain, 1e-3": PLAIN | {"learning_rate": 1e-3},
    "plain, every 50": PLAIN | {"learn_every": 50},
    "full": FULL,
    "full, 1e-4": FULL | {"learning_rate": 1e-4},
    "full, 1e-3": FULL | {"learning_rate": 1e-3},
    "full, half entropy": FULL | {"target_entropy": 0.5},
    "full, every 50": FULL | {"learn_every": 50},
    "full, every 50, 1e-4": FULL | {"learn_every": 50, "learning_rate": 1e-4},
    "full, every 50, half entropy": FULL | {"learn_every": 50, "target_entropy": 0.5},
    "full, ratio 2": FULL | {"ratio": 2.0},
    "full, ratio 2, 1e-4": FULL | {"ratio": 2.0, "learning_rate": 1e-4},
    "full, norms": FULL | {"fixed_norms": True},
    "full, norms, 1e-4": FULL | {"fixed_norms": True, "learning_rate": 1e-4},
    "full, norms, 1e-3": FULL | {"fixed_norms": True, "learning_rate": 1e-3},
    "full, plain body": FULL | {"body": "plain", "hidden": [256, 256]},
    "full, plain body, 1e-3": FULL | {"body": "plain", "hidden": [256, 256], "learning_rate": 1e-3},
    "full, no input scale": FULL | {"running_scale": False},
    "full, no input scale, 1e-3": FULL | {"running_scale": False, "learning_rate": 1e-3},
    "full, mean": MEAN,
    "full, mean, 1e-3": MEAN | {"learning_rate": 1e-3},
    "full, mean, no reward scale": MEAN | {"scale_rewards": False},
    "full, mean, no reward scale, 1e-3": MEAN | {"scale_rewards": False, "learning_rate": 1e-3},
    "small": SMALL,
    "small, input scale": SMALL | {"running_scale": True},
    "small, reward scale": SMALL | {"scale_rewards": True},
    "small, 51 atoms": SMALL | {"scale_rewards": True, "atoms": 51},
    "small, norms": SMALL | {"fixed_norms": True},
    "small, every 50": SMALL | {"learn_every": 50},
    "small, half entropy": SMALL | {"target_entropy": 0.5},
    "belief, plain": BELIEF | PLAIN,
    "belief, plain, 1e-3": BELIEF | PLAIN | {"learning_rate": 1e-3},
    "belief, full": BELIEF | FULL,
    "belief, full, 1e-3": BELIEF | FULL | {"learning_rate": 1e-3},
}
"""Settings. Where a target entropy is given, it is a multiple of minus the number of actions."""
KEPT = "mean_return", "critic_loss", "entropy", "temperature", "value", "skipped"


def run(
    task: Annotated[str, tyro.conf.Positional],
    variants: Annotated[list[str], tyro.conf.Positional],
    out: Path,
    seeds: tuple[int, ...] = (100, 101),
    steps: int = 300_000,
    seconds: float = math.inf,
    every: int = 10_000,
    episodes: int = 10,
) -> None:
    """Train agents together, and append their evaluations to one file per agent.

    Args:
        task: a key of `ACTIONS`.
        variants: keys of `VARIANTS`. Those that differ in numbers only are trained in one program.
        out: folder of the files.
        seeds: the seeds. Settings are chosen on seeds from 100 on.
        steps: environment steps of an agent, exploration included.
        seconds: evaluate and end after this time.
        every: number of steps between evaluations.
        episodes: episodes of an evaluation.
    """
    import jax

    from benchmarks.prepared import prepared
    from rpsp.training.together import train_together

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rpsp train` does
    out.mkdir(parents=True, exist_ok=True)
    runs = []
    for variant, seed in itertools.product(variants, seeds):
        given = (WITHOUT_FORCES if task == "Ant-v5" else {}) | STATE | VARIANTS[variant]
        if "target_entropy" in given:
            given = given | {"target_entropy": -given["target_entropy"] * ACTIONS[task]}
        if given["method"] != STATE["method"]:
            del given["window"]
        ready = prepared(env=task, seed=seed, threads=1, capacity=steps, **given)
        file = out / f"{task}__{variant.replace(', ', '_').replace(' ', '-')}__{seed}.jsonl"
        head = {"task": task, "variant": variant, "settings": given, "seed": seed}
        file.write_text(json.dumps(head) + "\n", encoding="utf-8")
        runs.append((ready, file))
    rows, make_envs = runs[0][0].config.num_envs or 1, runs[0][0].make_envs
    recipes, amounts = [ready.recipe for ready, _ in runs], [ready.amounts for ready, _ in runs]
    started, evaluating = time.perf_counter(), 0.0
    due, tests = [every] * len(runs), dict[int, Any]()
    for found in train_together(
        recipes,
        lambda n: make_envs(rows * n),
        amounts,
        sys.maxsize,
        [None] * len(runs),
        spent=[lambda training: training.samples >= steps] * len(runs),
    ):
        ready = [(step.run, step.training, step.record) for step in found if step.training is not None]
        begun = time.perf_counter()
        over = begun - started > seconds
        if not ready or (not over and min(training.samples - due[i] for i, training, _ in ready) < 0):
            continue
        count = len(ready)
        if count not in tests:
            tests[count] = make_envs(episodes * count)
        own = [training for _, training, _ in ready], tests[count], [amounts[i] for i, *_ in ready]
        returns = _evaluated(*own, episodes)
        evaluating += time.perf_counter() - begun
        spent = time.perf_counter() - started
        for (i, training, record), found_returns in zip(ready, returns, strict=True):
            line = {
                "steps": training.samples,
                "eval_return": float(np.mean(found_returns)),
                "eval_std": float(np.std(found_returns)),
                "seconds": spent - evaluating,
            } | {name: record[name] for name in KEPT if name in record}
            with runs[i][1].open("a", encoding="utf-8") as log:
                log.write(json.dumps({name: float(f"{x:.5g}") for name, x in line.items()}) + "\n")
            due[i] += every * (1 + (training.samples - due[i]) // every)
        if over:
            return


def _evaluated(trainings: list[Any], envs: Any, amounts: list[Any], episodes: int) -> list[np.ndarray]:
    """Return the returns of some episodes of each agent, without noise. They are the same ones at each evaluation."""
    from rpsp.experiments.agents import EVALUATING
    from rpsp.training.rollouts import collect, collect_together
    from rpsp.training.together import stack

    given: dict[str, Any] = {"episodes": episodes, "iteration": EVALUATING, "deterministic": True}
    if len(trainings) == 1:
        now = trainings[0]
        return [collect(now.agent, envs, scaling=now.scaling, seed=amounts[0].seed, **given).returns]
    agents, scalings = stack([now.agent for now in trainings]), [now.scaling for now in trainings]
    found = collect_together(agents, envs, scalings=scalings, seeds=[own.seed for own in amounts], **given)
    return [collected.returns for collected in found]


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
