"""Results: read back as runs left them, labelled by their configuration; damage is told and leaves the others whole."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from made_up import EXPLORED, SAMPLES, iteration, write_run

import rpsp
from rpsp.errors import UsageError
from rpsp.experiments import labels
from rpsp.experiments import results as r
from rpsp.experiments.configure import configured
from rpsp.experiments.methods import METHODS


def settings(**given: object) -> dict[str, object]:
    return labels.flat_settings(dataclasses.asdict(configured({"env": "Hopper-v5", **given})))


@pytest.mark.parametrize(
    ("given", "task", "method"),
    [
        ({"method": "rpsp-alt"}, "Hopper-v5", "rpsp-alt"),
        ({"method": "rpsp-alt", "dimension": 10}, "Hopper-v5", "rpsp-alt, dimension=10"),
        ({"method": "fm2", "obs_noise": 0.1}, "Hopper-v5, obs_noise=0.1", "fm2"),
        ({"method": "fm2", "observe": "0,1"}, "Hopper-v5, observe=0,1", "fm2"),
        ({"method": "fm2", "observe": "positions"}, "Hopper-v5", "fm2"),
        ({"method": "fm2", "observe": "all"}, "Hopper-v5, observe=all", "fm2"),
        ({"method": "fm2", "env": "CartPole-v1", "observe": "all"}, "CartPole-v1", "fm2"),
        ({"method": "rpsi-ppo", "hidden": [64, 64], "clip": 0.1}, "Hopper-v5", "rpsi-ppo, clip=0.1"),
        ({"method": "fm2-sac", "samples": 1000, "max_episode_steps": 1000}, "Hopper-v5", "fm2-sac"),
        ({"method": "fm2-sac", "samples": 3000, "max_episode_steps": 3000}, "Hopper-v5", "fm2-sac"),
        ({"method": "fm2-sac", "samples": 3000, "max_episode_steps": 1000}, "Hopper-v5", "fm2-sac, samples=3000"),
        ({"method": "rpsi-trpo", "refit_before": []}, "Hopper-v5", "rpsi-trpo, refit_before=none"),
        ({"method": "fm5", "hidden": [32, 16]}, "Hopper-v5", "fm5, hidden=32/16"),
        ({"method": "rpsp-alt", "random": True, "filter_kl": "none"}, "Hopper-v5", "rpsp-alt, filter_kl=none, random=true"),
    ],
)  # fmt: skip
def test_labels_tell_what_is_not_default(given, task, method):
    assert labels.task_label(settings(**given)) == task
    assert labels.method_label(settings(**given)) == method


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_own_defaults_are_not_told(method):
    assert labels.method_label(settings(method=method)) == method


def test_labels_can_be_asked_to_tell_more():
    given = settings(method="fm2", samples=500)
    assert labels.method_label(given, ["samples"]) == "fm2, samples=500"
    assert (
        labels.task_label(given | {"max_episode_steps": 100}, ["max_episode_steps"])
        == "Hopper-v5, max_episode_steps=100"
    )
    assert labels.method_label({"method": "theirs:row", "dimension": 3}) == "theirs:row"  # whose defaults are not known


def test_slugs_are_safe_and_different():
    assert labels.slug("Hopper-v5, obs_noise=0.1") == "Hopper-v5__obs_noise=0.1"
    names = ["../../etc/passwd", "a/b", "a b", "a\\b", "..", "", "a" * 300, "a" * 299, "module:Env-v0", "ü"]
    slugs = [labels.slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    for one in slugs:
        assert Path(one).name == one and one.strip(".") and len(one) < 120


def test_reads_what_a_run_wrote(tmp_path):
    returns = [1.5, 2.25, np.pi]
    write_run(tmp_path / "run", returns, method="rpsp-alt", dimension=10, seed=7)
    (result,), warnings = r.read_results([tmp_path])
    assert warnings == []
    assert (result.task, result.method, result.seed) == ("Hopper-v5", "rpsp-alt, dimension=10", 7)
    np.testing.assert_array_equal(result.returns, returns)
    np.testing.assert_array_equal(result.steps, EXPLORED + SAMPLES * np.array([1, 2, 3]))  # exploration included
    np.testing.assert_array_equal(result.prediction_errors, 0.125 / np.array([1, 2, 3]))
    np.testing.assert_array_equal(result.persistence_errors, 0.25)
    assert result.finished and result.iterations == 3 and result.failure == ""
    assert result.seconds == pytest.approx(1 + 2 + 3 * 4)
    assert result.versions["jax"] == "0.10" and result.settings["dimension"] == 10
    assert result.source == tmp_path / "run"


def test_reads_a_real_run_as_its_own_metrics_do(tmp_path):
    amounts = {"iterations": 2, "samples": 200, "exploration_episodes": 10}
    run = rpsp.train("InvertedPendulum-v5", "fm2", **amounts, out=tmp_path / "run", verbose=False)
    (result,), warnings = r.read_results([run.directory])
    assert warnings == [] and (result.task, result.method) == ("InvertedPendulum-v5", "fm2")
    records = [record for record in run.metrics if "iteration" in record]
    for curve, name in r.CURVES.items():
        np.testing.assert_array_equal(getattr(result, curve), [record[name] for record in records])
    lines = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    spent = sum(value for line in lines for name, value in line.items() if name.endswith("_seconds"))
    assert result.seconds == pytest.approx(spent)
    assert result.versions["jax"] and result.finished
    # The fast way was taken: a pattern that no longer fits what `training` writes would be slow, and nothing else.
    body = (run.directory / "metrics.jsonl").read_bytes()
    assert len(r._LINE.findall(body)) == 2


@pytest.mark.parametrize("layout", ["other order", "no spaces"])
def test_lines_of_another_layout_are_read_as_json(tmp_path, layout):
    run = write_run(tmp_path / "run", [1.0, 2.0])
    (expected,), _ = r.read_results([tmp_path])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    separators = (",", ":") if layout == "no spaces" else None
    if layout == "other order":
        lines = [dict(reversed(line.items())) for line in lines]
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps(line, separators=separators) + "\n" for line in lines), encoding="utf-8"
    )
    (result,), warnings = r.read_results([tmp_path])
    assert warnings == []
    np.testing.assert_array_equal(result.returns, expected.returns)
    np.testing.assert_array_equal(result.steps, expected.steps)


def test_finds_runs_at_any_depth_once_and_not_in_checkpoints(tmp_path, monkeypatch):
    for seed in range(3):
        write_run(tmp_path / f"sweep/fm2/s{seed}", [1.0], seed=seed)
    write_run(tmp_path / "sweep/fm2/s0/checkpoints/000001", [1.0], seed=8)
    write_run(tmp_path / "sweep/checkpoints/x", [1.0], seed=9)
    (tmp_path / "sweep/fm2/config.json").write_text(
        "{}", encoding="utf-8"
    )  # the parent of several seeds has no metrics of its own
    monkeypatch.chdir(tmp_path)
    found, warnings = r.read_results([tmp_path, "sweep/fm2/s1", "."])
    assert [result.seed for result in found] == [0, 1, 2] and warnings == []
    with pytest.raises(UsageError, match="'nowhere' does not exist"):
        r.read_results(["nowhere"])
    assert r.read_results([]) == ([], [])


def test_a_last_line_that_was_cut_off_is_not_read(tmp_path):
    run = write_run(tmp_path / "run", [1.0, 2.0], iterations=5)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(iteration(2, 3.0))[:-30])
    (result,), warnings = r.read_results([run])
    np.testing.assert_array_equal(result.returns, [1.0, 2.0])
    assert not result.finished and result.iterations == 5 and warnings == []


def test_a_run_that_has_not_begun_or_failed_is_a_result(tmp_path):
    begun = write_run(tmp_path / "begun", [], iterations=5)
    failed = write_run(tmp_path / "failed", [1.0], iterations=5, seed=1)
    (failed / "failure.txt").write_text("the environment raised:\x1b[31m a wall.\n", encoding="utf-8")
    at_once = write_run(tmp_path / "at once", [], iterations=5, seed=2)
    (at_once / "metrics.jsonl").unlink()
    (at_once / "failure.txt").write_text("no such environment.", encoding="utf-8")
    (begun / "metrics.jsonl").write_text("", encoding="utf-8")
    done = write_run(tmp_path / "done", [1.0], seed=3)
    (done / "failure.txt").write_text("an earlier attempt failed.", encoding="utf-8")
    found, warnings = r.read_results([tmp_path])
    assert [len(result.returns) for result in found] == [0, 1, 0, 1] and warnings == []
    assert [result.finished for result in found] == [False, False, False, True]
    assert [result.failure for result in found] == [
        "", "the environment raised: [31m a wall.", "no such environment.", ""]  # fmt: skip


DAMAGES = {
    "config is cut off": ("config.json", lambda text: text[:50], "is not JSON"),
    "config is a list": ("config.json", lambda text: "[]", "contains no JSON object"),
    "config without a seed": ("config.json", lambda text: text.replace('"seed"', '"sead"'), "'seed' is missing"),
    "method is a list": ("config.json", lambda text: text.replace('"fm2"', '["fm2"]'), "is not the result"),
    "endless iterations": ("config.json", lambda text: text.replace('"iterations": 2', '"iterations": 1e999'), "infinity"),
    "sensors are a number": ("config.json", lambda text: text.replace('"sensors": {', '"sensors": 3, "x": {'), ""),
    "versions are a number": ("versions.json", lambda text: "3", "contains no JSON object"),
    "in the middle": ("metrics.jsonl", lambda text: text.replace('"mean_return": 1.0', '"mean_return": one'), "line 2"),
    "a line that is a number": ("metrics.jsonl", lambda text: "3\n" + text, "line 1"),
    "a line without steps": ("metrics.jsonl", lambda text: text.replace("total_samples", "total"), "line 2"),
    "no text": ("metrics.jsonl", lambda text: "\x00\x01\n", "line 1"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_left_out_in_one_sentence(tmp_path, damage):
    file, spoil, complaint = DAMAGES[damage]
    write_run(tmp_path / "whole", [1.0, 2.0])
    run = write_run(tmp_path / "hurt", [1.0, 2.0], seed=1)
    (run / file).write_text(spoil((run / file).read_text(encoding="utf-8")))
    found, warnings = r.read_results([tmp_path])
    assert [result.seed for result in found] == [0]
    (warning,) = warnings
    assert warning.startswith("left out: ") and "hurt" in warning and complaint in warning and "\n" not in warning


def test_unlike_runs_are_never_averaged(tmp_path):
    write_run(tmp_path / "a", [1.0], samples=1000, iterations=1)
    write_run(tmp_path / "b", [1.0], samples=2000, iterations=9)
    write_run(tmp_path / "c", [1.0], samples=2000, method="gru32")
    write_run(tmp_path / "d", [1.0], max_episode_steps=50, method="fm2", samples=2000)
    found, _ = r.read_results([tmp_path])
    assert {(result.task, result.method) for result in found} == {
        ("Hopper-v5, max_episode_steps=200", "fm2, samples=1000"),
        ("Hopper-v5, max_episode_steps=200", "fm2, samples=2000"),
        ("Hopper-v5, max_episode_steps=200", "gru32"),
        ("Hopper-v5, max_episode_steps=50", "fm2"),
    }


def test_methods_of_a_users_own_are_told_apart_without_being_imported(tmp_path):
    for i, (dimension, seed) in enumerate([(10, 0), (20, 0), (20, 1)]):
        run = write_run(tmp_path / str(i), [1.0], method="rpsp-alt", dimension=dimension, seed=seed, plugin=None)
        text = (
            (run / "config.json")
            .read_text(encoding="utf-8")
            .replace('"method": "rpsp-alt"', '"method": "no_such_module:row"')
        )
        (run / "config.json").write_text(text.replace('"plugin": null', '"plugin": "no_such_plugin"'), encoding="utf-8")
    found, warnings = r.read_results([tmp_path])
    assert warnings == [] and "no_such_module" not in sys.modules
    assert [result.method for result in found] == [f"no_such_module:row, dimension={d}" for d in (10, 20, 20)]


def test_a_setting_that_came_later_has_its_default_in_older_runs(tmp_path):
    old = write_run(tmp_path / "old", [1.0])
    write_run(tmp_path / "new", [1.0], seed=1)
    content = json.loads((old / "config.json").read_text(encoding="utf-8"))
    del content["settings"]["damping"]
    (old / "config.json").write_text(json.dumps(content), encoding="utf-8")
    found, _ = r.read_results([tmp_path])
    assert [result.method for result in found] == ["fm2", "fm2"]


def test_every_stored_result_has_the_label_under_which_it_was_written():
    """The directories of results/ are the labels that 0.3 and 0.4 gave them; every method had all settings then."""
    stored = sorted((Path(__file__).parents[2] / "results").glob("*/*/*.json"))
    assert len(stored) > 1000
    for path in stored:
        result = r.read_result(path)
        assert (labels.slug(result.task), labels.slug(result.method), str(result.seed)) == (
            *path.parts[-3:-1], path.stem)  # fmt: skip


def test_settings_of_0_4_0_that_its_methods_ignored_or_left_to_the_filter_make_no_difference(tmp_path):
    """Methods of 0.4.0 had all settings. Those that they did not use differ without consequence."""
    for seed in range(2):
        run = write_run(tmp_path / str(seed), [1.0], method="rpsp-alt", learning_rate=0.01, dimension=10, seed=seed)
    content = json.loads((run / "config.json").read_text(encoding="utf-8"))
    content["settings"] |= {"window": 5, "units": 7, "clip": 0.3, "past": None, "epochs": None}
    (run / "config.json").write_text(json.dumps(content), encoding="utf-8")
    found, warnings = r.read_results([tmp_path])
    assert warnings == []
    assert [result.method for result in found] == ["rpsp-alt, learning_rate=0.01, dimension=10"] * 2
    assert found[0].settings | {"seed": 1} == found[1].settings


def test_of_two_runs_of_a_seed_the_longer_is_taken_and_the_later_on_a_tie(tmp_path):
    write_run(tmp_path / "long", [1.0, 2.0, 3.0], iterations=9)
    write_run(tmp_path / "short", [5.0], iterations=9)
    (result,), (warning,) = r.read_results([tmp_path])
    assert result.source.name == "long"
    assert "seed 0 exists twice" in warning and "long is used" in warning and "short is not" in warning
    later = shutil.copytree(tmp_path / "long", tmp_path / "a later one")
    os.utime(later / "metrics.jsonl", (2e9, 2e9))
    (result,), warnings = r.read_results([tmp_path])
    assert result.source.name == "a later one" and len(warnings) == 2


def test_mixed_versions_are_told_once(tmp_path):
    for seed in range(4):
        write_run(tmp_path / str(seed), [1.0], seed=seed, versions={"jax": f"0.{9 + seed % 2}", "rich": str(seed)})
    _, warnings = r.read_results([tmp_path])
    assert warnings == ["results of different versions are mixed: rpsp 1.0 with jax 0.10, rpsp 1.0 with jax 0.9."]


def test_a_result_file_says_the_same_in_little_space(tmp_path):
    rng = np.random.default_rng(0)
    run = write_run(
        tmp_path / "run", (3000 * rng.random(300)).tolist(), method="rpsi-alt", obs_noise=0.1, seed=3, out="private"
    )
    (whole,), _ = r.read_results([run])
    whole = dataclasses.replace(whole, prediction_errors=1e-4 * rng.random(300), persistence_errors=rng.random(300))
    path = r.write_result(whole, tmp_path / "results")
    assert path == tmp_path / "results" / "Hopper-v5__obs_noise=0.1" / "rpsi-alt" / "3.json"
    assert path.stat().st_size < 10_000 and "private" not in path.read_text(encoding="utf-8")
    (kept,), warnings = r.read_results([tmp_path / "results"])
    assert warnings == [] and r.read_results([path])[0][0].source == path
    for name in ("task", "method", "seed", "versions", "iterations", "finished", "failure"):
        assert getattr(kept, name) == getattr(whole, name), name
    np.testing.assert_array_equal(kept.steps, whole.steps)
    np.testing.assert_allclose(kept.returns, whole.returns, rtol=5e-5)
    np.testing.assert_allclose(kept.prediction_errors, whole.prediction_errors, rtol=5e-3)
    np.testing.assert_allclose(kept.persistence_errors, whole.persistence_errors, rtol=5e-3)
    assert kept.seconds == pytest.approx(whole.seconds, abs=0.1)
    again = r.write_result(kept, tmp_path / "again")
    assert again.read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


def test_result_files_of_rpsp_0_4_0_are_read_and_replaced(tmp_path):
    """They are flat: TASK__METHOD__sSEED.result.json."""
    flat, nested = tmp_path / "flat", tmp_path / "nested"
    flat.mkdir()
    for seed in range(2):
        (result,), _ = r.read_results([write_run(tmp_path / f"run{seed}", [1.0, 2.0], method="fm2", seed=seed)])
        path = r.write_result(result, nested)
        shutil.copy(path, flat / f"Hopper-v5__fm2__s{seed}.result.json")
    for name in ("0.txt", "a.json", "results.json"):  # are not results
        (flat / name).write_text("no JSON", encoding="utf-8")
    old, warnings = r.read_results([flat])
    new, _ = r.read_results([nested])
    assert [(k.task, k.method, k.seed) for k in old] == [(k.task, k.method, k.seed) for k in new] and warnings == []
    assert [k.source.name for k in new] == ["0.json", "1.json"]
    for part in (nested / "Hopper-v5", nested / "Hopper-v5" / "fm2"):
        assert [k.source for k in r.read_results([part])[0]] == [k.source for k in new]
    # Writing a run again replaces its old file, so that no run is there twice.
    r.write_result(old[0], flat)
    mixed, warnings = r.read_results([flat])
    assert [k.source.name for k in mixed] == ["0.json", "Hopper-v5__fm2__s1.result.json"] and warnings == []


def test_a_result_file_has_no_numbers_that_json_lacks(tmp_path):
    run = write_run(tmp_path / "run", [1.0, 2.0])
    (whole,), _ = r.read_results([run])
    path = r.write_result(dataclasses.replace(whole, returns=np.array([np.nan, 2.0])), tmp_path)
    json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda constant: pytest.fail(constant))
    np.testing.assert_array_equal(r.read_result(path).returns, [np.nan, 2.0])
    text = path.read_text(encoding="utf-8")
    for damage in ("[1.0]", "[[1.0],[2.0]]", "3"):
        path.write_text(text.replace("[null,2.0]", damage), encoding="utf-8")
        found, (warning,) = r.read_results([path])
        assert found == [] and "is not the result" in warning
    path.write_text("[" * 100_000, encoding="utf-8")
    assert len(r.read_results([path])[1]) == 1


@pytest.fixture
def two(tmp_path):
    write_run(tmp_path / "runs/a", [1.5, float("nan")], obs_noise=0.1)
    write_run(tmp_path / "runs/b", [3.0], method="gru32", seed=1)
    return r.read_results([tmp_path / "runs"])[0]


def test_all_results_in_one_csv(two, tmp_path):
    r.write_csv(r.long_table(two), tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["task"], row["method"], row["seed"], row["iteration"]) for row in rows] == [
        ("Hopper-v5", "gru32", "1", "0"),
        ("Hopper-v5, obs_noise=0.1", "fm2", "0", "0"),
        ("Hopper-v5, obs_noise=0.1", "fm2", "0", "1"),
    ]
    assert [row["return"] for row in rows] == ["3.0", "1.5", ""]
    assert [row["steps"] for row in rows] == ["2891", "2891", "4891"]
    assert rows[2]["prediction_error"] == "0.0625" and rows[2]["persistence_error"] == "0.25"


def test_all_results_in_one_parquet(two, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    r.write_parquet(r.long_table(two), tmp_path / "all.parquet")
    table = parquet.read_table(tmp_path / "all.parquet").to_pydict()
    expected = r.long_table(two)
    assert list(table) == list(expected)
    for name, column in expected.items():
        np.testing.assert_array_equal(table[name], column)


def test_without_pyarrow_there_is_a_remedy(two, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install rpsp\[parquet\]"):
        r.write_parquet(r.long_table(two), tmp_path / "all.parquet")
    assert not (tmp_path / "all.parquet").exists()
