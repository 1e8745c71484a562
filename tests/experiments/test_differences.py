"""The page of findings is the one that its template and the result files give."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import differences
from made_up import made_up_result

from rpsp.experiments.results import write_result


@pytest.fixture
def figures(tmp_path: Path) -> differences.Figures:
    for method, level in (("fm2", 10.0), ("gru32", 15.0)):
        for seed in range(3):
            write_result(made_up_result("Hopper-v5", method, seed, np.full(150, level + seed)), tmp_path / "results")
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    run = {"task": "Hopper-v5", "seed": 100, "settings": {"refit_epochs": 1}, "mean_return": [1000.0] * 5}
    (folder / "some.json").write_text(json.dumps({"runs": [run]}), encoding="utf-8")
    return differences.Figures(tmp_path)


def test_figures_come_from_the_files(figures: differences.Figures) -> None:
    template = (
        'A sentence: {{area("Hopper", "fm2")}}, {{seeds("Hopper", "fm2")}} seeds, {{final("Hopper", "gru32")}}, '
        '{{gain("Hopper", "gru32", "fm2")}}, {{area("Hopper", "fm2", 100)}}, {{p("Hopper", "gru32", "fm2")}}, '
        '{{tuned("some", 3, {"refit_epochs": 1}, 100)}}.'
    )
    text = differences.rendered(template, figures).replace("\n", " ")
    assert text.startswith("A sentence: 1.650 ± 0.087, 3 seeds, 16.00 ± 0.58, 45 %, 1.100 ± 0.058, p = 0.0036, 3.0.")


def test_a_figure_without_runs_is_an_error(figures: differences.Figures) -> None:
    for expression in (
        'area("Hopper", "fm5")',
        'area("Hopper", "fm2", 151)',
        'tuned("some", 6, {"refit_epochs": 1}, 100)',
    ):
        with pytest.raises(ValueError, match="there is no run"):
            differences.rendered("{{" + expression + "}}", figures)


def test_only_paragraphs_and_items_are_wrapped() -> None:
    text = (
        "# Head\n\nsome words\nthat go on\n\n- an item\n  of a list\n- another\n\n| a | b |\n|---|---|\n\n[link]: x#y\n"
    )
    assert differences.wrapped(text, 14).splitlines() == [
        "# Head", "", "some words", "that go on", "", "- an item of a", "  list", "- another", "", "| a | b |", "|---|---|",
        "", "[link]: x#y",
    ]  # fmt: skip
    assert differences.wrapped(text, 100).splitlines()[2] == "some words that go on"


def test_the_page_is_up_to_date() -> None:
    page = differences.PAGE.read_text(encoding="utf-8")
    assert differences.rendered(differences.TEMPLATE.read_text(encoding="utf-8"), differences.Figures()) == page
