"""The door: commands, what they print, what they leave, and the exit code of every mistake."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import rpsp
from rpsp.cli import COMMANDS, main
from rpsp.cli.entry import HANDLERS
from rpsp.errors import UsageError


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
    assert json.loads((out / "config.json").read_text(encoding="utf-8"))["source"] == "InvertedPendulum-v5"
    assert run("inspect", str(out), "--json", "--quiet") == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert len(figures) == 5 and all(  # also calibration, and surprise over time
        (out / "figures").joinpath(f.split("/")[-1]).stat().st_size > 5000 for f in figures
    )


def test_fit_recording(recording, tmp_path, capsys):
    assert run("fit", recording, "--past", "3", "--out", str(tmp_path / "run"), "--quiet") == 0
    assert capsys.readouterr().out == ""
    model = rpsp.PredictiveStateModel.load(tmp_path / "run" / "model.safetensors")
    assert model.kind == "inference" and model.belief.past == 3


@pytest.fixture(scope="module")
def spring(tmp_path_factory):
    """A log of a mass on a spring in ten episodes; the last one ends with commands whose results are not known."""
    rng, lines = np.random.default_rng(0), ["run,position,push"]
    for number in range(10):
        x, v = rng.normal(size=2)
        for step in range(40):
            push = rng.uniform(-1, 1)
            unknown = number == 9 and step > 30
            lines.append(f"{number},{'' if unknown else round(x + 0.02 * rng.normal(), 4)},{push:.3f}")
            v += 0.1 * (push - x - 0.1 * v)
            x += 0.1 * v
    path = tmp_path_factory.mktemp("log") / "spring.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_fit_log_then_forecast(spring, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    columns = ("--observations", "position", "--actions", "push", "--episode", "run")
    small = ("--bumps", "20", "--rounds", "1", "--past", "5", "--future", "3")
    assert run("fit", str(spring), *columns, *small, "--out", "run") == 0
    printed = capsys.readouterr().out
    assert "read 390 steps in 10 episodes" in printed and "some cells are empty" in printed
    model = rpsp.PredictiveStateModel.load("run/model.safetensors")
    assert model.missing == "nan"
    assert run("inspect", "run", "--quiet") == 0
    assert run("forecast", "run", str(spring), "--horizon", "5", "--json") == 0  # the columns are those of the fit
    results = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert results["rows"] == 9 * 5 + 9 and 0.7 <= results["in_bands"] <= 1 and Path(results["figure"]).exists()
    with open("spring-forecast.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["row"] for r in rows[:5]] == ["36", "37", "38", "39", "40"] and all(r["read"] for r in rows[:45])
    last = rows[45:]
    assert [int(r["row"]) for r in last] == list(range(392, 401)) and not any(r["read"] for r in last)
    segment = rpsp.read_log(spring, observations="position", actions="push", episode="run").segments[-1]
    mean, std = model.forecast(segment.observations[:31], segment.actions[:30], segment.actions[30:-1], return_std=True)
    np.testing.assert_allclose([float(r["forecast"]) for r in last], mean[:, 0], rtol=1e-6)
    np.testing.assert_allclose([float(r["std"]) for r in last], std[:, 0], rtol=1e-6)
    assert all(float(r["low"]) < float(r["forecast"]) < float(r["high"]) for r in rows)
    before = Path("spring-forecast.csv").read_bytes()
    assert run("forecast", "run", str(spring)) == 5 and "exists already" in capsys.readouterr().err
    assert run("forecast", "run", str(spring), "--out", "c.csv", "--level", "1") == 2
    assert "between 0 and 1" in capsys.readouterr().err and not Path("c.csv").exists()
    assert Path("spring-forecast.csv").read_bytes() == before


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
        (["fit", "DATA", "--observations", "a"], 2, "logs only"),
        (["fit", "InvertedPendulum-v5", "--actions", "a"], 2, "--observe"),
        (["fit", "missing.csv", "--observations", "a"], 2, "actions: are not named"),
        (["fit", "missing.csv", "--observations", "a", "--actions", "b"], 3, "no such file"),
        (["forecast", "missing", "log.csv"], 3, "missing"),
        (["forecast", "missing", "log.csv", "--out", "table.txt"], 2, ".csv"),
        (["inspect", "nowhere"], 3, "rpsp fit"),
        (["eval", "nowhere"], 3, "nowhere: is not a directory"),
        (["train", "CartPole-v1", "--method", "RPSI-TRPO"], 2, "did you mean 'rpsi-trpo'"),
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


@pytest.mark.parametrize("more", [[], ["--help"], ["CartPole-v1"]])
@pytest.mark.parametrize(
    ("name", "hint"), [("trian", " (did you mean 'train'?)"), ("evaluate", " (did you mean 'eval'?)"), ("zz", "")]
)
def test_an_unknown_command_is_named(name, hint, more, capsys):
    assert run(name, *more) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"rpsp: there is no command {name!r}{hint}; the commands are train, resume, ")
    assert len(printed.err.splitlines()) == 1


def test_an_existing_directory_is_left_alone(recording, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("data", encoding="utf-8")
    assert run("fit", recording, "--out", str(tmp_path / "run")) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["precious"]


def test_doctor(capsys):
    assert run("doctor", "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(report) == {"versions", "machine", "rendering", "extras"}
    assert report["versions"]["numpy"] == np.__version__


def test_help_and_version_by_any_name(capsys):
    printed = []
    for arguments in ([], ["help"], ["--help"]):
        assert run(*arguments) == 0
        printed.append(capsys.readouterr().out)
    assert len(set(printed)) == 1 and "train" in printed[0]
    for arguments in (["help", "eval"], ["eval", "--help"]):
        assert run(*arguments) == 0
        printed.append(capsys.readouterr().out)
    assert printed[-1] == printed[-2] != printed[0]
    assert run("--version") == 0
    assert capsys.readouterr().out == f"rpsp {version('rpsp')}\n"


def test_an_interruption_that_an_import_turned_into_another_error_is_one(monkeypatch, capsys):
    def examine():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise ImportError("the extension could not be initialised") from None

    monkeypatch.setattr("rpsp.experiments.doctor.examine", examine)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert run("doctor") == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err.startswith("rpsp: interrupted")


def test_every_command_has_a_handler():
    assert set(HANDLERS) == set(COMMANDS.values()) and len(set(HANDLERS.values())) == len(COMMANDS)


UTF8 = os.environ | {"PYTHONIOENCODING": "utf-8"}
"""`main` leaves the streams of a program that calls it alone."""


def test_help_comes_at_once():
    """Without jax, matplotlib or gymnasium; the best of three, for other things run on this machine."""
    code = (
        "import atexit, sys, rpsp.cli; heavy = {'jax', 'matplotlib', 'gymnasium', 'mujoco'}; "
        "atexit.register(lambda: print('found', heavy & set(sys.modules), file=sys.stderr)); rpsp.cli.main(['--help'])"
    )
    shown = subprocess.run([sys.executable, "-c", code], env=UTF8, check=True, capture_output=True, encoding="utf-8")
    assert shown.stderr == "found set()\n" and "train" in shown.stdout
    times = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "rpsp.cli", "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    assert min(times) < 4.0  # 0.3 s on a quiet machine; what keeps it quick is asserted above


def test_windows_is_refused_in_one_sentence(monkeypatch, capsys):
    names = "rpsp.envs.watchdog", "rpsp.experiments.run_directory"
    for name in names:  # with everything that they import, which may look at the platform as well
        importlib.import_module(name)
    monkeypatch.setattr(sys, "platform", "win32")
    for name in names:  # executed again, beside the imported module
        spec = importlib.util.find_spec(name)
        with pytest.raises(UsageError, match=r"rpsp does not run on Windows.*use WSL2"):
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert run("methods") == 2
    error = capsys.readouterr().err
    assert error.startswith("rpsp: platform: rpsp does not run on Windows") and error.count("\n") == 1
    assert run("--version") == 0


def test_the_package_says_its_version_and_that_it_is_typed():
    assert rpsp.__version__ == version("rpsp") and "__version__" in dir(rpsp)
    assert sorted(rpsp.__all__) == sorted(rpsp._HOMES) and set(rpsp.__all__) <= set(dir(rpsp))
    assert all(getattr(rpsp, name) is not None for name in rpsp.__all__)
    with pytest.raises(AttributeError, match="no attribute '__versions__'"):
        rpsp.__versions__  # noqa: B018
    assert files("rpsp").joinpath("py.typed").is_file()
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["rpsp"]
    classifiers = project["project"]["classifiers"]
    assert {c for c in classifiers if c.startswith("Operating System")} == {
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
    }
    assert "Programming Language :: Python :: 3.11" in classifiers


@pytest.mark.slow
def test_the_wheel_works_elsewhere(tmp_path):
    """Built of a copy, installed apart, and run away from the repository with nothing of it in reach but dependencies."""
    root, copy, apart = Path(__file__).parents[2], tmp_path / "copy", tmp_path / "apart"
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        copy.mkdir(exist_ok=True)
        shutil.copy(root / name, copy)
    shutil.copytree(root / "src" / "rpsp", copy / "src" / "rpsp", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(copy)], check=True)
    (wheel,) = tmp_path.glob("rpsp-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(apart), str(wheel)], check=True)
    shutil.rmtree(copy)
    env = os.environ | {"PYTHONPATH": str(apart)}
    where = subprocess.run(
        [sys.executable, "-c", "import rpsp; print(rpsp.__file__)"], env=env, cwd=tmp_path, capture_output=True
    )
    assert where.stdout.decode().startswith(str(apart)) and (apart / "rpsp" / "py.typed").exists()
    small = ["--method", "fm2", "--iterations", "1", "--samples", "500", "--exploration-episodes", "10"]
    for words in (
        ["doctor"],
        ["train", "CartPole-v1", *small, "--out", "run"],
        ["report", "run"],
        ["export", "run"],
        ["paper"],
    ):
        command = [sys.executable, "-m", "rpsp.cli", *words, "--json"]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])
    assert (tmp_path / "run" / "export" / "act.py").exists() and (tmp_path / "run" / "report.html").exists()


# ---------------------------------------------------------------------------------------------------------------------
# Training (what it does is tested in experiments/test_runs.py)
# ---------------------------------------------------------------------------------------------------------------------


def test_the_help_of_train_names_every_setting(capsys):
    assert run("train", "--help") == 0
    printed = capsys.readouterr().out
    for flag in (
        "--method",
        "--observe",
        "--obs-noise",
        "--seeds",
        "--iterations",
        "--learning-rate",
        "--refit-before",
        "--out",
    ):
        assert flag in printed
    assert "rpsi-sac with pink noise for continuous" in " ".join(
        printed.replace("│", " ").split()
    )  # the default method


def test_help_shows_the_defaults_of_the_method_that_is_named(capsys):
    printed = {}
    for method in ("fm2", "rpsi-ppo"):
        assert run("train", "--method", method, "--help") == 0
        printed[method] = " ".join(capsys.readouterr().out.split())
    assert "64 64" in printed["rpsi-ppo"] and "64 64" not in printed["fm2"]


def test_methods_are_listed(capsys, monkeypatch):
    from rpsp.algorithms.trpo import Trpo
    from rpsp.experiments.methods import METHODS, Method
    from rpsp.filters.tabular import Tabular

    row = Method("own", Tabular(past=3), Trpo(), "a row that this program has added")
    monkeypatch.setitem(METHODS, "own", row)
    assert run("methods", "--json") == 0
    printed = capsys.readouterr().out
    rows = json.loads(printed.splitlines()[-1])["methods"]
    assert [row["name"] for row in rows] == list(METHODS)
    assert all(name in printed for name in METHODS) and "ours" in printed
    assert (rows[-1]["belief"], rows[-1]["algorithm"]) == ("tabular", "trpo") and rows[-1]["settings"]["past"] == 3
    assert rows[-1]["samples"] is None and {row["samples"] for row in rows} == {None, 1000, 4000}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two iterations, by a file and flags that go before it."""
    where = tmp_path_factory.mktemp("train")
    (where / "mine.toml").write_text(
        'env = "InvertedPendulum-v5"\nmethod = "fm1"\niterations = 5\nsamples = 200\nexploration_episodes = 10\n'
        "max-kl = 0.02\nnum_envs = 2\nthreads = 1\n"
    )
    return where


