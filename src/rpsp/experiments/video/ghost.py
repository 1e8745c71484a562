"""Part of the split of a larger module."""

# MuJoCo's compiled modules come without type stubs.
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
"""Steps from the present to the ghost."""


def follow(env: Any) -> None:
    """Let the camera go with the robot where there is one that can: Gymnasium's own stands still, and runners leave it."""
    if (renderer := getattr(env, "mujoco_renderer", None)) is not None:
        import mujoco

        camera = mujoco.mj_name2id(env.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
        renderer.camera_id = None if camera < 0 else camera


def rendered(envs: Any) -> Picture:
    try:
        return np.asarray(envs.render()[0], np.uint8)[..., :3]
    except Exception as error:  # of OpenGL, of its loader, of a missing package: every back end has its own
        raise unrendered("the environment" if envs.spec is None else envs.spec.id, error) from error


class Ghost:
    """The robot as the belief expects it to be in a while, drawn translucently over the scene of the present.

    Of MuJoCo's environments whose observations begin with positions, some of which the agent sees. It is rendered once the
    episode is over, by the simulation that has played it.
    """

    def __init__(self, envs: Any, env: Any, places: list[tuple[int, int]], late: int):
        self.envs, self.model, self.data, self.ahead = envs, env.model, env.data, AHEAD + late
        self.columns, self.joints = (list(numbers) for numbers in zip(*places, strict=True))
        self.unseen = [joint for joint in range(self.model.nq) if joint not in self.joints]
        self.glides = self.model.nq == self.model.nv  # else positions have no speeds of their own (quaternions)
        self.seconds = AHEAD * env.dt
        self.body = self.model.geom_bodyid > 0
        self.caption = f"blue: where the belief expects it {self.seconds:.2g} s from now"
        if self.unseen:
            self.caption += "\n(positions that it does not see " + ("go on as they move)" if self.glides else "stay)")

    @staticmethod
    def of(envs: Any) -> Ghost | None:
        """The ghost of these environments; None where their observations do not tell where the robot is."""
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
        """Where the robot is, how it moves, and where it is looked at from."""
        return {name: getattr(self.data, name).copy() for name in ("qpos", "qvel", *self.LOOKS)}

    LOOKS = "cam_xpos", "cam_xmat", "light_xpos", "light_xdir"

    def over(
        self, scene: Picture, present: dict[str, np.ndarray], forecast: Float[np.ndarray, "horizon obs"]
    ) -> Picture:
        """A scene of the past, and over it the ghost of what was then expected; without it if that was not finite."""
        import mujoco

        expected = present["qpos"].copy()
        if self.glides:
            expected[self.unseen] += self.seconds * present["qvel"][self.unseen]
        expected[self.joints] = forecast[self.ahead - 1, self.columns]
        if not np.isfinite(expected).all():
            return scene
        self.data.qpos[:] = expected
        mujoco.mj_forward(self.model, self.data)
        for name in self.LOOKS:  # the camera follows the robot; the ghost is seen from where the robot was
            getattr(self.data, name)[:] = present[name]
        self.model.geom_matid[self.body] = -1
        self.model.geom_rgba[self.body, :3] = 0.4 * np.array(to_rgb(CYCLE[0])) + 0.6
        ghost, nobody = (self._drawn(opacity).astype(float) for opacity in (1.0, 0.0))
        is_ghost, is_robot = ((np.abs(one - nobody) > 8).any(axis=2, keepdims=True) for one in (ghost, scene))
        opacity = np.where(is_robot, 0.2, 0.7) * is_ghost
        return ((1 - opacity) * scene + opacity * ghost).astype(np.uint8)

    def _drawn(self, opacity: float) -> Picture:
        self.model.geom_rgba[self.body, 3] = opacity
        return rendered(self.envs)


def unrendered(name: str, error: Exception) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"{name} cannot be rendered here ({type(error).__name__}: {error}); if it is OpenGL that is missing, on Debian: "
        "apt-get install libegl1 (`rpsp doctor` tells)."
    )
