"""Callbacks: what they see, what they add, how they stop a run, and that none of them can lose one."""

from __future__ import annotations

import json
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import cli, trained
from processes import FLAGS, TINY, metrics
from small_runs import record, training_of

import rpsp
from rpsp.callbacks import (
    Callback,
    EarlyStopping,
    Evaluation,
    Logger,
    MlflowLogger,
    RunState,
    StopAtReturn,
    TimeLimit,
    Video,
    WandbLogger,
)
from rpsp.errors import UsageError
from rpsp.experiments.agents import EVALUATING
from rpsp.experiments.callbacks.evaluation import evaluation_seed
from rpsp.experiments.resolve import read_config
from rpsp.experiments.run_directory import RunDirectory
from rpsp.experiments.workers import Job, done
from rpsp.training import rollouts

pytestmark = pytest.mark.usefixtures("elsewhere")


class Diary(Callback):
    """Writes down what it sees."""

    def __init__(self, stop_at: int = 10**9) -> None:
        self.seen: list[Any] = []
        self.stop_at = stop_at

    def on_start(self, run: RunState) -> Any:
        self.seen.append(("start", run.iteration, run.steps))

    def on_iteration(self, run: RunState) -> Any:
        assert run.record["iteration"] == run.iteration - 1 and run.record["total_samples"] == run.steps
        self.seen.append(("iteration", run.iteration))
        return "stop" if run.iteration == self.stop_at else None

    def on_checkpoint(self, run: RunState) -> Any:
        assert run.checkpoint is not None and (run.checkpoint / "manifest.json").exists()
        self.seen.append(("checkpoint", int(run.checkpoint.name)))

    def on_end(self, run: RunState) -> Any:
        self.seen.append(("end", None if run.results is None else run.results["iterations"]))


def test_hooks_are_called_in_their_order_and_a_stop_is_a_clean_end(tmp_path: Path) -> None:
    diary = Diary(stop_at=2)
    run = trained(tmp_path / "run", 5, callbacks=[diary])
    kinds = [kind for kind, *_ in diary.seen]
    assert diary.seen[0] == ("start", 0, 0) and diary.seen[-1] == ("end", 2)
    assert [seen[1] for seen in diary.seen if seen[0] == "iteration"] == [1, 2]
    assert [seen[1] for seen in diary.seen if seen[0] == "checkpoint"] == [0, 1, 2] and kinds.count("start") == 1
    assert run.results["stopped_by"] == "Diary" and run.results["iterations"] == 2
    assert RunDirectory(run.directory).numbers()[-1] == 2


def test_a_stopped_run_goes_on_to_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 3)
    cut = trained(tmp_path / "cut", 3, callbacks=[Diary(stop_at=1)])
    assert cut.results["iterations"] == 1
    assert cli("resume", str(cut.directory), "--quiet") == 0
    assert metrics(cut.directory) == metrics(whole.directory)
    assert "stopped_by" not in json.loads((cut.directory / "results.json").read_text())


class Faulty(Callback):
    def __init__(self, hook: str, error: Exception) -> None:
        self.calls = 0

        def fail(run: RunState) -> Any:
            self.calls += 1
            raise error

        setattr(self, hook, fail)


@pytest.mark.parametrize("hook", ["on_start", "on_iteration", "on_checkpoint", "on_end"])
def test_a_callback_that_raises_is_reported_and_loses_nothing(hook: str, tmp_path: Path) -> None:
    faulty, diary = Faulty(hook, OSError("the server is away")), Diary()
    with pytest.warns(RuntimeWarning, match=rf"Faulty\.{hook} raised OSError: the server is away \(test_callbacks.py:"):
        run = trained(tmp_path / "run", 5, callbacks=[faulty, diary])
    assert run.results["iterations"] == 5 and diary.seen[-1] == ("end", 5)
    assert faulty.calls == (1 if hook in ("on_start", "on_end") else 3), "after three exceptions it is not called again"
    assert len(run.results.get("callback_errors", ())) == {"on_end": 0, "on_start": 1}.get(hook, 3)
    assert metrics(run.directory) == metrics(trained(tmp_path / "plain", 5).directory)


def test_a_mistake_in_on_start_costs_no_exploration(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="project: none"):
        trained(tmp_path / "run", callbacks=[Faulty("on_start", UsageError("project: none is given."))])
    assert not (tmp_path / "run").exists()


