"""Many MuJoCo simulations of one Gymnasium task, stepped together in threads.

Gymnasium steps its environments one after another and spends a third of the time in Python. Here, MuJoCo's batch steps
all of them in native threads, and observations, rewards and terminations are then computed for the whole batch at once.
The results are bit for bit those of Gymnasium. All parameters are read from one of its environments, the template. Only
the formulas of `step` and `reset` are implemented again, in `rpsp.envs.mujoco_formulas`.
"""

# MuJoCo's compiled modules have no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from mujoco.batch import Batch
from numpy.typing import NDArray

from rpsp.envs.mujoco_formulas import BATCHED_IDS, TASK_FORMULAS, Snapshot, Template, clipped_forces, uniform
from rpsp.envs.rows import Bools, Floats, Rows, Seeds, row_seeds, rows_to_reset
from rpsp.errors import UsageError


def _some(flags: Bools) -> Bools | None:
    """Return the flags, or None if no flag is set."""
    return flags if np.logical_or.reduce(flags) else None  # same as `flags.any()`, in half the time


def unusable(observations: NDArray[Any], rewards: Floats | float) -> Bools | np.bool_:
    """Return whether a step has NaN or infinite values. All axes of `observations` but the last are batch axes."""
    return ~(np.isfinite(observations).all(axis=-1) & np.isfinite(rewards))


def diverged(warnings: NDArray[np.int32], time_before: Floats | float, time_after: Floats | float) -> Bools | np.bool_:
    """Return whether MuJoCo has reset a diverged simulation, which shows in a warning count and in its time."""
    return warnings.any(axis=-1) | (time_after < time_before)


def simulation_of(env: gymnasium.Env) -> Any:
    """Return the `MjData` of an environment, or None if it does not use MuJoCo."""
    data = getattr(env.unwrapped, "data", None)
    return data if isinstance(data, mujoco.MjData) else None


