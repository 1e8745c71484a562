"""Algorithm 1: what a record holds, what may move, what is kept for refits, and that few shapes are compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparing import stepping
from small_training import LIMIT, SETTINGS, Made, drifting, numbers, predicting, window

from rpsp.algorithms.alternating import InSequence
from rpsp.algorithms.base import AbstractAlgorithm, everything, filter_only, policy_only
from rpsp.algorithms.policies import Agent
from rpsp.algorithms.ppo import Ppo
from rpsp.algorithms.sac import Sac
from rpsp.algorithms.trpo import Trpo
from rpsp.algorithms.vrpg import Vrpg
from rpsp.data.batches import Batch, pack, unpack
from rpsp.data.episodes import Episode
from rpsp.envs.make import make
from rpsp.errors import DivergedError, UsageError
from rpsp.filters.memory import GRU, FiniteMemory
from rpsp.training.loop import begin, max_episode_steps, packed, train
from rpsp.training.refits import _rows_split
from rpsp.training.rollouts import Collected, collect
from rpsp.training.state import Recipe, Record, Training, TrainingSettings


def history(recipe: Recipe, iterations: int, settings: TrainingSettings = SETTINGS) -> list[tuple[Training, Record]]:
    return list(train(recipe, drifting(), settings, iterations))


@pytest.fixture(scope="module")
def trained() -> tuple[list[tuple[Training, Record]], list[int]]:
    """TRPO on a window for 30 iterations, and the number of compilations during each."""
    compilations = [0]

    def count(event: str, *_: Any, **__: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compilations[-1] += 1

    jax.monitoring.register_event_duration_secs_listener(count)
    steps = []
    for step in train(Recipe(window, Trpo()), drifting(), SETTINGS, 30):
        steps.append(step)
        compilations.append(0)
    return steps, compilations[:-1]


# ---------------------------------------------------------------------------------------------------------------------
# Records
# ---------------------------------------------------------------------------------------------------------------------


def test_a_record_says_everything_that_a_log_wants(trained: Any) -> None:
    (_, first), *rest = trained[0]
    assert {"exploration_samples", "prediction_error", "persistence_error", "state_size"} <= set(first)
    for n, (training, record) in enumerate(rest):
        assert {
            "iteration", "mean_return", "mean_length", "prediction_error", "persistence_error", "kl", "whole_kl",
            "gradient_norm", "explained_variance", "steps_per_second", "dropped_episodes", "skipped", "total_samples",
        } <= set(record)  # fmt: skip
        assert record["iteration"] == n == training.iteration - 1
        assert all(isinstance(value, int | float) and np.isfinite(value) for value in record.values())
    samples = [first["exploration_samples"], *(record["samples"] for _, record in rest)]
    assert [training.samples for training, _ in trained[0]] == np.cumsum(samples).tolist()
    assert rest[-1][1]["total_samples"] == sum(samples)


def test_it_learns(trained: Any) -> None:
    returns = [record["mean_return"] for _, record in trained[0][1:]]
    assert np.mean(returns[-5:]) > np.mean(returns[:5]) + 1


def test_the_whole_policy_has_moved_as_far_as_trpo_says_if_only_the_policy_moves(trained: Any) -> None:
    for _, record in trained[0][1:]:
        assert 0 < record["whole_kl"] <= 0.01 * (1 + 1e-4)
        assert record["whole_kl"] == pytest.approx(record["kl"], rel=1e-4)


@pytest.mark.parametrize("n", [0, 7])
def test_errors_are_those_of_a_plain_loop(trained: Any, n: int) -> None:
    """Episodes of iteration n drawn again; states and predictions step by step, pooled in float64."""
    (before, _), (_, record) = trained[0][n], trained[0][n + 1]
    agent = before.agent
    episodes = collect(
        agent, drifting(), scaling=before.scaling, samples=SETTINGS.samples, seed=SETTINGS.seed, iteration=n
    ).episodes
    predicted, persisted, actual = [], [], []
    for episode in episodes:
        W = np.asarray(agent.filter.W_pred, np.float64)
        o = episode.observations
        for t, action in enumerate(episode.actions, 1):
            earlier = o[t - 2] if t >= 2 else np.zeros(2)
            predicted.append(np.concatenate([earlier, o[t - 1], action, [1.0]]) @ W)
            persisted.append(o[t - 1])
            actual.append(o[t])
    variance = np.var(actual, axis=0).sum()
    for name, guess in (("prediction_error", predicted), ("persistence_error", persisted)):
        expected = np.square(np.subtract(guess, actual)).mean(axis=0).sum() / variance
        assert record[name] == pytest.approx(expected, rel=1e-4)


def test_few_shapes_are_compiled_and_rows_never_become_fewer(trained: Any) -> None:
    steps, compilations = trained
    rows = [training.rows for training, _ in steps]
    assert rows == sorted(rows) and rows[0] == 4  # one more than 60 samples fill
    episodes = {record["episodes"] for _, record in steps[1:]}
    assert len(episodes) > 5, "batches must differ for this to mean anything"
    shapes = len(set(rows[1:]))
    # The first iteration compiles acting, update and diagnosis; a new shape the last two, with a few constants.
    assert sum(count > 0 for count in compilations[2:]) <= shapes - 1
    assert shapes <= 3 and sum(compilations[12:]) == 0


def test_rows_grow_by_half_when_they_must() -> None:
    def episode(length: int) -> Episode:
        return Episode(np.zeros((length + 1, 2)), np.zeros((length, 1)), np.zeros(length))

    envs = drifting()
    assert max_episode_steps(envs) == LIMIT
    for count, rows, expected in ((1, 4, 4), (4, 4, 4), (5, 4, 6), (9, 4, 9), (3, 1, 3)):
        batch = packed(Collected([episode(15)] * count, 0), envs, rows)
        assert batch.shape == (expected, LIMIT)
        assert batch.mask.sum() == 15 * count
        assert batch.starts[~batch.mask].all() and batch.starts[batch.mask].sum() == count


# ---------------------------------------------------------------------------------------------------------------------
# What moves, and what a run depends on
# ---------------------------------------------------------------------------------------------------------------------


gru = Made(lambda batch, held_out, key: GRU(4, 2, 1, key=key))


def test_a_frozen_filter_stays_bit_for_bit(trained: Any) -> None:
    (first, _), *_, (last, _) = trained[0]
    np.testing.assert_array_equal(numbers(first.agent.filter), numbers(last.agent.filter))
    assert not np.array_equal(numbers(first.agent.policy), numbers(last.agent.policy))
    assert len(numbers(last.agent.filter)) > 0


def test_alternation_moves_both_and_each_of_its_halves_only_its_own() -> None:
    algorithm = InSequence(Trpo(moves=policy_only), Vrpg(moves=filter_only, filter_kl=0.02))
    steps = history(Recipe(gru, algorithm), 2)
    (begun, _), (first, record), (second, _) = steps
    for part in ("filter", "policy"):
        assert not np.array_equal(numbers(getattr(begun.agent, part)), numbers(getattr(first.agent, part)))
        assert not np.array_equal(numbers(getattr(first.agent, part)), numbers(getattr(second.agent, part)))
    assert {"trpo/kl", "trpo/gradient_norm", "trpo/skipped", "trpo/explained_variance"} <= set(record)
    assert {"vrpg/kl", "vrpg/policy_gradient_norm", "vrpg/prediction_gradient_norm", "vrpg/skipped"} <= set(record)
    # TRPO alone, on the same batch: the filter is not touched, and the policy is that of the alternation.
    alone = history(Recipe(gru, Trpo(moves=policy_only)), 1)[1][0].agent
    np.testing.assert_array_equal(numbers(alone.filter), numbers(begun.agent.filter))
    np.testing.assert_array_equal(numbers(alone.policy), numbers(first.agent.policy))


def test_a_run_taken_up_again_gives_the_same_bits(trained: Any) -> None:
    whole = trained[0]
    middle, _ = whole[4]
    again = list(train(Recipe(window, Trpo()), drifting(), SETTINGS, 7, middle))
    assert [training.iteration for training, _ in again] == [5, 6, 7]
    for (training, record), (expected, recorded) in zip(again, whole[5:8], strict=True):
        np.testing.assert_array_equal(numbers(training.agent), numbers(expected.agent))
        assert {k: v for k, v in record.items() if "second" not in k} == {
            k: v for k, v in recorded.items() if "second" not in k
        }


def test_sac_learns_with_discrete_actions() -> None:
    """Gradients while acting, distributions of returns and scaled inputs together; its buffer has one-hot actions."""
    given: Any = {"scale_rewards": True, "atoms": 11, "running_scale": True, "learn_every": 8}
    recipe = Recipe(FiniteMemory(window=1), Sac(minibatch=16, capacity=500, hidden=(8,), **given))
    with closing(make("CartPole-v1")) as envs:
        *_, (training, record) = train(recipe, envs, SETTINGS, 2)
    assert np.isfinite(record["critic_loss"]) and record["skipped"] == 0
    assert 0 < record["entropy"] <= np.log(2) + 1e-6
    actions = np.asarray(training.memory.stored.action)[: int(training.memory.steps)]
    np.testing.assert_array_equal(np.unique(actions, axis=0), [[0, 1], [1, 0]])


def test_two_ways_to_scale_the_inputs_are_refused() -> None:
    recipe = Recipe(window, Sac(minibatch=16, hidden=(8,), running_scale=True))
    with pytest.raises(UsageError, match=r"renew_units: .*running_scale.*; turn one of the two off"):
        begin(recipe, drifting(), replace(SETTINGS, renew_units=True))


@pytest.mark.parametrize("algorithm", [Ppo(1e-2, passes=2, minibatch=16, hidden=(4,)), Trpo()])
def test_units_follow_the_states_and_change_no_function(algorithm: AbstractAlgorithm) -> None:
    """After 1, 2 and 4 iterations: the batch's mean and spread, no less than a tenth of the largest; the same numbers."""
    batches, updated = [], []

    def step(real: Any, agent: Agent, memory: Any, batch: Batch, key: Any) -> Any:
        found = real(agent, memory, batch, key=key)
        batches.append(batch)
        updated.append(found[:2])
        return found

    steps = history(Recipe(window, stepping(algorithm, step)), 5, replace(SETTINGS, renew_units=True))[1:]
    renewed = []
    for (training, _), batch, (agent, memory) in zip(steps, batches, updated, strict=True):
        states = np.asarray(batch.states)[batch.mask]
        networks = [(agent.policy.network, training.agent.policy.network)]
        if memory:
            networks.append((memory.critic, training.memory.critic))
        renewed.append(training.agent.policy is not agent.policy)
        for old, new in networks:
            np.testing.assert_allclose(*(jax.vmap(f)(states) for f in (old, new)), atol=1e-5)
            if renewed[-1]:
                spread = states.std(axis=0)
                np.testing.assert_allclose(new.mean, states.mean(axis=0), atol=1e-5)
                np.testing.assert_allclose(new.scale, np.maximum(spread, 0.1 * spread.max()), rtol=1e-4)
    assert renewed == [True, True, False, True, False]


