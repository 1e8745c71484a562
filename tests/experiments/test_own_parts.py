"""The three files of docs/guides/extending.md in every command: a filter with its belief, an algorithm, a method."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import cli, trained
from guides import ROOT, files_of
from processes import FLAGS, checkpoints, metrics

import rpsp
from rpsp.errors import UsageError
from rpsp.experiments.resolve import read_config
from rpsp.experiments.run_directory import RunDirectory
from rpsp.training.together import advance_together

ENV = "tasks:Drift-v0"
FILES = files_of(ROOT / "docs/guides/extending.md")
SETTING = {"averages": ("rate", 0.5), "reinforce": ("learning_rate", 0.5), "mine": ("rate", 0.5)}
"""A setting of each file's own, and a value that is not its default."""


@pytest.fixture(scope="module")
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's files, in a directory that Python looks into; forgotten at the end."""
    folder = tmp_path_factory.mktemp("own")
    for module, code in FILES.items():
        (folder / f"{module}.py").write_text(code, encoding="utf8")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    for module in FILES:
        sys.modules.pop(module, None)


@pytest.fixture(autouse=True)
def _elsewhere(_own_modules: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rpsp_command(*arguments: str) -> None:
    assert cli(*arguments) == 0


def train(method: str, *arguments: str) -> None:
    rpsp_command("train", ENV, "--method", method, "--quiet", *FLAGS, *arguments)


def last_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_belief_of_the_guide_imports_rpsp_alone_and_is_short() -> None:
    lines = [line for line in FILES["averages"].splitlines() if line and not line.strip().startswith('"""')]
    imports = [line for line in lines if line.startswith(("from", "import"))]
    assert [line for line in imports if "rpsp" in line] == ["import rpsp"]
    assert len(lines) - len(imports) <= 20


@pytest.mark.parametrize("module", SETTING)
def test_a_file_of_the_guide_in_every_command(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained, resumed bit for bit, evaluated, reported, and exported or refused in a sentence."""
    name, value = SETTING[module]
    method, flag = f"{module}:row", f"--{name.replace('_', '-')}={value}"
    train(method, flag, "--iterations", "2", "--out", "whole")
    train(method, flag, "--iterations", "1", "--out", "run")
    rpsp_command("resume", "run", "--iterations", "2", "--plugin", module, "--quiet")
    assert checkpoints(Path("run")) == checkpoints(Path("whole"))
    assert metrics(Path("run")) == metrics(Path("whole"))
    assert getattr(read_config(Path("run")).settings, name) == value
    rpsp_command("eval", "run", "--episodes", "2", "--plugin", module, "--json", "--quiet")
    assert np.isfinite(last_json(capsys)["mean_return"])
    rpsp_command("report", "run", "--plugin", module, "--quiet")
    page = Path("run/report.html").read_text(encoding="utf8")
    assert f"<td>{name}</td>" in page.replace("<th>", "<td>").replace("</th>", "</td>") and method in page
    code = cli("export", "run", "--plugin", module, "--quiet")
    if module == "reinforce":  # its filter is ours
        assert code == 0 and Path("run/export/act.py").exists()
    else:
        assert code == 2
        sentence = "rpsp: export: act.py has no update for Averages; use rpsp.load(...).predict instead.\n"
        assert capsys.readouterr().err == sentence
        assert not Path("run/export").exists()


def test_an_own_belief_is_fitted_and_inspected(capsys: pytest.CaptureFixture[str]) -> None:
    """By the name of its class, and by its `kind` with a plugin; its setting is a flag."""
    own = ["--samples", "400", "--rate", "0.25"]
    rpsp_command("fit", ENV, "--kind", "averages:Averaging", *own, "--out", "one")
    printed = capsys.readouterr().out
    assert "look at it: rpsp inspect one --plugin averages" in printed
    rpsp_command("fit", ENV, "--plugin", "averages", "--kind", "averaging", *own, "--out", "other", "--quiet")
    one, other = (rpsp.PredictiveStateModel.load(f"{name}/model.safetensors") for name in ("one", "other"))
    rate: Any = one.fitted
    assert rate.rate == np.float32(0.25) and one.errors == other.errors and vars(one.belief) == {"rate": 0.25}
    rpsp_command("inspect", "one", "--plugin", "averages", "--horizon", "3", "--quiet")
    assert len(list(Path("one/figures").glob("*.png"))) == 5
    capsys.readouterr()
    assert cli("fit", ENV, "--kind", "averages:Averaging", "--past", "3") == 2
    assert "--past" in capsys.readouterr().err


def rate_of(directory: str) -> float:
    agent: Any = rpsp.load(directory).agent
    return float(agent.filter.rate)


def test_a_setting_of_one_s_own_is_a_flag_an_entry_and_an_argument() -> None:
    train("mine:row", "--iterations", "0", "--out", "default")
    train("mine:row", "--rate", "0.5", "--iterations", "0", "--out", "flag")
    lines = f'env = "{ENV}"\nmethod = "mine:row"\nrate = 0.5\n'
    Path("mine.toml").write_text(lines, encoding="utf8")
    rpsp_command("train", "--config", "mine.toml", "--iterations", "0", "--out", "entry", "--quiet", *FLAGS)
    rpsp_command(
        "train", "--config", "mine.toml", "--rate=0.75", "--iterations", "0", "--out", "both", "--quiet", *FLAGS
    )
    trained(Path("argument"), 0, "mine:row", ENV, rate=np.float32(0.5))
    found = {name: rate_of(name) for name in ("default", "flag", "entry", "both", "argument")}
    assert found == {"default": np.float32(0.2), "flag": 0.5, "entry": 0.5, "both": 0.75, "argument": 0.5}


def test_a_sweep_over_a_setting_of_one_s_own(capsys: pytest.CaptureFixture[str]) -> None:
    lines = f'tasks = ["{ENV}"]\nmethods = ["mine:row"]\niterations = 1\n[grid]\nrate = [0.25, 0.5]\n'
    Path("own.toml").write_text(lines, encoding="utf8")
    rpsp_command("sweep", "own.toml", "--dry-run", "--json", "--quiet")
    assert last_json(capsys)["runs"] == 2
    Path("wrong.toml").write_text(lines.replace("rate", "rates"), encoding="utf8")
    assert cli("sweep", "wrong.toml", "--dry-run") == 2
    assert "grid: rates: there is no such setting; did you mean 'rate'?" in capsys.readouterr().err


def test_a_setting_of_other_methods_is_refused_with_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "clip: mine:row has no such setting; these methods have it: rpsi-ppo, fm2-ppo."
    assert cli("train", ENV, "--method", "mine:row", "--clip", "0.1") == 2
    assert capsys.readouterr().err == f"rpsp: {sentence}\n"
    Path("clip.toml").write_text(f'env = "{ENV}"\nmethod = "mine:row"\nclip = 0.1\n', encoding="utf8")
    assert cli("train", "--config", "clip.toml") == 2
    assert capsys.readouterr().err == f"rpsp: clip.toml: {sentence}\n"
    with pytest.raises(UsageError) as error:
        rpsp.train(ENV, "mine:row", clip=0.1)
    assert str(error.value) == sentence
    assert not list(Path().glob("runs*"))


def test_a_row_with_an_unclear_setting_is_refused_when_it_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    lines = (
        "import dataclasses, rpsp\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Slow(rpsp.FiniteMemory):\n"
        "    learning_rate: float = 0.5\n"
        "row = rpsp.Method('slow', Slow(), rpsp.Vrpg(learning_rate=0.25))\n"
    )
    Path("unclear.py").write_text(lines, encoding="utf8")
    assert cli("train", ENV, "--method", "unclear:row") == 2
    assert capsys.readouterr().err == (
        "rpsp: method: 'unclear:row' cannot be used: method: 'slow' is ambiguous: learning_rate is 0.5 in Slow and 0.25 in "
        "Vrpg; give both the same value, or rename one of the fields.\n"
    )


def test_a_field_with_the_name_of_a_common_setting_is_refused_when_the_row_is_built() -> None:
    @dataclass(frozen=True)
    class Seeded(rpsp.FiniteMemory):
        seed: int = 0

    sentence = r"^method: 'mine' cannot be used: seed is a field of Seeded, and a setting of every method; rename"
    with pytest.raises(UsageError, match=sentence):
        rpsp.Method("mine", Seeded(), rpsp.Trpo())

    @dataclass(frozen=True, kw_only=True)
    class Longer(rpsp.LoopSettings):
        patience: int = 3

    with pytest.raises(UsageError, match=r"loop of 'mine' is .*Longer\(.*not an instance of .*LoopSettings"):
        rpsp.Method("mine", rpsp.FiniteMemory(), rpsp.Trpo(), loop=Longer())


def test_types_of_settings_of_one_s_own() -> None:
    @dataclass(frozen=True)
    class Mixed(rpsp.FiniteMemory):
        shape: int | str = "auto"
        scales: tuple[float, ...] = (1.0,)

    row = rpsp.Method("mixed", Mixed(), rpsp.Trpo())
    rpsp.METHODS["mixed"] = row
    try:
        for value in ("wide", 3):
            run = trained(Path(f"run-{value}"), 0, "mixed", shape=value, scales=[0.5, 2])
            settings = read_config(run.directory).settings
            assert settings.shape == value and settings.scales == (0.5, 2.0)
        with pytest.raises(UsageError, match=r"^shape: 0.5 is not a"):
            trained(Path("run"), 0, "mixed", shape=0.5)
    finally:
        del rpsp.METHODS["mixed"]


@pytest.mark.parametrize("method", ["mine:row", pytest.param("rpsp-vrpg", marks=pytest.mark.slow)])
def test_runs_of_an_own_algorithm_are_trained_together_as_ours(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other seeds and step sizes: what each learns together with the others is what it learns alone."""
    small = {} if method == "mine:row" else {"dimension": 3, "past": 3, "future": 3, "epochs": 1}
    for seed in (0, 1):
        trained(Path(f"alone{seed}"), 1, method, ENV, seed=seed, learning_rate=0.01 * (seed + 1), **small)
        shutil.copytree(f"alone{seed}", f"together{seed}")
        rpsp_command("resume", f"alone{seed}", "--iterations", "3", "--quiet")
    sizes = []

    def counted(envs: Any, recipes: Any, *others: Any) -> Any:
        sizes.append(len(recipes))
        return advance_together(envs, recipes, *others)

    monkeypatch.setattr("rpsp.training.together.advance_together", counted)
    rpsp_command("resume", "together0", "together1", "--iterations", "3", "--quiet")
    assert sizes == [2, 2], "two runs in one program, in both iterations"
    for seed in (0, 1):
        one, other = (untimed(Path(f"{name}{seed}")) for name in ("alone", "together"))
        assert len(one) == 3
        assert other == [pytest.approx(record, rel=1e-3, abs=1e-5) for record in one], "two programs: rounding differs"


def untimed(directory: Path) -> list[dict[str, float]]:
    """The records of all iterations without what is measured by the clock."""
    records = RunDirectory(directory).metrics()
    timed = ("_seconds", "_per_second")
    return [{k: v for k, v in r.items() if not k.endswith(timed)} for r in records if "iteration" in r]


@pytest.mark.slow
def test_several_seeds_of_an_own_method() -> None:
    """In processes of their own, which find the user's modules where the command is given."""
    for module, code in FILES.items():
        Path(f"{module}.py").write_text(code, encoding="utf8")
    shutil.copy(ROOT / "tests/helpers/tasks.py", "tasks.py")
    run = trained(Path("run"), 1, "mine:row", ENV, seeds=2, rate=0.5)
    assert [each.results["seed"] for each in run.runs] == [0, 1]
    assert [rate_of(str(each.directory)) for each in run.runs] == [0.5, 0.5]
