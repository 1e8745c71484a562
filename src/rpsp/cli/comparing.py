"""`rpsp eval`, `rpsp compare`, `rpsp report` and `rpsp diagnose`."""

from __future__ import annotations

from pathlib import Path

from rpsp.cli.printing import json_row, print_comparison, print_json, speaker, warn, write_rows
from rpsp.experiments import config as configs
from rpsp.experiments.plugins import import_plugin
from rpsp.experiments.words import mean_with_error


def evaluate(config: configs.EvalConfig) -> None:
    """Evaluate a trained agent over some episodes."""
    from rpsp.experiments import runs  # loads jax: start-up time of --help

    import_plugin(config.plugin)
    say = speaker(config.quiet)
    results = runs.evaluate(
        Path(config.directory), config.episodes, config.checkpoint, config.seed, not config.stochastic, say
    )
    say(
        f"return {mean_with_error(results['mean_return'], results['std_return'])} (standard deviation) over "
        f"{results['episodes']} episodes of {results['mean_length']:.0f} steps, checkpoint {results['checkpoint']}"
    )
    print_json(config.json, results)


def compare(config: configs.CompareConfig) -> None:
    """Compare methods by the results of their runs: tables, tests, figures."""
    from rpsp.experiments import comparison  # loads numpy: start-up time of --help
    from rpsp.experiments.results import long_table, read_results, write_csv, write_parquet  # loads numpy, too

    say = speaker(config.quiet)
    runs, doubts = read_results(config.directories)
    warn(doubts, config.quiet)  # first: they may explain an error below
    found = comparison.compare(
        runs,
        config.metric,
        against=config.against,
        threshold=config.threshold,
        smooth=config.smooth,
        select=config.select,
    )
    warn(found.warnings, config.quiet)
    if not config.quiet:
        print_comparison(found, config.threshold)
    content = {
        "runs": len(runs),
        "metric": config.metric,
        "rows": list(map(json_row, found.rows)),
        "overall": list(map(json_row, found.overall)),
        "warnings": [*doubts, *found.warnings],
    }
    if config.table is not None:
        write_rows(content["rows"], config.table)
    if config.csv is not None:
        write_csv(long_table(runs), config.csv)
    if config.parquet is not None:
        write_parquet(long_table(runs), config.parquet)
    for path in filter(None, (config.table, config.csv, config.parquet)):
        say(f"wrote {path}")
    if config.figures is not None:
        from rpsp.experiments.figures import draw_comparison  # loads matplotlib, which tables do not need

        content["figures"] = [str(path) for path in draw_comparison(found, config.figures)]
        for path in content["figures"]:
            say(f"drew {path}")
    print_json(config.json, content)


def report(config: configs.ReportConfig) -> None:
    """Write one HTML page about runs, once or repeatedly while they train."""
    from rpsp.experiments.report import watch_report, write_report  # loads jax: start-up time of --help

    import_plugin(config.plugin)
    say = speaker(config.quiet)
    if config.watch:
        path, results = watch_report(config.directories, config.out, config.every, say)
    else:
        path, results = write_report(config.directories, config.out, say=say)
        say(f"wrote {path}")
    counts = {"runs": len(results), "finished": sum(r.finished for r in results)}
    print_json(config.json, {"directories": list(config.directories), "report": str(path), **counts})


def diagnose(config: configs.DiagnoseConfig) -> None:
    """Name the first thing that is wrong with each run, and the command to try next."""
    from rpsp.experiments.diagnosis import diagnose, runs_in  # loads jax: start-up time of --help

    import_plugin(config.plugin)
    say, runs = speaker(config.quiet), {}
    directories = [run for directory in config.directories for run in runs_in(Path(directory))]
    for directory in directories:
        found = diagnose(directory)
        runs[str(directory)] = found.content()
        for line in [str(directory)] * (len(directories) > 1) + found.lines():
            say(line)
    print_json(config.json, {"runs": runs})
