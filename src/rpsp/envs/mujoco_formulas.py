"""The formulas of `step` and `reset` of Gymnasium's MuJoCo tasks: health, rewards and first states, for whole batches.

Parameters are read from one of Gymnasium's environments, the template. The operations are in Gymnasium's order, because
another order gives other rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rpsp.envs.rows import Bools, Floats


class Snapshot(NamedTuple):
    """The simulations of a batch at one time. Row i is environment i."""

    motion: Floats
    """All positions, then all velocities."""
    positions: Floats
    velocities: Floats
    place: Floats
    """Position of each robot along the track, for the forward reward."""
    forces: Floats
    """External forces on all bodies, before clipping. Without columns if the task does not use them."""


Limits = tuple[float | int, float | int]
# Any, because the attributes of the template differ between tasks.
Template = Any
Healthy = Callable[[Snapshot], Bools]
Reward = Callable[[Snapshot, Floats, NDArray[Any], Bools], Floats]
"""Function of the snapshot after a step, the distance moved in it, the actions, and which rows are healthy after it."""


def uniform(generator: np.random.Generator, scale: float, size: int) -> Floats:
    """Draw numbers between -`scale` and `scale`."""
    return generator.uniform(-scale, scale, size)


def _normal(generator: np.random.Generator, scale: float, size: int) -> Floats:
    return scale * generator.standard_normal(size)


@dataclass(frozen=True)
class Formulas:
    """The formulas of Gymnasium's `step` and `reset` for one task. Those of `step` process a batch."""

    healthy: Callable[[Template], Healthy]
    reward: Callable[[Template], Reward]
    """`healthy` and `reward` get the template and return the formula, so that parameters are looked up only once."""
    place_of_body: bool = False
    """Whether the position along the track is that of the main body. Otherwise it is the first entry of qpos."""
    velocity_limit: float = np.inf
    """Observed velocities are clipped to ± this value."""
    contact_forces: bool = False
    """Whether the task uses external forces."""
    scatter_velocities: Callable[[np.random.Generator, float, int], Floats] = uniform
    """Draws the random velocities of a reset, given a generator, the scale and the number of velocities."""


def _between(values: Floats, limits: Limits | tuple[Floats, Floats]) -> Bools:
    return (limits[0] < values) & (values < limits[1])


def _always(env: Template) -> Healthy:
    return lambda now: np.ones(len(now.place), np.bool_)


def _hopper_healthy(env: Template) -> Healthy:
    # One comparison instead of three: of the height, the angle, and the state, which includes the angle.
    low, high = (np.full(env.model.nq + env.model.nv - 1, limit, np.float64) for limit in env._healthy_state_range)
    height, angle = env._healthy_z_range, env._healthy_angle_range
    low[:2], high[:2] = (height[0], max(angle[0], low[1])), (height[1], min(angle[1], high[1]))
    return lambda now: np.logical_and.reduce(_between(now.motion[:, 1:], (low, high)), axis=1)


def _walker_healthy(env: Template) -> Healthy:
    height, angle = env._healthy_z_range, env._healthy_angle_range
    return lambda now: _between(now.positions[:, 1], height) & _between(now.positions[:, 2], angle)


def _finite(now: Snapshot) -> Bools:
    return np.logical_and.reduce(np.isfinite(now.motion), axis=1)


def _ant_healthy(env: Template) -> Healthy:
    low, high = env._healthy_z_range  # only Ant counts the limits themselves as healthy
    return lambda now: _finite(now) & (low <= now.positions[:, 2]) & (now.positions[:, 2] <= high)


def _pendulum_healthy(env: Template) -> Healthy:
    return lambda now: _finite(now) & ~(np.abs(now.positions[:, 1]) > 0.2)


def _forward(env: Template) -> Callable[[Floats], Floats]:
    weight, seconds = env._forward_reward_weight, env.dt  # Gymnasium computes `env.dt` at every access
    return lambda way: weight * (way / seconds)


def _control_cost(env: Template) -> Callable[[NDArray[Any]], Floats]:
    weight = env._ctrl_cost_weight
    return lambda actions: weight * np.add.reduce(np.square(actions), axis=1)


def clipped_forces(env: Template, now: Snapshot) -> Floats:
    """Return the external forces, clipped to the task's range."""
    return np.clip(now.forces, *env._contact_force_range)


def _progress(env: Template) -> Reward:
    forward, control_cost = _forward(env), _control_cost(env)
    return lambda now, way, actions, healthy: forward(way) - control_cost(actions)


def _progress_upright(env: Template) -> Reward:
    forward, control_cost, upright = _forward(env), _control_cost(env), env._healthy_reward
    return lambda now, way, actions, healthy: (forward(way) + healthy * upright) - control_cost(actions)


def _ant_reward(env: Template) -> Reward:
    forward, control_cost, upright = _forward(env), _control_cost(env), env._healthy_reward

    def reward(now: Snapshot, way: Floats, actions: NDArray[Any], healthy: Bools) -> Floats:
        contact_cost = env._contact_cost_weight * np.add.reduce(np.square(clipped_forces(env, now)), axis=1)
        return (forward(way) + healthy * upright) - (control_cost(actions) + contact_cost)

    return reward


def _survival(env: Template) -> Reward:
    return lambda now, way, actions, healthy: healthy.astype(np.float64)


TASK_FORMULAS = {
    "InvertedPendulum-v5": Formulas(_pendulum_healthy, _survival),
    "Swimmer-v5": Formulas(_always, _progress),
    "HalfCheetah-v5": Formulas(_always, _progress, scatter_velocities=_normal),
    "Hopper-v5": Formulas(_hopper_healthy, _progress_upright, velocity_limit=10.0),
    "Walker2d-v5": Formulas(_walker_healthy, _progress_upright, velocity_limit=10.0),
    "Ant-v5": Formulas(
        _ant_healthy,
        _ant_reward,
        place_of_body=True,
        contact_forces=True,
        scatter_velocities=_normal,
    ),
}
BATCHED_IDS = tuple(TASK_FORMULAS)
"""The Gymnasium ids that `MujocoBatch` can step."""
