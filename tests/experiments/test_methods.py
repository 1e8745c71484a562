"""Every row of the table: it builds, trains, acts on the states it trains on, and moves nothing that it should not."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
import tasks
from processes import PATH
from rpsp.experiments.recipes import BELIEFS, UPDATES, recipe, unused

import rpsp
from rpsp.algorithms.policies import Agent
from rpsp.cli import main
from rpsp.data.batches import pack
from rpsp.errors import FileFormatError
from rpsp.experiments import checkpoints
from rpsp.experiments.methods import METHODS, MethodSettings
from rpsp.experiments.resolve import read_config
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.runs import Run, ingredients
from rpsp.filters.base import Concatenated, compiled_unroll
from rpsp.training.rollouts import collect

TINY: dict[str, Any] = {
    "samples": 200,
    "exploration_episodes": 20,
    "max_episode_steps": 40,
    "threads": 1,
    "verbose": False,
}
SMALL: dict[str, dict[str, Any]] = {  # so that each compiles and fits as fast as it can
    "kernel_bayes": {"dimension": 5, "past": 3, "future": 3, "epochs": 2},
    "inference": {"past": 4, "future": 3},
    "gru": {"epochs": 2, "units": 8},
    "finite_memory": {},
}
WHOLE = [name for name in METHODS if name != "tabular"]  # tabular is for symbols: see test_agents


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(name: str, out: Path, iterations: int = 2, **settings: Any) -> Run:
    row = METHODS[name]
    small = {k: v for k, v in SMALL[str(row.belief)].items() if k not in row.defaults}
    if row.update == "off_policy":
        small |= {"minibatch": 64, "capacity": 2000}  # a batch is less than the usual minibatch
    return rpsp.train("InvertedPendulum-v5", name, out=out, iterations=iterations, **(TINY | small | settings))


def arrays(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))


def checkpoint(run: Run, number: int) -> Agent:
    return RunDirectory(run.directory).agent(number)[0]


# ---------------------------------------------------------------------------------------------------------------------
# The table
# ---------------------------------------------------------------------------------------------------------------------


def test_the_table_has_every_method_of_the_paper_and_ours() -> None:
    papers = {
        "rpsp-vrpg", "rpsp-vrpg+obs", "rpsp-alt", "rpsp-alt+obs", "fix-psr", "reactive-psr", "random-psr", "fm1", "fm2",
        "fm5", "gru16", "gru32", "gru64", "gru128", "reg-gru", "reg-gru-vrpg",
    }  # fmt: skip
    ours = {"rpsi-trpo", "rpsi-alt", "rpsi-ppo", "rpsi-sac"}
    assert papers | ours | {"tabular"} <= set(METHODS)
    assert all(METHODS[name].ours for name in ours) and not any(METHODS[name].ours for name in papers)
    known = {field.name for field in dataclasses.fields(MethodSettings)}
    for name, row in METHODS.items():
        assert row.name == name and row.about and set(row.defaults) <= known
        assert row.belief in BELIEFS and row.update in UPDATES


@pytest.mark.parametrize("name", METHODS)
def test_every_row_uses_the_settings_that_it_sets(name: str) -> None:
    row = METHODS[name]
    assert unused(dataclasses.replace(row, defaults={}), row.settings()) == []


def test_settings_that_nothing_reads_are_named() -> None:
    given = {"clip": 0.5, "units": 7, "window": 3, "past": 9, "max_kl": 0.5, "plus_obs": 2, "hidden": (3,)}
    assert unused(METHODS["rpsi-trpo"], METHODS["rpsi-trpo"].settings(**given)) == ["window", "units", "clip"]
    assert unused(METHODS["gru32"], METHODS["gru32"].settings(**given)) == ["past", "window", "clip"]
    assert unused(METHODS["fm2-ppo"], METHODS["fm2-ppo"].settings(**given)) == ["max_kl", "past", "units"]


@pytest.mark.parametrize("name", METHODS)
def test_every_row_builds_a_recipe(name: str) -> None:
    row = METHODS[name]
    settings = row.settings()
    built, min_length = recipe(row, settings)
    assert (built.refit is not None) == bool(settings.refit_before) and min_length >= 1
    assert row.settings(max_kl=0.5).max_kl == 0.5
    if row.belief in ("kernel_bayes", "inference"):
        assert recipe(row, row.settings(future=7))[1] == 8, "exploration must be as long as a window"
        assert recipe(row, row.settings(refit_before=(3,)))[0].refit is not None
        assert recipe(row, row.settings(refit_before=()))[0].refit is None


def test_settings_reach_ppo() -> None:
    given = {
        "learning_rate": 1e-4, "clip": 0.1, "minibatch": 32, "discount": 0.9, "gae": 0.8, "entropy_weight": 0.01,
        "hidden": (3, 4), "normalise": False, "scale_rewards": False, "bootstrap": False, "anneal": 7,
    }  # fmt: skip
    algorithm: Any = UPDATES["proximal"](METHODS["rpsi-ppo"].settings(**given, passes=2))
    assert {name: getattr(algorithm, name) for name in given} == given and algorithm.epochs == 2


# ---------------------------------------------------------------------------------------------------------------------
# Training with them
# ---------------------------------------------------------------------------------------------------------------------


def check(name: str, run: Run) -> None:
    """What must hold of any row after two iterations."""
    row, records = METHODS[name], run.metrics
    assert len(records) == 2
    assert all(np.isfinite(value) for record in records for value in record.values())
    begun, first, last = (checkpoint(run, n) for n in (0, 1, 2))
    assert not same(begun.policy, first.policy) and not same(first.policy, last.policy)
    # The filter moves exactly if the update says so, or a refit was taken.
    cooked, amounts = ingredients(read_config(run.directory))
    moves = cooked.algorithm.moves_filter(begun)
    assert moves == (row.update in ("joint", "alternating", "through_time"))
    # Of a policy whose output layer is still zero, no gradient reaches the filter.
    assert same(begun.filter, first.filter) != (moves and row.update != "through_time")
    refitted = records[1].get("refit_accepted") == 1
    assert same(first.filter, last.filter) != (moves or refitted)
    if not moves:
        kl = records[0].get("kl", records[0].get("trpo/kl"))
        assert records[0]["whole_kl"] == pytest.approx(kl, rel=1e-3, abs=1e-8)
    # What is constant, stays.
    assert same(begun.policy.network.mean, last.policy.network.mean) or refitted
    # States acted on are those in training, over resets.
    _, scaling, _ = RunDirectory(run.directory).agent()
    envs = rpsp.make("InvertedPendulum-v5", 3, max_episode_steps=40)
    collected = collect(last, envs, scaling=scaling, samples=100, seed=0, iteration=9, keep_states=True)
    assert len(collected.episodes) > 3 and collected.states is not None
    batch = pack(collected.episodes, row_length=40)
    states = np.asarray(compiled_unroll(last.filter, batch))
    starts = np.argwhere(batch.starts & batch.mask)
    for episode, acted in zip(collected.episodes, collected.states, strict=True):
        ((row_, time),) = [
            at
            for at in starts
            if np.array_equal(batch.previous_observations[tuple(at)], episode.observations[0].astype(np.float32))
        ]
        scale = max(1.0, np.abs(acted).max())
        np.testing.assert_allclose(acted, states[row_, time : time + len(episode)], atol=1e-5 * scale)
    assert amounts.samples == 200


def test_direct_inference_with_refits_and_a_resume(tmp_path: Path) -> None:
    """`rpsi-trpo`, the default of everything, and that it goes on bit for bit when a refit comes next."""
    whole = trained("rpsi-trpo", tmp_path / "whole", refit_above=0.0)
    check("rpsi-trpo", whole)
    assert "refit_accepted" in whole.metrics[1] and "refit_accepted" not in whole.metrics[0]
    trained("rpsi-trpo", tmp_path / "half", 1, refit_above=0.0)
    main(["resume", str(tmp_path / "half"), "--iterations", "2", "--quiet"])
    for number in (0, 1, 2):
        one, other = (
            (tmp_path / name / f"checkpoints/{number:06d}/state.safetensors").read_bytes() for name in ("whole", "half")
        )
        assert one == other


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WHOLE if name != "rpsi-trpo"])
def test_every_row_trains(name: str, tmp_path: Path) -> None:
    run = trained(name, tmp_path / "run")
    check(name, run)
    if name.endswith("+obs"):
        assert isinstance(checkpoint(run, 0).filter, Concatenated)
    evaluated = rpsp.load(run.directory).evaluate(2)
    assert len(evaluated.returns) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rpsp-alt", "rpsp-alt+obs", "fix-psr", "rpsi-alt", "rpsi-sac"])
def test_refits_of_any_filter_under_any_update_resume_bit_for_bit(name: str, tmp_path: Path) -> None:
    given: Any = {"refit_before": (1, 3), "refit_batches": 2, "refit_above": 0.0, "samples": 400}
    whole = trained(name, tmp_path / "whole", 4, **given)
    refits = [r["refit_accepted"] for r in whole.metrics if "refit_accepted" in r]
    assert len(refits) == 2
    trained(name, tmp_path / "half", 2, **given)
    main(["resume", str(tmp_path / "half"), "--iterations", "4", "--quiet"])
    for number in (2, 3, 4):
        one, other = (
            (tmp_path / kind / f"checkpoints/{number:06d}/state.safetensors").read_bytes() for kind in ("whole", "half")
        )
        assert one == other


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fm2", "rpsi-trpo", "rpsp-alt"])
def test_discrete_actions(name: str, tmp_path: Path) -> None:
    small = {"past": 4, "future": 3} | ({"dimension": 6, "epochs": 2} if name == "rpsp-alt" else {})
    run = rpsp.train(
        "CartPole-v1", name, observe="positions", out=tmp_path / "run", iterations=8, samples=1000, num_envs=10,
        max_episode_steps=100, exploration_episodes=30, threads=1, verbose=False, **small,
    )  # fmt: skip
    returns = [record["mean_return"] for record in run.metrics]
    assert np.mean(returns[-2:]) > 1.2 * np.mean(returns[:2])
    assert returns == [record["mean_length"] for record in run.metrics]  # CartPole pays 1 a step
    action, _ = run.agent.predict(np.zeros(2))
    assert isinstance(action, np.integer) and action in (0, 1)


# ---------------------------------------------------------------------------------------------------------------------
# A row of one's own
# ---------------------------------------------------------------------------------------------------------------------


def test_a_row_of_ones_own(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Its own belief and filter, from a module; trained, resumed and loaded by its name."""
    out = tmp_path / "run"
    flags = ["--samples", "60", "--exploration-episodes", "8", "--num-envs", "3", "--threads", "1", "--out", str(out)]
    main(["train", "tasks:Drift-v0", "--method", "tasks:tracing", "--iterations", "1", *flags])
    config = read_config(out)
    assert config.method == "tasks:tracing" and config.settings.max_kl == 0.02, "the row's own defaults"
    main(["resume", str(out), "--iterations", "2", "--quiet"])
    agent = rpsp.load(out)
    assert isinstance(agent.agent.filter, tasks.Trace) and agent.checkpoint == 2
    q = [agent.predict(np.array(x))[1].q[0] for x in ([0.0, 0.0], [2.0, -2.0])]
    half = 0.5 * (np.array([2.0, -2.0]) / agent.scaling.scale)
    np.testing.assert_allclose(q[1] - q[0], half, rtol=1e-5)
    # A reader that does not know the class refuses the file, and says so.
    monkeypatch.delitem(checkpoints.READABLE, "Trace")
    with pytest.raises(FileFormatError, match="Trace"):
        rpsp.load(out)


