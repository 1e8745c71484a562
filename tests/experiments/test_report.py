"""The report: one page that needs nothing else, of runs finished or not, whatever their files say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import rpsp
from rpsp.cli import main
from rpsp.environments import TASKS
from rpsp.errors import FileFormatError, UsageError
from rpsp.experiments.config import configured, read_toml
from rpsp.experiments.report import Scale, observation_names, write_report

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
    config = json.loads((trained / "config.json").read_text())
    config |= {"method": method, "seed": seed, "iterations": 5, **changes}
    (directory / "config.json").write_text(json.dumps(config))
    shutil.copy(trained / "versions.json", directory)
    template = json.loads((trained / "metrics.jsonl").read_text().splitlines()[1])
    lines = [template | {"iteration": i, "total_samples": 300 * (i + 1), "mean_return": 10.0 * i + seed}
             for i in range(iterations)]  # fmt: skip
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


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
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]


def curve(tags: Tags, name: str) -> np.ndarray:
    """The points of a curve, in the numbers that its axes say."""
    at, path = next((i, a) for i, (t, a) in enumerate(tags.seen) if t == "path" and a.get("data-name") == name)
    plot = next(a for t, a in reversed(tags.seen[:at]) if a.get("class") == "plot")
    points = np.array([p.split() for p in re.split("[ML]", path["d"] or "")[1:]], float) / 1000
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
    page = (trained / "report.html").read_text()
    tags = Tags(page)
    metrics = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()][1:]
    steps, returns = curve(tags, "mean return")
    np.testing.assert_allclose(steps, [r["total_samples"] for r in metrics], rtol=1e-3)
    np.testing.assert_allclose(returns, [r["mean_return"] for r in metrics], atol=0.05)
    np.testing.assert_allclose(curve(tags, "persistence")[1], [r["persistence_error"] for r in metrics], rtol=1e-2)
    for words in ("InvertedPendulum-v5, fm2", "cart position", "pole angle", "forecast", "exploration_episodes", "jax"):
        assert words in page
    assert "unfinished" not in page and "No forecasts" not in page
    assert len(page) < 200_000


def test_page_needs_nothing_else(trained):
    tags = Tags(write_report([trained]).read_text())
    assert not tags.named("link") and all("src" not in attributes for attributes in tags.named("script"))
    policy = next(a["content"] for a in tags.named("meta") if "content" in a and "default-src" in (a["content"] or ""))
    assert (policy or "").startswith("default-src 'none'")
    assert not [a for _, a in tags.seen for name in ("src", "href") if (a.get(name) or "data:").startswith("http")]


def test_several_runs(trained, tmp_path):
    runs = [written(trained, tmp_path / f"{m}-{s}", m, seed=s) for m in ("fm2", "rpsi-trpo") for s in (0, 1)]
    runs.append(written(trained, tmp_path / "hopper", env="Hopper-v5"))
    path = write_report(runs)
    assert path == tmp_path / "report.html"
    tags = Tags(path.read_text())
    names = [a["data-name"] for a in tags.named("path") if "data-name" in a]
    assert {"fm2-0", "fm2-1", "rpsi-trpo-0", "rpsi-trpo-1", "hopper"} <= set(names)
    pressed = [a for a in tags.named("button") if a.get("aria-pressed") == "true"]
    assert [a["data-group"] for a in pressed] == ["0", "0", "1"]  # one in Hopper, two methods in the other
    assert len(tags.named("tr")) > 5
    assert 'class="mixed"' in path.read_text()


def test_seeds_of_one_method_get_colours_of_their_own(trained, tmp_path):
    for seed in (0, 1, 2):
        written(trained, tmp_path / "seeds" / f"s{seed}", seed=seed)
    path = write_report([tmp_path / "seeds"])
    assert path == tmp_path / "seeds" / "report.html"
    tags = Tags(path.read_text())
    colours = {a["style"] for a in tags.named("path") if a.get("class") == "line" and "data-name" in a}
    assert len(colours) == 3
    np.testing.assert_allclose(curve(tags, "s2")[1], 2 + 10.0 * np.arange(5), atol=0.05)


@pytest.mark.parametrize("iterations", [0, 1, 2])
def test_unfinished(trained, tmp_path, iterations):
    page = write_report([written(trained, tmp_path / "run", iterations=iterations)]).read_text()
    Tags(page)
    assert f"{iterations} of 5, unfinished" in page
    assert ("No iteration is finished yet" in page) == (iterations == 0)
    assert "No forecasts" in page and "holds no checkpoint" in page


def test_numbers_that_are_none_leave_gaps(trained, tmp_path):
    run = written(trained, tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[2] |= {"mean_return": float("nan"), "prediction_error": 0.0, "whole_kl": float("inf")}
    del lines[3]["whole_kl"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut of')
    tags = Tags(write_report([run]).read_text())
    path = next(a["d"] or "" for a in tags.named("path") if a.get("data-name") == "mean return")
    assert path.count("M") == 2 and "nan" not in path
    assert len(curve(tags, "KL")[0]) == 3


def test_everything_is_escaped(trained, tmp_path):
    evil = "<script>alert(1)</script>\"'&"
    run = written(trained, tmp_path / "<b>&\"'", observe=evil)
    config = json.loads((run / "config.json").read_text())
    config.pop("observe")
    config["sensors"]["observe"] = "0,1"
    (run / "config.json").write_text(json.dumps(config | {"env": evil}))
    (run / "command.txt").write_text(evil)
    (run / "versions.json").write_text(json.dumps({evil: evil}))
    (run / "results.json").write_text(
        json.dumps({"evaluation": {"mean_return": 1.0, "std_return": 0.0, "episodes": evil}})
    )
    for runs in ([run], [run, written(trained, tmp_path / "other")]):
        page = write_report(runs).read_text()
        assert len(Tags(page).named("script")) == 1 and "alert(1)</script>" not in page and "<b>&" not in page


@pytest.mark.parametrize(("suffix", "tag"), [("gif", "img"), ("mp4", "video")])
def test_video(trained, tmp_path, suffix, tag):
    run = written(trained, tmp_path / "run")
    (run / "video").mkdir()
    video = run / "video" / f"a #1.{suffix}"
    video.write_bytes(b"moving")
    assert Tags(write_report([run]).read_text()).named(tag)[0]["src"].endswith(";base64,bW92aW5n")
    with video.open("wb") as file:
        file.truncate(5_000_000)
    tags = Tags(write_report([run], tmp_path / "elsewhere.html").read_text())
    assert not tags.named(tag) and [a["href"] for a in tags.named("a")] == [f"run/video/a%20%231.{suffix}"]


def test_hundred_runs_fit_on_a_page(trained, tmp_path):
    for seed in range(100):
        written(trained, tmp_path / "all" / f"s{seed}", ("fm2", "gru32")[seed % 2], iterations=500, seed=seed)
    path = write_report([tmp_path / "all"])
    assert path.stat().st_size < 5_000_000


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", None, "rpsp train"),
        ("config.json", '{"source": "data.npz"}', "config.json"),
        ("config.json", "[1", "config.json"),
        ("metrics.jsonl", '{"iteration": 0}\n', "metrics.jsonl"),
        ("results.json", "[]", "results.json"),
    ],
)
def test_not_a_run(trained, tmp_path, capsys, name, content, words):
    run = written(trained, tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    if content is not None:
        (run / name).write_text(content)
    with pytest.raises(FileFormatError, match=re.escape(words)):
        write_report([run])
    with pytest.raises(SystemExit) as exit:
        main(["report", str(run)])
    assert exit.value.code == 3
    assert "Traceback" not in capsys.readouterr().err
    assert not (run / "report.html").exists()


def test_mistakes_of_usage(trained, tmp_path):
    with pytest.raises(FileFormatError, match="nowhere"):
        write_report([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="directories"):
        write_report([])
    with pytest.raises(UsageError, match="is a directory"):
        write_report([trained], tmp_path)


@pytest.mark.parametrize(
    "scale",
    [
        Scale.around([]),
        Scale.around([5.0]),
        Scale.around([-3.0, 1e7]),
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
    for task in TASKS.values():
        assert all("observation" not in n for n in observation_names(configured({"env": task.id}), len(task.visible)))


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_presets_are_the_papers_protocol(preset):
    config = configured(read_toml(preset), f"{preset.name}: ")
    task = TASKS[config.env or ""]
    assert config.sensors.observe == "positions" and config.settings.discount == 0.99
    found = config.max_episode_steps, config.samples, config.exploration_episodes, config.iterations
    assert found == (task.max_episode_steps, task.batch_samples, task.exploration_episodes, task.iterations)


def test_every_task_of_the_paper_has_a_preset():
    assert {read_toml(preset)["env"] for preset in PRESETS} == set(TASKS)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="Debian's chromium is not installed")
def test_in_a_browser(trained, tmp_path):
    """Hovering shows the numbers, the legend hides a method's curves in all charts; nothing is asked of the network."""
    for method in ("fm2", "rpsi-trpo"):
        written(trained, tmp_path / "all" / method, method)
    page = write_report([tmp_path / "all"]).read_text()
    poke = """<script>
      const plot = document.querySelector('.plot'), box = plot.getBoundingClientRect();
      plot.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width, clientY: box.top + 5}));
      document.querySelectorAll('.legend button')[1].click();
    </script></body>"""
    (tmp_path / "poked.html").write_text(page.replace("</body>", poke))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    shown = subprocess.run(
        [*command, "--dump-dom", (tmp_path / "poked.html").as_uri()], capture_output=True, text=True, timeout=60
    ).stdout
    tip = re.search(r'<div class="tip"[^>]*>(.*?)</div></div>', shown, re.S)
    assert tip and "environment steps 1500" in tip[1] and "<b>40</b>" in tip[0] + shown
    hidden = re.findall(r'<path class="[a-z]+ hidden" data-name="([^"]+)"', shown)
    assert hidden == ["rpsi-trpo", "rpsi-trpo, persistence", "rpsi-trpo", "rpsi-trpo"]
