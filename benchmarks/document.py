"""Write docs/benchmarks.md and its figures from benchmarks/results/*.json, so that no figure is typed by hand."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rpsp.experiments.results import Result, read_results
from rpsp.experiments.results_page.markdown import between, table
from rpsp.experiments.statistics import mean_and_error, return_at
from rpsp.experiments.words import mean_with_error

HEAD = """# Measurements

Everything on this page is drawn from `benchmarks/results/*.json` by `python -m benchmarks --docs`; nothing is typed.
`make bench` measures all of it again, `.venv/bin/python -m benchmarks NAME` one part. Measured on two cores of an AMD
EPYC virtual machine; errors are squared errors over variance (0 perfect, 1 the mean) unless said otherwise.
"""


def write_page(results: Path, docs: Path) -> None:
    sections: dict[str, Callable[[Any, Path], str]] = {
        "learning": _learning,
        "training_speed": _training_speed,
        "refit_speed": _refit_speed,
        "lockstep": _lockstep,
        "overlap": _overlap,
        "against_sb3": _against_sb3,
        "belief_ppo": _belief_ppo,
        "wall_time": _wall_time,
        "gpu": _gpu,
        "together": _together,
        "prediction": _prediction,
        "fresh": _fresh,
        "knows": _knows,
        "stale": _stale,
        "transfer": _transfer,
        "alignment": _alignment,
        "closed_loop": _closed_loop,
        "kalman": _kalman,
        "exact_bayes": _exact_bayes,
        "timing": _timing,
        "batch_stepping": _batch_stepping,
        "many_results": _many_results,
        "report": _report,
        "sweep_overhead": _sweep_overhead,
        "logging_cost": _logging_cost,
        "serving": _serving,
    }
    parts = [HEAD]
    for name, write in sections.items():
        path = results / f"{name}.json"
        if path.exists():
            parts.append(write(json.loads(path.read_text(encoding="utf-8")), docs / "figures"))
            if name not in ("learning", "belief_ppo"):  # says so itself
                parts.append(f"Measure again: `.venv/bin/python -m benchmarks {name}`\n")
    (docs / "benchmarks.md").write_text("\n".join(parts), encoding="utf-8")
    written = {name: json.loads((results / f"{name}.json").read_text(encoding="utf-8")) for name in GLANCES}
    readme = docs.parent / "README.md"
    text = readme.read_text(encoding="utf-8")
    text = between(text, "measured", _glance(written["prediction"], written["fresh"]))
    readme.write_text(between(text, "speed", _speed(written["against_sb3"])), encoding="utf-8")


GLANCES = ("prediction", "fresh", "against_sb3")
"""The results that the README also shows."""


def _speed(figures: dict[str, Any]) -> str:
    """Return the README's sentence about speed."""
    rates = figures["steps_per_second"]
    ours = " and ".join(f"{rates[name]:,.0f} ({name})" for name in figures["ratios"])
    return (
        "Environment steps per second of the whole training loop, position-only Hopper, ten environments, two cores\n"
        f"(version {figures['version']}): {ours}; RecurrentPPO with an LSTM of 64 units {rates['RecurrentPPO']:,.0f}. "
        "[How this was measured](docs/benchmarks.md#beside-recurrentppo).\n"
    )


def _glance(figures: dict[str, Any], fresh: dict[str, Any]) -> str:
    """Return the README's table: errors one step ahead, on data of a trained policy."""
    rows = [row for row in figures["rows"] if row["data"] == "trained policy"]
    names = ("persistence", "linear AR(10)", "kernel-bayes, refined", "GRU 32, BPTT", "inference, closed form")
    lines = []
    for row in rows:
        values = [row["errors"][name][0] for name in names]
        lines.append([row["task"].removesuffix("-v5"), *(_bold(_short(v), v == min(values)) for v in values)])
    wins = [row["inference, closed form"] <= row["linear AR(10)"] for row in fresh["rows"]]
    return (
        "One-step squared error over variance, positions only, held-out episodes of a trained policy:\n\n"
        + table(["task", *names], lines)
        + "\nSome defaults were chosen with these data in view. On fresh seeds, which no setting was chosen by,\n"
        f"the inference filter is at least as good as AR(10) on {sum(wins)} of {len(wins)} data sets.\n"
    )


