"""The report: one page that needs nothing else, of runs finished or not, whatever their files say."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import time
from contextlib import ExitStack, closing
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from benchmarks.browser import PROGRAM, Browser, browser
from made_up import EXPLORED, SAMPLES, iteration, write_run

import rpsp
from rpsp.cli import main
from rpsp.envs.make import make
from rpsp.envs.tasks import TASKS
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments import report
from rpsp.experiments.comparison import compare, row_texts
from rpsp.experiments.configure import configured, read_toml
from rpsp.experiments.report import observation_names, one_run, watch_report
from rpsp.experiments.report.html import Scale
from rpsp.experiments.results import read_results, write_result
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.words import clock

PRESETS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short run with its checkpoints."""
    out = tmp_path_factory.mktemp("runs") / "fm2"
    rpsp.train("InvertedPendulum-v5", "fm2", iterations=3, samples=200, exploration_episodes=10, out=out, verbose=False)
    return out


def written(
    trained: Path, directory: Path, method: str = "fm2", iterations: int = 5, seed: int = 0, **changes: object
) -> Path:
    """A run directory as another run might have left it, without checkpoints."""
    directory.mkdir(parents=True)
    config = json.loads((trained / "config.json").read_text(encoding="utf-8"))
    config |= {"method": method, "seed": seed, "iterations": 5, **changes}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copy(trained / "versions.json", directory)
    template = json.loads((trained / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[1])
    lines = [template | {"iteration": i, "total_samples": 300 * (i + 1), "mean_return": 10.0 * i + seed}
             for i in range(iterations)]  # fmt: skip
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return directory


def write_report(directories: list[Path], out: Path | None = None) -> Path:
    return report.write_report(directories, out)[0]


METHODS = ("fm2", "rpsp-alt", "rpsi-trpo")


def swept(directory: Path, seeds: int = 3, iterations: int = 20) -> Path:
    """A sweep of two tasks and three methods, all finished."""
    rng = np.random.default_rng(0)
    for task in ("Hopper-v5", "Swimmer-v5"):
        for m, method in enumerate(METHODS):
            for seed in range(seeds):
                returns = 10.0 * (m + 1) * np.arange(iterations) + rng.normal(0, 20, iterations)
                write_run(directory / task / method / f"s{seed}", returns.tolist(), env=task, method=method, seed=seed)
    return directory


def shorten(run: Path, iterations: int, failure: str = "") -> None:
    """As if the run had come only so far."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[: iterations + 1]), encoding="utf-8")
    if failure:
        (run / "failure.txt").write_text(failure, encoding="utf-8")


class Tags(HTMLParser):
    """Every tag with its attributes; complains when one is not closed."""

    def __init__(self, page: str):
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]


def curve(tags: Tags, name: str | None, kind: str = "line", group: str | None = None) -> np.ndarray:
    """The points of a curve, in the numbers that its axes say; the first of that name, kind and group."""
    at, path = next(
        (i, a) for i, (t, a) in enumerate(tags.seen)
        if t == "path" and a.get("data-name") == name and a["class"] == kind and group in (None, a["data-group"])
    )  # fmt: skip
    plot = next(a for t, a in reversed(tags.seen[:at]) if a.get("class") == "plot")
    points = np.array([p.split() for p in re.split("[ML]", (path["d"] or "").rstrip("Z"))[1:]], float) / 1000
    axes = [[float(n) for n in (plot[f"data-{axis}"] or "").split()] for axis in "xy"]
    fractions = points[:, 0], 1 - points[:, 1]
    return np.array(
        [
            low * (high / low) ** f if log else low + (high - low) * f
            for (low, high, log), f in zip(axes, fractions, strict=True)
        ]
    )


def test_one_run(trained, capsys):
    main(["report", str(trained), "--json"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"wrote {trained / 'report.html'}"
    assert json.loads(printed[-1])["report"] == str(trained / "report.html")
    page = (trained / "report.html").read_text(encoding="utf-8")
    tags = Tags(page)
    metrics = [json.loads(line) for line in (trained / "metrics.jsonl").read_text(encoding="utf-8").splitlines()][1:]
    steps, returns = curve(tags, "mean return")
    np.testing.assert_allclose(steps, [r["total_samples"] for r in metrics], rtol=1e-3)
    np.testing.assert_allclose(returns, [r["mean_return"] for r in metrics], atol=0.05)
    np.testing.assert_allclose(
        curve(tags, "persistence", "faint")[1], [r["persistence_error"] for r in metrics], rtol=1e-2
    )
    for words in ("InvertedPendulum-v5, fm2", "cart position", "pole angle", "forecast", "exploration_episodes", "jax"):
        assert words in page
    assert "unfinished" not in page and "No forecasts" not in page
    assert len(page) < 200_000


def test_page_needs_nothing_else(trained):
    tags = Tags(write_report([trained]).read_text(encoding="utf-8"))
    assert not tags.named("link") and all("src" not in attributes for attributes in tags.named("script"))
    policy = next(a["content"] for a in tags.named("meta") if "content" in a and "default-src" in (a["content"] or ""))
    assert (policy or "").startswith("default-src 'none'")
    assert not [a for _, a in tags.seen for name in ("src", "href") if (a.get(name) or "data:").startswith("http")]


def cells(page: str) -> list[list[str]]:
    """The texts of every row of every table."""
    return [
        [unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall("<td[^>]*>(.*?)</td>", row)]
        for row in re.findall("<tr>(.*?)</tr>", page)
    ]


def test_a_sweep_says_what_compare_says(tmp_path):
    path = write_report([swept(tmp_path / "sweep")])
    assert path == tmp_path / "sweep" / "report.html"
    results, _ = read_results([tmp_path / "sweep"])
    found, rows = compare(results), cells(path.read_text(encoding="utf-8"))
    assert len(found.rows) == 6 and len(found.overall) == 3
    for row in found.rows:
        seconds = clock(np.mean([r.seconds for r in results if (r.task, r.method) == (row.task, row.method)]))
        assert [*row_texts(row).values(), seconds] in rows
    assert "18 runs: Hopper-v5, Swimmer-v5" in path.read_text(encoding="utf-8") and "18 finished" in path.read_text(
        encoding="utf-8"
    )


def test_curves_are_means_over_seeds_with_their_standard_error(tmp_path):
    tags = Tags(write_report([swept(tmp_path / "sweep")]).read_text(encoding="utf-8"))
    results, _ = read_results([tmp_path / "sweep" / "Hopper-v5" / "fm2"])
    returns = np.stack([result.returns for result in results])
    steps, mean = curve(tags, "fm2")
    np.testing.assert_allclose(steps, EXPLORED + SAMPLES * np.arange(1, 21), rtol=1e-3)  # exploration included
    np.testing.assert_allclose(mean, returns.mean(axis=0), atol=0.5)
    edges, error = curve(tags, None, "band", "0")[1], returns.std(axis=0, ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(edges, [*(mean - error), *(mean + error)[::-1]], atol=0.5)
    np.testing.assert_allclose(curve(tags, "fm2, seed 1", "single")[1], returns[1], atol=0.5)
    np.testing.assert_allclose(curve(tags, "fm2, persistence", "faint")[1], 0.25, rtol=1e-2)
    pressed = [(a.get("data-group"), a["aria-pressed"]) for a in tags.named("button") if "aria-pressed" in a]
    assert pressed == 2 * [("0", "true"), ("1", "true"), ("2", "true"), (None, "true")]


def test_a_method_looks_the_same_in_every_task(tmp_path):
    sweep = swept(tmp_path / "sweep", seeds=1)
    shutil.rmtree(sweep / "Hopper-v5" / "fm2")
    tags = Tags(write_report([sweep]).read_text(encoding="utf-8"))
    for method in METHODS:
        looks = {a["style"] for a in tags.named("path") if a.get("data-name") == method}
        assert len(looks) == 1
    assert not [a for a in tags.named("path") if a["class"] == "single"], "one run a method is its own mean"


def test_what_went_wrong_is_said(tmp_path):
    sweep = swept(tmp_path / "sweep")
    shorten(sweep / "Hopper-v5" / "fm2" / "s1", 7, "the belief blew up")
    shorten(sweep / "Hopper-v5" / "rpsp-alt" / "s0", 0, "no space left")
    shorten(sweep / "Swimmer-v5" / "fm2" / "s2", 15)
    (sweep / "Swimmer-v5" / "rpsp-alt" / "s0" / "versions.json").write_text(
        '{"rpsp": "0.9", "jax": "0.10"}', encoding="utf-8"
    )
    (sweep / "Swimmer-v5" / "rpsp-alt" / "s1" / "metrics.jsonl").write_text("damaged\n", encoding="utf-8")
    page = write_report([sweep]).read_text(encoding="utf-8")
    rows = cells(page)
    assert ["Hopper-v5, fm2, seed 1", "7 of 20", "the belief blew up"] in rows
    assert ["Hopper-v5, rpsp-alt, seed 0", "0 of 20", "no space left"] in rows
    assert ["Swimmer-v5, fm2, seed 2", "15 of 20", str(sweep / "Swimmer-v5" / "fm2" / "s2")] in rows
    assert "14 finished" in page and ">2 failed<" in page and ">1 unfinished<" in page
    assert "results of different versions are mixed: rpsp 0.9 with jax 0.10, rpsp 1.0 with jax 0.10." in page
    assert "the runs have 15 to 20 iterations; they are compared over the first 15." in page
    assert "metrics.jsonl: line 1 is damaged" in page
    tags = Tags(page)
    assert len(curve(tags, "fm2, seed 1", "single")[0]) == 7, "a failed run is drawn as far as it came"
    results, _ = read_results([sweep / "Hopper-v5" / "fm2"])
    mean = np.mean([r.returns for r in results if not r.failure], axis=0)
    np.testing.assert_allclose(curve(tags, "fm2")[1], mean, atol=0.5)


def test_nothing_but_failures(tmp_path):
    for seed in (0, 1):
        run = write_run(tmp_path / "all" / f"s{seed}", [1.0] * 5, seed=seed)
        shorten(run, 2 * seed, "no memory")
    page = write_report([tmp_path / "all"]).read_text(encoding="utf-8")
    assert "nothing to compare yet" in page and ">2 failed<" in page and "fm2, seed 1" in page


def test_settings_in_common_and_not(tmp_path):
    for method, given in (("fm2", {}), ("fm2", {"max_kl": 0.5}), ("rpsp-alt", {})):
        for seed in (0, 1):
            name = f"{method}{len(given)}-{seed}"
            write_run(tmp_path / "all" / name, [1.0, 2.0], method=method, seed=seed, **given)
    write_run(tmp_path / "all" / "new", [1.0, 2.0], seed=2, versions={"jax": "0.11"})
    page = write_report([tmp_path / "all"]).read_text(encoding="utf-8")
    rows = cells(page)
    heads = [re.findall("<th>(.*?)</th>", row) for row in re.findall("<thead>(.*?)</thead>", page)]
    assert ["env", "Hopper-v5"] in rows and ["rpsp", "1.0"] in rows and ["samples", "2000"] in rows
    assert heads[-4:] == [
        ["task", "method", "dimension", "max_kl"],  # of the projection of the window, and of features
        ["name", "value"],
        ["task", "method", "jax"],
        ["name", "value"],
    ]
    assert ["Hopper-v5", "fm2, max_kl=0.5", "none", "0.5"] in rows
    assert ["Hopper-v5", "rpsp-alt", "20", "0.01"] in rows
    assert ["window", "2"] in rows and ["history_dimension", "100"] in rows  # of the methods that have them
    assert ["Hopper-v5", "fm2", "0.10 · 0.11"] in rows


def test_result_files_and_runs_together(tmp_path):
    for result in read_results([swept(tmp_path / "sweep", seeds=2)])[0]:
        settings = result.settings | {"seed": result.seed + 10}
        write_result(dataclasses.replace(result, settings=settings), tmp_path / "kept")
    page = write_report([tmp_path / "sweep", tmp_path / "kept"]).read_text(encoding="utf-8")
    assert "24 runs" in page and "fm2, seed 11" in page
    (first, *_) = sorted((tmp_path / "kept" / "Hopper-v5").glob("*/*.json"))
    assert write_report([first]) == first.parent / "report.html"
    assert "1 run: Hopper-v5" in (first.parent / "report.html").read_text(encoding="utf-8")


def test_a_run_of_modules_that_nobody_vouches_for_has_everything_but_forecasts(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    config = json.loads((run / "config.json").read_text(encoding="utf-8")) | {"plugin": "unheard_of"}
    (run / "config.json").write_text(json.dumps(config), encoding="utf-8")
    page = write_report([run]).read_text(encoding="utf-8")
    assert (
        "No forecasts: plugin: " in page and "--plugin unheard_of" in page and curve(Tags(page), "mean return")[0].size
    )


@pytest.mark.parametrize("iterations", [0, 1, 2])
def test_unfinished(trained, tmp_path, iterations):
    page = write_report([written(trained, tmp_path / "run", iterations=iterations)]).read_text(encoding="utf-8")
    Tags(page)
    assert f"{iterations} of 5, unfinished" in page
    assert ("No iteration is finished yet" in page) == (iterations == 0)
    assert "No forecasts" in page and "contains no checkpoint" in page


def test_numbers_that_are_none_leave_gaps(trained, tmp_path):
    run = written(trained, tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    lines[2] |= {"mean_return": float("nan"), "prediction_error": 0.0, "whole_kl": float("inf")}
    del lines[3]["whole_kl"]
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"cut of', encoding="utf-8"
    )
    tags = Tags(write_report([run]).read_text(encoding="utf-8"))
    path = next(a["d"] or "" for a in tags.named("path") if a.get("data-name") == "mean return")
    assert path.count("M") == 2 and "nan" not in path
    assert len(curve(tags, "KL")[0]) == 3


def test_everything_is_escaped(trained, tmp_path):
    evil = "<script>alert(1)</script>\"'&"
    run = written(trained, tmp_path / "<b>&\"'", observe=evil)
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    config.pop("observe")
    config["sensors"]["observe"] = "0,1"
    (run / "config.json").write_text(json.dumps(config | {"env": evil}), encoding="utf-8")
    (run / "command.txt").write_text(evil, encoding="utf-8")
    (run / "versions.json").write_text(json.dumps({evil: evil}), encoding="utf-8")
    (run / "results.json").write_text(
        json.dumps({"evaluation": {"mean_return": 1.0, "std_return": 0.0, "episodes": evil}})
    )
    (run / "failure.txt").write_text(evil, encoding="utf-8")
    other = written(trained, tmp_path / "other", evil)
    for runs in ([run], [run, other, written(trained, tmp_path / "third")]):
        page = write_report(runs).read_text(encoding="utf-8")
        assert len(Tags(page).named("script")) == 1 and "alert(1)</script>" not in page and "<b>&" not in page
        assert escape(evil) in page


@pytest.mark.parametrize(("suffix", "tag"), [("gif", "img"), ("mp4", "video")])
def test_video(trained, tmp_path, suffix, tag):
    run = written(trained, tmp_path / "run")
    (run / "video").mkdir()
    video = run / "video" / f"a #1.{suffix}"
    video.write_bytes(b"moving")
    assert Tags(write_report([run]).read_text(encoding="utf-8")).named(tag)[0]["src"].endswith(";base64,bW92aW5n")
    with video.open("wb") as file:
        file.truncate(5_000_000)
    tags = Tags(write_report([run], tmp_path / "elsewhere.html").read_text(encoding="utf-8"))
    assert not tags.named(tag) and [a["href"] for a in tags.named("a")] == [f"run/video/a%20%231.{suffix}"]


def hundred(directory: Path) -> Path:
    """A hundred runs of 500 iterations."""
    for method in ("fm2", "gru32"):
        for seed in range(50):
            returns = np.random.default_rng(seed).normal(np.arange(500), 30)
            write_run(directory / method / f"s{seed}", returns.tolist(), method=method, seed=seed)
    return directory


def test_hundred_runs_fit_on_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(one_run, "load", lambda directory: pytest.fail("a checkpoint was read"))
    path = write_report([hundred(tmp_path / "all")])
    assert path.stat().st_size < 2_000_000
    tags = Tags(path.read_text(encoding="utf-8"))
    steps, _ = curve(tags, "gru32, seed 49", "single")
    assert len(steps) <= 251
    np.testing.assert_allclose(steps[-1], EXPLORED + 500 * SAMPLES, rtol=1e-3)  # where it ended
    assert "one in 2 iterations is drawn" in path.read_text(
        encoding="utf-8"
    ) and "Forecasts of the belief" not in path.read_text(encoding="utf-8")


def test_watching_until_all_runs_have_ended(tmp_path, monkeypatch):
    """It goes on while a run is unfinished, or while a sweep holds the directory; then the page rests."""
    sweep = swept(tmp_path / "sweep", seeds=1, iterations=3)
    late = sweep / "Swimmer-v5" / "fm2" / "s0"
    shorten(late, 1)
    said, pages, held = [], [], ExitStack()
    held.enter_context(RunDirectory(sweep).locked())

    def rounds(seconds: float) -> None:
        if seconds != 3.0:  # another thread's
            return
        pages.append((sweep / "report.html").read_text(encoding="utf-8"))
        if len(pages) == 2:
            with (late / "metrics.jsonl").open("a") as file:
                file.writelines(json.dumps(iteration(i, 5.0)) + "\n" for i in (1, 2))
        if len(pages) == 4:
            held.close()

    monkeypatch.setattr(time, "sleep", rounds)
    path, results = watch_report([sweep], None, 3.0, said.append)
    assert ["5 finished" in page for page in pages] == [True, True, False, False]
    assert all('<meta http-equiv="refresh" content="3">' in page for page in pages)
    assert [words.split(": ")[-1] for words in said] == [
        "6 runs started, 5 finished, 0 failed",
        "6 runs started, 6 finished, 0 failed",
    ]
    assert path == sweep / "report.html" and all(result.finished for result in results)
    assert 'http-equiv="refresh"' not in path.read_text(encoding="utf-8") and "6 finished" in path.read_text(
        encoding="utf-8"
    )


def test_watching_waits_for_the_first_run(tmp_path, capsys, monkeypatch):
    (tmp_path / "sweep").mkdir()
    monkeypatch.setattr(time, "sleep", lambda seconds: swept(tmp_path / "sweep", seeds=1) if seconds == 2.5 else None)
    main(["report", str(tmp_path / "sweep"), "--watch", "--every", "2.5", "--json"])
    first, *_, last = capsys.readouterr().out.splitlines()
    assert "nothing to show yet" in first
    assert json.loads(last) | {"directories": 0, "report": 0} == {
        "directories": 0,
        "report": 0,
        "runs": 6,
        "finished": 6,
    }


def test_watching_is_interrupted(tmp_path, capsys, monkeypatch):
    sweep = swept(tmp_path / "sweep", seeds=1)
    shorten(sweep / "Swimmer-v5" / "fm2" / "s0", 2)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    with pytest.raises(SystemExit) as exit:
        main(["report", str(sweep), "--watch"])
    assert exit.value.code == 130 and "report.html shows how far the runs are" in capsys.readouterr().err
    assert 'http-equiv="refresh"' not in (sweep / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", None, "rpsp train"),
        ("config.json", '{"source": "data.npz"}', "rpsp train"),
        ("config.json", "[1", "config.json"),
        ("metrics.jsonl", '{"iteration": 0}\n', "metrics.jsonl"),
        ("results.json", "[]", "results.json"),
    ],
)
def test_not_a_run(trained, tmp_path, capsys, name, content, words):
    run = written(trained, tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    if content is not None:
        (run / name).write_text(content, encoding="utf-8")
    with pytest.raises(FileFormatError, match=re.escape(words)):
        write_report([run])
    with pytest.raises(SystemExit) as exit:
        main(["report", str(run)])
    assert exit.value.code == 3
    assert "Traceback" not in capsys.readouterr().err
    assert not (run / "report.html").exists()


def test_mistakes_of_usage(trained, tmp_path):
    with pytest.raises(UsageError, match="nowhere"):
        write_report([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="directories"):
        write_report([])
    with pytest.raises(UsageError, match="is a directory"):
        write_report([trained], tmp_path)
    for every in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="every"):
            watch_report([trained], None, every, print)


@pytest.mark.parametrize(
    "scale",
    [
        Scale.around([]),
        Scale.around([5.0]),
        Scale.around([-3.0, 1e7]),
        Scale.around([-1.7e308, 1e299, 1.7e308]),
        Scale.around([1e-9, 3e-9]),
        Scale.around([], log=True),
        Scale.around([0.0, 0.5, 0.6], log=True),
        Scale.around([1e-30, 1e30], log=True),
    ],
)
def test_scales_have_ticks_inside(scale):
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 8 and all(-1e-9 <= at <= 1 + 1e-9 for at, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)


def test_observations_of_the_papers_tasks_have_names():
    assert observation_names(configured({"env": "Hopper-v5"}), 5)[1] == "torso angle"
    assert observation_names(configured({"env": "Hopper-v5", "observe": "4,7"}), 2) == ["foot angle", "observation 7"]
    assert observation_names(configured({"env": "CartPole-v1"}), 2) == ["observation 0", "observation 1"]
    for task in TASKS:
        with closing(make(task)) as envs:
            (count,) = envs.single_observation_space.shape or ()
        assert all("observation" not in name for name in observation_names(configured({"env": task}), count))


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_presets_are_the_papers_protocol(preset):
    config = configured(read_toml(preset), f"{preset.name}: ")
    task = TASKS[config.env or ""]
    assert config.sensors.observe == "positions" and config.settings.discount == 0.99
    found = config.max_episode_steps, config.samples, config.exploration_episodes, config.iterations
    assert found == (task.max_episode_steps, task.batch_samples, task.exploration_episodes, task.iterations)


def test_every_task_of_the_paper_has_a_preset():
    assert {read_toml(preset)["env"] for preset in PRESETS} == set(TASKS)


# ---------------------------------------------------------------------------------------------------------------------
# In a browser
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown():
    if PROGRAM is None:
        pytest.skip("chromium is not installed (Debian's package of that name), so the page is not looked at")
    with browser() as one:
        yield one


def test_hovering_shows_numbers(tmp_path, shown: Browser):
    shown.open(write_report([swept(tmp_path / "sweep")]))
    results, _ = read_results([tmp_path / "sweep" / "Hopper-v5"])
    last = {m: np.array([r.returns[-1] for r in results if r.method == m]) for m in METHODS}
    x, y, width = shown.run("(b => [b.x, b.y, b.width])(document.querySelector('.plot').getBoundingClientRect())")
    shown.move(x + width - 2, y + 5)
    head, *lines = shown.run("[...document.querySelector('.tip').children].map(row => row.innerText)")
    assert head == "environment steps 40,891"
    found = dict(line.split("\n") for line in lines)
    assert set(METHODS) < set(found) and len(found) == 4  # and the single run that is nearest
    for method, values in last.items():
        assert len({len(text.partition(".")[2]) for text in found[method].split(" ± ")}) == 1  # as many decimals
        mean, error = map(float, found[method].split(" ± "))
        np.testing.assert_allclose([mean, error], [values.mean(), values.std(ddof=1) / 3**0.5], atol=0.6)


def test_toggles_by_keyboard_survive_loading_again(tmp_path, shown: Browser):
    shown.open(write_report([swept(tmp_path / "sweep")]))
    sections = "[...document.querySelectorAll('.env')].map(s => [...s.querySelectorAll('.plot path')].filter("
    hidden = sections + "p => getComputedStyle(p).display === 'none').map(p => p.dataset.name ?? 'band'))"
    assert shown.run(hidden) == [[], []]
    shown.run("document.querySelector('.legend button').focus()")
    shown.press(" ")
    mine = ["band", *(f"fm2, seed {seed}" for seed in range(3)), "fm2", "fm2, persistence", "fm2"]
    assert sorted(shown.run(hidden)[0]) == sorted(mine) and shown.run(hidden)[1] == []
    for _ in range(3):
        shown.press("Tab")
    assert shown.run("document.activeElement.innerText") == "individual runs"
    shown.press("Enter")
    before = shown.run(hidden)
    assert len(before[0]) == len(mine) + 6 and before[1] == []
    shown.events.clear()
    shown.ask("Page.reload")
    shown.wait_for_load()
    assert shown.run(hidden) == before
    pressed = "[...document.querySelectorAll('.legend button')].map(b => b.ariaPressed)"
    assert shown.run(pressed) == ["false", "true", "true", "false", *4 * ["true"]]


def test_tables_are_sorted(tmp_path, shown: Browser):
    shown.open(write_report([swept(tmp_path / "sweep")]))
    column = "[...document.querySelector('.summary').tBodies[0].rows].map(row => row.cells[0].innerText)"
    heads = "document.querySelector('.summary').querySelectorAll('th button')"
    assert shown.run(column) == ["rpsi-trpo", "rpsp-alt", "fm2"]
    for click, expected in (
        (2, ["rpsi-trpo", "rpsp-alt", "fm2"]),
        (2, ["fm2", "rpsp-alt", "rpsi-trpo"]),
        (0, ["rpsp-alt", "rpsi-trpo", "fm2"]),
        (0, ["fm2", "rpsi-trpo", "rpsp-alt"]),
    ):
        shown.run(f"{heads}[{click}].click()")
        assert shown.run(column) == expected
    assert shown.run(f"{heads}[0].parentNode.ariaSort") == "ascending"


def test_page_fits_a_phone_in_light_and_dark(trained, tmp_path, shown: Browser):
    """No scrolling sideways, not even with everything unfolded; and nothing but the page is asked for."""
    sweep = swept(tmp_path / "sweep")
    shorten(sweep / "Hopper-v5" / "fm2" / "s1", 7, "a_word_without_an_end_" * 20)
    grounds = set()
    for path in (write_report([sweep]), write_report([trained], tmp_path / "one.html")):
        for dark in (False, True):
            shown.open(path, width=390, height=800, dark=dark)
            shown.run("for (const part of document.querySelectorAll('details')) part.open = true")
            assert shown.run("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
            grounds.add(shown.run("getComputedStyle(document.body).backgroundColor"))
            assert shown.requests() == [path.as_uri()]
    assert len(grounds) == 2


def test_evil_names_do_nothing(tmp_path, shown: Browser):
    evil = "<script>document.title = 'evil'</script>\"'><img src=x onerror=\"document.title='evil'\">"
    for seed in (0, 1):
        write_run(tmp_path / "all" / f"s{seed}", [1.0, 2.0], env=evil, seed=seed)
    (tmp_path / "all" / "s1" / "failure.txt").write_text(evil, encoding="utf-8")
    shorten(tmp_path / "all" / "s1", 1)
    shown.open(write_report([tmp_path / "all"]))
    assert shown.run("document.title") == f"2 runs: {evil}" and not shown.run("document.querySelectorAll('img').length")
    assert len(shown.requests()) == 1


def test_hundred_runs_open_in_a_second(tmp_path, shown: Browser):
    path = write_report([hundred(tmp_path / "all")])
    milliseconds = min(shown.open(path) for _ in range(3))
    assert milliseconds < 1000 and shown.run("document.querySelectorAll('.single').length") == 100
