"""Studies: what is tried, what is pruned, that an interruption changes nothing, and what comes out."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from commands import cli
from processes import TINY

from rpsp.errors import UsageError
from rpsp.experiments.configure import configured, find_method
from rpsp.experiments.methods import METHODS
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.settings import checked
from rpsp.experiments.sweeps import open_backend
from rpsp.experiments.tuning.spaces import SPACE, Choice, Range, space_of
from rpsp.experiments.tuning.study import Plan, Study, plan_of, running_return
from rpsp.experiments.workers import Beat, begin

pytestmark = pytest.mark.usefixtures("elsewhere")
SMALL: dict[str, Any] = {"env": "tasks:Drift-v0", "method": "fm2", "iterations": 8, **TINY}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_space_of_valid_values(method: str) -> None:
    row, space = METHODS[method], space_of(METHODS[method])
    assert space and set(space) <= set(row.known) & set(SPACE)
    for name, values in space.items():
        ends = values.values if isinstance(values, Choice) else (values.low, values.high)
        for value in ends:
            whole = isinstance(values, Range) and values.whole
            checked(
                name, int(value) if whole else list(value) if isinstance(value, tuple) else value, row.known[name].type
            )
    row.with_settings(row.settings())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_kl": 3}, "space: max_kl: 3 is neither a list"),
        ({"max_kl": [0.1]}, "is neither a list of two values"),
        ({"max_kl": ["a", "b"]}, "space: max_kl: 'a' is not a finite number"),
        ({"max_kl": {"low": 1.0, "high": 0.5}}, "is no range; give low < high"),
        ({"max_kl": {"low": 0.0, "high": 0.5, "log": True}}, "is no range"),
        ({"max_kl": {"low": 0.1}}, "space: max_kl: None is not a finite number"),
        ({"max_kl": {"low": 0.1, "high": 1.0, "step": 2}}, "is no range"),
        ({"mxa_kl": [0.1, 0.2]}, "space: mxa_kl: there is no such setting; did you mean 'max_kl'"),
        ({"window": {"low": 1.5, "high": 3.0}}, "space: window: 1.5 is not a whole number"),
        ({}, "space: {} is not a table"),
    ],
)
def test_what_is_no_space_is_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        space_of(find_method("fm2"), given)
    assert message in str(caught.value)


def test_a_file_can_give_the_space() -> None:
    space = space_of(find_method("fm2"), {"max-kl": {"low": 0.01, "high": 0.1, "log": True}, "hidden": [[8], [16, 16]]})
    assert space == {"max_kl": Range(0.01, 0.1, True), "hidden": Choice(((8,), (16, 16)))}
    assert space_of(find_method("fm2"), {"window": {"low": 1, "high": 3}}) == {"window": Range(1, 3, whole=True)}


# ---------------------------------------------------------------------------------------------------------------------
# Studies, with a backend that computes nothing: a return is a function of the setting
# ---------------------------------------------------------------------------------------------------------------------


class Computing:
    """Writes the metrics that a run would: returns rise to 100 − 10 · |window − 7|, and seeds differ by 1."""

    def __init__(self, stop_after: int = 10**9, fail: int = -1) -> None:
        self.done: list[tuple[str, int]] = []
        self.stop_after, self.fail = stop_after, fail

    def __call__(self, jobs: Any) -> Any:
        from rpsp.experiments.workers import Failure

        ended: list[Any] = []
        for job in jobs:
            if len(self.done) == self.stop_after:
                raise KeyboardInterrupt
            begin(job)
            run, iterations = RunDirectory(job.directory), job.config.iterations or 0
            for n in range(len([r for r in run.metrics() if "iteration" in r]), iterations):
                value = (100 - 10 * abs(job.config.settings.window - 7)) * (n + 1) / 8 + job.config.seed % 10
                run.append({"iteration": n, "mean_return": value})
            self.done.append((job.name, iterations))
            failed = Failure("it diverged.", 4) if job.config.settings.window == self.fail else None
            ended.append((job, failed))
        yield Beat([], ended)


def study(tmp_path: Path, backend: Any, **given: Any) -> Study:
    pytest.importorskip("optuna", reason="the extra `tune` is not installed")
    plan = {"trials": 12, "seeds": (100, 101), "verify": 0} | given
    space = plan.pop("space", {"window": {"low": 1, "high": 10}})
    return Study(plan_of(configured(SMALL), space, **plan), tmp_path / "study", backend, 2)


def test_the_best_setting_is_found_and_written(tmp_path: Path) -> None:
    found = study(tmp_path, backend := Computing(), pruner="none")
    found.optimise()
    best = found.complete()[0]
    assert len(found.study.trials) == 12 and found.study.trials[0].params == {"window": 2}
    assert found.study.trials[0].user_attrs["default"] and found.setting(found.study.trials[0]) == {"window": 2}
    assert abs(best.params["window"] - 7) <= 1 and best.value > found.study.trials[0].value + 20
    window = best.params["window"]
    returns = [(100 - 10 * abs(window - 7)) * (n + 1) / 8 for n in range(8)]
    assert best.value == pytest.approx(sum(returns) / 8 + 0.5), "the mean of two seeds over the last ten iterations"
    path = found.write_best()
    assert path is not None
    content = tomllib.loads(path.read_text())
    assert content == {**{k: v for k, v in SMALL.items() if k != "threads"}, "threads": 1, "window": window}
    assert configured(content).settings.window == window
    assert {name.split("/")[1] for name, _ in backend.done} == {"s100", "s101"}


@pytest.mark.slow
@pytest.mark.parametrize(("pruner", "first"), [("median", 2), ("hyperband", 1)])
def test_bad_trials_are_ended_early(pruner: Any, first: int, tmp_path: Path) -> None:
    found = study(tmp_path, backend := Computing(), pruner=pruner, trials=30)
    found.optimise()
    states = [t.state.name for t in found.study.trials]
    assert states[0] == "COMPLETE" and states.count("PRUNED") >= 3 and states.count("COMPLETE") >= 5
    assert found.stages[0] == first and found.stages[-1] == 8
    lengths = dict(backend.done)
    for trial in found.study.trials:
        ended = lengths[f"trial-{trial.number:04d}/s100"]
        assert (ended < 8) == (trial.state.name == "PRUNED")


@pytest.mark.slow
def test_an_interrupted_study_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = study(tmp_path / "whole", Computing())
    whole.optimise()
    cut = study(tmp_path / "cut", Computing(stop_after=17))
    with pytest.raises(KeyboardInterrupt):
        cut.optimise()
    again = study(tmp_path / "cut", backend := Computing())
    before = sum(t.state.is_finished() for t in again.study.trials)
    again.optimise()
    assert 0 < before < 12 == len(again.study.trials) and all(t.state.is_finished() for t in again.study.trials)
    assert {name.split("/")[0] for name, _ in backend.done}.isdisjoint({f"trial-{i:04d}" for i in range(before - 1)})
    with pytest.raises(UsageError, match="contains a study of other settings; choose another --out"):
        study(tmp_path / "cut", Computing(), seeds=(7,))


def test_a_trial_that_fails_does_not_end_the_study(tmp_path: Path) -> None:
    found = study(tmp_path, Computing(fail=2), trials=8)
    found.optimise()
    assert found.study.trials[0].state.name == "FAIL" and found.study.trials[0].user_attrs["failure"] == "it diverged."
    assert len(found.complete()) >= 2


def test_the_best_is_compared_with_the_default_on_new_seeds(tmp_path: Path) -> None:
    found = study(tmp_path, backend := Computing(), pruner="none", verify=3)
    found.optimise()
    compared = found.verify()
    assert compared is not None and compared["seeds"] == [1000, 1001, 1002]
    steps = sum((n + 1) / 8 for n in range(8)) / 8
    window = found.complete()[0].params["window"]
    assert compared["difference"] == pytest.approx(steps * 10 * (5 - abs(window - 7))), "of the mean over iterations"
    assert compared["error"] == pytest.approx(0, abs=1e-9)
    assert ("best/s1001", 8) in backend.done and ("default/s1002", 8) in backend.done


@pytest.mark.slow
def test_the_page_shows_trials_importances_and_escapes(tmp_path: Path) -> None:
    from rpsp.experiments.tuning.page import write_page

    space = {"window": {"low": 1, "high": 10}, "max_kl": {"low": 1e-3, "high": 0.1, "log": True}, "hidden": [[8], [16]]}
    found = study(tmp_path, Computing(), trials=40, space=space)
    found.optimise()
    found.write_best()
    importances = found.importances()
    assert (
        set(importances) == {"window", "max_kl", "hidden"} and max(importances, key=importances.__getitem__) == "window"
    )
    text = write_page(
        found, {"seeds": [1000], "best": 5.0, "default": 1.0, "difference": 4.0, "error": 0.5}
    ).read_text()
    for words in ("Settings and returns", "What matters", "<svg", "4.00 ± 0.50", "pruned", "window = "):
        assert words in text, words
    assert "<script src" not in text and "http://" not in text.replace("http://www.w3.org", "")


def test_what_makes_no_plan_is_refused() -> None:
    config = configured(SMALL)
    space = {"window": Range(1, 10, whole=True)}
    for given, message in (
        ({"trials": 1}, "trials: 1 is not"),
        ({"seeds": ()}, "seeds: 0 is not"),
        ({"verify": 1}, "verify: 1 is neither"),
        ({"space": {}}, "space: fm2 has no setting"),
    ):
        with pytest.raises(UsageError, match=message):
            Plan(**({"config": config, "space": space} | given))  # pyright: ignore


def test_a_missing_extra_is_said(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert cli("tune", "tasks:Drift-v0", "--method", "fm2", "--iterations", "2", "--trials", "2") == 2
    assert "optuna is not installed; run `pip install rpsp[tune]`" in capsys.readouterr().err
    assert cli("tune", "nowhere.toml") == 2
    assert "config: 'nowhere.toml' cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_a_small_search_from_a_file(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    pytest.importorskip("optuna", reason="the extra `tune` is not installed")
    lines = [f"{name} = {json.dumps(value)}" for name, value in SMALL.items() if name not in ("threads", "iterations")]
    (tmp_path / "small.toml").write_text("\n".join([*lines, "iterations = 4", "[space]", "window = [1, 2, 3]"]))
    words = ["tune", "small.toml", "--trials", "2", "--verify", "2", "--seeds", "1", "--pruner", "none"]
    words += ["--out", "out", "--json", "--quiet"]
    assert cli(*words) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["trials"].values()) == 2 and Path(found["page"]).exists()
    assert found["default_return"] == pytest.approx(running_return(tmp_path / "out" / "trial-0000" / "s100", 4))
    assert cli("train", "--config", found["config"], "--iterations", "1", "--out", "best", "--quiet") == 0
    capsys.readouterr()
    assert cli(*words) == 0, "a finished search says the same again"
    assert json.loads(capsys.readouterr().out)["best"] == found["best"]
    assert open_backend("local", 1)[1] == 1
