"""An episode as a video: the scene with a ghost of what the belief expects, and beside it the forecasts as plots."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float, UInt8
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont

from rpsp.algorithms.policies import Agent
from rpsp.data.arrays import Numbers
from rpsp.data.scaling import OneHot
from rpsp.envs.vector import sensors
from rpsp.errors import EnvironmentFailure, StorageError, UsageError
from rpsp.experiments.agents import EVALUATING, TrainedAgent, load
from rpsp.experiments.compilation import compilation_cached
from rpsp.experiments.figures import CYCLE
from rpsp.experiments.files import Say
from rpsp.experiments.resolve import read_config
from rpsp.training.actions import ActionRange
from rpsp.training.rollouts import ACTING

Picture = UInt8[np.ndarray, "_ _ 3"]

HEIGHT, SCENE, PLOTS = 576, 576, 704
"""Pixels; multiples of 16, as encoders want them."""
PAST, HORIZON = 40, 15
"""Steps shown before and after the present."""
AHEAD = 10
"""Steps from the present to the ghost."""
MOST_FRAMES = 300
MOST_PLOTS = 6


@compilation_cached()
def watch(
    directory: Path,
    checkpoint: str = "last",
    seed: int = 0,
    steps: int = 500,
    format: str = "mp4",
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """`rpsp watch`: the first episode of `rpsp eval` with the same seed, under DIR/video/."""
    if steps < 1:
        raise UsageError(f"steps: {steps} is not a whole number ≥ 1.")
    agent = load(directory, int(checkpoint) if checkpoint.isdecimal() else checkpoint, say=say)
    config = read_config(directory)
    if format == "mp4" and encoder() is None:
        format = "gif"
        say("no ffmpeg was found, so this becomes a gif; for mp4: pip install imageio-ffmpeg")
    say(f"playing and rendering at most {steps} steps of {config.env}")
    episode = play(agent, seed, steps)
    if episode.scenes is None:
        say(f"{config.env} has no picture of itself (no render mode rgb_array): only what is observed is drawn")
    path = directory / "video" / f"{agent.checkpoint:06d}-seed{seed}.{format}"
    frames = pictures(episode, title=f"{config.env}, {config.method}, iteration {agent.checkpoint}")
    write_video(path, frames, episode.frames_per_second)
    return {
        "video": str(path),
        "return": float(episode.rewards.sum()),
        "steps": len(episode.rewards),
        "frames": len(episode.shown),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Playing
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Watched:
    """An episode with everything there is to draw."""

    observations: Float[np.ndarray, "steps_1 obs"]
    """In the environment's units; symbols as one-hot vectors."""
    forecasts: Float[np.ndarray, "steps horizon obs"]
    """What the belief expects, at every step, of the observations after it."""
    rewards: Float[np.ndarray, " steps"]
    shown: range
    """The steps that become frames."""
    scenes: list[Picture] | None
    """The environment at these steps, with the ghost where there is one; None if it cannot be rendered."""
    caption: str
    """What the ghost is; empty where there is none."""
    limits: Float[np.ndarray, "obs 2"]
    """The range of values that is drawn of every coordinate."""
    names: list[str]
    """Of the coordinates."""
    frames_per_second: float


