"""What objects look like in a notebook, and what `help(rpsp.train)` lists."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
import xml.dom.minidom
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import trained
from processes import TINY

import rpsp
from rpsp.experiments.config import Sensors, TrainConfig
from rpsp.experiments.finished_runs import Runs
from rpsp.experiments.methods import METHODS
from rpsp.experiments.notebooks import LiveCurve, curve, in_notebook
from rpsp.experiments.settings_help import ARGUMENTS


def parsed(html: str) -> str:
    """The text of well-formed HTML."""
    document = xml.dom.minidom.parseString(f"<all>{html}</all>")
    return " ".join(
        node.data
        for node in document.documentElement.getElementsByTagName("*")
        for node in node.childNodes
        if node.nodeType == node.TEXT_NODE
    )


def points(html: str) -> list[tuple[float, ...]]:
    found = re.search('points="([^"]*)"', html)
    assert found is not None
    return [tuple(map(float, point.split(","))) for point in found[1].split()]


def test_a_run_and_its_agent_show_what_they_are(tmp_path: Path) -> None:
    run = trained(tmp_path / "<run>", 3)
    text = parsed(run._repr_html_())
    assert "fm2 on tasks:Drift-v0, seed 0" in text and "<run>" in text
    assert len(points(run._repr_html_())) == 3
    assert parsed(Runs(tmp_path, {}, (run, run))._repr_html_()).count("fm2 on") == 2
    shown = parsed(run.agent._repr_html_())
    assert "3 iterations, seed 0" in shown and "Box" in shown


def test_a_model_shows_its_errors() -> None:
    model = rpsp.PredictiveStateModel("inference", past=2, future=2)
    assert "not fitted yet" in parsed(model._repr_html_())
    rng = np.random.default_rng(0)
    model.fit([(np.cumsum(rng.normal(size=(30, 1)), axis=0), rng.normal(size=(29, 1))) for _ in range(12)])
    text = parsed(model._repr_html_())
    assert "one-step error, inference" in text and "one-step error, persistence" in text


def test_a_curve_is_drawn_to_scale_without_what_is_not_finite() -> None:
    found = points(curve([0, 1, 2, 4], [1.0, float("nan"), 3.0, 2.0], "steps", "return"))
    assert len(found) == 3
    (x0, y0), (x1, y1), (x2, y2) = found
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11) and y0 - y1 == pytest.approx(2 * (y2 - y1), abs=0.11) and y1 < y0
    log = points(curve([0, 1, 2, 3], [0.0, 1e-4, 1e-3, 1e-2], "steps", "error", log=True))
    assert len(log) == 3 and log[0][1] - log[1][1] == pytest.approx(log[1][1] - log[2][1], abs=0.11)
    assert curve([0], [float("inf")], "a", "b") == "" and len(points(curve(range(9999), [1.0] * 9999, "a", "b"))) < 500


class Handle:
    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, html: Any) -> None:
        self.shown.append(html)


def test_a_run_in_a_notebook_draws_its_curve(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    assert not in_notebook()
    handle = Handle()
    shell = type("ZMQInteractiveShell", (), {})()
    display = types.SimpleNamespace(HTML=str, display=lambda html, display_id: handle.shown.append(html) or handle)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("rpsp.experiments.notebooks.PERIOD", 0.0)
    rpsp.train("tasks:Drift-v0", "fm2", out=tmp_path / "run", iterations=3, **TINY)  # pyright: ignore
    assert "exploring" in handle.shown[0] and len(handle.shown) == 5
    assert [len(points(html)) for html in handle.shown[1:]] == [1, 2, 3, 3]
    assert "steps/s" not in capsys.readouterr().out, "no line per iteration"
    assert isinstance(LiveCurve("<x>"), LiveCurve) and "&lt;x&gt;" in handle.shown[-1]


def test_help_lists_every_setting_with_its_default() -> None:
    text = inspect.getdoc(rpsp.train) or ""
    names = {f.name for cls in (TrainConfig, Sensors) for f in dataclasses.fields(cls)} - ARGUMENTS
    for name in names | {name for row in METHODS.values() for name in row.known}:
        assert re.search(rf"^ +{name} = ", text, re.MULTILINE), name
    entry = re.search(r"^ +learning_rate = (.*?)\n +[A-Z]", text, re.MULTILINE | re.DOTALL)
    assert entry is not None and "0.0003: rpsi-ppo, fm2-ppo" in " ".join(entry[1].split())
    assert max(map(len, text.splitlines())) <= 120
