"""What objects show of themselves in a notebook: tables, and curves as small drawings. Text is escaped; nothing is loaded."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from offtrace._shared.number_text import number

WIDTH, HEIGHT, LEFT, BOTTOM = 420, 180, 56, 34
COLOURS = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"


def table(title: str, rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """A table whose first column names what the others say.

    >>> table("A < B", []), table("", [("x", 1)]).count("<td")
    ('<table><caption><b>A &lt; B</b></caption></table>', 1)
    """
    left = ' style="text-align:left"'
    titles = "".join(f"<th{left}>{html.escape(name)}</th>" for name in head)
    body = f"<tr>{titles}</tr>" if head else ""
    for first, *others in rows:
        cells = "".join(f"<td{left}>{html.escape(str(cell))}</td>" for cell in others)
        body += f"<tr><th{left}>{html.escape(str(first))}</th>{cells}</tr>"
    return f"<table><caption><b>{html.escape(title)}</b></caption>{body}</table>"


def words(text: str) -> str:
    """A text as it is, where a notebook would show the fields of an object.

    >>> words("a < b")
    '<pre>a &lt; b</pre>'
    """
    return f"<pre>{html.escape(text)}</pre>"


def curves(x: np.ndarray, lines: Mapping[str, np.ndarray], across: str, up: str) -> str:
    """Lines over x as a drawing; what is not finite leaves a gap. Empty where there is nothing to draw."""
    drawn = {name: np.asarray(y, float) for name, y in lines.items() if np.isfinite(y).any()}
    if not drawn or len(x) < 2:
        return ""
    seen = np.concatenate([y[np.isfinite(y)] for y in drawn.values()])
    (x0, x1), (low, high) = (float(x[0]), float(x[-1])), (float(seen.min()), float(seen.max()))
    x1, high = (x1 if x1 > x0 else x0 + 1), (high if high > low else low + (abs(low) or 1.0))

    def at(a: float, b: float) -> str:
        along, over = (a - x0) / (x1 - x0), (b - low) / (high - low)
        return f"{LEFT + along * (WIDTH - LEFT - 8):.1f},{8 + (1 - over) * (HEIGHT - BOTTOM - 8):.1f}"

    parts = []
    for i, y in enumerate(drawn.values()):
        for piece in np.split(np.arange(len(y)), np.flatnonzero(~np.isfinite(y))):
            points = " ".join(at(float(x[j]), float(y[j])) for j in piece if math.isfinite(y[j]))
            style = f'fill="none" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="1.6"'
            parts.append(f'<polyline points="{points}" {style}/>' if points else "")
    axis = HEIGHT - BOTTOM
    said = [
        (LEFT - 4, 14, "end", number(high)), (LEFT - 4, axis, "end", number(low)),
        (LEFT, axis + 14, "start", number(x0)), (WIDTH - 8, axis + 14, "end", number(x1)),
        ((LEFT + WIDTH) / 2, axis + 28, "middle", f"{across}  ·  {up}"),
    ]  # fmt: skip
    parts.append(f'<path d="M{LEFT} 8V{axis}H{WIDTH - 8}" fill="none" stroke="currentColor" opacity="0.4"/>')
    parts += [
        f'<text x="{a}" y="{b}" text-anchor="{anchor}" font-size="11" fill="currentColor">{html.escape(text)}</text>'
        for a, b, anchor, text in said
    ]
    named = "".join(
        f'<span style="color:{COLOURS[i % len(COLOURS)]}">● </span>{html.escape(name)} &nbsp; '
        for i, name in enumerate(drawn)
    )
    label = html.escape(f"{up} over {across}", quote=True)
    drawing = f'<svg role="img" aria-label="{label}" width="{WIDTH}" height="{HEIGHT}">{"".join(parts)}</svg>'
    return f"<div>{drawing}{f'<div>{named}</div>' if len(drawn) > 1 else ''}</div>"
