"""Versions of the packages that a run depends on, and which extras are installed."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "rpsp", "numpy", "scipy", "jax", "jaxlib", "equinox", "optax", "jaxtyping", "gymnasium", "mujoco", "safetensors",
    "matplotlib", "rich", "tyro",
)  # fmt: skip
EXTRAS = ("imageio-ffmpeg", "minari", "onnxruntime", "pyarrow", "tensorboardX", "sb3-contrib", "ray")


def versions() -> dict[str, str]:
    """Versions of Python and of every package that can move a result."""
    return {"python": platform.python_version()} | {name: _version(name) or "missing" for name in PACKAGES}


def extras() -> dict[str, str | None]:
    """Versions of the optional packages that are installed; None for those that are not."""
    return {name: _version(name) for name in EXTRAS}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
