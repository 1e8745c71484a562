"""`rpsp tune`."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

from rpsp.cli.printing import print_json, speaker
from rpsp.errors import RpspError, UsageError
from rpsp.experiments import config as configs
from rpsp.experiments import config_tuning
from rpsp.experiments.words import mean_with_error, number


def tune(config: config_tuning.TuneConfig) -> None:
    """Search for settings."""
    from rpsp.experiments.sweeps import open_backend  # loads numpy: start-up time of --help
    from rpsp.experiments.tuning.page import write_page
    from rpsp.experiments.tuning.study import Study
    from rpsp.experiments.tuning.study import tune as tuning

    say = speaker(config.quiet)
    plan = _plan(config)
    name = f"{plan.config.env}__{plan.config.method}".replace("/", "_").replace(":", "_")
    out = Path("runs", f"tune-{name}") if config.out is None else Path(config.out)
    backend, workers = open_backend(config.backend, config.jobs, config.address)
    study = Study(plan, out, backend, workers, say)
    done = sum(trial.state.is_finished() for trial in study.study.trials)
    say(
        f"{out}: {plan.trials} trials of {len(plan.seeds)} seeds, {study.iterations} iterations, {done} done; "
        f"settings: {', '.join(plan.space)}"
    )
    try:
        results = tuning(study, write_page)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("all finished iterations are saved; the same command continues the study")
        raise
    if results["best"] is None:
        why = next(
            (t.user_attrs["failure"] for t in study.study.trials if "failure" in t.user_attrs), "all were pruned."
        )
        raise RpspError(f"no trial could be completed; the first failed because {why}")
    say(f"best trial: {results['best']['trial']}, return {number(results['best']['return'])}")
    if (compared := results["comparison"]) is not None:
        difference = mean_with_error(compared["difference"], compared["error"])
        say(
            f"on {len(compared['seeds'])} new seeds: best {number(compared['best'])}, default "
            f"{number(compared['default'])}, difference {difference} (standard error)"
        )
    say(f"drew {results['page']}; train with it: {shlex.join(['rpsp', 'train', '--config', results['config']])}")
    print_json(config.json, results)


def _plan(config: config_tuning.TuneConfig) -> Any:
    """Return the plan of a command: the file's settings, if it is one, then the flags."""
    from rpsp.experiments.configure import configured, read_toml  # loads jax: start-up time of --help
    from rpsp.experiments.plugins import import_plugin
    from rpsp.experiments.tuning.study import plan_of

    from_file = config.source.endswith(".toml")
    given: dict[str, Any] = read_toml(config.source) if from_file else {"env": config.source}
    space = given.pop("space", None)
    import_plugin(config.plugin or (given.get("plugin") if isinstance(given.get("plugin"), str) else None))
    flags = {name: getattr(config, name) for name in ("method", "iterations", "steps", "plugin")}
    flags |= {f.name: getattr(config.sensors, f.name) for f in dataclasses.fields(configs.Sensors)}
    usual = {f.name: f.default for f in dataclasses.fields(configs.Sensors)}
    given |= {name: value for name, value in flags.items() if value is not None and value != usual.get(name)}
    if given.get("minutes") is not None:
        raise UsageError("minutes: trials are compared after iterations; give --iterations or --steps.")
    train = configured(given, f"{config.source}: " if from_file else "")
    return plan_of(
        train,
        space,
        trials=config.trials,
        seeds=tuple(range(config.first_seed, config.first_seed + config.seeds)),
        pruner=config.pruner,
        verify=config.verify,
    )