def _curves(rows: list[dict[str, Any]], task: str) -> dict[str, list[Result]]:
    """Return the results of every run on a task, by method."""
    curves: dict[str, list[Result]] = {}
    for row in (row for row in rows if row["env"] == task):
        name = row["method"] + (", refits" if row["settings"].get("refit_before") else "")
        steps, returns, errors = (np.array(row[k]) for k in ("total_samples", "mean_return", "prediction_error"))
        result = Result(
            task=task,
            method=name,
            seed=row["seed"],
            settings=row["settings"],
            versions={},
            steps=steps,
            returns=returns,
            prediction_errors=errors,
            persistence_errors=np.full(len(errors), np.nan),
            iterations=row["iterations"],
            finished=len(returns) >= row["iterations"],
            failure="",
            seconds=0.0,
            source=Path(),
        )
        curves.setdefault(name, []).append(result)
    return curves


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
        parts.append(table(head, lines))
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
            table(["1 step ahead", *names], lines),
            f"Inference over Kalman, ten fresh systems: {np.mean(kalman):.4f} on average, {max(kalman):.4f} at worst.\n",
        ]
    )


def _knows(figures: dict[str, Any], into: Path) -> str:
    head = ["", "positions: window", "belief", "both", "velocities: window", "belief", "both"]
    names = [f"{who}_{what}" for what in ("positions", "velocities") for who in ("window", "belief", "both")]
    lines = [
        [f"{row['task'].removesuffix('-v5')}, {row['disturbance']}", *(f"{row[name]:.2f}" for name in names)]
        for row in figures["rows"]
    ]
    return "\n".join(["## What a belief knows of the state\n", _doc("knows"), table(head, lines)])


def _stale(figures: dict[str, Any], into: Path) -> str:
    lines = []
    for method in dict.fromkeys(row["method"] for row in figures["rows"]):
        rows = [row for row in figures["rows"] if row["method"] == method]
        told = [", ".join(f"{row[name]:.2g}" for row in rows) for name in ("difference", "kl")]
        lines.append([f"`{method}`", ", ".join(f"{row['refits']:.0f}" for row in rows), *told])
    head = ["seed by seed", "refits", "difference of states", "KL of the policy"]
    return "\n".join(["## What a stored state is worth later\n", _doc("stale"), table(head, lines)])


def _transfer(figures: dict[str, Any], into: Path) -> str:
    lines = [
        [row["task"].partition("-")[0], row["filter"], *(f"{error:.1e}" for error in row["errors"])]
        for row in figures["rows"]
    ]
    head = ["task", "filter", *(f"iteration {n}" for n in figures["later"])]
    return "\n".join(["## Filters under later policies\n", _doc("transfer"), table(head, lines)])


def _refit_speed(figures: dict[str, Any], into: Path) -> str:
    lengths = [name for name in figures["rows"][0] if name.startswith("over_raw_")]
    lines = [
        [
            f"{row['method']}, refitted",
            f"{row['iteration_seconds']:.2f}",
            f"{row['refit_seconds']:.1f}",
            f"{row['bare_steps_per_second']:,.0f}",
            *(f"{row[name]:.2f}" for name in lengths),
        ]
        for row in figures["rows"]
    ]
    over = [f"over raw physics, {name.removeprefix('over_raw_')} iterations" for name in lengths]
    head = ["method", "iteration, s", "refit, s", "raw physics, steps/s", *over]
    return "\n".join(["## Speed of rows that are refitted\n", _doc("refit_speed"), table(head, lines)])