def test_a_class_that_was_not_made_readable_is_said_at_once(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.delitem(checkpoints.READABLE, "Trace")
    with pytest.raises(SystemExit) as exit:
        main(
            ["train", "tasks:Drift-v0", "--method", "tasks:tracing", "--samples", "60", "--out", str(tmp_path / "run")]
        )
    assert exit.value.code == 2
    assert "READABLE" in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "hint"), [("max_kll", "did you mean 'max_kl'?"), ("zzz", "`rpsp train --help` lists the settings.")]
)
def test_unknown_setting_in_the_defaults_of_a_plugin(setting: str, hint: str, monkeypatch: Any, capsys: Any) -> None:
    wrong = dataclasses.replace(tasks.tracing, defaults={setting: 0.02})
    monkeypatch.setattr(tasks, "wrong", wrong, raising=False)  # named as module:row
    monkeypatch.setitem(METHODS, "wrong", dataclasses.replace(wrong, name="wrong"))  # registered by a plug-in
    for name in ("tasks:wrong", "wrong"):
        with pytest.raises(SystemExit) as exit:
            main(["train", "tasks:Drift-v0", "--plugin", "tasks", "--method", name])
        assert exit.value.code == 2
        expected = f"rpsp: method: the defaults of {name!r} name an unknown setting {setting!r}; {hint}\n"
        assert capsys.readouterr().err == expected


