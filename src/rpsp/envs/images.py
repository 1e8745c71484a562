"""Images as observations: which boxes are images, how they become rows of pixels, and rendered frames as observations."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space
from gymnasium.utils import RecordConstructorArgs
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image

from rpsp.errors import EnvironmentFailure, UsageError

SMALLEST_SIDE = 16
"""Least height and width of an image. Smaller boxes are tables of numbers."""
GREY = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in a grey image (ITU-R BT.601)."""
RENDERED = 64
"""Height and width of rendered frames."""


class ImageSettings(NamedTuple):
    """How images become rows of pixels."""

    size: int = 32
    """Largest height and width after downsampling."""
    colour: bool = False
    """Whether colours are kept."""

    def check(self) -> None:
        """Raise `UsageError` if the size is not a whole number of 4 or more."""
        if not isinstance(self.size, int) or self.size < 4:
            raise UsageError(
                f"image_size: {self.size!r} is not a whole number ≥ 4; give the side of small images in pixels"
            )


SMALL_GREY = ImageSettings()
"""The default."""


class Pixels(NamedTuple):
    """How the images of a space become rows of pixels in [0, 1]: grey or colour, averaged over squares, in C order."""

    height: int
    width: int
    channels: int
    """Height, width and channels of the small image."""
    factor: int
    """Side of the squares of the image that are averaged to one pixel."""
    axes: int
    """Number of dimensions of the space: 2 for images without channels."""
    channels_first: bool
    divisor: float
    """The value of a white pixel."""

    @property
    def size(self) -> int:
        """Number of entries of a row."""
        return self.height * self.width * self.channels

    def rows(self, images: NDArray[Any], name: str) -> Float[np.ndarray, "*batch pixel"]:
        """Return the rows of images.

        Args:
            images: images of the space, with any leading dimensions.
            name: what messages call them.

        Raises:
            UsageError: if a float image has values outside [0, 1].
        """
        if self.divisor == 1 and images.size and not (images.min() >= 0 and images.max() <= 1):
            raise UsageError(
                f"{name}: has values from {images.min():g} to {images.max():g}, and images of floats are in [0, 1]; divide "
                "them by their largest value, or give uint8"
            )
        x = images[..., None] if self.axes == 2 else np.moveaxis(images, -3, -1) if self.channels_first else images
        x = x[..., : self.height * self.factor, : self.width * self.factor, :3].astype(np.float32)
        if self.channels < x.shape[-1]:
            x = (x @ GREY)[..., None]
        f = self.factor
        x = x.reshape((*x.shape[:-3], self.height, f, self.width, f, self.channels)).mean(axis=(-4, -2))
        return x.reshape((*x.shape[:-3], self.size)) / np.float32(self.divisor)

    def picture(self, row: NDArray[Any]) -> UInt8[np.ndarray, "height width 3"]:
        """Return a row as a picture. Values outside [0, 1] are clipped."""
        image = np.clip(np.nan_to_num(row), 0, 1).reshape(self.height, self.width, self.channels)
        image = (255 * image + 0.5).astype(np.uint8)
        return np.repeat(image, 3, axis=2) if self.channels == 1 else image


def pixels_of(space: Space[Any], settings: ImageSettings, name: str) -> Pixels | None:
    """Return how images of a space become rows; None if it is not a space of images.

    Images are boxes of uint8, or of floats between 0 and 1, with two dimensions, or three of which the last or the first is
    1, 3 or 4 channels. Height and width are at least 16.

    Args:
        space: the space.
        settings: size and colours.
        name: what messages call it.

    Raises:
        UsageError: if it has the shape of colour images, but floats with other bounds.
    """
    if not isinstance(space, Box) or len(space.shape) not in (2, 3):
        return None
    shape, first = space.shape, False
    if len(shape) == 2:
        shape = (*shape, 1)
    elif shape[2] not in (1, 3, 4) and shape[0] in (1, 3, 4):
        shape, first = (*shape[1:], shape[0]), True
    if shape[2] not in (1, 3, 4) or min(shape[:2]) < SMALLEST_SIDE:
        return None
    bytes_, unit = space.dtype == np.uint8, bool((space.low == 0).all() and (space.high == 1).all())
    if not bytes_ and not (unit and space.dtype.kind == "f"):
        if len(space.shape) == 2:
            return None
        raise UsageError(
            f"{name}: has the shape of images, {space.shape}, but {space.dtype} values between {space.low.min():g} and "
            f"{space.high.max():g}; give uint8, or floats between 0 and 1"
        )
    factor = max(1, -(-max(shape[:2]) // settings.size))
    channels = 3 if settings.colour and shape[2] >= 3 else 1
    return Pixels(
        shape[0] // factor, shape[1] // factor, channels, factor, len(space.shape), first, 255.0 if bytes_ else 1.0
    )


class Rendered(gymnasium.Wrapper, RecordConstructorArgs):
    """An environment whose observations are its rendered frames, 64 × 64 pixels in colour.

    Args:
        env: an environment with render_mode="rgb_array".
    """

    def __init__(self, env: gymnasium.Env[Any, Any]):
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        if env.render_mode != "rgb_array":
            raise UsageError(
                f"observe='pixels' needs frames, and {type(env.unwrapped).__name__} was made with render_mode "
                f"{env.render_mode!r}; make it with render_mode='rgb_array'"
            )
        self.observation_space = Box(0, 255, (RENDERED, RENDERED, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and return its first frame."""
        _, info = self.env.reset(seed=seed, options=options)
        return self._frame(), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and return the new frame."""
        _, reward, terminated, truncated, info = self.env.step(action)
        return self._frame(), reward, terminated, truncated, info

    def _frame(self) -> UInt8[np.ndarray, "64 64 3"]:
        frame: Any = self.env.render()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] < 3:
            raise EnvironmentFailure(
                f"observe='pixels': render() of {type(self.unwrapped).__name__} returned {type(frame).__name__} of shape "
                f"{np.shape(frame)}, not an image; observe something else"
            )
        if frame.shape[:2] == (RENDERED, RENDERED):
            return frame[..., :3].astype(np.uint8)
        small = Image.fromarray(frame[..., :3]).resize((RENDERED, RENDERED), Image.Resampling.BOX)
        return np.asarray(small)
