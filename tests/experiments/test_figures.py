"""Figures: every method has a look of its own, curves say what the records say, an agent's forecasts line up."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import rpsp
from rpsp.data.episodes import as_episodes
from rpsp.errors import UsageError
from rpsp.experiments import figures
from rpsp.experiments.comparison import compare
from rpsp.experiments.figures import curves
from rpsp.experiments.labels import method_label, task_label
from rpsp.experiments.methods import METHODS
from rpsp.experiments.paper import PEERS
from rpsp.experiments.results import Result


def result(method: str, seed: int, iterations: int = 6, task: str = "Hopper-v5", **settings: object) -> Result:
    """A result as a run leaves it: 50 steps of exploration, 100 an iteration, a return that grows by ten."""
    given = {"env": task, "method": method, "seed": seed, **settings}
    time = np.arange(iterations, dtype=float)
    return Result(
        task=task_label(given),
        method=method_label(given),
        seed=seed,
        settings=given,
        versions={},
        steps=150 + 100 * time,
        returns=10 * time + np.random.default_rng(seed).normal(size=iterations),
        prediction_errors=10.0**-time,
        persistence_errors=np.full(iterations, 0.3),
        iterations=6,
        finished=iterations == 6,
        failure="",
        seconds=1.0,
        source=Path("runs"),
    )


def legend(figure: Figure) -> list[str]:
    found = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    return [text.get_text() for one in found if one for text in one.get_texts()]


KEEPS_MATPLOTLIB = """
import sys
from pathlib import Path
import matplotlib
if sys.argv[2:]:
    matplotlib.use(sys.argv[2])
before = {name: matplotlib.rcParams._get(name) for name in matplotlib.rcParams}
from rpsp.experiments import figures
saved = figures.save(figures.error_by_horizon({"inference": [0.1, 0.2]}), Path(sys.argv[1]), "errors")
after = {name: matplotlib.rcParams._get(name) for name in matplotlib.rcParams}
assert saved.stat().st_size > 5000
print([name for name in after if after[name] != before[name]])
print([name for name in ("matplotlib.pyplot",) if name in sys.modules])
"""


@pytest.mark.parametrize("backend", [[], ["svg"]])
def test_matplotlib_is_left_as_the_user_has_it(backend: list[str], tmp_path: Path) -> None:
    """Neither importing the module nor drawing changes the back end or a setting of the user's program."""
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    command = [sys.executable, "-c", KEEPS_MATPLOTLIB, str(tmp_path), *backend]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")
    assert (done.stdout, done.returncode) == ("[]\n[]\n", 0), done.stderr


def test_every_method_has_a_style_of_its_own():
    assert set(figures.METHOD_STYLES) == {*METHODS, *PEERS.values()}
    assert len(set(figures.METHOD_STYLES.values())) == len(figures.METHOD_STYLES)
    assert figures.style("their.module:row", 1) != figures.style("their.module:other", 2)


def test_variants_of_a_method_can_be_told_apart():
    methods = ["fm2", "rpsp-alt", *(f"rpsp-alt, dimension={d}" for d in (10, 20, 30, 40, 50)), "their.module:row"]
    methods += ["fm2, window=3", "fm2-ppo", "fm2-ppo, clip=0.1"]  # which share a colour
    looks = figures.styles(methods)
    assert len(set(looks.values())) == len(methods)
    assert looks["rpsp-alt"] == figures.METHOD_STYLES["rpsp-alt"]
    assert looks["rpsp-alt, dimension=10"] == figures.style("rpsp-alt, dimension=10")


