"""The Python blocks of a page of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```python(?: title="(\w+)\.py")?\n(.*?)^```', re.DOTALL | re.MULTILINE)


def files_of(page: Path) -> dict[str, str]:
    """The user's files on a page, by the names of their modules: the blocks with a title."""
    return {module: code for module, code in BLOCK.findall(page.read_text(encoding="utf8")) if module}


def script_of(page: Path) -> str:
    """All blocks without a title, one after the other."""
    return "\n".join(code for module, code in BLOCK.findall(page.read_text(encoding="utf8")) if not module)
