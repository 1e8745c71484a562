"""The rules of `rpsp diagnose`, as data: what can be wrong with a run, in the order in which it is checked.

Every rule has a title, a test on the metrics, and a command to try next. docs/guides/diagnostics.md lists the same
titles in the same order.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from rpsp.experiments.commands import train_command
from rpsp.experiments.config import TrainConfig
from rpsp.experiments.defaults import CONTINUOUS, DISCRETE
from rpsp.experiments.words import number
from rpsp.training.state import Record

LEAST = 8
"""Number of iterations from which trends are judged."""
LEAST_CONSTANT = 4
"""Number of iterations from which a return that is the same in all of them counts as no progress."""
FAILED_SHARE = 0.05
"""Share of failed episodes above which the environment is at fault."""
BAD_BELIEF = 0.7
"""One-step error, as a fraction of that of persistence, above which a belief is hardly better than persistence."""
LARGE_KL = 0.05
"""KL per iteration above which updates of the filter disturb the policy."""
CLEAR = 3.0
"""Number of standard errors by which a return must rise to count as learning."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a run."""

    title: str
    """The title of its rule."""
    problem: str
    """What the metrics show."""
    remedy: str
    """What to change, and why."""
    command: str
    """The command to try next."""
    at_end: bool = True
    """Whether training itself reports it at its end."""


