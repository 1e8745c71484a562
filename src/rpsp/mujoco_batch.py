"""Many MuJoCo simulations of one Gymnasium task, stepped together in threads.

Gymnasium steps its environments one after another and spends a third of the time in Python. Here every environment is
one `MjData`; threads run `mj_step` over them, which releases Python's lock, and observation, reward and termination are
then computed for the whole batch at once. The numbers are Gymnasium's own, bit for bit: every parameter is read from
one of its environments, the template, and only the formulas of `step` and `reset` are written out again below.

`mujoco.rollout` is not used: it keeps one simulation per thread instead of one per environment, so it loses the
solver's warm start (the numbers would differ from Gymnasium's) and the contact forces.
"""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rpsp.errors import UsageError

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]
"""Indices of environments in a batch."""
Seeds = int | np.integer[Any] | Sequence[int | None] | NDArray[np.integer[Any]] | None
"""What `reset` takes: one number for the batch (row i gets seed + i), one per row, or None to go on unseeded."""


def row_seeds(seed: Seeds, num_envs: int) -> list[int | None]:
    """One seed per environment, as Gymnasium's vector environments count them, in plain integers."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        seed = [int(seed) + row for row in range(num_envs)]
    if len(seed) != num_envs:
        raise UsageError(f"seed has {len(seed)} entries for {num_envs} environments; give one number or one per row")
    # Gymnasium refuses numpy's integers.
    return [None if one is None else int(one) for one in seed]


def rows_to_reset(options: Mapping[str, Any] | None, num_envs: int) -> Rows:
    """The rows that `options["reset_mask"]` names; all of them where there is no mask."""
    if options is None or "reset_mask" not in options:
        return np.arange(num_envs)
    mask = np.asarray(options["reset_mask"])
    if mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise UsageError(
            f"options['reset_mask'] is {mask.dtype}{list(mask.shape)} with {np.count_nonzero(mask)} set; "
            f"give {num_envs} booleans, at least one of them True"
        )
    return np.flatnonzero(mask)


def unusable(observations: NDArray[Any], rewards: Floats | float) -> Bools | np.bool_:
    """Whether a step returned a number that is not finite. Any leading axes; the last one is the observation's."""
    return ~(np.isfinite(observations).all(axis=-1) & np.isfinite(rewards))


def diverged(warnings: NDArray[np.int32], time_before: Floats | float, time_after: Floats | float) -> Bools | np.bool_:
    """Whether MuJoCo gave a simulation up: the reset is silent, but a warning is counted and time starts again."""
    return warnings.any(axis=-1) | (time_after < time_before)


def simulation_of(env: gymnasium.Env) -> Any:
    """The `MjData` an environment simulates with, or None if MuJoCo is not what it runs on."""
    data = getattr(env.unwrapped, "data", None)
    return data if isinstance(data, mujoco.MjData) else None


@dataclass(frozen=True)
class Snapshot:
    """The simulations of a batch at one moment; row i is environment i."""

    positions: Floats
    velocities: Floats
    place: Floats
    """How far along the track each robot is: what forward reward is paid for."""
    forces: Floats
    """External forces on all bodies, not yet clipped; without columns where the task ignores them."""


# The template's class differs from task to task, and what is read from it is what that class stores.
Template = Any


def _uniform(generator: np.random.Generator, scale: float, size: int) -> Floats:
    return generator.uniform(-scale, scale, size)


def _normal(generator: np.random.Generator, scale: float, size: int) -> Floats:
    return scale * generator.standard_normal(size)


@dataclass(frozen=True)
class _Formulas:
    """What Gymnasium's `step` and `reset` compute for one task; those of `step` over a batch."""

    healthy: Callable[[Template, Snapshot], Bools]
    reward: Callable[[Template, Snapshot, Floats, NDArray[Any], Bools], Floats]
    """Of the template, the snapshot after the step, the way made in it, the actions, and who is healthy after it."""
    place: Callable[[Template, mujoco.MjData], Floats] | None = None
    """A view of where the robot is, unless that is the first of the positions."""
    velocity_limit: float = np.inf
    """Observed velocities are clipped to it."""
    contact_forces: bool = False
    scatter_velocities: Callable[[np.random.Generator, float, int], Floats] = _uniform
    """How far a reset puts them off, given the scale and how many there are."""


def _between(values: Floats, limits: tuple[float, float]) -> Bools:
    return (limits[0] < values) & (values < limits[1])


