"""Every row of the table: it builds, trains, acts on the states it trains on, and moves nothing that it should not."""

from __future__ import annotations

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

import rpsp
from rpsp.algorithms.alternating import InSequence
from rpsp.algorithms.base import policy_only
from rpsp.algorithms.policies import Agent
from rpsp.algorithms.trpo import Trpo
from rpsp.algorithms.vrpg import Vrpg
from rpsp.cli import main
from rpsp.data.batches import pack
from rpsp.errors import UsageError
from rpsp.experiments.execution import ingredients
from rpsp.experiments.finished_runs import Run
from rpsp.experiments.methods import METHODS, Method
from rpsp.experiments.resolve import read_config
from rpsp.experiments.run_directory import RunDirectory
from rpsp.filters.base import Concatenated, compiled_unroll
from rpsp.filters.memory import FiniteMemory
from rpsp.training.rollouts import collect

TINY: dict[str, Any] = {
    "samples": 200,
    "exploration_episodes": 20,
    "max_episode_steps": 40,
    "threads": 1,
    "verbose": False,
}
SMALL: dict[str, dict[str, Any]] = {  # so that each compiles and fits as fast as it can
    "kernel-bayes": {"dimension": 5, "past": 3, "future": 3, "epochs": 2},
    "kernel-bayes-residual": {"dimension": 5, "past": 3, "future": 3, "epochs": 2, "linear_dimension": 5},
    "inference": {"past": 4, "future": 3},
    "gru": {"epochs": 2, "units": 8},
    "finite-memory": {},
}
WHOLE = [name for name in METHODS if name != "tabular"]  # tabular is for symbols: see test_agents


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(name: str, out: Path, iterations: int = 2, **settings: Any) -> Run:
    row = METHODS[name]
    small = SMALL[row.belief.kind]
    if name.startswith("gru"):  # the size is the row's, and it is not refined
        small = {}
    if row.algorithm.off_policy:
        small = small | {"minibatch": 64, "capacity": 2000}  # a batch is less than the usual minibatch
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
    assert all(row.name == name and row.about for name, row in METHODS.items())


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_a_row_reaches_its_parts(name: str) -> None:
    row = METHODS[name]
    assert row.with_settings(row.settings()) == row
    for setting in row.known.values():
        assert setting.help.endswith((".", ")")), f"{setting.name} has no help text"
    parts = (row.loop, row.belief, *row.algorithm.parts)
    for setting in row.known.values():
        if isinstance(setting.value, float) and 0 < setting.value < 1:
            value = setting.value / 2
            changed = row.with_settings(row.settings(**{setting.name: value}))
            found = changed.loop, changed.belief, *changed.algorithm.parts
            homes = [part for part in found if hasattr(part, setting.name)]
            assert homes and all(getattr(part, setting.name) == value for part in homes)
            assert len(found) == len(parts)


def test_a_setting_that_the_method_does_not_have_is_refused_with_those_that_have_it() -> None:
    with pytest.raises(UsageError, match=r"^clip: rpsi-trpo has no such setting; .*: rpsi-ppo, fm2-ppo\.$"):
        METHODS["rpsi-trpo"].settings(clip=0.5)
    with pytest.raises(UsageError, match=r"^units: fm2-ppo has no such setting; .*: gru16, gru32"):
        METHODS["fm2-ppo"].settings(units=7)
    with pytest.raises(UsageError, match=r"^refit_kl: fm2 has no such setting"):
        METHODS["fm2"].settings(refit_kl=7.0)
    with pytest.raises(UsageError, match=r"^max_kll: there is no such setting; did you mean 'max_kl'\?"):
        METHODS["fm2"].settings(max_kll=7.0)


def test_a_setting_of_two_parts_must_have_one_value() -> None:
    with pytest.raises(UsageError, match=r"'mine' is ambiguous: discount is 0.9 in Trpo and 0.99 in Vrpg"):
        Method("mine", tasks.Tracing(), InSequence(Trpo(discount=0.9), Vrpg()))
    with pytest.raises(UsageError, match=r"belief of 'mine' is 'gru', not an instance of .*Belief"):
        Method("mine", "gru", Trpo())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "name", [name for name, row in METHODS.items() if row.belief.kind in ("kernel-bayes", "inference")]
)
def test_exploration_must_be_as_long_as_a_window(name: str) -> None:
    row = METHODS[name]
    assert row.with_settings(row.settings(future=7)).belief.min_length == 8 and row.belief.can_refit


