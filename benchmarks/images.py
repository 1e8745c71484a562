"""Training from single rendered frames, beside training with the full state: one run, one JSON file.

    python -m benchmarks.images CartPole-v1 --method rpsi-ppo --observe pixels --seed 0 --out results/images

The file holds the return of ten episodes without exploration noise, the curve, the rates of training and of rendering alone,
and the error of one-step predictions on these episodes in pixels, beside that of persistence.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import jax
import jax.numpy as jnp
import numpy as np

import rpsp
from rpsp.data.batches import pack
from rpsp.experiments.agents import TrainedAgent
from rpsp.experiments.run_directory import RunDirectory
from rpsp.filters.base import compiled_unroll


def one_step_error(agent: TrainedAgent, episodes: list[Any]) -> dict[str, float]:
    """Return the mean squared error per observation of one-step predictions, of persistence and of the mean.

    Errors are those of decoded observations: of images, the pixels of their projection on the basis. What the projection
    leaves out is `image_residual` of the file, as a fraction of the variance of the exploration.

    Args:
        agent: the agent.
        episodes: its episodes, as `agent.evaluate` returns them.
    """
    batch = pack(episodes)
    states = np.asarray(compiled_unroll(agent.agent.filter, batch))
    predict = jax.jit(jax.vmap(jax.vmap(agent.agent.filter.predict)))
    predicted = np.asarray(predict(jnp.asarray(states), jnp.asarray(batch.actions)), np.float64)
    mask = np.asarray(batch.mask)
    decode = agent.scaling.decode
    came, expected, before = (
        decode(np.asarray(x, np.float64)[mask]) for x in (batch.observations, predicted, batch.previous_observations)
    )
    errors = {"prediction": expected - came, "persistence": before - came, "mean": came.mean(axis=0) - came}
    return {name: float(np.square(error).sum(axis=1).mean()) for name, error in errors.items()}


def rendering_rate(env: str, steps: int = 300) -> float:
    """Return how many steps per second one environment makes with random actions and a frame at every step."""
    envs = rpsp.make(env, 1, observe="pixels", seed=0)
    envs.reset()
    envs.action_space.seed(0)
    started = time.perf_counter()
    for _ in range(steps):
        envs.step(envs.action_space.sample())
    return steps / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train from single rendered frames, and write one JSON file.")
    parser.add_argument("env")
    parser.add_argument("--method", default="rpsi-ppo")
    parser.add_argument("--observe", default="pixels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    settings = {name: json.loads(value) for name, value in (one.split("=") for one in given.set)}
    with tempfile.TemporaryDirectory() as folder:
        rate = rendering_rate(given.env) if given.observe == "pixels" else None
        limits = {"steps": given.steps, "minutes": given.minutes, "seed": given.seed}
        run = rpsp.train(
            given.env,
            method=given.method,
            observe=given.observe,
            out=f"{folder}/run",
            verbose=False,
            **limits,
            **settings,
        )
        agent = rpsp.load(run.directory)
        played = agent.evaluate(10)
        metrics = [one for one in run.metrics if "iteration" in one]
        result = {
            "env": given.env,
            "method": given.method,
            "observe": given.observe,
            "seed": given.seed,
            "settings": settings,
            "steps": metrics[-1]["total_samples"],
            "return": float(np.mean(played.returns)),
            "image_residual": RunDirectory(Path(run.directory)).metrics()[0].get("image_residual"),
            "errors": one_step_error(agent, played.episodes),
            "rendering_per_second": rate,
            "steps_per_second": float(np.median([one["steps_per_second"] for one in metrics])),
            "curve": [[one["total_samples"], one["mean_return"]] for one in metrics],
        }
    given.out.mkdir(parents=True, exist_ok=True)
    name = f"{given.env}-{given.method}-{given.observe}-s{given.seed}{''.join('-' + one for one in given.set)}"
    (given.out / f"{name}.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    print(name, {key: result[key] for key in ("steps", "return", "errors", "rendering_per_second", "steps_per_second")})


if __name__ == "__main__":
    main()
