"""A run on disk: whole after any crash, never silently wrong, and exactly what was saved comes back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import ALGORITHMS, SCALING, agent_of, assert_same, record, run_of, training_of

from rpsp.algorithms.networks import Body
from rpsp.algorithms.policies import Agent, CategoricalPolicy, GaussianPolicy
from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.data.files import write_bytes
from rpsp.data.scaling import OneHot
from rpsp.errors import FileFormatError, StorageError, UsageError
from rpsp.experiments.checkpoints import FORMAT, describe, rebuild, upgrade
from rpsp.experiments.locks import is_locked
from rpsp.experiments.run_directory import FILES, RunDirectory
from rpsp.filters.base import AbstractFilter
from rpsp.filters.memory import history_window
from rpsp.filters.two_stage import KernelBayes, fit_two_stage

# ---------------------------------------------------------------------------------------------------------------------
# Round trips
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_saved_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    run, training = RunDirectory(tmp_path), training_of(7, ALGORITHMS[name])
    run.save(training)
    found = run.restore(ALGORITHMS[name])
    assert found is not None and found[1] == []
    assert_same(found[0], training)
    if name == "typed key":
        key, _ = found[0].memory
        np.testing.assert_array_equal(jax.random.uniform(key, (3,)), jax.random.uniform(jax.random.key(7), (3,)))


def test_discrete_tasks_come_back_too(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    training = training_of(1, agent=agent_of(1, CategoricalPolicy), scaling=OneHot(2), recent=())
    run.save(training)
    assert_same(run.read(1, ALGORITHMS["trpo"]), training)


def test_a_checkpoint_of_the_same_training_has_the_same_bytes(tmp_path: Path) -> None:
    paths = [RunDirectory(tmp_path / name).save(training_of(3, ALGORITHMS["ppo"])) for name in "ab"]
    for file in ("state.safetensors", "manifest.json"):
        assert (paths[0] / file).read_bytes() == (paths[1] / file).read_bytes()


@pytest.mark.parametrize("format", [2, 3])
def test_fields_that_came_later_have_their_default_in_older_files(format: int) -> None:
    """A kernel-Bayes filter without `frozen`, and a network without `view`."""
    settings = KernelBayes(past=3, future=2, dimension=3, history_dimension=8, frequencies=20)
    rng = np.random.default_rng(0)
    episodes = [Episode(rng.normal(size=(13, 2)), rng.normal(size=(12, 1))) for _ in range(5)]
    agent = Agent(fit_two_stage(pack(episodes), settings, rng=rng), GaussianPolicy(3, 1, key=jax.random.key(0)))
    arrays: dict[str, np.ndarray] = {}
    description = describe(agent, arrays)
    del description["fields"]["filter"]["fields"]["frozen"]
    del description["fields"]["policy"]["fields"]["network"]["fields"]["view"]
    found = rebuild(upgrade(description, format), arrays)
    assert jax.tree.structure(found) == jax.tree.structure(agent) and found.filter.frozen == ()
    assert found.policy.network.view is None


@pytest.mark.parametrize("body", ["plain", "residual"])
def test_projections_and_bodies_come_back_too(body: Body) -> None:
    agent = Agent(
        replace(history_window(2, 2, 1), P=jnp.ones((6, 2))),
        GaussianPolicy(2, 1, view=np.ones((6, 2)), body=body, key=jax.random.key(0)),
    )
    arrays: dict[str, np.ndarray] = {}
    assert eqx.tree_equal(rebuild(describe(agent, arrays), arrays), agent)


def test_a_checkpoint_of_version_0_4_0_is_read_and_saved_in_the_new_format(tmp_path: Path) -> None:
    """`fixtures/run_of_0_4_0` was written by commit 714e83f, whose batches named their fields otherwise (format 2)."""
    old = RunDirectory(Path(__file__).parents[1] / "fixtures" / "run_of_0_4_0")
    assert '"format": 2' in (old.checkpoints / "000007" / "manifest.json").read_text(encoding="utf-8")
    found = old.restore(ALGORITHMS["trpo"])
    assert found is not None and found[1] == []
    training, drawn = found[0], np.linspace(-2, 2, 6)[:, None]
    episode = Episode(np.arange(14.0).reshape(7, 2), np.clip(drawn, -1, 1), np.arange(6.0), drawn, True, False)
    expected, (batch,) = pack([episode]), training.recent
    for field in dataclasses.fields(Batch):
        np.testing.assert_array_equal(getattr(batch, field.name), getattr(expected, field.name), err_msg=field.name)
    assert training.iteration == 7 and training.samples == 700 and training.halvings == 1

    new = RunDirectory(tmp_path)
    path = new.save(training)
    assert json.loads((path / "manifest.json").read_text(encoding="utf-8"))["format"] == FORMAT == 3
    assert_same(new.read(7, ALGORITHMS["trpo"]), training)


def test_the_manifest_and_the_file_must_agree_on_the_format(tmp_path: Path) -> None:
    path = RunDirectory(tmp_path).save(training_of(1)) / "manifest.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"format": 3', '"format": 2'))
    with pytest.raises(FileFormatError, match=r"manifest\.json: is damaged"):
        RunDirectory(tmp_path).read(1, ALGORITHMS["trpo"])


def test_the_key_that_version_0_4_kept_in_the_memory_is_ignored(tmp_path: Path) -> None:
    run, training = RunDirectory(tmp_path), training_of(3, ALGORITHMS["ppo"])
    critic, adam, *others = training.memory
    run.save(replace(training, memory=(critic, adam, np.array([1, 2], np.uint32), *others)))
    assert_same(run.read(3, ALGORITHMS["ppo"]), training)


def test_the_memory_of_another_method_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.save(training_of(1, ALGORITHMS["vrpg"]))
    with pytest.raises(FileFormatError, match="does not fit this method"):
        run.restore(ALGORITHMS["ppo"])


def test_a_class_that_files_may_not_name_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """A file may name filters and modules defined beside them, each under a name of its own."""

    class Mine(AbstractFilter):
        W: Any

        def init(self) -> jax.Array:
            return self.W

        def update(self, q: jax.Array, action: jax.Array, observation: jax.Array) -> jax.Array:
            return q

        def predict(self, q: jax.Array, action: jax.Array) -> jax.Array:
            return q[:2]

    class Scaling(Mine):  # as a class of the library
        pass

    for filter, name in ((Mine(eqx.nn.LayerNorm(2)), "LayerNorm"), (Scaling(jnp.zeros(2)), "Scaling")):
        agent = Agent(filter, agent_of(0).policy)
        with pytest.raises(
            UsageError, match=rf"^{name}: cannot be saved, because .*; rename the class, or define it in"
        ):
            RunDirectory(tmp_path).save(training_of(0, agent=agent))
        assert RunDirectory(tmp_path).numbers() == []
    training = training_of(1, agent=Agent(Mine(jnp.arange(4.0)), agent_of(0).policy))
    RunDirectory(tmp_path).save(training)
    found = RunDirectory(tmp_path).agent()[0].filter
    assert type(found) is Mine and np.array_equal(found.W, np.arange(4))


# ---------------------------------------------------------------------------------------------------------------------
# What is kept
# ---------------------------------------------------------------------------------------------------------------------


def test_the_last_three_and_the_best_are_kept(tmp_path: Path) -> None:
    run = run_of(tmp_path, [1.0, 9.0, 2.0, 3.0, 4.0, 5.0])
    assert run.numbers() == [1, 4, 5, 6]  # iteration 1, which returned 9, was acted by checkpoint 1
    assert run.best() == 1
    run.append(record(6, 10.0))
    run.save(training_of(7))
    assert run.numbers() == [5, 6, 7] and run.best() == 6


def test_last_best_or_a_number(tmp_path: Path) -> None:
    run = run_of(tmp_path, [1.0, 9.0, 2.0, 3.0, 4.0, 5.0])
    for which, number in (("last", 6), ("best", 1), (5, 5)):
        agent, scaling, found = run.agent(which)
        assert found == number
        np.testing.assert_array_equal(agent.policy.network.layers[0].weight, agent_of(number).policy.network.layers[0].weight)  # fmt: skip  # noqa: E501
        np.testing.assert_array_equal(scaling.mean, SCALING.mean)
    with pytest.raises(UsageError, match=r"2 is not one of last, best, 1, 4, 5, 6"):
        run.agent(2)
    with pytest.raises(UsageError, match="'latest'"):
        run.agent("latest")
    with pytest.raises(FileFormatError, match="no checkpoint"):
        RunDirectory(tmp_path / "nothing").agent()


def test_the_manifest_says_what_it_is(tmp_path: Path) -> None:
    path = RunDirectory(tmp_path).save(training_of(12))
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    data = (path / "state.safetensors").read_bytes()
    assert path.name == "000012" and manifest["iteration"] == 12 and manifest["samples"] == 1200
    assert manifest["sha256"] == hashlib.sha256(data).hexdigest() and manifest["bytes"] == len(data)


# ---------------------------------------------------------------------------------------------------------------------
# Damage
# ---------------------------------------------------------------------------------------------------------------------


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    path.write_bytes(bytes(data))


DAMAGES = {
    "a flipped bit at the start": lambda p: flip(p / "state.safetensors", 0.0),
    "a flipped bit in the header": lambda p: flip(p / "state.safetensors", 0.1),
    "a flipped bit at the end": lambda p: flip(p / "state.safetensors", 1.0),
    "a flipped bit in the manifest": lambda p: flip(p / "manifest.json", 0.8),
    "cut off": lambda p: (p / "state.safetensors").write_bytes((p / "state.safetensors").read_bytes()[:-100]),
    "empty": lambda p: (p / "state.safetensors").write_bytes(b""),
    "no manifest": lambda p: (p / "manifest.json").unlink(),
    "a manifest of something else": lambda p: (p / "manifest.json").write_text("[1, 2]", encoding="utf-8"),
    "a manifest cut off": lambda p: (p / "manifest.json").write_text('{"sha256": "ab', encoding="utf-8"),
    "no state": lambda p: (p / "state.safetensors").unlink(),
    "nothing there": lambda p: [f.unlink() for f in p.iterdir()],
    "a file in its place": lambda p: (shutil.rmtree(p), p.write_text("?", encoding="utf-8")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_and_named(damage: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, [1.0, 2.0])
    DAMAGES[damage](run.checkpoints / "000002")
    found = run.restore(ALGORITHMS["trpo"])
    assert found is not None
    training, complaints = found
    assert_same(training, training_of(1))
    assert len(complaints) == 1 and "000002" in complaints[0] and "\n" not in complaints[0]
    said: list[str] = []
    assert run.agent("last", said.append)[2] == 1
    assert said == [f"skipped a damaged checkpoint: {complaints[0]}"]
    # The run goes on over it.
    run.save(training_of(2)) if damage != "a file in its place" else None
    if damage != "a file in its place":
        assert_same(run.restore(ALGORITHMS["trpo"])[0], training_of(2))  # pyright: ignore[reportOptionalSubscript]


def test_if_every_checkpoint_is_damaged_nothing_is_begun_anew(tmp_path: Path) -> None:
    run = run_of(tmp_path, [1.0])
    for number in run.numbers():
        flip(run.checkpoints / f"{number:06d}" / "state.safetensors", 0.5)
    with pytest.raises(FileFormatError, match=r"no checkpoint can be read.*000001"):
        run.restore(ALGORITHMS["trpo"])
    said: list[str] = []
    with pytest.raises(FileFormatError, match="checksum"):
        run.agent("last", said.append)
    assert said == []  # nothing was used instead
    assert RunDirectory(tmp_path / "other").restore(ALGORITHMS["trpo"]) is None


def test_what_a_crash_left_behind_is_swept_away(tmp_path: Path) -> None:
    run = run_of(tmp_path, [1.0])
    before = {p.relative_to(tmp_path) for p in tmp_path.rglob("*")}
    half = run.checkpoints / ".000002.4711"
    half.mkdir()
    (half / "state.safetensors").write_bytes(b"half")
    (run.checkpoints / ".000001.4711.gone").mkdir()
    (tmp_path / ".metrics.jsonl.abc12_45.part").write_text("half", encoding="utf-8")
    (tmp_path / ".config.json.q2345678.part").write_text("half", encoding="utf-8")
    assert run.numbers() == [0, 1]
    with run.locked():
        run.clean()
    assert {p.relative_to(tmp_path) for p in tmp_path.rglob("*")} == before | {Path(".lock")}


def test_temporary_files_have_names_that_are_swept_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before they are renamed, `write_bytes` and `write_checkpoint` leave what `clean` removes."""
    import os

    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    run = RunDirectory(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        for name in FILES:
            with pytest.raises(Killed):
                write_bytes(tmp_path / name, b"half")
        with pytest.raises(Killed):
            run.write_checkpoint("000003", {"manifest.json": b"half"})
    assert len(list(tmp_path.glob(".*"))) == len(FILES)
    assert list(run.checkpoints.iterdir())
    run.clean()
    assert [path.name for path in tmp_path.rglob("*")] == ["checkpoints"]


def test_a_users_own_files_are_not_swept_away(tmp_path: Path) -> None:
    run = run_of(tmp_path, [1.0])
    own = [".notes.txt", ".env.local", ".config.json.swp", ".config.json.backup12", ".git.d/config"]
    own += ["checkpoints/.DS_Store", "checkpoints/.keep.me", "checkpoints/.000001.best"]
    for name in own:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine", encoding="utf-8")
    run.clean()
    assert [name for name in own if not (tmp_path / name).exists()] == []


class DiskFullError(OSError):
    pass


@pytest.mark.parametrize("at", range(4))
def test_a_save_that_fails_half_way_leaves_the_last_one(at: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Killed or refused at each of its steps in turn: the checkpoint before is what is found."""
    import os

    from rpsp.experiments import run_directory

    run = run_of(tmp_path, [1.0])
    calls = iter(range(100))

    def failing(real: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if next(calls) == at:
                raise DiskFullError(28, "No space left on device")
            return real(*given, **named)

        return call

    monkeypatch.setattr(os, "fsync", failing(os.fsync))
    monkeypatch.setattr(os, "replace", failing(os.replace))
    with pytest.raises(StorageError, match="No space left"):
        run.save(training_of(2))
    monkeypatch.undo()
    assert run_directory.RunDirectory(tmp_path).numbers() == [0, 1]
    assert_same(run.restore(ALGORITHMS["trpo"])[0], training_of(1))  # pyright: ignore[reportOptionalSubscript]
    assert not list(run.checkpoints.glob(".*")), "nothing half-written stays"


# ---------------------------------------------------------------------------------------------------------------------
# Metrics
# ---------------------------------------------------------------------------------------------------------------------


def test_metrics_are_cut_back_to_the_checkpoint_byte_for_byte(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.append({"exploration_samples": 3, "prediction_error": 0.1 + 0.2})
    first = run.metrics_file.read_bytes()
    for n in range(3):
        run.append(record(n, 1 / (n + 3)))
        if n == 1:
            two = run.metrics_file.read_bytes()
    run.metrics_file.write_bytes(run.metrics_file.read_bytes() + b'{"iteration": 3, "mean_re')
    assert [r.get("iteration") for r in run.metrics()] == [None, 0, 1, 2]
    run.cut_back(2)
    assert run.metrics_file.read_bytes() == two
    run.cut_back(0)
    assert run.metrics_file.read_bytes() == first
    run.cut_back(-1)
    assert run.metrics_file.read_bytes() == b""


# ---------------------------------------------------------------------------------------------------------------------
# One process at a time
# ---------------------------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    path = str(tmp_path / ".lock")
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="in use by another process"), RunDirectory(tmp_path).locked():
            pass
        other.kill()  # even killed, it holds no longer
        other.wait()
    with RunDirectory(tmp_path).locked(), pytest.raises(UsageError, match="in use"), RunDirectory(tmp_path).locked():
        pass
    with RunDirectory(tmp_path).locked():
        pass


def test_asking_for_the_lock_creates_nothing(tmp_path: Path) -> None:
    missing, free, locked = (tmp_path / name for name in ("missing", "free", "locked"))
    free.mkdir()
    with RunDirectory(locked).locked():
        assert is_locked(locked) and not is_locked(free) and not is_locked(missing)
    assert not is_locked(locked)
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*")} == {
        Path("free"), Path("locked"), Path("locked/.lock"),
    }  # fmt: skip


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StorageError, match="cannot be written to"), RunDirectory(tmp_path / "file" / "run").locked():
        pass
