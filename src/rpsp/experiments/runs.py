"""Training runs: a configuration becomes a run directory, one that can be interrupted, resumed and loaded."""

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

from rpsp import sentinel
from rpsp.errors import PENDING, EnvironmentFailure, FileFormatError, RpspError, UsageError
from rpsp.experiments.compilation import compilation_cached
from rpsp.experiments.config import TrainConfig, configured, field_names, find_method, import_plugin, plugin_flag
from rpsp.experiments.files import Say, free_directory, read_json, record_settings, write_json
from rpsp.experiments.methods import MethodSettings
from rpsp.experiments.place import Place
from rpsp.experiments.pool import FAILURE, TOGETHER, Failure, Job, cores, run_here
from rpsp.experiments.resolve import FACTORY, _device, check, environment_maker, read_config, resolve
from rpsp.experiments.words import clock

Record = dict[str, float | int]
"""What an iteration has to say, as in `training`."""
Show = Callable[[Record, "Pace"], None]
"""What is called with every record."""


@dataclass
class Pace:
    """How far a run has come, and when it will be done."""

    total: int
    done: int = 0
    here: int = 0
    """Iterations done by this process."""
    since: float = 0.0
    """When the first of them was done."""

    def advance(self, done: int) -> None:
        """So many are done now. The first of a process compiles, which says nothing of the others: time is taken from its
        end on, and until then nothing is foretold."""
        self.done, self.here = done, self.here + 1
        if self.here == 1:
            self.since = time.monotonic()

    @property
    def eta(self) -> str:
        """How long the rest will take, as on a clock."""
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
        from rpsp.experiments.run_directory import RunDirectory

        return [r for r in RunDirectory(self.directory).metrics() if "iteration" in r]

    @property
    def best(self) -> Run:
        """The run with the best final return: this one."""
        return self

    @property
    def agent(self) -> Any:
        """The agent of the last checkpoint."""
        from rpsp.experiments.agents import load

        return load(self.directory)


@dataclass(frozen=True, eq=False)
class Runs(Run):
    """Several finished runs, as `rpsp.train(seeds=...)` returns them. `directory` holds one run directory for each."""

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
        """The run with the highest `final_return`; the first one of equals. Runs without a finite return come last."""
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
    """Train an agent and leave a run directory: `rpsp train` from Python.

    Args:
        env: a Gymnasium id, or a function without arguments that makes an environment.
        method: a row of `rpsp methods`, or your own as `package.module:row`.
        verbose: print a line an iteration.
        out: the run directory; unless given one is named under runs/.
        **settings: any flag of `rpsp train` by its name: observe, seed, iterations, samples, max_kl, …; `observe` may
            also be a sequence of indices.

    Returns:
        A `Run` with `directory`, `results`, `metrics` (one record per iteration) and `agent`. With `seeds` greater than
        1 it is a `Runs`: `runs` lists the single runs, `metrics` has the records of all of them with a `seed` field,
        `best` is the run with the highest final return, and `agent` is the agent of that run.
    """
    if not isinstance(env, str) and not callable(env):
        raise UsageError(
            f"env: {env!r} is neither a Gymnasium id, as in 'Hopper-v5', nor a function without arguments that makes an "
            "environment, as in lambda: MyEnv()."
        )
    name = env if isinstance(env, str) else FACTORY
    config = configured({"env": name, "method": method, "out": None if out is None else str(out), **settings})
    say = (lambda line: print(line, flush=True)) if verbose else (lambda line: None)

    def show(record: Record, pace: Pace) -> None:
        if "iteration" in record:
            say(line(record, pace))

    return start(config, say, show, None if isinstance(env, str) else env)


def start(config: TrainConfig, say: Say, show: Show, factory: Any = None) -> Run:
    """Begin a run in a new directory."""
    if config.env is None:
        raise UsageError("env: no environment is named; give a Gymnasium id, as in `rpsp train Hopper-v5`.")
    if config.plugin is not None:
        import_plugin(config.plugin)
    make_envs = environment_maker(config, factory)
    if make_envs is None:
        raise UsageError(f"env: {config.env!r} is not a Gymnasium id.")
    if factory is not None and config.seeds > 1:
        raise UsageError(
            f"seeds: {config.seeds} need a process each, and a function cannot be sent there; register the environment "
            "with Gymnasium and train on its id, or train one seed after the other."
        )
    check(config)
    resolved = resolve(config, make_envs)
    stem = (config.env or "").replace("/", "_").replace(":", "_").replace(" ", "-")
    seeds = f"s{config.seed}" if config.seeds == 1 else f"s{config.seed}-{config.seed + config.seeds - 1}"
    method = config.method.replace(":", "_")
    directory = free_directory(config.out, f"{stem}__{method}__{seeds}")
    from rpsp.experiments.recipes import unused

    if names := unused(find_method(config.method), config.settings):
        say(f"{config.method} has no use for {', '.join(names)}: it trains as without")
    with compilation_cached(config.compilation_cache), _departing(resolved, directory, new=True):
        _claim(directory, resolved)
        if config.seeds > 1:
            return _many(resolved, directory, say)
        return _run([resolved], [directory], make_envs, say, show)[0]