def test_another_seed_is_another_run() -> None:
    one, other = (
        begin(Recipe(window, Trpo()), drifting(), TrainingSettings(samples=60, exploration_episodes=8, seed=seed))[
            0
        ].scaling
        for seed in (0, 1)
    )
    assert not np.array_equal(one.mean, other.mean)


# ---------------------------------------------------------------------------------------------------------------------
# Refits
# ---------------------------------------------------------------------------------------------------------------------


def counting(select: Any) -> tuple[AbstractAlgorithm, list[Batch]]:
    """An algorithm that leaves the agent as it is and remembers how many steps it took; and the batches it was given."""
    seen: list[Batch] = []

    class Counting(AbstractAlgorithm):
        def init(self, agent: Agent, *, key: Any) -> Any:
            return jnp.zeros(())

        def step(self, agent: Agent, memory: Any, batch: Batch, *, key: Any) -> Any:
            seen.append(batch)
            return agent, memory + 1, {}

        def select(self, agent: Agent) -> Any:
            return select(agent)

    return Counting(), seen


def rows_of(*batches: Batch) -> Counter[bytes]:
    """The rows of some batches that hold anything, whatever their order."""
    return Counter(
        batch.observations[row].tobytes() + batch.rewards[row].tobytes()
        for batch in batches
        for row in range(batch.shape[0])
        if batch.mask[row].any()
    )


