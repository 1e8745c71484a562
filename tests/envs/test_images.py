"""Images as observations: rows of pixels, the basis, and what is refused."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from rpsp.data.scaling import ImageBasis, Joined, Scaling, coordinates, encoded_size, fit_image_basis, fit_with_images
from rpsp.envs.images import GREY, ImageSettings, pixels_of
from rpsp.envs.make import make
from rpsp.envs.structures import Observations, images_in
from rpsp.errors import UsageError

CAMERA = Box(0, 255, (32, 48, 3), np.uint8)


class Filming(gymnasium.Env[Any, Any]):
    """Shows a bright square that an action moves, beside its speed."""

    observation_space = Dict({"camera": CAMERA, "speed": Box(-1, 1, (1,))})
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.speed = self.np_random.uniform(5, 35), 0.0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.speed = 0.9 * self.speed + (0.3 if action else -0.3)
        self.place += self.speed
        return self._seen(), -abs(self.place - 20), not 2 < self.place < 38, False, {}

    def _seen(self) -> dict[str, Any]:
        image = np.zeros((32, 48, 3), np.uint8)
        image[10:20, int(self.place) : int(self.place) + 8, 1] = 255
        return {"camera": image, "speed": np.array([self.speed / 3], np.float32)}


def test_pixels_are_averages_of_squares() -> None:
    pixels = pixels_of(CAMERA, ImageSettings(16), "camera")
    assert pixels is not None and (pixels.height, pixels.width, pixels.factor) == (10, 16, 3)
    image = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    expected = [
        [(image[3 * i : 3 * i + 3, 3 * j : 3 * j + 3] @ GREY).mean() / 255 for j in range(16)] for i in range(10)
    ]
    row = pixels.rows(image, "camera")
    np.testing.assert_allclose(row, np.ravel(expected), atol=1e-5)  # sums of float32 in another order
    np.testing.assert_array_equal(pixels.rows(np.stack([image, image]), "camera")[1], row)
    assert np.abs(pixels.picture(row)[..., 0].ravel() / 255 - row).max() < 0.01


def test_colour_channels_first_and_floats_are_the_same_image() -> None:
    image = np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)
    spaces = {
        "last": (Box(0, 255, (32, 32, 3), np.uint8), image),
        "first": (Box(0, 255, (3, 32, 32), np.uint8), np.moveaxis(image, -1, 0)),
        "floats": (Box(0, 1, (32, 32, 3)), image.astype(np.float32) / 255),
    }
    rows = []
    for space, given in spaces.values():
        pixels = pixels_of(space, ImageSettings(8, True), "camera")
        assert pixels is not None and pixels.channels == 3
        rows.append(pixels.rows(given, "camera"))
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-6)
    np.testing.assert_allclose(rows[2], rows[0], atol=1e-6)


def test_small_tables_are_numbers() -> None:
    for space in (Box(0, 255, (8, 8, 3), np.uint8), Box(-1, 1, (20, 20)), Box(0, 255, (20,), np.uint8)):
        assert pixels_of(space, ImageSettings(), "table") is None
    envs = make(lambda: gymnasium.wrappers.TransformObservation(Filming(), lambda o: o["camera"][:4, :4], CAMERA))
    with pytest.raises(UsageError, match=r"observation: has shape \(4, 4, 3\), and its space is Box.*; give shape"):
        envs.reset(seed=0)  # an image that changes its size


def test_a_basis_reconstructs_what_varies() -> None:
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(300, 3)) * [3.0, 1.0, 0.1]
    rows = (0.5 + hidden @ np.linalg.qr(rng.normal(size=(50, 3)))[0].T).astype(np.float16)
    basis = fit_image_basis(rows, 3, rng=rng)
    np.testing.assert_allclose(basis.decode(basis.encode(rows)), rows, atol=2e-2)  # float16 has three digits
    np.testing.assert_allclose(basis.encode(rows).std(axis=0)[0], 1, rtol=0.01)
    np.testing.assert_allclose(
        basis.encode(rows).std(axis=0)[1], 1 / 3, rtol=0.2
    )  # another sample of the normal numbers


def test_images_beside_numbers() -> None:
    envs = make(Filming, 2, image_size=12)
    ((entries, _, name),) = images_in(envs)
    assert (len(entries), name) == (8 * 12, "camera")
    assert images_in(make(Filming, observe="speed")) == []
    assert images_in(make(Filming, observe="speed,camera", image_size=12))[0][0] == range(1, 97)
    assert make(Filming, observe="camera[3,4]").single_observation_space.shape == (1,)
    rows = np.concatenate([envs.reset(seed=0)[0], *(envs.step([0, 1])[0] for _ in range(8))])
    encoding = fit_with_images(rows, [entries], 4, rng=np.random.default_rng(0))
    assert isinstance(encoding, Joined) and [type(part) for part in encoding.parts] == [ImageBasis, Scaling]
    assert encoding.encode(rows).shape == (18, encoded_size(encoding)) == (18, 5)
    np.testing.assert_allclose(encoding.decode(encoding.encode(rows))[:, -1], rows[:, -1], atol=1e-6)
    units = coordinates(encoding)
    assert isinstance(units, Scaling) and len(units.scale) == 5


class Square(gymnasium.Env):
    """A bright square that every action moves by one of its widths."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - Gymnasium's habit
    observation_space = Box(0, 9, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.place = render_mode, 4

    def _seen(self) -> np.ndarray:
        return np.array([self.place], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place = 4
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.place = min(9, max(0, self.place + 2 * int(action) - 1))
        return self._seen(), 1.0, False, False, {}

    def render(self) -> Any:
        frame = np.zeros((80, 200, 3), np.uint8)
        frame[30:50, 20 * self.place : 20 * self.place + 20] = 255
        return frame


def test_rendered_frames() -> None:
    gymnasium.register("test_images/Square-v0", Square, max_episode_steps=20)
    envs = make("test_images/Square-v0", 2, observe="pixels", image_size=16)
    assert envs.single_observation_space == Box(0, 1, (256,), np.float16)
    first = envs.reset(seed=0)[0]
    later = envs.step(np.array([0, 1]))[0]
    assert first.dtype == np.float16 and 0 < np.abs(later - first).max() <= 1
    layout: Any = envs.unwrapped
    assert isinstance(layout.observations, Observations)
    assert layout.observations.space == Box(0, 255, (64, 64, 3), np.uint8)


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_floats_outside_the_unit_interval() -> None:
    pixels = pixels_of(Box(0, 1, (20, 20, 1)), ImageSettings(), "camera")
    assert pixels is not None
    with pytest.raises(UsageError, match=r"camera: has values from 0 to 7, and images of floats are in \[0, 1\]"):
        pixels.rows(np.append(np.zeros(399), 7.0).reshape(20, 20, 1), "camera")
    with pytest.raises(UsageError, match=r"camera: has the shape of images, .*, but float32 values between 0 and 9"):
        pixels_of(Box(0, 9, (20, 20, 3)), ImageSettings(), "camera")


def test_bad_settings_and_environments_without_frames() -> None:
    with pytest.raises(UsageError, match="image_size: 2 is not a whole number ≥ 4"):
        make("CartPole-v1", image_size=2)
    with pytest.raises(UsageError, match="observe='pixels' needs frames, and Filming was made with render_mode None"):
        make(Filming, observe="pixels")
