"""Pictures of games from their observations, with Pillow."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFont

BACK, FIELD, TEXT, HERO, FOE = "#12161f", "#1a202c", "#e8ecf4", "#ffc857", "#ef6f6c"
CHANNELS = (
    *("#ffc857", "#ffffff", "#5b6b8c", "#ef6f6c", "#56cfa1"),
    *("#5fa8d3", "#ff9ecb", "#b5446e", "#2f8f6b", "#b98a2f"),
)
"""The colours of what the channels of a MinAtar observation show: the first is that of the player."""
CELL, EDGE, HEAD = 30, 14, 34


def picture_of(observation: np.ndarray, scale: float | np.ndarray = 1.0) -> Image.Image:
    """Draw an observation. `scale` is the largest size of each number, where numbers are drawn."""
    if observation.dtype == np.uint8 and observation.shape[2:] == (3,):
        return enlarged(Image.fromarray(observation))
    if observation.dtype == bool and observation.ndim == 3:
        return board(observation)
    numbers = observation / np.maximum(scale, 1e-6)
    if observation.ndim not in (2, 3):
        return bars(numbers.reshape(-1))
    level = np.clip(np.abs(numbers), 0, 1).reshape(*numbers.shape[:2], -1).max(axis=-1)
    return enlarged(Image.fromarray((255 * level).astype(np.uint8)).convert("RGB"))


def board(observation: np.ndarray) -> Image.Image:
    """Draw a grid [H, W, C] of cells: each channel has a colour, the first one on top."""
    colors = np.array([[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in (*CHANNELS, FIELD)], np.uint8)
    channel = np.where(observation.any(axis=-1), observation.argmax(axis=-1) % len(CHANNELS), len(CHANNELS))
    height, width = channel.shape
    return Image.fromarray(colors[channel]).resize((width * CELL, height * CELL), Image.Resampling.NEAREST)


def bars(values: np.ndarray) -> Image.Image:
    """Draw numbers within [−1, 1] as bars above and below a line."""
    width, half = 360, 90
    picture = Image.new("RGB", (width, 2 * half), FIELD)
    pen = ImageDraw.Draw(picture)
    room = width / len(values)
    for i, value in enumerate(np.clip(values, -1, 1)):
        low, high = sorted((half, half - value * (half - 8)))
        pen.rectangle((i * room, low, (i + 0.8) * room, high), HERO if value >= 0 else FOE)
    return picture


def captioned(picture: Image.Image, title: str, facts: str) -> Image.Image:
    """Put a line with the title and the facts above a picture, and a margin around it."""
    font = ImageFont.load_default(15)
    needs = font.getlength(title) + font.getlength(facts) + 24
    width = max(picture.width, math.ceil(needs)) + 2 * EDGE
    whole = Image.new("RGB", (width, picture.height + HEAD + EDGE), BACK)
    pen = ImageDraw.Draw(whole)
    pen.text((EDGE, HEAD / 2), title, TEXT, font, anchor="lm")
    pen.text((width - EDGE, HEAD / 2), facts, HERO, font, anchor="rm")
    whole.paste(picture, ((width - picture.width) // 2, HEAD))
    return whole


def enlarged(picture: Image.Image) -> Image.Image:
    """Enlarge a picture to at least 300 pixels of width; its own pixels become squares."""
    times = max(1, math.ceil(300 / picture.width))
    return picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
