"""Write docs/differences.md from benchmarks/differences.template.md: {{ … }} stands for a figure of a result file.

`python -m benchmarks.differences` (a part of `make results`). The expressions in the template call the methods of
`Figures`, with the results in results/ and in benchmarks/results/. A figure can therefore not differ from its file.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rpsp.data.files import write_bytes
from rpsp.experiments import statistics
from rpsp.experiments.comparison import metric_values
from rpsp.experiments.paper import PROTOCOLS, Found, far_enough
from rpsp.experiments.results import read_results
from rpsp.experiments.results_page.markdown import table
from rpsp.experiments.words import mean_with_error

HERE = Path(__file__).parent
TEMPLATE, PAGE = HERE / "differences.template.md", HERE.parent / "docs" / "differences.md"
TASKS = {"cart-pole": "InvertedPendulum-v5", "Swimmer": "Swimmer-v5", "Hopper": "Hopper-v5", "Walker2d": "Walker2d-v5"}
EVERY_ITERATION = {
    "refit_before": [*range(1, 60)], "refit_batches": 1, "refit_above": 0.0, "refit_epochs": 1, "refit_from": "filter",
}  # fmt: skip
"""Settings of the tuning runs whose filter is refined by one epoch in every iteration."""
LENGTH = {"cart-pole": 200}
USUAL = 150


class Figures:
    """The figures that the template names.

    Args:
        root: directory that contains results/ and benchmarks/.
    """

    def __init__(self, root: Path = HERE.parent):
        self.root = root

    @cached_property
    def found(self) -> dict[str, Found]:
        """The complete results under each protocol."""
        results = far_enough(read_results([self.root / "results"])[0])
        return {name: Found(results, protocol) for name, protocol in PROTOCOLS.items()}

    def file(self, name: str) -> Any:
        """Return the content of a file in benchmarks/results/."""
        return json.loads((self.root / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))

    def values(
        self, task: str, method: str, over: int | None = None, protocol: str = "equal", what: str = "auc"
    ) -> np.ndarray:
        """Return the area under the curve in thousands of every run, or its final return.

        Args:
            task: a short name in `TASKS`, which settings may follow: "Hopper, obs_noise=0.1".
            method: label of the method.
            over: number of iterations. Default: 150, on cart-pole 200.
            protocol: the protocol, whose changes the task has.
            what: "auc" or "final".
        """
        short, _, rest = task.partition(",")
        found, over = self.found[protocol], over or LENGTH.get(short, USUAL)
        runs = found.runs[found.task(", ".join(filter(None, (TASKS[short], rest.strip()))))][method]
        runs = [run.cut(over) for run in runs if len(run.returns) >= over]
        if not runs:
            raise ValueError(f"{task}, {method}: there is no run of {over} iterations in results/.")
        return metric_values(runs, what) / (1000 if what == "auc" else 1)  # pyright: ignore[reportArgumentType]

    def area(self, *where: Any, **more: Any) -> str:
        """Return mean and standard error of `values`."""
        return mean_with_error(*map(float, statistics.mean_and_error(self.values(*where, **more))))

    def seeds(self, *where: Any, **more: Any) -> int:
        """Return the number of runs."""
        return len(self.values(*where, **more))

    def final(self, *where: Any, **more: Any) -> str:
        """Return mean and standard error of the final return."""
        return self.area(*where, what="final", **more)

    def gain(self, task: str, method: str, rival: str, **more: Any) -> str:
        """Return by how many percent a method's mean is above its rival's."""
        a, b = (self.values(task, name, **more).mean() for name in (method, rival))
        return f"{100 * (a / b - 1):.0f} %"

    def p(self, task: str, method: str, rival: str, **more: Any) -> str:
        """Return the two-sided p-value of Welch's test, not corrected."""
        p = statistics.welch(*(self.values(task, name, **more) for name in (method, rival))).p
        return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"

    def areas(self, methods: Sequence[str], tasks: Sequence[str] = tuple(TASKS), protocol: str = "equal") -> str:
        """Return a table of areas with standard errors and numbers of runs, one row for each task."""
        rows = []
        for task in tasks:
            cells = []
            for method in methods:
                try:
                    where = task, method, None, protocol
                    cells.append(f"{self.area(*where)} ({self.seeds(*where)})")
                except ValueError:
                    cells.append("")
            rows.append([f"{task}, {LENGTH.get(task, USUAL)} iterations", *cells])
        return table(["", *(f"`{method}`" for method in methods)], rows).strip()

    def tuned(self, name: str, over: int, settings: dict[str, Any], seed: int, task: str = "Hopper") -> str:
        """Return the area over the first iterations of a tuning run with these settings, in thousands."""
        for run in self.file(name)["runs"]:
            same = (run["task"], run["seed"], run["settings"]) == (TASKS[task], seed, settings)
            if same and len(run["mean_return"]) >= over:
                return f"{sum(run['mean_return'][:over]) / 1000:.1f}"
        raise ValueError(f"{name}.json: there is no run of {task}, seed {seed}, with {settings}.")


def rendered(template: str, figures: Figures) -> str:
    """Return the page: the template with every {{ expression }} replaced by its value."""
    names: dict[str, Any] = {"every_iteration": EVERY_ITERATION}
    names |= {name: getattr(figures, name) for name in dir(Figures) if not name.startswith("_") and name != "found"}

    def value(match: re.Match[str]) -> str:
        return str(eval(match[1].strip(), {"__builtins__": {}}, names))  # noqa: S307 - a part of this repository

    return wrapped(re.sub(r"\{\{(.*?)\}\}", value, template, flags=re.DOTALL))


def wrapped(text: str, width: int = 132) -> str:
    """Wrap paragraphs and items of lists, whose lengths depend on the figures. Other lines stay."""
    lines: list[str] = []
    for line in text.splitlines():
        goes_on = lines and re.match(r"[^|#\[\s-]|  \S", line) and re.match(r"[^|#\[\s]|  \S", lines[-1])
        lines = [*lines[:-1], f"{lines[-1]} {line.strip()}"] if goes_on else [*lines, line]
    for i, line in enumerate(lines):
        if not line.startswith(("|", "#", "[")):
            indent = "  " * line.startswith("- ")
            lines[i] = textwrap.fill(
                line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    write_bytes(PAGE, rendered(TEMPLATE.read_text(encoding="utf-8"), Figures()).encode())
    print(PAGE)


if __name__ == "__main__":
    main()
