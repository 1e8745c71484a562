"""Budgets: a run ends where its iterations, steps or minutes are spent, and goes on to the same bits with more of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import cli
from processes import FLAGS, metrics

from rpsp.errors import UsageError
from rpsp.experiments.budget import Budget, check_budget, most_iterations
from rpsp.experiments.progress import Pace, line
from rpsp.experiments.resolve import read_config
from rpsp.experiments.results import read_results
from rpsp.experiments.run_directory import RunDirectory


def _column(directory: Path, name: str) -> list[float]:
    return [record[name] for record in RunDirectory(directory).metrics() if "iteration" in record]


pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    ("budget", "done", "spent"),
    [
        (Budget(3), (3, 0, 0.0), True),
        (Budget(3), (2, 10**9, 10.0**9), False),
        (Budget(9, steps=100), (2, 99, 0.0), False),
        (Budget(9, steps=100), (2, 100, 0.0), True),
        (Budget(9, steps=100), (0, 500, 0.0), False),  # one iteration at least
        (Budget(9, minutes=0.5), (1, 0, 29.9), False),
        (Budget(9, minutes=0.5), (1, 0, 30.0), True),
        (Budget(9, steps=100, minutes=0.5), (1, 0, 31.0), True),
    ],
)
def test_a_budget_is_spent_at_its_first_limit(budget: Budget, done: tuple[int, int, float], spent: bool) -> None:
    assert budget.spent(*done) == spent


def test_the_number_of_iterations_is_enough_for_the_steps() -> None:
    assert [most_iterations(steps, samples=100, explored=50) for steps in (51, 150, 151, 1050)] == [1, 1, 2, 10]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((3, 100, None), "steps: 100 steps and 3 iterations are given; give only one of them."),
        ((-1, None, None), "iterations: -1 is not a whole number ≥ 0."),
        ((None, 0, None), "steps: 0 is not a whole number ≥ 1."),
        ((None, None, 0.0), "minutes: 0.0 is not a number greater than 0."),
        ((None, None, float("nan")), "minutes: nan is not a number greater than 0."),
    ],
)
def test_impossible_budgets_are_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_budget(*given)
    assert str(caught.value) == message


def test_a_run_of_some_steps_stops_and_goes_on_to_the_same_bits(tmp_path: Path, capsys: Any) -> None:
    flags = ["tasks:Drift-v0", "--method", "fm2", *FLAGS]
    assert cli("train", *flags, "--iterations", "4", "--out", str(tmp_path / "whole")) == 0
    totals = _column(tmp_path / "whole", "total_samples")
    out = tmp_path / "cut"
    assert cli("train", *flags, "--steps", str(totals[0] + 1), "--out", str(out)) == 0
    assert _column(out, "total_samples") == totals[:2]
    assert read_config(out).steps == totals[0] + 1
    (result,) = read_results([out])[0]
    assert result.finished and result.iterations == 2
    capsys.readouterr()
    assert cli("resume", str(out)) == 0
    assert "to continue, give more --steps" in capsys.readouterr().out
    assert cli("resume", str(out), "--steps", str(totals[0])) == 2
    assert f"steps: {totals[0]} is less than the {totals[1]} steps already done" in capsys.readouterr().err
    assert cli("resume", str(out), "--steps", str(totals[3]), "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["samples"] == totals[3]
    assert metrics(out) == metrics(tmp_path / "whole")


def test_a_run_of_some_minutes_ends_after_its_first_late_iteration(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    flags = ["tasks:Drift-v0", "--method", "fm2", *FLAGS, "--minutes", "0.0001"]
    assert cli("train", *flags, "--out", str(out)) == 0
    assert _column(out, "iteration") == [0]
    assert "    1  return" in capsys.readouterr().out, "the total is unknown"
    assert cli("resume", str(out)) == 0
    assert "to continue, give more --minutes" in capsys.readouterr().out
    assert cli("resume", str(out), "--iterations", "2") == 0
    assert len(read_results([out])[0][0].returns) == 2


def test_the_exploration_must_leave_steps(capsys: Any) -> None:
    given = ["--method", "fm2", "--exploration-samples", "60", "--steps", "60"]
    assert cli("train", "tasks:Drift-v0", *given) == 2
    assert "60 steps are not more than the exploration, 60 steps" in capsys.readouterr().err


def test_remaining_time_follows_steps_and_minutes(monkeypatch: Any) -> None:
    now = [0.0]
    monkeypatch.setattr("rpsp.experiments.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    pace = Pace.of(Budget(100, steps=1000), done=0, seconds=0.0)
    for done in range(1, 4):
        now[0] += 2.0
        pace.advance(done, 100 + 200 * done)
    assert pace.eta == "0:04"  # two seconds for each 200 steps, 700 done, 300 left
    pace = Pace.of(Budget(100, minutes=1.0), done=3, seconds=40.0)
    for done in (4, 5):
        now[0] += 2.0
        pace.advance(done, 0)
    assert pace.eta == "0:16"
    assert line({}, pace) == "" and pace.share == "    5/100"
