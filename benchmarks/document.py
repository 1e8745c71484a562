"""docs/benchmarks.md and its figures, drawn from benchmarks/results/*.json: no number on that page is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HEAD = """# Measurements

Everything on this page is drawn from `benchmarks/results/*.json` by `python -m benchmarks --docs`; nothing is typed.
`make bench` measures all of it again, `.venv/bin/python -m benchmarks NAME` one part. Measured on two cores of an AMD
EPYC virtual machine; errors are squared errors over variance (0 perfect, 1 the mean) unless said otherwise.
"""


def write_page(results: Path, docs: Path) -> None:
    sections: dict[str, Callable[[dict[str, Any], Path], str]] = {
        "prediction": _prediction,
        "fresh": _fresh,
        "kalman": _kalman,
        "exact_bayes": _exact_bayes,
        "timing": _timing,
        "batch_stepping": _batch_stepping,
    }
    parts = [HEAD]
    for name, write in sections.items():
        path = results / f"{name}.json"
        if path.exists():
            parts.append(write(json.loads(path.read_text()), docs / "figures"))
            parts.append(f"Measure again: `.venv/bin/python -m benchmarks {name}`\n")
    (docs / "benchmarks.md").write_text("\n".join(parts))
    readme = docs.parent / "README.md"
    before, _, after = readme.read_text().partition("<!-- measured -->\n")
    summary = _glance(*(json.loads((results / f"{name}.json").read_text()) for name in ("prediction", "fresh")))
    readme.write_text(f"{before}<!-- measured -->\n{summary}{after[after.index('<!-- /measured -->') :]}")


def _glance(figures: dict[str, Any], fresh: dict[str, Any]) -> str:
    """The README's table: one step ahead, on the data of a trained policy."""
    rows = [row for row in figures["rows"] if row["data"] == "trained policy"]
    names = ("persistence", "linear AR(10)", "kernel-bayes, refined", "GRU 32, BPTT", "inference, closed form")
    lines = []
    for row in rows:
        values = [row["errors"][name][0] for name in names]
        lines.append([row["task"].removesuffix("-v5"), *(_bold(_short(v), v == min(values)) for v in values)])
    wins = [row["inference, closed form"] <= row["linear AR(10)"] for row in fresh["rows"]]
    return (
        "One-step squared error over variance, positions only, held-out episodes of a trained policy:\n\n"
        + _table(["task", *names], lines)
        + "\nSome defaults were chosen with these data in view. On fresh seeds, which no setting was chosen by,\n"
        f"the inference filter is at least as good as AR(10) on {sum(wins)} of {len(wins)} data sets.\n"
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _prediction(figures: dict[str, Any], into: Path) -> str:
    rows = figures["rows"]
    names = list(rows[0]["errors"])
    parts = ["## Four tasks, positions only\n", _doc("prediction")]
    for steps in (1, 5, 10):
        head = [
            f"{steps} step{'s' * (steps > 1)} ahead",
            *(f"{r['task'].removesuffix('-v5')}, {r['data']}" for r in rows),
        ]
        best = [min(r["errors"][n][steps - 1] for n in names) for r in rows]
        lines = []
        for name in names:
            values = [r["errors"][name][steps - 1] for r in rows]
            lines.append([name, *(_bold(_short(v), v == b) for v, b in zip(values, best, strict=True))])
        parts.append(_table(head, lines))
    gains = [r["errors"]["linear AR(10)"][0] / r["errors"]["inference, closed form"][0] for r in rows]
    worse = [r["errors"]["random, refined"][0] / r["errors"]["kernel-bayes, refined"][0] for r in rows]
    parts.append(
        f"One step ahead, linear AR(10)'s error is {min(gains):.2f} to {max(gains):.2f} times the inference filter's, and "
        f"that of a randomly initialised kernel-Bayes filter {min(worse):.1f} to {max(worse):.1f} times that of the "
        "two-stage one after equal refinement.\n"
    )
    return "\n".join(parts)


def _fresh(figures: dict[str, Any], into: Path) -> str:
    names = [name for name in figures["rows"][0] if name not in ("task", "data")]
    lines = [
        [f"{r['task'].removesuffix('-v5')}, {r['data']}", *(_short(r[name]) for name in names)] for r in figures["rows"]
    ]
    kalman = figures["kalman"]
    return "\n".join(
        [
            "## The same on fresh data\n",
            _doc("fresh"),
            _table(["1 step ahead", *names], lines),
            f"Inference over Kalman, ten fresh systems: {np.mean(kalman):.4f} on average, {max(kalman):.4f} at worst.\n",
        ]
    )


def _kalman(figures: dict[str, Any], into: Path) -> str:
    names = [n for n in figures["rows"][0] if n not in ("latent", "observations")]
    lines = []
    for row in figures["rows"]:
        cells = [", ".join(f"{r:.3f}" for r in row[name]) for name in names]
        lines.append([f"{row['latent']} latent, {row['observations']} seen", *cells])
    summary = figures["inference"]
    return "\n".join(
        [
            "## Against the Kalman filter\n",
            _doc("kalman"),
            _table(["system", *names], lines),
            f"The inference filter's error is {summary['mean']:.4f} times the Kalman filter's on average over "
            f"{summary['systems']} systems, {summary['worst']:.4f} at worst.\n",
        ]
    )


def _exact_bayes(figures: dict[str, Any], into: Path) -> str:
    from rpsp.experiments.figures import plt, save

    figure, axes = plt.subplots(figsize=(6.0, 4.0))
    samples = np.array(figures["samples"])
    for colour, (name, errors) in zip(("#009E73", "#D55E00"), figures["error"].items(), strict=True):
        axes.loglog(samples, errors, "o-", color=colour, lw=2, label=f"{name} (slope {figures['slope'][name]:.2f})")
    first = max(errors[0] for errors in figures["error"].values())
    axes.loglog(samples, 1.3 * first * np.sqrt(samples[0] / samples), "--", color="0.5", label="1/√N")
    axes.axhline(figures["spread of the exact predictions"], color="0.7", lw=1)
    axes.annotate("always predicting the average", (samples[0], figures["spread of the exact predictions"]), (0, 4),
                  textcoords="offset points", color="0.5", fontsize=9)  # fmt: skip
    axes.set_xlabel("steps of data")
    axes.set_ylabel("RMS distance from exact Bayes")
    axes.legend()
    save(figure, into, "exact_bayes")
    lines = [[f"{n:,}", *(f"{e[i]:.4f}" for e in figures["error"].values())] for i, n in enumerate(samples)]
    return "\n".join(
        [
            "## Against exact Bayes\n",
            _doc("exact_bayes"),
            "![Error against data, falling as one over the square root](figures/exact_bayes.png)\n",
            _table(["steps of data", *figures["error"]], lines),
        ]
    )


def _timing(figures: dict[str, Any], into: Path) -> str:
    lines = []
    for name, label in (("fit_inference", "inference fit"), ("fit_two_stage", "two-stage fit")):
        f = figures[name]
        lines.append(
            [
                f"{label}, {f['samples']:,} steps",
                f"{f['again_seconds']:.2f} s ({f['first_seconds']:.2f} s with compilation)",
            ]
        )
    for name, seconds in figures["filtering"].items():
        lines.append([f"filtering 10 rows × 1000 steps, {name.removesuffix('_seconds')}", f"{seconds:.3f} s"])
    for name, label in (("million_inference", "inference fit"), ("million_two_stage", "two-stage fit")):
        f = figures[name]
        lines.append([f"{label}, {f['samples']:,} steps", f"{f['seconds']:.0f} s, peak {f['peak_gigabytes']:.2f} GB"])
    return "\n".join(["## Time and memory, one core\n", _doc("timing"), _table(["what", "measured"], lines)])


def _batch_stepping(figures: dict[str, Any], into: Path) -> str:
    lines = [[name.replace("_", " "), f"{v:,.0f} steps/s" if v > 100 else f"{v:.2f}"] for name, v in figures.items()]
    return "\n".join(["## Batch stepping, Hopper\n", _doc("batch_stepping"), _table(["what", "measured"], lines)])


def _doc(name: str) -> str:
    """What the benchmark's own docstring says."""
    import ast

    source = (Path(__file__).parent / f"{name}.py").read_text()
    return (ast.get_docstring(ast.parse(source)) or "") + "\n"


def _short(value: float) -> str:
    return f"{value:.2g}" if value >= 0.01 else f"{value:.1e}".replace("e-0", "e-")


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text