def play(agent: TrainedAgent, seed: int = 0, steps: int = 500) -> Watched:
    """One deterministic episode, rendered where that can be done."""
    envs, renders = _environment(agent)
    numbers = np.random.SeedSequence(seed, spawn_key=(ACTING, EVALUATING, 1, 0)).generate_state(1)
    readings, states, rewards, scenes = [], [], [], []
    state, every, ended = None, 1, False
    ghost = Ghost.of(envs) if renders else None
    try:
        reading, _ = envs.reset(seed=[int(numbers[0])])
        while not ended and len(rewards) < steps:
            if renders and len(rewards) % every == 0:
                scenes.append((_rendered(envs), None if ghost is None else ghost.present()))
            readings.append(reading)
            action, state = agent.predict(reading, state, episode_start=state is None)
            states.append(state)
            reading, reward, terminated, truncated, _ = envs.step(action)
            ended = bool(terminated[0] or truncated[0])
            rewards.append(float(reward[0]))
            if len(rewards) > every * MOST_FRAMES:  # of long episodes, every second frame, then every fourth, …
                every, scenes = 2 * every, scenes[::2]
        shown = range(0, len(rewards), every)
        forecasts = agent.scaling.decode(_forecasts(agent, states))
        if ghost is not None:
            scenes = [ghost.over(*scene, forecasts[step]) for scene, step in zip(scenes, shown, strict=True)]
        else:
            scenes = [picture for picture, _ in scenes]
    finally:
        envs.close()
    observations = np.concatenate([*readings, reading]).astype(np.float64) - agent.first
    if isinstance(agent.scaling, OneHot):
        observations = agent.scaling.encode(observations)
        word, least = "symbol", 1.0
    else:
        word, least = "observation", 0.1 * agent.scaling.scale  # what hardly moves shall not look as if it did
    low, high = observations.min(axis=0), observations.max(axis=0)
    margin = np.maximum(0.15 * (high - low), (least - (high - low)) / 2) + 1e-12
    real_time = float(envs.metadata.get("render_fps") or 30) / every
    return Watched(
        observations=observations,
        forecasts=forecasts,
        rewards=np.array(rewards),
        shown=shown,
        scenes=scenes if renders else None,
        caption="" if ghost is None else ghost.caption,
        limits=np.stack([low - margin, high + margin], axis=1),
        names=[f"{word} {i + agent.first}" for i in range(observations.shape[1])],
        frames_per_second=min(30.0, max(5.0, real_time)),
    )


def _environment(agent: TrainedAgent) -> tuple[Any, bool]:
    """One environment, and whether it can be rendered."""
    if agent.make_envs is None:
        raise UsageError("watch: this agent was trained in an environment made by a function, which no file can keep.")
    try:
        envs = agent.environments(1)
    except AttributeError as error:  # how PyOpenGL says that a library is missing, when mujoco is imported
        raise _unrendered("the environment", error) from error
    if "rgb_array" not in (envs.metadata.get("render_modes") or ()):
        return envs, False
    envs.close()
    envs = agent.environments(1, render_mode="rgb_array")
    _follow(envs.unwrapped.envs[0].unwrapped)
    return envs, True