def _always(env: Template, now: Snapshot) -> Bools:
    return np.ones(len(now.place), np.bool_)


def _hopper_healthy(env: Template, now: Snapshot) -> Bools:
    positions, velocities = (
        _between(part, env._healthy_state_range) for part in (now.positions[:, 2:], now.velocities)
    )
    return _walker_healthy(env, now) & positions.all(axis=1) & velocities.all(axis=1)


def _walker_healthy(env: Template, now: Snapshot) -> Bools:
    upright = _between(now.positions[:, 2], env._healthy_angle_range)
    return _between(now.positions[:, 1], env._healthy_z_range) & upright


def _ant_healthy(env: Template, now: Snapshot) -> Bools:
    low, high = env._healthy_z_range  # Ant alone counts the limits themselves as healthy
    height = now.positions[:, 2]
    finite = np.isfinite(now.positions).all(axis=1) & np.isfinite(now.velocities).all(axis=1)
    return finite & (low <= height) & (height <= high)


def _pendulum_healthy(env: Template, now: Snapshot) -> Bools:
    finite = np.isfinite(now.positions).all(axis=1) & np.isfinite(now.velocities).all(axis=1)
    return finite & ~(np.abs(now.positions[:, 1]) > 0.2)


def _forward(env: Template, way: Floats) -> Floats:
    return env._forward_reward_weight * (way / env.dt)


def _control_cost(env: Template, actions: NDArray[Any]) -> Floats:
    return env._ctrl_cost_weight * np.sum(np.square(actions), axis=1)


def _clipped_forces(env: Template, now: Snapshot) -> Floats:
    return np.clip(now.forces, *env._contact_force_range)


# The order of the operations below is Gymnasium's: another order rounds differently.


def _progress(env: Template, now: Snapshot, way: Floats, actions: NDArray[Any], healthy: Bools) -> Floats:
    return _forward(env, way) - _control_cost(env, actions)


def _progress_upright(env: Template, now: Snapshot, way: Floats, actions: NDArray[Any], healthy: Bools) -> Floats:
    return (_forward(env, way) + healthy * env._healthy_reward) - _control_cost(env, actions)


def _ant_reward(env: Template, now: Snapshot, way: Floats, actions: NDArray[Any], healthy: Bools) -> Floats:
    contact_cost = env._contact_cost_weight * np.sum(np.square(_clipped_forces(env, now)), axis=1)
    gain = _forward(env, way) + healthy * env._healthy_reward
    return gain - (_control_cost(env, actions) + contact_cost)


def _survival(env: Template, now: Snapshot, way: Floats, actions: NDArray[Any], healthy: Bools) -> Floats:
    return healthy.astype(np.float64)


_TASKS = {
    "InvertedPendulum-v5": _Formulas(_pendulum_healthy, _survival),
    "Swimmer-v5": _Formulas(_always, _progress),
    "HalfCheetah-v5": _Formulas(_always, _progress, scatter_velocities=_normal),
    "Hopper-v5": _Formulas(_hopper_healthy, _progress_upright, velocity_limit=10.0),
    "Walker2d-v5": _Formulas(_walker_healthy, _progress_upright, velocity_limit=10.0),
    "Ant-v5": _Formulas(
        _ant_healthy,
        _ant_reward,
        place=lambda env, data: data.body(env._main_body).xpos[:1],
        contact_forces=True,
        scatter_velocities=_normal,
    ),
}
BATCHED_IDS = tuple(_TASKS)
"""The Gymnasium ids that `MujocoBatch` can step."""


