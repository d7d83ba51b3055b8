"""Pictures of games from their observations, with Pillow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageDraw, ImageFont

BACK, FIELD, TEXT, FAINT = "#12161f", "#1a202c", "#e8ecf4", "#8a94a8"
HERO, FOE, GOOD, SHOT, DANGER, TRAIL = "#ffc857", "#ef6f6c", "#56cfa1", "#ffffff", "#ff9ecb", "#5b6b8c"
CELL, EDGE, HEAD = 30, 14, 34


class Thing(NamedTuple):
    """What a channel of a MinAtar observation shows. Those without a name are not drawn."""

    name: str
    color: str = TRAIL
    size: float = 1.0
    """The share of the cell that it fills; below 1 it is round."""


THINGS = {
    "breakout": [Thing("paddle", HERO), Thing("ball", SHOT, 0.7), Thing("trail", TRAIL, 0.4), Thing("brick", FOE)],
    "asterix": [Thing("player", HERO), Thing("enemy", FOE), Thing("trail", TRAIL, 0.4), Thing("gold", GOOD, 0.8)],
    "freeway": [
        Thing("chicken", HERO, 0.8),
        Thing("car", FOE),
        *(
            Thing(name, color, 0.5)
            for name, color in zip(
                ("fast trail", "2", "3", "4", "slow trail"), ("#bde0fe", "#8ecae6", "#5fa8d3", "#4178be", "#3a4f9b"), strict=True
            )
        ),
    ],
    "seaquest": [
        Thing("submarine", HERO), Thing("its rear", "#b98a2f"), Thing("shot", SHOT, 0.45), Thing("trail", TRAIL, 0.4),
        Thing("enemy shot", DANGER, 0.45), Thing("fish", FOE, 0.8), Thing("enemy submarine", "#b5446e"),
        Thing("oxygen", "#5fa8d3"), Thing("rescued", "#2f8f6b"), Thing("diver", GOOD, 0.8),
    ],
    "space-invaders": [
        Thing("cannon", HERO), Thing("alien", FOE, 0.85), Thing(""), Thing(""), Thing("shot", SHOT, 0.45),
        Thing("enemy shot", DANGER, 0.45),
    ],
}  # fmt: skip


class Artist:
    """Draws the observations of one game. `scale` is the largest size of each number, where numbers are drawn."""

    def __init__(self, game: str, title: str, scale: float | np.ndarray) -> None:
        self.game, self.title, self.scale = game, title, np.maximum(scale, 1e-6)

    def __call__(self, observation: ArrayLike, facts: str) -> Image.Image:
        """Draw an observation below a line with the title and the facts."""
        return captioned(self._picture(np.asarray(observation)), self.title, facts)

    def _picture(self, observation: np.ndarray) -> Image.Image:
        things = THINGS.get(self.game.removeprefix("minatar/"))
        if things and observation.shape[2:] == (len(things),):
            return board(observation, things)
        if self.game.endswith(("CartPole-v0", "CartPole-v1")) and observation.shape == (4,):
            return cart_pole(float(observation[0]), float(observation[2]))
        if observation.dtype == np.uint8 and observation.shape[2:] == (3,):
            return enlarged(Image.fromarray(observation))
        if observation.ndim in (2, 3):
            return heat_map(observation / self.scale)
        return bars(observation.reshape(-1) / self.scale.reshape(-1))


def captioned(picture: Image.Image, title: str, facts: str) -> Image.Image:
    """Put a line with the title and the facts above a picture, and a margin around it."""
    needs = _wide(title, 15) + _wide(facts, 15) + 24
    width = max(picture.width, math.ceil(needs)) + 2 * EDGE
    whole = Image.new("RGB", (width, picture.height + HEAD + EDGE), BACK)
    pen = ImageDraw.Draw(whole)
    pen.text((EDGE, HEAD / 2), title, TEXT, _font(15), anchor="lm")
    pen.text((width - EDGE, HEAD / 2), facts, HERO, _font(15), anchor="rm")
    whole.paste(picture, ((width - picture.width) // 2, HEAD))
    return whole


def board(observation: np.ndarray, things: Sequence[Thing]) -> Image.Image:
    """Draw a MinAtar game: a grid whose cells show the things in them, and below it the names of the things."""
    height, width = observation.shape[:2]
    key = _key(things, width * CELL)
    picture = Image.new("RGB", (width * CELL, height * CELL + key.height), BACK)
    picture.paste(key, (0, height * CELL))
    pen = ImageDraw.Draw(picture)
    for y, x in np.ndindex(height, width):
        shown = [thing for thing, there in zip(things, observation[y, x], strict=True) if there and thing.name]
        shown.reverse()  # what comes first is on top, and the small on the large
        for thing in [Thing("", FIELD), *sorted(shown, key=lambda thing: -thing.size)]:
            _tile(pen, x * CELL, y * CELL, CELL, thing.color, thing.size)
    return picture


def _tile(pen: ImageDraw.ImageDraw, x: float, y: float, side: float, color: str, size: float) -> None:
    """A square, or a circle where it is smaller than its cell, in the cell at (x, y)."""
    gap = 1 + (1 - size) / 2 * side
    box = (x + gap, y + gap, x + side - gap, y + side - gap)
    pen.rectangle(box, color) if size == 1.0 else pen.ellipse(box, color)


def _key(things: Sequence[Thing], width: int) -> Image.Image:
    """Draw what the things are called, in as many lines as it takes."""
    places: list[tuple[Thing, float, float]] = []
    x, y = 0.0, 8.0
    for thing in (thing for thing in things if thing.name):
        needs = 18 + _wide(thing.name, 12) + 14
        if x + needs - 14 > width:
            x, y = 0.0, y + 19
        places.append((thing, x, y))
        x += needs
    picture = Image.new("RGB", (width, math.ceil(y) + 20), BACK)
    pen = ImageDraw.Draw(picture)
    for thing, left, top in places:
        _tile(pen, left, top, 14, thing.color, thing.size if thing.size == 1.0 else 0.9)
        pen.text((left + 18, top + 7), thing.name, FAINT, _font(12), anchor="lm")
    return picture


def cart_pole(x: float, angle: float) -> Image.Image:
    """A cart on a track from −2.4 to 2.4, which is where it fails, with a pole of length 1."""
    width, height, unit, ground = 420, 220, 80, 165
    picture = Image.new("RGB", (width, height), FIELD)
    pen, middle, top = ImageDraw.Draw(picture), width / 2 + x * unit, ground - 26
    pen.line((0, ground, width, ground), TRAIL, 2)
    for limit in (-2.4, 2.4):
        end = width / 2 + limit * unit
        pen.line((end, ground - 12, end, ground + 12), FOE, 2)
    pen.rectangle((middle - 24, top, middle + 24, ground), "#5fa8d3")
    pen.line((middle, top, middle + math.sin(angle) * 1.3 * unit, top - math.cos(angle) * 1.3 * unit), HERO, 8)
    return picture


def heat_map(values: np.ndarray) -> Image.Image:
    """Draw the cells [H, W] or [H, W, C], the largest channel of each, from 0 (dark) to 1 (bright)."""
    level = np.clip(np.abs(values).max(axis=-1) if values.ndim == 3 else np.abs(values), 0, 1)
    stops = np.array([[26, 32, 44], [65, 120, 190], [86, 207, 161], [255, 200, 87], [255, 255, 255]])
    at = np.linspace(0, 1, len(stops))
    colors = np.stack([np.interp(level, at, stops[:, i]) for i in range(3)], axis=-1)
    return enlarged(Image.fromarray(colors.astype(np.uint8)))


def bars(values: np.ndarray) -> Image.Image:
    """Draw numbers within [−1, 1] as bars above and below a line."""
    width, half = 360, 90
    picture = Image.new("RGB", (width, 2 * half), FIELD)
    pen = ImageDraw.Draw(picture)
    room = width / len(values)
    for i, value in enumerate(np.clip(values, -1, 1)):
        ends = sorted((half, half - value * (half - 8)))
        left = i * room + min(6.0, room / 6)
        pen.rectangle(
            (left, ends[0], max(left, (i + 1) * room - min(6.0, room / 6)), ends[1]), HERO if value >= 0 else FOE
        )
    pen.line((0, half, width, half), FAINT)
    return picture


def enlarged(picture: Image.Image) -> Image.Image:
    """Enlarge a picture to at least 300 pixels of width; its own pixels become squares."""
    times = max(1, math.ceil(300 / picture.width))
    return picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)


@lru_cache
def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def _wide(text: str, size: int) -> float:
    return _font(size).getlength(text)
