"""Reports: one HTML page about one run or several, without external resources. Nothing in this package trains.

- `writing`: writes the page, once or repeatedly while runs are in progress.
- `one_run`: the part about a single run: facts, curves, forecasts and video.
- `many_runs`: the part about several runs: comparison, mean curves, failed and unfinished runs.
- `html`: charts, tables and the page around them.
- `assets`: page template, style sheet and script.
"""

from rpsp.experiments.report.writing import watch_report, write_report
from rpsp.experiments.sensor_names import observation_names

__all__ = [
    "observation_names",
    "watch_report",
    "write_report",
]