def refitting(
    change: Any, select: Any = policy_only, same_coordinates: bool = True, **settings: Any
) -> tuple[list[tuple[Training, Record]], Any]:
    """Runs of 9 iterations with refits before 2, 3 and 8, by `change`; and what the refits and the algorithm were given."""
    algorithm, batches = counting(select)
    given: list[tuple[Batch, Batch]] = []

    @dataclass(frozen=True, eq=False)
    class Changing(Made):
        keeps_coordinates: ClassVar[bool] = same_coordinates

        def refit(self, filter: Any, batch: Batch, held_out: Batch, *, key: Any) -> Any:
            given.append((batch, held_out))
            return change(filter)

    refits: dict[str, Any] = {"refit_before": (2, 3, 8), "refit_batches": 2} | settings
    amounts = TrainingSettings(samples=60, exploration_episodes=8, **refits)
    return history(Recipe(Changing(window.make), algorithm), 9, amounts), (given, batches)


def better(filter: Any, by: float = 0.0) -> Any:
    """It predicts that the last observation returns, and is wrong `by` that much."""
    return predicting(by + np.eye(6)[:, 2:4])


def test_a_refit_sees_exactly_the_latest_batches_and_no_others_are_kept() -> None:
    steps, (given, batches) = refitting(better)
    assert len(given) == 3
    for (batch, held), n in zip(given, (2, 3, 8), strict=True):
        assert rows_of(batch, held) == rows_of(batches[n - 2], batches[n - 1])
        assert 0 < rows_of(held).total() <= 0.4 * rows_of(batch, held).total()
        assert batch.shape[0] % 8 == held.shape[0] % 8 == 0
    for training, _ in steps:
        n = training.iteration  # batches n-1, n-2, … are there; which of them will be seen?
        later = [m for m in (2, 3, 8) if m >= n]
        wanted = [b for b in range(n) if later and b >= later[0] - 2]
        assert rows_of(*training.recent) == rows_of(*(batches[b] for b in wanted)), n