def _claim(directory: Path, config: TrainConfig) -> None:
    """Leave the settings in a new directory; of two processes that want the same one, the second finds them there."""
    from rpsp.experiments.run_directory import InUse, RunDirectory

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
    """Go on from the last good checkpoint; from the beginning if there is none yet. Several runs go on together."""
    import_plugin(plugin)
    configs = [read_config(directory) for directory in directories]
    for directory, config in zip(directories, configs, strict=True):
        if environment_maker(config) is None:
            raise UsageError(
                f"{directory}: was trained on an environment made by a function, which no file can keep; register the "
                "environment with Gymnasium and train on its id."
            )
    if iterations is not None:
        if iterations < 0:
            raise UsageError(f"iterations: {iterations} is not a whole number ≥ 0.")
        configs = [dataclasses.replace(config, iterations=iterations) for config in configs]
    first, directory = configs[0], directories[0]
    several = len(configs) > 1  # which share all cores
    make_envs = environment_maker(dataclasses.replace(first, threads=None) if several else first)
    assert make_envs is not None
    cached = compilation_cached(compilation_cache and first.compilation_cache)
    if several:
        _check_alike(configs, directories)
        sentinel.note_resume(shlex.join(["rpsp", "resume", *map(str, directories), *plugin_flag(first)]))
        with cached:
            done = _run(configs, directories, make_envs, say, show)
        return Runs(directory.parent, {"runs": [run.results for run in done]}, tuple(done))
    with cached, _departing(first, directory):
        if first.seeds > 1:
            return _many(first, directory, say)
        return _run(configs, directories, make_envs, say, show)[0]


def _check_alike(configs: Sequence[TrainConfig], directories: Sequence[Path]) -> None:
    """Runs that go on together are of the same environment and length; methods and their settings may differ."""
    for directory, other in zip(directories, configs, strict=True):
        if unlike := [name for name in TOGETHER if getattr(other, name) != getattr(configs[0], name)]:
            raise UsageError(
                f"{unlike[0]}: is {getattr(other, unlike[0])!r} in {directory}, {getattr(configs[0], unlike[0])!r} in "
                f"{directories[0]}; runs that go on together must agree in it, so resume these one by one."
            )
        if other.seeds > 1:
            raise UsageError(f"seeds: {directory} holds {other.seeds} runs; name those instead, as in {directory}/s*.")


@contextmanager
def _departing(config: TrainConfig, directory: Path, new: bool = False) -> Iterator[None]:
    """Who leaves before the end is told how to go on; a new run that fails at once removes what it has written."""
    existed = directory.exists()
    how = "all finished iterations are saved"
    if config.env != FACTORY:
        words = ["rpsp", "resume", str(directory), *plugin_flag(config)]
        how += f"; go on with: {shlex.join(words)}"
        sentinel.note_resume(shlex.join(words))
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(how)
        raise
    except RpspError as error:
        from rpsp.experiments.run_directory import InUse, RunDirectory

        own = [directory / f"s{seed}" for seed in range(config.seed, config.seed + config.seeds)]
        begun = any(RunDirectory(place).numbers() for place in ([directory] if config.seeds == 1 else own))
        if begun and not isinstance(error, UsageError | FileFormatError):
            error.add_note(how)
        elif new and not begun and not isinstance(error, InUse):
            for place in own if config.seeds > 1 else []:
                RunDirectory(place).discard(keep_directory=False)
            RunDirectory(directory).discard(keep_directory=existed)
        raise


def ingredients(config: TrainConfig) -> tuple[Any, Any]:
    """The recipe and the amounts of Algorithm 1, of a resolved configuration."""
    from rpsp.experiments.recipes import recipe
    from rpsp.training.loop import TrainingSettings

    assert config.samples  # resolved
    cooked, min_length = recipe(find_method(config.method), config.settings)
    shared = field_names(TrainingSettings) & field_names(MethodSettings)
    amounts = TrainingSettings(
        samples=config.samples,
        exploration_episodes=config.exploration_episodes,
        exploration_samples=config.exploration_samples,
        min_length=min_length,
        seed=config.seed,
        **{name: getattr(config.settings, name) for name in shared},
    )
    return cooked, amounts