class MujocoBatch(VectorEnv):
    """Vector environment of a Gymnasium MuJoCo task, stepped in threads, with the same results as Gymnasium.

    Environments are not reset automatically (autoreset mode DISABLED). `reset(options={"reset_mask": mask})` resets the
    rows in the mask. A finished row is not simulated until its reset. It returns its last observation, reward 0 and the
    flags of its last step. Wrap the environment in `rpsp.envs.vector.Autoreset` for Gymnasium's other modes.

    A simulation that diverges ends its episode with `truncated`, `infos["failed"]`, reward 0 and the last good
    observation. The number of threads does not change the results.

    Args:
        id: one of `BATCHED_IDS`.
        num_envs: number of environments.
        max_episode_steps: time limit of an episode. Default: the limit of the task.
        threads: number of threads that step the physics. Default: all cores that this process may use.
        **env_kwargs: keyword arguments of Gymnasium's environment.

    Raises:
        UsageError: if an argument is invalid.
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
        _check_arguments(id, num_envs, threads)
        with _unbothered("xml_file" not in env_kwargs):
            made = gymnasium.make(id, max_episode_steps=max_episode_steps, disable_env_checker=True, **env_kwargs)
        template: Template = made.unwrapped

        self.spec = made.spec
        self.num_envs = num_envs
        self.metadata = dict(template.metadata) | {"autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space = template.observation_space
        self.single_action_space = template.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._actions_shape = self.action_space.shape
        self.observation_structure: Mapping[str, int] = template.observation_structure

        self._formulas = TASK_FORMULAS[id]
        self._template, self._model = template, template.model
        self._healthy, self._reward = self._formulas.healthy(template), self._formulas.reward(template)
        self._ends_unhealthy: bool = getattr(template, "_terminate_when_unhealthy", True)
        self._create_simulation(min(threads or _usable_cores(), num_envs))

        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]
        self._max_episode_steps = np.inf if self.spec is None else self.spec.max_episode_steps or np.inf
        self._create_rows()

    def _create_simulation(self, threads: int) -> None:
        """Create the simulations, and the views of their memory that `step` and `reset` use."""
        contact_forces = self._formulas.contact_forces
        self.simulation = Batch(self._model, self.num_envs, threads, persistent=contact_forces)
        """All simulations. `simulation.qpos`, `simulation.time` and so on have one row per environment."""
        self._positions, self._velocities = self.simulation.bind("qpos"), self.simulation.bind("qvel")
        # Positions and velocities are adjacent, after the time. One view of both avoids a concatenation at every step.
        self._motion = self.simulation.state[:, 1 : 1 + self._model.nq + self._model.nv]
        limits = np.repeat([np.inf, self._formulas.velocity_limit], [self._model.nq, self._model.nv])
        high = limits[self.observation_structure.get("skipped_qpos", 0) :]
        self._seen_limits = -high, high
        self._controls, self._times = self.simulation.bind("ctrl"), self.simulation.bind("time")
        body = getattr(self._template, "_main_body", 0)
        if isinstance(body, str):
            body = self._model.body(body).id
        self._places = (
            self.simulation.bind("xpos")[:, body, 0] if self._formulas.place_of_body else self._positions[:, 0]
        )
        self._forces = np.zeros((self.num_envs, self._model.nbody * 6 if contact_forces else 0))
        self._scratch = mujoco.MjData(self._model)
        self._fresh, self._warnings = self.simulation.state[0].copy(), self.simulation.warning[..., 1]

    def _create_rows(self) -> None:
        """Create the state of the episode in each row."""
        num_envs = self.num_envs
        self._clock = 0
        """Number of steps so far. `_due` is the first step at which a row can reach its time limit."""
        self._began, self._due = np.full(num_envs, -1), np.inf
        """`_began`: the value of `_clock` when each row was reset; -1 if it never was."""
        self._observations = np.zeros((num_envs, *self._template.observation_space.shape))
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._failed = np.zeros(num_envs, np.bool_)
        self._waiting: Bools | None = None
        """True at finished rows; None if there are none, which is the usual case and fast to check."""
        self._started = False
        """Whether every row has been reset at least once."""
        self._time = np.zeros(num_envs)
        self._place = np.zeros(num_envs)

    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Reset the rows in `options["reset_mask"]`; all rows if there is no mask.

        Args:
            seed: one number for the batch (row i gets seed + i), one per row, or None to keep the random generators.
            options: `{"reset_mask": mask}` with one boolean per row.

        Returns:
            Observations and infos. Rows that were not reset return their last observation again.
        """
        seeds = row_seeds(seed, self.num_envs)
        rows = rows_to_reset(options, self.num_envs)
        for row in rows:
            if seeds[row] is not None:
                self._generators[row], _ = seeding.np_random(seeds[row])
        first = [self._draw_first_state(self._generators[row]) for row in rows]
        positions, velocities = (np.array(part) for part in zip(*first, strict=True))
        # As in Gymnasium: start from the initial state and run all of `mj_forward`, which prepares the first step.
        # (Writing a saved state takes a tenth of the time of the batch's own reset.)
        self.simulation.state[rows], self.simulation.warning[rows] = self._fresh, 0
        self._positions[rows], self._velocities[rows] = positions, velocities
        self.simulation.forward(rows)
        self._time[rows], self._place[rows] = self._times[rows], self._places[rows]
        no_forces = np.zeros((len(rows), self._model.nbody * 6))
        motion = np.concatenate((positions, velocities), axis=1)
        self._observations[rows] = self._observe(Snapshot(motion, positions, velocities, positions[:, 0], no_forces))
        self._began[rows] = self._clock
        self._due = self._began.min() + self._max_episode_steps
        for flags in (self._terminated, self._truncated, self._failed):
            flags[rows] = False
        self._started = bool(self._began.min() >= 0)
        self._waiting = _some(self._terminated | self._truncated)
        return self._observations.copy(), {"failed": np.zeros(self.num_envs, np.bool_)}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], Bools, Bools, dict[str, Any]]:
        """Step every row that has not finished.

        Args:
            actions: one row per environment.

        Returns:
            Observations, rewards, terminated, truncated and infos, as in Gymnasium.
        """
        actions = np.asarray(actions)
        if actions.shape != self._actions_shape:
            raise UsageError(f"actions have shape {actions.shape}; give {self._actions_shape}, one row each")
        if not self._started:
            raise gymnasium.error.ResetNeeded("MujocoBatch has rows that were never reset; call reset() before step()")
        waiting = self._waiting
        running = None if waiting is None else np.flatnonzero(~waiting)
        those = slice(None) if running is None else running
        self._controls[those] = actions[those]
        self.simulation.step(running, nstep=self._template.frame_skip)
        self._clock += 1
        if self._formulas.contact_forces:
            self._compute_forces(np.arange(self.num_envs)[those])
        now = Snapshot(self._motion, self._positions, self._velocities, self._places.copy(), self._forces)
        time = self._times.copy()

        # A diverged simulation can hold any values. The results for its row are replaced below.
        with np.errstate(over="ignore", invalid="ignore"):
            observations: Any = self._observe(now)
            healthy = self._healthy(now)
            rewards: Any = self._reward(now, now.place - self._place, actions, healthy)
            failed: Any = None
            if not self._sound(observations, rewards, time):
                failed = unusable(observations, rewards) | diverged(self._warnings, self._time, time)
        self._time, self._place = time, now.place
        nobody = np.zeros(self.num_envs, np.bool_)
        terminated = ~healthy if self._ends_unhealthy else nobody.copy()
        late = self._clock >= self._due  # rows are checked only if one can have reached its limit
        truncated = self._clock - self._began >= self._max_episode_steps if late else nobody.copy()

        if waiting is not None or failed is not None:
            waiting, failed = (nobody if rows is None else rows for rows in (waiting, failed))
            stays = waiting | failed
            observations = np.where(stays[:, None], self._observations, observations)
            rewards = np.where(stays, 0.0, rewards)
            terminated = np.where(waiting, self._terminated, terminated & ~failed)
            truncated = np.where(waiting, self._truncated, truncated | failed)
            failed = np.where(waiting, self._failed, failed)
        failed = nobody if failed is None else failed
        self._observations, self._waiting = observations, _some(terminated | truncated)
        if self._waiting is not None:  # the flags are only read again for finished rows
            self._terminated, self._truncated, self._failed = terminated.copy(), truncated.copy(), failed.copy()
        return observations.copy(), rewards, terminated, truncated, {"failed": failed}

    def _sound(self, observations: Floats, rewards: Floats, time: Floats) -> bool:
        """Return whether no row has failed. Sums over all rows take half the time of a check of each row."""
        finite = math.isfinite(np.add.reduce(observations, axis=None) + np.add.reduce(rewards))
        warned = np.logical_or.reduce(self._warnings, axis=None)
        return finite and not (warned or np.logical_or.reduce(time < self._time))

    def _draw_first_state(self, generator: np.random.Generator) -> tuple[Floats, Floats]:
        env, scale = self._template, self._template._reset_noise_scale
        positions = env.init_qpos + uniform(generator, scale, self._model.nq)
        velocities = env.init_qvel + self._formulas.scatter_velocities(generator, scale, self._model.nv)
        return positions, velocities

    def _compute_forces(self, rows: Rows) -> None:
        """Compute external forces, which MuJoCo does only on demand. They do not influence the motion."""
        for row in rows.tolist():
            self.simulation.get_data(row, self._scratch)
            mujoco.mj_rnePostConstraint(self._model, self._scratch)
            self._forces[row] = self._scratch.cfrc_ext.reshape(-1)

    def _observe(self, now: Snapshot) -> Floats:
        low, high = self._seen_limits
        # Twice as fast as np.clip. This is called once per step.
        seen = np.minimum(np.maximum(now.motion[:, -len(high) :], low), high)
        if not self.observation_structure.get("cfrc_ext", 0):
            return seen
        forces = clipped_forces(self._template, now)[:, 6:]  # six numbers per body, without the world body
        return np.concatenate((seen, forces), axis=1)


def _check_arguments(id: str, num_envs: int, threads: int | None) -> None:
    if id not in TASK_FORMULAS:
        raise UsageError(f"MujocoBatch cannot step {id!r}; give one of {', '.join(BATCHED_IDS)}")
    if num_envs < 1:
        raise UsageError(f"num_envs must be at least 1, got {num_envs}; give the number of environments to step")
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}; leave it out to use every core")


_BOTHERED = threading.Lock()


@contextmanager
def _unbothered(by_gymnasium: bool) -> Iterator[None]:
    """Suppress MuJoCo's warnings about Gymnasium's models, if `by_gymnasium`.

    MuJoCo otherwise prints them and appends them to a file at every start (the model of HalfCheetah uses a deprecated
    attribute). The warning handler is shared by all threads, hence the lock.
    """
    with _BOTHERED:
        listener = mujoco.get_mju_user_warning()
        if by_gymnasium:
            mujoco.set_mju_user_warning(lambda warning: None)
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(listener)


def _usable_cores() -> int:
    """Return the number of cores this process may use. A container or a batch queue can limit it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