def _alignment(figures: dict[str, Any], into: Path) -> str:
    names = [name for name in figures["rows"][0] if name not in ("seed", "before")]
    lines = [[f"{row['seed']}", f"{row['before']}", *(f"{row[name]:.2g}" for name in names)] for row in figures["rows"]]
    head = ["seed", "before iteration", *names]
    return "\n".join(["## Alignment of refitted coordinates\n", _doc("alignment"), table(head, lines)])


def _closed_loop(figures: dict[str, Any], into: Path) -> str:
    names = {
        "null future": "null future",
        "one-step, closed": "one step, closed-loop test",
        "one-step, open": "one step, open-loop test",
    }
    lines = []
    for row in figures["rows"]:
        share = "" if row["share"] is None else f", feedback {row['share']:.0%}"
        lines.append([f"{row['system']}{share}", row["fitted to"], *(f"{row[name]:.4f}" for name in names)])
    head = ["system", "fitted to", *names.values()]
    return "\n".join(["## Closed-loop data\n", _doc("closed_loop"), table(head, lines)])


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
            table(["system", *names], lines),
            f"The inference filter's error is {summary['mean']:.4f} times the Kalman filter's on average over "
            f"{summary['systems']} systems, {summary['worst']:.4f} at worst.\n",
        ]
    )


def _exact_bayes(figures: dict[str, Any], into: Path) -> str:
    from rpsp.experiments.figures import save, styled, subplots

    figure, grid = styled(subplots)(size=(6.0, 4.0))
    axes = grid[0, 0]
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
    save(figure, into, "exact_bayes", formats=("svg",))
    lines = [[f"{n:,}", *(f"{e[i]:.4f}" for e in figures["error"].values())] for i, n in enumerate(samples)]
    return "\n".join(
        [
            "## Against exact Bayes\n",
            _doc("exact_bayes"),
            "![Error against data, falling as one over the square root](figures/exact_bayes.svg)\n",
            table(["steps of data", *figures["error"]], lines),
        ]
    )


def _learning(rows: list[dict[str, Any]], into: Path) -> str:
    from rpsp.experiments.figures import learning_curves, save

    parts = [
        "## Learning\n",
        _doc("learning"),
        "Position-only tasks, v5 rewards, default settings unless said. Mean over seeds of the mean return of the ten\n"
        "iterations ending at n; the paper's batch sizes (2 000 steps for InvertedPendulum, else 10 000). Most runs were\n"
        "made on 16 cores of another machine, one run a core, which changes speed but not learning.\n",
    ]
    for task in dict.fromkeys(row["env"] for row in rows):
        curves = _curves(rows, task)
        shown = [r for n, c in curves.items() if n in SHOWN or len(curves) < 12 for r in c]
        name = f"learning_{task.removesuffix('-v5').lower()}"
        save(learning_curves(shown), into, name, formats=("svg",))
        marks = range(10, 1 + max(len(c[0].returns) for c in curves.values()), 10)
        lines = [[n, str(len(c)), *(_block(c, mark) for mark in marks)] for n, c in curves.items()]
        parts.append(f"### {task}\n")
        parts.append(f"![Mean return over environment steps on {task}](figures/{name}.svg)\n")
        parts.append(table(["method", "seeds", *(f"n = {mark}" for mark in marks)], lines))
    return "\n".join(parts)


SHOWN = (
    "rpsp-alt",
    "rpsp-alt, refits",
    "rpsi-trpo",
    "rpsi-ppo",
    "fm2",
    "gru32",
    "random-psr",
    "fix-psr",
    "reactive-psr",
)
"""The methods in the figure of a task that was run with many methods."""


def _block(runs: list[Result], mark: int) -> str:
    """Return the mean over runs of the ten iterations that end at `mark`, and the value of each run."""
    means = [np.mean(run.returns[mark - 10 : mark]) for run in runs if len(run.returns) >= mark]
    return f"{np.mean(means):.0f} ({', '.join(f'{m:.0f}' for m in means)})" if len(means) == len(runs) else ""


