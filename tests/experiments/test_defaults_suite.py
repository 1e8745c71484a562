"""The suite of defaults: its environments against closed forms, its data, and what it keeps of a run."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from benchmarks.defaults import environments as own
from benchmarks.defaults.__main__ import outcome
from benchmarks.defaults.page import sections
from benchmarks.defaults.suite import suite
from gymnasium.utils.env_checker import check_env

from rpsp.experiments.configure import check_values, configured
from rpsp.experiments.runs import train

TASKS, CANDIDATES = suite()


@pytest.mark.parametrize("name", own.REFERENCES)
def test_the_tasks_of_our_own_follow_the_protocol_of_gymnasium(name):
    check_env(gymnasium.make(name).unwrapped, skip_render_check=True)


def energy(state: np.ndarray) -> float:
    """Kinetic plus potential energy of the cart and its bobs, from the positions of the masses."""
    (m1, m2), (l1, l2) = own.BOBS, own.RODS
    _, one, two, v, spin1, spin2 = state
    first = np.array([v + l1 * np.cos(one) * spin1, -l1 * np.sin(one) * spin1])
    second = first + np.array([l2 * np.cos(two) * spin2, -l2 * np.sin(two) * spin2])
    kinetic = (own.CART * v**2 + m1 * first @ first + m2 * second @ second) / 2
    return kinetic + own.GRAVITY * (m1 * l1 * np.cos(one) + m2 * (l1 * np.cos(one) + l2 * np.cos(two)))


def test_pendulums_without_force_keep_energy_and_momentum():
    (m1, m2), (l1, l2) = own.BOBS, own.RODS
    state = np.array([0.3, 0.4, -1.0, 0.2, 1.0, -2.0])

    def momentum(s):
        return (own.CART + m1 + m2) * s[3] + (m1 + m2) * l1 * np.cos(s[1]) * s[4] + m2 * l2 * np.cos(s[2]) * s[5]

    later = state
    for _ in range(500):
        later = own.runge_kutta(lambda s: own.pendulum_slope(s, 0.0), later, 0.002)
    assert np.abs(later - state).max() > 0.5
    assert energy(later) == pytest.approx(energy(state), abs=1e-6)
    assert momentum(later) == pytest.approx(momentum(state), abs=1e-6)


def test_a_level_drone_hovers_and_falls_freely_without_thrust():
    still = np.zeros(6)
    assert np.array_equal(own.drone_after(still, np.zeros(2), 0.0, 0.05), still)
    off = np.array([-1.25, -1.25])  # 1 + 0.4 · sum = 0
    assert own.drone_after(still, off, 0.0, 0.05)[4] == pytest.approx(-own.GRAVITY * 0.05)


def test_a_valve_acts_ten_steps_late_and_a_balanced_tank_keeps_its_level():
    assert own.tank_after(1.0, 0.0, 0.0) == pytest.approx(1.0)
    one, other = gymnasium.make("Tank-v0").unwrapped, gymnasium.make("Tank-v0").unwrapped
    levels = []
    for env, first in ((one, 1.0), (other, -1.0)):
        env.reset(seed=1)
        levels.append([env.step([first if t == 0 else 0.0])[0][0] for t in range(12)])
    assert levels[0][:10] == levels[1][:10] and levels[0][10] - levels[1][10] == pytest.approx(0.05, abs=1e-6)


def test_controllers_that_know_the_state_are_far_above_random_actions():
    for name in own.REFERENCES:
        scale = TASKS[name.removesuffix("-v0")]
        assert scale.score(own.reference_return(name, episodes=3)) > 0.8


def test_the_grid_looks_alike_in_several_places_and_the_shortest_way_reaches_the_goal():
    env = gymnasium.make("SymbolGrid-v0").unwrapped
    seen = []
    for place in range(len(own.SymbolGrid.CELLS)):
        env.place = place
        seen.append(env._observation())
    assert len(set(seen)) < len(seen) / 2
    act = own.walk()
    for place in range(len(seen)):
        env.place, steps = place, 0
        while env.place != own.SymbolGrid.GOAL:
            env.place, steps = own.grid_after(env.place, int(act(env))), steps + 1
            assert steps <= len(seen)


def test_useless_sensors_are_independent_of_everything_and_repeat_with_the_seed():
    env = gymnasium.make("Distracted-v0", task="Pendulum-v1", count=3, shown=[0, 1])
    first = env.reset(seed=5)[0]
    assert first.shape == (5,) and np.array_equal(first, env.reset(seed=5)[0])
    noise = np.array([env.step(np.zeros(1))[0][2:] for _ in range(2000)])
    assert np.abs(np.corrcoef(noise[1:].T, noise[:-1].T) - np.eye(6)).max() < 0.1
    assert noise.std() == pytest.approx(1, abs=0.05)


def test_the_suite_is_data_that_training_accepts():
    for task in TASKS.values():
        for settings in task.versions.values():
            for candidate in CANDIDATES.values():
                config = configured({**settings, **candidate})
                check_values(config)
                assert config.env == task.env
    assert TASKS["CartPole"].score(500) == 1 and TASKS["MountainCar"].score(-200) == 0


def test_the_results_keep_a_curve_and_an_evaluation_and_the_page_shows_scores(elsewhere):
    run = train("CartPole-v1", "fm1", iterations=4, samples=500, exploration_episodes=5, hidden=(2,), verbose=False)
    row = outcome(run.directory, 4000)
    returns = [record["mean_return"] for record in run.metrics if "iteration" in record]
    assert [value for value in row["curve"] if value is not None][-1] == row["final"]
    assert min(returns) - 1e-3 <= row["final"] <= max(returns) + 1e-3 and 1 <= row["evaluation"] <= 500
    about = {"task": "CartPole", "version": "hidden", "budget": 4000}
    rows = [
        row | about | {"candidate": name, "seed": 100, "evaluation": value}
        for name, value in (("a", 23.68), ("b", 500))
    ]
    (text,) = sections(rows)
    assert "23.68 (0.00), 1" in text and "500 (1.00), 1" in text and "tuning seeds" in text
