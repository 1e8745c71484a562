"""Assemble the page of results and write it.

`document` computes the text from results alone, so that a test can compare the page with the committed results. `write`
also draws the figures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from rpsp.data.files import write_bytes
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments import claims
from rpsp.experiments.figures.appearance import save
from rpsp.experiments.paper.curves import Found, far_enough
from rpsp.experiments.paper.tables import EXPERIMENTS, PROTOCOLS
from rpsp.experiments.results import Result
from rpsp.experiments.results_page.experiments import experiment_section
from rpsp.experiments.results_page.markdown import (
    between,
    paragraph,
    plural,
)
from rpsp.experiments.results_page.tables import (
    area_section,
    glance_section,
    peers_section,
    protocols_section,
    runs_section,
)
from rpsp.experiments.results_page.verdict import evidence_section, verdict_section
from rpsp.experiments.words import clock

WIDTH, GLANCE_WIDTH = 960, 1660
"""Widths of figures in pixels. A README is 830 pixels wide, on high-resolution screens twice that."""


class Document(NamedTuple):
    """The text of the page, its figures, and the part for a README."""

    text: str
    figures: dict[str, Callable[[], Figure]]
    """Functions that draw the figures, by file name below figures/ without suffix."""
    glance: str
    """The part for a README, with {docs} for the directory of the page. Empty if there are not enough results."""


def write(results: Sequence[Result], page: Path, readme: Path | None = None, scale: float = 1.0) -> list[Path]:
    """Write the page, its figures next to it, and the part in a README. Outdated figures are removed.

    Args:
        results: results of runs.
        page: path of the page.
        readme: path of a README with the lines `<!-- glance -->` and `<!-- /glance -->`.
        scale: fraction of the paper's iterations that makes an unfinished run count.

    Returns:
        The paths of all files written.

    Raises:
        UsageError: if the README lacks these lines.
        FileFormatError: if there is no result to show.
    """
    found = document(results, scale)
    written = {page: found.text}
    if readme is not None:
        text = readme.read_text(encoding="utf8") if readme.is_file() else ""
        if "<!-- glance -->\n" not in text or "<!-- /glance -->" not in text:
            raise UsageError(f"readme: {str(readme)!r} has no lines <!-- glance --> and <!-- /glance -->.")
        docs = Path(os.path.relpath(page.parent, readme.parent)).as_posix()
        written[readme] = between(text, "glance", found.glance.replace("{docs}", docs))
    for path, text in written.items():
        write_bytes(path, text.encode())
    for name, draw in found.figures.items():
        width = GLANCE_WIDTH if name == "glance" else WIDTH
        written[save(draw(), page.parent / "figures", name, width)] = ""
    for name in {f"results/{name}{which}" for name in EXPERIMENTS for which in ("", "_selected")} - {*found.figures}:
        (page.parent / "figures" / f"{name}.png").unlink(missing_ok=True)
    return list(written)


def document(results: Sequence[Result], scale: float = 1.0) -> Document:
    """Compute the page of results.

    Args:
        results: results of runs.
        scale: fraction of the paper's iterations that makes an unfinished run count.
    """
    counted = far_enough(results, scale)
    if not counted:
        raise FileFormatError(
            "page: there is no finished run to show; give --results or --out a directory that has some."
        )
    found, figures = Found(counted), {}
    glance, glance_text = glance_section(found, figures)
    under = {protocol.name: Found(counted, protocol) for protocol in PROTOCOLS.values()}
    paper = {name: claims.judge(claims.PAPER, results) for name, results in under.items()}
    ours = claims.judge(claims.OURS, found)
    sections = [
        _head(counted, len(results)),
        verdict_section(paper, ours),
        glance,
        protocols_section(under),
        area_section(found),
        peers_section(found),
    ]
    experiments = {name: experiment_section(name, found, figures) for name in EXPERIMENTS if name != "h"}
    empty = [name for name, text in experiments.items() if not text]
    missing = paragraph(f"There are no results yet for: {', '.join(empty)}.") if empty else ""
    sections += [*experiments.values(), missing, evidence_section(paper, ours), runs_section(found)]
    return Document("\n".join(filter(None, sections)), figures, glance_text)


def _head(counted: Sequence[Result], read: int) -> str:
    """Return the introduction of the page."""
    left = f" ({read - len(counted)} unfinished or failed left out)" if read > len(counted) else ""
    tasks = len({result.task for result in counted})
    steps = sum(float(result.steps[-1]) for result in counted)
    versions = sorted({f"{n} {r.versions[n]}" for r in counted for n in ("rpsp", "sb3-contrib") if n in r.versions})
    took = clock(sum(result.seconds for result in counted))
    return "\n".join(
        [
            "# Results\n",
            paragraph(
                "This page shows the paper's experiments and additional ones. `rpsp paper --page` generates it from "
                f"the result files, one per run. It is based on {plural(len(counted), 'run')} of "
                f"{plural(tasks, 'task')}{left}: {steps / 1e6:,.1f} million environment steps, which took {took} "
                f"(hours:minutes:seconds) on one core. Versions: {', '.join(versions)}."
            ),
            paragraph(
                "The agent observes positions only. Rewards are those of Gymnasium's v5 environments, so the order of "
                "methods can be compared with the paper, but not the numbers. *Area under curve* is the sum of the "
                "mean returns over iterations. *Final return* is the mean return of the last ten iterations. Errors "
                "are standard errors over seeds. The methods of a table are compared over the iterations that all of "
                "them have on that task. Figures show the full curves, averaged over a few iterations per point."
            ),
            paragraph(
                "If a curve has several candidates (windows, numbers of units, step sizes), it is shown twice: first "
                "with the same setting on all tasks, then *selected* as in the paper. Selection takes the candidate "
                "with the largest mean area under the curve on each task, among those with at least half as many seeds "
                "as any other. It favours curves with many candidates."
            ),
        ]
    )
