"""`rpsp watch`, `rpsp export`, `rpsp methods` and `rpsp doctor`."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from rpsp.cli.printing import console, print_json, speaker, table
from rpsp.experiments import config as configs
from rpsp.experiments.plugins import import_plugin


def watch(config: configs.WatchConfig) -> None:
    """Render an episode of a trained agent as a video."""
    if sys.platform == "linux":
        os.environ.setdefault("MUJOCO_GL", "egl")  # before mujoco is imported: renders without a screen
    from rpsp.experiments import video  # loads mujoco: start-up time of --help, and the line above

    import_plugin(config.plugin)
    say = speaker(config.quiet)
    results = video.watch(Path(config.directory), config.checkpoint, config.seed, config.steps, config.format, say)
    say(f"an episode of {results['steps']} steps, return {results['return']:.2f}")
    say(f"drew {results['video']}")
    print_json(config.json, results)


def export(config: configs.ExportConfig) -> None:
    """Export a policy for use without jax, and compare its actions with the agent's."""
    from rpsp.experiments import export as exporting  # loads jax: start-up time of --help

    import_plugin(config.plugin)
    say = speaker(config.quiet)
    results = exporting.export(Path(config.directory), config.checkpoint, config.out, config.onnx, say)
    say(
        f"compared over {results['steps']} steps in {results['episodes']} episodes: the actions differ from the agent's by "
        f"at most {results['largest_difference']:.1e} of half their range ({results['largest_difference_of_a_step']:.1e} "
        f"within a step); {results['microseconds_per_step']:.0f} µs a step"
    )
    if config.onnx:
        difference = results["largest_difference_of_onnx"]
        say(f"policy.onnx, run by onnxruntime, differs from policy.npz by at most {difference:.1e}")
    say(f"wrote {results['directory']}: policy.npz, and act.py, which shows how to use it and needs only numpy")
    print_json(config.json, results)


def methods(config: configs.MethodsConfig) -> None:
    """List the methods that can be trained."""
    from rpsp.experiments.defaults import CHOICES  # loads gymnasium, and the next one jax: start-up time of --help
    from rpsp.experiments.methods import METHODS

    shown = table("", "method", "belief", "algorithm", "what it is")
    rows = []
    for row in METHODS.values():
        parts = {"belief": row.belief.kind, "algorithm": row.algorithm.name}
        settings = dataclasses.asdict(row.settings())
        facts = {"name": row.name, **parts, "about": row.about, "ours": row.ours, "samples": row.samples}
        rows.append(facts | {"settings": settings})
        shown.add_row("ours" if row.ours else "", row.name, *parts.values(), row.about)
    console().print(shown)
    defaults = [{"when": default.when, "flags": default.flags} for default in CHOICES]
    chosen = table("", "without --method, for", "the default is")
    for default in defaults:
        chosen.add_row("", default["when"], default["flags"])
    console().print(chosen)
    print_json(config.json, {"methods": rows, "defaults": defaults})


def doctor(config: configs.DoctorConfig) -> None:
    """Print versions, devices, rendering back end and extras of this machine."""
    from rpsp.experiments import doctor as diagnosis  # start-up time of --help: it imports jax

    report = diagnosis.examine()
    shown = table("", "what", "found")
    for section, findings in report.items():
        for i, (name, found) in enumerate(findings.items()):
            shown.add_row(section if i == 0 else "", name, "—" if found is None else str(found))
    console().print(shown)
    print_json(config.json, report)