def test_a_refit_is_taken_only_if_it_predicts_better() -> None:
    steps, _ = refitting(better)
    records = {int(r["iteration"]): r for _, r in steps[1:]}
    assert [n for n, r in records.items() if "refit_accepted" in r] == [2, 3, 8]
    # After the first there is nothing to gain, and equal is not better.
    assert [records[n]["refit_accepted"] for n in (2, 3, 8)] == [1, 0, 0]
    assert records[2]["refit_error_after"] < records[2]["refit_error_before"] and "refit_kl" in records[2]
    assert records[3]["refit_error_after"] == records[3]["refit_error_before"]

    worse, _ = refitting(lambda filter: better(filter, by=10.0))
    assert [r["refit_accepted"] for _, r in worse[1:] if "refit_accepted" in r] == [0, 0]
    np.testing.assert_array_equal(numbers(worse[-1][0].agent.filter), numbers(worse[0][0].agent.filter))


def test_after_two_rejections_in_a_row_scheduled_refits_are_left_out() -> None:
    """One after the second rejection, two after the third, four after the fourth."""
    steps, _ = refitting(lambda filter: better(filter, by=10.0), refit_before=tuple(range(2, 10)))
    assert [r["iteration"] for _, r in steps[1:] if "refit_accepted" in r] == [2, 3, 5, 8]


def test_a_belief_that_predicts_well_is_not_refitted() -> None:
    steps, (given, _) = refitting(better, refit_above=1e6)
    assert not given and [r["iteration"] for _, r in steps[1:] if r.get("refit_skipped")] == [2, 3, 8]


def test_refits_can_be_started_by_the_error_and_wait_longer_after_every_rejection() -> None:
    """A first refit helps; then the filter is as good as persistence, an error of 1, and others have nothing to gain."""
    settings: dict[str, Any] = {"refit_before": (), "refit_wait": 2, "refit_above": 0.0}
    steps, (given, batches) = refitting(better, refit_when=0.5, **settings)
    taken = {int(r["iteration"]): r["refit_accepted"] for _, r in steps[1:] if "refit_accepted" in r}
    assert taken == {1: 1, 3: 0, 7: 0}, "2 iterations after the first, 4 after a rejection; the next would be before 15"
    assert rows_of(*given[2]) == rows_of(batches[5], batches[6])
    for training, record in steps[1:]:
        assert training.error_ratio == pytest.approx(record["prediction_error"] / record["persistence_error"], rel=1e-6)
        assert len(training.recent) == min(training.iteration, 2)

    few, (given, _) = refitting(better, refit_when=1e6, **settings)
    assert not given and len(few) == 10


def test_a_refit_that_moves_the_policy_too_far_must_halve_the_error() -> None:
    def first_refit(by: float, **settings: Any) -> dict[str, float]:
        steps, _ = refitting(lambda filter: better(filter, by), **settings)
        return next(record for _, record in steps if "refit_accepted" in record)

    for by, halved in ((0.9, False), (0.3, True)):
        alike, too_far = first_refit(by), first_refit(by, refit_kl=-1.0)
        assert 0 < alike["refit_error_after"] < alike["refit_error_before"]
        assert (alike["refit_error_after"] < alike["refit_error_before"] / 2) == halved
        assert alike["refit_accepted"] and too_far["refit_accepted"] == halved


@pytest.mark.parametrize("failure", [UsageError("too short"), DivergedError("not finite")])
def test_a_refit_that_fails_is_refused_and_the_run_goes_on(failure: Exception) -> None:
    def fail(filter: Any) -> Any:
        raise failure

    steps, _ = refitting(fail)
    assert len(steps) == 10
    assert [r["refit_accepted"] for _, r in steps[1:] if "refit_accepted" in r] == [0, 0]


def test_memory_is_forgotten_where_parameters_have_changed_their_meaning() -> None:
    def memories(steps: Any) -> list[float]:
        return [float(training.memory) for training, _ in steps]

    whole = [float(n) for n in range(10)]
    after = [0, 1, 2, 1, 2, 3, 4, 5, 6, 7]  # only the refit before iteration 2 is taken
    assert memories(refitting(better, policy_only)[0]) == whole
    assert memories(refitting(better, everything)[0]) == after
    assert memories(refitting(better, policy_only, same_coordinates=False)[0]) == after
    assert memories(refitting(lambda filter: better(filter, by=10.0), everything)[0]) == whole


@pytest.mark.parametrize("lengths", [(20,), (20, 20), (20, 20, 20, 20, 20, 20, 20, 20, 20, 20)])
def test_rows_are_split_for_fitting_and_judging(lengths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    batch = pack(
        [Episode(rng.normal(size=(n + 1, 2)), rng.normal(size=(n, 1)), rng.normal(size=n)) for n in lengths],
        row_length=LIMIT,
    )
    wide = pack([Episode(rng.normal(size=(31, 2)), rng.normal(size=(30, 1)), rng.normal(size=30))])
    fitted, held = _rows_split((batch,), SETTINGS, 1, np.random.default_rng(0))
    assert fitted.mask.any() and held.mask.any()
    if len(lengths) > 1:
        assert rows_of(fitted, held) == rows_of(batch)
        assert held.mask.sum() == 20 * max(1, round(0.2 * len(lengths)))
    # Rows of another length, and no more of them than asked for.
    few = TrainingSettings(samples=60, refit_samples=60)
    fitted, held = _rows_split((batch, wide), few, 1, np.random.default_rng(0))
    assert fitted.shape[1] == held.shape[1] == 30
    assert fitted.mask.sum() + held.mask.sum() <= 60
    assert fitted.starts[~fitted.mask].all()


def test_of_few_rows_whole_episodes_are_held_out() -> None:
    """Episodes of one to nine steps in a full row and a nearly empty one: about a fifth of the steps, whichever they are."""
    rng = np.random.default_rng(0)
    lengths = [n for n in range(1, 10) for _ in range(2)]  # 90 steps
    episodes = [Episode(rng.normal(size=(n + 1, 2)), rng.normal(size=(n, 1)), rng.normal(size=n)) for n in lengths]
    batch = pack(episodes, row_length=85)
    assert len(batch.mask) == 2
    for seed in range(20):
        fitted, held = _rows_split((batch,), SETTINGS, 1, np.random.default_rng(seed))
        assert 18 <= held.mask.sum() < 18 + 9 and fitted.mask.sum() + held.mask.sum() == 90
        found = Counter(e.rewards.tobytes() for e in (*unpack(fitted), *unpack(held)) if e.rewards is not None)
        assert found == Counter(np.float32(e.rewards).tobytes() for e in episodes)


@pytest.mark.slow
def test_acting_stays_on_the_cpu_wherever_updates_are_computed() -> None:
    """Two devices of the host stand for a CPU and a GPU: updates on the second, acting on the first, refits in between."""
    program = """
import jax
from rpsp.experiments.configure import configured
from rpsp.experiments.resolve import environment_maker, resolve
from rpsp.experiments.execution import ingredients
from rpsp.training.acting import lockstep
from rpsp.training.loop import train

first, second = jax.devices("cpu")
config = configured({"env": "InvertedPendulum-v5", "method": "rpsi-ppo", "samples": 400})
make_envs = environment_maker(config)
recipe, amounts = ingredients(resolve(config, make_envs))
with jax.default_device(second):
    for training, _ in train(recipe, make_envs(2), amounts, 3):
        arrays = [x for x in jax.tree.leaves(training.agent) if isinstance(x, jax.Array)]
        assert {device for x in arrays for device in x.devices()} == {second}
        acting = lockstep(training.agent, True)
        assert {device for x in acting.args[0] for device in x.devices()} == {first}
"""
    flags = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    subprocess.run([sys.executable, "-c", program], env=flags, check=True)
