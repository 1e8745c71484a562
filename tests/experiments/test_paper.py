"""The paper's experiments: what is planned, what is drawn of what is finished, what is said of mistakes."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import made_up_result

from rpsp.cli import main
from rpsp.envs.tasks import TASKS
from rpsp.errors import UsageError
from rpsp.experiments import paper
from rpsp.experiments.configure import configured, usual_samples
from rpsp.experiments.labels import flat_settings, method_label, task_label
from rpsp.experiments.methods import METHODS
from rpsp.experiments.results import Result, read_results, write_result


def test_every_figure_of_the_paper_is_there_and_every_plan_is_whole() -> None:
    assert {*"abcdefgh", "noise", "optimisers", "finite-memory", "grus", "filter-regularisation"} <= {
        *paper.EXPERIMENTS
    }
    for name, experiment in paper.EXPERIMENTS.items():
        for select in (False, True):
            plan = paper.plan(name, 2, select=select)
            changed = [method for methods in experiment.changes.values() for method in methods]
            methods = {paper.label_of(method) for method in [*experiment.methods, *changed]}
            assert methods <= {*plan.curve_of}
            assert {*plan.curve_of.values()} == {*experiment.curves, *methods}
            for run in plan.runs:
                assert method_label(flat_settings(dataclasses.asdict(run.config))) in plan.curve_of
                assert run.config.env is not None
                row, iterations = METHODS[run.config.method], experiment.iterations or TASKS[run.config.env].iterations
                if not row.algorithm.off_policy:  # where iterations are shorter, as PPO's, there are more of them
                    iterations *= usual_samples(run.config.env)
                    iterations /= run.config.samples or usual_samples(run.config.env, row)
                assert run.config.iterations == iterations


def test_a_method_of_shorter_iterations_is_planned_for_as_many_steps() -> None:
    runs = [run.config for run in paper.plan("ours", 1, scale=0.1).runs if run.config.method == "rpsi-ppo"]
    # PPO's have 4000 steps; the paper's on cart-pole have 2000 themselves.
    assert [run.iterations for run in runs] == [20, 125, 125, 125]


def test_the_candidates_are_the_papers() -> None:
    runs = paper.plan("c", 1, select=True).runs
    of = {curve: [r.config for r in runs if r.config.method.startswith(curve)] for curve in ("fm", "gru", "rpsp-alt")}
    assert {c.method for c in of["fm"]} == {"fm1", "fm2", "fm5"}
    assert {(c.method, c.settings.max_kl) for c in of["gru"]} == {
        (f"gru{n}", kl) for n in (16, 32, 64, 128) for kl in (1e-2, 1e-3)
    } | {("gru32", 2e-2), ("gru32", 5e-2)}  # as ours has
    assert {c.settings.dimension or 20 for c in of["rpsp-alt"]} == {10, 20, 30}
    assert {c.settings.plus_obs for c in of["rpsp-alt"]} == {0, 2}
    assert {c.settings.learning_rate for c in of["rpsp-alt"]} == {1e-2, 1e-3}


def test_shared_runs_are_done_once_and_the_first_seed_of_everything_first() -> None:
    plans = [paper.plan(name, 3, scale=0.1) for name in ("c", "f", "h")]
    sweep = paper.together(plans)
    places = [run.place for run in sweep.runs]
    assert len(places) == len({*places}) < sum(len(plan.runs) for plan in plans)
    assert [run.config.seed for run in sweep.runs] == sorted(run.config.seed for run in sweep.runs)
    assert all(run.config.iterations == 50 and run.config.device == "auto" for run in plans[0].runs)
    on_a_gpu = paper.plan("c", 3, device="gpu")
    assert {run.place for run in on_a_gpu.runs} == {run.place for run in plans[0].runs}
    assert all(run.config.device == "gpu" for run in on_a_gpu.runs)


def test_mistakes_are_said() -> None:
    for arguments, said in (
        ({"seeds": 0}, "seeds: 0"),
        ({"seeds": 1, "scale": 0.0}, "scale: 0.0"),
        ({"seeds": 1, "scale": 2.0}, "scale: 2.0"),
    ):
        with pytest.raises(UsageError, match=said):
            paper.plan("a", **arguments)
    with pytest.raises(UsageError, match="figure: 'z' is not one of all, a, b"):
        paper.find(["z"])
    assert not any(paper.EXPERIMENTS[name].ours for name in paper.find(["all"]))


def test_a_change_of_the_differences_is_one_setting_or_one_row() -> None:
    """Against the first of its question; a row of the table is read as its settings."""
    for question, (first, *others) in [*paper.DIFFERENCES.items(), *paper.TUNING.items()]:
        base = configured({"method": first}) if isinstance(first, str) else configured(first)
        for other in others:
            config = configured({"method": other} if isinstance(other, str) else other)
            ours, theirs = dataclasses.asdict(config.settings), dataclasses.asdict(base.settings)
            unlike = [name for name in ours | theirs if (name, ours.get(name)) not in theirs.items()]
            assert len(unlike) <= 1 or question == "kind of filter", (question, other, unlike)


def test_results_count_if_they_did_what_was_asked_or_enough() -> None:
    long, short = np.ones(150), np.ones(20)
    done = made_up_result("Hopper-v5", "fm2", 0, long)
    stub = made_up_result("Hopper-v5", "fm2", 1, short, iterations=150, finished=False)
    begun = made_up_result("Hopper-v5", "fm2", 2, long, iterations=500, finished=False)
    failed = made_up_result("Hopper-v5", "fm2", 3, long, failure="It fell.")
    every = [done, stub, begun, failed]
    assert paper.far_enough(every) == [done]
    assert paper.far_enough(every, scale=0.3) == [done, begun]
    curve = paper.Found(paper.far_enough(every)).curve("Hopper-v5", "FM")
    assert curve is not None and curve.iterations == 150


def test_shorter_iterations_are_put_together_until_they_have_the_papers_steps() -> None:
    """PPO's have two fifths of them, so that five make two; those of SAC stay."""

    def made(method: str, samples: int, **more: Any) -> Result:
        result = made_up_result("Hopper-v5", method, 0, np.arange(20.0), **more)
        return dataclasses.replace(result, settings=result.settings | {"samples": samples})

    ppo = made("rpsi-ppo", 4000)
    found = paper.Found([ppo, made("rpsi-sac, hidden=256/256", 1000), made("fm2", 10_000)])
    curves = {name: found.curve("Hopper-v5", name) for name in ("RPSI-PPO", "RPSI-SAC", "FM")}
    assert {name: curve and curve.iterations for name, curve in curves.items()} == {
        "RPSI-PPO": 8,
        "RPSI-SAC": 20,
        "FM": 20,
    }
    assert curves["RPSI-PPO"] is not None
    together = curves["RPSI-PPO"].runs[0]
    np.testing.assert_allclose(together.returns, [0.8, 3.2, 5.8, 8.2, 10.8, 13.2, 15.8, 18.2])
    np.testing.assert_allclose(together.steps[1::2], ppo.steps[4::5])
    np.testing.assert_allclose(together.steps[::2], (ppo.steps[1::5] + ppo.steps[2::5]) / 2)
    assert found.runs["Hopper-v5"]["rpsi-ppo"] == [ppo]  # as it was, where every run is listed
    begun = made("rpsi-ppo", 4000, iterations=375, finished=False)
    assert paper.far_enough([begun], scale=8 / 500) == [begun] and paper.far_enough([begun], scale=9 / 500) == []


