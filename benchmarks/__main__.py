"""Run the benchmarks: `python -m benchmarks [NAME …]`. Each writes benchmarks/results/NAME.json. Default: all of them.

`python -m benchmarks --docs` writes docs/benchmarks.md and its figures from these files, so that no number is
typed.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from benchmarks.document import write_page

NAMES = (
    "batch_stepping",
    "exact_bayes",
    "kalman",
    "uncertainty",
    "monitoring",
    "prediction",
    "timing",
    "fresh",
    "knows",
    "stale",
    "transfer",
    "alignment",
    "closed_loop",
    "training_speed",
    "refit_speed",
    "lockstep",
    "overlap",
    "many_results",
    "report",
    "sweep_overhead",
)
RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str]) -> None:
    if arguments != ["--docs"]:
        for name in arguments or NAMES:
            print(f"— {name}", flush=True)
            figures = importlib.import_module(f"benchmarks.{name}").main()
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    write_page(RESULTS, Path(__file__).parents[1] / "docs")


if __name__ == "__main__":
    main(sys.argv[1:])
