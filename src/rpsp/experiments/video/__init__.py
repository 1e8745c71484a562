"""Part of the split of a larger module."""

from rpsp.experiments.video.files import encoder, write_video
from rpsp.experiments.video.frames import Plots, Watched, pictures
from rpsp.experiments.video.ghost import Ghost
from rpsp.experiments.video.playing import play, watch

__all__ = [
    "Ghost",
    "Plots",
    "Watched",
    "encoder",
    "pictures",
    "play",
    "watch",
    "write_video",
]
