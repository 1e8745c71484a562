"""The protocols: which runs are planned under them, and which tasks they change."""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import made_up_result

from rpsp.cli import main
from rpsp.errors import UsageError
from rpsp.experiments import paper
from rpsp.experiments.config import PaperConfig
from rpsp.experiments.labels import task_label
from rpsp.experiments.methods import METHODS
from rpsp.experiments.paper import EQUAL, EXPERIMENTS, PROTOCOLS, Protocol, TaskChange, labels_of
from rpsp.experiments.paper.tables import flat
from rpsp.experiments.results import write_result

AUTHORS = PROTOCOLS["authors"]
OURS = next(name for name, experiment in EXPERIMENTS.items() if experiment.ours)


def methods(plan: paper.Plan) -> dict[str, set[str]]:
    """The labels of a plan's methods, by curve."""
    found: dict[str, set[str]] = {}
    for label, curve in plan.curve_of.items():
        found.setdefault(curve, set()).add(label)
    return found


def test_the_flag_has_the_protocols_of_the_table() -> None:
    hint = typing.get_type_hints(PaperConfig)["protocol"]
    assert {*typing.get_args(hint)} == {*PROTOCOLS} and PaperConfig.protocol == EQUAL.name


def test_the_authors_candidates_are_theirs() -> None:
    equal, authors = (methods(paper.plan("c", 1, select=True, protocol=p)) for p in (EQUAL, AUTHORS))
    assert authors["FM"] == {f"fm{n}-vrpg{rate}" for n in (1, 2, 5) for rate in ("", ", learning_rate=0.005")}
    assert authors["GRU"] == {f"gru{n}{kl}" for n in (16, 32, 64, 128) for kl in ("", ", max_kl=0.001")}
    assert not authors["FM"] & equal["FM"] and authors["GRU"] < equal["GRU"]  # wider trust regions are ours
    for curve in ("RPSP-VRPG", "RPSP-Alt"):
        assert authors[curve] == equal[curve]
        assert {label for label in authors[curve] if "refit" in label} == set()


def test_methods_without_candidates_are_substituted() -> None:
    runs = {run.config.method for run in paper.plan("finite-memory", 1, protocol=AUTHORS).runs}
    assert runs == {"fm1-vrpg", "fm2-vrpg", "fm5-vrpg"}
    assert methods(paper.plan("noise", 1, protocol=AUTHORS))["fm2"] == {"fm2-vrpg"}


def test_every_substitute_exists() -> None:
    for protocol in PROTOCOLS.values():
        for name, other in protocol.curves.items():
            assert labels_of(name) and paper.candidates(EXPERIMENTS["c"], protocol)
            for label in labels_of(other):
                assert label.partition(",")[0] in METHODS


def test_a_changed_task_is_planned_found_and_labelled() -> None:
    """Also with noise, which has the change as well."""
    change = TaskChange("observations are late", {"obs_latency": 3})
    late = Protocol("late", "late", "late", "", tasks={"Hopper-v5": change})
    plan = paper.plan("noise", 1, protocol=late)
    assert {run.config.sensors.obs_latency for run in plan.runs} == {3}
    assert {run.config.sensors.obs_latency for run in paper.plan("d", 1, protocol=late).runs} == {0}
    label = task_label({"env": "Hopper-v5", "obs_noise": 0.1, "obs_latency": 3})
    results = [made_up_result(label, "fm2", 0, np.ones(4)), made_up_result("Walker2d-v5", "fm2", 0, np.ones(4))]
    found = paper.Found(results, late)
    assert found.task("Hopper-v5, obs_noise=0.1") == label
    assert found.curve("Hopper-v5, obs_noise=0.1", "fm2") and found.curve("Walker2d-v5", "fm2")
    assert paper.Found(results).curve("Hopper-v5, obs_noise=0.1", "fm2") is None


def test_a_protocol_is_for_the_papers_experiments(capsys: Any) -> None:
    assert paper.find(["all"], AUTHORS) == paper.find(["all"])
    with pytest.raises(UsageError, match=f"protocol: authors is for the paper's experiments only; {OURS} is ours"):
        paper.find([OURS], AUTHORS)
    assert paper.find([OURS]) == [OURS]


def test_the_command_plans_and_draws_the_chosen_protocol(tmp_path: Path, capsys: Any) -> None:
    def shown(*flags: str) -> Any:
        main(["paper", *flags, "--seeds", "1", "--scale", "0.01", "--out", str(tmp_path / "out"), "--json"])
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    listed = shown("--protocol", "authors")["experiments"]
    assert {*listed} == {name for name, experiment in EXPERIMENTS.items() if not experiment.ours}
    assert listed["finite-memory"]["runs"] == 12
    for run in paper.plan("finite-memory", 1, 0.01, protocol=AUTHORS).runs:
        settings, n = flat(run.config), run.config.iterations or 0
        made = made_up_result(task_label(settings), run.config.method, 0, np.ones(n))
        write_result(dataclasses.replace(made, settings=settings), tmp_path / "results")
    flags = "finite-memory", "--draw", "--results", str(tmp_path / "results")
    drawn = shown(*flags, "--protocol", "authors")["experiments"]["finite-memory"]
    assert (drawn["runs"], drawn["finished"]) == (12, 12)
    assert Path(drawn["table"]).name == "finite-memory_authors.csv"
    assert [Path(path).stem for path in drawn["figures"]] == ["finite-memory_authors", "finite-memory_authors_auc"]
    assert "under the authors' protocol" in Path(drawn["figures"][0]).with_suffix(".svg").read_text(encoding="utf-8")
    assert shown(*flags)["experiments"]["finite-memory"]["finished"] == 0
