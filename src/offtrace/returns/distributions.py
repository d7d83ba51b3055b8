"""Targets of critics that predict the distribution of the return: masses on a support (C51), or atoms (QR-DQN, IQN).

A trace turns the n-step targets of a start into a mixture. With Z_t of (s_t, a_t), and Z'_t of the true next state under π,

    target_k = Z_k + Σ_{t≥k} β_{k:t} [T_{k:t} Z'_t − T_{k:t-1} Z_t] = Σ_{t≥k} T_{k:t} [β_{k:t} Z'_t − β_{k:t+1} Z_{t+1}]

where T_{k:t} maps z to r_k + … + (γ_k ··· γ_{t-1}) r_t + (γ_k ··· γ_t) z. The weights sum to 1 for any β, so that the mean is the
ordinary target. They may be negative: on one trajectory where β_{k:t+1} > β_{k:t} π(a_{t+1}), and on average only where
β_{k:t+1} > β_{k:t} ρ_{t+1} (Bellemare et al. 2017; Gruslys et al. 2018, The Reactor; Tang et al. 2022, The nature of temporal
difference errors in multi-step distributional reinforcement learning).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple

import numpy as np

from offtrace.arrays import Array, Option, is_number
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.backend import Backend
from offtrace.returns.encodings import ascending
from offtrace.returns.inputs import agreed_rule
from offtrace.returns.mixtures import Mixture
from offtrace.traces import Rule
from offtrace.traces.base import whole
from offtrace.traces.trace_argument import as_rule, as_trace, eligibility_of
from offtrace.trajectory import ROW_TOLERANCE, BadValueError, first_index, spell


class DistributionalTargets(NamedTuple, Generic[Array]):
    """What `distributional_targets` returns."""

    probabilities: Array
    """[T, N] or [B, T, N]: they sum to 1, and may be negative unless they were clipped; 0 at invalid steps."""
    negative: Array
    """The sum of the negative masses before clipping, as a number of at least 0, [T] or [B, T]."""


class WeightedAtoms(NamedTuple, Generic[Array]):
    """What `quantile_targets` returns: atoms and weights that sum to 1, both [T, M] or [B, T, M]; 0 at invalid steps."""

    atoms: Array
    weights: Array


def distributional_targets(
    trace: Rule,
    *,
    probabilities: Array | None = None,
    next_probabilities: Array,
    support: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    log_pi: Array | None = None,
    log_mu: Array | None = None,
    valid: Array | None = None,
    pair: Array | None = None,
    greedy: Array | None = None,
    clip: Option = False,
    check: Option = None,
) -> DistributionalTargets[Array]:
    """Targets for a categorical critic on a fixed support (C51), by any trace: see `offtrace.returns.distributions`.

    `probabilities` [T, N] or [B, T, N] are the critic's at (s_t, a_t), `next_probabilities` Σ_a π(a|s') p(·|s', a) at the true
    next state. `support` [N] ascends. The mixture is projected once, as a whole: an atom between two of the support is shared by
    them, and what is beyond the support goes to its end, which alone can move the mean. It takes O(T²) look-ups for each atom; a
    trace that is cut soon, or has a `horizon`, takes less. PengQ and NStep do not read `probabilities`.

    `clip=True` sets negative masses to 0 and divides by the sum, which gives a distribution with another mean. `negative` says
    how much mass that concerns. Results have no gradient. All other arrays are those of `targets`, [T] or [B, T].

    >>> import numpy as np, offtrace as ot
    >>> row = {"reward": np.array([1.0, 0.0]), "terminated": np.array([False, True]),
    ...        "truncated": np.zeros(2, bool), "log_pi": np.zeros(2), "log_mu": np.log([0.5, 0.5])}
    >>> ot.distributional_targets(ot.Retrace(), probabilities=np.array([[0.5, 0.5, 0.0]] * 2),
    ...                           next_probabilities=np.array([[0.0, 0.5, 0.5]] * 2),
    ...                           support=np.array([0.0, 1.0, 2.0]), **row, gamma=0.5).probabilities
    array([[0. , 0.5, 0.5],
           [1. , 0. , 0. ]])
    """
    rule = as_rule(trace)
    arrays = {
        "reward": reward, "terminated": terminated, "truncated": truncated, "gamma": gamma, "log_pi": log_pi,
        "log_mu": log_mu, "valid": valid, "pair": pair, "greedy": greedy,
    }  # fmt: skip
    of_critic = {"probabilities": None if rule.uncorrected else probabilities, "next_probabilities": next_probabilities}
    x = _Rows(rule, arrays, of_critic, check)
    do, z = x.do, ascending(x.do, support)
    for name, array in ((x.called, x.values), (x.next_called, x.next_values)):
        if array is not None and array.shape[-1] != z.shape[0]:
            raise ValueError(f"{name} has {array.shape[-1]} atoms but the support has {z.shape[0]}")
        x.check_masses(name, array)
    β, xp = x.coefficients(check), do.xp
    first = xp.cumsum(xp.ones_like(z), 0) == 1  # the mass of what is not read is on the first atom
    ahead = xp.where((x.valid & ~x.terminated)[..., None], x.next_values, do.cast(first, x.next_values.dtype))
    own = x.before(ahead) if rule.uncorrected else xp.where(x.valid[..., None], x.values, do.cast(first, ahead.dtype))
    masses = do.mixed(Mixture(β, x.reward, x.discount, *(do.constant(a) for a in (own, ahead, z))))
    masses = xp.where(x.valid[..., None], masses, 0.0)
    below = xp.where(masses < 0.0, -masses, 0.0)
    if clip:
        above = masses + below
        masses = above / xp.where(x.valid, above.sum(-1), 1.0)[..., None]
    return DistributionalTargets(x.restored(masses), x.restored(below.sum(-1)))


def quantile_targets(
    trace: Rule,
    *,
    atoms: Array | None = None,
    next_atoms: Array,
    next_weights: Array | None = None,
    reward: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    log_pi: Array | None = None,
    log_mu: Array | None = None,
    valid: Array | None = None,
    pair: Array | None = None,
    greedy: Array | None = None,
    reach: int | None = None,
    check: Option = None,
) -> WeightedAtoms[Array]:
    """Targets for a critic of quantiles, by any trace: atoms with weights, for a quantile regression loss (QR-DQN, IQN).

    `atoms` [T, N] or [B, T, N] are the critic's at (s_t, a_t), equally likely; `next_atoms` [.., M] those at the true next state,
    with `next_weights` [.., M], which sum to 1, or equally likely. For several actions put their atoms one after the other, with
    weights π(a)/N. Each start has the atoms of the n steps until its horizon, `reach` or the row's end, n · (N + M) − N of them:
    give a trace with a `horizon`, or a `reach`, which ends traces as a horizon does.

    The loss is Σ_j weights_j ρ_τ(atoms_j − θ), where weights may be negative. All other arrays are those of `targets`.

    >>> import numpy as np, offtrace as ot
    >>> row = {"reward": np.array([1.0, 0.0]), "terminated": np.array([False, True]),
    ...        "truncated": np.zeros(2, bool), "log_pi": np.zeros(2), "log_mu": np.log([0.5, 0.5])}
    >>> result = ot.quantile_targets(ot.Retrace(0.5), atoms=np.zeros((2, 1)), next_atoms=np.ones((2, 1)), **row,
    ...                             gamma=0.5)
    >>> result.atoms[0], result.weights[0]
    (array([1.5, 1. , 1. ]), array([ 1. , -0.5,  0.5]))
    """
    rule = as_rule(trace)
    arrays = {
        "reward": reward, "terminated": terminated, "truncated": truncated, "gamma": gamma, "log_pi": log_pi,
        "log_mu": log_mu, "valid": valid, "pair": pair, "greedy": greedy,
    }  # fmt: skip
    of_critic = {"atoms": None if rule.uncorrected else atoms, "next_atoms": next_atoms}
    x = _Rows(rule, arrays, of_critic, check)
    x.check_atoms(x.called, x.values)
    x.check_atoms(x.next_called, x.next_values)
    do = x.do
    β, xp = x.coefficients(check), do.xp
    T, M = x.next_values.shape[1:]
    ahead = xp.where((x.valid & ~x.terminated)[..., None], x.next_values, 0.0)
    weights: Any = xp.ones_like(ahead) / M
    if next_weights is not None:
        weights = do.constant(x.rows("next_weights", next_weights, 3))
        if weights.shape != ahead.shape:
            raise ValueError(f"next_weights are of {weights.shape[-1]} atoms but next_atoms are {M}")
        x.check_masses("next_weights", weights)
    weights = xp.where((x.valid & ~x.terminated)[..., None], weights, 1.0 / M)
    if rule.uncorrected:
        own, of_own = x.before(ahead), x.before(weights)
    else:
        own = xp.where(x.valid[..., None], x.values, 0.0)
        of_own = xp.ones_like(own) / own.shape[-1]
    lags = min(T, eligibility_of(rule).horizon or T, T if reach is None else whole("reach", reach))
    k: Any = xp.cumsum(xp.ones_like(x.reward[0], dtype=int), 0) - 1
    sums, factor = 0.0 * x.reward[..., None], 0.0 * x.reward[..., None] + 1.0  # G_{k:t} and γ_k ··· γ_{t-1}
    every_atom: list[Any] = []
    every_weight: list[Any] = []

    def add(scale: Any, of_atoms: Any, step_atoms: Any) -> None:
        read = scale != 0.0
        every_weight.append(xp.where(read, scale * of_atoms, 0.0))
        every_atom.append(xp.where(read, sums + factor * step_atoms, 0.0))

    for lag in range(lags):
        t, later = xp.clip(k + lag, None, T - 1), xp.clip(k + lag + 1, None, T - 1)
        sums, factor = sums + factor * x.reward[:, t, None], factor * x.discount[:, t, None]
        add(xp.where(k + lag < T, β[:, k, t], 0.0)[..., None], weights[:, t], ahead[:, t])
        if lag + 1 < lags:
            add(xp.where(k + lag + 1 < T, -β[:, k, later], 0.0)[..., None], of_own[:, later], own[:, later])
    return WeightedAtoms(*(x.restored(do.constant(xp.concatenate(a, -1))) for a in (every_atom, every_weight)))


class _Rows:
    """The arrays of a call as rows [B, T] and [B, T, N]."""

    def __init__(self, rule: Rule, arrays: Mapping[str, Any], of_critic: Mapping[str, Any], check: bool | None) -> None:
        do: Backend[Any] = backend_of({**arrays, **of_critic})
        self.do, self.rule = do, rule
        self.shape = tuple(do.array("reward", arrays["reward"]).shape)
        if len(self.shape) not in (1, 2) or 0 in self.shape:
            raise ValueError(f"reward must be [T] or [B, T] and not empty, got shape {self.shape}")
        self._check_steps(arrays, check)
        xp, there = do.xp, {name: a for name, a in arrays.items() if a is not None}
        self.looks = do.looks(check, {**there, **of_critic})
        self.arrays = {n: a if n == "gamma" and is_number(a) else self.rows(n, a, 2) for n, a in there.items()}
        self.terminated = self.arrays["terminated"] != 0
        ends = self.terminated | (self.arrays["truncated"] != 0)
        self.valid = self.arrays["valid"] != 0 if "valid" in there else ends | ~ends
        self.ends = ends | ~self.valid
        self.called, self.next_called = of_critic
        self.values = None if of_critic[self.called] is None else self.rows(self.called, of_critic[self.called], 3)
        self.next_values: Any = self.rows(self.next_called, of_critic[self.next_called], 3)
        if self.values is None and not rule.uncorrected:
            raise TypeError(f"{self.called} is missing: {rule.title} needs it for every step")
        self.reward: Any = xp.where(self.valid, do.constant(self.arrays["reward"]), 0.0)
        gamma: Any = self.arrays["gamma"]
        if is_number(gamma):
            gamma = do.discount(gamma) + xp.zeros_like(self.reward)
        self.discount = xp.where(self.valid & ~self.terminated, do.constant(gamma), 0.0)

    def _check_steps(self, arrays: Mapping[str, Any], check: bool | None) -> None:
        """The contract of trajectories: shapes, flags and values are those that ordinary targets would take."""
        zero = self.do.xp.zeros_like(self.do.array("reward", arrays["reward"]))
        try:
            read = agreed_rule(self.do, eligibility_of(self.rule), {**arrays, "q": zero, "next_value": zero})
            if self.do.looks(check, {name: array for name, array in arrays.items() if array is not None}):
                self.do.correct(*read, add_q=False, differentiable=False, check=check)
        except BadValueError as error:
            raise error.with_index(error.at) from None

    def rows(self, name: str, given: Any, ndim: int) -> Any:
        """An array of steps as [B, T], or of steps and atoms as [B, T, N]."""
        array: Any = self.do.array(name, given)
        shape = tuple(array.shape)
        if shape[: len(self.shape)] != self.shape or len(shape) != len(self.shape) + ndim - 2 or 0 in shape:
            wanted = self.shape if ndim == 2 else (*self.shape, "N")
            raise ValueError(f"{name} has shape {shape} but reward has shape {self.shape}: it must be {wanted}")
        return array.reshape(-1, *shape[len(self.shape) - 1 :])

    def restored(self, out: Any) -> Any:
        """A result with 0 at invalid steps, in the shape and dtype that came in."""
        out = self.do.xp.where(self.valid if out.ndim == 2 else self.valid[..., None], out, 0.0)
        return self.do.cast(out.reshape(*self.shape, *out.shape[2:]), self.next_values.dtype)

    def before(self, ahead: Any) -> Any:
        """What the step before bootstraps from, as if it were a value of this step; an episode's first step has none to read."""
        return self.do.xp.roll(ahead, 1, 1)

    def check_masses(self, name: str, array: Any) -> None:
        """Masses that sum to 1 where they are read."""
        if array is not None and self.looks:
            masses = self.do.as_numpy(array)
            tolerance = max(ROW_TOLERANCE, float(self.do.xp.finfo(array.dtype).eps))
            good = (np.abs(masses.sum(-1, dtype=np.float64) - 1) <= tolerance) & (masses >= 0).all(-1)
            self.refuse(name, masses, good, "must hold probabilities that sum to 1")

    def check_atoms(self, name: str, array: Any) -> None:
        """Atoms that are finite where they are read."""
        if array is not None and self.looks:
            atoms = self.do.as_numpy(array)
            self.refuse(name, atoms, np.isfinite(atoms).all(-1), "must be finite")

    def refuse(self, name: str, array: np.ndarray, good: Any, words: str) -> None:
        """Raise an error that names the first row that is read and not good."""
        read = self.do.as_numpy(self.valid if name == self.called else self.valid & ~self.terminated)
        if (bad := read & ~good).any():
            at = first_index(bad)
            where = spell(at if len(self.shape) == 2 else at[1:])
            raise ValueError(f"{name} {words}, got {array[at]} at index {where}")

    def coefficients(self, check: bool | None) -> Any:
        """β_{k:t} [B, T, T]: the correction at k of a row whose only TD error is 1 at t."""
        xp, (B, T) = self.do.xp, self.reward.shape
        one = xp.broadcast_to(xp.diag(xp.ones_like(self.reward[0]))[None], (B, T, T)).reshape(B * T, T)
        names = ("log_pi", "log_mu", "pair", "greedy", "valid")
        given: dict[str, Any] = {name: self.arrays[name] for name in names if name in self.arrays}
        given |= {"terminated": self.ends & ~self.ends, "truncated": self.ends}
        given = {n: xp.broadcast_to(a[:, None], (B, T, T)).reshape(B * T, T) for n, a in given.items()}
        trace = eligibility_of(self.rule)
        if trace.per_step:
            trace = as_trace(trace).mapped(lambda held: np.repeat(np.reshape(held, (B, T)), T, 0))
        given |= {"reward": one, "q": 0.0 * one, "next_value": 0.0 * one, "gamma": 1.0}
        given = dict.fromkeys(("log_pi", "log_mu", "valid", "pair", "greedy")) | given
        try:
            read = agreed_rule(self.do, trace, given)
            (β,) = self.do.correct(*read, add_q=False, differentiable=False, check=check)
        except BadValueError as error:
            row, t = error.at
            raise error.with_index((row // T, t) if len(self.shape) == 2 else (t,)) from None
        return self.do.constant(β.reshape(B, T, T).swapaxes(1, 2))
