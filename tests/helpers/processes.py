"""Commands in processes of their own, to be killed and interrupted, and what their runs leave to be compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from rpsp.experiments.run_directory import RunDirectory

TINY: dict[str, int] = {"samples": 60, "exploration_episodes": 8, "num_envs": 3, "threads": 1}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]

PATH = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
"""Where other processes find `tasks`."""

# A test run in the background of a script inherits an ignored SIGINT.
COMMAND = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from rpsp.cli import main; main()"


def spawn(cache: Path, *arguments: str, code: str = COMMAND, **more: str) -> subprocess.Popen:
    """`rpsp …` in another process; `cache` is where processes share what they have compiled."""
    environment = os.environ | {
        "PYTHONPATH": PATH,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def at_checkpoint(process: subprocess.Popen, directory: Path, number: int, patience: float = 200.0) -> None:
    """Wait until a process has written this checkpoint, or is gone."""
    deadline = time.monotonic() + patience
    while process.poll() is None and not (RunDirectory(directory).numbers() or [-1])[-1] >= number:
        assert time.monotonic() < deadline, f"checkpoint {number} never came"
        time.sleep(0.002)


def metrics(directory: Path) -> list[str]:
    """The lines of metrics without what is measured by the clock, to be compared as text."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timed = re.compile(r'"\w+(_seconds|_per_second)": [^,}]+')
    return [timed.sub("", line) for line in lines]


def checkpoints(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.glob("checkpoints/*/*"))}
