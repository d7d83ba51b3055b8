"""Target policies over actions that are real numbers: a density, or one action for each state.

    Density        π(a|s) as a function, or at the logged steps: the ratio is π(a|s) / μ(a|s)
    Deterministic  a = π(s): no logged action is ever exactly that one, so a kernel stands for it (Kallus & Zhou 2018)

                       K_h(a − π(s)) = ∏_j φ((a_j − π_j(s)) / h_j) / h_j,       φ the normal density

With a kernel the ratio K_h / μ is that of another policy, which adds noise of standard deviation h to π(s). What weights alone
estimate is its value, which differs from that of π by about c·h²; with a small h few episodes weigh anything. The bandwidth is
h_j = h·σ_j, σ_j the root mean square of a_j − π_j(s) in the logs, with h = 2^(−i/2), i = 0 … 12. Where none is given, it is the
smallest one whose weights are worth thirty episodes; a check says how far it moves the estimate.

Σ_a π(a|s) Q(s, a) is Q(s, π(s)) of a deterministic policy, without a kernel. Of a density it is the mean over 8 actions that
`sample` draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from offtrace.logs.container import Logs
from offtrace.logs.importance import kish, shares
from offtrace.logs.policies import Policy, as_array

DRAWS = 8
"""Actions that are drawn in each state."""
BANDWIDTHS = 2.0 ** (-np.arange(13) / 2)
"""h, relative to how far logged actions are from those of the target."""
WORTH = 30
"""Episodes that the weights of a chosen bandwidth are worth, at least."""
PIECE = 1 << 16
"""Steps that a policy is asked for at a time."""


@dataclass(frozen=True, eq=False)
class Density:
    """A target (or behaviour) policy over actions that are real numbers, by its density.

    >>> # a ~ N(s, 1)
    >>> normal = Density(lambda s, a: -0.5 * ((a[:, 0] - s[:, 0]) ** 2 + np.log(2 * np.pi)))
    >>> normal.log_pi(np.zeros((1, 1)), np.zeros((1, 1))).round(3).tolist()
    [-0.919]
    """

    log_pi: Callable[[np.ndarray, np.ndarray], object] | None
    """states, actions [n, k] → log π(a|s) [n]; None: the logs have it, `Columns(log_pi=…)`."""
    sample: Callable[[np.ndarray, np.random.Generator], object] | None = None
    """states, a generator → an action for each, [n, k]. Without it there is no Σ_a π(a|s) Q(s, a): no estimator with a model."""


@dataclass(frozen=True, eq=False)
class Deterministic:
    """A target policy that takes one action in each state, where actions are real numbers.

    >>> Deterministic(lambda s: -0.5 * s[:, :1], bandwidth=0.1).act(np.array([[2.0, 0.0]]))
    array([[-1.]])
    """

    act: Callable[[np.ndarray], object]
    """states → π(s) [n, k]; [n] too where an action is one number."""
    bandwidth: float | Sequence[float] | None = None
    """h of the kernel, the standard deviation of its noise in units of the action; one for all numbers of an action, or one for
    each. None: chosen from the data."""


def _no_probabilities(states: np.ndarray) -> object:
    raise TypeError("actions are real numbers, and have densities, not probabilities")


@dataclass(frozen=True, eq=False, kw_only=True)
class RealPolicy(Policy):
    """π over actions that are real numbers. Made by `as_real_policy`."""

    actions: int = 0
    table: np.ndarray | None = None
    ask: Callable[[np.ndarray], object] = _no_probabilities
    numbers: int
    """k, how many numbers an action has."""
    density: Callable[[np.ndarray, np.ndarray], object] | None = None
    """states, actions → log π(a|s); None: as the logs have it."""
    sample: Callable[[np.ndarray, np.random.Generator], object] | None = None
    act: Callable[[np.ndarray], object] | None = None
    """The action of a deterministic policy."""
    bandwidth: np.ndarray | None = None
    """h [k] of its kernel."""

    @property
    def draws(self) -> bool:
        """Whether it says which actions it takes."""
        return self.sample is not None or self.act is not None

    def log_taken(self, logs: Logs, steps: slice) -> np.ndarray:
        """log π(a|s) [n] of the actions taken; of a deterministic policy, log K_h(a − π(s))."""
        if self.act is not None:
            if self.bandwidth is None:
                raise ValueError("the bandwidth of the kernel is not chosen yet")
            far = (logs.action[steps] - self.action_of(logs.state[steps])) / self.bandwidth
            return -0.5 * (far**2).sum(axis=1) - np.log(self.bandwidth).sum() - 0.5 * self.numbers * np.log(2 * np.pi)
        if self.density is None:
            assert logs.log_pi is not None
            return logs.log_pi[steps]
        log_pi = np.empty(len(logs.reward[steps]))
        first = steps.indices(len(logs))[0]
        for at in range(0, len(log_pi), PIECE):
            part = slice(first + at, first + min(at + PIECE, len(log_pi)))
            given = as_array(self.density(logs.state[part], logs.action[part]), self.called)
            log_pi[at : at + PIECE] = _log_densities(given, part.stop - part.start, part.start, self.called)
        return log_pi

    def action_of(self, states: np.ndarray) -> np.ndarray:
        """π(s) [n, k] of a deterministic policy."""
        assert self.act is not None
        return self._vectors(self.act(states), len(states))

    def choices(self, states: np.ndarray) -> np.ndarray:
        """Actions [n, m, k] whose mean stands for that under π: the one of a deterministic policy, or draws."""
        if self.act is not None:
            return self.action_of(states)[:, None, :]
        if self.sample is None:
            raise ValueError(
                f"{self.called} is a density of which no actions can be drawn: give Density(log_pi, sample=…)"
            )
        rng = np.random.default_rng(0)  # the same draws every time: a sweep is a function of Q
        drawn = self.sample(np.repeat(states, DRAWS, axis=0), rng)
        return self._vectors(drawn, DRAWS * len(states)).reshape(len(states), DRAWS, self.numbers)

    def _vectors(self, given: object, n: int) -> np.ndarray:
        actions = as_array(given, self.called)
        if self.numbers == 1 and actions.shape == (n,):
            actions = actions[:, None]
        if actions.shape != (n, self.numbers):
            raise ValueError(
                f"{self.called} gave actions of shape {actions.shape} for {n} states: they must be [n, k] = {(n, self.numbers)}"
            )
        if not np.isfinite(actions).all():
            raise ValueError(
                f"{self.called} gave an action that is not finite, in row {int(np.argmin(np.isfinite(actions).all(axis=1)))}"
            )
        return actions

    def for_logs(self, logs: Logs, gamma: float) -> Policy:
        """The same with a bandwidth for these logs, where it needs one."""
        if self.act is None or self.bandwidth is not None:
            return self
        far = np.concatenate([logs.action[p] - self.action_of(logs.state[p]) for p in logs.pieces(PIECE)])
        scale = np.sqrt((far**2).mean(axis=0))
        scale = np.where(scale > 0, scale, 1.0)
        if logs.log_mu is None:  # no ratios either
            return replace(self, bandwidth=scale)
        return replace(self, bandwidth=scale * chosen_bandwidth(far / scale, logs))

    def narrower(self) -> Policy | None:
        """The same with a bandwidth smaller by √2, which shows the bias of the kernel; None where there is none."""
        return None if self.bandwidth is None else replace(self, bandwidth=self.bandwidth / np.sqrt(2))

    @property
    def kernel(self) -> str:
        """Its kernel in words; nothing where it has none."""
        if self.bandwidth is None:
            return ""
        return f"a kernel of bandwidth {', '.join(f'{h:.3g}' for h in self.bandwidth)}"

    def outside(self, states: np.ndarray, logs: Logs) -> np.ndarray:
        """The share [n] of what it does in these states that lies outside of the range of logged actions."""
        if not self.draws:
            return np.zeros(len(states))
        low, high, share = logs.action.min(axis=0), logs.action.max(axis=0), np.empty(len(states))
        for at in range(0, len(states), PIECE):
            taken = self.choices(states[at : at + PIECE])
            share[at : at + PIECE] = ((taken < low) | (taken > high)).any(axis=2).mean(axis=1)
        return share


def _log_densities(given: np.ndarray, n: int, first: int, called: str) -> np.ndarray:
    if given.shape != (n,):
        raise ValueError(f"{called} gave log densities of shape {given.shape} for {n} steps: it must be [n] = ({n},)")
    if not (given < np.inf).all():
        raise ValueError(
            f"{called} gave a log density that is NaN or +∞, at step {first + int(np.argmin(given < np.inf))}"
        )
    return given


def as_real_policy(policy: object, logs: Logs, called: str) -> RealPolicy:
    """A policy for logs whose actions are real numbers."""
    k = logs.action.shape[1]
    if isinstance(policy, Deterministic | Density):
        logs.require_order(f"{called} is a function of the ids of states", "states")
    if policy is None and logs.log_pi is not None:
        return RealPolicy(called=called, numbers=k)
    if isinstance(policy, Deterministic):
        return RealPolicy(called=called, numbers=k, act=policy.act, bandwidth=_bandwidth(policy.bandwidth, k))
    if not isinstance(policy, Density):
        raise TypeError(
            f"the actions of these logs are real numbers, so {called} must be Density(log_pi) or Deterministic(act), or None if "
            f"the logs have a column log_pi (Columns(log_pi=…)); got {type(policy).__name__}"
        )
    if policy.log_pi is None and logs.log_pi is None:
        raise ValueError(f"{called} is Density(None), and the logs have no column log_pi: Columns(log_pi=…)")
    if policy.log_pi is not None and not callable(policy.log_pi):  # pyright: ignore[reportUnnecessaryComparison]
        raise TypeError(
            "log_pi must be a function, states, actions → log π(a|s); numbers for the logged steps are a column of the logs, "
            "Columns(log_pi=…)"
        )
    return RealPolicy(called=called, numbers=k, density=policy.log_pi, sample=policy.sample)


def _bandwidth(given: float | Sequence[float] | None, k: int) -> np.ndarray | None:
    if given is None:
        return None
    h = np.asarray(given, dtype=np.float64)
    h = np.full(k, float(h)) if not h.ndim else h
    if h.shape != (k,) or not (np.isfinite(h) & (h > 0)).all():
        raise ValueError(
            f"bandwidth must be a number above 0, or one for each of the {k} numbers of an action, got {given!r}"
        )
    return h


def chosen_bandwidth(far: np.ndarray, logs: Logs) -> float:
    """The smallest h whose weights are worth `WORTH` episodes; the largest one where none is."""
    assert logs.log_mu is not None
    square = 0.5 * (far**2).sum(axis=1)
    for h in BANDWIDTHS[::-1]:
        log_ratio = -square / h**2 - far.shape[1] * np.log(h) - logs.log_mu
        log_weights = logs.by_episode(log_ratio)
        if kish(shares(log_weights)) >= min(WORTH, 0.3 * logs.episodes):
            return float(h)
    return float(BANDWIDTHS[0])