def test_learning_curve_is_the_mean_over_runs_up_to_the_shortest(tmp_path):
    runs = [result("rpsi-trpo", 0), result("rpsi-trpo", 1, 4), result("fm2", 2), result("gru32", 3, 0)]
    figure = figures.learning_curves(runs, note="scale 0.1, 2 seeds")
    axes = figure.axes[0]
    ours, theirs = axes.lines
    two = np.stack([run.returns[:4] for run in runs[:2]])
    np.testing.assert_allclose(ours.get_ydata(), two.mean(axis=0))
    np.testing.assert_allclose(ours.get_xdata(), [150, 250, 350, 450])
    band = axes.collections[0].get_paths()[0].get_extents()
    assert band.ymax == pytest.approx((two.mean(axis=0) + stats.sem(two, axis=0)).max())
    assert len(theirs.get_xdata()) == 6
    assert ours.get_color() == figures.METHOD_STYLES["rpsi-trpo"].colour
    assert legend(figure) == ["rpsi-trpo (2 runs)", "fm2"]
    assert axes.get_title(loc="left") == "Hopper-v5"
    assert [text.get_text() for text in figure.texts] == ["scale 0.1, 2 seeds"]
    assert figures.save(figure, tmp_path, "curve").stat().st_size > 5000
    assert "scale 0.1" in figure.texts[0].get_text() and (tmp_path / "curve.svg").exists()


def test_long_curves_are_averaged_over_neighbouring_iterations():
    long = result("rpsi-sac", 0, 2 * curves.MOST_POINTS + 1)  # three at a time, and one is left over
    (line,) = figures.learning_curves([long]).axes[0].lines
    *whole, rest = line.get_ydata()
    np.testing.assert_allclose(whole, long.returns[:-1].reshape(-1, 3).mean(axis=1))
    assert rest == pytest.approx(long.returns[-1])
    np.testing.assert_allclose(line.get_xdata()[:-1], long.steps[:-1].reshape(-1, 3).mean(axis=1))


def test_learning_curves_of_several_tasks_share_one_legend():
    runs = [
        result(m, s, task=t)
        for m in ("fm2", "gru32")
        for s in (0, 1)
        for t in ("Hopper-v5", "Swimmer-v5", "Walker2d-v5")
    ]
    figure = figures.learning_curves(runs[:-1])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Hopper-v5", "Swimmer-v5", "Walker2d-v5"]
    assert legend(figure) == ["fm2 (2 runs)", "gru32 (1 to 2 runs)"]


def test_prediction_over_training_is_drawn_beside_persistence():
    axes = figures.prediction_over_training([result("rpsi-trpo", 0), result("fm2", 0)]).axes[0]
    belief, persistence, *_ = axes.lines
    np.testing.assert_allclose(belief.get_ydata(), 10.0 ** -np.arange(6))
    np.testing.assert_allclose(persistence.get_ydata(), 0.3)
    assert belief.get_color() == persistence.get_color() == figures.METHOD_STYLES["rpsi-trpo"].colour
    assert axes.get_yscale() == "log"
    assert not figures.prediction_over_training([]).axes[0].lines  # nothing yet is no mistake


def test_bars_mark_the_reference_and_what_differs_from_it():
    runs = [result("fm2", s) for s in range(5)] + [result("gru32", s) for s in range(5, 10)]
    runs += [dataclasses.replace(r, method="fm1", returns=r.returns - 50) for r in runs[:5]]
    found = compare(runs, against="fm2")
    axes = figures.bars(found.rows).axes[0]
    assert sorted(bar.get_width() for bar in axes.patches) == sorted(row.area for row in found.rows)
    marks = {
        tick.get_text().split()[0]: mark.get_text()
        for tick, mark in zip(axes.get_yticklabels(), axes.texts, strict=True)
    }
    assert marks == {"fm2": "◆", "gru32": "", "fm1": "***"}


def test_sweep_over_one_setting_is_a_line_a_method():
    runs = [result(m, s, obs_noise=noise) for noise in (0.2, 0.0, 0.1) for m in ("fm2", "gru32") for s in (0, 1)]
    figure = figures.sweep(runs, ["obs_noise"], "final")
    (axes,) = figure.axes  # the levels of noise are tasks of their own, but not panels
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.1", "0.2"]
    expected = np.mean([run.returns.mean() for run in runs[:2]])
    np.testing.assert_allclose(axes.lines[0].get_ydata(), expected)
    assert legend(figure) == ["fm2 (2 runs)", "gru32 (2 runs)"]


