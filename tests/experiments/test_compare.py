"""`rpsp compare`: tables that say what the statistics say, selection as in the paper, and one sentence for a mistake."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from made_up import EXPLORED, SAMPLES, write_run
from scipy import stats

from rpsp.cli import main
from rpsp.errors import UsageError
from rpsp.experiments.comparison import compare, row_texts
from rpsp.experiments.results import Result, read_results


def curves(height: float, seeds: int, iterations: int = 20) -> np.ndarray:
    """Returns that grow towards a height, with noise of one."""
    growth = height * (1 - np.exp(-np.arange(iterations) / 5))
    return growth + np.random.default_rng(int(height)).normal(size=(seeds, iterations))


def write_runs(folder: Path, height: float, seeds: int = 4, iterations: int = 20, **given: object) -> np.ndarray:
    returns = curves(height, seeds, iterations)
    for seed, own in enumerate(returns.tolist()):
        write_run(folder / f"{height}-{'-'.join(map(str, given.values()))}-{seed}", own, seed=seed, **given)
    return returns


def read(folder: Path) -> list[Result]:
    results, warnings = read_results([folder])
    assert warnings == []
    return results


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """fm2 below gru32 on one task."""
    folder = tmp_path_factory.mktemp("two")
    return folder, write_runs(folder, 20.0), write_runs(folder, 30.0, method="gru32", seeds=3)


def test_rows_are_the_statistics_of_the_runs(two):
    folder, low, high = two
    found = compare(read(folder), threshold=15.0)
    best, other = found.rows
    assert (best.method, other.method, best.seeds, other.seeds) == ("gru32", "fm2", 3, 4)
    assert best.area == pytest.approx(high.sum(axis=1).mean())
    assert best.area_error == pytest.approx(stats.sem(high.sum(axis=1)))
    assert other.final == pytest.approx(low[:, -10:].mean())
    assert other.final_error == pytest.approx(stats.sem(low[:, -10:].mean(axis=1)))
    assert other.iqm == pytest.approx(stats.trim_mean(low.sum(axis=1), 0.25))
    assert other.iqm_low < other.iqm < other.iqm_high
    steps = [EXPLORED + SAMPLES * (1 + np.argmax(own >= 15)) for own in low]
    assert other.steps_to_reach == np.median(steps) and other.reached == 4
    test = stats.ttest_ind(low.sum(axis=1), high.sum(axis=1), equal_var=False)
    assert (other.t, other.dof, other.p) == pytest.approx((test.statistic, test.df, test.pvalue))
    assert other.p_holm == other.p and other.against == "gru32" and other.improvement == 0
    assert best.against == "" and np.isnan(best.p)
    assert found.overall == [] and found.warnings == []


def test_tables_round_mean_and_error_together(two):
    row = compare(read(two[0])).rows[0]
    texts = row_texts(dataclasses.replace(row, area=1618.4, area_error=195.7, final=868.7, final_error=np.nan))
    assert (texts["area under curve"], texts["final return"]) == ("1,620 ± 200", "868.7")


def test_the_metric_and_the_reference_can_be_chosen(two):
    folder, low, high = two
    best, other = compare(read(folder), "final", against="fm2").rows
    test = stats.ttest_ind(high[:, -10:].mean(axis=1), low[:, -10:].mean(axis=1), equal_var=False)
    assert best.p == pytest.approx(test.pvalue) and best.against == "fm2" and best.improvement == 1
    assert other.against == "" and other.iqm == pytest.approx(stats.trim_mean(low[:, -10:].mean(axis=1), 0.25))


def test_tests_are_corrected_together(tmp_path):
    returns = [write_runs(tmp_path, 20 + i, seeds=5, dimension=i + 1, method="rpsp-alt").sum(axis=1) for i in range(4)]
    rows = {row.method: row for row in compare(read(tmp_path), against="rpsp-alt, dimension=1").rows}
    p = sorted(stats.ttest_ind(returns[0], other, equal_var=False).pvalue for other in returns[1:])
    expected = np.maximum.accumulate(np.array(p) * [3, 2, 1])
    found = sorted(row.p_holm for row in rows.values() if row.against)
    np.testing.assert_allclose(found, np.minimum(expected, 1))


def test_selection_keeps_the_best_variant_and_says_from_how_many(tmp_path):
    for dimension, height in ((10, 20.0), (25, 40.0), (30, 30.0)):
        write_runs(tmp_path, height, method="rpsp-alt", dimension=dimension)
    write_runs(tmp_path, 25.0)
    results = read(tmp_path)
    found = compare(results, select=True, against="rpsp-alt")
    assert [(row.method, row.selected_from) for row in found.rows] == [("rpsp-alt, dimension=25", 3), ("fm2", 1)]
    assert found.rows[1].against == "rpsp-alt, dimension=25"
    assert {result.method for result in found.results} == {"rpsp-alt, dimension=25", "fm2"}
    assert len(found.candidates) == 16
    with pytest.raises(UsageError, match="several variants"):
        compare(results, against="rpsp-alt")


def test_runs_of_different_lengths_are_cut_within_their_task(tmp_path):
    long = write_runs(tmp_path, 20.0, iterations=20)
    write_runs(tmp_path, 30.0, iterations=12, method="gru32")
    write_runs(tmp_path, 25.0, iterations=20, env="Swimmer-v5")
    found = compare(read(tmp_path))
    rows = {(row.task, row.method): row for row in found.rows}
    assert [row.iterations for row in rows.values()] == [12, 12, 20]
    assert rows["Hopper-v5", "fm2"].area == pytest.approx(long[:, :12].sum(axis=1).mean())
    assert rows["Hopper-v5", "fm2"].unfinished == 0
    assert found.warnings == ["Hopper-v5: the runs have 12 to 20 iterations; they are compared over the first 12."]


def test_iterations_of_different_lengths_are_compared_over_as_many_steps(tmp_path):
    write_run(tmp_path / "long", [10.0, 20.0, 30.0])
    write_run(tmp_path / "short", list(range(1, 10)), method="fm2-sac", samples=500)
    write_run(tmp_path / "begun", [1.0], method="fm2-sac", samples=500, seed=1)
    found = compare(read(tmp_path), threshold=5.5)
    rows = {row.method: row for row in found.rows}
    assert [row.iterations for row in rows.values()] == [2, 2]
    assert (
        rows["fm2"].area == 30.0
        and rows["fm2-sac, samples=500"].area == 2.5 + 6.5
        and rows["fm2-sac, samples=500"].seeds == 1
    )
    assert rows["fm2-sac, samples=500"].steps_to_reach == read(tmp_path / "short")[0].steps[7]
    assert found.warnings == [
        "Hopper-v5: iterations have 500 to 2000 steps; short ones are merged, so that all runs are compared over equally "
        "many steps.",
        "left out: Hopper-v5, fm2-sac, samples=500, seed 1: it has fewer than 2000 steps.",
        "Hopper-v5: the runs have 2 to 3 iterations; they are compared over the first 2.",
    ]
    # Merged iterations are not merged again.
    assert compare(found.candidates).warnings == []


def test_failed_and_empty_runs_are_left_out_and_unfinished_ones_counted(tmp_path):
    failed = write_run(tmp_path / "failed", [1.0], seed=0, iterations=9)
    (failed / "failure.txt").write_text("the disk was full.", encoding="utf-8")
    write_run(tmp_path / "empty", [], seed=1, iterations=9)
    write_run(tmp_path / "nan", [float("nan"), 1.0], seed=2, iterations=9)
    write_run(tmp_path / "half", [1.0, 2.0, 3.0], seed=3, iterations=9)
    write_run(tmp_path / "whole", [1.0, 2.0, 3.0], seed=4)
    found = compare(read(tmp_path))
    (row,) = found.rows
    assert (row.seeds, row.unfinished, row.iterations, row.area) == (2, 1, 3, 6.0)
    assert found.warnings == [
        "left out: Hopper-v5, fm2, seed 0: the disk was full.",
        "left out: Hopper-v5, fm2, seed 1: no iteration is finished yet.",
        "left out: Hopper-v5, fm2, seed 2: its returns are not all finite.",
    ]


def test_all_tasks_together_are_scaled_and_resampled_within_tasks(tmp_path):
    for env, scale in (("Hopper-v5", 1.0), ("Swimmer-v5", 100.0)):
        for method, height in (("fm2", 1.0), ("gru32", 2.0)):
            for seed in range(4):
                write_run(
                    tmp_path / f"{env}{method}{seed}",
                    [scale * (height + 0.1 * seed)],
                    env=env,
                    method=method,
                    seed=seed,
                )
    write_run(tmp_path / "only here", [1.0], method="fm5")
    found = compare(read(tmp_path))
    best, other = found.overall  # fm5 is not in every task
    scores = (1 + 0.1 * np.arange(4)) / 1.3  # from the worst run, 1.0, to the best, 2.3
    assert (best.method, best.runs) == ("gru32", 8)
    assert best.iqm == pytest.approx(np.mean(scores[1:3])) and other.iqm == pytest.approx(
        np.mean(scores[1:3] - 1 / 1.3)
    )
    assert best.iqm_low < best.iqm < best.iqm_high < 1


def test_a_reference_that_some_tasks_lack(tmp_path):
    write_runs(tmp_path, 20.0, env="Swimmer-v5")
    write_runs(tmp_path, 30.0, method="gru32")
    found = compare(read(tmp_path), against="fm2")
    assert found.warnings == ["Hopper-v5: there is no run of fm2, so nothing is tested."]
    with pytest.raises(UsageError, match="'fm5' is not one of the methods: fm2; gru32"):
        compare(read(tmp_path), against="fm5")


# ---------------------------------------------------------------------------------------------------------------------
# The command
# ---------------------------------------------------------------------------------------------------------------------


def test_the_command_prints_tables_and_writes_files(two, tmp_path, capsys):
    folder, low, _ = two
    files = {name: tmp_path / name for name in ("table.csv", "all.csv", "figures")}
    main(["compare", str(folder), "--threshold", "15", "--table", str(files["table.csv"]), "--csv", str(files["all.csv"]),
          "--figures", str(files["figures"]), "--json"])  # fmt: skip
    printed = capsys.readouterr()
    assert printed.err == ""
    for words in (
        "Hopper-v5: 20 iterations",
        "gru32",
        "fm2",
        "steps to 15",
        "(4 of 4)",
        "area under curve against gru32",
        "p, Holm",
    ):
        assert words in printed.out
    last = json.loads(printed.out.splitlines()[-1], parse_constant=lambda constant: pytest.fail(constant))
    assert [row["method"] for row in last["rows"]] == ["gru32", "fm2"] and last["warnings"] == []
    assert last["rows"][0]["p"] is None and last["rows"][1]["p"] < 0.01
    with files["table.csv"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[1]["area"]) == pytest.approx(low.sum(axis=1).mean()) and rows[0]["p"] == ""
    assert len(files["all.csv"].read_text(encoding="utf-8").splitlines()) == 1 + 7 * 20
    assert sorted(path.name for path in files["figures"].iterdir()) == [
        f"{name}.{kind}" for name in ("auc", "learning", "prediction") for kind in ("png", "svg")
    ]
    assert len(last["figures"]) == 3


def test_the_command_says_what_it_doubts_on_standard_error(tmp_path, capsys):
    write_run(tmp_path / "[bold]", [1.0, 2.0], method="gru32")
    for seed in range(25):
        (write_run(tmp_path / f"hurt{seed:02d}", [1.0], seed=seed) / "config.json").write_text("{", encoding="utf-8")
    main(["compare", str(tmp_path), "--json"])
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert len(lines) == 20 and lines[0].startswith("warning: left out: ") and lines[-1] == "warning: … and 6 more."
    assert "gru32" in printed.out and len(json.loads(printed.out.splitlines()[-1])["warnings"]) == 25
    main(["compare", str(tmp_path), "--quiet"])
    assert capsys.readouterr() == ("", "")


def test_the_reason_why_there_is_nothing_is_told(tmp_path, capsys):
    (write_run(tmp_path / "hurt", [1.0]) / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path)])
    assert "is not JSON" in capsys.readouterr().err


def test_labels_of_files_are_not_markup(tmp_path, capsys):
    run = write_run(tmp_path / "run", [1.0])
    text = (run / "config.json").read_text(encoding="utf-8").replace('"Hopper-v5"', '"[bold]Hopper[/bold]\\u001b[2J"')
    (run / "config.json").write_text(text.replace('"fm2"', '"[/red]mine"'), encoding="utf-8")
    main(["compare", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "[bold]Hopper[/bold]" in printed and "[/red]mine" in printed and "\x1b[2J" not in printed


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nowhere"], 2, "rpsp: directories: 'nowhere' does not exist"),
        (["."], 3, "rpsp: there is no run to compare"),
        ([], 3, "rpsp: there is no run to compare"),
        (["runs", "--against", "fm7"], 2, "rpsp: against: 'fm7' is not one of the methods: fm2."),
        (["runs", "--smooth", "0"], 2, "rpsp: smooth: 0 is not a whole number ≥ 1."),
        (["runs", "--threshold", "nan"], 2, "rpsp: threshold: nan is not a finite number."),
        (["runs", "--metric", "best"], 2, "metric"),
        (["runs", "--table", "runs"], 5, "rpsp: runs: "),
        (
            ["runs", "--figures", "runs/a/config.json"],
            5,
            "rpsp: runs/a/config.json/learning.png: the figure could not be written",
        ),
    ],
)
def test_a_mistake_gets_one_sentence(arguments, code, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if "runs" in arguments:
        write_run(tmp_path / "runs/a", [1.0, 2.0])
    with pytest.raises(SystemExit) as exit:
        main(["compare", *arguments])
    assert exit.value.code == code
    error = capsys.readouterr().err
    assert sentence in error and "Traceback" not in error
