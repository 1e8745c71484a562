"""Figures of results and of beliefs. Nothing in this package trains.

- `appearance`: colours, line styles, Matplotlib settings and saving.
- `bands`: predictive distributions.
- `curves`: learning curves, bar charts and sweeps, drawn from results.
- `forecasts`: what a belief predicts, compared with what happened.
"""

from rpsp.experiments.figures.appearance import (
    COLOURS,
    CYCLE,
    METHOD_STYLES,
    STYLE,
    Style,
    save,
    style,
    styled,
    styles,
    subplots,
)
from rpsp.experiments.figures.bands import calibration, continuation, surprise
from rpsp.experiments.figures.curves import (
    at_a_glance,
    bars,
    draw_comparison,
    learning_curves,
    prediction_over_training,
    sweep,
)
from rpsp.experiments.figures.forecasts import (
    Fan,
    agent_fan,
    agent_forecasts,
    coordinate_meaning,
    error_by_horizon,
    fan,
    prediction_fan,
)

__all__ = [
    "COLOURS",
    "CYCLE",
    "METHOD_STYLES",
    "STYLE",
    "Fan",
    "Style",
    "agent_fan",
    "agent_forecasts",
    "at_a_glance",
    "bars",
    "calibration",
    "continuation",
    "coordinate_meaning",
    "draw_comparison",
    "error_by_horizon",
    "fan",
    "learning_curves",
    "prediction_fan",
    "prediction_over_training",
    "save",
    "style",
    "styled",
    "styles",
    "subplots",
    "surprise",
    "sweep",
]