def _training_speed(figures: dict[str, Any], into: Path) -> str:
    head = [
        "method",
        "environments",
        "steps an iteration",
        "steps/s",
        "over raw physics",
        "acting, s",
        "update, s",
        "compilations later",
        "MB at 20",
        "MB at the end",
    ]
    lines = [
        [
            f"{r['method']}{', refitted' if r.get('settings') else ''}, {r['iterations']} iterations",
            f"{r['num_envs']} in {r.get('threads', 2)} thread{'s' * (r.get('threads', 2) > 1)}",
            f"{r['steps_of_an_iteration']:,.0f}",
            f"{r['steps_per_second']:,.0f}",
            f"{r['over_raw']:.2f}",
            f"{r['median_acting_seconds']:.2f}",
            f"{r['median_update_seconds']:.2f}",
            str(r["compilations_after_the_first_iteration"]),
            f"{r['megabytes_at_iteration_20']:.0f}",
            f"{r['megabytes_at_the_end']:.0f}",
        ]
        for r in figures["rows"]
    ]
    return "\n".join(["## Speed of the whole training loop\n", _doc("training_speed"), table(head, lines)])


def _lockstep(figures: dict[str, Any], into: Path) -> str:
    spent = figures["microseconds"]
    lines = [[name, f"{each:.0f}"] for name, each in spent.items()] + [["all", f"{sum(spent.values()):.0f}"]]
    return "\n".join(["### A lockstep\n", _doc("lockstep"), table(["", "µs"], lines)])


def _overlap(figures: dict[str, Any], into: Path) -> str:
    lines = [
        [r["method"], f"{r['in turn']:.2f}", f"{r['overlapping']:.2f}", f"{100 * r['gain']:.0f} %"]
        for r in figures["rows"]
    ]
    head = ["1000 locksteps, seconds", "in turn", "overlapping", "gain"]
    return "\n".join(["## Acting while physics runs\n", _doc("overlap"), table(head, lines)])


def _against_sb3(figures: dict[str, Any], into: Path) -> str:
    lines = [
        [name, f"{rate:,.0f}", f"{figures['ratios'][name]:.1f}" if name in figures["ratios"] else ""]
        for name, rate in figures["steps_per_second"].items()
    ]
    return "\n".join(
        ["## Beside RecurrentPPO\n", _doc("against_sb3"), table(["", "steps/s", "times RecurrentPPO"], lines)]
    )


def _wall_time(figures: dict[str, Any], into: Path) -> str:
    from rpsp.experiments.comparison import grouped

    methods = grouped(figures["rows"], lambda row: row["method"])
    lines = [["RecurrentPPO", "", f"{figures['peer_seconds']:,.0f}", "1", "300,000"]]
    for method, rows in methods.items():
        each = ", ".join("not reached" if row["seconds"] is None else f"{row['seconds']:.0f}" for row in rows)
        lines.append([method, each, "", "", ""])
        if all(row["seconds"] is not None for row in rows):
            mean, steps = (np.mean([row[name] for row in rows]) for name in ("seconds", "steps"))
            lines[-1][2:] = [f"{mean:,.0f}", f"{figures['peer_seconds'] / mean:.1f}", f"{steps:,.0f}"]
    head = [f"to a return of {figures['return']:.0f}", "seconds, seed by seed", "mean", "times as fast", "steps"]
    return "\n".join(
        ["## Wall time to RecurrentPPO's return\n", _doc("wall_time"), _beside(figures) + table(head, lines)]
    )


def _gpu(figures: dict[str, Any], into: Path) -> str:
    counts = sorted({row["agents"] for row in figures["rows"]})
    found = {(row["method"], row["device"], row["agents"]): row["seconds"] for row in figures["rows"]}
    lines = [
        [f"{method}, {device}", *(f"{found[key]:.3f}" if (key := (method, device, n)) in found else "" for n in counts)]
        for method, device in dict.fromkeys((row["method"], row["device"]) for row in figures["rows"])
    ]
    head = ["seconds for one update of", *(f"{n} agent{'s' * (n > 1)}" for n in counts)]
    return "\n".join([f"## On a GPU ({figures['gpu']})\n", _doc("gpu"), table(head, lines)])


