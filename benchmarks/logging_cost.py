"""Time that loggers take of a run: TensorBoard, Weights & Biases (offline) and MLflow (a local file), one after the other.

    python -m benchmarks.logging_cost --out benchmarks/results/logging_cost.json

The time is that between the start and the end of the hooks of the logger, in the process of the training, as a share of
the wall time of the run from its exploration on. The time that the logger's thread writes is listed beside it; what
processes in the background do is not counted. Iterations of this task are short, so the shares are large.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rpsp
from rpsp.callbacks import Callback, Logger, MlflowLogger, TensorBoardLogger, WandbLogger

METHOD = "rpsi-trpo"


class Watch(Callback):
    """The time at which the first iteration begins and the last one ends."""

    def on_start(self, run: Any) -> Any:
        self.began = time.perf_counter()

    def on_iteration(self, run: Any) -> Any:
        self.ended = time.perf_counter()


def timed(logger: Logger) -> dict[str, float]:
    """Make a logger count the seconds of its hooks."""
    spent = {"on_start": 0.0, "on_iteration": 0.0, "on_end": 0.0, "write": 0.0}

    def counted(name: str) -> Any:
        hook = getattr(logger, name)

        def call(*given: Any) -> Any:
            began = time.perf_counter()
            try:
                return hook(*given)
            finally:
                spent[name] += time.perf_counter() - began

        return call

    for name in spent:
        setattr(logger, name, counted(name))
    return spent


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="InvertedPendulum-v5")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    os.environ["WANDB_MODE"] = "offline"
    found: dict[str, Any] = {"env": given.env, "method": METHOD, "iterations": given.iterations}
    with tempfile.TemporaryDirectory() as folder:
        for cls in (TensorBoardLogger, WandbLogger, MlflowLogger):
            logger = MlflowLogger(tracking_uri=f"sqlite:///{folder}/mlflow.db") if cls is MlflowLogger else cls()
            spent, watch = timed(logger), Watch()
            out = Path(folder) / cls.name
            run = rpsp.train(
                given.env,
                METHOD,
                out=out,
                iterations=given.iterations,
                callbacks=[logger, watch],
                verbose=False,
                threads=1,
            )
            wall = watch.ended - watch.began
            found[cls.name] = {
                "seconds of the run": round(wall, 2),
                "metrics": len(run.metrics[-1]),
                "ms per iteration": round(1000 * spent["on_iteration"] / given.iterations, 3),
                "share of wall time, %": round(100 * spent["on_iteration"] / wall, 3),
                "ms of the thread per iteration": round(1000 * spent["write"] / given.iterations, 3),
                "seconds to open and close": round(spent["on_start"] + spent["on_end"], 2),
            }
            print(cls.name, found[cls.name], flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=2) + "\n")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