def test_train_then_eval(trained, capsys):
    out = trained / "run"
    command = ["train", "--config", str(trained / "mine.toml"), "--iterations", "2", "--method", "fm2"]
    assert run(*command, "--out", str(out), "--json") == 0
    printed = capsys.readouterr().out
    results = json.loads(printed.splitlines()[-1])
    assert results["iterations"] == 2 and results["method"] == "fm2" and results["directory"] == str(out)
    assert f"run directory {out}" in printed and "held-out error" in printed
    for n in (1, 2):
        (line,) = [line for line in printed.splitlines() if line.lstrip().startswith(f"{n}/2 ")]
        assert all(word in line for word in ("return", "prediction", "persistence", "KL", "steps/s", "ETA"))
    assert f"rpsp eval {out}" in printed and "area under the curve" in printed
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["samples"] == 200 and config["settings"]["max_kl"] == 0.02 and config["settings"]["window"] == 2

    assert run("eval", str(out), "--episodes", "3", "--json", "--quiet") == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["episodes"] == 3 == len(evaluated["returns"]) and evaluated["deterministic"]
    assert evaluated["mean_return"] == pytest.approx(np.mean(evaluated["returns"]))
    assert evaluated["std_return"] == pytest.approx(np.std(evaluated["returns"]))
    assert json.loads((out / "results.json").read_text(encoding="utf-8"))["evaluation"] == evaluated
    for wrong, code, words in (
        (["--episodes", "0"], 2, "episodes"),
        (["--checkpoint", "77"], 2, "77"),
        (["--checkpoint", "newest"], 2, "newest"),
    ):
        assert run("eval", str(out), *wrong) == code
        assert words in capsys.readouterr().err

    assert run("resume", str(out), "--iterations", "3", "--quiet") == 0
    assert capsys.readouterr().out == ""
    assert run("eval", str(out), "--checkpoint", "3", "--stochastic", "--episodes", "2") == 0
    assert "checkpoint 3" in capsys.readouterr().out


