"""Training runs. `train` and `start` begin a run in a new run directory, `resume` continues it, `evaluate` tests it."""

from __future__ import annotations

import dataclasses
import math
import shlex
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from rpsp import sentinel
from rpsp.data.files import write_bytes
from rpsp.errors import PENDING, EnvironmentFailure, FileFormatError, RpspError, UsageError
from rpsp.experiments.agents import load
from rpsp.experiments.compilation import compilation_cached
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.configure import configured
from rpsp.experiments.files import Say, free_directory, read_json, record_settings, write_json
from rpsp.experiments.plugins import import_plugin, plugin_flag
from rpsp.experiments.resolve import FACTORY, _device, check, composed, environment_maker, read_config, resolve
from rpsp.experiments.run_directory import InUse, RunDirectory
from rpsp.experiments.run_writer import RunWriter
from rpsp.experiments.words import clock
from rpsp.experiments.workers import FAILURE, TOGETHER, Failure, Job, cores, run_here
from rpsp.training.state import TrainingSettings
from rpsp.training.together import train_together

Record = dict[str, float | int]
"""The metrics of one iteration, as in `rpsp.training`."""
Show = Callable[[Record, "Pace"], None]
"""Callback that is called with every record."""


@dataclass
class Pace:
    """Progress of a run, and an estimate of the remaining time."""

    total: int
    done: int = 0
    here: int = 0
    """Iterations done by this process."""
    since: float = 0.0
    """Time at which the first of them was done."""

    def advance(self, done: int) -> None:
        """Set the number of iterations that are done.

        The first iteration of a process includes compilation. The speed is therefore measured from its end.
        """
        self.done, self.here = done, self.here + 1
        if self.here == 1:
            self.since = time.monotonic()

    @property
    def eta(self) -> str:
        """The remaining time as [h:]mm:ss, or a dash before the second iteration of this process."""
        if self.here < 2 and self.done < self.total:
            return "–"
        return clock((time.monotonic() - self.since) / max(1, self.here - 1) * (self.total - self.done))


@dataclass(frozen=True, eq=False)
class Run:
    """A finished training run, as `rpsp.train` returns it."""

    directory: Path
    """The run directory."""
    results: dict[str, Any]
    """The content of its results.json."""

    @property
    def runs(self) -> list[Run]:
        """The single runs: only this one. `Runs` has one for each seed."""
        return [self]

    @property
    def metrics(self) -> list[Record]:
        """The record of every iteration."""
        return [r for r in RunDirectory(self.directory).metrics() if "iteration" in r]

    @property
    def best(self) -> Run:
        """The run with the best final return: this one."""
        return self

    @property
    def agent(self) -> Any:
        """The agent of the last checkpoint."""
        return load(self.directory)


@dataclass(frozen=True, eq=False)
class Runs(Run):
    """Several finished runs, as `rpsp.train(seeds=...)` returns them. `directory` contains their run directories."""

    members: tuple[Run, ...]

    @property
    def runs(self) -> list[Run]:
        """The single runs, in the order of their seeds."""
        return list(self.members)

    @property
    def metrics(self) -> list[Record]:
        """The records of all runs, one run after the other. Each has the `seed` of its run as an additional field."""
        return [{"seed": run.results["seed"], **record} for run in self.members for record in run.metrics]

    @property
    def best(self) -> Run:
        """The run with the highest `final_return`, the first of equals. Runs without a finite return come last."""
        return max(self.members, key=_final_return)

    @property
    def agent(self) -> Any:
        """The agent of the best run."""
        return self.best.agent


def _final_return(run: Run) -> float:
    value = run.results["final_return"]
    return value if value is not None and math.isfinite(value) else -math.inf