def _together(figures: dict[str, Any], into: Path) -> str:
    found: dict[tuple[str, int, int], list[dict[str, float]]] = defaultdict(list)
    for row in figures["rows"]:
        found[row["method"], row["cores"], row["agents"]].append(row)

    def middle(key: tuple[str, int, int], of: str = "seconds") -> float:
        return statistics.median(row[of] for row in found[key])

    lines = []
    for key, rows in found.items():
        method, cores, agents = key
        seconds, all_of_them = middle(key), [row["seconds"] for row in rows]
        lines.append(
            [
                method,
                f"{cores}",
                f"{agents}",
                f"{seconds:.2f}" + (f" ({min(all_of_them):.2f} to {max(all_of_them):.2f})" if len(rows) > 1 else ""),
                f"{seconds / middle((method, cores, 1)):.1f}",
                f"{middle(key, 'acting_seconds'):.2f}",
                f"{middle(key, 'update_seconds'):.2f}",
                f"{middle(key, 'steps_of_an_iteration') / seconds:,.0f}",
            ]
        )
    head = ["method", "cores", "agents", "seconds an iteration", "times one agent's", "acting", "update", "steps/s"]
    title = f"## Many agents at once ({figures['device']})\n"
    text = _doc("together") + "\nOf what was measured several times, the median (and from where to where).\n"
    return "\n".join([title, text, _beside(figures) + table(head, lines)])


def _beside(figures: dict[str, Any]) -> str:
    """Return a sentence about other work on the machine, if it was recorded."""
    return f"Measured while {figures['beside']}.\n\n" if "beside" in figures else ""


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
    return "\n".join(["## Time and memory, one core\n", _doc("timing"), table(["what", "measured"], lines)])


def _batch_stepping(figures: dict[str, Any], into: Path) -> str:
    lines = [[name.replace("_", " "), f"{v:,.0f} steps/s" if v > 100 else f"{v:.2f}"] for name, v in figures.items()]
    return "\n".join(["## Batch stepping, Hopper\n", _doc("batch_stepping"), table(["what", "measured"], lines)])


def _many_results(figures: dict[str, Any], into: Path) -> str:
    total = figures["reading_seconds"] + figures["comparing_seconds"]
    return "\n".join(
        [
            "## Reading and comparing many results\n",
            _doc("many_results"),
            f"{figures['runs']:,} runs of {figures['iterations']} iterations, {figures['megabytes']:.0f} MB, to "
            f"{figures['rows']} rows of a table: {total:.1f} s, of which reading {figures['reading_seconds']:.1f} s; "
            f"{figures['processor_seconds']:.1f} s of one processor.\n",
        ]
    )


def _report(figures: dict[str, Any], into: Path) -> str:
    opening = figures["opening_milliseconds"]
    return "\n".join(
        [
            "## The report of many runs\n",
            _doc("report"),
            f"{figures['runs']} runs of {figures['iterations']} iterations: {figures['megabytes']:.2f} MB, written in "
            f"{figures['writing_seconds']:.2f} s, open in {opening['desktop']:.0f} ms ({opening['phone']:.0f} ms at the "
            f"width of a phone; {figures['slowest_milliseconds']:.0f} ms at worst).\n",
        ]
    )


