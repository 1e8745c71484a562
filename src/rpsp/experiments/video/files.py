"""Write videos as mp4 or gif."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from rpsp.errors import StorageError, UsageError
from rpsp.experiments.video.frames import Picture


def encoder() -> str | None:
    """Return the path of ffmpeg, from imageio-ffmpeg or the system; None if there is neither."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe  # optional extra # pyright: ignore[reportMissingImports]

        return get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return shutil.which("ffmpeg")


def write_video(path: Path, frames: Iterable[Picture], frames_per_second: float) -> None:
    """Write an mp4 or a gif, depending on the suffix. The file appears only when it is complete.

    Args:
        path: path of the video.
        frames: RGB images of equal size.
        frames_per_second: speed of the video.

    Raises:
        StorageError: if the file could not be written, or if ffmpeg failed.
        UsageError: if there is no ffmpeg to write an mp4.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            temporary = Path(folder) / path.name
            (_write_gif if path.suffix == ".gif" else _write_mp4)(temporary, frames, frames_per_second)
            temporary.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: could not be written ({error.strerror or error}).") from error


def _write_gif(path: Path, frames: Iterable[Picture], frames_per_second: float) -> None:
    """Write a gif at half size and with 128 colours, because gif compresses poorly."""
    images = (Image.fromarray(f).reduce(2).quantize(128, method=Image.Quantize.FASTOCTREE) for f in frames)
    first = next(images)
    first.save(path, save_all=True, append_images=images, duration=round(1000 / frames_per_second), loop=0)


def _write_mp4(path: Path, frames: Iterable[Picture], frames_per_second: float) -> None:
    """Write an mp4 with ffmpeg."""
    program = encoder()
    if program is None:
        raise UsageError(
            "format: ffmpeg, which is needed to write mp4, was not found; pip install imageio-ffmpeg, or choose gif."
        )
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