def _run(
    configs: Sequence[TrainConfig], directories: Sequence[Path], make_envs: Callable[..., Any], say: Say, show: Show
) -> list[Run]:
    """Algorithm 1 into run directories, of which there may be several in the same environment.

    Several advance together, and what is shown is their mean. A run that fails takes no other with it.
    """
    import jax

    from rpsp.data.files import write_bytes

    # Acting is a thousand tiny calls an iteration: handing each to another thread costs more than the call. (Of no effect
    # where a user's program has begun to compute already.)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    config, failed = configs[0], {}
    assert config.num_envs and config.iterations is not None  # resolved
    with ExitStack() as stack, jax.default_device(_device(config)):
        each = zip(configs, directories, strict=True)
        places = [stack.enter_context(Place(own, place, *ingredients(own), say)) for own, place in each]
        waiting = [place for place in places if not place.finished]
        rows = config.num_envs
        for place in waiting:
            place.beside = len(waiting)

        def envs(count: int) -> Any:
            made = make_envs(rows * count)
            for place in waiting:
                place.keep_spaces(made)
            return made

        pace = Pace(config.iterations, min((place.done for place in waiting), default=config.iterations))
        steps = _persevering(envs, waiting, config.iterations, say)
        with closing(steps):
            for found in steps:
                for place, step in found:
                    if step.error is None:
                        place.keep(step.training, step.record)
                    else:
                        failed[place.directory] = step.error
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
        done = [Run(p.directory, p.conclude()) for p in places if p.directory not in failed]
    if len(failed) == len(places) == 1:
        raise failed[directories[0]]
    if failed:
        for directory, error in failed.items():
            write_bytes(directory / FAILURE, f"{error}\n".encode())
        raise _some_failed(
            {str(directory): Failure(str(e), e.exit_code) for directory, e in failed.items()}, len(places)
        )
    return done


def _some_failed(failed: dict[str, Failure], count: int) -> RpspError:
    """What is raised when some of several runs failed; the reason of each stays in its directory."""
    reasons = {failure.sentence for failure in failed.values()}
    why = "; ".join(f"{Path(name).name}: {failure.sentence}" for name, failure in failed.items())
    same = len(failed) == count and len(reasons) == 1  # then it is no run's own
    error = RpspError(*reasons if same else (f"{len(failed)} of {count} runs failed: {why}",))
    error.exit_code = max(failure.code for failure in failed.values())
    return error


def mean_record(records: Sequence[Record]) -> Record:
    """What runs that advance together have to say: means of what all of them say; of speeds the sum."""
    first, *others = records
    if not others:
        return first
    mean = {name: sum(r[name] for r in records) / len(records) for name in first if all(name in r for r in others)}
    return mean | {name: len(records) * value for name, value in mean.items() if name.endswith("_per_second")}


TRIES = 3
"""How often an iteration is tried with environments made anew, before a run gives up."""


def _persevering(
    make_envs: Callable[[int], Any], places: Sequence[Place], iterations: int, say: Say
) -> Generator[list[tuple[Place, Any]], None, None]:
    """Algorithm 1; where its environments fail they are made anew and the iteration is played again.

    Its randomness derives from (seed, iteration): if the failure does not come again, it has left no trace in the numbers.
    If it does come again, episodes in which an environment raises are dropped and counted from then on, as those with
    readings that are not finite are. A run ends if more than `FAILED_SHARE` of a batch fail, or environments hang again.
    """
    from rpsp.training.together import train_together

    tries, drop, left = 0, False, {place: place.take() for place in places}
    while left:
        going = list(left)
        recipes = [place.recipe for place in going]
        amounts = [dataclasses.replace(place.amounts, drop_raising=drop) for place in going]
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
                    f"{failure}; it was made anew {TRIES - 1} times, and failed each time"
                ) from failure
            dropping = "" if drop or tries < TRIES - 1 else "; from now on, episodes in which it raises are left out"
            drop = drop or tries == TRIES - 1
            say(f"{failure}; it is made anew, try {tries + 1} of {TRIES}{dropping}")


def _many(config: TrainConfig, directory: Path, say: Say) -> Run:
    """Several seeds, each in a directory of its own: on a GPU together, else each in a process bound to one core."""
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
    """`rpsp eval`: mean and spread of the returns, kept in results.json."""
    from rpsp.experiments.agents import load

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
    """One iteration in one line."""
    if "iteration" not in record:
        return ""
    refitted = {0.0: "  refit refused", 1.0: "  refitted"}.get(record.get("refit_accepted", -1.0), "")
    dropped = f"  dropped {record['dropped_episodes']:.0f}" if record["dropped_episodes"] else ""
    if "astray" in record:
        dropped += f"  no finite update ({record['astray']} in a row)"
    if "rolled_back" in record:
        dropped += f"  rolled back, steps × {record['step_scale']:g} from now on"
    return (
        f"{pace.done:5d}/{pace.total}  return {record['mean_return']:9.2f}  "
        f"prediction {record['prediction_error']:.1e} (persistence {record['persistence_error']:.1e})  "
        f"KL {record['whole_kl']:.4f}  {record['steps_per_second']:7,.0f} steps/s  ETA {pace.eta}"
        f"{refitted}{dropped}"
    )


def _initialised(record: Record) -> str:
    return (
        f"explored {record['exploration_samples']:,.0f} steps at random ({record['exploration_seconds']:.1f} s); belief of "
        f"{record['state_size']:.0f} numbers fitted ({record['initialisation_seconds']:.1f} s): held-out error "
        f"{record['prediction_error']:.1e} of the variance, persistence {record['persistence_error']:.1e}"
        + (f"; {record['still_readings']:.0f} readings never changed" if record.get("still_readings") else "")
    )


def closing_words(directory: Path) -> str:
    """What a finished run came to, in a few words."""
    results = read_json(directory / "results.json")
    if not results["iterations"]:
        return "no iteration was asked for"
    return f"final return {results['final_return']:.1f}, best {results['best_return']:.1f}"
