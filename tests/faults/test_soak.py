"""Row 13: a long run keeps the memory and the files that it had after its beginning."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from amounts import amount, report
from processes import TINY, spawn

SOAK = """
import json, os, sys, time
import rpsp
from rpsp.experiments.configure import configured
from rpsp.experiments.runs import start

def open_files():
    # A thread writes what is kept, with a file open for a moment: until they are as many as the last time, or two seconds.
    counts = []
    while len(counts) < 1000 and (not seen or counts[-1:] != [seen[-1][1]]):
        time.sleep(0.002)
        counts.append(len(os.listdir("/proc/self/fd")))
    return min(counts)

def look(record, pace):
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    seen.append((pages * os.sysconf("SC_PAGE_SIZE") / 2**20, open_files()))

seen = []
given = json.loads(sys.argv[1])
start(configured(given), lambda line: None, look)
print(json.dumps(seen))
"""


def test_memory_and_open_files_stay_as_they_are(tmp_path: Path) -> None:
    iterations = amount(60, 2000)
    given = TINY | {"env": "tasks:Drift-v0", "method": "fm2", "iterations": iterations, "out": str(tmp_path / "run")}
    process = spawn(tmp_path / "compiled", json.dumps(given), code=SOAK)
    printed, error = process.communicate(timeout=1500)
    assert process.returncode == 0, error
    megabytes, files = np.array(json.loads(printed)).T[:, iterations // 5 :]  # compiled by then
    tenth = len(megabytes) // 10
    first, last = np.median(megabytes[:tenth]), np.median(megabytes[-tenth:])
    assert last < first + 10, "memory grows"
    assert files.min() == files.max(), "files stay open"
    report(
        13,
        f"{iterations} iterations: memory {first:.0f} MiB after a fifth of them and {last:.0f} MiB at the end, "
        f"{files.max():.0f} open files throughout",
    )
