"""What objects show of themselves in a notebook: well-formed, escaped, with their own numbers, and curves where they have any."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import offtrace as ot
from offtrace import learners, mdps, operators
from offtrace._shared import notebook
from offtrace.studies.status import Status

MDP = mdps.random_walk(3, gamma=0.9)
TARGET, BEHAVIOR = np.tile([0.3, 0.7], (MDP.S, 1)), mdps.uniform(MDP)
NO, LOG_PI, LOG_MU = np.zeros((2, 4), bool), np.log(np.full((2, 4), 0.4)), np.log(np.full((2, 4), 0.5))
SHOWN = {
    "certificate": lambda: operators.certify(ot.Retrace(), MDP, TARGET, BEHAVIOR),
    "falsification": lambda: operators.falsify(ot.Retrace(), states=2, tries=3),
    "trade-off": lambda: operators.tradeoff(
        MDP, TARGET, BEHAVIOR, np.zeros((MDP.S, 2)), lams=(0.0, 1.0), families=[ot.Retrace], mixes=(), bounds=()
    ),
    "diagnosis": lambda: ot.diagnose(
        ot.Retrace(), terminated=NO, truncated=NO, gamma=0.9, log_pi=LOG_PI, log_mu=LOG_MU
    ),
    "weights": lambda: ot.diagnose_weights(ot.Retrace(), log_pi=LOG_PI, log_mu=LOG_MU),
    "learned": lambda: learners.evaluate(
        ot.Retrace(0.9), MDP, target=TARGET, behavior=BEHAVIOR, alpha=0.1, steps=200, seeds=2
    ),
}


@pytest.mark.parametrize("what", SHOWN)
def test_each_shows_itself(what: str) -> None:
    text = SHOWN[what]()._repr_html_()
    tree = ElementTree.fromstring(f"<div>{text.replace('&nbsp;', ' ')}</div>")
    assert len(list(tree.iter("tr"))) >= 2
    drawn = list(tree.iter("polyline"))
    assert bool(drawn) == (what in ("weights", "learned"))


def test_texts_show_themselves() -> None:
    status = Status("a<b", Path("out"), {"test": (1, 2)}, rows=3, seconds=1.0, workers=1, versions=(), problems=())
    assert status._repr_html_() == f"<pre>{str(status).replace('<', '&lt;')}</pre>"


def test_lines_have_gaps_where_nothing_is_known() -> None:
    text = notebook.curves(np.arange(5), {"a<b": np.array([0.0, 1.0, np.nan, 2.0, 1.0]), "c": np.ones(5)}, "t", "y")
    assert text.count("<polyline") == 3
    assert "a&lt;b" in text
    assert notebook.curves(np.arange(3), {"a": np.full(3, np.nan)}, "t", "y") == ""
