"""Row 8, and what keeps it so: files of strangers run nothing and fill nothing."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import hostile
import pytest
from amounts import report

from rpsp.experiments.results import read_result, write_result
from rpsp.experiments.run_directory import RunDirectory

OTHERWISE = (
    "config: a plugin", "config: a method in a module", "config: an environment in a module", "recording: texts",
    "config: a plugin among the sensors", "config: a method among the settings", "config: an environment among the settings",
)  # fmt: skip
"""Where the user is asked to decide, or told what numbers are wanted."""
ROOT = Path(__file__).resolve().parents[2]


def test_hostile_files_run_nothing_and_are_refused_in_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, hostile.__file__, str(tmp_path)],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["code ran"]
    for name, outcome in found["outcomes"].items():
        assert isinstance(outcome, list), f"{name}: {outcome}"
        code, sentence = outcome
        assert code == (2 if name in OTHERWISE else 3), name
        assert 0 < len(sentence) < 1000 and "\n" not in sentence, f"{name}: {sentence}"
    assert found["megabytes"] < 600
    report(
        8,
        f"{len(found['outcomes'])} hostile files: no code ran, memory grew by {found['megabytes']:.0f} MiB at most, each "
        "refused in one sentence",
    )


def test_the_payloads_are_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else that nothing ran would prove nothing."""
    import pickle

    monkeypatch.chdir(tmp_path)
    pickle.loads(hostile.PICKLE)
    assert Path(hostile.MARKER).exists()


def test_names_in_files_lead_nowhere(tmp_path: Path) -> None:
    """A label becomes a file's name, and a directory's name a checkpoint's number, only if it can be nothing else."""
    source = tmp_path / "in.result.json"
    for label in ("../../../evil", "/etc/evil", "a/b", "..", "C:\\evil", "\x00evil", "~root"):
        settings = hostile.SETTINGS | {"env": label, "method": label}
        source.write_text(json.dumps(hostile.RESULT | {"settings": settings}), encoding="utf-8")
        written = write_result(read_result(source), tmp_path / "out")
        assert written.resolve().parents[2] == (tmp_path / "out").resolve()
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert {(path.parts[0], len(path.parts)) for path in files} == {("in.result.json", 1), ("out", 4)}
    for name in (
        "１２３４５６".encode(),
        b"9" * 200,
        b"1e6",
        b"-00001",
        b"12",
    ):  # bytes: the locale may know only ASCII
        (tmp_path / "run" / "checkpoints" / os.fsdecode(name)).mkdir(parents=True)
    assert RunDirectory(tmp_path / "run").numbers() == []


def test_every_promise_names_a_test_that_there_is() -> None:
    rows = re.findall(
        r"^\| (\d+) \|.*?`(test_\w+\.py)`", (ROOT / "docs" / "promises.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [int(row) for row, _ in rows] == list(range(1, 15))
    assert all((Path(__file__).parent / name).exists() for _, name in rows)


FORBIDDEN = {"eval", "exec", "compile", "__import__"}
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "yaml", "jsonpickle", "ctypes"}


def calls_of(tree: ast.AST) -> list[tuple[int, str]]:
    """What is called or imported anywhere in a module, that could run what stands in a file."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [(node.lineno, name) for name in names if name.split(".")[0] in MODULES]
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN:
                found.append((node.lineno, node.func.id))
            if any(k.arg == "allow_pickle" and getattr(k.value, "value", True) is not False for k in node.keywords):
                found.append((node.lineno, "allow_pickle"))
            if any(k.arg == "shell" for k in node.keywords):
                found.append((node.lineno, "shell"))
    return found


def test_nothing_in_the_source_runs_what_stands_in_a_file() -> None:
    files = sorted((ROOT / "src").rglob("*.py"))
    assert len(files) > 30
    assert {str(f): found for f in files if (found := calls_of(ast.parse(f.read_text(encoding="utf8"))))} == {}
    assert calls_of(ast.parse("import pickle\neval('1')\nnp.load(f, allow_pickle=True)\nrun('x', shell=True)"))


def requirements(name: str, extras: set[str], seen: dict[str, Any]) -> None:
    """Every installed package that one needs, and what those need."""
    from packaging.requirements import Requirement

    for line in distribution(name).requires or []:
        need = Requirement(line)
        if need.marker is not None and not any(need.marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            continue
        key = re.sub(r"[-_.]+", "-", need.name).lower()
        if key in seen and seen[key] >= need.extras:
            continue
        seen[key] = seen.get(key, set()) | need.extras
        try:
            requirements(need.name, set(need.extras) | {""}, seen)
        except PackageNotFoundError:
            assert need.marker is not None, f"{need.name} is not installed"


def test_every_dependency_is_pinned_as_it_was_tested() -> None:
    lines = [
        line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line and line[0] != "#"
    ]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.+!]+", line) for line in lines), "names and versions only"
    pinned = {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in (p.partition("==") for p in lines)}
    needed: dict[str, Any] = {}
    requirements("rpsp", {"dev", ""}, needed)
    assert len(needed) > 50
    for name in sorted(needed.keys() - {"rpsp"}):
        assert name in pinned, f"constraints.txt does not pin {name}"
        assert distribution(name).version == pinned[name], f"{name} is not the version that is pinned"
