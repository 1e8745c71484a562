"""Training runs. `train` and `start` begin a run in a new run directory, `resume` continues it, `evaluate` tests it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rpsp import sentinel
from rpsp.errors import FileFormatError, RpspError, UsageError
from rpsp.experiments.agents import load
from rpsp.experiments.callbacks.asked_for import asked_for
from rpsp.experiments.callbacks.base import Callback, Hooks
from rpsp.experiments.compilation import compilation_cached
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.configure import configured, with_default_method
from rpsp.experiments.diagnosis import closing_lines
from rpsp.experiments.execution import train_runs, train_seeds
from rpsp.experiments.files import Say, free_directory, read_json, record_settings, write_json
from rpsp.experiments.finished_runs import Run, Runs
from rpsp.experiments.labels import flat_settings, method_label
from rpsp.experiments.locks import InUse
from rpsp.experiments.notebooks import LiveCurve, in_notebook
from rpsp.experiments.plugins import import_plugin, plugin_flag
from rpsp.experiments.progress import Pace, Show, line
from rpsp.experiments.resolve import FACTORY, check, environment_maker, read_config, resolve, with_budget
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.settings_help import with_settings
from rpsp.experiments.workers import TOGETHER
from rpsp.training.state import Record


def train(
    env: str | Callable[[], Any],
    method: str = TrainConfig.method,
    *,
    verbose: bool = True,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Run:
    """Train an agent and write a run directory, as `rpsp train` does.

    Args:
        env: a Gymnasium id, or a function without arguments that returns an environment.
        method: a name from `rpsp methods`, or your own method as `package.module:attribute`. Default: chosen by the
            action space and the number of steps (`rpsp.experiments.defaults`).
        verbose: whether to print one line per iteration, or in a notebook to draw the curve.
        out: the run directory. Default: runs/ENV__METHOD__SEED__TIME.
        callbacks: instances of `rpsp.callbacks.Callback`. Not with several seeds.
        **settings: any flag of `rpsp train` by its name: observe, seed, iterations, samples, max_kl, …. `observe` may
            also be a sequence of indices. `help(rpsp.train)` lists all of them with their defaults.

    Returns:
        A `Run` with `directory`, `results`, `metrics` (one record per iteration) and `agent`. With `seeds` greater than
        1 it is a `Runs`: `runs` lists the single runs, `metrics` has the records of all of them with a `seed` field,
        `best` is the run with the highest final return, and `agent` is the agent of that run.

    Raises:
        UsageError: if an argument or setting is invalid.
    """
    if not isinstance(env, str) and not callable(env):
        raise UsageError(
            f"env: {env!r} is neither a Gymnasium id, such as 'Hopper-v5', nor a function without arguments that "
            "returns an environment, such as lambda: MyEnv()."
        )
    name = env if isinstance(env, str) else FACTORY
    given = {"env": name, "method": method, "out": None if out is None else str(out), **settings}
    config = configured(given if isinstance(env, str) else with_default_method(given, env))
    say = (lambda line: print(line, flush=True)) if verbose else (lambda line: None)
    live = LiveCurve(f"{config.method} on {name}") if verbose and in_notebook() else None

    def show(record: Record, pace: Pace) -> None:
        if "iteration" not in record:
            return
        if live is None:
            say(line(record, pace))
        else:
            live.show(record, line(record, pace))

    done = start(config, say, show, None if isinstance(env, str) else env, callbacks)
    if live is not None:
        live.draw("")
    if verbose:
        for sentence in closing_lines(done.runs):
            say(sentence)
    return done


train.__doc__ = with_settings(train.__doc__)


def start(config: TrainConfig, say: Say, show: Show, factory: Any = None, callbacks: Sequence[Callback] = ()) -> Run:
    """Start a run in a new directory.

    Args:
        config: the configuration.
        say: called with every progress message.
        show: called with the record of every iteration.
        factory: a function that makes an environment, instead of `config.env`.
        callbacks: callbacks of the run, in addition to those that the configuration asks for.

    Raises:
        UsageError: if the configuration is invalid or the directory is not empty.
    """
    if config.env is None:
        raise UsageError("env: no environment is given; give a Gymnasium id, for example `rpsp train Hopper-v5`.")
    if config.plugin is not None:
        import_plugin(config.plugin)
    make_envs = environment_maker(config, factory)
    if make_envs is None:
        raise UsageError(f"env: {config.env!r} is not a Gymnasium id.")
    if factory is not None and config.seeds > 1:
        raise UsageError(
            f"seeds: {config.seeds} seeds are trained in separate processes, and a function cannot be sent to those; "
            "register the environment with Gymnasium and train on its id, or train one seed after the other."
        )
    if callbacks and config.seeds > 1:
        raise UsageError(
            f"callbacks: {config.seeds} seeds are trained in separate processes, and callbacks cannot be sent to those; "
            "train one seed after the other, or use the settings eval_every and logger."
        )
    Hooks(callbacks)  # checks them before anything is written
    check(config)
    asked_for(config)
    resolved = resolve(config, make_envs)
    stem = (config.env or "").replace("/", "_").replace(":", "_").replace(" ", "-")
    seeds = f"s{config.seed}" if config.seeds == 1 else f"s{config.seed}-{config.seed + config.seeds - 1}"
    method = config.method.replace(":", "_")
    directory = free_directory(config.out, f"{stem}__{method}__{seeds}")
    if config.chosen:
        label = method_label(flat_settings(dataclasses.asdict(config)))
        say(f"trains {label}: the default for {config.chosen}; `rpsp methods` lists others, for --method")
    with compilation_cached(config.compilation_cache), _resume_hint(resolved, directory, new=True):
        _claim(directory, resolved)
        if config.seeds > 1:
            return train_seeds(resolved, directory, say)
        return train_runs([resolved], [directory], make_envs, say, show, callbacks)[0]


def _claim(directory: Path, config: TrainConfig) -> None:
    """Write the settings into a new directory. If two processes choose the same directory, the second one fails."""
    with RunDirectory(directory).locked():
        if (directory / "config.json").exists():
            raise InUse(directory)
        record_settings(directory, config)


def resume(
    directories: Sequence[Path],
    say: Say,
    show: Show,
    iterations: int | None = None,
    plugin: str | None = None,
    compilation_cache: bool = True,
    *,
    steps: int | None = None,
    minutes: float | None = None,
) -> Run:
    """Continue runs from their last checkpoint that is not damaged, or from the beginning if they have none.

    Args:
        directories: the run directories. Several runs are trained together.
        say: called with every progress message.
        show: called with the record of every iteration.
        iterations: total number of iterations. Default, as of `steps` and `minutes`: the budget in the configuration; if
            one of the three is given, the others no longer apply.
        plugin: modules to import first, separated by commas.
        compilation_cache: whether to use the persistent compilation cache.
        steps: total number of environment steps, exploration included.
        minutes: total time limit in minutes.

    Raises:
        UsageError: if the runs cannot be trained together, or the budget is too small or invalid.
        FileFormatError: if a directory is not a run directory, or has only damaged checkpoints.
    """
    import_plugin(plugin)
    configs = [read_config(directory) for directory in directories]
    for directory, config in zip(directories, configs, strict=True):
        if environment_maker(config) is None:
            raise UsageError(
                f"{directory}: was trained on an environment made by a function, which cannot be saved; register the "
                "environment with Gymnasium and train on its id."
            )
    if (budget := (iterations, steps, minutes)) != (None, None, None):
        configs = [with_budget(config, *budget) for config in configs]
    first, directory = configs[0], directories[0]
    several = len(configs) > 1  # runs that are trained together share all cores
    make_envs = environment_maker(dataclasses.replace(first, threads=None) if several else first)
    assert make_envs is not None
    cached = compilation_cached(compilation_cache and first.compilation_cache)
    if several:
        _check_alike(configs, directories)
        sentinel.note_resume(shlex.join(["rpsp", "resume", *map(str, directories), *plugin_flag(first)]))
        with cached:
            done = train_runs(configs, directories, make_envs, say, show)
        return Runs(directory.parent, {"runs": [run.results for run in done]}, tuple(done))
    with cached, _resume_hint(first, directory):
        if first.seeds > 1:
            return train_seeds(first, directory, say)
        return train_runs(configs, directories, make_envs, say, show)[0]


def _check_alike(configs: Sequence[TrainConfig], directories: Sequence[Path]) -> None:
    """Check that runs can be trained together: same environment and length. Methods and their settings may differ."""
    for directory, other in zip(directories, configs, strict=True):
        if unlike := [name for name in TOGETHER if getattr(other, name) != getattr(configs[0], name)]:
            raise UsageError(
                f"{unlike[0]}: is {getattr(other, unlike[0])!r} in {directory}, {getattr(configs[0], unlike[0])!r} in "
                f"{directories[0]}; runs that are trained together must have the same value, so resume them one by one."
            )
        if other.seeds > 1:
            raise UsageError(f"seeds: {directory} contains {other.seeds} runs; give these instead: {directory}/s*.")


@contextmanager
def _resume_hint(config: TrainConfig, directory: Path, new: bool = False) -> Iterator[None]:
    """Add the command that resumes the run to interruptions and errors.

    A new run that fails before its first checkpoint removes the files that it has written.
    """
    existed = directory.exists()
    how = "all finished iterations are saved"
    if config.env != FACTORY:
        words = ["rpsp", "resume", str(directory), *plugin_flag(config)]
        how += f"; to continue: {shlex.join(words)}"
        sentinel.note_resume(shlex.join(words))
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(how)
        raise
    except RpspError as error:
        own = [directory / f"s{seed}" for seed in range(config.seed, config.seed + config.seeds)]
        begun = any(RunDirectory(path).numbers() for path in ([directory] if config.seeds == 1 else own))
        if begun and not isinstance(error, UsageError | FileFormatError):
            error.add_note(how)
        elif new and not begun and not isinstance(error, InUse):
            for path in own if config.seeds > 1 else []:
                RunDirectory(path).discard(keep_directory=False)
            RunDirectory(directory).discard(keep_directory=existed)
        raise


@compilation_cached()
def evaluate(
    directory: Path, episodes: int, checkpoint: str, seed: int, deterministic: bool, say: Say | None = None
) -> dict[str, Any]:
    """Play episodes with a trained agent, and write the returns to results.json of the run.

    Args:
        directory: a run directory, or a file of `rpsp pack`, which is not changed.
        episodes: number of episodes.
        checkpoint: "last", "best", or a number of iterations.
        seed: seed of the episodes.
        deterministic: whether to take the most probable action instead of sampling.
        say: called with a sentence for every damaged checkpoint that is skipped. Default: issue a warning.

    Returns:
        Mean and standard deviation of the returns, the mean length, the number of episodes and of dropped episodes, and
        all returns.
    """
    if episodes < 1:
        raise UsageError(f"episodes: {episodes} is not a whole number ≥ 1.")
    agent = load(directory, int(checkpoint) if checkpoint.isdecimal() else checkpoint, say=say)
    collected = agent.evaluate(episodes, seed=seed, deterministic=deterministic)
    returns = collected.returns
    results = {
        "directory": str(directory),
        "checkpoint": agent.checkpoint,
        "deterministic": deterministic,
        "mean_return": float(returns.mean()),
        "std_return": float(returns.std()),
        "mean_length": collected.samples / len(returns),
        "episodes": len(returns),
        "dropped_episodes": collected.dropped,
        "returns": returns.tolist(),
    }
    if directory.is_file():
        return results
    known = read_json(directory / "results.json") if (directory / "results.json").exists() else {}
    write_json(directory / "results.json", known | {"evaluation": results})
    return results