def _follow(env: Any) -> None:
    """Let the camera go with the robot where there is one that can: Gymnasium's own stands still, and runners leave it."""
    if (renderer := getattr(env, "mujoco_renderer", None)) is not None:
        camera = mujoco.mj_name2id(env.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
        renderer.camera_id = None if camera < 0 else camera


def _rendered(envs: Any) -> Picture:
    try:
        return np.asarray(envs.render()[0], np.uint8)[..., :3]
    except Exception as error:  # of OpenGL, of its loader, of a missing package: every back end has its own
        raise _unrendered("the environment" if envs.spec is None else envs.spec.id, error) from error


class Ghost:
    """The robot as the belief expects it to be in a while, drawn translucently over the scene of the present.

    Of MuJoCo's environments whose observations begin with positions, some of which the agent sees. It is rendered once the
    episode is over, by the simulation that has played it.
    """

    def __init__(self, envs: Any, env: Any, places: list[tuple[int, int]], late: int):
        self.envs, self.model, self.data, self.ahead = envs, env.model, env.data, AHEAD + late
        self.columns, self.joints = (list(numbers) for numbers in zip(*places, strict=True))
        self.unseen = [joint for joint in range(self.model.nq) if joint not in self.joints]
        self.glides = self.model.nq == self.model.nv  # else positions have no speeds of their own (quaternions)
        self.seconds = AHEAD * env.dt
        self.body = self.model.geom_bodyid > 0
        self.caption = f"blue: where the belief expects it {self.seconds:.2g} s from now"
        if self.unseen:
            self.caption += "\n(positions that it does not see " + ("go on as they move)" if self.glides else "stay)")

    @staticmethod
    def of(envs: Any) -> Ghost | None:
        """The ghost of these environments; None where their observations do not tell where the robot is."""
        env = envs.unwrapped.envs[0].unwrapped
        structure = getattr(env, "observation_structure", None) or {}
        skipped, seen = structure.get("skipped_qpos", 0), structure.get("qpos", 0)
        if not hasattr(env, "model") or skipped + seen != env.model.nq:
            return None
        indices, late = sensors(envs)
        indices = range(seen) if indices is None else indices
        places = [(column, skipped + index) for column, index in enumerate(indices) if index < seen]
        return Ghost(envs, env, places, late) if places and AHEAD + late <= HORIZON else None

    def present(self) -> dict[str, np.ndarray]:
        """Where the robot is, how it moves, and where it is looked at from."""
        return {name: getattr(self.data, name).copy() for name in ("qpos", "qvel", *self.LOOKS)}

    LOOKS = "cam_xpos", "cam_xmat", "light_xpos", "light_xdir"

    def over(
        self, scene: Picture, present: dict[str, np.ndarray], forecast: Float[np.ndarray, "horizon obs"]
    ) -> Picture:
        """A scene of the past, and over it the ghost of what was then expected; without it if that was not finite."""
        expected = present["qpos"].copy()
        if self.glides:
            expected[self.unseen] += self.seconds * present["qvel"][self.unseen]
        expected[self.joints] = forecast[self.ahead - 1, self.columns]
        if not np.isfinite(expected).all():
            return scene
        self.data.qpos[:] = expected
        mujoco.mj_forward(self.model, self.data)
        for name in self.LOOKS:  # the camera follows the robot; the ghost is seen from where the robot was
            getattr(self.data, name)[:] = present[name]
        self.model.geom_matid[self.body] = -1
        self.model.geom_rgba[self.body, :3] = 0.4 * np.array(to_rgb(CYCLE[0])) + 0.6
        ghost, nobody = (self._drawn(opacity).astype(float) for opacity in (1.0, 0.0))
        is_ghost, is_robot = ((np.abs(one - nobody) > 8).any(axis=2, keepdims=True) for one in (ghost, scene))
        opacity = np.where(is_robot, 0.2, 0.7) * is_ghost
        return ((1 - opacity) * scene + opacity * ghost).astype(np.uint8)

    def _drawn(self, opacity: float) -> Picture:
        self.model.geom_rgba[self.body, 3] = opacity
        return _rendered(self.envs)


def _unrendered(name: str, error: Exception) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"{name} cannot be rendered here ({type(error).__name__}: {error}); if it is OpenGL that is missing, on Debian: "
        "apt-get install libegl1 (`rpsp doctor` tells)."
    )


def _forecasts(agent: TrainedAgent, states: list[Any]) -> Float[np.ndarray, "steps horizon obs"]:
    """What the belief expects of the next steps, at each of these states, if the policy goes on as it would."""
    units = agent.units
    low, high = (units.low, units.high) if isinstance(units, ActionRange) else (-np.inf, np.inf)
    q, executed = (np.concatenate([getattr(state, name) for state in states]) for name in ("q", "executed"))
    return np.asarray(_imagine(agent.agent, q, executed, jnp.asarray(low), jnp.asarray(high)), np.float64)


