"""Part of the split of a larger module."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

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
    """The ffmpeg of imageio-ffmpeg or of the system; None if there is neither."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe  # pyright: ignore[reportMissingImports]

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
