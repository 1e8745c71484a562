"""What works where file locks, POSIX signals or the calls of Linux are missing, and what is said about the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_POSIX = """
import signal, sys
sys.modules["fcntl"] = None
for name in ("setitimer", "getitimer", "SIGVTALRM", "SIGTSTP", "pthread_kill", "pthread_sigmask"):
    vars(signal).pop(name, None)
"""
MODEL = """
import numpy as np
import rpsp
rng = np.random.default_rng(0)
episodes = [(np.cumsum(rng.normal(size=(30, 1)), axis=0), rng.normal(size=(29, 1))) for _ in range(12)]
model = rpsp.PredictiveStateModel("inference", past=2, future=2).fit(episodes)
model.save("model.safetensors")
found = rpsp.PredictiveStateModel.load("model.safetensors").predict(*episodes[0])
assert np.isfinite(found).all()
rpsp.save_episodes("episodes.npz", model and [rpsp.Episode(o, a, np.zeros(len(a))) for o, a in episodes])
try:
    rpsp.train
except rpsp.errors.UsageError as error:
    print(error)
"""
WITHOUT_LINUX = """
import os
for name in ("sched_getaffinity", "sched_setaffinity", "posix_fadvise"):
    vars(os).pop(name, None)
"""


def python(code: str, cwd: Path) -> str:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, encoding="utf8", timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_models_work_without_locks_and_signals_and_training_says_why_not(tmp_path: Path) -> None:
    printed = python(WITHOUT_POSIX + MODEL, tmp_path)
    assert re.fullmatch(
        r"platform: this Python has no fcntl, which locks run directories; use Linux or macOS\.\n", printed
    )


@pytest.mark.slow
def test_training_works_without_the_calls_of_linux(tmp_path: Path) -> None:
    words = ["train", "InvertedPendulum-v5", "--method=fm2", "--iterations=1", "--samples=200", "--out=run", "--quiet"]
    words += ["--exploration-episodes=5"]
    python(f"{WITHOUT_LINUX}from rpsp.cli import main; main({words!r})", tmp_path)
    assert (tmp_path / "run" / "results.json").exists()


def test_rpsp_is_imported_without_its_dependencies(tmp_path: Path) -> None:
    """That keeps it below a tenth of a second: 0.02 s on a quiet machine."""
    code = (
        "import sys, rpsp; print(*sorted(m for m in ('numpy', 'jax', 'gymnasium', 'matplotlib') if m in sys.modules))"
    )
    assert python(code, tmp_path).strip() == ""


def test_the_project_says_how_to_cite_it_and_names_no_host_of_its_makers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {project['version']}\n" in citation and f"license: {project['license']}\n" in citation
    assert set(project["urls"].values()) == {"https://arxiv.org/abs/1803.01489"} and "1803.01489" in citation
