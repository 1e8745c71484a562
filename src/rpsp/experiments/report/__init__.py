"""Part of the split of a larger module."""

from rpsp.experiments.report.one_run import observation_names
from rpsp.experiments.report.writing import watch_report, write_report

__all__ = [
    "observation_names",
    "watch_report",
    "write_report",
]
