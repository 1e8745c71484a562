"""Figures: every method has a look of its own, curves say what the records say, an agent's forecasts line up."""

from __future__ import annotations

import numpy as np
import pytest

import rpsp
from rpsp.experiments import figures
from rpsp.experiments.methods import METHODS
from rpsp.trajectories import as_episodes


def records(seed: int, iterations: int = 6) -> list[dict[str, float]]:
    """Metrics as a run leaves them."""
    rng = np.random.default_rng(seed)
    first = {"exploration_samples": 50.0, "prediction_error": 0.1, "persistence_error": 0.3}
    return [first] + [
        {
            "iteration": i,
            "samples": 100,
            "total_samples": 50 + 100 * (i + 1),
            "mean_return": 10.0 * i + rng.normal(),
            "prediction_error": 10.0**-i,
            "persistence_error": 0.3,
            "refit_accepted": float(i == 2),
        }
        for i in range(iterations)
    ]


def test_every_method_has_a_style_of_its_own():
    assert set(figures.METHOD_STYLES) == set(METHODS)
    assert len(set(figures.METHOD_STYLES.values())) == len(METHODS)
    assert figures.style("their.module:row", 1) != figures.style("their.module:other", 2)


def test_learning_curve_is_the_mean_over_runs_up_to_the_shortest(tmp_path):
    runs = {"rpsi-trpo": [records(0), records(1, 4)], "fm2": [records(2)], "gru32": [records(3, 0)]}
    figure = figures.learning_curve(runs, "Hopper")
    ours, theirs = figure.axes[0].lines
    expected = [np.mean([records(s)[1 + i]["mean_return"] for s in (0, 1)]) for i in range(4)]
    np.testing.assert_allclose(ours.get_ydata(), expected)
    np.testing.assert_allclose(ours.get_xdata(), [150, 250, 350, 450])
    assert len(theirs.get_xdata()) == 6
    assert ours.get_color() == figures.METHOD_STYLES["rpsi-trpo"].colour
    assert [t.get_text() for t in figure.axes[0].get_legend().get_texts()] == ["rpsi-trpo (2 runs)", "fm2"]
    assert figures.save(figure, tmp_path, "curve").stat().st_size > 5000
    assert (tmp_path / "curve.svg").exists()


def test_prediction_over_training_marks_refits():
    axes = figures.prediction_over_training(records(0)).axes[0]
    belief, persistence, refit = axes.lines
    np.testing.assert_allclose(belief.get_ydata(), 10.0 ** -np.arange(6))
    np.testing.assert_allclose(persistence.get_ydata(), 0.3)
    assert refit.get_xdata()[0] == 250  # the steps before the iteration that the refitted filter acted in
    assert axes.get_yscale() == "log"
    assert figures.prediction_over_training([]).axes[0].lines  # nothing yet is no mistake


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
    np.testing.assert_allclose(fan.bands[:, 0], np.quantile(errors, [0.05, 0.25, 0.75, 0.95], axis=0) * agent.scaling.scale,
                               atol=1e-5)  # fmt: skip
    figure = figures.prediction_fan(agent, episodes, 2, names=["cart", "pole"])
    assert [axes.get_ylabel() for axes in figure.axes] == ["cart", "pole"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "fm2"
    rpsp.train("InvertedPendulum-v5", "fm2", iterations=1, samples=200, exploration_episodes=10, out=out, verbose=False)
    return out
