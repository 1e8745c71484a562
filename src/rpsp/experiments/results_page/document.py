"""Part of the split of a larger module."""

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
from rpsp.experiments.paper.tables import (
    EXPERIMENTS,
)
from rpsp.experiments.results import Result
from rpsp.experiments.results_page.experiments import experiment_section
from rpsp.experiments.results_page.markdown import (
    between,
    paragraph,
    plural,
)
from rpsp.experiments.results_page.tables import area_section, from_several, glance_section, peers_section, runs_section
from rpsp.experiments.results_page.verdict import evidence_section, verdict_section
from rpsp.experiments.words import clock

WIDTH, GLANCE_WIDTH = 960, 1660
"""Of figures, in pixels; a README is 830 wide, on fine screens twice that."""


class Document(NamedTuple):
    """A page, the figures on it, and what a README shows of it."""

    text: str
    figures: dict[str, Callable[[], Figure]]
    """By their names under figures/; called, each is drawn."""
    glance: str
    """With {docs} for where the page is; empty as long as there is too little to show."""


def write(results: Sequence[Result], page: Path, readme: Path | None = None, scale: float = 1.0) -> list[Path]:
    """Write the page, its figures beside it and a README's part; returns the paths. Figures it no longer has are removed."""
    found = document(results, scale)
    written = {page: found.text}
    if readme is not None:
        text = readme.read_text(encoding="utf8") if readme.is_file() else ""
        if "<!-- glance -->\n" not in text or "<!-- /glance -->" not in text:
            raise UsageError(
                f"readme: {str(readme)!r} has no lines <!-- glance --> and <!-- /glance --> to write between."
            )
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
    """The page of some results: of those that did what was asked of them, or this fraction of the paper's iterations."""
    counted = far_enough(results, scale)
    if not counted:
        raise FileFormatError(
            "page: there is no finished run to show; give --results or --out a directory that has some."
        )
    found, figures = Found(counted), {}
    glance, glance_text = glance_section(found, figures)
    modes = (False, True) if _selects(found) else (False,)
    # Apart: what we set out to show ourselves shall not weigh on the verdict on the paper.
    judged = {
        select: [one for group in (claims.PAPER, claims.OURS) for one in claims.judge(group, found, select)]
        for select in modes
    }
    sections = [
        _head(counted, len(results)),
        verdict_section(judged),
        glance,
        area_section(found),
        peers_section(found),
    ]
    experiments = {name: experiment_section(name, found, figures) for name in EXPERIMENTS if name != "h"}
    empty = [name for name, text in experiments.items() if not text]
    missing = paragraph(f"There is nothing to show yet of: {', '.join(empty)}.") if empty else ""
    sections += [*experiments.values(), missing, evidence_section(judged[max(judged)]), runs_section(found)]
    return Document("\n".join(filter(None, sections)), figures, glance_text)


def _head(counted: Sequence[Result], read: int) -> str:
    left = f" (and {read - len(counted)} unfinished or failed, left out)" if read > len(counted) else ""
    tasks = len({result.task for result in counted})
    steps = sum(float(result.steps[-1]) for result in counted)
    versions = sorted({f"{n} {r.versions[n]}" for r in counted for n in ("rpsp", "sb3-contrib") if n in r.versions})
    took = clock(sum(result.seconds for result in counted))
    return "\n".join(
        [
            "# Results\n",
            paragraph(
                "The paper's experiments, and ours beside them. `rpsp paper --page` makes this page from the files of "
                f"results, one a run; nothing on it is typed. It rests on {plural(len(counted), 'run')} of "
                f"{plural(tasks, 'task')}{left}: {steps / 1e6:,.1f} million environment steps in {took} of one core "
                f"({', '.join(versions)})."
            ),
            paragraph(
                "Tasks show positions only and have the rewards of Gymnasium's v5: orders can be compared with the "
                "paper's, numbers cannot. *Area under curve* is the sum over iterations of the mean return, *final "
                "return* the mean of the last ten iterations, ± the standard error over seeds. Methods of a table are "
                "compared over the iterations that all of them have on that task; figures show every curve as far as "
                "it goes, in points of a few iterations each. Where there are results of several candidates for a curve "
                "(windows, units, step sizes), it is shown twice: with one setting on all tasks, then *selected* as in "
                "the paper, the candidate of the largest mean area under the curve on each task, of those with at least "
                "half as many seeds as any. The more candidates, the more of that is luck."
            ),
        ]
    )


def _selects(found: Found) -> bool:
    """Whether there is anything to select from."""
    names = {name for experiment in EXPERIMENTS.values() for name in experiment.curves}
    return from_several(found.curve(task, name, select=True) for task in found.runs for name in names)
