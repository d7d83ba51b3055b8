"""Names are shown as they are, whatever they hold."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from offtrace import figures

NAME = r"$\foo$"
ONE, TWO = np.ones((2, 2)), np.arange(2.0)
DRAWN: dict[str, Callable[[], Any]] = {
    "heat maps": lambda: figures.heat_maps([(NAME, ONE)], above=(NAME, TWO), title=NAME),
    "lines": lambda: figures.line_panels([(NAME, {NAME: [(0.0, 1.0), (1.0, 2.0)]})], NAME),
    "bands": lambda: figures.band_panels(
        [(NAME, [(NAME, TWO, TWO, TWO, TWO)])], xlabel=NAME, ylabel=NAME, looks={NAME: 0}
    ),
    "cells": lambda: figures.cell_maps([(NAME, [0, 1], [0, 1], ONE, [0, None])], xlabel=NAME, ylabel=NAME, label=NAME),
    "intervals": lambda: figures.interval_bars([(NAME, [(NAME, 1.0, 0.0, 2.0)], None)], looks={NAME: 0}),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_a_name_between_dollars_is_drawn_as_it_is(kind: str) -> None:
    """Matplotlib would read it as mathematics, and fail at a command that it does not know."""
    pytest.importorskip("matplotlib").use("agg")
    figure = DRAWN[kind]()
    figure.savefig(BytesIO(), format="svg")
    texts = [text.get_text() for text in figure.findobj(lambda part: hasattr(part, "get_text"))]
    assert r"\$\foo\$" in texts