def results_of(plan: paper.Plan, into: Path, rng: np.random.Generator, better: str) -> None:
    """Made-up results of every run of a plan: those of one label are the best."""
    for run in plan.runs:
        settings = flat_settings(dataclasses.asdict(run.config))
        n, method = run.config.iterations or 0, method_label(settings)
        returns = rng.normal(10.0 + 5.0 * (method == better), 1.0, n)
        curves = {"prediction_errors": np.full(n, 0.1), "persistence_errors": np.full(n, 0.2)}
        steps = 2000.0 * np.arange(1, n + 1)
        result = Result(
            task_label(settings), method, run.config.seed, settings, {"rpsp": "1"}, steps, returns,
            **curves, iterations=n, finished=True, failure="", seconds=1.0, source=into,
        )  # fmt: skip
        write_result(result, into)


def test_what_is_finished_is_drawn_and_the_best_candidate_selected(tmp_path: Path, capsys: Any) -> None:
    plan = paper.plan("a", 2, scale=0.05, select=True)
    kept = tmp_path / "results"
    results_of(plan, kept, np.random.default_rng(0), "fm5")
    next(kept.glob("*/fm1/1.json")).unlink()  # is not finished yet
    flags = ["--seeds", "2", "--scale", "0.05", "--select", "--draw", "--results", str(kept)]
    main(["paper", "a", *flags, "--out", str(tmp_path / "out"), "--json"])
    printed = capsys.readouterr().out.splitlines()
    shown = json.loads(printed[-1])["experiments"]["a"]
    assert (shown["runs"], shown["finished"]) == (len(plan.runs), len(plan.runs) - 1)
    best = shown["rows"][0]
    assert (best["method"], best["selected_from"], best["seeds"], best["iterations"]) == ("fm5", 6, 2, 10)
    assert len(shown["rows"]) == 4  # FM, GRU and two of RPSP
    for file in (shown["table"], *shown["figures"]):
        assert Path(file).stat().st_size > 100
    svg = Path(shown["figures"][0]).with_suffix(".svg").read_text(encoding="utf-8")
    assert "<svg" in svg


