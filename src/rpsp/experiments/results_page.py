"""The page of results: the verdict, and every experiment of which there is a curve. No number on it is typed.

`document` makes its text from results alone, so that a test can hold the page against them; `write` draws the figures too.
"""

from __future__ import annotations

import dataclasses
import os
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from rpsp.data.files import write_bytes
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments import claims, statistics
from rpsp.experiments import figures as plots
from rpsp.experiments.comparison import Row, compare, metric_values
from rpsp.experiments.paper import (
    EVERY,
    EXPERIMENTS,
    PEERS,
    RIVALS,
    Curve,
    Experiment,
    Found,
    candidates,
    far_enough,
    label_of,
    labels_of,
    task_labels,
)
from rpsp.experiments.results import Result
from rpsp.experiments.words import clock, mean_with_error, number

BEYOND = "reg_GRU", "RPSP-Alt, refitted", "RPSI-TRPO", "RPSI-PPO"
"""Curves of table (h) that are not the paper's."""
GLANCE = {
    "RPSI-PPO (ours)": ("RPSI-PPO",),
    "RPSI (ours)": ("RPSI-TRPO",),
    "RPSP (the paper's)": ("RPSP-Alt", "RPSP-VRPG", "RPSP-Alt, refitted"),
    "FM": ("FM",),
    "GRU": ("GRU",),
    "RecurrentPPO": ("RecurrentPPO",),
}
"""What is seen at a glance: the best of some curves each, drawn as the first."""
FIRST, LEAST = EVERY[2:], {"RPSI (ours)", "FM", "GRU"}
"""The README shows it once these tasks have at least these curves."""

WIDTH, GLANCE_WIDTH = 960, 1660
"""Of figures, in pixels; a README is 830 wide, on fine screens twice that."""
SELECTED = "Selected as the paper does, by the largest area under the curve:"


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
        written[plots.save(draw(), page.parent / "figures", name, width)] = ""
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
    glance, glance_text = _glance(found, figures)
    modes = (False, True) if _selects(found) else (False,)
    # Apart: what we set out to show ourselves shall not weigh on the verdict on the paper.
    judged = {
        select: [one for group in (claims.PAPER, claims.OURS) for one in claims.judge(group, found, select)]
        for select in modes
    }
    sections = [_head(counted, len(results)), _verdict(judged), glance, _table_h(found), _peers(found)]
    experiments = {name: _experiment(name, found, figures) for name in EXPERIMENTS if name != "h"}
    empty = [name for name, text in experiments.items() if not text]
    missing = _paragraph(f"There is nothing to show yet of: {', '.join(empty)}.") if empty else ""
    sections += [*experiments.values(), missing, _evidence(judged[max(judged)]), _runs(found)]
    return Document("\n".join(filter(None, sections)), figures, glance_text)


