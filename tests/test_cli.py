"""The door: commands, what they print, what they leave, and the exit code of every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest

import rpsp
from rpsp.cli import main


def run(*arguments: str) -> int:
    """The exit code of `rpsp …`, in this process."""
    try:
        main(list(arguments))
    except SystemExit as exit:
        return int(exit.code or 0)
    return 0


@pytest.fixture
def recording(tmp_path):
    rng = np.random.default_rng(0)
    episodes = [(rng.standard_normal((31, 2)).cumsum(axis=0), rng.standard_normal((30, 1))) for _ in range(10)]
    rpsp.save_episodes(tmp_path / "data.npz", episodes)
    return str(tmp_path / "data.npz")


def test_fit_environment_then_inspect(tmp_path, capsys):
    out = tmp_path / "run"
    assert run("fit", "InvertedPendulum-v5", "--samples", "400", "--out", str(out), "--json") == 0
    printed = capsys.readouterr().out
    results = json.loads(printed.splitlines()[-1])
    assert list(results["errors"]) == ["inference", "linear AR(10)", "persistence", "mean"]
    assert "persistence" in printed and "explored InvertedPendulum-v5" in printed
    names = {path.name for path in out.iterdir()}
    assert names == {"config.json", "command.txt", "versions.json", "episodes.npz", "model.safetensors", "results.json"}
    assert json.loads((out / "config.json").read_text())["source"] == "InvertedPendulum-v5"
    assert run("inspect", str(out), "--json", "--quiet") == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert len(figures) == 3 and all(
        (out / "figures").joinpath(f.split("/")[-1]).stat().st_size > 5000 for f in figures
    )


def test_fit_recording(recording, tmp_path, capsys):
    assert run("fit", recording, "--past", "3", "--out", str(tmp_path / "run"), "--quiet") == 0
    assert capsys.readouterr().out == ""
    model = rpsp.PredictiveStateModel.load(tmp_path / "run" / "model.safetensors")
    assert model.settings.past == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["fit", "Hoper-v5"], 2, "Hopper-v5"),
        (["fit", "missing.npz"], 3, "no such file"),
        (["fit", "InvertedPendulum-v5", "--observe", "9"], 2, "9"),
        (["fit", "InvertedPendulum-v5", "--dropout", "1.5"], 2, "dropout"),
        (["fit", "InvertedPendulum-v5", "--samples", "0"], 2, "samples"),
        (["fit", "InvertedPendulum-v5", "--past", "0"], 2, "past"),
        (["fit", "DATA", "--obs-noise", "0.1"], 2, "environments only"),
        (["inspect", "nowhere"], 3, "rpsp fit"),
    ],
)
def test_mistakes(arguments, code, words, recording, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    arguments = [recording if a == "DATA" else a for a in arguments]
    assert run(*arguments) == code
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error and len(error.splitlines()) <= 5
    assert sorted(tmp_path.rglob("*")) == before, "a mistake must leave nothing behind"


def test_unknown_flags_and_kinds_are_usage_errors(capsys):
    assert run("fit", "InvertedPendulum-v5", "--kinds", "gru") == 2
    assert run("fit", "InvertedPendulum-v5", "--kind", "gruu") == 2
    assert run("train-everything") == 2


def test_an_existing_directory_is_left_alone(recording, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("data")
    assert run("fit", recording, "--out", str(tmp_path / "run")) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["precious"]


def test_doctor(capsys):
    assert run("doctor", "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(report) == {"versions", "machine", "rendering", "extras"}
    assert report["versions"]["numpy"] == np.__version__


def test_help_comes_at_once():
    """Without jax, matplotlib or gymnasium; the best of three, for other things run on this machine."""
    code = "import sys, rpsp.cli; assert not {'jax', 'matplotlib', 'gymnasium', 'mujoco'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "rpsp.cli", "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    assert min(times) < 1.0
