"""The paper's experiments and those of this library, as data.

- `tables`: experiments, the methods they compare, and the candidates of each curve.
- `planning`: the runs of an experiment, and figures and tables of the finished ones.
- `curves`: the runs that represent a curve, selected from the available results.

All experiments share one directory, so that a run that appears in several figures is done once. A curve of the paper is
the best of several candidates. With `select`, all candidates are run and the one with the largest area under the curve
is selected, as in the paper. Without it, only the first candidate is run. A protocol substitutes candidates and changes
tasks.
"""

from rpsp.experiments.paper.curves import Curve, Found, far_enough
from rpsp.experiments.paper.planning import Plan, draw, finished, judge, peers, plan, together
from rpsp.experiments.paper.tables import (
    CURVES,
    DIFFERENCES,
    EQUAL,
    EVERY,
    EXPERIMENTS,
    PEERS,
    PROTOCOLS,
    TUNING,
    Experiment,
    Protocol,
    TaskChange,
    candidates,
    find,
    label_of,
    labels_of,
    task_labels,
)

__all__ = [
    "CURVES",
    "DIFFERENCES",
    "EQUAL",
    "EVERY",
    "EXPERIMENTS",
    "PEERS",
    "PROTOCOLS",
    "TUNING",
    "Curve",
    "Experiment",
    "Found",
    "Plan",
    "Protocol",
    "TaskChange",
    "candidates",
    "draw",
    "far_enough",
    "find",
    "finished",
    "judge",
    "label_of",
    "labels_of",
    "peers",
    "plan",
    "task_labels",
    "together",
]
