"""Size of the report of 100 runs, and the time to open it. The goals are 5 MB and one second.

The run directories are synthetic, in the form that `rpsp train` writes: 2 tasks, 5 methods, 10 seeds, 500
iterations. The time to open is measured in headless Chromium (Debian's), from the request until the page is loaded,
its script has run and the next frame is drawn. The time to write is that of `rpsp report` after Python has started,
which is also that of each update by `rpsp report --watch`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.browser import browser
from benchmarks.many_results import TASKS, make
from rpsp.experiments.report import write_report

ITERATIONS, REPETITIONS = 500, 7


def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), TASKS[:2], [None], 10, ITERATIONS)
        page, results = write_report([folder])
        writing = []
        for _ in range(REPETITIONS):
            started = time.perf_counter()
            write_report([folder])
            writing.append(time.perf_counter() - started)
        with browser() as shown:
            opening = {name: [shown.open(page, width) for _ in range(REPETITIONS)] for name, width in WIDTHS.items()}
        figures = {
            "runs": len(results),
            "iterations": ITERATIONS,
            "megabytes": page.stat().st_size / 1e6,
            "writing_seconds": statistics.median(writing),
            "opening_milliseconds": {name: statistics.median(times) for name, times in opening.items()},
            "slowest_milliseconds": max(max(times) for times in opening.values()),
        }
    print(figures)
    return figures


WIDTHS = {"desktop": 1200, "phone": 390}

if __name__ == "__main__":
    main()
