"""Play an episode with a trained agent and make a video of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rpsp.algorithms.policies import Agent
from rpsp.data.arrays import Numbers
from rpsp.data.scaling import OneHot, Scaling, coordinates
from rpsp.errors import UsageError
from rpsp.experiments.agent_uncertainty import predictive
from rpsp.experiments.agents import EVALUATING, TrainedAgent, load
from rpsp.experiments.compilation import compilation_cached
from rpsp.experiments.files import Say
from rpsp.experiments.forecasting import moments, standard_deviations
from rpsp.experiments.resolve import read_config
from rpsp.experiments.sensor_names import observation_names
from rpsp.experiments.video.expected import expected_pictures
from rpsp.experiments.video.files import encoder, write_video
from rpsp.experiments.video.frames import HORIZON, Watched, pictures
from rpsp.experiments.video.ghost import Ghost, follow, rendered, unrendered
from rpsp.training.actions import ActionSymbols
from rpsp.training.rollouts import ACTING

MOST_FRAMES = 300
"""Maximum number of frames, up to a factor of two. Longer episodes skip frames."""


@compilation_cached()
def watch(
    directory: Path,
    checkpoint: str = "last",
    seed: int = 0,
    steps: int = 500,
    format: str = "mp4",
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Run `rpsp watch`: make a video of the first episode of `rpsp eval` with the same seed, in DIR/video/.

    Args:
        directory: run directory.
        checkpoint: iteration of the checkpoint, or "last" or "best".
        seed: seed of the episode.
        steps: maximum number of steps.
        format: "mp4" or "gif". Without ffmpeg, "mp4" becomes "gif".
        say: callback for messages.

    Returns:
        What `film` returns.
    """
    if steps < 1:
        raise UsageError(f"steps: {steps} is not a whole number ≥ 1.")
    agent = load(directory, int(checkpoint) if checkpoint.isdecimal() else checkpoint, say=say)
    config = read_config(directory)
    say(f"playing and rendering at most {steps} steps of {config.env}")
    title = f"{config.env}, {config.method}"
    return film(agent, directory / "video", title, seed, steps, format, say, partial(observation_names, config))


def film(
    agent: TrainedAgent,
    folder: Path,
    title: str,
    seed: int = 0,
    steps: int = 500,
    format: str = "mp4",
    say: Say = lambda line: None,
    names: Callable[[int], list[str]] | None = None,
) -> dict[str, Any]:
    """Play an episode and write its video.

    Args:
        agent: the trained agent.
        folder: where the video is written.
        title: the first part of the title. The number of iterations is appended.
        seed: seed of the episode.
        steps: maximum number of steps.
        format: "mp4" or "gif". Without ffmpeg, "mp4" becomes "gif".
        say: callback for messages.
        names: returns names of this number of observations. Default: their numbers.

    Returns:
        The path of the video, the return, the numbers of steps and frames, and the seconds that it took.
    """
    began = time.perf_counter()
    if format == "mp4" and encoder() is None:
        format = "gif"
        say("ffmpeg was not found, so a gif is written; for mp4: pip install imageio-ffmpeg")
    episode = play(agent, seed, steps)
    if names is not None and agent.coordinate_names is None and not isinstance(agent.scaling, OneHot):
        episode = replace(episode, names=names(len(episode.names)))
    if episode.scenes is None:
        say("the environment cannot be rendered (no render mode rgb_array): only observations are drawn")
    path = folder / f"{agent.checkpoint or 0:06d}-seed{seed}.{format}"
    frames = pictures(episode, title=f"{title}, iteration {agent.checkpoint}")
    write_video(path, frames, episode.frames_per_second)
    return {
        "video": str(path),
        "return": float(episode.rewards.sum()),
        "steps": len(episode.rewards),
        "frames": len(episode.shown),
        "seconds": time.perf_counter() - began,
    }


