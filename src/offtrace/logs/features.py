"""Models of Q that are made from the logs themselves, in which Q is then linear, and the names by which `evaluate` takes them.

    linear     the state as it is, with a θ for each action
    fourier    the state as it is, and cos(ω·x + b) for 100 random ω ~ N(0, 1/w²) on the standardised state x of d numbers,
               w = 0.55 √d (random Fourier features, Rahimi & Recht 2007: a Gaussian kernel of width w); a θ for each action
               where actions are real numbers: of x = (s, a) together, with x and all products x_i x_j
    trees      which leaf (s, a) falls into, in each of 20 randomised trees of 30 leaves, grown on the returns of the logs
    network    the last hidden layer of a network with two layers of 64, trained on the returns of the logs

All have a ridge, which cross-validation over episodes chooses, and without a name it also chooses between linear and fourier: it
predicts r + γ V̂(s') of episodes that a fit did not see, V̂ a first fit. Trees and networks learn what tells returns apart; in a
cross-fit they are made without its fold. Q of the target policy is then a linear system: its fixed point needs no sweeps, and its
interval no refits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from offtrace._shared.compile_cache import cached_njit
from offtrace._shared.extras import install
from offtrace.logs.container import Logs, take
from offtrace.logs.fit import Features, Fit, Learned, Model, Regressor, fit, linear_basis, with_action
from offtrace.logs.operator import Sampled

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.neural_network import MLPRegressor

FOURIER = 100
"""Random features; fewer where that would be more than one for every ten steps of an action."""
SQUARES = 20
"""Numbers of (s, a) of which there are products, at most."""
WIDTH = 0.55
"""Of the kernel, times √d."""
RIDGES = (0.01, 0.1, 1.0, 3.0, 10.0, 30.0)
FOLDS = 5
JITTER = 1e-9  # so that constants, which have no ridge, can be solved for without a fold
STEPS = 1 << 17
"""Steps on which a model is chosen: of longer logs, those of episodes spread evenly over them."""

StateFeatures = Callable[[np.ndarray], np.ndarray]
PairFeatures = Callable[[np.ndarray, np.ndarray], np.ndarray]


def as_model(model: object, logs: Logs, seed: int) -> Model:
    """The model of a name, or the one that was given; None for a table."""
    if isinstance(model, Features | Regressor) and (model.of_states is not None or getattr(model, "of_pairs", None)):
        of = ("states", "actions") if isinstance(model, Features) and model.of_pairs else ("states",)
        logs.require_order("the features that are given as model go by the ids of states and actions", *of)
    if logs.continuous and isinstance(model, Features) and model.of_pairs is None:
        raise ValueError(
            "Features(φ) of states have a θ for each action, and the actions of these logs are real numbers: give features of "
            "both, Features(of_pairs=φ), φ(states, actions) → [n, p]"
        )
    if isinstance(model, Features | Learned | Regressor):
        return model
    names = _names(logs, seed)
    if model is None:
        return None if logs.tabular and not logs.continuous else cross_validated(*names["default"])
    if not isinstance(model, str) or model == "default" or model not in (*names, "table"):
        known = ", ".join(map(repr, ("table", *(name for name in names if name != "default"))))
        raise ValueError(f"model must be one of {known}, a Features or a Regressor, got {model!r}")
    if model == "table":
        if not logs.tabular or logs.continuous:
            raise ValueError('model="table" needs states and actions that are ids, and these logs have real numbers')
        return None
    if logs.tabular and model not in (("linear", "fourier") if logs.continuous else ("linear",)):
        raise ValueError(
            f"model={model!r} needs states that are features, and these logs have ids: give Features(φ), φ a table [S, d] or a "
            "callable"
        )
    if model == "linear" and logs.tabular and not logs.continuous:
        return Features()  # which says that features are missing
    return cross_validated(*names[model], of_returns=model in ("trees", "network"))


Makers = tuple[Callable[[Sampled], Features], ...]


def _names(logs: Logs, seed: int) -> dict[str, Makers]:
    """What makes the features of each name."""

    def linear(sampled: Sampled) -> Features:
        if not logs.continuous:
            return Features()
        return Features(
            of_pairs=lambda s, a: with_action(np.column_stack([np.ones(len(a)), state_numbers(s, logs)]), a, 0)
        )

    def waves(sampled: Sampled) -> Features:
        return fourier_of_pairs(sampled.logs, seed) if logs.continuous else fourier(sampled.logs, seed)

    return {
        "default": (waves,) if logs.continuous else (linear, waves),
        "linear": (linear,),
        "fourier": (waves,),
        "trees": (lambda sampled: trees(sampled.logs, sampled.gamma, seed),),
        "network": (lambda sampled: network(sampled.logs, sampled.gamma, seed),),
    }


def cross_validated(*makers: Callable[[Sampled], Features], of_returns: bool = False) -> Learned:
    """The features, and their ridge, that predict best for episodes that a fit did not see; the last ones are the richest."""

    def make(sampled: Sampled) -> Features:
        few = thinned(sampled)
        candidates = [each(sampled) for each in makers]
        pilot = fit(few, replace(candidates[-1], ridge=1.0))
        assert isinstance(pilot, Fit)
        y = few.logs.reward + sampled.gamma * pilot.at_steps[1]
        errors = [_errors(few, each, y) for each in candidates]
        best = min(range(len(errors)), key=lambda i: errors[i].min())
        return replace(candidates[best], ridge=RIDGES[int(errors[best].argmin())])

    return Learned(make, of_returns)


def thinned(sampled: Sampled) -> Sampled:
    """The operator on some episodes of long logs."""
    logs = sampled.logs
    if len(logs) <= STEPS:
        return sampled
    return replace(sampled, logs=take(logs, np.arange(0, logs.episodes, -(-len(logs) // STEPS))))


def _errors(sampled: Sampled, model: Features, y: np.ndarray) -> np.ndarray:
    """Squared errors of ridge regression of y on the features, over episodes that it did not see, for each of `RIDGES`."""
    logs, basis = sampled.logs, linear_basis(sampled, replace(model, ridge=1.0))
    x = np.concatenate([basis.features_at(piece)[0] for piece in logs.pieces(basis.piece)])
    folds = min(FOLDS, logs.episodes)
    fold = logs.of_steps(np.random.default_rng(0).permutation(logs.episodes) % folds)
    constant, errors = x.T @ y, np.zeros(len(RIDGES))
    for f in range(folds):
        unseen, target = x[fold == f], y[fold == f]
        gram, right = np.eye(basis.size) - unseen.T @ unseen, constant - unseen.T @ target
        for i, ridge in enumerate(RIDGES):
            theta = np.linalg.solve(gram + ridge * basis.penalty + JITTER * np.eye(basis.size), right)
            errors[i] += ((target - unseen @ theta) ** 2).sum()
    return errors


def returns_from(logs: Logs, gamma: float) -> np.ndarray:
    """Σ_{t≥k} γ^{t−k} r_t of each step k [N], to the end of its episode; beyond a cut: the mean of all first steps."""
    out = np.empty(len(logs))
    _backward(logs.reward, logs.terminated | logs.truncated, gamma, out)
    last = logs.of_steps(logs.last_steps)
    cut = logs.cut[last]
    left = last - np.arange(len(logs))  # steps that follow
    return out + np.where(cut, gamma ** (left + 1.0), 0.0) * out[logs.first_steps].mean() if cut.any() else out


@cached_njit(nogil=True)
def _backward(reward, ends, gamma, out):
    running = 0.0
    for k in range(len(reward) - 1, -1, -1):
        running = reward[k] + (0.0 if ends[k] else gamma * running)
        out[k] = running


def fourier(logs: Logs, seed: int) -> Features:
    """Random Fourier features of the states of these logs."""
    middle, scale = logs.state.mean(axis=0), logs.state.std(axis=0)
    return Features(fourier_features(middle, scale, len(logs), max(logs.actions, 1), seed))


def fourier_features(middle: np.ndarray, scale: np.ndarray, steps: int, actions: int, seed: int) -> StateFeatures:
    """φ(x): x standardised, and waves, for x of this mean and standard deviation [d]; how many depends on steps and actions."""
    d, n = len(middle), max(1, min(FOURIER, steps // (10 * actions)))
    scale = np.where(scale > 1e-12 * (1 + np.abs(middle)), scale, 1.0)
    rng = np.random.default_rng(seed)
    omega, phase = rng.normal(size=(d, n)) / (WIDTH * np.sqrt(d)), rng.uniform(0, 2 * np.pi, n)

    def phi(given: np.ndarray) -> np.ndarray:
        x = (given - middle) / scale
        return np.column_stack([x, np.cos(x @ omega + phase)])

    return phi


def fourier_of_pairs(logs: Logs, seed: int) -> Features:
    """Random Fourier features of (s, a), where actions are real numbers, and products of two numbers: costs are often squares."""
    given = with_action(state_numbers(logs.state, logs), logs.action, 0)
    d = given.shape[1]
    waves = fourier_features(given.mean(axis=0), given.std(axis=0), len(logs), 1, seed)
    i, j = np.triu_indices(d) if d <= SQUARES else (np.zeros(0, int),) * 2

    def phi(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        both = waves(with_action(state_numbers(states, logs), actions, 0))
        x = both[:, :d]
        return np.column_stack([np.ones(len(x)), x, x[:, i] * x[:, j], both[:, d:]])

    return Features(of_pairs=phi)


def state_numbers(states: np.ndarray, logs: Logs) -> np.ndarray:
    """Features of states as they are; ids as columns of 0 and 1."""
    return np.eye(logs.states)[states] if logs.tabular else states


def trees(logs: Logs, gamma: float, seed: int) -> Features:
    """The leaves of randomised trees."""
    made: ExtraTreesRegressor = sklearn("ensemble").ExtraTreesRegressor(
        20, max_leaf_nodes=30, max_features=1.0, random_state=seed
    )
    forest = made.fit(with_action(logs.state, logs.action, logs.actions), returns_from(logs, gamma))
    leaves = [np.flatnonzero(tree.tree_.children_left < 0) for tree in forest.estimators_]
    actions = logs.actions

    def phi(states: np.ndarray, taken: np.ndarray) -> np.ndarray:
        where = forest.apply(with_action(states, taken, actions))
        return np.hstack([where[:, [j]] == each for j, each in enumerate(leaves)]).astype(np.float64)

    return Features(of_pairs=phi)


def network(logs: Logs, gamma: float, seed: int) -> Features:
    """The last hidden layer of a network."""
    returns, middle, scale = returns_from(logs, gamma), logs.state.mean(axis=0), logs.state.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    made: MLPRegressor = sklearn("neural_network").MLPRegressor(
        hidden_layer_sizes=(64, 64), max_iter=30, batch_size=min(256, len(returns)), random_state=seed
    )
    x = with_action((logs.state - middle) / scale, logs.action, logs.actions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it could be trained on: the linear system does the rest
        made.fit(x, (returns - returns.mean()) / (returns.std() or 1.0))
    return Features(of_pairs=hidden_layer(made.coefs_[:-1], made.intercepts_[:-1], middle, scale, logs.actions))


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


def sklearn(name: str) -> ModuleType:
    """A module of scikit-learn, which is an extra."""
    try:
        from importlib import import_module

        return import_module(f"sklearn.{name}")
    except ImportError:
        raise ImportError(f"this model needs scikit-learn: {install('logs')}") from None
