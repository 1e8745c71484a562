"""Four small tasks of our own, in the sizes of what people bring, and a wrapper that adds useless sensors.

They are registered with Gymnasium when this module is imported, so `benchmarks.defaults.environments:Drone-v0` is an id.
The first observations are those that a robot would have; the others complete the state. `REFERENCES` are controllers
that know the whole state and the equations; their returns are the upper end of the normalised scores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from scipy.linalg import solve_discrete_are

from rpsp.envs.wrappers import ObserveOnly

Step = tuple[Any, float, bool, bool, dict[str, Any]]
GRAVITY = 9.81


def box(size: int, limit: float = np.inf) -> spaces.Box:
    return spaces.Box(-limit, limit, (size,), np.float32)


class Drone(gymnasium.Env):
    """A drone with two rotors in a vertical plane holds a position in a steady wind that it cannot measure.

    The state is (x, z, tilt, and their velocities, wind). The reward of a step is exp(−2 distance); the flight ends early
    if the drone tips over or leaves the room.
    """

    POSITIONS: ClassVar[str] = "0,1,2,3"
    DT = 0.05

    def __init__(self) -> None:
        self.observation_space, self.action_space = box(8), box(2, 1.0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = np.zeros(6)
        self.state[:3] = self.np_random.uniform(-1, 1, 3) * (1, 1, 0.2)
        self.wind = self.np_random.uniform(-1.5, 1.5)
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        self.state = drone_after(self.state, np.clip(np.asarray(action, np.float64), -1, 1), self.wind, self.DT)
        x, z, tilt = self.state[:3]
        crashed = bool(max(abs(x), abs(z)) > 3 or abs(tilt) > 1.5)
        return self._observation(), float(np.exp(-2 * np.hypot(x, z))), crashed, False, {}

    def _observation(self) -> np.ndarray:
        x, z, tilt, *velocities = self.state
        return np.array([x, z, np.sin(tilt), np.cos(tilt), *velocities, self.wind], np.float32)


def drone_after(state: np.ndarray, action: np.ndarray, wind: float, dt: float) -> np.ndarray:
    """Return the state after one step of symplectic Euler: thrust g (1 + 0.8 mean(a)), torque 5 (a_2 − a_1)."""
    thrust = GRAVITY * (1 + 0.4 * action.sum())
    tilt = state[2]
    pull = np.array([wind - thrust * np.sin(tilt), thrust * np.cos(tilt) - GRAVITY, 5 * (action[1] - action[0])])
    velocities = state[3:] + dt * pull
    return np.concatenate([state[:3] + dt * velocities, velocities])


class Tank(gymnasium.Env):
    """A tank whose valve acts ten steps late. The level follows a set point that jumps; the demand wanders, unmeasured.

    The state is (level, set point, demand, the ten inflows on their way). The reward of a step is
    1 − 2 |level − set point|, at least 0.
    """

    POSITIONS: ClassVar[str] = "0,1"
    DELAY = 10

    def __init__(self) -> None:
        self.observation_space, self.action_space = box(3 + self.DELAY), box(1, 1.0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.demand = 0, 0.0
        self.level, self.point = self.np_random.uniform(0.5, 1.5, 2)
        self.coming: deque[float] = deque([0.0] * self.DELAY)
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        self.coming.append(float(np.clip(np.asarray(action).ravel()[0], -1, 1)))
        self.level = tank_after(self.level, self.coming.popleft(), self.demand)
        self.demand = 0.98 * self.demand + 0.06 * self.np_random.standard_normal()
        self.time += 1
        if self.time % 75 == 0:
            self.point = self.np_random.uniform(0.5, 1.5)
        return self._observation(), float(max(0.0, 1 - 2 * abs(self.level - self.point))), False, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.level, self.point, self.demand, *self.coming], np.float32)


def tank_after(level: float, valve: float, demand: float) -> float:
    """Return the level after one step: inflow 0.025 (1 + valve), outflow 0.025 √level (1 + demand)."""
    return float(np.clip(level + 0.025 * (1 + valve) - 0.025 * np.sqrt(level) * (1 + demand), 0.0, 2.0))


class CartDoublePendulum(gymnasium.Env):
    """Two pendulums, one on top of the other, on a cart, as an ordinary differential equation.

    The state is (position, two angles from the vertical, and their velocities). A step is worth 1; the episode ends
    if an angle exceeds 0.5 or the cart leaves its track.
    """

    POSITIONS: ClassVar[str] = "0,1,2"
    DT = 0.02
    FORCE = 20.0

    def __init__(self) -> None:
        self.observation_space, self.action_space = box(6), box(1, 1.0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.03, 0.03, 6)
        return self.state.astype(np.float32), {}

    def step(self, action: Any) -> Step:
        force = self.FORCE * float(np.clip(np.asarray(action).ravel()[0], -1, 1))
        self.state = runge_kutta(lambda state: pendulum_slope(state, force), self.state, self.DT)
        fell = bool(abs(self.state[0]) > 2.4 or np.abs(self.state[1:3]).max() > 0.5)
        return self.state.astype(np.float32), 1.0, fell, False, {}


CART, BOBS, RODS = 1.0, (0.3, 0.3), (0.5, 0.5)
"""Masses of the cart and of the bobs, and lengths of the massless rods."""


def pendulum_slope(state: np.ndarray, force: float) -> np.ndarray:
    """Return the time derivative of (x, θ_1, θ_2, velocities) of the cart with two pendulums (Lagrange's equations)."""
    (m1, m2), (l1, l2) = BOBS, RODS
    one, two, spin1, spin2 = state[1], state[2], state[4], state[5]
    both, apart = m1 + m2, np.cos(one - two)
    mass = np.array(
        [
            [CART + both, both * l1 * np.cos(one), m2 * l2 * np.cos(two)],
            [both * l1 * np.cos(one), both * l1**2, m2 * l1 * l2 * apart],
            [m2 * l2 * np.cos(two), m2 * l1 * l2 * apart, m2 * l2**2],
        ]
    )
    cross = m2 * l1 * l2 * np.sin(one - two)
    forces = np.array(
        [
            force + both * l1 * np.sin(one) * spin1**2 + m2 * l2 * np.sin(two) * spin2**2,
            both * GRAVITY * l1 * np.sin(one) - cross * spin2**2,
            m2 * GRAVITY * l2 * np.sin(two) + cross * spin1**2,
        ]
    )
    return np.concatenate([state[3:], np.linalg.solve(mass, forces)])


def runge_kutta(slope: Callable[[np.ndarray], np.ndarray], state: np.ndarray, dt: float) -> np.ndarray:
    """Return the state after one step of the classical Runge-Kutta method."""
    k1 = slope(state)
    k2 = slope(state + dt / 2 * k1)
    k3 = slope(state + dt / 2 * k2)
    k4 = slope(state + dt * k3)
    return state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


MAZE = (
    "#########",
    "#...#...#",
    "#.#.#.#.#",
    "#.#...#.#",
    "#.###.#.#",
    "#.....#G#",
    "#########",
)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))


