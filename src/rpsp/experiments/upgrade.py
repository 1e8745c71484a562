"""Settings of 0.4.0, where every method had all settings, as those of the method itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rpsp.experiments.settings import Setting

IN_0_4_0 = (
    "discount", "hidden", "log_std", "max_kl", "damping", "learning_rate", "policy_rate", "return_weight",
    "prediction_weight", "filter_kl", "truncate", "past", "future", "dimension", "epochs", "random", "window", "units",
    "plus_obs", "refit_before", "refit_batches", "refit_samples", "refit_above", "refit_kl", "renew_units", "gae",
    "clip", "passes", "minibatch", "entropy_weight", "normalise", "scale_rewards", "bootstrap", "anneal", "ratio",
    "capacity", "recompute", "normed",
)  # fmt: skip
"""All settings of a method in 0.4.0, in the order in which labels show them. A method ignored those that it did not use."""
READ_BY_PPO_ALONE = "normalise", "scale_rewards"
"""Settings that only PPO read in 0.4.0, and that other algorithms have now."""
FROM_THE_FILTER = "past", "future", "dimension", "epochs"
"""Settings that 0.4.0 wrote as null if the filter's default applied."""


def upgraded(flat: Mapping[str, Any], known: Mapping[str, Setting]) -> dict[str, Any]:
    """Return flat settings without those that the method does not have. Settings of today's version are unchanged.

    Args:
        flat: flat settings from a config.json or a result file.
        known: the settings of the method.
    """
    kept = {name: value for name, value in flat.items() if name in known or name not in IN_0_4_0}
    if "gae" in flat and "gae" not in known:  # a file of 0.4.0, of a method other than PPO
        for name in READ_BY_PPO_ALONE:
            kept.pop(name, None)
    null = [name for name in FROM_THE_FILTER if name in kept and kept[name] is None]
    return kept | {name: known[name].value for name in null}


RENAMED = {"size": "units"}
"""Settings of a model of 0.4.0 that have another name now: the GRU's."""


def upgraded_model(extra: Mapping[str, Any], known: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the settings in a file of a `PredictiveStateModel`. Those of today's version are unchanged.

    In 0.4.0 every model could be refined, and the number of epochs stood beside the settings.

    Args:
        extra: the JSON beside the model's arrays.
        known: the settings of the belief.
    """
    if "epochs" not in extra:
        return dict(extra["settings"])
    flat = dict(extra["settings"])
    for before, now in RENAMED.items():
        if before in flat:
            flat[now] = flat.pop(before)
    return flat | ({"epochs": extra["epochs"]} if "epochs" in known else {})