def train(
    env: str | Callable[[], Any],
    method: str = TrainConfig.method,
    *,
    verbose: bool = True,
    out: str | Path | None = None,
    **settings: Any,
) -> Run:
    """Train an agent and write a run directory, as `rpsp train` does.

    Args:
        env: a Gymnasium id, or a function without arguments that returns an environment.
        method: a name from `rpsp methods`, or your own method as `package.module:attribute`.
        verbose: whether to print one line per iteration.
        out: the run directory. Default: runs/ENV__METHOD__SEED__TIME.
        **settings: any flag of `rpsp train` by its name: observe, seed, iterations, samples, max_kl, …. `observe` may
            also be a sequence of indices.

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
    config = configured({"env": name, "method": method, "out": None if out is None else str(out), **settings})
    say = (lambda line: print(line, flush=True)) if verbose else (lambda line: None)

    def show(record: Record, pace: Pace) -> None:
        if "iteration" in record:
            say(line(record, pace))

    return start(config, say, show, None if isinstance(env, str) else env)


def start(config: TrainConfig, say: Say, show: Show, factory: Any = None) -> Run:
    """Start a run in a new directory.

    Args:
        config: the configuration.
        say: called with every progress message.
        show: called with the record of every iteration.
        factory: a function that makes an environment, instead of `config.env`.

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
    check(config)
    resolved = resolve(config, make_envs)
    stem = (config.env or "").replace("/", "_").replace(":", "_").replace(" ", "-")
    seeds = f"s{config.seed}" if config.seeds == 1 else f"s{config.seed}-{config.seed + config.seeds - 1}"
    method = config.method.replace(":", "_")
    directory = free_directory(config.out, f"{stem}__{method}__{seeds}")
    with compilation_cached(config.compilation_cache), _resume_hint(resolved, directory, new=True):
        _claim(directory, resolved)
        if config.seeds > 1:
            return _train_seeds(resolved, directory, say)
        return _train_runs([resolved], [directory], make_envs, say, show)[0]


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
) -> Run:
    """Continue runs from their last checkpoint that is not damaged, or from the beginning if they have none.

    Args:
        directories: the run directories. Several runs are trained together.
        say: called with every progress message.
        show: called with the record of every iteration.
        iterations: total number of iterations. Default: the number in the configuration.
        plugin: modules to import first, separated by commas.
        compilation_cache: whether to use the persistent compilation cache.

    Raises:
        UsageError: if the runs cannot be trained together, or `iterations` is too small.
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
    if iterations is not None:
        if iterations < 0:
            raise UsageError(f"iterations: {iterations} is not a whole number ≥ 0.")
        configs = [dataclasses.replace(config, iterations=iterations) for config in configs]
    first, directory = configs[0], directories[0]
    several = len(configs) > 1  # runs that are trained together share all cores
    make_envs = environment_maker(dataclasses.replace(first, threads=None) if several else first)
    assert make_envs is not None
    cached = compilation_cached(compilation_cache and first.compilation_cache)
    if several:
        _check_alike(configs, directories)
        sentinel.note_resume(shlex.join(["rpsp", "resume", *map(str, directories), *plugin_flag(first)]))
        with cached:
            done = _train_runs(configs, directories, make_envs, say, show)
        return Runs(directory.parent, {"runs": [run.results for run in done]}, tuple(done))
    with cached, _resume_hint(first, directory):
        if first.seeds > 1:
            return _train_seeds(first, directory, say)
        return _train_runs(configs, directories, make_envs, say, show)[0]


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


def ingredients(config: TrainConfig) -> tuple[Any, Any]:
    """Return the recipe and the training settings of a resolved configuration, as Algorithm 1 takes them."""
    assert config.samples  # resolved
    method = composed(config)
    amounts = TrainingSettings(
        samples=config.samples,
        exploration_episodes=config.exploration_episodes,
        exploration_samples=config.exploration_samples,
        seed=config.seed,
        **vars(method.loop),
    )
    return method.recipe, amounts


def _train_runs(
    configs: Sequence[TrainConfig], directories: Sequence[Path], make_envs: Callable[..., Any], say: Say, show: Show
) -> list[Run]:
    """Execute Algorithm 1 for one or several runs in the same environment, and write their run directories.

    Several runs advance together, and the mean of their records is shown. If one run fails, the others continue.
    """
    # Acting makes a thousand small calls per iteration. Dispatching a call to another thread costs more than the call.
    # (This has no effect if the user's program has used jax before.)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    config, failed = configs[0], {}
    assert config.num_envs and config.iterations is not None  # resolved
    with ExitStack() as stack, jax.default_device(_device(config)):
        each = zip(configs, directories, strict=True)
        writers = [stack.enter_context(RunWriter(own, path, *ingredients(own), say)) for own, path in each]
        unfinished = [writer for writer in writers if not writer.finished]
        rows = config.num_envs
        for writer in unfinished:
            writer.num_runs = len(unfinished)

        def envs(count: int) -> Any:
            made = make_envs(rows * count)
            for writer in unfinished:
                writer.write_spaces(made)
            return made

        pace = Pace(config.iterations, min((writer.done for writer in unfinished), default=config.iterations))
        steps = _train_with_retries(envs, unfinished, config.iterations, say)
        with closing(steps):
            for found in steps:
                for writer, step in found:
                    if step.error is None:
                        writer.save(step.training, step.record)
                    else:
                        failed[writer.directory] = step.error
                records = [step.record for _, step in found if step.error is None]
                if records:
                    record = mean_record(records)
                    if "iteration" in record:
                        pace.advance(int(record["iteration"]) + 1)
                    else:
                        say(_initialised(record))
                    show(record, pace)
                if PENDING:
                    raise PENDING[0]
        done = [Run(w.directory, w.write_results()) for w in writers if w.directory not in failed]
    if len(failed) == len(writers) == 1:
        raise failed[directories[0]]
    if failed:
        for directory, error in failed.items():
            write_bytes(directory / FAILURE, f"{error}\n".encode())
        raise _some_failed(
            {str(directory): Failure(str(e), e.exit_code) for directory, e in failed.items()}, len(writers)
        )
    return done


def _some_failed(failed: dict[str, Failure], count: int) -> RpspError:
    """Return the error to raise when some of several runs failed. Each run directory contains the reason of its run."""
    reasons = {failure.sentence for failure in failed.values()}
    why = "; ".join(f"{Path(name).name}: {failure.sentence}" for name, failure in failed.items())
    same = len(failed) == count and len(reasons) == 1  # the reason does not depend on the run
    error = RpspError(*reasons if same else (f"{len(failed)} of {count} runs failed: {why}",))
    error.exit_code = max(failure.code for failure in failed.values())
    return error


def mean_record(records: Sequence[Record]) -> Record:
    """Return the mean of the records of several runs, for the metrics that all of them have. Speeds are summed."""
    first, *others = records
    if not others:
        return first
    mean = {name: sum(r[name] for r in records) / len(records) for name in first if all(name in r for r in others)}
    return mean | {name: len(records) * value for name, value in mean.items() if name.endswith("_per_second")}


TRIES = 3
"""Number of attempts at an iteration whose environments fail. Every new attempt creates the environments again."""


def _train_with_retries(
    make_envs: Callable[[int], Any], writers: Sequence[RunWriter], iterations: int, say: Say
) -> Generator[list[tuple[RunWriter, Any]], None, None]:
    """Execute Algorithm 1. If environments fail, create them again and repeat the iteration.

    All randomness derives from (seed, iteration), so a failure that does not happen again does not change the results.
    If it happens again, episodes in which an environment raises are dropped and counted from then on, like episodes
    with NaN or infinite observations. A run ends if more than `FAILED_SHARE` of a batch fail, or if environments hang
    again.
    """
    tries, drop, left = 0, False, {writer: writer.take_training() for writer in writers}
    while left:
        going = list(left)
        recipes = [writer.recipe for writer in going]
        amounts = [dataclasses.replace(writer.amounts, drop_raising=drop) for writer in going]
        try:
            for steps in train_together(recipes, make_envs, amounts, iterations, list(left.values()), len(cores())):
                tries = 0
                for step in steps:
                    left[going[step.run]] = step.training
                    if step.error is not None:
                        del left[going[step.run]]
                yield [(going[step.run], step) for step in steps]
            return
        except EnvironmentFailure as failure:
            tries += 1
            if tries == TRIES:
                raise EnvironmentFailure(
                    f"{failure}; it was created again {TRIES - 1} times and failed each time"
                ) from failure
            dropping = "" if drop or tries < TRIES - 1 else "; from now on, episodes in which it raises are dropped"
            drop = drop or tries == TRIES - 1
            say(f"{failure}; it is created again, attempt {tries + 1} of {TRIES}{dropping}")


def _train_seeds(config: TrainConfig, directory: Path, say: Say) -> Run:
    """Train several seeds, each in its own run directory: together on a GPU, otherwise one process per core."""
    write_json(directory / "config.json", dataclasses.asdict(config))
    jobs = []
    for seed in range(config.seed, config.seed + config.seeds):
        own = directory / f"s{seed}"
        alone = dataclasses.replace(config, seed=seed, seeds=1, threads=1, out=str(own))
        jobs.append(Job(own.name, own, alone))
    where = "the GPU" if config.device == "gpu" else f"{len(cores())} cores"
    say(f"run directory {directory}: {config.seeds} seeds on {where}")
    failed: dict[str, Failure] = {}
    with closing(run_here(jobs)) as beats:
        for job, failure in (end for beat in beats for end in beat.ended):
            if failure is not None:
                failed[job.name] = failure
            say(f"{job.name}: {closing_words(job.directory) if failure is None else f'failed: {failure.sentence}'}")
    results = [read_json(job.directory / "results.json") for job in jobs if job.name not in failed]
    finals = [r["final_return"] for r in results if r["final_return"] is not None]
    mean = sum(finals) / len(finals) if finals else None
    why = {name: failure.sentence for name, failure in failed.items()}
    content = {"directory": str(directory), "runs": results, "failed": why, "final_return": mean}
    write_json(directory / "results.json", content)
    if failed:
        raise _some_failed(failed, config.seeds)
    runs = (Run(job.directory, result) for job, result in zip(jobs, results, strict=True))
    return Runs(directory, content, tuple(runs))


@compilation_cached()
def evaluate(
    directory: Path, episodes: int, checkpoint: str, seed: int, deterministic: bool, say: Say | None = None
) -> dict[str, Any]:
    """Play episodes with a trained agent, and write the returns to results.json.

    Args:
        directory: a run directory.
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
    known = read_json(directory / "results.json") if (directory / "results.json").exists() else {}
    write_json(directory / "results.json", known | {"evaluation": results})
    return results


