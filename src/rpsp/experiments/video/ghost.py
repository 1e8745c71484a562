"""Rendering of environments, and a ghost at the pose that the belief predicts."""

# MuJoCo's compiled modules have no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.colors import to_rgb

from rpsp.envs.vector import sensors
from rpsp.errors import EnvironmentFailure
from rpsp.experiments.figures.appearance import CYCLE
from rpsp.experiments.video.frames import HORIZON, Picture

AHEAD = 10
"""Number of steps from the present to the ghost."""


def follow(env: Any) -> None:
    """Use the camera that follows the robot, if there is one. Gymnasium's default camera does not move with it."""
    if (renderer := getattr(env, "mujoco_renderer", None)) is not None:
        import mujoco  # only for MuJoCo environments: the import selects the OpenGL back end

        camera = mujoco.mj_name2id(env.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
        renderer.camera_id = None if camera < 0 else camera


def rendered(envs: Any) -> Picture:
    """Render the environment as an RGB image."""
    try:
        return np.asarray(envs.render()[0], np.uint8)[..., :3]
    except Exception as error:  # each OpenGL back end and loader has its own exceptions
        raise unrendered("the environment" if envs.spec is None else envs.spec.id, error) from error


class Ghost:
    """The robot at its predicted pose, drawn translucently over the present scene.

    It is available for MuJoCo environments whose observations start with positions, if the agent sees some of them. The
    ghost is rendered after the episode, with the simulation that played it.
    """

    def __init__(self, envs: Any, env: Any, places: list[tuple[int, int]], late: int):
        self.envs, self.model, self.data, self.ahead = envs, env.model, env.data, AHEAD + late
        self.columns, self.joints = (list(numbers) for numbers in zip(*places, strict=True))
        self.unseen = [joint for joint in range(self.model.nq) if joint not in self.joints]
        self.glides = (
            self.model.nq == self.model.nv
        )  # false with quaternions, where positions and velocities differ in number
        self.seconds = AHEAD * env.dt
        self.body = self.model.geom_bodyid > 0
        self.caption = f"blue: predicted pose in {self.seconds:.2g} s"
        if self.unseen:
            self.caption += "\n(unobserved positions " + ("move at constant velocity)" if self.glides else "stay)")

    @staticmethod
    def of(envs: Any) -> Ghost | None:
        """Return the ghost of these environments; None if the observations do not contain positions of the robot."""
        env = envs.unwrapped.envs[0].unwrapped
        structure = getattr(env, "observation_structure", None) or {}
        skipped, seen = structure.get("skipped_qpos", 0), structure.get("qpos", 0)
        if not hasattr(env, "model") or skipped + seen != env.model.nq:
            return None
        indices, late = sensors(envs)
        indices = range(seen) if indices is None else indices
        places = [(column, skipped + index) for column, index in enumerate(indices) if index < seen]
        return Ghost(envs, env, places, late) if places and AHEAD + late <= HORIZON else None

    def present(self) -> dict[str, np.ndarray]:
        """Return copies of the robot's position and velocity, and of the camera and lights."""
        return {name: getattr(self.data, name).copy() for name in ("qpos", "qvel", *self.LOOKS)}

    LOOKS = "cam_xpos", "cam_xmat", "light_xpos", "light_xdir"
    """Arrays of the simulation that define camera and lights."""

    def over(
        self, scene: Picture, present: dict[str, np.ndarray], forecast: Float[np.ndarray, "horizon obs"]
    ) -> Picture:
        """Draw the ghost over a scene.

        Args:
            scene: the rendered scene.
            present: result of `present` at the time of the scene.
            forecast: predicted observations after that time.

        Returns:
            The scene with the ghost, or the scene alone if the forecast is not finite.
        """
        import mujoco  # only for MuJoCo environments: the import selects the OpenGL back end

        expected = present["qpos"].copy()
        if self.glides:
            expected[self.unseen] += self.seconds * present["qvel"][self.unseen]
        expected[self.joints] = forecast[self.ahead - 1, self.columns]
        if not np.isfinite(expected).all():
            return scene
        self.data.qpos[:] = expected
        mujoco.mj_forward(self.model, self.data)
        for name in self.LOOKS:  # the camera follows the robot; keep it where it was in the scene
            getattr(self.data, name)[:] = present[name]
        self.model.geom_matid[self.body] = -1
        self.model.geom_rgba[self.body, :3] = 0.4 * np.array(to_rgb(CYCLE[0])) + 0.6
        ghost, nobody = (self._drawn(opacity).astype(float) for opacity in (1.0, 0.0))
        is_ghost, is_robot = ((np.abs(one - nobody) > 8).any(axis=2, keepdims=True) for one in (ghost, scene))
        opacity = np.where(is_robot, 0.2, 0.7) * is_ghost
        return ((1 - opacity) * scene + opacity * ghost).astype(np.uint8)

    def _drawn(self, opacity: float) -> Picture:
        """Render the scene with a robot of this opacity."""
        self.model.geom_rgba[self.body, 3] = opacity
        return rendered(self.envs)


def unrendered(name: str, error: Exception) -> EnvironmentFailure:
    """Return the error for an environment that cannot be rendered."""
    return EnvironmentFailure(
        f"{name} cannot be rendered here ({type(error).__name__}: {error}); if OpenGL is missing, on Debian: "
        "apt-get install libegl1 (see `rpsp doctor`)."
    )