@eqx.filter_jit
def _imagine(
    agent: Agent, q: Float[Numbers, "n q"], actions: Float[Numbers, "n act"], low: Array, high: Array
) -> Float[Array, "n horizon obs"]:
    """Every expected observation is filtered in as if it had been seen, and answered by the most probable action."""

    def advance(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        q, action = carry
        expected = agent.filter.predict(q, action)
        q = agent.filter.update(q, action, expected)
        return (q, jnp.clip(agent.policy(q).mode(), low, high)), expected

    return jax.vmap(lambda q, action: jax.lax.scan(advance, (q, action), length=HORIZON)[1])(
        jnp.asarray(q), jnp.asarray(actions)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Drawing
# ---------------------------------------------------------------------------------------------------------------------


def pictures(episode: Watched, title: str = "") -> Iterator[Picture]:
    """The frames of the video, one after another."""
    plots = Plots(episode, title)
    for i, step in enumerate(episode.shown):
        drawn = plots.at(step)
        if episode.scenes is not None:
            drawn = np.concatenate([_fitted(episode.scenes[i], episode.caption), drawn], axis=1)
        yield drawn


class Plots:
    """What was observed and what is expected, around a present that stands still.

    Everything that does not move is drawn once; a frame is that with the lines drawn over it.
    """

    def __init__(self, episode: Watched, title: str = ""):
        self.episode = episode
        self.returns = np.concatenate([[0.0], np.cumsum(episode.rewards)])
        spread = episode.observations.std(axis=0) / np.ptp(episode.limits, axis=1)
        self.dims = sorted(np.argsort(-spread, kind="stable")[:MOST_PLOTS].tolist())
        columns = 1 if len(self.dims) <= 4 else 2
        rows = -(-len(self.dims) // columns)
        self.figure = Figure(figsize=(PLOTS / 100, HEIGHT / 100), dpi=100)
        self.figure.set_layout_engine("none")
        self.canvas = FigureCanvasAgg(self.figure)
        margins = {"left": 0.095, "bottom": 0.085, "right": 0.97, "top": 0.83, "wspace": 0.22}
        grid = self.figure.add_gridspec(rows, columns, **margins, hspace=0.22 + 0.06 * rows)
        self.lines = []
        for place, dim in enumerate(self.dims):
            column, row = divmod(place, rows)
            axes = self.figure.add_subplot(grid[row, column])
            self.lines.append(self._axes(axes, dim))
            lowest = row == rows - 1 or dim == self.dims[-1]
            axes.tick_params(labelbottom=lowest)
            axes.set_xlabel("steps from now" if lowest else "", fontsize=9, color="0.3")
        self.figure.text(0.02, 0.965, title, fontsize=12, fontweight="bold", va="center")
        self.clock = self.figure.text(0.97, 0.91, "", fontsize=11, ha="right", va="center", animated=True)
        seen, ghost, after = self.lines[0][0], self.lines[0][2], self.lines[0][3]
        self.figure.legend(
            [seen, ghost, after],
            ["observed", "what the belief expects", "what then came"],
            loc="center left",
            bbox_to_anchor=(0.01, 0.91),
            ncols=3,
            fontsize=9.5,
            frameon=False,
            handlelength=1.6,
            columnspacing=1.4,
        )
        self.canvas.draw()
        self.still = self.canvas.copy_from_bbox(self.figure.bbox)

    def _axes(self, axes: Any, dim: int) -> list[Any]:
        axes.set_xlim(-PAST, HORIZON + 0.5)
        axes.set_ylim(*self.episode.limits[dim])
        axes.axvspan(0, HORIZON + 0.5, color=CYCLE[0], alpha=0.06, lw=0)
        axes.axvline(0, color="0.65", lw=1)
        axes.set_xticks([*range(-PAST, 1, 10), HORIZON])
        axes.set_xticklabels([*map(str, range(-PAST, 0, 10)), "now", f"+{HORIZON}"])
        axes.locator_params(axis="y", nbins=4)
        axes.tick_params(labelsize=8, colors="0.35", length=2)
        axes.grid(axis="y", alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("0.75")
        axes.set_title(self.episode.names[dim], fontsize=9.5, loc="left", pad=3, color="0.2")
        seen = axes.plot([], [], color="0.1", lw=1.8, animated=True)[0]
        halo = axes.plot([], [], color=CYCLE[0], lw=8, alpha=0.16, solid_capstyle="round", animated=True)[0]
        ghost = axes.plot([], [], color=CYCLE[0], lw=2, marker="o", ms=3, animated=True)[0]
        after = axes.plot([], [], color="0.1", lw=1.1, ls=(0, (2, 2)), alpha=0.55, animated=True)[0]
        now = axes.plot([], [], "o", color=CYCLE[1], ms=6, animated=True)[0]
        return [seen, halo, ghost, after, now]

    def at(self, step: int) -> Picture:
        """The plots at a step of the episode."""
        self.canvas.restore_region(self.still)
        observations = self.episode.observations
        first, last = max(0, step - PAST), min(len(observations), step + HORIZON + 1)
        for dim, (seen, halo, ghost, after, now) in zip(self.dims, self.lines, strict=True):
            seen.set_data(np.arange(first, step + 1) - step, observations[first : step + 1, dim])
            low, high = self.episode.limits[dim]
            far = 3 * (high - low)  # a belief that runs away leaves the plot; where to, does not matter
            expected = np.clip(self.episode.forecasts[step, :, dim], low - far, high + far)
            expected = np.append(observations[step, dim], expected)
            halo.set_data(np.arange(HORIZON + 1), expected)
            ghost.set_data(np.arange(1, HORIZON + 1), expected[1:])
            after.set_data(np.arange(last - step), observations[step:last, dim])
            now.set_data([0], observations[step : step + 1, dim])
            for line in (halo, ghost, after, seen, now):
                line.axes.draw_artist(line)
        self.clock.set_text(f"step {step}    return {self.returns[step]:.1f}")
        self.figure.draw_artist(self.clock)
        return np.asarray(self.canvas.buffer_rgba())[..., :3].copy()


def _fitted(scene: Picture, caption: str = "") -> Picture:
    """A scene as large as its place, on white, with words above."""
    factor = min(SCENE / scene.shape[1], HEIGHT / scene.shape[0])
    size = round(scene.shape[1] * factor), round(scene.shape[0] * factor)
    place = Image.new("RGB", (SCENE, HEIGHT), "white")
    place.paste(Image.fromarray(scene).resize(size), ((SCENE - size[0]) // 2, (HEIGHT - size[1]) // 2))
    if caption:
        font = ImageFont.truetype(findfont("DejaVu Sans"), 20)  # a gif is half as large
        ImageDraw.Draw(place).text((14, 10), caption, "white", font, stroke_width=2, stroke_fill="black")
    return np.asarray(place)


# ---------------------------------------------------------------------------------------------------------------------
# Writing
# ---------------------------------------------------------------------------------------------------------------------


def encoder() -> str | None:
    """The ffmpeg of imageio-ffmpeg or of the system; None if there is neither."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe  # optional extra # pyright: ignore[reportMissingImports]

        return get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return shutil.which("ffmpeg")


def write_video(path: Path, frames: Iterable[Picture], frames_per_second: float) -> None:
    """An mp4 or a gif, by the ending of its name; in place only when it is whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            temporary = Path(folder) / path.name
            (_write_gif if path.suffix == ".gif" else _write_mp4)(temporary, frames, frames_per_second)
            temporary.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: could not be written ({error.strerror or error}).") from error


def _write_gif(path: Path, frames: Iterable[Picture], frames_per_second: float) -> None:
    # Half as large and of few colours: a gif does not compress.
    images = (Image.fromarray(f).reduce(2).quantize(128, method=Image.Quantize.FASTOCTREE) for f in frames)
    first = next(images)
    first.save(path, save_all=True, append_images=images, duration=round(1000 / frames_per_second), loop=0)


def _write_mp4(path: Path, frames: Iterable[Picture], frames_per_second: float) -> None:
    program = encoder()
    if program is None:
        raise UsageError("format: no ffmpeg was found to write mp4 with; pip install imageio-ffmpeg, or choose gif.")
    frames = iter(frames)
    first = next(frames)
    height, width, _ = first.shape
    command = [program, "-loglevel", "error", "-y"]
    command += [
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-s",
        f"{width}x{height}",
        "-r",
        f"{frames_per_second:g}",
        "-i",
        "-",
    ]
    command += ["-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stderr is not None
    try:
        for frame in itertools.chain([first], frames):
            process.stdin.write(frame.tobytes())
        process.stdin.close()
        complaint = process.stderr.read().decode(errors="replace").strip()
        if process.wait():
            raise StorageError(f"{path}: ffmpeg failed ({complaint}).")
    finally:
        process.kill()
        process.wait()
