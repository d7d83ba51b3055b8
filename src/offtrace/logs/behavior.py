"""The behaviour policy: as it was logged, as it is known, or estimated from the data, which the result then says.

States that are ids:   μ̂(a|s) = n(s, a) / n(s), the counts of the logs themselves
features:              a classifier, cross-fitted: episodes are dealt into folds, and each step's μ̂ comes from a model that saw
                       no step of its fold
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace._shared.extras import install
from offtrace.logs.container import Logs
from offtrace.logs.policies import as_policy


@dataclass(frozen=True, eq=False)
class Behavior:
    """log μ of the actions taken, and where it comes from."""

    log_mu: np.ndarray | None
    """[N], or None where μ is not known and not wanted."""
    origin: str
    """In words, for the result."""
    estimated: bool
    """Whether it was estimated from the very data."""


def behavior_of(logs: Logs, given: object = None, *, folds: int = 5, seed: int = 0) -> Behavior:
    """μ of the actions taken.

    `given` is None: as logged, and estimated where it was not; "estimate": estimated in any case; False: never estimated; an
    unfitted classifier of scikit-learn's interface: estimated with it; a table [S, A] or a callable: the known μ.
    """
    if isinstance(given, str) and given != "estimate":
        raise ValueError(
            f'behavior must be None, "estimate", False, a classifier, a table or a callable, got {given!r}'
        )
    if logs.continuous:
        return _of_real_actions(logs, given)
    wants = given is None or isinstance(given, str)
    if given is None and logs.log_mu is not None:
        return Behavior(logs.log_mu, "as logged", False)
    if given is False:
        return Behavior(logs.log_mu, "as logged" if logs.log_mu is not None else "unknown", False)
    if wants and logs.tabular:
        return Behavior(_counted(logs), "estimated by counts", True)
    if wants or hasattr(given, "fit"):
        classifier = _default_classifier(seed) if wants else given
        log_mu = _cross_fitted(logs, classifier, folds, seed)
        return Behavior(log_mu, f"estimated by {type(classifier).__name__}, {folds} folds of episodes", True)
    policy = as_policy(given, logs, "the behaviour policy")
    taken = policy.probabilities(logs.state)[np.arange(len(logs)), logs.action]
    _refuse_zeros(taken, logs, "the behaviour policy that was given")
    return Behavior(np.log(taken), "as given", False)


def _of_real_actions(logs: Logs, given: object) -> Behavior:
    """Densities of real-valued actions, which are not estimated."""
    if given is False or (given is None and logs.log_mu is not None):
        return Behavior(logs.log_mu, "as logged" if logs.log_mu is not None else "unknown", False)
    if given is None or isinstance(given, str):
        raise ValueError(
            "the actions of these logs are real numbers, and the density μ(a|s) of such is not estimated: declare its column, "
            "Columns(log_mu=…), give it as behavior=Density(log_pi), or do without (behavior=False), with a trace that needs no "
            "μ: QLambda, OneStep"
        )
    policy = as_policy(given, logs, "the behaviour policy")
    log_mu = policy.log_taken(logs, slice(0, len(logs)))
    if not np.isfinite(log_mu).all():
        step = int(np.argmin(np.isfinite(log_mu)))
        raise ValueError(
            f"the behaviour policy that was given has density 0 at step {step}: that action was taken, so it cannot be"
        )
    return Behavior(log_mu, "as given", False)


def deal(logs: Logs, folds: int, seed: int) -> np.ndarray:
    """The fold [E] of each episode, by chance and as equal as can be."""
    if not 2 <= folds <= logs.episodes:
        raise ValueError(f"folds must lie in [2, {logs.episodes}], the number of episodes, got {folds!r}")
    return np.random.default_rng(seed).permutation(np.arange(logs.episodes) % folds)


def _counted(logs: Logs) -> np.ndarray:
    both = logs.counts
    with np.errstate(divide="ignore", invalid="ignore"):  # states and pairs that do not occur are not read
        return np.log(both / both.sum(axis=1, keepdims=True))[logs.state, logs.action]


def _cross_fitted(logs: Logs, classifier: object, folds: int, seed: int) -> np.ndarray:
    try:
        from sklearn.base import clone
    except ImportError:
        raise ImportError(f"estimating μ from features needs scikit-learn: {install('logs')}") from None
    states = logs.state if logs.state.ndim == 2 else logs.state[:, None]
    fold = logs.of_steps(deal(logs, folds, seed))
    taken = np.zeros(len(logs))
    for f in range(folds):
        here = fold == f
        model: Any = clone(classifier)
        try:
            model.fit(states[~here], logs.action[~here])
        except ValueError as error:
            times = np.bincount(logs.action[~here])
            raise ValueError(
                f"μ could not be estimated by {type(classifier).__name__}: {error} The rarest action without fold {f} of "
                f"{folds} occurs {times[times > 0].min()} times. Give another classifier or the known μ (behavior=…), drop such "
                "episodes, or do without μ (behavior=False)"
            ) from error
        column = np.full(logs.actions, -1)
        column[np.asarray(model.classes_, int)] = np.arange(len(model.classes_))
        probabilities, of = model.predict_proba(states[here]), column[logs.action[here]]
        taken[here] = np.where(of >= 0, probabilities[np.arange(len(of)), of], 0.0)
    _refuse_zeros(taken, logs, f"the estimate of μ by {type(classifier).__name__} with {folds} folds")
    return np.log(taken)


def _refuse_zeros(taken: np.ndarray, logs: Logs, what: str) -> None:
    zero = taken <= 0
    if zero.any():
        step = int(np.argmax(zero))
        raise ValueError(
            f"{what} gives the action {logs.action[step]} of step {step} probability 0, and {int(zero.sum())} such steps in "
            "all: it was taken, so it cannot be. An action that is too rare for every fold to see it needs fewer folds, or its "
            "episodes dropped"
        )


def _default_classifier(seed: int) -> object:
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError:
        raise ImportError(
            f"these logs have no μ, and to estimate it from features needs scikit-learn: {install('logs')}. "
            "Tree Backup and Q(λ) need no μ: behavior=False"
        ) from None
    classifier: Any = HistGradientBoostingClassifier  # its stubs know early_stopping as a string only
    return classifier(learning_rate=0.05, early_stopping=True, random_state=seed)
