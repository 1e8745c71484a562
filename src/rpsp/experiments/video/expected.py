"""Pictures that an agent expects to see, beside those that came."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont

from rpsp.envs.images import Pixels
from rpsp.experiments.video.frames import HORIZON, Picture

AHEAD = 1, 5, HORIZON
"""Numbers of steps from the present to the pictures that are shown."""
SIDE, MARGIN = 180, 9
"""Size of a picture and the space around it, in pixels of the video."""


def expected_pictures(
    image: tuple[range, Pixels, str],
    rows: Float[np.ndarray, "steps_1 x"],
    expected: Float[np.ndarray, "steps horizon x"],
    shown: range,
) -> list[Picture]:
    """Return a picture for each of some steps: the present, and, for several steps ahead, what is expected and what came.

    Args:
        image: the entries of the image in a row, how it becomes them, and its name.
        rows: the observations.
        expected: the observations expected after each step.
        shown: the steps.
    """
    entries, pixels, name = image
    found = []
    for step in shown:
        page = Image.new("RGB", (len(AHEAD) * (SIDE + MARGIN) + MARGIN, 3 * (SIDE + 34) + MARGIN), "white")
        _paste(page, pixels.picture(rows[step, entries.start : entries.stop]), 0, 0, f"{name}, now")
        for column, ahead in enumerate(AHEAD):
            forecast = expected[step, ahead - 1, entries.start : entries.stop]
            _paste(page, pixels.picture(forecast), column, 1, f"expected in {ahead}")
            if step + ahead < len(rows):
                came = rows[step + ahead, entries.start : entries.stop]
                _paste(page, pixels.picture(came), column, 2, f"came after {ahead}")
        found.append(np.asarray(page))
    return found


def _paste(page: Image.Image, picture: Picture, column: int, row: int, text: str) -> None:
    """Draw a picture and its caption."""
    left, top = MARGIN + column * (SIDE + MARGIN), MARGIN + row * (SIDE + 34)
    factor = SIDE / max(picture.shape[:2])
    size = round(picture.shape[1] * factor), round(picture.shape[0] * factor)
    font = ImageFont.truetype(findfont("DejaVu Sans"), 17)
    ImageDraw.Draw(page).text((left, top), text, "black", font)
    page.paste(Image.fromarray(picture).resize(size, Image.Resampling.NEAREST), (left, top + 22))
