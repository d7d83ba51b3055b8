"""Returns of random policies in the games of deep agents: what their scores are measured from."""

from __future__ import annotations

RANDOM: dict[str, float] = {
    "minatar/asterix": 0.49,
    "minatar/breakout": 0.38,
    "minatar/freeway": 0.36,
    "minatar/seaquest": 0.10,
    "minatar/space-invaders": 4.04,
}
"""The mean return of uniformly random actions, with sticky actions of 0.1 and gymnax's limits; 256 copies × 6,000 steps.

`python benchmarks/random_policies.py` measures them."""