@dataclass(frozen=True)
class Evidence:
    """What the rules look at."""

    directory: Path
    config: TrainConfig
    """The resolved configuration."""
    predictive: bool
    """Whether the filter is fitted to predict."""
    off_policy: bool
    """Whether the algorithm learns from a replay buffer."""
    records: tuple[Record, ...]
    """The records of the iterations."""
    threshold: float | None = None
    """The return at which the task counts as solved, if known."""

    def column(self, name: str) -> np.ndarray:
        """Return one metric of all iterations, also under the prefix of an algorithm. Missing values are NaN."""
        names = [name, *(key for key in (self.records[-1] if self.records else {}) if key.endswith(f"/{name}"))]
        values = (next((record[key] for key in names if key in record), np.nan) for record in self.records)
        return np.array(list(values), np.float64)

    def late(self, name: str) -> float:
        """Return the mean of a metric over the last quarter of the iterations. NaN if there is none."""
        return _mean(self.column(name)[-max(1, len(self.records) // 4) :])

    def setting(self, name: str, default: float = np.nan) -> float:
        """Return a setting of the method that is a number."""
        value = getattr(self.config.settings, name, default)
        return default if value is None else value

    @cached_property
    def returns(self) -> np.ndarray:
        """The mean return of every iteration."""
        return self.column("mean_return")

    @cached_property
    def window(self) -> int:
        """Number of iterations over which returns are averaged."""
        return max(2, len(self.records) // 8)

    @cached_property
    def averages(self) -> np.ndarray:
        """Averages of the return over `window` iterations."""
        return np.convolve(self.returns, np.ones(self.window) / self.window, "valid")

    @property
    def first(self) -> float:
        """The average return at the beginning."""
        return self.averages[0] if len(self.averages) else _mean(self.returns)

    @property
    def last(self) -> float:
        """The average return at the end."""
        return self.averages[-1] if len(self.averages) else _mean(self.returns)

    @cached_property
    def noise(self) -> float:
        """Standard error of a difference of two averages, from the differences of neighbouring iterations."""
        return float(np.std(np.diff(self.returns)) / np.sqrt(self.window)) if len(self.returns) > 2 else np.inf

    def rose(self, since: int = 0) -> bool:
        """Return whether some average since this iteration is clearly above the first of them."""
        later = self.averages[since:]
        least = max(CLEAR * self.noise, 1e-6 * max(1.0, abs(self.first)))
        return len(later) > 1 and float(np.max(later) - later[0]) > least

    @property
    def constant(self) -> bool:
        """Whether the return is the same in every iteration, without being the solution."""
        return len(self.returns) >= LEAST_CONSTANT and float(np.ptp(self.returns)) == 0 and not self.solved

    @property
    def solved(self) -> bool:
        """Whether the return at the end reaches the known threshold."""
        return self.threshold is not None and self.last >= self.threshold

    @property
    def error_ratio(self) -> float:
        """One-step error of the filter late in the run, as a fraction of that of persistence."""
        persistence = self.late("persistence_error")
        return self.late("prediction_error") / persistence if persistence > 0 else np.nan

    def train(self, **changes: object) -> str:
        """Return the command that trains again with some settings changed."""
        return train_command(self.config, **changes)


def _mean(values: np.ndarray) -> float:
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else np.nan


Problem = tuple[str, str, str]
"""What the metrics show, what to change, and the command."""


@dataclass(frozen=True)
class Rule:
    """One rule."""

    title: str
    test: Callable[[Evidence], Problem | None]
    """Returns the problem, or None."""
    trend: bool = True
    """Whether the rule needs `LEAST` iterations."""
    at_end: bool = True
    """Whether training itself reports the problem at its end."""

    def check(self, evidence: Evidence) -> Finding | None:
        """Return what the rule finds in a run, or None."""
        if not evidence.records or (self.trend and len(evidence.records) < LEAST):
            return None
        problem = self.test(evidence)
        return None if problem is None else Finding(self.title, *problem, at_end=self.at_end)


def _failing(run: Evidence) -> Problem | None:
    failed = float(np.nansum(run.column("dropped_episodes")))
    share = failed / max(1.0, failed + float(np.nansum(run.column("episodes"))))
    if share <= FAILED_SHARE:
        return None
    check = (
        f"from gymnasium.utils.env_checker import check_env; check_env(gymnasium.make({run.config.env!r}).unwrapped)"
    )
    return (
        f"{share:.0%} of the episodes failed: the environment raised, or returned NaN or infinite values.",
        "mend the environment; Gymnasium's checker names common mistakes.",
        f"python -c {shlex.quote(f'import gymnasium; {check}')}",
    )


def _not_finite(run: Evidence) -> Problem | None:
    unsound = int(np.sum(run.column("unsound") == 1))
    halved = float(np.min(np.nan_to_num(run.column("step_scale"), nan=1.0)))
    if halved == 1 and unsound <= FAILED_SHARE * len(run.records):
        return None
    name = "learning_rate" if np.isfinite(run.setting("learning_rate")) else "max_kl"
    return (
        f"{unsound} of {len(run.records)} updates were not finite"
        + (f", and step sizes were halved to {halved:g}." if halved < 1 else "."),
        "take smaller steps, and look at the scale of the rewards: divide rewards of thousands in the environment.",
        run.train(**{name: float(f"{run.setting(name) / 3:.1g}")}),
    )


def _too_early(run: Evidence) -> Problem | None:
    if len(run.records) >= LEAST or run.constant:
        return None
    return (
        f"{len(run.records)} iterations are too few to judge a trend.",
        "continue the run.",
        shlex.join(["rpsp", "resume", str(run.directory), "--iterations", str(2 * LEAST)]),
    )


def _belief(run: Evidence) -> Problem | None:
    if not run.predictive or not run.error_ratio > BAD_BELIEF:
        return None
    problem = f"the one-step error of the belief is {run.error_ratio:.2g} of that of persistence."
    accepted, tried = run.column("refit_accepted"), run.column("refit_error_after")
    if np.any((accepted == 0) & (tried < run.column("refit_error_before"))):
        what = "refits that predict better were rejected because they change the policy; allow larger changes."
        return problem, what, run.train(refit_kl=1)
    if np.isfinite(past := run.setting("past")):
        return problem, "let the belief see a longer history.", run.train(past=int(2 * past))
    more = 2 * (run.config.exploration_samples or 20_000)
    return problem, "explore more before training.", run.train(exploration_samples=more, exploration_episodes=None)


def _too_certain(run: Evidence) -> Problem | None:
    log_std, entropy = run.column("log_std"), run.column("entropy")
    if run.rose() or run.solved or run.off_policy:
        return None
    if np.isfinite(log_std).sum() > 1:
        fallen = log_std[0] - log_std[-1] > 1
        what = f"the standard deviation of the actions fell from {np.exp(log_std[0]):.2g} to {np.exp(log_std[-1]):.2g}"
    else:
        fallen = entropy[0] > 0 and entropy[-1] < 0.3 * entropy[0]
        what = f"the entropy of the actions fell from {entropy[0]:.2g} to {entropy[-1]:.2g}"
    if not fallen:
        return None
    changes = {"log_std": run.setting("log_std") + 0.5} if np.isfinite(log_std).any() else {"max_kl": 0.003}
    return (
        f"{what}, and the return did not rise.",
        "start with more randomness, or change the policy more slowly.",
        (run.train(**changes)),
    )


def _never_moved(run: Evidence) -> Problem | None:
    if not run.constant and (len(run.records) < LEAST or run.rose() or run.solved):
        return None
    what = f"is {number(float(run.last))} in every iteration" if run.constant else "has not risen since the beginning"
    where = "its actions never reach a reward" if run.constant else "the gradient is smaller than its noise"
    return f"the return {what}: {where}.", *_other_exploration(run)


def _other_exploration(run: Evidence) -> tuple[str, str]:
    """Return what to try for a run that does not find rewards, and the command."""
    if run.setting("pink_noise", 0.0) > 0:
        return (
            "train on the full observation. If that does not learn either, the task is at fault (reward, horizon), "
            "not partial observability.",
            run.train(observe="all"),
        )
    continuous = run.off_policy or np.isfinite(run.column("log_std")).any()
    best = CONTINUOUS if continuous else DISCRETE
    return (
        "explore farther, with noise that is correlated in time; if that fails too, train with `--observe all`.",
        run.train(method=best.method, **best.settings),
    )


def _disturbed(run: Evidence) -> Problem | None:
    if not np.isfinite(run.setting("filter_kl")) or not run.late("whole_kl") > LARGE_KL:
        return None
    return (
        f"filter and policy together change by a KL of {run.late('whole_kl'):.2g} per iteration.",
        "updates of the filter disturb the policy; make them smaller.",
        run.train(filter_kl=float(f"{run.setting('filter_kl') / 4:.1g}")),
    )


def _baseline(run: Evidence) -> Problem | None:
    spread = run.late("std_return") > 0.02 * abs(run.late("mean_return"))
    if not run.late("explained_variance") < 0.02 or not spread or run.solved or run.rose(len(run.averages) // 2):
        return None
    return (
        f"the baseline explains {run.late('explained_variance'):.2g} of the variance of the returns: gradients are noisy.",
        "use more steps per iteration.",
        run.train(samples=2 * (run.config.samples or 2000)),
    )


def _rejected(run: Evidence) -> Problem | None:
    if not run.late("skipped") > 0.5 or run.late("unsound") > 0.5:
        return None
    return (
        f"{run.late('skipped'):.0%} of the latest steps were rejected.",
        "allow larger changes of the policy, or use more steps per iteration.",
        run.train(samples=2 * (run.config.samples or 2000)),
    )


def _critics(run: Evidence) -> Problem | None:
    value, most = np.abs(run.column("value")), float(np.nanmax(np.abs(run.returns)))
    now, before = _mean(value[-3:]), _mean(value[len(value) // 2 :][:3])
    if not run.off_policy or not (now > 3 * most + 1 and now > 2 * before):
        return None
    return (
        f"the value of the critics is {number(now)}, the largest return is {number(most)}: they diverge.",
        "take smaller steps.",
        run.train(learning_rate=float(f"{run.setting('learning_rate') / 3:.1g}")),
    )


def _clipped(run: Evidence) -> Problem | None:
    if not run.late("clip_fraction") > 0.4:
        return None
    return (
        f"the ratio of {run.late('clip_fraction'):.0%} of the steps is clipped: most gradients are lost.",
        "take smaller steps.",
        run.train(learning_rate=float(f"{run.setting('learning_rate') / 3:.1g}")),
    )


def _slow_refits(run: Evidence) -> Problem | None:
    refits = float(np.nansum(run.column("refit_seconds")))
    whole = refits + float(np.nansum(run.column("acting_seconds")) + np.nansum(run.column("update_seconds")))
    if not refits > 0.25 * whole or whole < 10:
        return None
    return (
        f"refits took {refits / whole:.0%} of the time.",
        "fit them to fewer steps.",
        run.train(refit_samples=int(run.setting("refit_samples", 20_000) / 2)),
    )


def _still_rising(run: Evidence) -> Problem | None:
    rising = run.rose(3 * len(run.averages) // 4) and run.last >= float(np.max(run.averages)) - run.noise
    if run.solved or not rising:
        return None
    more = math.ceil(float(f"{2 * run.records[-1]['total_samples']:.2g}"))
    return (
        "the return is still rising.",
        "nothing is wrong; continue the run.",
        shlex.join(["rpsp", "resume", str(run.directory), "--steps", str(more)]),
    )


def _below(run: Evidence) -> Problem | None:
    if run.threshold is None or run.solved or not run.rose() or _still_rising(run) is not None:
        return None
    return (
        f"the return has stopped rising at {number(float(run.last))}; the task counts as solved at "
        f"{number(float(run.threshold))}.",
        *_other_exploration(run),
    )


RULES: tuple[Rule, ...] = (
    Rule("Failing environment", _failing, trend=False),
    Rule("Updates that are not finite", _not_finite, trend=False),
    Rule("Too early to tell", _too_early, trend=False, at_end=False),
    Rule("Bad predictions", _belief),
    Rule("Certain too early", _too_certain),
    Rule("No progress", _never_moved, trend=False),
    Rule("Filter updates too large", _disturbed),
    Rule("Noisy gradients", _baseline),
    Rule("Rejected steps", _rejected),
    Rule("Diverging critics", _critics),
    Rule("Clipped ratios", _clipped),
    Rule("Slow refits", _slow_refits, at_end=False),
    Rule("Unfinished", _still_rising, at_end=False),
    Rule("Stuck below the solution", _below),
)
"""All rules, in the order in which they are checked."""
