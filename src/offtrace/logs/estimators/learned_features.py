"""Features that are made from the logs themselves, in which Q is then linear.

    fourier    the state as it is, and cos(ω·x + b) for 200 random ω ~ N(0, 1/w²) on the standardised state x of d numbers,
               w = 0.55 √d (random Fourier features, Rahimi & Recht 2007: a Gaussian kernel of width w); a θ for each action
               where actions are real numbers: of x = (s, a) together, with x and all products x_i x_j
    trees      which leaf (s, a) falls into, in each of 20 randomised trees of 30 leaves, grown on the returns of the logs
    network    the last hidden layer of a network with two layers of 64, trained on the returns of the logs

Trees and networks learn what tells returns apart. Q of the target policy, by its trace, is then a linear system: its fixed point
needs no sweeps, and its interval no refits. In a cross-fit the features, too, are made without the fold.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from offtrace._shared.compile_cache import cached_njit
from offtrace._shared.extras import install
from offtrace.logs.container import Logs

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.neural_network import MLPRegressor

FOURIER = 200
"""Random features; fewer where that would be more than one for every ten steps of an action."""
SQUARES = 20
"""Numbers of (s, a) of which there are products, at most."""
WIDTH = 0.55
"""Of the kernel, times √d."""

StateFeatures = Callable[[np.ndarray], np.ndarray]
PairFeatures = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Learned:
    """Q = φ·θ with φ made from the logs that it is fitted to."""

    of_states: Callable[[Logs], StateFeatures] | None = None
    """Logs → φ(s), with a θ for each action."""
    of_pairs: Callable[[Logs, np.ndarray], PairFeatures] | None = None
    """Logs and the returns from each step on [N] → φ(s, a)."""
    _kept: dict[int, tuple[np.ndarray, StateFeatures | PairFeatures]] = field(default_factory=dict)
    _roots: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)

    def shared(self, logs: Logs) -> dict[str, np.ndarray]:
        """What all fits to these logs have in common, whatever their policy and trace."""
        return self._roots.setdefault(id(logs.reward), {})

    def features(self, logs: Logs, gamma: float) -> tuple[StateFeatures | None, PairFeatures | None]:
        """φ(s) or φ(s, a) of these logs, made once for each."""
        key = id(logs.reward)
        if key not in self._kept:
            made: Any = self.of_states(logs) if self.of_states is not None else None
            if self.of_pairs is not None:
                made = self.of_pairs(logs, returns_from(logs, gamma))
            self._kept[key] = logs.reward, made  # the array is kept, so that its id is not given to another one
        made: Any = self._kept[key][1]
        return (made, None) if self.of_pairs is None else (None, made)


def returns_from(logs: Logs, gamma: float, beyond: float | None = None) -> np.ndarray:
    """Σ_{t≥k} γ^{t−k} r_t of each step k [N], to the end of its episode; beyond a cut `beyond`: the mean of all first steps."""
    lengths = np.diff(logs.starts)
    last = np.repeat(logs.starts[1:] - 1, lengths)
    left = last - np.arange(len(logs))  # steps that follow
    age = np.arange(len(logs)) - np.repeat(logs.starts[:-1], lengths)
    out = np.empty(len(logs))
    _backward(logs.reward, logs.terminated | logs.truncated, gamma, out)
    cut = (logs.truncated & ~logs.terminated)[last]
    if cut.any():
        out = out + np.where(cut, gamma ** (left + 1.0), 0.0) * (out[age == 0].mean() if beyond is None else beyond)
    return out


@cached_njit(nogil=True)
def _backward(reward, ends, gamma, out):
    running = 0.0
    for k in range(len(reward) - 1, -1, -1):
        running = reward[k] + (0.0 if ends[k] else gamma * running)
        out[k] = running


def fourier(seed: int) -> Learned:
    """Random Fourier features."""

    def of(logs: Logs) -> StateFeatures:
        return fourier_features(logs.state.mean(axis=0), logs.state.std(axis=0), len(logs), max(logs.actions, 1), seed)

    return Learned(of_states=of)


def fourier_features(middle: np.ndarray, scale: np.ndarray, steps: int, actions: int, seed: int) -> StateFeatures:
    """φ(s) for states of this mean and standard deviation [d]; how many depends on the number of steps and actions."""
    d, n = len(middle), max(1, min(FOURIER, steps // (10 * actions)))
    scale = np.where(scale > 1e-12 * (1 + np.abs(middle)), scale, 1.0)
    rng = np.random.default_rng(seed)
    omega, phase = rng.normal(size=(d, n)) / (WIDTH * np.sqrt(d)), rng.uniform(0, 2 * np.pi, n)

    def phi(states: np.ndarray) -> np.ndarray:
        x = (states - middle) / scale
        return np.column_stack([x, np.cos(x @ omega + phase)])

    return phi


def fourier_of_pairs(seed: int) -> Learned:
    """Random Fourier features of (s, a), where actions are real numbers, and products of two numbers: costs are often squares."""

    def of(logs: Logs, returns: np.ndarray) -> PairFeatures:
        given = with_action(state_numbers(logs.state, logs), logs.action, 0)
        n, d = max(1, min(FOURIER, len(logs) // 10)), given.shape[1]
        middle, scale = given.mean(axis=0), given.std(axis=0)
        scale = np.where(scale > 1e-12 * (1 + np.abs(middle)), scale, 1.0)
        rng = np.random.default_rng(seed)
        omega, phase = rng.normal(size=(d, n)) / (WIDTH * np.sqrt(d)), rng.uniform(0, 2 * np.pi, n)
        i, j = np.triu_indices(d) if d <= SQUARES else (np.zeros(0, int),) * 2

        def phi(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
            x = (with_action(state_numbers(states, logs), actions, 0) - middle) / scale
            return np.column_stack([np.ones(len(x)), x, x[:, i] * x[:, j], np.cos(x @ omega + phase)])

        return phi

    return Learned(of_pairs=of)


def state_numbers(states: np.ndarray, logs: Logs) -> np.ndarray:
    """Features of states as they are; ids as columns of 0 and 1."""
    return np.eye(logs.states)[states] if logs.tabular else states


def trees(seed: int) -> Learned:
    """The leaves of randomised trees."""

    def of(logs: Logs, returns: np.ndarray) -> PairFeatures:
        made: ExtraTreesRegressor = sklearn("ensemble").ExtraTreesRegressor(
            20, max_leaf_nodes=30, max_features=1.0, random_state=seed
        )
        forest = made.fit(with_action(logs.state, logs.action, logs.actions), returns)
        leaves = [np.flatnonzero(tree.tree_.children_left < 0) for tree in forest.estimators_]

        def phi(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
            where = forest.apply(with_action(states, actions, logs.actions))
            return np.hstack([where[:, [j]] == each for j, each in enumerate(leaves)]).astype(np.float64)

        return phi

    return Learned(of_pairs=of)


def network(seed: int) -> Learned:
    """The last hidden layer of a network."""

    def of(logs: Logs, returns: np.ndarray) -> PairFeatures:
        middle, scale = logs.state.mean(axis=0), logs.state.std(axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        spread = returns.std() or 1.0
        made: MLPRegressor = sklearn("neural_network").MLPRegressor(
            hidden_layer_sizes=(64, 64), max_iter=30, batch_size=min(256, len(returns)), random_state=seed
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it could be trained on: the linear system does the rest
            made.fit(
                with_action((logs.state - middle) / scale, logs.action, logs.actions),
                (returns - returns.mean()) / spread,
            )

        return hidden_layer(made.coefs_[:-1], made.intercepts_[:-1], middle, scale, logs.actions)

    return Learned(of_pairs=of)


def hidden_layer(
    weights: Sequence[np.ndarray], biases: Sequence[np.ndarray], middle: np.ndarray, scale: np.ndarray, actions: int
) -> PairFeatures:
    """φ(s, a): a constant, and the last of these layers of a network, for states of this mean and scale."""

    def phi(states: np.ndarray, action: np.ndarray) -> np.ndarray:
        h = with_action((states - middle) / scale, action, actions)
        for matrix, bias in zip(weights, biases, strict=True):
            h = np.maximum(h @ matrix + bias, 0.0)
        return np.column_stack([np.ones(len(h)), h])

    return phi


def with_action(x: np.ndarray, action: np.ndarray, actions: int) -> np.ndarray:
    """Features and the action, an id as columns of 0 and 1; no actions: they are real numbers, and stand as they are."""
    return np.column_stack([x, np.eye(actions)[action] if actions else action])


def sklearn(name: str) -> ModuleType:
    """A module of scikit-learn, which is an extra."""
    try:
        from importlib import import_module

        return import_module(f"sklearn.{name}")
    except ImportError:
        raise ImportError(f"this model needs scikit-learn: {install('logs')}") from None