# ---------------------------------------------------------------------------------------------------------------------
# Markdown
# ---------------------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table whose first columns are words and whose others are numbers."""
    lines = [head, ["---"] * left + ["---:"] * (len(head) - left), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def between(text: str, mark: str, content: str) -> str:
    """A text with what stands between `<!-- mark -->` and `<!-- /mark -->` replaced."""
    before, _, after = text.partition(f"<!-- {mark} -->\n")
    return f"{before}<!-- {mark} -->\n{content}{after[after.index(f'<!-- /{mark} -->') :]}"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def _percent(value: float) -> str:
    return f"{100 * value:+.1f} %".replace("-", "−")


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _pm(mean: Any, error: Any) -> str:
    """A mean and its standard error, without a line break between them."""
    return mean_with_error(float(mean), float(error)).replace(" ", "\u00a0")


def _seeds(values: np.ndarray) -> str:
    """The mean of runs, its standard error, and their number."""
    return f"{_pm(*statistics.mean_and_error(values))}\u00a0({len(values)})"


def _p(value: float) -> str:
    return "–" if np.isnan(value) else "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def _code(name: str, label: str) -> str:
    """A curve by its name, and the method that stands for it unless that is its name."""
    return f"`{label}`" if name == label else f"{name} (`{label}`)"


# ---------------------------------------------------------------------------------------------------------------------
# What there is, and what it comes to
# ---------------------------------------------------------------------------------------------------------------------


def _head(counted: Sequence[Result], read: int) -> str:
    left = f" (and {read - len(counted)} unfinished or failed, left out)" if read > len(counted) else ""
    tasks = len({result.task for result in counted})
    steps = sum(float(result.steps[-1]) for result in counted)
    versions = sorted({f"{n} {r.versions[n]}" for r in counted for n in ("rpsp", "sb3-contrib") if n in r.versions})
    took = clock(sum(result.seconds for result in counted))
    return "\n".join(
        [
            "# Results\n",
            _paragraph(
                "The paper's experiments, and ours beside them. `rpsp paper --page` makes this page from the files of "
                f"results, one a run; nothing on it is typed. It rests on {_plural(len(counted), 'run')} of "
                f"{_plural(tasks, 'task')}{left}: {steps / 1e6:,.1f} million environment steps in {took} of one core "
                f"({', '.join(versions)})."
            ),
            _paragraph(
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


def _verdict(judged: Mapping[bool, Sequence[claims.Judged]]) -> str:
    """What became of the claims: with one setting a method, and selected where there is anything to select from."""
    texts = {"one setting a method" if len(judged) > 1 else "verdict": judged[False]}
    texts |= {"selected": judged[True]} if len(judged) > 1 else {}
    rows = [
        [one.claim.text, one.claim.where, *(_said(each[i]) for each in texts.values())]
        for i, one in enumerate(judged[False])
    ]
    n, last = len(claims.PAPER), judged[max(judged)]
    head = ["", *texts]
    return "\n".join(
        [
            "## The verdict\n",
            _paragraph(
                f"Of the paper's {n} claims {_count(last[:n])}; of our own {len(claims.OURS)} claims {_count(last[n:])}. "
                "[The evidence](#the-evidence) is below."
            ),
            table(["the paper says", *head], rows[:n], len(head) + 1),
            table(["we set out to show", *head], rows[n:], len(head) + 1),
            _paragraph(
                f"It takes {claims.FEWEST} seeds on either side, and tests are Welch's at {claims.LEVEL:g}, corrected by "
                "Holm over the paper's claims together, and over ours. That one is *better* holds where it is "
                "significantly so; it does not hold "
                "where it is significantly worse, or where the 95 % interval of the difference leaves no advantage of "
                f"{100 * claims.MARGIN:g} %. That one is *not worse* holds where its mean is no lower, or the interval "
                "leaves no such disadvantage, and does not where it is significantly worse. That two are *alike* holds "
                "where the interval leaves no such difference, and does not where they differ significantly. Anything "
                "else is undecided. A claim of several tests holds if all do, and does not if one does not, unless it says "
                "how many must. The best of "
                "several curves was chosen by the same runs, which favours it a little."
            ),
        ]
    )


def _selects(found: Found) -> bool:
    """Whether there is anything to select from."""
    names = {name for experiment in EXPERIMENTS.values() for name in experiment.curves}
    return _from_several(found.curve(task, name, select=True) for task in found.runs for name in names)


def _said(judged: claims.Judged) -> str:
    """The verdict; in parentheses what its tests say, where they are not of one mind, and how many cannot be made yet."""
    words = {"holds": "hold", "undecided": "undecided", "does not hold": "do not"}
    told = Counter(words[o.verdict] if o.enough else "without runs enough" for o in judged.outcomes)
    parts = ", ".join(f"{told[word]} {word}" for word in (*words.values(), "without runs enough") if told[word])
    return f"**{judged.verdict}**" + (f" ({parts})" if {*told} - {words[judged.verdict]} else "")


def _count(judged: Sequence[claims.Judged]) -> str:
    counts = Counter(each.verdict for each in judged)
    return f"{counts['holds']} hold, {counts['does not hold']} do not and {counts['undecided']} are undecided"


def _evidence(judged: Sequence[claims.Judged]) -> str:
    """Every test of every claim."""
    parts = [
        "## The evidence\n",
        "Means ± standard errors (seeds); differences, and their plain 95 % intervals, in percent of the rival's value.\n",
    ]
    for each in judged:
        text = each.claim.text
        parts.append(f"**{text[0].upper()}{text[1:]}** ({each.claim.where}): {each.verdict}.\n")
        parts.append("\n".join(f"- {_outcome(outcome)}" for outcome in each.outcomes) + "\n")
    return "\n".join(parts)


def _outcome(outcome: claims.Outcome) -> str:
    duel, sides = outcome.duel, (outcome.challenger, outcome.rival)
    names = " or ".join(duel.challengers), duel.rival
    if absent := [name for name, curve in zip(names, sides, strict=True) if curve is None]:
        return f"{duel.task}: there is no finished run of {' nor of '.join(absent)}."
    times = "" if duel.times == 1 else f"{duel.times:g}\u00a0× "
    told = [
        f"{times if curve is outcome.rival else ''}{_code(curve.name, curve.label)} "
        f"{_seeds(values) if len(values) else '– (0)'}"
        for curve, values in zip(sides, outcome.values, strict=True)
        if curve is not None
    ]
    measure = claims.MEASURES[duel.measure].format(outcome.iterations)
    text = f"{duel.task}: {' against '.join(told)}, {measure}"
    if np.isfinite(outcome.p):
        low, high = statistics.welch_interval(*outcome.values)
        base = abs(float(outcome.values[1].mean()))
        gain = float(outcome.values[0].mean() - outcome.values[1].mean())
        text += ": {} [{}, {}]".format(*(_percent(value / base) for value in (gain, low, high))) if base else ""
        text += f", p = {_p(outcome.p)}, Holm {_p(outcome.p_holm)}"
    return f"{text}; {duel.expected}: {outcome.verdict}."


# ---------------------------------------------------------------------------------------------------------------------
# All four tasks
# ---------------------------------------------------------------------------------------------------------------------


def _drawn(kind: str, *what: Any, **named: Any) -> Figure:
    return getattr(plots, kind)(*what, **named)


def _glance(found: Found, figures: dict[str, Callable[[], Figure]]) -> tuple[str, str]:
    """The section of the page, and of a README."""
    tasks = {
        task: {name: curve for name, names in GLANCE.items() if (curve := found.best(task, names, select=True))}
        for task in EVERY
    }
    tasks = {task: curves for task, curves in tasks.items() if curves}
    if not tasks:
        return "", ""
    runs = {task: {name: curve.runs for name, curve in curves.items()} for task, curves in tasks.items()}
    looks = {name: labels_of(names[0])[0] for name, names in GLANCE.items()}
    figures["glance"] = partial(_drawn, "at_a_glance", runs, looks)
    shown = "; ".join(
        f"{task.removesuffix('-v5')}: " + ", ".join(f"`{curve.label}`" for curve in curves.values())
        for task, curves in tasks.items()
    )
    there = [name for name in GLANCE if any(name in curves for curves in tasks.values())]
    text = f"Positions only: {', '.join(there)}. Lines are means; "
    counts = [len(curve.runs) for curves in tasks.values() for curve in curves.values()]
    fewest = f"{min(counts)} to " if min(counts) < max(counts) else ""
    text += f"bands are standard errors over {fewest}{_plural(max(counts), 'seed')}."
    picture = "![Mean return over environment steps on the four tasks](figures/glance.png)"
    enough = all(set(tasks.get(task, ())) >= LEAST for task in FIRST)
    text += " The table has mean returns of the last tenth of so many steps, ± standard errors (seeds)."
    text = _paragraph(f"{text} Shown are: {shown}. Policies have 16 hidden units, of PPO 64 and 64.")
    returns = _returns(tasks, there)
    readme = f"{picture.replace('(figures', '({docs}/figures')}\n\n{returns}\n{text}"
    return f"## The four tasks at a glance\n\n{picture}\n\n{returns}\n{text}", readme if enough else ""


def _returns(tasks: Mapping[str, Mapping[str, Curve]], names: Sequence[str]) -> str:
    """A column a task, a row a name: returns after as many steps as all runs have but those of other libraries."""
    head, cells = [""], []
    for task, curves in tasks.items():
        steps = _common_steps(curve for name, curve in curves.items() if name not in PEERS)
        values = {name: v for name, curve in curves.items() if len(v := _returns_at(steps, curve))}
        best = max(values, key=lambda name: values[name].mean(), default="")
        texts = {name: _seeds(v) for name, v in values.items()}
        head.append(f"{task.removesuffix('-v5')}, {number(steps / 1e6)} M steps")
        cells.append([f"**{texts[name]}**" if name == best else texts.get(name, "") for name in names])
    return table(head, [row for row in zip(names, *cells, strict=True) if any(row[1:])])


def _common_steps(curves: Iterable[Curve]) -> float:
    """How many environment steps all runs have, in ten thousands; a million at most."""
    return min([1e6, *(float(run.steps[-1]) for curve in curves for run in curve.runs)]) // 1e4 * 1e4


def _returns_at(steps: float, curve: Curve) -> np.ndarray:
    """Of the runs that came so far, the mean return of the last tenth of so many environment steps."""
    values = np.array([statistics.return_at(steps, run.steps, run.returns) for run in curve.runs])
    return values[np.isfinite(values)]


def _table_h(found: Found) -> str:
    """Areas under the curves, all tasks; the best of the paper's four curves marked, and the best of all."""
    parts = []
    for select in (False, True):
        columns = {task: [found.curve(task, name, select) for name in (*RIVALS, *BEYOND)] for task in EVERY}
        columns = {task: curves for task, curves in columns.items() if any(curves)}
        if not columns or (select and not _from_several(c for curves in columns.values() for c in curves)):
            continue
        head, cells = [""], []
        for task, curves in columns.items():
            length = min(curve.iterations for curve in curves if curve)
            areas = [_areas(curve, length) if curve else None for curve in curves]
            means = [-np.inf if area is None else float(area.mean()) for area in areas]
            best = {max(means[: len(RIVALS)]), max(means)}
            head.append(f"{task.removesuffix('-v5')}, {length}")
            texts = [_area_text(curve, area) for curve, area in zip(curves, areas, strict=True)]
            cells.append([f"**{text}**" if text and m in best else text for text, m in zip(texts, means, strict=True)])
        rows = zip((*RIVALS, *BEYOND), *cells, strict=True)
        parts += [f"{SELECTED}\n" if select else "", table(head, [row for row in rows if any(row[1:])])]
    if not parts:
        return ""
    intro = _paragraph(
        "Area under curve over so many iterations, in thousands, ± standard error (seeds). Bold: the best of the paper's "
        "four curves, which come first, and the best of all. Policies have 16 hidden units, those of RPSI-PPO twice 64. "
        "The paper's own table is of older versions of the tasks; what its text says of the order is judged above."
    )
    return "\n".join(["## h: the table\n", intro, *filter(None, parts)])


def _areas(curve: Curve, length: int) -> np.ndarray:
    """In thousands."""
    return metric_values([run.cut(length) for run in curve.runs], "auc") / 1000


def _area_text(curve: Curve | None, areas: np.ndarray | None) -> str:
    if curve is None or areas is None:
        return ""
    return _seeds(areas) + (f" `{curve.label}`, of {curve.candidates}" if curve.candidates > 1 else "")


def _from_several(curves: Iterable[Curve | None]) -> bool:
    return any(curve is not None and curve.candidates > 1 for curve in curves)


def _peers(found: Found) -> str:
    """Returns after equally many environment steps, beside other libraries."""
    names = ("RPSI-PPO", "RPSI-TRPO", "RPSP-Alt", "GRU", "FM")
    rows = []
    for task in EVERY:
        peers = {name: curve for name in PEERS if (curve := found.curve(task, name))}
        if not peers:
            continue
        curves = peers | {name: curve for name in names if (curve := found.curve(task, name))}
        steps = _common_steps(curves.values())
        values = {name: _returns_at(steps, curve) for name, curve in curves.items()}
        cells = [_seeds(values[name]) if name in values else "" for name in (*PEERS, *names)]
        rows.append([task.removesuffix("-v5"), f"{steps:,.0f}", *cells])
    if not rows:
        return ""
    intro = _paragraph(
        "Mean return of the last tenth of equally many environment steps, exploration included (seeds). RecurrentPPO has "
        "an LSTM of 64 units, normalised observations and rewards, and is else as sb3-contrib has it."
    )
    return "\n".join(["## Beside RecurrentPPO\n", intro, table(["", "steps", *PEERS, *names], rows)])


# ---------------------------------------------------------------------------------------------------------------------
# Experiment by experiment
# ---------------------------------------------------------------------------------------------------------------------


def _experiment(name: str, found: Found, figures: dict[str, Callable[[], Figure]]) -> str:
    """Figures and tables of an experiment; empty if there is no curve of it."""
    experiment = EXPERIMENTS[name]
    curves = {select: _curves(experiment, found, select) for select in (False, True)}
    changes = _changes(experiment, found)
    if not curves[True] or (experiment.changes and not changes):
        return ""
    parts = [f"## {name}: {experiment.about}\n", _absent(experiment, curves[True])]
    for select, shown in curves.items():
        if not shown or (select and not _from_several(shown)):
            continue
        if select:
            parts.append(f"{SELECTED}\n")
        if not select or {c.label for c in shown} != {c.label for c in curves[False]}:
            figure = f"results/{name}{'_selected' * select}"
            figures[figure] = _bars(shown) if changes else _lines(shown)
            what = "Area under curve" if changes else "Mean return over environment steps"
            parts.append(f"![{what}: {experiment.about}](figures/{figure}.png)\n")
        parts.append(changes or _rows(shown))
    return "\n".join(filter(None, parts))


def _lines(curves: Sequence[Curve]) -> Callable[[], Figure]:
    """Learning curves, each in the colour of its first candidate, whichever stands for it."""
    looks = {curve.name: labels_of(curve.name)[0] for curve in curves}
    runs = [dataclasses.replace(run, method=looks[curve.name]) for curve in curves for run in curve.runs]
    return partial(_drawn, "learning_curves", runs, names={label: name for name, label in looks.items()})


def _bars(curves: Sequence[Curve]) -> Callable[[], Figure]:
    return partial(_drawn, "bars", compare([run for curve in curves for run in curve.runs]).rows)


def _curves(experiment: Experiment, found: Found, select: bool) -> list[Curve]:
    """All that there are; the peers among them only beside others."""
    curves = []
    for task in task_labels(experiment):
        own = [c for name in candidates(experiment) if (c := found.curve(task, name, select))]
        curves += own + [c for name in experiment.peers if own and (c := found.curve(task, name))]
    return curves


def _absent(experiment: Experiment, curves: Sequence[Curve]) -> str:
    """Which curves are not there yet, task by task."""
    there = {(curve.runs[0].task, curve.name) for curve in curves}
    names = [*candidates(experiment), *experiment.peers]
    absent = {task: [n for n in names if (task, n) not in there] for task in task_labels(experiment)}
    told = [
        f"{task}: " + ("all" if len(own) == len(names) else ", ".join(f"`{name}`" for name in own))
        for task, own in absent.items()
        if own
    ]
    return _paragraph(f"Not there yet: {'; '.join(told)}.") if told else ""


def _rows(curves: Sequence[Curve]) -> str:
    """A table a task, a line a curve, tested against the best; the peers, of other iterations, are not among them."""
    parts = []
    for task in dict.fromkeys(curve.runs[0].task for curve in curves):
        chosen = {c.label: c for c in curves if c.runs[0].task == task and c.name not in PEERS}
        rows = compare([run for curve in chosen.values() for run in curve.runs]).rows
        lines = []
        for row in rows:
            curve = chosen[row.method]
            several = f", of {curve.candidates}" if curve.candidates > 1 else ""
            lines.append([_code(curve.name, curve.label) + several, *_numbers(row, curve), _p(row.p_holm)])
        parts.append(f"**{task}**, compared over {_plural(rows[0].iterations, 'iteration')}:\n")
        parts.append(table(["", *NUMBERS, "p to the best, Holm"], lines))
    return "\n".join(parts)


NUMBERS = "seeds × iterations", "area under curve", "final return"


def _numbers(row: Row, curve: Curve) -> list[str]:
    values = _pm(row.area, row.area_error), _pm(row.final, row.final_error)
    return [f"{row.seeds} × {curve.iterations}", *values]


def _changes(experiment: Experiment, found: Found) -> str:
    """A table a task: question by question what one change does, tested against the method without it."""
    parts = []
    for task in task_labels(experiment):
        lines, told = [], ("", 0)
        for question, methods in experiment.changes.items():
            labels = [label_of(method) for method in methods]
            curves = {label: curve for label in labels if (curve := found.curve(task, label))}
            if labels[0] not in curves or len(curves) < 2:
                continue
            rows = compare([run for curve in curves.values() for run in curve.runs], against=labels[0]).rows
            base, *others = sorted(rows, key=lambda row: labels.index(row.method))
            if told != (base.method, base.iterations):
                told = base.method, base.iterations
                over = f"*over {_plural(base.iterations, 'iteration')}*"
                lines.append([over, f"`{base.method}`", *_numbers(base, curves[base.method]), "", ""])
            for row in others:
                change = _percent(row.area / base.area - 1) if base.area > 0 else ""
                numbers = _numbers(row, curves[row.method])
                lines.append([question, f"`{row.method}`", *numbers, change, _p(row.p_holm)])
                question = ""
        if lines:
            parts += [f"**{task}**:\n", table(["what is changed", "", *NUMBERS, "change of area", "p, Holm"], lines, 2)]
    return "\n".join(parts)


def _runs(found: Found) -> str:
    """Every run that this page rests on."""
    lines, before = [], ""
    for task, methods in found.runs.items():
        for label, runs in methods.items():
            lengths = sorted({len(run.returns) for run in runs})
            samples = np.mean([np.diff(run.steps).mean() if len(run.steps) > 1 else run.steps[0] for run in runs])
            each = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
            took = clock(float(np.mean([run.seconds for run in runs])))
            lines.append(
                ["" if task == before else task, f"`{label}`", f"{len(runs)}", each, number(float(samples)), took]
            )
            before = task
    head = ["task", "method", "seeds", "iterations", "steps an iteration", "time a run"]
    return "\n".join(["## Every run\n", table(head, lines, 2)])