def test_callbacks_hear_of_a_failure_and_of_an_interruption(tmp_path: Path, monkeypatch: Any) -> None:
    class Interrupting(Callback):
        def on_iteration(self, run: RunState) -> Any:
            if run.iteration == 2:
                raise KeyboardInterrupt

    diary = Diary()
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", 5, callbacks=[diary, Interrupting()])
    assert diary.seen[-1] == ("end", None)
    assert RunDirectory(tmp_path / "run").numbers()[-1] == 2, "the interrupted iteration is saved"


def test_metrics_of_callbacks_reach_the_file_and_loggers_whatever_the_order(tmp_path: Path) -> None:
    class Squares(Callback):
        def on_iteration(self, run: RunState) -> Any:
            run.log(squared=run.record["mean_return"] ** 2)

    class List(Logger):
        def open(self, run: RunState) -> None:
            self.written: list[Any] = []

        def write(self, step: int, metrics: Any) -> None:
            self.written.append((step, metrics["squared"]))

        def close(self, run: RunState) -> None:
            self.written.append("closed")

    logger = List()
    run = trained(tmp_path / "run", 2, callbacks=[logger, Squares()])
    assert [(r["total_samples"], r["mean_return"] ** 2) for r in run.metrics] == logger.written[:-1]
    assert [r["squared"] for r in run.metrics] == [squared for _, squared in logger.written[:-1]]
    assert logger.written[-1] == "closed"


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ({"mean_return": 1.0}, "mean_return: the iteration has a metric of this name already"),
        ({"mine": float("nan")}, "mine: nan is not a finite number"),
        ({"mine": "high"}, "mine: 'high' is not a finite number"),
    ],
)
def test_what_is_no_metric_is_refused(metric: Any, message: str, tmp_path: Path) -> None:
    run = RunState(tmp_path, {"seed": 0}, None, print, lambda: 0.0)
    run.record = dict(record(0, 3.0))
    with pytest.raises(UsageError, match=message):
        run.log(**metric)
    with pytest.raises(UsageError, match="agent: there is none"):
        run.agent  # noqa: B018


def test_what_is_no_callback_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for wrong in (print, Diary):
        with pytest.raises(UsageError, match=r"is not an instance of a subclass of rpsp\.callbacks\.Callback"):
            trained(tmp_path / "run", callbacks=[wrong])
    with pytest.raises(UsageError, match="callbacks: 2 seeds are trained in separate processes"):
        trained(tmp_path / "run", seeds=2, callbacks=[Diary()])
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------------------------------------------------
# Evaluation
# ---------------------------------------------------------------------------------------------------------------------


def test_an_evaluation_changes_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", 4)
    run = trained(tmp_path / "run", 4, callbacks=[Evaluation(every=2, episodes=3)])
    found = [r for r in run.metrics if "eval_return" in r]
    assert [r["iteration"] for r in found] == [1, 3]
    names = "eval_return", "eval_return_std", "eval_length", "eval_seconds"
    for with_evaluation, without in zip(run.metrics, plain.metrics, strict=True):
        kept = {k: v for k, v in with_evaluation.items() if k not in names and "_second" not in k}
        assert kept == {k: v for k, v in without.items() if "_second" not in k}
    again = rpsp.load(run.directory, 4).evaluate(3, seed=evaluation_seed(0, 4))
    assert found[-1]["eval_return"] == pytest.approx(again.returns.mean(), rel=1e-6)
    assert found[-1]["eval_return_std"] == pytest.approx(again.returns.std(), rel=1e-6)
    assert run.results["best_eval_return"] == max(r["eval_return"] for r in found)


def test_every_evaluation_has_seeds_of_its_own(tmp_path: Path, monkeypatch: Any) -> None:
    """Those of training, of evaluations and of `rpsp eval` are all different."""
    used: list[tuple[bool, int]] = []
    whole = rollouts._seed_sequence

    def noted(seed: int, *where: int) -> Any:
        sequence = whole(seed, *where)
        if where[2] == 1:  # of an episode, not of the noise in it
            used.append((where[1] == EVALUATING, int(sequence.generate_state(1)[0])))
        return sequence

    monkeypatch.setattr(rollouts, "_seed_sequence", noted)
    run = trained(tmp_path / "run", 3, callbacks=[Evaluation(every=1, episodes=4)])
    run.agent.evaluate(4)
    numbers = [number for _, number in used]
    assert sum(evaluating for evaluating, _ in used) >= 16 and len(set(numbers)) == len(numbers)


