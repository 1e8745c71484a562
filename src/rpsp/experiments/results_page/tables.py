"""Tables over all tasks: returns at a glance, areas under the curves, other libraries, and a list of all runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from rpsp.experiments import statistics
from rpsp.experiments.comparison import metric_values
from rpsp.experiments.figures.curves import at_a_glance
from rpsp.experiments.paper.curves import Curve, Found
from rpsp.experiments.paper.tables import (
    EVERY,
    PEERS,
    PROTOCOLS,
    RIVALS,
    labels_of,
)
from rpsp.experiments.results_page.markdown import (
    paragraph,
    plural,
    seeds_text,
    table,
)
from rpsp.experiments.words import clock, number

GLANCE = {
    "RPSI-PPO (ours)": ("RPSI-PPO",),
    "FM-PPO": ("fm2-ppo",),
    "RPSI (ours)": ("RPSI-TRPO",),
    "RPSR (ours)": ("RPSR-Alt",),
    "RPSP (the paper's)": ("RPSP-Alt", "RPSP-VRPG"),
    "RPSP, refitted (ours)": ("RPSP-Alt, refitted",),
    "FM": ("FM",),
    "GRU": ("GRU",),
    "RecurrentPPO": ("RecurrentPPO",),
}
"""Lines of the overview: the best of some curves each, with the style of the first."""

BEYOND = {
    "reg_GRU": "reg_GRU",
    "RPSP-Alt, refitted": "RPSP-Alt, refitted (ours)",
    "RPSR-Alt": "RPSR-Alt (ours)",
    "RPSI-TRPO": "RPSI-TRPO (ours)",
    "RPSI-PPO": "RPSI-PPO (ours)",
}
"""Curves in table (h) that are not in the paper's table, and how they are shown."""
FIRST, LEAST = EVERY[2:], {"RPSI (ours)", "FM", "GRU"}
"""The README shows the overview if these tasks have at least these curves."""
SELECTED = "Selected by the largest area under the curve, as in the paper:"


def glance_section(found: Found, figures: dict[str, Callable[[], Figure]]) -> tuple[str, str]:
    """Return the overview of the page and of a README."""
    tasks = {
        task: {name: curve for name, names in GLANCE.items() if (curve := found.best(task, names, select=True))}
        for task in EVERY
    }
    tasks = {task: curves for task, curves in tasks.items() if curves}
    if not tasks:
        return "", ""
    runs = {task: {name: curve.runs for name, curve in curves.items()} for task, curves in tasks.items()}
    looks = {name: labels_of(names[0])[0] for name, names in GLANCE.items()}
    figures["glance"] = partial(at_a_glance, runs, looks)
    there = [name for name in GLANCE if any(name in curves for curves in tasks.values())]
    text = "Mean returns from positions only. Lines are means, "
    counts = [len(curve.runs) for curves in tasks.values() for curve in curves.values()]
    fewest = f"{min(counts)} to " if min(counts) < max(counts) else ""
    text += f"bands are standard errors over {fewest}{plural(max(counts), 'seed')}."
    picture = "![Mean return over environment steps on the four tasks](figures/glance.png)"
    enough = all(set(tasks.get(task, ())) >= LEAST for task in FIRST)
    text += " The table shows the mean return in the last tenth of the given steps ± standard error (seeds); a cell is "
    text += "empty if the runs have fewer steps."
    text = paragraph(
        f"{text} RPSI is direct inference, RPSR is kernel Bayes rule on the residuals of a linear filter, FM is finite "
        f"memory. Policies have 16 hidden units, those of PPO two layers of 64. Methods: {_labels(tasks, there)}."
    )
    returns = _returns(tasks, there)
    readme = f"{picture.replace('(figures', '({docs}/figures')}\n\n{returns}\n{text}"
    return f"## The four tasks at a glance\n\n{picture}\n\n{returns}\n{text}", readme if enough else ""


def _labels(tasks: Mapping[str, Mapping[str, Curve]], names: Sequence[str]) -> str:
    """List the method behind each line of the overview, with the tasks if it is not the same on all of them."""
    parts = []
    for name in names:
        where: dict[str, list[str]] = {}
        for task, curves in tasks.items():
            if name in curves:
                where.setdefault(curves[name].label, []).append(task.removesuffix("-v5"))
        on = {label: f" ({', '.join(found)})" if len(where) > 1 else "" for label, found in where.items()}
        parts.append(f"{name}: {', '.join(f'`{label}`{text}' for label, text in on.items())}")
    return "; ".join(parts)


def _returns(tasks: Mapping[str, Mapping[str, Curve]], names: Sequence[str]) -> str:
    """Return a table of returns, one column per task, after the steps that all runs of this library have.

    Curves with less than half the steps of another one do not count, and have no entry.
    """
    head, cells = [""], []
    for task, curves in tasks.items():
        ends = {name: _common_steps([curve]) for name, curve in curves.items() if name not in PEERS}
        steps = min((end for end in ends.values() if 2 * end >= max(ends.values())), default=_common_steps([]))
        values = {name: v for name, curve in curves.items() if len(v := _returns_at(steps, curve))}
        best = max(values, key=lambda name: values[name].mean(), default="")
        texts = {name: seeds_text(v) for name, v in values.items()}
        head.append(f"{task.removesuffix('-v5')}, {number(steps / 1e6)} M steps")
        cells.append([f"**{texts[name]}**" if name == best else texts.get(name, "") for name in names])
    return table(head, [row for row in zip(names, *cells, strict=True) if any(row[1:])])