def test_a_reader_that_leaves_early_is_no_error():
    """As in `rpsp train --help | head`: no traceback, and the exit code that a shell gives a closed pipe."""
    command = [sys.executable, "-c", "from rpsp.cli import main; main()", "train", "--help"]
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as out:
        found = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, timeout=120)
    assert (found.returncode, found.stderr) == (141, b"")


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"}, {"LC_ALL": "C"}])
def test_help_can_be_printed_in_ascii(environment, tmp_path):
    command = [sys.executable, "-m", "rpsp"]
    given = {"env": os.environ | environment, "cwd": tmp_path, "capture_output": True, "timeout": 120}
    shown = subprocess.run([*command, "train", "--help"], **given)
    assert shown.returncode == 0, shown.stderr
    assert "--discount" in shown.stdout.decode()
    wrong = subprocess.run([*command, "eval", "δ±中".encode()], **given)
    assert wrong.returncode == 3 and b"Traceback" not in wrong.stderr
    if "PYTHONIOENCODING" in environment:
        assert b"factor gamma." in shown.stdout
        assert wrong.stderr.startswith(rb"rpsp: delta+-\u4e2d: is not a directory")


INTERRUPTED = """
import sys
class Interrupting:
    def find_spec(self, name, *more):
        if name == "rpsp.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from rpsp.__main__ import main
main()
"""


def test_an_interruption_before_the_first_line_is_a_sentence_too() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (130, "rpsp: interrupted; nothing was left half-written.\n")
