"""Q linear in features by sums over files. They are matrices, so that the number of passes does not depend on the trace.

pass 1      episodes, steps, returns, the mean of the states
pass 2      their standard deviation: for Fourier features and for networks
passes      of the training, for a network (`network_training`)
pass        Σ φφᵀ, from which an orthonormal basis of the features comes
pass        A = Σ_t z_t (φ_t − γφ'_t)ᵀ and b = Σ_t z_t r_t in that basis; θ = A⁻¹b is the fixed point
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from offtrace.logs.container import Logs
from offtrace.logs.estimators.fitted_iteration import Features
from offtrace.logs.estimators.learned_features import fourier_features
from offtrace.logs.estimators.linear_bases import feature_matrix, root_of
from offtrace.logs.estimators.linear_systems import inverse_of
from offtrace.logs.estimators.sampled_operator import Sampled
from offtrace.logs.estimators.target_policy import as_policy
from offtrace.logs.partitions import network_training, one_file
from offtrace.logs.partitions.kept_sums import Sums
from offtrace.logs.partitions.one_file import Known, Question
from offtrace.logs.partitions.passes_over_files import Passes
from offtrace.traces import OneStep

MOST = 5000
"""Features at most: a matrix of their number squared is summed for each file."""


class FeatureSums:
    """θ, A⁻¹ and what gives V(π), from the passes above."""

    def __init__(
        self, question: Question, passes: Passes, first: Sums, model: Features | str, actions: int, seed: int
    ) -> None:
        self.question, self.actions = question, actions
        episodes = int(first["returns"][0])
        features = self._features(question, passes, first, model, actions, seed)
        given = passes.over("gram", one_file.gram, question, features)["gram"]
        if len(given) > MOST:
            raise ValueError(
                f"{len(given):,} features (with a block for each action) are more than {MOST:,}: take fewer"
            )
        self.known = replace(features, root=root_of(given))
        sums = passes.over("system", one_file.system, question, self.known)
        self.inverse, constant = inverse_of(sums["matrix"]), sums["constant"]
        self.θ = self.inverse @ constant
        left = np.linalg.norm(sums["matrix"] @ self.θ - constant)
        self.converged = bool(left <= 1e-6 * np.linalg.norm(constant))
        self.gradient = sums["starts"] / episodes
        self.value = float(self.gradient @ self.θ)

    def pulled(self) -> np.ndarray:
        """c [p] with c·Σφ_kΔ_k how much steps move V(π)."""
        return self.gradient @ self.inverse

    def functions(self) -> tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]:
        """Q(s, ·) [n, A] and V(s) [n] of states."""
        states, none = self.question.states, np.zeros(0)
        S = 0 if states is None else states if isinstance(states, int) else len(states)
        flags, ids = np.zeros(0, bool), np.zeros(0, np.int64)
        logs = Logs(
            starts=np.zeros(1, np.int64), state=ids, next_state=ids, action=ids, reward=none, terminated=flags, truncated=flags,
            log_mu=None, states=S, actions=self.actions,
        )  # fmt: skip
        basis = self.known.linear(Sampled(OneStep(), logs, as_policy(self.question.policy, logs), self.question.gamma))
        return lambda states: basis.q(self.θ, states), lambda states: basis.values(self.θ, states)

    def _features(
        self, question: Question, passes: Passes, first: Sums, model: Features | str, actions: int, seed: int
    ) -> Known:
        if isinstance(model, Features):
            return given_features(model, question)
        if model == "linear":
            return Known()
        episodes, steps, total, _ = first["returns"]
        middle = first["states"] / steps
        sums = passes.over("spreads", one_file.spreads, question, middle)
        scale = np.sqrt(sums["squares"] / steps)
        if model == "fourier":
            return Known(of_states=fourier_features(middle, scale, int(steps), actions, seed))
        mean, squares = sums["returns"] / steps
        spread = float(np.sqrt(max(squares - mean**2, 0.0))) or 1.0
        scaled = network_training.Scales(middle, np.where(scale > 0, scale, 1.0), total / episodes, mean, spread)
        return Known(of_pairs=network_training.trained(question, passes, scaled, int(steps), actions, seed))


def given_features(model: Features, question: Question) -> Known:
    """Features as they were given, of ids or of features."""
    if model.of_pairs is None:
        return Known(of_states=_of_states(model.of_states, question))
    of_pairs = model.of_pairs
    return Known(of_pairs=lambda s, a: feature_matrix(of_pairs(s, a), len(s), "features of (s, a)"))


def _of_states(given: object, question: Question) -> Callable[[np.ndarray], np.ndarray] | None:
    """φ(s): a callable, a table [S, d] for ids, or None where states are features."""
    if given is None and question.states is not None:
        raise ValueError(
            "the states are ids: say what their features are, with Features(φ), φ a table [S, d] or a callable"
        )
    if given is None:
        return None
    if callable(given):
        return lambda states: feature_matrix(given(states), len(states), "features of s")
    states = question.states
    table = feature_matrix(
        given, states if isinstance(states, int) else len(states or ()), "features of states as a table"
    )
    return lambda states: table[states]
