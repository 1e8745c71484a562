"""Figures of the README and the docs: forecasts for a hopping Hopper, the tutorial, the Tiger problem."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

from benchmarks.fm2_data import trained_policy_data
from rpsp.experiments import figures
from rpsp.experiments.models import PredictiveStateModel

ROOT = Path(__file__).parents[1]
SVG = ("svg",)  # the repository keeps one format of each figure
NAMES = ["height", "torso angle", "thigh angle", "leg angle", "foot angle"]


def main() -> None:
    into = ROOT / "docs" / "figures"
    tutorial(into)
    tiger(into)
    episodes = trained_policy_data("Hopper-v5", iterations=50, samples=10_000, seed=0)
    fitting, shown = episodes[::2], episodes[1::2]
    model = PredictiveStateModel().fit(fitting)
    figures.save(figures.prediction_fan(model, shown, names=NAMES), into, "forecasts", formats=SVG)
    figures.save(
        figures.error_by_horizon(model.errors, "Hopper, positions only"), into, "error_by_horizon", formats=SVG
    )
    figures.save(figures.coordinate_meaning(model, shown, names=NAMES), into, "coordinates", formats=SVG)


def tutorial(into: Path) -> None:
    """Draw the figures of docs/tutorial.md by running its code."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            exec(compile("\n".join(blocks), "docs/tutorial.md", "exec"), {"__name__": "__main__"})
            for drawn in Path().glob("tutorial_*.svg"):
                (into / drawn.name).write_bytes(drawn.read_bytes())
        finally:
            os.chdir(before)


def tiger(into: Path) -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    import exact_belief  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as scratch:
        exact_belief.main(out=Path(scratch))
        (into / "exact_belief.svg").write_bytes((Path(scratch) / "exact_belief.svg").read_bytes())


if __name__ == "__main__":
    main()
