"""How many faults are injected, and the figures that come of it: few in the suite, all of them under `make faults`."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

FULL = os.environ.get("RPSP_FAULTS") == "full"


def amount(small: int, full: int) -> int:
    """`full` under `make faults`, else `small`."""
    return full if FULL else small


def report(row: int, sentence: str) -> None:
    """Print what a promise (its row in docs/promises.md) came to; in full, also to the file that RPSP_FAULTS_LOG names."""
    print(f"{row}: {sentence}")
    if FULL and (log := os.environ.get("RPSP_FAULTS_LOG")):
        with open(log, "a") as file:
            file.write(json.dumps({"row": row, "figure": sentence}) + "\n")


def publish(log: Path, page: Path) -> None:
    """Print the figures of `make faults` by row, and put them into the last column of the page's table."""
    figures: dict[int, list[str]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        figures.setdefault(json.loads(line)["row"], []).append(json.loads(line)["figure"])
    for row, sentences in sorted(figures.items()):
        print("\n".join(f"{row:3d}  {sentence}" for sentence in sentences))

    def filled(found: re.Match[str]) -> str:
        sentences = figures.get(int(found[2]))
        return found[0] if sentences is None else f"{found[1]}| {'; '.join(dict.fromkeys(sentences))} |"

    page.write_text(
        re.sub(r"^(\| (\d+) \|.*)\|[^|\n]*\|$", filled, page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )


if __name__ == "__main__":
    publish(*map(Path, sys.argv[1:]))
