"""Versions of the packages that a run depends on, and of optional packages."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "rpsp", "numpy", "scipy", "jax", "jaxlib", "equinox", "optax", "jaxtyping", "gymnasium", "mujoco", "safetensors",
    "matplotlib", "rich", "tyro",
)  # fmt: skip
EXTRAS = (
    "imageio-ffmpeg", "minari", "onnxruntime", "pyarrow", "tensorboardX", "wandb", "mlflow-skinny", "optuna",
    "huggingface_hub", "sb3-contrib", "ray",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of Python and of all packages that can affect results."""
    return {"python": platform.python_version()} | {name: _version(name) or "missing" for name in PACKAGES}


def extras() -> dict[str, str | None]:
    """Return the versions of the optional packages. None: not installed."""
    return {name: _version(name) for name in EXTRAS}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
