"""Noise that is correlated in time: its distribution, its correlation, and where it is used."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rpsp.envs.make import make
from rpsp.errors import UsageError
from rpsp.training.actions import ActionSymbols, action_units
from rpsp.training.pink_noise import TIME_CONSTANTS, PartlyPink, gumbel, noise_of
from rpsp.training.rollouts import explore
from rpsp.training.state import LoopSettings


def drawn(fraction: float, components: int = 4000) -> np.ndarray:
    """Three blocks of many independent streams, one behind the other."""
    stream = PartlyPink(components, fraction, np.random.default_rng(0))
    return np.concatenate([stream(20) for _ in range(3)])


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_every_step_is_standard_normal_and_steps_are_correlated_as_in_closed_form(fraction: float) -> None:
    """Also across blocks: 4,000 streams, so that a mean has a standard error of 0.016."""
    z = drawn(fraction)
    np.testing.assert_allclose(z.mean(axis=1), 0, atol=0.07)
    np.testing.assert_allclose(z.var(axis=1), 1, atol=0.12)
    for first, lag in ((0, 1), (15, 5), (19, 1), (5, 50)):
        expected = fraction * np.mean([np.exp(-lag / tau) for tau in TIME_CONSTANTS])
        assert np.mean(z[first] * z[first + lag]) == pytest.approx(expected, abs=0.07)


def test_symbols_keep_their_probabilities_and_stay_longer() -> None:
    z = drawn(1.0)
    assert stats.kstest(gumbel(z[30:31])[0], "gumbel_r").pvalue > 1e-3
    assert np.isfinite(gumbel(np.array([[-30.0, 30.0]]))).all()
    units = ActionSymbols(3, 0)

    def actions(pink: float) -> np.ndarray:
        draws = [noise_of(units, pink, np.random.default_rng(i))(40) for i in range(500)]
        return np.argmax(draws + np.log([0.5, 0.3, 0.2]), axis=2)  # a policy with these probabilities

    white, pink = actions(0.0), actions(1.0)
    for found in (white, pink):
        np.testing.assert_allclose([np.mean(found == i) for i in range(3)], [0.5, 0.3, 0.2], atol=0.06)
    changes = [np.mean(found[:, 1:] != found[:, :-1]) for found in (white, pink)]
    assert changes[0] == pytest.approx(1 - 0.5**2 - 0.3**2 - 0.2**2, abs=0.03)
    assert changes[1] < 0.75 * changes[0]


def test_without_pink_noise_the_numbers_are_those_of_before() -> None:
    units = ActionSymbols(3, 0)
    np.testing.assert_array_equal(
        noise_of(units, 0.0, np.random.default_rng(3))(5), units.noise(np.random.default_rng(3), 5)
    )


def test_every_second_random_episode_is_pink() -> None:
    """In MountainCarContinuous, the car then leaves the valley, which white noise does once in thirty episodes."""
    envs = make("MountainCarContinuous-v0", num_envs=6, seed=0)
    white, pink = (explore(envs, seed=100, episodes=6, pink_noise=share) for share in (0.0, 0.3))
    for number, (one, other) in enumerate(zip(white, pink, strict=True)):
        assert np.array_equal(one.actions, other.actions) == (number % 2 == 0)
    units = action_units(envs)
    expected = noise_of(units, 1.0, np.random.default_rng(np.random.SeedSequence(100, spawn_key=(0, 1, 1))))(256)
    np.testing.assert_array_equal(pink[1].actions[:256], units.clip(expected.astype(np.float32))[: len(pink[1])])
    assert max(len(e) for e in white) == min(len(e) for e in white) == 999
    assert any(len(e) < 999 for e in pink)
    envs.close()


def test_a_fraction_is_between_0_and_1() -> None:
    with pytest.raises(UsageError, match=r"pink_noise: 1.5 is not between 0 and 1"):
        LoopSettings(pink_noise=1.5)
