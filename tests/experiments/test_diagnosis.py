"""`rpsp diagnose`: one run for each rule, made from synthetic metrics, and a healthy one."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from made_up import iteration, write_run

from rpsp.cli import main
from rpsp.cli.parsing import parse
from rpsp.errors import FileFormatError
from rpsp.experiments.commands import train_command
from rpsp.experiments.configure import configured
from rpsp.experiments.diagnosis import diagnose, judged
from rpsp.experiments.diagnosis_rules import LEAST, RULES
from rpsp.experiments.report.one_run import one_run
from rpsp.experiments.results import read_results
from rpsp.experiments.run_directory import RunDirectory

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "diagnostics.md"
N = 40
AMOUNTS = {"samples": 2000, "exploration_samples": 20_000, "max_episode_steps": 200, "num_envs": 10, "iterations": N}
RISING = np.minimum(np.linspace(-1000, 2000, N), -150) + np.resize([3.0, -3.0, 1.0], N)
"""Returns that rise, and then stay."""
FLAT = -500 + np.resize([5.0, -4.0, 0.0, -1.0], N)


def found(method="rpsi-trpo", returns=RISING, env="Pendulum-v1", config=None, **columns):
    """The diagnosis of a run that is healthy apart from these returns and metrics: numbers, or one value an iteration."""
    healthy = {
        "prediction_error": 0.01,
        "explained_variance": 0.5,
        "log_std": np.linspace(0, -0.5, N),
        "std_return": 90.0,
    }
    columns = {name: np.resize(np.asarray(value, float), len(returns)) for name, value in (healthy | columns).items()}
    records = [
        iteration(i, float(value)) | {name: float(column[i]) for name, column in columns.items()}
        for i, value in enumerate(returns)
    ]
    limit = {"max_episode_steps": gymnasium.spec(env).max_episode_steps}
    settled = configured({"env": env, "method": method, **AMOUNTS, **limit, **(config or {})})
    return judged(settled, Path("runs/one"), [{"exploration_samples": 20_000.0}, *records])


def titles(diagnosis):
    return [finding.title for finding in diagnosis.findings]


def test_a_healthy_run_gets_a_clean_bill():
    diagnosis = found()
    assert diagnosis.findings == ()
    assert diagnosis.lines()[0].startswith("nothing wrong found: the return went from")
    assert "0.04 of that of persistence" in diagnosis.summary


SICK = {
    "Failing environment": {"dropped_episodes": 10.0},
    "Updates that are not finite": {"unsound": [0.0, 1.0]},
    "Bad predictions": {"prediction_error": 0.24},
    "Certain too early": {"returns": FLAT, "log_std": np.linspace(0, -2, N)},
    "No progress": {"returns": FLAT},
    "Filter updates too large": {"method": "rpsi-alt", "whole_kl": 0.3},
    "Noisy gradients": {"explained_variance": -0.1},
    "Rejected steps": {"skipped": 1.0},
    "Diverging critics": {"method": "rpsi-sac", "value": np.geomspace(100, 1e6, N)},
    "Clipped ratios": {"method": "rpsi-ppo", "clip_fraction": 0.6},
    "Slow refits": {"refit_seconds": 30.0},
    "Unfinished": {"returns": np.linspace(-1000, -150, N)},
    "Stuck below the solution": {"env": "MountainCarContinuous-v0", "returns": np.minimum(np.linspace(-40, 60, N), 0)},
}


@pytest.mark.parametrize("title", SICK)
def test_each_rule_finds_its_problem_first_and_proposes_a_command_that_parses(title):
    diagnosis = found(**SICK[title])
    assert titles(diagnosis)[0] == title
    first, words = diagnosis.findings[0], shlex.split(diagnosis.findings[0].command)
    assert diagnosis.lines()[:3] == [f"{title}: {first.problem}", f"Try: {first.remedy}", f"  {first.command}"]
    if words[0] == "rpsp":
        parse(words[1:])
    else:
        assert words[:2] == ["python", "-c"]
        compile(words[2], "command", "exec")


def test_every_rule_has_a_test_and_stands_in_the_guide_in_the_same_order():
    assert {*SICK, "Too early to tell"} == {rule.title for rule in RULES}
    listed = re.findall(r"^\d+\. \*\*(.+?)\.\*\*", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [title for title in listed if title in {*SICK, "Too early to tell"}] == [rule.title for rule in RULES]


def test_a_short_run_is_not_judged_by_trends():
    assert titles(found(returns=FLAT[: LEAST - 1])) == ["Too early to tell"]
    assert titles(found(returns=FLAT[: LEAST - 1], prediction_error=0.24, dropped_episodes=50.0)) == [
        "Failing environment",
        "Too early to tell",
    ]


REFUSED = {"refit_accepted": 0.0, "refit_error_before": 0.9, "refit_error_after": 0.5}


@pytest.mark.parametrize(
    ("columns", "command"),
    [
        ({"prediction_error": 0.24}, "--past"),
        ({"prediction_error": 0.24, **REFUSED}, "--refit-kl 1"),
        ({"returns": FLAT}, "--method rpsi-sac"),
        ({"returns": FLAT, "method": "rpsi-sac"}, "--pink-noise 1"),
        ({"returns": FLAT, "method": "rpsi-sac", "config": {"pink_noise": 1.0}}, "--observe all"),
        ({"returns": FLAT, "env": "Acrobot-v1", "log_std": np.nan, "entropy": 1.0}, "--method rpsi-ppo"),
        ({"method": "rpsi-ppo", "unsound": 1.0}, "--learning-rate 0.0001"),
        ({"unsound": 1.0}, "--max-kl 0.003"),
    ],
)  # fmt: skip
def test_the_command_depends_on_the_method_and_on_what_was_seen(columns, command):
    assert command in found(**columns).findings[0].command


def test_windows_are_not_blamed_for_their_predictions():
    assert "Bad predictions" not in titles(found(method="fm2", prediction_error=0.25))


def test_a_solved_task_is_healthy_although_its_return_no_longer_moves():
    assert found(env="CartPole-v1", returns=np.full(N, 500.0), std_return=0.0, explained_variance=-1.0).findings == ()


def test_with_shorter_episodes_the_known_solution_does_not_count():
    best = {"env": "CartPole-v1", "returns": np.minimum(np.linspace(0, 400, N), 200), "std_return": 0.0}
    assert titles(found(**best)) == ["Stuck below the solution"]
    assert titles(found(**best, config={"max_episode_steps": 200})) == []


def test_a_return_that_is_always_the_same_is_said_to_be():
    (problem,) = (f.problem for f in found(env="MountainCar-v0", returns=np.full(N, -200.0)).findings[:1])
    assert problem == "the return is -200.0 in every iteration: its actions never reach a reward."


def test_a_constant_return_is_judged_before_trends_are():
    assert titles(found(env="MountainCar-v0", returns=np.full(4, -200.0))) == ["No progress"]
    assert titles(found(env="MountainCar-v0", returns=np.full(3, -200.0))) == ["Too early to tell"]
    assert titles(found(env="CartPole-v1", returns=np.full(4, 500.0))) == ["Too early to tell"]


def test_a_run_that_still_rises_is_continued_to_twice_its_length_in_round_numbers():
    (finding,) = found(returns=np.linspace(-1000, -150, N)).findings
    steps = int(finding.command.split()[-1])
    assert finding.command.startswith("rpsp resume runs/one --steps") and steps == float(f"{steps:.2g}")


def test_noise_is_not_progress():
    """Of 200 runs whose returns are independent noise, few count as progress; a rise of two deviations does."""
    rng = np.random.default_rng(0)
    lucky = sum("No progress" not in titles(found(returns=rng.normal(size=N))) for _ in range(200))
    assert lucky <= 20
    missed = sum("No progress" in titles(found(returns=rng.normal(size=N) + np.linspace(0, 4, N))) for _ in range(50))
    assert missed <= 2


def test_a_configuration_as_a_command_has_the_flags_that_were_given():
    given = {"env": "Hopper-v5", "method": "rpsi-ppo", "seed": 3, "observe": "0,1", "past": 5, "steps": 100_000}
    resolved = {"samples": 4000, "exploration_episodes": 100, "max_episode_steps": 1000, "num_envs": 4}
    command = train_command(configured({**given, **resolved}), past=7)
    assert command == "rpsp train Hopper-v5 --method rpsi-ppo --observe 0,1 --past 7 --seed 3 --steps 100000"
    assert "--past" not in train_command(configured({**given, **resolved}), method="fm2")
    assert train_command(configured({"env": "a factory", "method": "rpsi-trpo", **AMOUNTS}), past=7) == (
        f"rpsp.train(make_env, method='rpsi-trpo', iterations={N}, past=7)"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Run directories
# ---------------------------------------------------------------------------------------------------------------------


def test_the_command_reads_run_directories(run_of, capsys):
    run = run_of("one", FLAT)
    main(["diagnose", str(run), "--json"])
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("No progress: the return has not risen")
    content = json.loads(last)["runs"][str(run)]
    assert content["findings"][0]["title"] == "No progress"
    several = run.parent / "several"
    for seed in range(2):
        run_of(f"several/s{seed}", FLAT)
    main(["diagnose", str(several)])
    assert [line for line in capsys.readouterr().out.splitlines() if str(several) in line][:2] == [
        str(several / "s0"),
        str(several / "s1"),
    ]


def test_the_report_has_the_diagnosis(run_of):
    (result,), doubts = read_results([run_of("one", FLAT)])
    page = "".join(one_run(result, doubts)[2])
    assert "<h2>Diagnosis</h2>" in page and "<b>No progress:</b>" in page and "--method" in page


def test_training_that_never_moved_says_so_at_its_end(run_of):
    run = run_of("one", FLAT)
    first, command, more = diagnose(run).at_end(run)
    assert first.startswith("No progress") and command.startswith("  rpsp train") and more.endswith(str(run))
    rising = run_of("two", np.linspace(0, 500, N))
    assert diagnose(rising).at_end(rising) == []


def test_a_run_without_records_is_refused(run_of):
    run = run_of("one", FLAT)
    RunDirectory(run).metrics_file.write_bytes(b"")
    with pytest.raises(FileFormatError, match="not finished"):
        diagnose(run)


@pytest.fixture
def run_of(tmp_path):
    """A function that writes a run with these returns."""

    def write(name, returns):
        return write_run(tmp_path / name, [float(value) for value in returns], method="rpsi-trpo")

    return write
