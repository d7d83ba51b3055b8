"""Models of Q that are linear in features of the states, and the names by which `evaluate` takes them.

    linear     the state as it is, with a θ for each action
    fourier    the state as it is, and cos(ω·x + b) for 100 random ω ~ N(0, 1/w²) on the standardised state x of d numbers,
               w = 0.55 √d (random Fourier features, Rahimi & Recht 2007: a Gaussian kernel of width w); a θ for each action
               where actions are real numbers: of x = (s, a) together, with x and all products x_i x_j

Fourier features are the default. They contain the linear ones, and a choice between the two by how well they predict the next
step biases V(π): where noise hides that the value bends, the linear model predicts as well, and its interval does not know. After
such a choice intervals covered the truth in 73 % of logs of 50 episodes of the problem `forge` (`benchmarks/logs_problems.py`).

Both have a ridge, chosen by cross-validation over episodes: it predicts r + γ V̂(s') of episodes that a fit did not see, V̂ a first
fit. It is at most `RIDGES[-1]`: prediction of single steps would often take more, at the price of bias in V(π).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from offtrace.logs.container import Logs, take
from offtrace.logs.fit import Features, Fit, Model, Regressor, fit, linear_basis, with_action
from offtrace.logs.operator import Sampled

FOURIER = 100
"""Random features; fewer where that would be more than one for every `STEPS_PER_WAVE` steps of an action, or where all actions
together would have more than `COLUMNS`."""
COLUMNS = 500
"""With 1,000 an evaluation of 20 actions takes almost four times as long."""
STEPS_PER_WAVE = 4
"""With 10 the features of 50 short episodes were too few to bend as the value does; the ridge takes care of too many."""
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


def as_model(model: object, logs: Logs, seed: int) -> Model | Callable[[Sampled], Features]:
    """The model of a name, or the one that was given; None for a table. For features made from the logs: what makes them."""
    if isinstance(model, Features | Regressor) and (model.of_states is not None or getattr(model, "of_pairs", None)):
        of = ("states", "actions") if isinstance(model, Features) and model.of_pairs else ("states",)
        logs.require_order("the features that are given as model go by the ids of states and actions", *of)
    if logs.continuous and isinstance(model, Features) and model.of_pairs is None:
        raise ValueError(
            "Features(φ) of states have a θ for each action, and the actions of these logs are real numbers: give features of "
            "both, Features(of_pairs=φ), φ(states, actions) → [n, p]"
        )
    if isinstance(model, Features | Regressor):
        return model
    ids = logs.tabular and not logs.continuous
    name = ("table" if ids else "fourier") if model is None else model
    if name not in ("table", "linear", "fourier"):
        raise ValueError(f"model must be one of 'table', 'linear', 'fourier', a Features or a Regressor, got {model!r}")
    if name == "table":
        if not ids:
            raise ValueError('model="table" needs states and actions that are ids, and these logs have real numbers')
        return None
    if ids:
        raise ValueError(
            f"model={model!r} needs states that are features, and the states of these logs are ids: give Features(φ), φ a table "
            "[S, d] or a callable"
        )
    return partial(_with_ridge, partial(linear if name == "linear" else fourier, seed=seed))


def _with_ridge(make: Callable[[Logs], Features], sampled: Sampled) -> Features:
    """Features made from the logs, with the ridge that predicts best for episodes that the fit did not see."""
    few, features = thinned(sampled), make(sampled.logs)
    pilot = fit(few, replace(features, ridge=1.0))
    assert isinstance(pilot, Fit)
    errors = _errors(few, features, few.logs.reward + sampled.gamma * pilot.at_steps[1])
    return replace(features, ridge=RIDGES[int(errors.argmin())])


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


def linear(logs: Logs, seed: int) -> Features:
    """The states as they are, with a θ for each action; where actions are real numbers, both."""
    if not logs.continuous:
        return Features()
    return Features(of_pairs=lambda s, a: with_action(np.column_stack([np.ones(len(a)), state_numbers(s, logs)]), a, 0))


def fourier(logs: Logs, seed: int) -> Features:
    """Random Fourier features of the states of these logs."""
    if logs.continuous:
        return _fourier_of_pairs(logs, seed)
    middle, scale = logs.state.mean(axis=0), logs.state.std(axis=0)
    return Features(fourier_features(middle, scale, len(logs), logs.actions, seed))


def fourier_features(middle: np.ndarray, scale: np.ndarray, steps: int, actions: int, seed: int) -> StateFeatures:
    """φ(x): x standardised, and waves, for x of this mean and standard deviation [d]; how many depends on steps and actions."""
    d = len(middle)
    n = max(1, min(FOURIER, steps // (STEPS_PER_WAVE * actions), COLUMNS // actions - 1 - d))
    scale = np.where(scale > 1e-12 * (1 + np.abs(middle)), scale, 1.0)
    rng = np.random.default_rng(seed)
    omega, phase = rng.normal(size=(d, n)) / (WIDTH * np.sqrt(d)), rng.uniform(0, 2 * np.pi, n)

    def phi(given: np.ndarray) -> np.ndarray:
        x = (given - middle) / scale
        return np.column_stack([x, np.cos(x @ omega + phase)])

    return phi


def _fourier_of_pairs(logs: Logs, seed: int) -> Features:
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
