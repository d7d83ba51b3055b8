"""The cases by name: in some the model of Q is wrong, in others it is right. In all of them the truth is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evidence import acrobot, finite
from offtrace import mdps
from offtrace.logs.container import Logs
from offtrace.logs.fit import Features

WAVES, WIDTH = 80, 0.55 * np.sqrt(6)
"""Random Fourier features of Acrobot's observation, and the width of their kernel."""
SPREAD = np.array([0.5, 0.65, 0.65, 0.7, 2.2, 3.6])
"""About the standard deviations of Acrobot's observations."""


@dataclass(frozen=True)
class Case:
    """Logs of a known μ, a target policy, and its true value."""

    name: str
    title: str
    words: str
    """What is logged, and what Q is fitted with, in plain words."""
    misspecified: bool
    """Whether the model of Q cannot be right, however much is logged."""
    gamma: float
    episodes: int
    logs: Callable[[int], Logs]
    """A seed → the logs of one repetition."""
    target: object
    """π, as `evaluate` takes it."""
    truth: Callable[[], tuple[float, float]]
    """V(π) and its standard error, which is 0 where it is exact."""
    model: Callable[[int], object]
    """A seed → the model of Q, as `evaluate` takes it."""
    repetitions: int
    quick: int
    """Repetitions where it must be quick."""


def _table(seed: int) -> None:
    """Return no model: states that are ids are fitted as a table."""


def _waves(seed: int) -> Features:
    """Random Fourier features of the observation, drawn anew in each repetition."""
    rng = np.random.default_rng([seed, 1])
    omega, phase = rng.normal(size=(6, WAVES)) / WIDTH, rng.uniform(0, 2 * np.pi, WAVES)
    return Features(lambda x: np.cos(x / SPREAD @ omega + phase))


def _finite(
    name: str,
    title: str,
    words: str,
    misspecified: bool,
    mdp: mdps.MDP,
    observed: np.ndarray,
    behavior: np.ndarray,
    target: np.ndarray,
    episodes: int,
) -> Case:
    return Case(
        name,
        title,
        words,
        misspecified,
        mdp.gamma,
        episodes,
        lambda seed: finite.logged(mdp, observed, behavior, episodes, seed),
        target,
        lambda: (finite.value(mdp, observed, target), 0.0),
        _table,
        repetitions=100,
        quick=10,
    )


def _grids() -> list[Case]:
    mdp = finite.grid()
    apart, all_blocks = (finite.blocks(mdp, finite.BLOCK, start_apart=apart) for apart in (True, False))
    rough = f"A table of blocks of {finite.BLOCK} × {finite.BLOCK} cells"
    made: list[Case] = []
    for name, title, words, observed in (
        ("coarse", "Coarse states after the first", f"{rough}; only the cell of the start is a state by itself", apart),
        ("aliased", "Coarse states, the first too", f"{rough}; that of the start is entered again later", all_blocks),
        ("cells", "The same, with the cells", "A table of cells, which are Markov", np.arange(mdp.S)),
    ):
        size = int(observed.max()) + 1
        behavior, target = (np.tile([p, 0.5 - p, p, 0.5 - p], (size, 1)) for p in (0.3, 0.36))
        said = (
            f"{words}: the gridworld Bifurcation {finite.GRID}, in which {100 * finite.SLIP:g} % of the moves slip; μ "
        )
        said += "goes up or left with 0.3 each, π with 0.36 each"
        made.append(_finite(name, title, said, name != "cells", mdp, observed, behavior, target, 100))
    return made


def _walks() -> list[Case]:
    mdp = finite.windy_walk()
    made: list[Case] = []
    for name, title, words, observed in (
        ("hidden", "A hidden regime", "A table of places; the wind of an episode is not logged", finite.places()),
        ("shown", "The same, with the regime logged", "A table of (wind, place), which is Markov", np.arange(mdp.S)),
    ):
        size = int(observed.max()) + 1
        behavior, target = np.full((size, 2), 0.5), np.tile([0.35, 0.65], (size, 1))
        said = f"{words}: a walk of {finite.WALK} places, μ uniform, π goes right with 0.65; the wind, to the left or to the "
        said += f"right for a whole episode, decides {100 * finite.WIND:g} % of the moves"
        made.append(_finite(name, title, said, name == "hidden", mdp, observed, behavior, target, 100))
    return made


def _garnet() -> Case:
    mdp = mdps.garnet(20, 3, 4, seed=1, gamma=0.95, terminal=1)
    pi = mdps.random_policy(mdp, np.random.default_rng(0), 1.0)
    words = (
        "A table of a Garnet with 20 states, which are Markov: μ uniform, π random, so that weights are worth little"
    )
    return _finite(
        "garnet", "Markov, and π far from μ", words, False, mdp, np.arange(mdp.S), mdps.uniform(mdp), pi, 100
    )


def _acrobot() -> Case:
    gamma, behavior, target, episodes = 0.98, 0.5, 0.4, 60
    words = f"Q linear in {WAVES} random Fourier features: Acrobot, in which μ pushes along the speed of the second joint with "
    words += f"{1 - behavior:g}, π with {1 - target:g}, and torques are uniform otherwise"
    return Case(
        "features",
        "Misspecified features",
        words,
        True,
        gamma,
        episodes,
        lambda seed: acrobot.logged(behavior, episodes, 500, seed),
        acrobot.pumping(target),
        lambda: acrobot.value(target, gamma, 100_000, 12345),
        _waves,
        repetitions=40,
        quick=2,
    )


def cases() -> dict[str, Case]:
    """All cases, those with a wrong model first; each is followed by its twin with a right one."""
    made = [_acrobot(), *_grids(), *_walks(), _garnet()]
    return {case.name: case for case in made}