def line(record: Record, pace: Pace) -> str:
    """Format the record of an iteration as one line of text."""
    if "iteration" not in record:
        return ""
    refitted = {0.0: "  refit rejected", 1.0: "  refitted"}.get(record.get("refit_accepted", -1.0), "")
    dropped = f"  dropped {record['dropped_episodes']:.0f}" if record["dropped_episodes"] else ""
    if "astray" in record:
        dropped += f"  update not finite ({record['astray']} in a row)"
    if "rolled_back" in record:
        dropped += f"  rolled back, step sizes × {record['step_scale']:g} from now on"
    return (
        f"{pace.done:5d}/{pace.total}  return {record['mean_return']:9.2f}  "
        f"prediction {record['prediction_error']:.1e} (persistence {record['persistence_error']:.1e})  "
        f"KL {record['whole_kl']:.4f}  {record['steps_per_second']:7,.0f} steps/s  ETA {pace.eta}"
        f"{refitted}{dropped}"
    )


def _initialised(record: Record) -> str:
    return (
        f"explored {record['exploration_samples']:,.0f} random steps ({record['exploration_seconds']:.1f} s); fitted a "
        f"filter with {record['state_size']:.0f} state dimensions ({record['initialisation_seconds']:.1f} s): held-out "
        f"error {record['prediction_error']:.1e} of the variance, persistence {record['persistence_error']:.1e}"
        + (f"; {record['still_readings']:.0f} observations never changed" if record.get("still_readings") else "")
    )


def closing_words(directory: Path) -> str:
    """Return the final and best return of a finished run as text."""
    results = read_json(directory / "results.json")
    if not results["iterations"]:
        return "0 iterations were requested"
    return f"final return {results['final_return']:.1f}, best {results['best_return']:.1f}"