class MujocoBatch(VectorEnv):
    """`num_envs` copies of a Gymnasium MuJoCo task, stepped in threads, with Gymnasium's own numbers.

    Nothing resets by itself (autoreset mode DISABLED): `reset(options={"reset_mask": mask})` restarts the masked rows,
    and a finished row waits for it, unsimulated, returning its last observation, reward 0 and the flags it ended with.
    Wrap in `rpsp.environments.Autoreset` for Gymnasium's other modes.

    A simulation that diverged ends its episode: `truncated`, `infos["failed"]`, reward 0 and the last good observation.
    How many threads there are changes nothing but the speed.

    Args:
        id: one of `BATCHED_IDS`.
        num_envs: how many environments.
        max_episode_steps: when an episode is truncated; the task's own limit unless given.
        threads: how many threads step the physics; every core this process may use unless given.
        **env_kwargs: what Gymnasium's environment takes.
    """

    def __init__(
        self,
        id: str,
        num_envs: int = 1,
        *,
        max_episode_steps: int | None = None,
        threads: int | None = None,
        **env_kwargs: Any,
    ) -> None:
        if id not in _TASKS:
            raise UsageError(f"MujocoBatch cannot step {id!r}; give one of {', '.join(BATCHED_IDS)}")
        if num_envs < 1:
            raise UsageError(f"num_envs must be at least 1, got {num_envs}; give the number of environments to step")
        if threads is not None and threads < 1:
            raise UsageError(f"threads must be at least 1, got {threads}; leave it out to use every core")
        made = gymnasium.make(id, max_episode_steps=max_episode_steps, disable_env_checker=True, **env_kwargs)
        template: Template = made.unwrapped

        self.spec = made.spec
        self.num_envs = num_envs
        self.metadata = dict(template.metadata) | {"autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space = template.observation_space
        self.single_action_space = template.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_structure: Mapping[str, int] = template.observation_structure

        self._formulas = _TASKS[id]
        self._template = template
        self._model: mujoco.MjModel = template.model
        self.data = [mujoco.MjData(self._model) for _ in range(num_envs)]
        """The simulation of every environment; after a reset it takes up its first state only at its next step."""
        # Looking an array up in MjData costs as much as copying it, so views of them are kept.
        self._controls = [data.ctrl for data in self.data]
        self._positions = [data.qpos for data in self.data]
        self._velocities = [data.qvel for data in self.data]
        place = self._formulas.place
        self._places = None if place is None else [place(template, data) for data in self.data]
        contact_forces = self._formulas.contact_forces
        self._forces = [data.cfrc_ext.reshape(-1) for data in self.data] if contact_forces else None
        self._warnings = [data.warning.number for data in self.data]

        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]
        self._max_episode_steps = np.inf if self.spec is None else self.spec.max_episode_steps or np.inf
        self._steps = np.full(num_envs, -1)  # -1: never reset
        self._observations = np.zeros((num_envs, *template.observation_space.shape))
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._failed = np.zeros(num_envs, np.bool_)
        # The first states of rows that were reset and not stepped since. Preparing a simulation costs more than drawing
        # them, so it is left to the threads of the next step.
        self._first_states: dict[int, tuple[Floats, Floats]] = {}
        self._time = np.zeros(num_envs)
        self._place = np.zeros(num_envs)

        helpers = min(threads or _usable_cores(), num_envs) - 1  # the calling thread works too
        self._helpers = [_Helper() for _ in range(helpers)]

    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Restart the rows of `options["reset_mask"]`, or all; rows that go on show their last observation again."""
        seeds = row_seeds(seed, self.num_envs)
        rows = rows_to_reset(options, self.num_envs)
        for row in rows:
            if seeds[row] is not None:
                self._generators[row], _ = seeding.np_random(seeds[row])
            self._first_states[row] = self._draw_first_state(self._generators[row])
        positions, velocities = (np.array(part) for part in zip(*map(self._first_states.get, rows), strict=True))
        no_forces = np.zeros((len(rows), self.data[0].cfrc_ext.size))
        self._observations[rows] = self._observe(Snapshot(positions, velocities, positions[:, 0], no_forces))
        self._steps[rows] = 0
        for flags in (self._terminated, self._truncated, self._failed):
            flags[rows] = False
        return self._observations.copy(), {"failed": np.zeros(self.num_envs, np.bool_)}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], Bools, Bools, dict[str, Any]]:
        """Advance every row that has not finished."""
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape:
            raise UsageError(f"actions have shape {actions.shape}; give {self.action_space.shape}, one row each")
        if (self._steps < 0).any():
            raise gymnasium.error.ResetNeeded("MujocoBatch has rows that were never reset; call reset() before step()")
        waiting = self._terminated | self._truncated
        self._simulate(np.flatnonzero(~waiting), actions)
        self._steps += ~waiting
        now = self._snapshot()
        time = np.array([data.time for data in self.data])

        # A diverged simulation may hold anything; what it makes of the formulas is replaced below.
        with np.errstate(over="ignore", invalid="ignore"):
            observations = self._observe(now)
            healthy = self._formulas.healthy(self._template, now)
            rewards = self._formulas.reward(self._template, now, now.place - self._place, actions, healthy)
            failed = unusable(observations, rewards) | diverged(_gather(self._warnings), self._time, time)
        self._time, self._place = time, now.place
        terminated = ~healthy & getattr(self._template, "_terminate_when_unhealthy", True)
        truncated = self._steps >= self._max_episode_steps

        stays = waiting | failed
        self._observations = np.where(stays[:, None], self._observations, observations)
        self._terminated = np.where(waiting, self._terminated, terminated & ~failed)
        self._truncated = np.where(waiting, self._truncated, truncated | failed)
        self._failed = np.where(waiting, self._failed, failed)
        return (
            self._observations.copy(),
            np.where(stays, 0.0, rewards),
            self._terminated.copy(),
            self._truncated.copy(),
            {"failed": self._failed.copy()},
        )

    def close_extras(self, **kwargs: Any) -> None:
        """Let the threads go."""
        for helper in self._helpers:
            helper.stop()

    def _simulate(self, rows: Rows, actions: NDArray[Any]) -> None:
        """`frame_skip` physics steps of these rows, handed out one by one so that no thread waits long for another."""
        # A list's iterator can be shared by threads; most others (zip, generators) cannot.
        queue = iter(rows.tolist())
        helping = self._helpers[: max(0, len(rows) - 1)]
        for helper in helping:
            helper.start(lambda: self._work(queue, actions))
        try:
            self._work(queue, actions)
        finally:  # nobody may touch a simulation that a thread still works on, not even after an interrupt
            for helper in helping:
                helper.wait()

    def _work(self, queue: Iterator[int], actions: NDArray[Any]) -> None:
        # While one thread runs Python the others cannot return from the physics: every look-up in this loop counts.
        model, frame_skip, simulations, controls = self._model, self._template.frame_skip, self.data, self._controls
        first_states, contact_forces = self._first_states, self._formulas.contact_forces
        for row in queue:
            if row in first_states:
                self._begin(row)
            controls[row][:] = actions[row]
            mujoco.mj_step(model, simulations[row], frame_skip)
            if contact_forces:  # MuJoCo computes them only on demand; they do not act back on the motion
                mujoco.mj_rnePostConstraint(model, simulations[row])

    def _draw_first_state(self, generator: np.random.Generator) -> tuple[Floats, Floats]:
        env, scale = self._template, self._template._reset_noise_scale
        positions = env.init_qpos + _uniform(generator, scale, self._model.nq)
        velocities = env.init_qvel + self._formulas.scatter_velocities(generator, scale, self._model.nv)
        return positions, velocities

    def _begin(self, row: int) -> None:
        """Put the row's simulation into its first state, as Gymnasium does: from scratch."""
        data = self.data[row]
        mujoco.mj_resetData(self._model, data)
        self._positions[row][:], self._velocities[row][:] = self._first_states.pop(row)
        mujoco.mj_forward(self._model, data)
        self._time[row] = data.time
        self._place[row] = self._positions[row][0] if self._places is None else self._places[row][0]

    def _snapshot(self) -> Snapshot:
        positions = _gather(self._positions)
        return Snapshot(
            positions=positions,
            velocities=_gather(self._velocities),
            place=positions[:, 0] if self._places is None else _gather(self._places)[:, 0],
            forces=np.empty((self.num_envs, 0)) if self._forces is None else _gather(self._forces),
        )

    def _observe(self, now: Snapshot) -> Floats:
        skipped = self.observation_structure.get("skipped_qpos", 0)
        limit = self._formulas.velocity_limit
        parts = [now.positions[:, skipped:], np.clip(now.velocities, -limit, limit)]
        if self.observation_structure.get("cfrc_ext", 0):
            parts.append(_clipped_forces(self._template, now)[:, 6:])  # all bodies but the world, six numbers each
        return np.concatenate(parts, axis=1)


class _Helper:
    """A thread that waits for work. A future of Python's thread pool costs a lockstep of 100 Hoppers three per cent."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ends: SimpleQueue[BaseException | None] = SimpleQueue()
        threading.Thread(target=self._run, name="MujocoBatch", daemon=True).start()

    def start(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)

    def wait(self) -> None:
        """Until the task is done; what it raised is raised here."""
        if (error := self._ends.get()) is not None:
            raise error

    def stop(self) -> None:
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:
                self._ends.put(error)
            else:
                self._ends.put(None)


def _gather(views: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Copy one equally long array per environment into the rows of one."""
    return np.concatenate(views).reshape(len(views), -1)


def _usable_cores() -> int:
    """The cores this process may run on, which a container or a batch queue can make fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
