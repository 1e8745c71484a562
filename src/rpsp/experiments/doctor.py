"""The command `rpsp doctor`: check versions, devices, rendering and optional packages."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Any

import jax

from rpsp.experiments.versions import extras, versions

RENDER = """
import mujoco
model = mujoco.MjModel.from_xml_string('<mujoco><worldbody><geom size="1"/></worldbody></mujoco>')
renderer = mujoco.Renderer(model, 16, 16)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer.update_scene(data)
print(renderer.render().shape)
"""


def examine() -> dict[str, dict[str, Any]]:
    """Return versions, devices, rendering and optional packages of this machine, by section."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "versions": versions(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": affinity,
            "jax devices": ", ".join(str(device) for device in jax.devices()),
        },
        "rendering": {os.environ.get("MUJOCO_GL", "egl"): rendering()},
        "extras": extras(),
    }


def rendering() -> str:
    """Return whether MuJoCo can render without a screen. A subprocess tries it, because a bad driver can crash."""
    environment = {**os.environ, "MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl")}
    try:
        tried = subprocess.run(
            [sys.executable, "-c", RENDER],
            env=environment,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "does not respond; on Debian: apt-get install libegl1"
    return "works" if tried.returncode == 0 else "does not work; on Debian: apt-get install libegl1"
