"""How many faults are injected, and the figures that come of it: few in the suite, all of them under `make faults`."""

from __future__ import annotations

import json
import os
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


def print_table(log: Path) -> None:
    """The figures of `make faults`, by row."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for line in sorted(lines, key=lambda line: line["row"]):
        print(f"{line['row']:3d}  {line['figure']}")


if __name__ == "__main__":
    print_table(Path(sys.argv[1]))
