"""Execute Algorithm 1 for the runs of given run directories: one, several together, or one process per seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import jax

from rpsp.data.files import write_bytes
from rpsp.errors import PENDING, EnvironmentFailure, RpspError
from rpsp.experiments.budget import Budget
from rpsp.experiments.callbacks.asked_for import asked_for
from rpsp.experiments.callbacks.base import Callback
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.files import Say, read_json, write_json
from rpsp.experiments.finished_runs import Run, Runs
from rpsp.experiments.progress import Pace, Show, closing_words, initialised, mean_record
from rpsp.experiments.resolve import _device, composed
from rpsp.experiments.run_writer import RunWriter
from rpsp.experiments.workers import FAILURE, Failure, Job, cores, run_here
from rpsp.training.state import TrainingSettings
from rpsp.training.together import train_together


def ingredients(config: TrainConfig) -> tuple[Any, Any]:
    """Return the recipe and the training settings of a resolved configuration, as Algorithm 1 takes them."""
    assert config.samples  # resolved
    method = composed(config)
    amounts = TrainingSettings(
        samples=config.samples,
        exploration_episodes=config.exploration_episodes,
        exploration_samples=config.exploration_samples,
        seed=config.seed,
        missing=config.sensors.missing is not None,
        **vars(method.loop),
    )
    return method.recipe, amounts


def train_runs(
    configs: Sequence[TrainConfig],
    directories: Sequence[Path],
    make_envs: Callable[..., Any],
    say: Say,
    show: Show,
    callbacks: Sequence[Callback] = (),
) -> list[Run]:
    """Execute Algorithm 1 for one or several runs in the same environment, and write their run directories.

    Several runs advance together, and the mean of their records is shown. If one run fails, the others continue. The
    callbacks are those of a single run, in addition to those that settings ask for.
    """
    # Acting makes a thousand small calls per iteration. Dispatching a call to another thread costs more than the call.
    # (This has no effect if the user's program has used jax before.)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    config, failed = configs[0], {}
    assert config.num_envs  # resolved
    with ExitStack() as stack, jax.default_device(_device(config)):
        each = zip(configs, directories, strict=True)
        writers = [
            stack.enter_context(RunWriter(own, path, *ingredients(own), say, [*asked_for(own), *callbacks], make_envs))
            for own, path in each
        ]
        unfinished = [writer for writer in writers if not writer.finished]
        rows = config.num_envs
        for writer in unfinished:
            writer.num_runs = len(unfinished)
            writer.begin()

        def envs(count: int) -> Any:
            made = make_envs(rows * count)
            for writer in unfinished:
                writer.write_spaces(made)
            return made

        budget = Budget.of(vars(config))
        done = min((writer.done for writer in unfinished), default=budget.iterations)
        pace = Pace.of(budget, done, max((writer.earlier_seconds for writer in unfinished), default=0.0))
        steps = _train_with_retries(envs, unfinished, budget.iterations, say)
        with closing(steps):
            for found in steps:
                for writer, step in found:
                    if step.error is None:
                        writer.save(step.training, step.record)
                    else:
                        failed[writer.directory] = step.error
                records = [writer.run.record for writer, step in found if step.error is None]
                if records:
                    record = mean_record(records)
                    if "iteration" in record:
                        pace.advance(int(record["iteration"]) + 1, int(record["total_samples"]))
                    else:
                        say(initialised(record))
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
            trainings = list(left.values())
            spent = [writer.spent for writer in going]
            for steps in train_together(recipes, make_envs, amounts, iterations, trainings, len(cores()), spent):
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


def train_seeds(config: TrainConfig, directory: Path, say: Say) -> Run:
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
