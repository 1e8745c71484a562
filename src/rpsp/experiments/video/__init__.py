"""Videos of episodes: the rendered scene with a ghost at the predicted pose, and plots of the forecasts.

- `playing`: plays an episode with a trained agent; `rpsp watch`.
- `ghost`: rendering, and the ghost over the scene.
- `frames`: plots of observations and forecasts, and the frames of the video.
- `files`: encoding as mp4 or gif.
"""

from rpsp.experiments.video.files import encoder, write_video
from rpsp.experiments.video.frames import Plots, Watched, pictures
from rpsp.experiments.video.ghost import Ghost
from rpsp.experiments.video.playing import film, play, watch

__all__ = [
    "Ghost",
    "Plots",
    "Watched",
    "encoder",
    "film",
    "pictures",
    "play",
    "watch",
    "write_video",
]
