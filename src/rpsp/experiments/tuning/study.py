"""Studies: trials in stages, each with several seeds.

A trial is a setting. It is trained in stages: to a part of its iterations, then further. After every stage, pruning ends
trials that are worse than others were. A stage is a `resume` of the run directories, so it can be computed on this machine
or on a Ray cluster, and an interrupted study goes on where it was. The study itself is an SQLite file of Optuna.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rpsp.data.files import write_bytes
from rpsp.errors import RpspError, UsageError
from rpsp.experiments.budget import AVERAGED
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.configure import find_method
from rpsp.experiments.files import Say, read_json, write_json
from rpsp.experiments.labels import flat_settings
from rpsp.experiments.resolve import check, environment_maker, resolve
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.statistics import mean_and_error
from rpsp.experiments.sweeps import Backend, carry_out
from rpsp.experiments.tuning.spaces import Values, space_of
from rpsp.experiments.workers import Failure, Job

Pruner = Literal["median", "hyperband", "none"]
STAGES: dict[str, tuple[float, ...]] = {"median": (0.25, 0.5, 1.0), "hyperband": (1 / 9, 1 / 3, 1.0), "none": (1.0,)}
"""The parts of the iterations after which trials are compared, by the pruner."""
FIRST = 5
"""Number of complete trials before the median prunes."""
NEW_SEEDS = 1000
"""The first of the seeds on which the best setting is compared with the default."""
DATABASE, FACTS, BEST = "study.db", "tune.json", "best.toml"


@dataclass(frozen=True)
class Plan:
    """What a study tries."""

    config: TrainConfig
    """The configuration of every trial apart from the space, not resolved."""
    space: Mapping[str, Values]
    trials: int = 40
    seeds: tuple[int, ...] = (100, 101)
    pruner: Pruner = "median"
    verify: int = 5
    """Number of new seeds on which the best setting is compared with the default. 0: none."""

    def __post_init__(self) -> None:
        """Check the values."""
        if self.trials < 2:
            raise UsageError(
                f"trials: {self.trials} is not a whole number ≥ 2; the first trial is the default setting."
            )
        if not self.seeds:
            raise UsageError("seeds: 0 is not a whole number ≥ 1.")
        if self.verify < 0 or self.verify == 1:
            raise UsageError(f"verify: {self.verify} is neither 0 nor a whole number ≥ 2, as an interval needs.")
        if not self.space:
            raise UsageError(f"space: {self.config.method} has no setting with a space; give one, [space] in a file.")

    def facts(self) -> dict[str, Any]:
        """Return what must not change while the study goes on, as JSON."""
        settings = flat_settings(dataclasses.asdict(self.config))
        for name in ("out", "seed", "json", "quiet"):
            del settings[name]
        space = {name: [type(values).__name__, *dataclasses.astuple(values)] for name, values in self.space.items()}
        facts = {"settings": settings, "space": space, "seeds": self.seeds, "pruner": self.pruner}
        return json.loads(json.dumps(facts))


def plan_of(config: TrainConfig, space: Mapping[str, Any] | None, **given: Any) -> Plan:
    """Return the plan of a configuration. See `Plan` and `space_of`."""
    return Plan(config, space_of(find_method(config.method), space), **given)


class Study:
    """A study in a directory.

    Args:
        plan: what is tried.
        out: the directory. An existing study of the same plan is continued.
        backend: executes runs.
        workers: number of runs at the same time.
        say: called with messages.

    Raises:
        UsageError: if Optuna is not installed, a setting is invalid, or the directory contains another study.
    """

    def __init__(self, plan: Plan, out: Path, backend: Backend, workers: int, say: Say = lambda line: None):
        self.plan, self.out, self.backend, self.workers, self.say = plan, out, backend, workers, say
        self.optuna = _optuna()
        make_envs = environment_maker(plan.config)
        if make_envs is None:
            raise UsageError(f"env: {plan.config.env!r} is not a Gymnasium id.")
        check(plan.config)
        self.resolved = resolve(plan.config, make_envs)
        self.iterations = int(self.resolved.iterations or 0)
        parts = sorted({max(1, round(part * self.iterations)) for part in STAGES[plan.pruner]})
        self.stages = parts
        """Numbers of iterations after which trials are compared."""
        facts, path = plan.facts(), out / FACTS
        if path.exists() and read_json(path) != facts:
            raise UsageError(f"out: {str(out)!r} contains a study of other settings; choose another --out.")
        write_json(path, facts)
        self.study = self._opened()

    def _opened(self) -> Any:
        """Open the study, and put the default setting first."""
        optuna = self.optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        most = self.stages[-1]
        pruners = {
            "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=FIRST),
            "hyperband": lambda: optuna.pruners.HyperbandPruner(self.stages[0], most, 3),
            "none": optuna.pruners.NopPruner,
        }
        study = optuna.create_study(
            storage=f"sqlite:///{self.out / DATABASE}",
            study_name="rpsp",
            sampler=optuna.samplers.TPESampler(seed=0),
            pruner=pruners[self.plan.pruner](),
            direction="maximize",
            load_if_exists=True,
        )
        if not study.trials:
            known = find_method(self.plan.config.method).known
            own = {name: getattr(self.plan.config.settings, name) for name in known}
            study.enqueue_trial(
                {n: stored for n, v in self.plan.space.items() if (stored := v.stored(_listed(own[n]))) is not None},
                user_attrs={"default": True},
            )
        return study

    # -----------------------------------------------------------------------------------------------------------------
    # Trials
    # -----------------------------------------------------------------------------------------------------------------

    def optimise(self) -> None:
        """Carry out the trials that are missing. All finished iterations are kept if this is interrupted."""
        states = self.optuna.trial.TrialState
        active = {t.number: self._again(t) for t in self.study.trials if t.state == states.RUNNING}
        together = max(1, math.ceil(self.workers / len(self.plan.seeds)))
        with self._one_cache():
            while True:
                ended = sum(t.state.is_finished() for t in self.study.trials)
                while len(active) < min(together, self.plan.trials - ended):
                    trial = self.study.ask()
                    active[trial.number] = trial
                if not active:
                    return
                settings = {number: self._settings(trial) for number, trial in active.items()}
                jobs = {
                    number: self._jobs(
                        f"trial-{number:04d}", settings[number], self._next_stage(trial), self.plan.seeds
                    )
                    for number, trial in active.items()
                }
                failed = carry_out([job for some in jobs.values() for job in some], self.out, self.backend)
                for number, trial in list(active.items()):
                    if self._judged(trial, jobs[number], failed, settings[number]):
                        del active[number]

    def _again(self, frozen: Any) -> Any:
        """Return a trial that an earlier process has begun."""
        return self.optuna.trial.Trial(self.study, frozen._trial_id)

    def _settings(self, trial: Any) -> dict[str, Any]:
        """Return the setting of a trial. The first one is the default, also where that is outside the space."""
        found = {name: values.suggest(trial, name) for name, values in self.plan.space.items()}
        if trial.user_attrs.get("default"):
            return {name: _listed(getattr(self.plan.config.settings, name)) for name in found}
        return found

    def _next_stage(self, trial: Any) -> int:
        """Return the number of iterations of the next stage of a trial."""
        reported = self.study.trials[trial.number].intermediate_values
        return next((stage for stage in self.stages if stage not in reported), self.stages[-1])

    def _jobs(self, name: str, settings: Mapping[str, Any], iterations: int, seeds: Sequence[int]) -> list[Job]:
        """Return the runs of a setting up to a number of iterations."""
        own = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
        config = dataclasses.replace(
            self.resolved,
            settings=dataclasses.replace(self.resolved.settings, **own),
            iterations=iterations,
            steps=None,
            minutes=None,
            threads=1,
        )
        places = {seed: self.out / name / f"s{seed}" for seed in seeds}
        return [
            Job(f"{name}/s{seed}", place, dataclasses.replace(config, seed=seed, out=str(place)))
            for seed, place in places.items()
        ]

    def _judged(
        self, trial: Any, jobs: Sequence[Job], failed: Mapping[str, Failure], settings: Mapping[str, Any]
    ) -> bool:
        """Report the return of a stage, and return whether the trial has ended."""
        state, number = self.optuna.trial.TrialState, trial.number
        if reasons := [failed[job.name].sentence for job in jobs if job.name in failed]:
            trial.set_user_attr("failure", reasons[0])
            self.study.tell(trial, state=state.FAIL)
            self.say(f"trial {number}: failed: {reasons[0]}")
            return True
        stage = jobs[0].config.iterations or 0
        value = statistics.fmean(running_return(job.directory, stage) for job in jobs)
        trial.report(value, stage)
        where = f"trial {number}{' (default)' if trial.user_attrs.get('default') else ''}: return {value:.1f}"
        if stage == self.stages[-1]:
            self.study.tell(trial, value)
            self.say(f"{where}; {_shown(settings)}")
            return True
        if not trial.user_attrs.get("default") and trial.should_prune():
            self.study.tell(trial, state=state.PRUNED)
            self.say(f"{where} after {stage} of {self.stages[-1]} iterations, pruned")
            return True
        return False

    @contextlib.contextmanager
    def _one_cache(self) -> Iterator[None]:
        """Let the runs of all stages share one cache of compiled programs, unless the user has one."""
        name = "JAX_COMPILATION_CACHE_DIR"
        if name in os.environ:
            yield
            return
        with tempfile.TemporaryDirectory(prefix="rpsp-compiled-") as folder:
            os.environ[name] = folder
            try:
                yield
            finally:
                del os.environ[name]

    # -----------------------------------------------------------------------------------------------------------------
    # The best setting
    # -----------------------------------------------------------------------------------------------------------------

    def complete(self) -> list[Any]:
        """Return the trials that were trained to the end, best first."""
        states = self.optuna.trial.TrialState
        found = [t for t in self.study.trials if t.state == states.COMPLETE]
        return sorted(found, key=lambda t: -t.value)

    def setting(self, frozen: Any) -> dict[str, Any]:
        """Return the setting of a finished trial."""
        return self._settings(self.optuna.trial.FixedTrial(frozen.params, frozen.number)) | (
            {n: _listed(getattr(self.plan.config.settings, n)) for n in self.plan.space}
            if frozen.user_attrs.get("default")
            else {}
        )

    def verify(self) -> dict[str, Any] | None:
        """Train the best and the default setting on new seeds, and compare their returns.

        Returns:
            The mean returns, the mean difference and its standard error. None if nothing is to be compared.
        """
        found = self.complete()
        if not found or not self.plan.verify or found[0].user_attrs.get("default"):
            return None
        seeds = range(NEW_SEEDS, NEW_SEEDS + self.plan.verify)
        default = {name: _listed(getattr(self.plan.config.settings, name)) for name in self.plan.space}
        best = self._jobs("best", self.setting(found[0]), self.iterations, seeds)
        usual = self._jobs("default", default, self.iterations, seeds)
        self.say(f"comparing the best setting with the default on {self.plan.verify} new seeds")
        with self._one_cache():
            failed = carry_out([job for pair in zip(best, usual, strict=True) for job in pair], self.out, self.backend)
        if failed:
            raise RpspError(f"the comparison on new seeds failed: {next(iter(failed.values())).sentence}")
        returns = [[running_return(job.directory, self.iterations) for job in jobs] for jobs in (best, usual)]
        (ours, _), (theirs, _) = (mean_and_error(_array(values)) for values in returns)
        difference, error = mean_and_error(_array(returns[0]) - _array(returns[1]))
        return {
            "seeds": list(seeds),
            "best": float(ours),
            "default": float(theirs),
            "difference": float(difference),
            "error": float(error),
            "returns": {"best": returns[0], "default": returns[1]},
        }

    def write_best(self) -> Path | None:
        """Write the best setting as a TOML file that `rpsp train --config` takes; None if no trial is complete."""
        found = self.complete()
        if not found:
            return None
        given = flat_settings(dataclasses.asdict(self.plan.config))
        usual = flat_settings(dataclasses.asdict(TrainConfig(settings=find_method(self.plan.config.method).settings())))
        local = "out", "seed", "config", "chosen", "json", "quiet"
        kept = {n: v for n, v in given.items() if n in ("env", "method") or (v != usual.get(n) and n not in local)}
        setting = kept | self.setting(found[0])
        lines = [f"# Trial {found[0].number} of {len(self.study.trials)}: return {found[0].value:.2f}"]
        lines += [f"{name} = {_toml(value)}" for name, value in setting.items()]
        path = self.out / BEST
        write_bytes(path, ("\n".join(lines) + "\n").encode())
        return path

    def importances(self) -> dict[str, float]:
        """Return how much of the variance of returns each setting explains (PED-ANOVA). Empty with too few trials."""
        if len(self.complete()) < 4 or len(self.plan.space) < 2:
            return {}
        evaluator = self.optuna.importance.PedAnovaImportanceEvaluator()
        try:
            found = self.optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        except (ValueError, RuntimeError):  # all returns are equal
            return {}
        return {name: float(value) for name, value in found.items()}


def running_return(directory: Path, iterations: int) -> float:
    """Return the mean return of the last ten iterations up to this number."""
    records = [
        r["mean_return"] for r in RunDirectory(directory).metrics() if r.get("iteration", iterations) < iterations
    ]
    return statistics.fmean(records[-AVERAGED:])


def tune(study: Study, show: Callable[[Study, dict[str, Any] | None], Path]) -> dict[str, Any]:
    """Carry out a study, write the best setting, and compare it with the default.

    Args:
        study: the study.
        show: writes the report page.
    """
    study.optimise()
    best = study.write_best()
    found = study.complete()
    show(study, None)
    compared = study.verify()
    page = show(study, compared)
    states = [t.state.name.lower() for t in study.study.trials]
    usual = next((t.value for t in found if t.user_attrs.get("default")), None)
    return {
        "directory": str(study.out),
        "trials": {name: states.count(name) for name in sorted(set(states))},
        "best": None if not found else {"trial": found[0].number, "return": found[0].value, **study.setting(found[0])},
        "default_return": usual,
        "config": None if best is None else str(best),
        "comparison": compared,
        "page": str(page),
    }


def _optuna() -> Any:
    try:
        import optuna  # optional extra # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError("tune: optuna is not installed; run `pip install rpsp[tune]`.") from error
    return optuna


def _array(values: Sequence[float]) -> Any:
    import numpy as np

    return np.array(values, float)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(settings: Mapping[str, Any]) -> str:
    words = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in settings.values())
    return ", ".join(f"{name}={word}" for name, word in zip(settings, words, strict=True))


def _toml(value: Any) -> str:
    """Return a value as TOML."""
    if value is None:
        return '"none"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value) if not isinstance(value, float) else repr(value)
