"""Commands run in processes of their own, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from processes import TINY

import rpsp
from rpsp.cli import main
from rpsp.experiments.finished_runs import Run


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; it must succeed."""
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        # Programs that one command has compiled serve the next; and quickly rather than well, because runs are short.
        "JAX_COMPILATION_CACHE_DIR": str(cwd / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    }
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, capture_output=True, encoding="utf8")
    assert done.returncode == 0, done.stderr
    return done.stdout


def cli(*arguments: str) -> int:
    """The exit code of `rpsp …`, in this process."""
    try:
        main(list(arguments))
    except SystemExit as exit:
        return int(exit.code or 0)
    return 0


def trained(out: Path, iterations: int = 3, method: str = "fm2", env: Any = "tasks:Drift-v0", **settings: Any) -> Run:
    return rpsp.train(env, method, out=out, iterations=iterations, verbose=False, **(TINY | settings))


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file and when it was written, the lock apart."""
    return {
        str(p): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in sorted(directory.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }
