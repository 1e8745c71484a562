"""Refits: the policy keeps its sense when its input is fitted anew."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from rpsp.algorithms.networks import Network
from rpsp.algorithms.policies import Agent, GaussianPolicy
from rpsp.data.batches import Batch, pack
from rpsp.data.episodes import Episode
from rpsp.data.scaling import fit_scaling
from rpsp.filters.base import Concatenated, compiled_unroll, one_step_error
from rpsp.filters.inference import Inference, fit_inference
from rpsp.filters.memory import observation_window
from rpsp.filters.two_stage import KernelBayes, fit_two_stage
from rpsp.training.refits import is_due, next_refit, re_expressed, refitted
from rpsp.training.state import Training, TrainingSettings

INFERENCE = Inference(past=3, future=2, bumps=10, rounds=1, bends=(1e9,))
TWO_STAGE = KernelBayes(past=3, future=2, dimension=4)


@cache
def episodes_of(seed: int, damping: float = 0.9) -> list[Episode]:
    """A swinging point that is pushed; its position is seen, and the push."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(16):
        x, v, a = rng.normal(), rng.normal(), rng.normal(size=(16, 1)).clip(-1, 1)
        seen = [x]
        for push in a[:, 0]:
            v = damping * v - 0.3 * x + 0.3 * push
            x = x + 0.3 * v
            seen.append(x)
        found.append(Episode(np.array(seen)[:, None], a, np.zeros(16), truncated=True))
    return found


def batches(seed: int, damping: float = 0.9) -> tuple[Batch, Batch]:
    episodes = episodes_of(seed, damping)
    return pack(episodes[:12]), pack(episodes[12:])


def trained_policy(inputs: int, states: np.ndarray) -> Any:
    """A policy whose output layer is not zero any more."""
    policy = GaussianPolicy(inputs, 2, scaling=fit_scaling(states), key=jax.random.key(0))
    return eqx.tree_at(lambda p: p.network.layers[-1].weight, policy, jax.random.normal(jax.random.key(1), (2, 16)))


def outputs(network: Network, states: np.ndarray) -> np.ndarray:
    return np.asarray(jax.vmap(network)(np.asarray(states, np.float32)))


def arrays(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


# ---------------------------------------------------------------------------------------------------------------------
# The first layer in new coordinates
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 8])
def test_an_affine_change_of_states_leaves_the_outputs_alone(size: int) -> None:
    """q' = M q + m, also into more coordinates: the ridge of 1e-5 a sample is all that is lost."""
    rng = np.random.default_rng(0)
    z, units = rng.normal(size=(3000, 5)), [1.0, 10.0, 0.1, 2.0, 1.0]
    M, m = np.linalg.qr(rng.normal(size=(size, size)))[0][:5] * 4.0, 5 * rng.normal(size=size)
    old, new = 3.0 + units * z, z @ M + m
    network = trained_policy(5, 1.5 * old + 1.0).network  # in the units of other states, as after some training
    expected = outputs(network, old)
    spread = expected.std(axis=0).min()
    again = re_expressed(network, old, new, fit_scaling(new))
    np.testing.assert_allclose(outputs(again, new), expected, atol=0.02 * spread)
    nearly = re_expressed(network, old, new, fit_scaling(new), penalty=1e-9)
    np.testing.assert_allclose(outputs(nearly, new), expected, atol=1e-3 * spread)
    # What it replaces is no good for the new states.
    if size == 5:
        assert np.abs(outputs(network, new) - expected).mean() > spread


def test_the_new_first_layer_sees_states_in_their_own_units_and_the_rest_is_untouched() -> None:
    rng = np.random.default_rng(1)
    old = rng.normal(size=(500, 3))
    new = 100 * old[:, ::-1] - 7
    network = trained_policy(3, old).network
    again = re_expressed(network, old, new, fit_scaling(new))
    np.testing.assert_allclose(again.mean, new.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(again.scale, fit_scaling(new).scale, rtol=1e-5)
    for before, after in zip(arrays(network.layers[1:]), arrays(again.layers[1:]), strict=True):
        np.testing.assert_array_equal(before, after)
    assert jax.tree.structure(again) == jax.tree.structure(network)
    assert all(x.dtype == np.float32 for x in arrays(again))


def test_states_that_no_longer_say_everything_are_used_as_well_as_they_can_be() -> None:
    """With one of two equal coordinates gone nothing is lost; with noise alone the output is that of the mean state."""
    rng = np.random.default_rng(2)
    one = rng.normal(size=(4000, 1))
    network = trained_policy(2, np.hstack([one, one])).network
    expected = outputs(network, np.hstack([one, one]))
    kept = re_expressed(network, np.hstack([one, one]), 3 * one, fit_scaling(3 * one))
    np.testing.assert_allclose(outputs(kept, 3 * one), expected, atol=0.02 * expected.std())
    noise = rng.normal(size=(4000, 1))
    lost = re_expressed(network, np.hstack([one, one]), noise, fit_scaling(noise))
    at_mean = outputs(network, np.zeros((1, 2)))
    assert np.abs(outputs(lost, np.zeros((1, 1))) - at_mean).max() < 0.1 * expected.std()


def test_aligning_the_new_states_with_the_old_ones_first_changes_nothing() -> None:
    """No rotation before the regression helps: the regression contains all of them, also where it cannot be exact."""
    rng = np.random.default_rng(3)
    old = rng.normal(size=(3000, 4))
    new = np.tanh(old @ rng.normal(size=(4, 4))) + 0.3 * rng.normal(size=(3000, 4))
    U, _, Vt = np.linalg.svd((new - new.mean(axis=0)).T @ (old - old.mean(axis=0)))
    aligned = new @ (U @ Vt)  # Procrustes
    network = trained_policy(4, old).network
    as_found, rotated = (outputs(re_expressed(network, old, x, fit_scaling(x)), x) for x in (new, aligned))
    spread = outputs(network, old).std(axis=0).min()
    assert np.abs(as_found - outputs(network, old)).mean() > 0.1 * spread  # something is lost
    np.testing.assert_allclose(rotated, as_found, atol=1e-3 * spread)  # but the ridge of 1e-5 a sample


# ---------------------------------------------------------------------------------------------------------------------
# Filters fitted again
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plus_obs", [False, True])
def test_a_filter_that_keeps_its_coordinates_keeps_the_policy(plus_obs: bool) -> None:
    belief: Any = fit_inference(*batches(0), INFERENCE, rng=np.random.default_rng(0))
    filter = Concatenated(belief, observation_window(2, 1, 1)) if plus_obs else belief
    batch, held = batches(1, damping=0.5)
    states = np.asarray(compiled_unroll(filter, batch), np.float64)[batch.mask]
    agent = Agent(filter, trained_policy(filter.size, states))
    new: Any = refitted(INFERENCE, agent, batch, held, key=jax.random.key(1), rng=np.random.default_rng(1))
    found: Any = new.filter.first if isinstance(new.filter, Concatenated) else new.filter
    assert isinstance(new.filter, Concatenated) == plus_obs and type(found) is type(belief)
    for name in ("P", "mean_future"):  # what a coordinate means
        np.testing.assert_array_equal(getattr(found, name), getattr(belief, name))
    # It has learned the other dynamics, and the states it gives mean about what they did.
    assert one_step_error(new.filter, held) < 0.5 * one_step_error(agent.filter, held)
    again = np.asarray(compiled_unroll(new.filter, batch), np.float64)[batch.mask]
    expected = outputs(agent.policy.network, states)
    naive, imitated = (
        np.abs(outputs(policy.network, again) - expected).mean() / expected.std()
        for policy in (agent.policy, new.policy)
    )
    assert imitated < 0.25 and imitated < 0.5 * naive < 0.25


def test_a_filter_with_new_coordinates_gets_the_policy_expressed_in_them() -> None:
    batch, held = batches(0)
    filter = fit_two_stage(batch, TWO_STAGE, rng=np.random.default_rng(0))
    states = np.asarray(compiled_unroll(filter, batch), np.float64)[batch.mask]
    agent = Agent(filter, trained_policy(filter.size, states))
    # Other random features: the same world in other coordinates.
    new: Any = refitted(TWO_STAGE, agent, batch, held, key=jax.random.key(5), rng=np.random.default_rng(5))
    again = np.asarray(compiled_unroll(new.filter, batch), np.float64)[batch.mask]
    policy: Any = new.policy
    old_policy: Any = agent.policy
    expected = outputs(old_policy.network, states)
    naive = np.abs(outputs(old_policy.network, again) - expected).mean()
    expressed = np.abs(outputs(policy.network, again) - expected).mean()
    assert expressed < 0.25 * expected.std() and expressed < 0.5 * naive


# ---------------------------------------------------------------------------------------------------------------------
# Which refits are left out
# ---------------------------------------------------------------------------------------------------------------------


def tried(schedule: tuple[int, ...], accepted: Callable[[int], bool], **given: Any) -> list[int]:
    """The iterations before which a run of 600 tries a refit, by the rule alone."""
    settings = TrainingSettings(samples=100, refit_before=schedule, **given)
    found, wait, rejected = [], 0, 0
    for n in range(600):
        now = object.__new__(Training)  # of which only these fields are read
        fields = {"iteration": n, "refit_from_iteration": wait, "refits_rejected": rejected, "error_ratio": 1.0}
        for name, value in fields.items():
            object.__setattr__(now, name, value)
        if is_due(settings, now):
            found.append(n)
            rejected = 0 if accepted(n) else rejected + 1
            wait = next_refit(settings, n, rejected)
    return found


def test_after_two_rejections_in_a_row_scheduled_refits_are_left_out() -> None:
    schedule = tuple(range(1, 20))
    assert tried(schedule, lambda n: True) == [*schedule]
    assert tried(schedule, lambda n: n % 2 == 0) == [*schedule], "one rejection at a time changes nothing"
    assert tried(schedule, lambda n: False) == [1, 2, 4, 7, 12]  # one, two and four are left out; then too few are left
    assert tried(schedule, lambda n: n == 4) == [1, 2, 4, 5, 6, 8, 11, 16]
    assert tried((1, 2, 4, 8, 16, 32, 64, 128, 256), lambda n: False) == [1, 2, 8, 64]


def test_a_refit_started_by_the_error_waits_twice_as_long_after_every_rejection() -> None:
    assert tried((), lambda n: False, refit_when=0.5, refit_wait=4)[:5] == [0, 8, 24, 56, 120]
    assert tried((), lambda n: True, refit_when=0.5, refit_wait=4)[:4] == [0, 4, 8, 12]
