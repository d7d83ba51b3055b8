"""An environment that workers wait for until a file is there: so a test meets a study half-way, however fast the machine is."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from offtrace.mdps import MDP, random_walk
from offtrace.studies import register_environment
from offtrace.studies.environments import GALLERY


def gated(states: int, gate: str) -> MDP:
    while "worker" in Path(sys.argv[0]).name and not Path(gate).exists():
        time.sleep(0.02)
    return random_walk(states)


if "gated" not in GALLERY:  # pytest, too, imports this file, by another name
    register_environment("gated", gated)