@pytest.mark.slow
def test_a_plugin_beside_the_user_is_found_where_it_is_named(tmp_path: Path) -> None:
    """`mine.py` where the command is given: whatever the run's file says, by --plugin alone."""
    (tmp_path / "mine.py").write_text(
        "import dataclasses, tasks\n"
        "from rpsp.experiments.checkpoints import READABLE\n"
        "class Faster(tasks.Trace):\n    pass\n"
        "READABLE['Faster'] = Faster\n"
        "def belief(s):\n"
        "    import jax.numpy as jnp\n"
        "    from rpsp.experiments.recipes import Belief\n"
        "    return Belief(lambda batch, *_: Faster(jnp.zeros(2), jnp.asarray(0.1)))\n"
        "row = dataclasses.replace(tasks.tracing, belief=belief)\n"
    )
    flags = ["--samples=60", "--exploration-episodes=8", "--num-envs=3", "--iterations=1", "--out=run", "--quiet"]
    environment = {"PYTHONPATH": PATH, "PATH": "", "JAX_PLATFORMS": "cpu"}

    def rpsp_command(*arguments: str) -> str:
        script = Path(sys.executable).with_name("rpsp")  # unlike `python -m`, it has no current directory on its path
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            encoding="utf-8",
        )
        assert done.returncode == (0 if "--plugin" in arguments else 2), done.stderr
        return done.stdout + done.stderr

    rpsp_command("train", "tasks:Drift-v0", "--plugin", "mine", "--method", "mine:row", *flags)
    assert "give --plugin mine,tasks" in rpsp_command("resume", "run", "--iterations", "2", "--quiet")
    rpsp_command("resume", "run", "--iterations", "2", "--plugin", "mine", "--quiet")  # which imports tasks itself
    printed = rpsp_command("eval", "run", "--episodes", "2", "--plugin", "mine", "--json")
    assert json.loads(printed.splitlines()[-1])["checkpoint"] == 2
