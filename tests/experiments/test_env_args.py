"""Arguments of environments and limits of actions as settings: how they are written, kept, named and used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rpsp
from rpsp.cli import main
from rpsp.cli.parsing import parse
from rpsp.errors import UsageError
from rpsp.experiments.agents import load
from rpsp.experiments.configure import configured
from rpsp.experiments.env_args import canonical, check, parsed
from rpsp.experiments.labels import task_label
from rpsp.experiments.results import read_results

AUTHORS = {"healthy_reward": 0, "forward_reward_weight": 10.0, "ctrl_cost_weight": 0}


def test_they_are_kept_as_sorted_strings_that_are_read_as_the_same_values() -> None:
    kept = "ctrl_cost_weight=0", "forward_reward_weight=10", "healthy_reward=0"
    assert canonical(AUTHORS) == canonical(kept[::-1]) == canonical(["forward_reward_weight=1e1", *kept[::2]]) == kept
    given = {"a": np.float32(0.5), "b": True, "c": "10", "d": "plain", "e": (1, 2.5), "f": np.int64(3), "g": "true"}
    plain = {"a": 0.5, "b": True, "c": "10", "d": "plain", "e": [1, 2.5], "f": 3, "g": "true"}
    assert parsed(canonical(given)) == plain
    assert [type(value) for value in parsed(canonical(given)).values()] == [float, bool, str, str, list, int, str]
    assert canonical(given) == ("a=0.5", "b=true", 'c="10"', "d=plain", "e=[1,2.5]", "f=3", 'g="true"')
    assert canonical(()) == canonical({}) == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["x"], "'x' has no value; give name=value"),
        (["x=1", "x=2"], "x is given twice"),
        (["2x=1"], "'2x' is not the name of an argument"),
        ({"x": None}, "x is None; give a finite number"),
        ({"x": float("inf")}, "x is inf; give a finite number"),
        (["x=NaN"], "x is nan; give a finite number"),
        (['x={"y": 1}'], "x is {'y': 1}; give a finite number"),
        ({"x": [[1]]}, "give a finite number, true or false, a string, or a list of numbers"),
        ("x=1", "'x=1' is neither a dict nor a list of strings"),
        (7, "7 is neither a dict nor a list of strings"),
    ],
)
def test_what_cannot_be_an_argument(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match="^env_args: .*" + said.replace("{", "\\{").replace("[", "\\[")):
        canonical(given)


@pytest.mark.parametrize("name", ["seed", "render_mode", "max_episode_steps", "obs_noise", "action_limit"])
def test_what_is_a_setting_of_its_own_is_none_of_them(name: str) -> None:
    with pytest.raises(UsageError, match=f"env_args: {name} cannot be given here"):
        check([f"{name}=1"])


def test_tasks_are_named_by_them() -> None:
    label = "Hopper-v5, ctrl_cost_weight=0, forward_reward_weight=10, healthy_reward=0"
    assert task_label({"env": "Hopper-v5", "env_args": AUTHORS}) == label
    assert task_label({"env": "Hopper-v5", "env_args": list(canonical(AUTHORS))}) == label
    assert task_label({"env": "Hopper-v5", "env_args": []}) == task_label({"env": "Hopper-v5"}) == "Hopper-v5"
    assert task_label({"env": "InvertedPendulum-v5", "action_limit": 1.0}) == "InvertedPendulum-v5, action_limit=1"
    both = {"env": "Hopper-v5", "obs_noise": 0.1, "env_args": ["frame_skip=2"]}
    assert task_label(both) == "Hopper-v5, obs_noise=0.1, frame_skip=2"


def test_flags_python_and_toml_agree(tmp_path: Path) -> None:
    words = [f"{name}={value:g}" for name, value in AUTHORS.items()]
    by_flag = parse(["train", "Hopper-v5", "--env-args", *words, "--action-limit", "0.5"]).sensors
    file = tmp_path / "hopper.toml"
    file.write_text(
        'env = "Hopper-v5"\naction_limit = 0.5\n[env_args]\n' + "".join(f"{n} = {v}\n" for n, v in AUTHORS.items()),
        encoding="utf-8",
    )
    by_file = parse(["train", "--config", str(file)]).sensors
    in_python = configured({"env": "Hopper-v5", "action_limit": 0.5, "env_args": AUTHORS}).sensors
    assert canonical(by_flag.env_args) == by_file.env_args == in_python.env_args == canonical(AUTHORS)
    assert by_flag.action_limit == by_file.action_limit == in_python.action_limit == 0.5
    with pytest.raises(
        UsageError, match="env_args: is given more than once; give several arguments as --env-args first=1"
    ):
        parse(["train", "Hopper-v5", "--env-args", "frame_skip=2", "--env-args", "healthy_reward=0"])


def test_a_run_with_them_from_training_to_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Cart-pole as the authors' (actions within ±1), with a wider start: every command makes the same environment."""
    monkeypatch.chdir(tmp_path)
    tiny: dict[str, Any] = {"iterations": 1, "samples": 60, "exploration_episodes": 4, "max_episode_steps": 20}
    given = {"action_limit": 1.0, "env_args": {"reset_noise_scale": 0.02}}
    run = rpsp.train("InvertedPendulum-v5", "fm2", **tiny, **given, out="run", threads=1, verbose=False)
    kept = json.loads((run.directory / "config.json").read_text(encoding="utf-8"))["sensors"]
    assert kept["action_limit"] == 1.0 and kept["env_args"] == ["reset_noise_scale=0.02"]
    (result,) = read_results([run.directory])[0]
    assert result.task == "InvertedPendulum-v5, action_limit=1, reset_noise_scale=0.02"

    agent = load(run.directory)
    envs = agent.environments(2)
    space = envs.single_action_space
    assert (space.low, space.high) == (-1, 1)
    expected = rpsp.make("InvertedPendulum-v5", 2, reset_noise_scale=0.02)
    np.testing.assert_array_equal(envs.reset(seed=3)[0], expected.reset(seed=3)[0])
    played = agent.evaluate(2, deterministic=False)
    assert all(np.abs(episode.actions).max() <= 1 for episode in played.episodes)
    action, _ = agent.predict(np.array([50.0, -50.0]))
    assert np.abs(action) <= 1

    main(["export", "run", "--quiet", "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["largest_difference"] < 1e-4
    main(["resume", "run", "--iterations", "2", "--quiet"])
    path = run.directory / "config.json"
    path.write_text(
        path.read_text(encoding="utf-8").replace('"action_limit": 1.0', '"action_limit": 0.5'), encoding="utf-8"
    )
    with pytest.raises(SystemExit) as exit:
        main(["resume", "run", "--iterations", "3"])
    assert exit.value.code == 2 and "its action space is Box(-0.5, 0.5" in capsys.readouterr().err


def test_arguments_that_do_not_fit_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for command, argument, said in (
        ("train", "nosuch=1", "nosuch: Hopper-v5 has no such argument"),
        ("train", "seed=1", "env_args: seed cannot be given here"),
        ("fit", "seed=1", "env_args: seed cannot be given here"),
        ("fit", "frame_skip", "env_args: 'frame_skip' has no value"),
    ):
        with pytest.raises(SystemExit) as exit:
            main([command, "Hopper-v5", "--env-args", argument])
        error = capsys.readouterr().err
        assert exit.value.code == 2 and said in error and len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())