def test_the_best_checkpoint_is_the_best_evaluated_one(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for n in range(7):
        found = record(n - 1, {0: 9.0}.get(n - 1, 1.0)) if n else {"exploration_samples": 3}
        run.append(found | ({"eval_return": {2: 5.0, 4: 3.0}[n]} if n in (2, 4) else {}))
        run.save(training_of(n))
    assert run.evaluations() == {2: 5.0, 4: 3.0} == RunDirectory(tmp_path).evaluations()
    assert run.best() == 2 and run.numbers() == [2, 4, 5, 6]


def test_a_large_checkpoint_is_written_if_its_evaluation_is_the_best(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("rpsp.experiments.run_writer.LARGE", 0)
    monkeypatch.setattr("rpsp.experiments.run_writer.time", Slow())

    class Rising(Callback):
        def on_iteration(self, run: RunState) -> Any:
            if run.iteration in (2, 4, 6):
                run.log(eval_return={2: 1.0, 4: 7.0, 6: 3.0}[run.iteration])

    run = trained(tmp_path / "run", 8, callbacks=[Rising()])
    assert RunDirectory(run.directory).best() == 4
    assert {2, 6} - set(RunDirectory(run.directory).numbers()), "not every evaluated one is written"


class Slow:
    """A clock by which every write takes long."""

    now = 0.0

    def monotonic(self) -> float:
        Slow.now += 1.0
        return Slow.now


def test_flags_ask_for_evaluations_and_a_resumed_run_goes_on_with_them(tmp_path: Path, capsys: Any) -> None:
    flags = ["tasks:Drift-v0", "--method", "fm2", *FLAGS, "--eval-every", "2", "--eval-episodes", "3"]
    assert cli("train", *flags, "--iterations", "4", "--out", str(tmp_path / "whole")) == 0
    assert capsys.readouterr().out.count("(evaluated ") == 2
    assert cli("train", *flags, "--iterations", "3", "--out", str(tmp_path / "cut")) == 0
    assert cli("resume", str(tmp_path / "cut"), "--iterations", "4") == 0
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert cli("train", *flags, "--eval-every", "0", "--out", str(tmp_path / "none")) == 2
    assert "every: 0 is not a whole number ≥ 1." in capsys.readouterr().err


def test_an_evaluation_in_which_the_environment_fails_loses_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(self: Any, *arguments: Any, **named: Any) -> Any:
        raise RuntimeError("no more licences")

    class Breaking(Callback):
        def on_iteration(self, run: RunState) -> Any:
            run.make_envs = refuse  # pyright: ignore[reportAttributeAccessIssue]

    with pytest.warns(RuntimeWarning, match=r"Evaluation\.on_iteration raised"):
        run = trained(tmp_path / "run", 2, callbacks=[Breaking(), Evaluation(every=1)])
    assert run.results["iterations"] == 2


# ---------------------------------------------------------------------------------------------------------------------
# Stopping
# ---------------------------------------------------------------------------------------------------------------------


def stops(callback: Callback, values: list[float | None], metric: str = "mean_return") -> int | None:
    """The iteration, counted from 1, in which a callback stops a run with these values of a metric."""
    run = RunState(Path(), {"seed": 0}, None, lambda line: None, lambda: 0.0)
    for number, value in enumerate(values, 1):
        run.record = {} if value is None else {metric: value}
        if callback.on_iteration(run) == "stop":
            return number
    return None


@pytest.mark.parametrize(
    ("callback", "values", "expected"),
    [
        (StopAtReturn(3, average=1), [1, 2, 3, 4], 3),
        (StopAtReturn(3, average=2), [1, 2, 3, 4], 4),
        (StopAtReturn(3), [0] * 10 + [3] * 10, 20),
        (StopAtReturn(3), [9] * 10, 10),
        (StopAtReturn(5, metric="mean_return"), [1, 2, 3], None),
        (EarlyStopping(2), [1, 2, 1, 3, 3, 2, 9], 6),
        (EarlyStopping(2, least=1.0), [1, 1.5, 2.0, 3.0], 3),
        (EarlyStopping(2), [-5, None, None, -6, None, -7], 6),
        (EarlyStopping(1, metric="eval_return"), [3, 2, 1], None),
    ],
)
def test_when_a_run_is_stopped(callback: Callback, values: list[float | None], expected: int | None) -> None:
    assert stops(callback, values) == expected


def test_a_time_limit_counts_all_processes() -> None:
    clock = [59.0]
    run = RunState(Path(), {"seed": 0}, None, print, lambda: clock[0])
    run.training = training_of(1)
    limits = [TimeLimit(1), TimeLimit(hours=1 / 60)]
    assert [limit.on_iteration(run) for limit in limits] == [None, None]
    clock[0] = 60.0
    assert [limit.on_iteration(run) for limit in limits] == ["stop", "stop"]
    with pytest.raises(UsageError, match="minutes: None minutes and None hours"):
        TimeLimit()


def test_a_run_is_stopped_by_its_evaluation(tmp_path: Path) -> None:
    rising = [Evaluation(every=1, episodes=2), StopAtReturn(-1e9, metric="eval_return")]
    run = trained(tmp_path / "run", 5, callbacks=rising[::-1])
    assert run.results["iterations"] == 1, "whatever the order in which they are given"
    assert run.results["stopped_by"] == "StopAtReturn"


def test_tensorboard_gets_what_callbacks_add(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    out = tmp_path / "run"
    flags = ["tasks:Drift-v0", "--method", "fm2", *FLAGS, "--iterations", "2", "--eval-every", "1", "--quiet"]
    assert cli("train", *flags, "--logger", "tensorboard", "--out", str(out)) == 0
    (events,) = (out / "tensorboard").iterdir()
    assert b"eval_return" in events.read_bytes() and b"mean_return" in events.read_bytes()


def test_flags_stop_a_run(tmp_path: Path) -> None:
    flags = ["tasks:Drift-v0", "--method", "fm2", *FLAGS, "--iterations", "12", "--quiet"]
    assert cli("train", *flags, "--stop-at-return=-1e9", "--out", str(tmp_path / "reached")) == 0
    results = json.loads((tmp_path / "reached" / "results.json").read_text())
    assert (results["iterations"], results["stopped_by"]) == (10, "StopAtReturn")
    flags += ["--eval-every", "2", "--eval-episodes", "2", "--stop-at-return=-1e9"]
    assert cli("train", *flags, "--out", str(tmp_path / "evaluated")) == 0
    assert json.loads((tmp_path / "evaluated" / "results.json").read_text())["iterations"] == 2
    assert cli("train", *flags, "--max-hours", "1e-9", "--out", str(tmp_path / "late")) == 0
    assert json.loads((tmp_path / "late" / "results.json").read_text())["stopped_by"] == "TimeLimit"
    job = Job("late", tmp_path / "late", read_config(tmp_path / "late"))
    assert done(job), "a sweep does not start it again"


@pytest.mark.slow
def test_a_video_every_few_iterations(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", 4, callbacks=[Video(every=2, steps=5, format="gif")])
    assert [r["iteration"] for r in run.metrics if "video_seconds" in r] == [1, 3]
    assert sorted(p.name for p in (run.directory / "video").iterdir()) == ["000002-seed0.gif", "000004-seed0.gif"]
    with pytest.raises(UsageError, match="every: 0 is not"):
        Video(every=0)
    with pytest.raises(UsageError, match="format: 'avi' is not one of mp4, gif"):
        Video(format="avi")


# ---------------------------------------------------------------------------------------------------------------------
# Loggers, with their real clients and without a network
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_wandb_gets_metrics_and_a_resumed_run_continues_its_log(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = trained(tmp_path / "run", 2, callbacks=[WandbLogger("mine", tags=["small"])])
    (file,) = run.directory.glob("wandb/offline-run-*/*.wandb")
    records = when_written(lambda: wandb_records(file), 2)
    (begun,) = (r.run for r in records if r.WhichOneof("record_type") == "run")
    config = {c.key: json.loads(c.value_json) for c in begun.config.update}
    assert (begun.project, list(begun.tags), begun.display_name) == ("mine", ["small"], "run")
    assert config["method"] == "fm2" and config["num_envs"] == TINY["num_envs"]
    rows = [values(r.history.item) for r in records if r.HasField("history")]
    summary = {k: v for r in records if r.HasField("summary") for k, v in values(r.summary.update).items()}
    assert [row["mean_return"] for row in rows] == [r["mean_return"] for r in run.metrics]
    assert [row["total_samples"] for row in rows] == [r["total_samples"] for r in run.metrics]
    assert summary["final_return"] == pytest.approx(run.results["final_return"])
    assert json.loads((run.directory / "logs.json").read_text()) == {"wandb": begun.run_id}
    config = json.loads((run.directory / "config.json").read_text())
    (run.directory / "config.json").write_text(json.dumps(config | {"logger": ["wandb"]}))
    assert cli("resume", str(run.directory), "--iterations", "3", "--quiet") == 0
    logs = run.directory / "wandb"
    when_written(lambda: [r for log in logs.glob("offline-run-*/*.wandb") for r in wandb_records(log)], 3)
    assert all(log.stem == f"run-{begun.run_id}" for log in run.directory.glob("wandb/offline-run-*/*.wandb"))


def when_written(records: Callable[[], list[Any]], count: int) -> list[Any]:
    """The records when there are so many iterations among them, and a summary: another process writes them."""
    for _ in range(300):
        found = records()
        if sum(r.HasField("history") for r in found) >= count and any(r.HasField("exit") for r in found):
            break
        time.sleep(0.1)
    assert sum(r.HasField("history") for r in found) == count
    return found


def wandb_records(file: Path) -> list[Any]:
    """The records of a log of wandb, a file of LevelDB's format after seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, found, begun = file.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        begun += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            found.append(Record.FromString(begun))
            begun = b""
    return found


def values(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.mark.slow
def test_mlflow_gets_metrics_and_a_resumed_run_continues_its_log(tmp_path: Path, monkeypatch: Any) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny needs sqlalchemy for a local store")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    out, flags = tmp_path / "run", ["tasks:Drift-v0", "--method", "fm2", *FLAGS, "--quiet"]
    assert cli("train", *flags, "--iterations", "2", "--logger", "mlflow", "--out", str(out)) == 0
    assert cli("resume", str(out), "--iterations", "3", "--quiet") == 0
    client = mlflow.MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("rpsp").experiment_id])
    assert found.info.run_name == "run" and found.info.status == "FINISHED" and found.data.params["method"] == "fm2"
    history = client.get_metric_history(found.info.run_id, "mean_return")
    records = [r for r in RunDirectory(out).metrics() if "iteration" in r]
    assert [(m.step, m.value) for m in history] == [(r["total_samples"], r["mean_return"]) for r in records]
    assert len(history) == 3


def test_a_slow_logger_does_not_hold_up_a_run_and_its_errors_are_reported(tmp_path: Path) -> None:
    class Slow(Logger):
        written: list[int] = []  # noqa: RUF012 - one logger

        def open(self, run: RunState) -> None:
            self.go_on = threading.Event()

        def write(self, step: int, metrics: Any) -> None:
            assert self.go_on.wait(60), "the run waits for the logger"
            self.written.append(step)
            if len(self.written) == 2:
                raise OSError("full")

        def close(self, run: RunState) -> None:
            self.written.append(-1)

    class Last(Callback):
        def on_iteration(self, run: RunState) -> Any:
            if run.iteration == 4:
                logger.go_on.set()

    logger = Slow()
    with pytest.warns(RuntimeWarning, match="Slow.on_(end|iteration) raised OSError: full"):
        run = trained(tmp_path / "run", 4, callbacks=[Last(), logger])
    assert logger.written == [*(r["total_samples"] for r in run.metrics), -1]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_logger_without_its_package_is_refused_before_anything_is_computed(
    name: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    for package in ("tensorboardX", "wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, package, None)
    flags = ["tasks:Drift-v0", "--method", "fm2", *FLAGS, "--logger", name, "--out", str(tmp_path / "run")]
    assert cli("train", *flags) == 2
    assert f"is not installed; run `pip install rpsp[{name}]`" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_unreachable_server_costs_no_exploration(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UsageError, match=r"mlflow: the log cannot be begun .* check MLFLOW_TRACKING_URI"):
        trained(tmp_path / "run", callbacks=[MlflowLogger(tracking_uri="http://127.0.0.1:9")])
    assert not (tmp_path / "run").exists()
