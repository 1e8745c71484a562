"""Settings of 0.4.0, where every method had all settings, mean today what they meant then."""

from __future__ import annotations

from typing import Any

import pytest
import tasks

from rpsp.algorithms.trpo import Trpo
from rpsp.experiments.configure import configured
from rpsp.experiments.methods import METHODS, Method
from rpsp.experiments.upgrade import IN_0_4_0, upgraded

FILE: dict[str, Any] = dict.fromkeys(IN_0_4_0) | {
    "discount": 0.9, "hidden": [16], "log_std": 0.0, "max_kl": 0.02, "damping": 0.1, "learning_rate": 1e-3, "past": None,
    "policy_rate": 1.0, "return_weight": 1.0, "prediction_weight": 1.0, "filter_kl": 0.02, "truncate": 50, "future": 3,
    "random": False, "window": 2, "units": 32, "plus_obs": 0, "refit_before": [], "refit_batches": 3, "refit_kl": 0.1,
    "refit_samples": 20_000, "refit_above": 0.1, "renew_units": False, "gae": 0.95, "clip": 0.2, "passes": 10,
    "minibatch": 256, "entropy_weight": 0.0, "normalise": False, "scale_rewards": True, "bootstrap": True, "ratio": 1.0,
    "capacity": 300_000, "recompute": False, "normed": False,
}  # fmt: skip
"""The settings of a method in a config.json of 0.4.0, some of which are not the defaults."""


@pytest.mark.parametrize("name", METHODS)
def test_a_file_of_0_4_0_has_the_settings_that_its_method_read(name: str) -> None:
    row = METHODS[name]
    settings = configured({"method": name, **upgraded(FILE, row.known)}).settings
    assert settings.discount == 0.9
    if "future" in row.known:
        assert settings.future == 3 and settings.past == row.settings().past, "null is the default of the filter"
    if "normalise" in row.known:  # PPO alone read it
        assert settings.normalise == ("gae" not in row.known)
    row.with_settings(settings)


def test_settings_of_today_stay_as_they_are() -> None:
    flat = {"method": "fm2", "normalise": False, "window": 3}
    assert upgraded(flat, METHODS["fm2"].known) == flat
    assert upgraded({"nonsense": 1}, METHODS["fm2"].known) == {"nonsense": 1}, "which is refused later"


def test_the_composition_tells_what_moves_and_not_the_settings() -> None:
    """The table of speeds has a row for each."""
    assert Method("mine", tasks.Tracing(), Trpo(max_kl=0.5)).composition == "tracing, trpo"
    assert METHODS["gru16"].composition == METHODS["gru32"].composition == "gru, trpo through time"