@pytest.mark.parametrize("window", [1, 2, 5])
def test_finite_memory_as_the_authors_trained_it(window: int) -> None:
    """Adam on the policy alone, with a step size of 1e-2, without prediction loss and trust region."""
    row = METHODS[f"fm{window}-vrpg"]
    algorithm: Any = row.algorithm
    assert row.belief == FiniteMemory(window=window) and row.loop == METHODS["fm2"].loop and not row.ours
    assert isinstance(algorithm, Vrpg) and algorithm.moves is policy_only and algorithm.filter_kl is None
    assert (algorithm.learning_rate, algorithm.prediction_weight, algorithm.return_weight) == (1e-2, 0.0, 1.0)
    assert (algorithm.discount, algorithm.normalise) == (Trpo().discount, Trpo().normalise)


def test_settings_reach_ppo() -> None:
    given = {
        "learning_rate": 1e-4, "clip": 0.1, "minibatch": 32, "discount": 0.9, "gae": 0.8, "entropy_weight": 0.01,
        "hidden": (3, 4), "normalise": False, "scale_rewards": False, "bootstrap": False, "anneal": 7, "passes": 2,
    }  # fmt: skip
    row = METHODS["rpsi-ppo"]
    algorithm: Any = row.with_settings(row.settings(**given)).algorithm
    assert {name: getattr(algorithm, name) for name in given} == given


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
    through_time = row.algorithm.name == "trpo" and moves
    assert moves == (through_time or name == "gru-sac" or ("vrpg" in row.algorithm.name and not name.startswith("fm")))
    # Of a policy whose output layer is still zero, no gradient reaches the filter.
    assert same(begun.filter, first.filter) != (moves and not through_time)
    refitted = records[1].get("refit_accepted") == 1
    assert same(first.filter, last.filter) != (moves or refitted)
    if not moves:
        kl = records[0].get("kl", records[0].get("trpo/kl"))
        assert records[0]["whole_kl"] == pytest.approx(kl, rel=1e-3, abs=1e-8)
    # The scale of the policy's input changes only by a refit, or where the row renews it.
    assert same(begun.policy.network.mean, last.policy.network.mean) != (row.loop.renew_units or refitted)
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
    small: dict[str, int] = {} if name == "fm2" else {"past": 4, "future": 3}
    small |= {"dimension": 6, "epochs": 2} if name == "rpsp-alt" else {}
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


def test_a_row_of_ones_own_brings_its_settings(tmp_path: Path, capsys: Any) -> None:
    """A field of its belief is a flag, with its help text; other methods refuse it."""
    flags = ["--samples=60", "--exploration-episodes=8", "--num-envs=3", "--threads=1", "--iterations=1", "--quiet"]
    own = ["train", "tasks:Drift-v0", "--method", "tasks:tracing"]
    main([*own, "--decay", "0.25", *flags, "--out", str(tmp_path / "run")])
    agent: Any = rpsp.load(tmp_path / "run").agent
    assert agent.filter.decay == np.float32(0.25)
    with pytest.raises(SystemExit):
        main([*own, "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "--decay FLOAT" in printed and "Weight of the previous average. (default: 0.5)" in printed
    assert "--past" not in printed and "--clip" not in printed
    with pytest.raises(SystemExit) as exit:
        main([*own, "--clip", "0.1"])
    assert exit.value.code == 2
    assert "clip: tasks:tracing has no such setting; these methods have it: rpsi-ppo" in capsys.readouterr().err


@pytest.mark.slow
def test_a_plugin_beside_the_user_is_found_where_it_is_named(tmp_path: Path) -> None:
    """`mine.py` where the command is given: whatever the run's file says, by --plugin alone."""
    (tmp_path / "mine.py").write_text(
        "import dataclasses, tasks\n"
        "import jax.numpy as jnp\n"
        "class Faster(tasks.Trace):\n    pass\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Fast(tasks.Tracing):\n"
        "    def fit(self, batch, held_out, *, key):\n"
        "        return Faster(jnp.zeros(2), jnp.asarray(0.1))\n"
        "row = dataclasses.replace(tasks.tracing, belief=Fast())\n"
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
