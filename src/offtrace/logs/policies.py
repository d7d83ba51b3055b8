"""The target policy: a table π(a|s), a function of states, or a classifier; one way to ask all of them for probabilities.

States and actions are matched by name, or by position in an order that the user gave. `Logs.sorted_names` tells where none was.

Where actions are real numbers it is a `Density` or a `Deterministic` policy (`action_densities`), asked in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace._shared.suggestions import did_you_mean
from offtrace.logs.container import Logs
from offtrace.trajectory import distributions

PIECE = 1 << 16  # states that are asked for at a time


@dataclass(frozen=True, eq=False)
class Policy:
    """π, with `probabilities(states)` → [n, A]. Made by `as_policy`; a policy over ids of states always has a table."""

    actions: int
    """A, how many actions there are."""
    table: np.ndarray | None
    """π [S, A] where states are ids, else None."""
    ask: Callable[[np.ndarray], object]
    """States → probabilities [n, A], not yet checked."""
    called: str = "the policy"
    """What errors call it."""

    def probabilities(self, states: np.ndarray) -> np.ndarray:
        """π(·|s) [n, A] in float64: of ids [n], or of features [n, d]."""
        if self.table is not None:
            return self.table[states]
        pi = np.empty((len(states), self.actions))  # of no states the policy is not asked
        for first in range(0, len(states), PIECE):
            piece = slice(first, first + PIECE)
            pi[piece] = _checked(self.ask(states[piece]), len(states[piece]), self.actions, self.called, first)
        return pi

    @property
    def draws(self) -> bool:
        """Whether it says which actions it takes in a state, so that there is a Σ_a π(a|s) Q(s, a)."""
        return True

    def log_taken(self, logs: Logs, steps: slice) -> np.ndarray:
        """log π(a|s) [n] of the actions taken; −∞ where π = 0."""
        pi = self.probabilities(logs.state[steps])
        with np.errstate(divide="ignore"):
            return np.log(pi[np.arange(len(pi)), logs.action[steps]])

    def choices(self, states: np.ndarray) -> np.ndarray:
        """What Σ_a π(a|s) goes over: the probabilities [n, A]; of real-valued actions, some of them [n, m, k], all alike."""
        return self.probabilities(states)

    def outside(self, states: np.ndarray, logs: Logs) -> np.ndarray:
        """The share [n] of what it does in these states that was never logged at all."""
        never = np.bincount(logs.action, minlength=logs.actions) == 0
        return self.probabilities(states)[:, never].sum(axis=1) if never.any() else np.zeros(len(states))

    def for_logs(self, logs: Logs, gamma: float) -> Policy:
        """The same, with what must be chosen for these logs."""
        return self

    def narrower(self) -> Policy | None:
        """The same with a narrower kernel; None where it has no kernel."""
        return None

    @property
    def kernel(self) -> str:
        """Its kernel in words; nothing where it has none."""
        return ""


def as_policy(policy: object, logs: Logs, called: str = "the target policy") -> Policy:
    """A policy for the states and actions of these logs.

    A table [S, A], for logs whose states are ids; a callable, states → probabilities [n, A], or a mapping from the names of
    actions to probabilities [n]; or anything with `predict_proba`, such as a classifier of scikit-learn, whose `classes_` say
    which action a column stands for. Functions get states as the source has them, by their names if they have names.
    Where names were sorted by `read`, since their order was not given, what goes by position is an error.
    Probabilities must not be negative and must sum to one, but for what float32 rounds (`trajectory.distributions`).
    """
    if isinstance(policy, Policy):
        return policy
    if logs.continuous:
        from offtrace.logs.real_actions import as_real_policy  # which is made of this module

        return as_real_policy(policy, logs, called)
    if policy is None:
        raise TypeError(
            f"{called} is None: only where actions are real numbers can the logs have it, as a column log_pi"
        )
    if hasattr(policy, "predict_proba"):
        ask = _of_classifier(policy, logs, called)
    elif callable(policy):
        ask = _of_function(policy, logs, called)
    else:
        table = _table(policy, logs, called)
        return Policy(logs.actions, table, table.__getitem__, called)
    if not logs.tabular:
        return Policy(logs.actions, None, ask, called)
    table = _checked(ask(np.array(logs.names("states"))), logs.states, logs.actions, called)
    return Policy(logs.actions, table, ask, called)


def _table(policy: object, logs: Logs, called: str) -> np.ndarray:
    refuse_frame(policy, called)
    array = np.asarray(policy)
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"{called} must be a table [S, A], a callable (states → probabilities) or an object with predict_proba, "
            f"got {type(policy).__name__}"
        )
    if not logs.tabular:
        raise TypeError(
            f"{called} is a table of shape {array.shape}, but the states of these logs are features: give a callable, "
            "features [n, d] → probabilities [n, A], or an object with predict_proba"
        )
    logs.require_order(f"{called} is a table [S, A], whose rows and columns go by position", "states", "actions")
    if array.shape != (logs.states, logs.actions):
        raise ValueError(
            f"{called} is a table of shape {array.shape}, but these logs have {logs.states} states and {logs.actions} "
            f"actions: it must be [S, A] = {(logs.states, logs.actions)}. If it has some that a log does not show, give "
            "`read` their number or names: states=…, actions=…"
        )
    return _checked(array, logs.states, logs.actions, called)


def refuse_frame(policy: object, called: str) -> None:
    """A frame has names of its own, which nothing would look at."""
    if hasattr(policy, "columns"):
        raise TypeError(
            f"{called} is a {type(policy).__name__}, whose names would not be looked at: give its numbers as an array [S, A], "
            "and the names in their order to `read`: states=…, actions=…"
        )


def _of_function(policy: Callable[[np.ndarray], object], logs: Logs, called: str) -> Callable[[np.ndarray], object]:
    """The function, with a mapping that it returns as an array whose columns are in the order of the actions."""

    def ask(states: np.ndarray) -> object:
        given = policy(states)
        if isinstance(given, Mapping):
            return _by_name(list(given), list(given.values()), len(states), logs, called)
        names = ", ".join(f"{name!r}: …" for name in logs.names("actions")[:2])
        logs.require_order(
            f"{called} gives an array [n, A], whose columns go by position (by name would be a mapping, {{{names}}})",
            "actions",
        )
        return given

    return ask


def _of_classifier(classifier: Any, logs: Logs, called: str) -> Callable[[np.ndarray], object]:
    """predict_proba with its columns put where `classes_` says; actions that it never saw have probability 0."""

    def ask(states: np.ndarray) -> object:
        given = np.asarray(classifier.predict_proba(states if states.ndim == 2 else states[:, None]))
        if (classes := getattr(classifier, "classes_", None)) is not None:
            return _by_name(np.asarray(classes).tolist(), list(given.T), len(states), logs, called)
        logs.require_order(
            f"{called} has no classes_, so that the columns of its predictions go by position", "actions"
        )
        return given

    return ask


def _by_name(given: list[Any], columns: list[Any], n: int, logs: Logs, called: str) -> np.ndarray:
    """Probabilities [n, A] from a column for each of these actions; others have probability 0."""
    names = logs.names("actions")
    place, pi = {name: a for a, name in enumerate(names)}, np.zeros((n, len(names)))
    for name, column in zip(given, columns, strict=True):
        if name not in place:
            raise ValueError(
                f"{called} has the action {name!r}{did_you_mean(str(name), [str(each) for each in names])}, and these logs have "
                f"{logs.order('actions') or f'the ids 0 … {len(names) - 1}'}. If it is one that a log does not show, give `read` "
                "all of them: actions=…"
            )
        try:
            pi[:, place[name]] = as_array(column, called)
        except ValueError:
            raise ValueError(
                f"{called} gave {np.shape(column)} for the action {name!r} in {n} states: it must be [n] = ({n},)"
            ) from None
    return pi


def as_array(given: Any, called: str, what: str = "numbers") -> np.ndarray:
    """What a policy gave, in float64; tensors of PyTorch too, which is not imported for it."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
    try:
        return np.ascontiguousarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{called} gave {type(given).__name__}: it must give an array of {what}") from None


def _checked(given: object, n: int, actions: int, called: str, first: int = 0) -> np.ndarray:
    """Probabilities [n, A] as float64; else an error that names the first row that is none."""
    probabilities = as_array(given, called, "probabilities [n, A]")
    if probabilities.shape != (n, actions):
        raise ValueError(
            f"{called} gave an array of shape {probabilities.shape} for {n} states: it must be [n, A] = {(n, actions)}"
        )
    return distributions(probabilities, called, "state number", first)