def _common_steps(curves: Iterable[Curve]) -> float:
    """Return the number of environment steps that all runs have, rounded down to 10 000; at most a million."""
    return min([1e6, *(float(run.steps[-1]) for curve in curves for run in curve.runs)]) // 1e4 * 1e4


def _returns_at(steps: float, curve: Curve) -> np.ndarray:
    """Return the mean return of each run in the last tenth of these environment steps. Shorter runs are left out."""
    values = np.array([statistics.return_at(steps, run.steps, run.returns) for run in curve.runs])
    return values[np.isfinite(values)]


def protocols_section(under: Mapping[str, Found]) -> str:
    """Return the areas of the paper's four curves under each protocol, and their order.

    Args:
        under: the results under each protocol, by its name.
    """
    head, cells, orders = [""], [], []
    for task in EVERY:
        name = task.removesuffix("-v5")
        orders.append([name])
        for protocol, found in under.items():
            curves = {rival: c for rival in RIVALS if (c := found.curve(task, rival, select=True))}
            length = min((curve.iterations for curve in curves.values()), default=0)
            areas = {rival: _areas(curve, length) for rival, curve in curves.items()}
            order = sorted(areas, key=lambda rival: -float(areas[rival].mean()))
            texts = {rival: seeds_text(values) for rival, values in areas.items()}
            head.append(f"{name}, {protocol}" + (f", {length}" if length else ""))
            cells.append([f"**{texts[r]}**" if r in order[:1] else texts.get(r, "missing") for r in RIVALS])
            orders[-1].append(_order_text(order))
    intro = paragraph(
        "Area under curve in thousands ± standard error (seeds) under the [authors' protocol and with equal "
        "optimisers](#verdict), over the number of iterations in the head of the table. Each curve is the candidate with "
        "the largest area, named under [Evidence](#evidence). Bold: the largest. All other tables are with equal "
        "optimisers."
    )
    by_area = table(["order of the areas", *(PROTOCOLS[name].short for name in under)], orders, 1 + len(under))
    return "\n".join(["## The two protocols\n", intro, table(head, zip(RIVALS, *cells, strict=True)), by_area])


def _order_text(order: Sequence[str]) -> str:
    """Format the order of the paper's four curves, and those that are missing."""
    missing = [rival for rival in RIVALS if rival not in order]
    parts = [" > ".join(order), f"missing: {', '.join(missing)}" if missing else ""]
    return "; ".join(filter(None, parts))


def area_section(found: Found) -> str:
    """Return the table of areas under the curves on all tasks."""
    parts = []
    for select in (False, True):
        columns = {task: [found.curve(task, name, select) for name in (*RIVALS, *BEYOND)] for task in EVERY}
        columns = {task: curves for task, curves in columns.items() if any(curves)}
        if not columns or (select and not from_several(c for curves in columns.values() for c in curves)):
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
        rows = zip((*RIVALS, *BEYOND.values()), *cells, strict=True)
        parts += [f"{SELECTED}\n" if select else "", table(head, [row for row in rows if any(row[1:])])]
    if not parts:
        return ""
    intro = paragraph(
        "Area under curve in thousands ± standard error (seeds), over the number of iterations in the head of the "
        "table. Bold: the best of the paper's four curves, which come first, and the best of all. Policies have 16 "
        "hidden units, those of RPSI-PPO two layers of 64. The paper's own table is based on older versions of the "
        "tasks. Its statements about the order of methods are judged above."
    )
    return "\n".join(["## h: areas under the curves\n", intro, *filter(None, parts)])


def _areas(curve: Curve, length: int) -> np.ndarray:
    """Return the area under the curve of each run, in thousands."""
    return metric_values([run.cut(length) for run in curve.runs], "auc") / 1000


def _area_text(curve: Curve | None, areas: np.ndarray | None) -> str:
    """Format the areas of a curve, with the label of the selected candidate."""
    if curve is None or areas is None:
        return ""
    return seeds_text(areas) + (f" `{curve.label}`, of {curve.candidates}" if curve.candidates > 1 else "")


def from_several(curves: Iterable[Curve | None]) -> bool:
    """Return whether any of the curves was selected from several candidates."""
    return any(curve is not None and curve.candidates > 1 for curve in curves)


def peers_section(found: Found) -> str:
    """Return the table of returns after equally many environment steps, with other libraries."""
    names = ("RPSI-PPO", "RPSI-TRPO", "RPSR-Alt", "RPSP-Alt", "GRU", "FM")
    rows = []
    for task in EVERY:
        peers = {name: curve for name in PEERS if (curve := found.curve(task, name))}
        if not peers:
            continue
        curves = peers | {name: curve for name in names if (curve := found.curve(task, name))}
        steps = _common_steps(curves.values())
        values = {name: _returns_at(steps, curve) for name, curve in curves.items()}
        cells = [seeds_text(values[name]) if name in values else "" for name in (*PEERS, *names)]
        rows.append([task.removesuffix("-v5"), f"{steps:,.0f}", *cells])
    if not rows:
        return ""
    intro = paragraph(
        "Mean return in the last tenth of equally many environment steps, including exploration, ± standard error "
        "(seeds). RecurrentPPO has an LSTM of 64 units, normalised observations and normalised rewards. Its other "
        "settings are the defaults of sb3-contrib."
    )
    return "\n".join(["## Comparison with RecurrentPPO\n", intro, table(["", "steps", *PEERS, *names], rows)])


def runs_section(found: Found) -> str:
    """Return a table of all runs."""
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
    head = ["task", "method", "seeds", "iterations", "steps per iteration", "time per run"]
    return "\n".join(["## All runs\n", table(head, lines, 2)])
