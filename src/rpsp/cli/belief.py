"""`rpsp fit`, `rpsp inspect` and `rpsp forecast`."""

from __future__ import annotations

import shlex
from pathlib import Path

from rpsp.cli.printing import console, print_json, speaker, table
from rpsp.experiments import config as configs
from rpsp.experiments.plugins import import_plugin, named_modules


def fit(config: configs.FitConfig) -> None:
    """Fit a predictive-state model and print its held-out errors."""
    from rpsp.experiments import fitting  # start-up time of --help: it imports jax and matplotlib

    say = speaker(config.quiet)
    results = fitting.fit(config, say)
    directory = Path(results["directory"])
    if not config.quiet:
        _print_errors(results["errors"])
    say(f"saved {directory / 'model.safetensors'}")
    if config.inspect:
        results["figures"] = [str(path) for path in fitting.inspect(directory)]
        for path in results["figures"]:
            say(f"drew {path}")
    else:
        say(f"look at it: {shlex.join(['rpsp', 'inspect', str(directory), *_plugin_flag(config)])}")
    print_json(config.json, results)


def inspect(config: configs.InspectConfig) -> None:
    """Draw the predictions of a fitted model beside what was observed."""
    from rpsp.experiments import fitting  # start-up time of --help: it imports jax and matplotlib

    import_plugin(config.plugin)
    say = speaker(config.quiet)
    paths = [str(path) for path in fitting.inspect(Path(config.directory), config.horizon)]
    for path in paths:
        say(f"drew {path}")
    print_json(config.json, {"directory": config.directory, "figures": paths})


def forecast(config: configs.ForecastConfig) -> None:
    """Continue a log, and say where the table and the figure are."""
    from rpsp.experiments import continuing  # start-up time of --help: it imports jax and matplotlib

    print_json(config.json, continuing.forecast(config, speaker(config.quiet)))


def _plugin_flag(config: configs.FitConfig) -> list[str]:
    """Return the --plugin flag that `rpsp inspect` needs: a file cannot make rpsp import a module."""
    modules = named_modules(config.plugin, config.kind, None)
    return ["--plugin", ",".join(modules)] if modules else []


def _print_errors(errors: dict[str, list[float]]) -> None:
    """Print normalised held-out errors, a row per predictor and a column per horizon, the best of each in bold."""
    horizons = [h for h in (1, 2, 3, 5, 10) if h <= min(map(len, errors.values()))]
    shown = table("squared error / variance", *(f"{h} step{'s' * (h > 1)}" for h in horizons))
    best = {h: min(values[h - 1] for values in errors.values()) for h in horizons}
    for name, values in errors.items():
        cells = {h: f"{values[h - 1]:.2g}" for h in horizons}
        shown.add_row(name, *(f"[bold]{c}[/bold]" if values[h - 1] == best[h] else c for h, c in cells.items()))
    console().print(shown)
