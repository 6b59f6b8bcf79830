"""Pictures of built-in envs: a small canvas on Pillow, and what every rendering offers.

A rendering draws row 0 of a batch, as text and as an RGB image. Equal states give equal pictures.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from hundredfold.core.batch import Array
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.registry import ENVS

Point = tuple[float, float]

PAGE, CARD, INK, SOFT, LINE = "#f6f6f3", "#ffffff", "#1d2026", "#5d636e", "#d8d8d2"
RED, ORANGE, GREEN, BLUE = "#b3261e", "#a84a00", "#00795a", "#0072b2"
RED_BACK, ORANGE_BACK = "#fbe9e7", "#fdf1e6"
# Drawn larger and scaled down, so that lines and circles have smooth edges.
OVERSAMPLING: Final = 2


class LastStep(NamedTuple):
    """What led to the state that is drawn; at the start of an episode there was no action."""

    action: int | None = None
    total_reward: float = 0.0


class Rendering(Protocol):
    """Draws the first row of a batch of envs."""

    fps: int  # frames per second of a video

    def text(self, last: LastStep) -> str:
        """The state as lines of text."""

    def image(self, last: LastStep) -> Array:
        """The state as an image, (height, width, 3) uint8."""


def make_rendering(name: str, env: ArrayBatchEnv) -> Rendering:
    """The rendering of a built-in env by its name."""
    module, _, class_name = ENVS[name].rendering.partition(":")
    found: Rendering = getattr(import_module(module), class_name)(env)
    return found


class Canvas:
    """An image to draw on, in pixels of the finished image.

    Args:
        width: Width in pixels.
        height: Height in pixels.
    """

    def __init__(self, width: int, height: int) -> None:
        from PIL import Image, ImageDraw

        self.picture = Image.new("RGB", (width * OVERSAMPLING, height * OVERSAMPLING), PAGE)
        self.draw = ImageDraw.Draw(self.picture)

    def text(self, at: Point, text: str, size: int = 14, colour: str = INK, anchor: str = "la") -> None:
        """Write a line; `anchor` as in Pillow: la is the upper left corner, mm the middle."""
        self.draw.text(_scaled(at), text, font=_font(size * OVERSAMPLING), fill=colour, anchor=anchor)

    def box(self, corner: Point, size: Point, fill: str = CARD, edge: str = LINE, width: float = 1) -> None:
        """A rectangle with round corners."""
        low, high = _scaled(corner), _scaled((corner[0] + size[0], corner[1] + size[1]))
        self.draw.rounded_rectangle((*low, *high), 5 * OVERSAMPLING, fill, edge, round(width * OVERSAMPLING))

    def line(self, start: Point, end: Point, colour: str = INK, width: float = 1) -> None:
        """A straight line."""
        self.draw.line((*_scaled(start), *_scaled(end)), colour, max(1, round(width * OVERSAMPLING)))

    def circle(self, centre: Point, radius: float, colour: str = INK) -> None:
        """A filled circle."""
        x, y = _scaled(centre)
        reach = radius * OVERSAMPLING
        self.draw.ellipse((x - reach, y - reach, x + reach, y + reach), colour)

    def array(self) -> Array:
        """The finished image, (height, width, 3) uint8."""
        return np.asarray(self.picture.reduce(OVERSAMPLING))


@cache
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _scaled(point: Point) -> Point:
    return point[0] * OVERSAMPLING, point[1] * OVERSAMPLING