def play(agent: TrainedAgent, seed: int = 0, steps: int = 500) -> Watched:
    """Play one deterministic episode, and render it if the environment supports this.

    Args:
        agent: the trained agent.
        seed: seed of the episode.
        steps: maximum number of steps.
    """
    envs, renders = _environment(agent)
    numbers = np.random.SeedSequence(seed, spawn_key=(ACTING, EVALUATING, 1, 0)).generate_state(1)
    readings, states, rewards, scenes = [], [], [], []
    state, every, ended = None, 1, False
    ghost = Ghost.of(envs) if renders else None
    try:
        reading, _ = envs.reset(seed=[int(numbers[0])])
        while not ended and len(rewards) < steps:
            if renders and len(rewards) % every == 0:
                scenes.append((rendered(envs), None if ghost is None else ghost.present()))
            readings.append(reading)
            action, state = agent.act(reading, state, episode_start=state is None)
            states.append(state)
            reading, reward, terminated, truncated, _ = envs.step(action)
            ended = bool(terminated[0] or truncated[0])
            rewards.append(float(reward[0]))
            if len(rewards) > every * MOST_FRAMES:  # keep every second frame, then every fourth, …
                every, scenes = 2 * every, scenes[::2]
        shown = range(0, len(rewards), every)
        expected = _forecasts(agent, states)
        forecasts = coordinates(agent.scaling).decode(expected)
        half_widths, p_values = _uncertainty(agent, states)
        if ghost is not None:
            scenes = [ghost.over(*scene, forecasts[step]) for scene, step in zip(scenes, shown, strict=True)]
        else:
            scenes = [picture for picture, _ in scenes]
    finally:
        envs.close()
    rows = np.concatenate([*readings, reading]).astype(np.float64) - agent.first
    units = coordinates(agent.scaling)
    if isinstance(units, OneHot):
        observations = units.encode(rows)
        word, least = "symbol", 1.0
    else:
        observations = units.decode(agent.scaling.encode(rows))
        word, least = "observation", 0.1 * units.scale  # do not magnify tiny movements
    if images := agent.structure.images:
        scenes = expected_pictures(images[0], rows, agent.scaling.decode(expected), shown)
    low, high = np.nanmin(observations, axis=0), np.nanmax(observations, axis=0)
    margin = np.maximum(0.15 * (high - low), (least - (high - low)) / 2) + 1e-12
    real_time = float(envs.metadata.get("render_fps") or 30) / every
    return Watched(
        observations=observations,
        forecasts=forecasts,
        half_widths=half_widths,
        p_values=p_values,
        rewards=np.array(rewards),
        shown=shown,
        scenes=scenes if renders or images else None,
        caption="" if ghost is None else ghost.caption,
        limits=np.stack([low - margin, high + margin], axis=1),
        names=list(agent.coordinate_names or (f"{word} {i + agent.first}" for i in range(observations.shape[1]))),
        frames_per_second=min(30.0, max(5.0, real_time)),
    )


def _environment(agent: TrainedAgent) -> tuple[Any, bool]:
    """Return one environment, and whether it can be rendered."""
    if agent.make_envs is None:
        raise UsageError(
            "watch: this agent was trained in an environment made by a function, which is not saved in the checkpoint."
        )
    try:
        envs: Any = agent.environments(1)
    except AttributeError as error:  # raised by PyOpenGL if a library is missing when mujoco is imported
        raise unrendered("the environment", error) from error
    if "rgb_array" not in (envs.metadata.get("render_modes") or ()):
        return envs, False
    envs.close()
    envs = agent.environments(1, render_mode="rgb_array")
    follow(envs.unwrapped.envs[0].unwrapped)  # pyright: ignore[reportAttributeAccessIssue]
    return envs, True


def _forecasts(agent: TrainedAgent, states: list[Any]) -> Float[np.ndarray, "steps horizon obs"]:
    """Return the expected observations after each of these states if the agent follows its policy."""
    units = agent.units
    low, high = (-np.inf, np.inf) if isinstance(units, ActionSymbols) else (units.low, units.high)
    q, executed = (np.concatenate([getattr(state, name) for state in states]) for name in ("q", "executed"))
    return np.asarray(_imagine(agent.agent, q, executed, jnp.asarray(low), jnp.asarray(high)), np.float64)


def _uncertainty(
    agent: TrainedAgent, states: list[Any]
) -> tuple[Float[np.ndarray, "steps horizon obs"] | None, Float[np.ndarray, " steps"] | None]:
    """Return half the widths of the 90 % bands of the forecasts, and the p-values of the observations.

    The bands are those of forecasts in which the action is repeated; covariances hardly depend on later actions. None for
    symbols, and for filters without a predictive distribution.
    """
    try:
        uncertainty = agent.uncertainty
    except UsageError:
        return None, None
    q, executed = (np.concatenate([getattr(state, name) for state in states]) for name in ("q", "executed"))
    filter = predictive(agent.agent.filter)
    actions = np.repeat(executed[:, None], HORIZON, axis=1)
    _, covariance = moments(uncertainty, filter, q[:, : filter.size], actions)
    assert isinstance(agent.scaling, Scaling)  # otherwise there is no uncertainty
    half = uncertainty.half_widths(0.9, HORIZON) * standard_deviations(np.asarray(covariance)) * agent.scaling.scale
    return half, np.array([agent.surprise(state).p[0] for state in states])


@eqx.filter_jit
def _imagine(
    agent: Agent, q: Float[Numbers, "n q"], actions: Float[Numbers, "n act"], low: Array, high: Array
) -> Float[Array, "n horizon obs"]:
    """Roll out the filter: each expected observation is used as if observed, followed by the most probable action."""

    def advance(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        q, action = carry
        expected = agent.filter.predict(q, action)
        q = agent.filter.update(q, action, expected)
        return (q, jnp.clip(agent.policy(q).mode(), low, high)), expected

    return jax.vmap(lambda q, action: jax.lax.scan(advance, (q, action), length=HORIZON)[1])(
        jnp.asarray(q), jnp.asarray(actions)
    )
