"""Videos during training."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from rpsp.errors import UsageError
from rpsp.experiments.callbacks.base import Answer, Callback, RunState


class Video(Callback):
    """Make a video of an episode every few iterations, as `rpsp watch` does, in `video/` of the run directory.

    The training waits for the video, which takes about as long as `rpsp watch`. Its time is in the metric `video_seconds`.

    Args:
        every: number of iterations between two videos.
        steps: maximum number of steps of a video.
        format: "mp4" or "gif". Without ffmpeg, "mp4" becomes "gif".
        seed: seed of the episode. It is the same episode in every video.
    """

    def __init__(self, every: int = 50, *, steps: int = 500, format: str = "mp4", seed: int = 0):
        for name, value in (("every", every), ("steps", steps)):
            if value < 1:
                raise UsageError(f"{name}: {value} is not a whole number ≥ 1.")
        if format not in ("mp4", "gif"):
            raise UsageError(f"format: {format!r} is not one of mp4, gif.")
        self.every, self.steps, self.format, self.seed = every, steps, format, seed
        if sys.platform == "linux" and "mujoco" not in sys.modules and find_spec("mujoco"):
            os.environ.setdefault("MUJOCO_GL", "egl")  # before mujoco is imported: renders without a screen

    def on_iteration(self, run: RunState) -> Answer:
        """Make the video if it is time."""
        if run.iteration % self.every == 0:
            from rpsp.experiments.video import film  # start-up time: it imports matplotlib and mujoco's renderer

            made = film(
                run.agent,
                run.directory / "video",
                f"{run.settings['env']}, {run.settings['method']}",
                self.seed,
                self.steps,
                self.format,
            )
            run.log(video_seconds=made["seconds"])