def _belief_ppo(figures: dict[str, Any], into: Path) -> str:
    """Returns at a million steps (last tenth), beside those of the runs in results/."""
    rows = {"stable-baselines3's PPO on beliefs": figures["runs"]}
    rows |= {
        name: _curves_of(method) for name, method in (("RecurrentPPO", "recurrent-ppo"), ("`rpsi-ppo`", "rpsi-ppo"))
    }
    tasks = list(dict.fromkeys(run["env"] for run in figures["runs"]))
    lines = []
    for name, runs in rows.items():
        cells = []
        for task in tasks:
            steps_and_returns = [
                (np.array(r["steps"], float), np.array(r["returns"])) for r in runs if r["env"] == task
            ]
            found = np.array([return_at(1e6, *curve) for curve in steps_and_returns])
            cells.append(f"{mean_with_error(*map(float, mean_and_error(found)))} ({len(found)})")
        lines.append([name, *cells])
    head = ["positions only, return at 1 M steps", *tasks]
    versions = ", ".join(f"{name} {version}" for name, version in figures["runs"][0]["versions"].items())
    about = f"Mean ± standard error (seeds). With {versions}.\n"
    return "\n".join(["## Beliefs for another library's PPO\n", _doc("belief_ppo"), table(head, lines), "", about])


def _curves_of(method: str) -> list[dict[str, Any]]:
    """Return the curves of a method in results/."""
    folder = Path(__file__).parents[1] / "results"
    found, _ = read_results([folder / task / method for task in ("Hopper-v5", "Walker2d-v5")])
    return [{"env": r.settings["env"], "steps": r.steps, "returns": r.returns} for r in found]


def _sweep_overhead(figures: dict[str, Any], into: Path) -> str:
    seconds = {name: row["computing_seconds"] for name, row in figures["rows"].items()}
    lines = [[n, f"{s:.1f}", f"{100 * (seconds['sweep'] / s - 1):+.1f} %"] for n, s in seconds.items()]
    head = [f"{figures['runs']} runs on {figures['cores']} cores", "computing, s", "the sweep beside it"]
    return "\n".join(["## What a sweep costs\n", _doc("sweep_overhead"), table(head, lines)])


def _logging_cost(figures: dict[str, Any], into: Path) -> str:
    loggers = {name: row for name, row in figures.items() if isinstance(row, dict)}
    columns = (
        "metrics",
        "ms per iteration",
        "share of wall time, %",
        "ms of the thread per iteration",
        "seconds to open and close",
    )
    lines = [[name, *(f"{row[c]:g}" for c in columns)] for name, row in loggers.items()]
    head = [f"{figures['env']}, {figures['iterations']} iterations of {figures['method']}", *columns]
    return "\n".join(["## What loggers cost\n", _doc("logging_cost"), table(head, lines)])


def _serving(figures: dict[str, Any], into: Path) -> str:
    rows = {name: row for name, row in figures.items() if isinstance(row, dict)}
    quantiles = "p50", "p95", "p99", "most"
    asked = figures["sessions"] * figures["rate"]
    lines = [
        [n, *(f"{row[q]:.2f}" for q in quantiles), f"{row.get('per_second', asked):,.0f}"] for n, row in rows.items()
    ]
    head = [f"{figures['env']}, {figures['method']}", "median, ms", "95 %", "99 %", "largest", "answers per second"]
    difference = figures["largest difference of an action from agent.predict, of half its range"]
    cpu, load = figures["CPU time of the service per answer, µs"], figures["load"]
    about = (
        f"{figures['sessions']} sessions, each {figures['rate']:g} times a second for {figures['seconds']:g} s. Actions "
        f"differ from those of `agent.predict` by at most {difference:.1e} of half their range. The service took {cpu:.0f} "
        f"µs of CPU time per answer. The load average was {load:g}: other work took most of the two cores. Latencies on "
        "quiet cores are not measured yet.\n"
    )
    return "\n".join(["## Serving an agent\n", _doc("serving"), about, table(head, lines)])


def _doc(name: str) -> str:
    """Return the docstring of a benchmark."""
    import ast

    source = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "") + "\n"


def _short(value: float) -> str:
    return f"{value:.2g}" if value >= 0.01 else f"{value:.1e}".replace("e-0", "e-")


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text