class SymbolGrid(gymnasium.Env):
    """A maze in which the agent sees which of the four neighbours are walls: many places look the same.

    A move fails with probability 0.1. The goal is worth 1 and ends the episode, every step before it costs 0.01.

    Args:
        full: whether the observation is the place itself.
    """

    CELLS: ClassVar[list[tuple[int, int]]] = [
        (i, j) for i, row in enumerate(MAZE) for j, cell in enumerate(row) if cell != "#"
    ]
    GOAL: ClassVar[int] = next(n for n, (i, j) in enumerate(CELLS) if MAZE[i][j] == "G")

    def __init__(self, full: bool = False) -> None:
        self.full = full
        self.observation_space = spaces.Discrete(len(self.CELLS) if full else 16)
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.choice([n for n in range(len(self.CELLS)) if n != self.GOAL]))
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        if self.np_random.random() >= 0.1:
            self.place = grid_after(self.place, int(action))
        found = self.place == self.GOAL
        return self._observation(), 1.0 if found else -0.01, found, False, {}

    def _observation(self) -> int:
        walls = sum(2**a for a in range(4) if grid_after(self.place, a) == self.place)
        return self.place if self.full else walls


def grid_after(place: int, action: int) -> int:
    """Return the place after a successful move. A wall stops it."""
    (i, j), (down, right) = SymbolGrid.CELLS[place], MOVES[action]
    there = (i + down, j + right)
    return SymbolGrid.CELLS.index(there) if there in SymbolGrid.CELLS else place


