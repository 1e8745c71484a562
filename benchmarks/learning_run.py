"""One run of `learning` on one core; prints one JSON line for each iteration."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(run: dict[str, Any], file: Path) -> None:
    from benchmarks.prepared import prepared
    from rpsp.training.loop import train

    plan = {name: run[name] for name in ("env", "method", "seed", "iterations")}
    config, make_envs, recipe, amounts = prepared(**plan | {"threads": 1} | run.get("settings", {}))
    with file.open("w") as log:
        try:
            for _, record in train(recipe, make_envs(config.num_envs), amounts, run["iterations"]):
                log.write(json.dumps(record) + "\n")
                log.flush()
        except Exception as error:  # a run that fails is a result; the others go on
            log.write(json.dumps({"failed": f"{type(error).__name__}: {error}"}) + "\n")


if __name__ == "__main__":
    core = int(sys.argv[3])
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    os.environ |= {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    os.environ["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "0"  # as `rpsp train` does
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