def test_a_peer_is_drawn_beside_ours_whatever_its_length(tmp_path: Path, capsys: Any) -> None:
    results_of(paper.plan("a", 1, scale=0.05), tmp_path / "results", np.random.default_rng(0), "fm2")
    write_result(made_up_result("InvertedPendulum-v5", "recurrent-ppo", 0, np.ones(7)), tmp_path / "results")
    flags = ["--seeds", "1", "--scale", "0.05", "--draw", "--results", str(tmp_path / "results"), "--json"]
    main(["paper", "ours", *flags, "--out", str(tmp_path / "out")])
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])["experiments"]["ours"]
    assert "RecurrentPPO" in Path(shown["figures"][0]).with_suffix(".svg").read_text(encoding="utf-8")
    assert {row["iterations"] for row in shown["rows"]} == {10} and len(shown["rows"]) == 4


def test_a_shorter_run_does_not_count_and_a_longer_one_is_cut(tmp_path: Path) -> None:
    results_of(paper.plan("a", 1, scale=0.1), tmp_path, np.random.default_rng(0), "fm2")
    results, _ = read_results([tmp_path])
    assert paper.finished(paper.plan("a", 1, scale=0.2), results) == []
    cut = paper.finished(paper.plan("a", 1, scale=0.05), results)
    assert len(cut) == 4 and {len(result.returns) for result in cut} == {10}


def test_the_list_says_what_is_left(tmp_path: Path, capsys: Any) -> None:
    main(["paper", "--seeds", "1", "--scale", "0.01", "--out", str(tmp_path), "--json"])
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["experiments"]
    assert {*rows} == {*paper.EXPERIMENTS}
    assert rows["h"]["runs"] == 16 and rows["h"]["finished"] == 0 and rows["h"]["expected_seconds"] > 0


def test_what_is_kept_is_not_done_again(tmp_path: Path, capsys: Any) -> None:
    kept, out = tmp_path / "results", tmp_path / "out"
    results_of(paper.plan("a", 2, scale=0.05), kept, np.random.default_rng(0), "fm2")
    flags = ["--scale", "0.05", "--out", str(out), "--results", str(kept), "--json"]
    main(["paper", "a", "--seeds", "2", *flags])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["experiments"]["a"]["finished"] == 8
    assert not list(out.rglob("metrics.jsonl"))  # nothing was run, only drawn

    main(["paper", "a", "--seeds", "3", "--dry-run", *flags])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["runs"] == 4  # the third seed of everything
    main(["paper", "--seeds", "3", *flags])
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["experiments"]
    assert (rows["a"]["runs"], rows["a"]["finished"]) == (12, 8)
    assert (rows["b"]["runs"], rows["b"]["finished"]) == (12, 0)

    longer = paper.together([paper.plan("a", 2, scale=0.1)], read_results([kept])[0])
    assert len(longer.runs) == 8  # what is kept is too short for these


@pytest.mark.slow
def test_a_figure_from_nothing(tmp_path: Path, capsys: Any) -> None:
    out, kept = tmp_path / "out", tmp_path / "results"
    command = ["paper", "a", "--seeds", "1", "--scale", "0.01", "--out", str(out), "--results", str(kept), "--json"]
    main(command)
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])["experiments"]["a"]
    assert shown["finished"] == shown["runs"] == 4 == len(list(kept.glob("*/*/*.json")))
    shutil.rmtree(kept)
    main([*command, "--dry-run"])
    assert not kept.exists()
