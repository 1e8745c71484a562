"""Every Python block of the README and of the docs runs, page by page, in an empty directory; and the README's commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import run
from guides import files_of, script_of

from rpsp.cli import COMMANDS
from rpsp.experiments.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "```python" in page.read_text(encoding="utf8")
]


@pytest.fixture
def own_methods() -> Iterator[None]:
    """Removes the methods that a guide adds, so that no other test sees them."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def tier(page: Path) -> list[pytest.MarkDecorator]:
    """The README's blocks run in `make test`, those of the guides in `make test-all`."""
    return [] if page.name == "README.md" else [pytest.mark.slow]


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT)), marks=tier(page)) for page in PAGES]
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    files = files_of(page)
    for module, code in files.items():
        (tmp_path / f"{module}.py").write_text(code, encoding="utf8")
    try:
        exec(compile(script_of(page), str(page), "exec"), {"__name__": "__main__"})
    finally:
        for module in files:
            sys.modules.pop(module, None)


def test_relative_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def readme_commands() -> list[str]:
    """Every line of the README's shell blocks, but for `make demo` and `make test`, which install things for minutes."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf8"), re.DOTALL | re.MULTILINE)
    return [line for line in "".join(blocks).splitlines() if not line.startswith("make ")]


def test_the_readme_shows_every_command() -> None:
    shown = set(re.findall(r"rpsp (\w+)", (ROOT / "README.md").read_text(encoding="utf8")))
    assert set(COMMANDS) <= shown
    assert all(line.split()[1] in COMMANDS for line in readme_commands())


@pytest.mark.slow
def test_the_readme_s_commands_run(tmp_path: Path) -> None:
    """As they stand and in their order, in an empty directory; with a twelfth of the iterations."""
    lines = [
        re.sub(r"--iterations (\d+)", lambda m: f"--iterations {int(m[1]) // 12}", line) for line in readme_commands()
    ]
    printed = run("sh", "-c", "set -ex\n" + "\n".join(lines), cwd=tmp_path)
    names = ["runs/cart/report.html", "runs/cart/export/act.py", "runs/late/results.json"]
    for name in [*names, "runs/cart/video", "runs/belief/figures"]:
        assert (tmp_path / name).exists(), printed