def test_sweep_over_two_settings_is_a_heat_map():
    runs = [result("rpsp-alt", s, 4 if d == 20 else 6, dimension=d, learning_rate=r)
            for d in (30, 10, 20) for r in (0.1, 0.01) for s in (0, 1) if (d, r) != (10, 0.1)]  # fmt: skip
    axes = figures.sweep(runs, ["dimension", "learning_rate"]).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["10", "20", "30"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0.01", "0.1"]
    shown = axes.images[0].get_array()
    area = np.mean([run.returns[:4].sum() for run in runs[:2]])  # over as many iterations as the shortest has
    np.testing.assert_allclose(np.ma.filled(shown, np.nan), [[area, area, area], [np.nan, area, area]])
    assert legend(figures.sweep(runs, ["dimension"]))[0] == "rpsp-alt, learning_rate=0.1 (2 runs)"
    other = result("rpsp-alt", 2, dimension=10, learning_rate=0.1, samples=9)
    with pytest.raises(UsageError, match="differ in samples as well as in dimension"):
        figures.sweep([other, dataclasses.replace(other, settings=other.settings | {"samples": 8})], ["dimension"])
    with pytest.raises(UsageError, match="one or two settings"):
        figures.sweep(runs, [])


def test_a_comparison_draws_what_was_swept(tmp_path):
    runs = [result("rpsp-alt", s, dimension=d) for d in (10, 20) for s in (0, 1)] + [result("fm2", s) for s in (0, 1)]
    paths = figures.draw_comparison(compare(runs, select=True), tmp_path)
    assert [path.name for path in paths] == ["learning.png", "prediction.png", "auc.png", "sweep_dimension.png"]
    assert all(path.stat().st_size > 5000 and path.with_suffix(".svg").exists() for path in paths)
    odd = [result("mine:$\\frac$", s, task="a long name " * 9 + "$^$") for s in (0, 1)]
    assert len(figures.draw_comparison(compare(odd), tmp_path)) == 3


def test_fan_of_perfect_forecasts_is_the_truth():
    rng = np.random.default_rng(0)
    episodes = as_episodes([(rng.normal(size=(n + 1, 2)), rng.normal(size=(n, 1))) for n in (30, 40, 3)])

    def oracle(episode: rpsp.Episode, horizon: int) -> np.ndarray:
        starts = np.arange(len(episode) - horizon + 1)
        return episode.observations[starts[:, None] + 1 + np.arange(horizon)]

    fan = figures.fan(oracle, episodes, 5)
    assert fan.truth.shape == (41, 2) and fan.predicted.shape == (36, 5, 2)
    assert not fan.bands.any()
    assert all(t + 5 < len(fan.truth) for t in fan.moments) and len(fan.moments) > 2


def test_agent_fan_decodes_what_the_filter_forecasts(trained):
    agent = rpsp.load(trained)
    episodes = agent.evaluate(3, deterministic=False).episodes
    fan = figures.agent_fan(agent, episodes, 1)
    shown = max(episodes, key=len)
    np.testing.assert_allclose(fan.truth, agent.scaling.decode(shown.observations))
    # One step ahead, a window that was not fitted predicts what it last saw.
    np.testing.assert_allclose(fan.predicted[:, 0], fan.truth[:-1], atol=1e-5)
    errors = np.concatenate([np.diff(e.observations, axis=0) for e in episodes])
    quantiles = np.quantile(errors, [0.05, 0.25, 0.75, 0.95], axis=0) * agent.scaling.scale
    np.testing.assert_allclose(fan.bands[:, 0, 0], quantiles, atol=1e-5)
    figure = figures.prediction_fan(agent, episodes, 2, names=["cart", "pole"])
    assert [axes.get_ylabel() for axes in figure.axes] == ["cart", "pole"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "fm2"
    rpsp.train("InvertedPendulum-v5", "fm2", iterations=1, samples=200, exploration_episodes=10, out=out, verbose=False)
    return out
