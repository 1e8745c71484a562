"""Every example runs as its page says, at small scale, and shows what it claims."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from commands import run

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str, *arguments: str, cwd: Path) -> str:
    return run(sys.executable, EXAMPLES / name, *arguments, cwd=cwd)


def numbers(text: str) -> list[float]:
    return [float(word) for word in re.findall(r"-?\d+(?:\.\d+)?", text)]


def test_an_environment_of_ones_own_is_trained_and_used(tmp_path: Path) -> None:
    printed = example("own_environment.py", "--iterations", "4", "--out", "run", cwd=tmp_path)
    learned, random = numbers(printed.splitlines()[-1])[1:]
    assert 0 <= random < learned <= 100
    source = (EXAMPLES / "own_environment.py").read_text(encoding="utf8")
    assert len(source[source.index("class Hover") : source.index("def main")].splitlines()) <= 40


def test_noisy_sensor_trains_all_three(tmp_path: Path) -> None:
    printed = example("noisy_sensor.py", "--iterations", "1", "--samples", "200", cwd=tmp_path)
    assert [line.split()[0] for line in printed.splitlines()] == ["fm1", "fm2", "rpsi-trpo"]
    assert {path.name for path in (tmp_path / "runs/noisy_sensor").iterdir()} == {"fm1", "fm2", "rpsi-trpo"}


def test_learned_belief_nears_the_exact_one(tmp_path: Path) -> None:
    ignorant, *found = numbers(example("exact_belief.py", "--episodes", "1000", cwd=tmp_path).partition("have ")[2])
    errors = found[1::2]
    assert len(errors) == 3 and errors[0] > errors[-1] and errors[-1] < 0.1 < ignorant
    assert (tmp_path / "exact_belief.png").exists()


def test_recorded_data_beats_persistence_and_finds_the_coil(tmp_path: Path) -> None:
    *lines, coil, _ = example("recorded_data.py", "--episodes", "20", cwd=tmp_path).splitlines()
    for line in lines[-3:]:
        _, model, persistence = numbers(line)
        assert model < persistence / 2
    assert numbers(coil)[-1] > 0.99
    assert (tmp_path / "oven.safetensors").exists()


def test_a_method_of_ones_own_is_a_plugin_of_every_command(tmp_path: Path) -> None:
    (tmp_path / "own_method.py").write_bytes((EXAMPLES / "own_method.py").read_bytes())
    task = "InvertedPendulum-v5", "--samples", "200", "--exploration-episodes", "10", "--epochs", "2"
    run("rpsp", "train", *task, "--method", "own_method:tracker", "--iterations", "1", cwd=tmp_path)
    run("rpsp", "train", *task, "--method", "own_method:reinforced", "--iterations", "2", "--out", "run", cwd=tmp_path)
    run("rpsp", "resume", "run", "--plugin", "own_method", "--iterations", "3", cwd=tmp_path)
    run("rpsp", "eval", "run", "--plugin", "own_method", "--episodes", "2", cwd=tmp_path)
    run(
        "rpsp",
        "fit",
        "InvertedPendulum-v5",
        "--kind",
        "own_method:Tracking",
        "--samples",
        "400",
        "--epochs",
        "1",
        "--inspect",
        cwd=tmp_path,
    )


def test_ppo_of_stable_baselines3_learns_on_a_predictive_state(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3", reason="the extra `peers` is not installed")
    printed = example("beliefs_in_sb3.py", "--steps", "12000", "--iterations", "8", cwd=tmp_path)
    ppo, agent = (numbers(line)[-1] for line in printed.splitlines())
    assert ppo > 15 and agent > 15  # random actions keep the pendulum up for six steps


def test_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel", reason="the package ipykernel is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the package nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="the package nbformat is not installed")
    notebook = nbformat.read(EXAMPLES / "first_steps.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    html = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert any(" on InvertedPendulum-v5" in text and "<polyline" in text for text in html)
    assert any("PredictiveStateModel" in text for text in html) and any("TrainedAgent" in text for text in html)
    assert (tmp_path / "agent.rpsp").exists()
