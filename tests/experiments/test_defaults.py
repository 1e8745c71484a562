"""The default method: by action space and budget, in Python and on the command line."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import rpsp
from rpsp.cli.parsing import parse
from rpsp.experiments.configure import configured
from rpsp.experiments.defaults import CHOICES, CONTINUOUS, DISCRETE, FEW_STEPS, LONG, choice
from rpsp.experiments.methods import METHODS
from rpsp.experiments.runs import start

TINY = {"iterations": 1, "exploration_samples": 400, "samples": 200, "max_episode_steps": 100, "past": 3, "future": 2}


def test_the_rule():
    bounded, free = Box(-1, 1, (2,), np.float32), Box(-np.inf, np.inf, (2,), np.float32)
    assert choice(bounded) is choice(bounded, FEW_STEPS) is CONTINUOUS
    assert choice(bounded, FEW_STEPS + 1) is choice(free) is LONG
    assert choice(Discrete(3)) is choice(Discrete(3), 10 * FEW_STEPS) is DISCRETE


def test_every_choice_is_a_row_of_the_table_with_settings_that_it_has():
    for chosen in CHOICES:
        method = METHODS[chosen.method].with_settings(METHODS[chosen.method].settings(**chosen.settings))
        assert method.algorithm.squashed == (chosen is CONTINUOUS)


def test_a_configuration_without_a_method_gets_the_default_and_what_is_given_stays():
    found = configured({"env": "Pendulum-v1", "learning-rate": 0.002})
    assert (found.method, found.settings.pink_noise, found.settings.learning_rate) == ("rpsi-sac", 1.0, 0.002)
    assert found.chosen == CONTINUOUS.when
    assert configured({"env": "Pendulum-v1", "pink_noise": 0.25}).settings.pink_noise == 0.25
    assert configured({"env": "Pendulum-v1", "steps": 2 * FEW_STEPS}).method == "rpsi-ppo"
    assert configured({"env": "CartPole-v1", "method": "auto"}).settings.entropy_weight == 0.01
    named = configured({"env": "Pendulum-v1", "method": "rpsi-sac"})
    assert (named.settings.pink_noise, named.chosen) == (0.0, "")
    assert (
        configured({"env": "LunarLander-v99"}).chosen == DISCRETE.when
    )  # what cannot be made fails later, with its reason


def test_arguments_of_the_environment_count():
    gymnasium.register("Either-v0", lambda continuous: gymnasium.make("Pendulum-v1" if continuous else "CartPole-v1"))
    try:
        for continuous, expected in ((True, "rpsi-sac"), (False, "rpsi-ppo")):
            assert configured({"env": "Either-v0", "env_args": {"continuous": continuous}}).method == expected
    finally:
        del gymnasium.registry["Either-v0"]


@pytest.mark.parametrize(
    "words",
    [
        "Pendulum-v1 --steps 3000",
        "--out runs/CartPole-v0 --steps 3000 --quiet Pendulum-v1",
        "Pendulum-v1 --method auto --steps=3000",
    ],
)
def test_on_the_command_line(words: str):
    config = parse(["train", *words.split()])
    assert (config.env, config.steps, config.chosen) == ("Pendulum-v1", 3000, CONTINUOUS.when)
    assert (config.method, config.settings.pink_noise) == ("rpsi-sac", 1.0)


def test_the_command_line_knows_the_budget_and_the_arguments():
    assert parse(["train", "Pendulum-v1", "--steps", str(2 * FEW_STEPS)]).method == "rpsi-ppo"
    config = parse(["train", "CartPole-v1", "--env-args", "sutton_barto_reward=true", "--entropy-weight", "0"])
    assert (config.method, config.settings.entropy_weight) == ("rpsi-ppo", 0.0)


def test_an_environment_in_a_module_or_a_file_is_found(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('env = "Pendulum-v1"\n')
    assert parse(["train", "--config", str(file), "--seed", "1"]).method == "rpsi-sac"
    assert parse(["train", "--quiet", "gymnasium.envs.classic_control:Pendulum-v1"]).method == "rpsi-sac"


def test_a_run_says_what_it_trains_and_a_function_can_make_the_environment(tmp_path):
    said: list[str] = []
    config = configured({"env": "Pendulum-v1", **TINY, "out": str(tmp_path / "one")})
    start(config, said.append, lambda record, pace: None)
    assert said[0].startswith("trains rpsi-sac, ") and ", pink_noise=1, " in said[0]
    assert ": the default for continuous actions" in said[0]
    made = rpsp.train(lambda: gymnasium.make("CartPole-v1"), out=tmp_path / "two", verbose=False, **TINY)
    assert '"method": "rpsi-ppo"' in (made.directory / "config.json").read_text()