class Distracted(gymnasium.ObservationWrapper):
    """Another task with useless sensors after its own: independent standard normal numbers.

    Args:
        task: Gymnasium id of the task.
        count: number of useless sensors.
        shown: indices of the task's own observations that are kept, such as [0, 1]. Default: all.
    """

    def __init__(self, task: str, count: int = 40, shown: list[int] | None = None) -> None:
        env = gymnasium.make(task).unwrapped
        super().__init__(env if shown is None else ObserveOnly(env, shown))
        self.count = count
        own = self.env.observation_space
        assert isinstance(own, spaces.Box)
        self.observation_space = box(own.shape[0] + count)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.distraction = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def observation(self, observation: Any) -> np.ndarray:
        return np.concatenate([observation, self.distraction.standard_normal(self.count)], dtype=np.float32)


# ---------------------------------------------------------------------------------------------------------------------
# Controllers that know the state
# ---------------------------------------------------------------------------------------------------------------------

Controller = Callable[[Any], Any]
"""From the environment to an action."""


def gains(step: Callable[[np.ndarray, np.ndarray], np.ndarray], actions: int, costs: list[float]) -> np.ndarray:
    """Return the gains of the linear-quadratic regulator around 0, with derivatives by differences.

    Args:
        step: the next state, from state and action.
        actions: size of an action.
        costs: weights of the squared states. Actions have weight 1.
    """
    n, small = len(costs), 1e-5
    A = np.stack([(step(e, np.zeros(actions)) - step(-e, np.zeros(actions))) for e in small * np.eye(n)], 1) / 2 / small
    B = np.stack([(step(np.zeros(n), e) - step(np.zeros(n), -e)) for e in small * np.eye(actions)], 1) / 2 / small
    P = solve_discrete_are(A, B, np.diag(costs), np.eye(actions))
    return np.linalg.solve(np.eye(actions) + B.T @ P @ B, B.T @ P @ A)


def fly() -> Controller:
    K = gains(lambda s, a: drone_after(s, a, 0.0, Drone.DT), 2, [20, 20, 1, 1, 1, 0.1])

    def act(env: Any) -> np.ndarray:
        lean = np.array([0, 0, np.arctan(env.wind / GRAVITY), 0, 0, 0])  # balances the wind
        return np.clip(-K @ (env.state - lean), -1, 1)

    return act


def fill() -> Controller:
    def act(env: Any) -> np.ndarray:
        level, demand = env.level, env.demand
        for valve in env.coming:  # where the level will be when this action arrives
            level, demand = tank_after(level, valve, demand), 0.98 * demand
        return np.clip([(env.point - level) / 0.025 + np.sqrt(level) * (1 + demand) - 1], -1, 1)

    return act


def balance() -> Controller:
    def step(state: np.ndarray, action: np.ndarray) -> np.ndarray:
        force = CartDoublePendulum.FORCE * action[0]
        return runge_kutta(lambda s: pendulum_slope(s, force), state, CartDoublePendulum.DT)

    K = gains(step, 1, [1, 10, 10, 0.1, 0.1, 0.1])
    return lambda env: np.clip(-K @ env.state, -1, 1)


def walk() -> Controller:
    """Return the shortest way to the goal, by value iteration."""
    steps = np.full(len(SymbolGrid.CELLS), np.inf)
    steps[SymbolGrid.GOAL] = 0
    after = np.array([[grid_after(n, a) for a in range(4)] for n in range(len(steps))])
    for _ in steps:
        steps = np.minimum(steps, 1 + steps[after].min(axis=1))
    return lambda env: steps[after[env.place]].argmin()


REFERENCES: dict[str, Callable[[], Controller]] = {
    "Drone-v0": fly,
    "Tank-v0": fill,
    "CartDoublePendulum-v0": balance,
    "SymbolGrid-v0": walk,
}
LENGTHS = {Drone: 200, Tank: 300, CartDoublePendulum: 500, SymbolGrid: 100}
"""Time limits of an episode."""

for kind, limit in LENGTHS.items():
    gymnasium.register(f"{kind.__name__}-v0", entry_point=kind, max_episode_steps=limit)
gymnasium.register("Distracted-v0", entry_point=f"{__name__}:Distracted")


def reference_return(name: str, episodes: int = 100) -> float:
    """Return the mean return of the controller that knows the state of a task."""
    env, act, total = gymnasium.make(name), REFERENCES[name](), 0.0
    for seed in range(episodes):
        env.reset(seed=seed)
        over = False
        while not over:
            _, reward, terminated, truncated, _ = env.step(act(env.unwrapped))
            over = terminated or truncated
            total += float(reward)
    return total / episodes
