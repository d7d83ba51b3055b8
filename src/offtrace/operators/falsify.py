"""Search for an MDP and two policies on which iterating M diverges: the spectral radius of Z above 1, not only its norm.

The search knows no theorem. It climbs: from random transitions and policies it leads a pair elsewhere, moves a ratio or shakes a
few logits, and keeps what pushes an eigenvalue λ of Z outward. A climb on |λ| alone ends where traces are cut and Z ≈ γP_π,
whose radius is γ, with λ = γ. So a climb pushes away from some point of the real line, max |λ − c|; many short climbs from many
starts do the rest. Most are among deterministic transitions. Ratios π/μ are powers of one number e^h, so that the objective
is exact where it matters (`lattice`); what is found is certified by `Operator`, which shares no line with it.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace.mdps import MDP
from offtrace.operators import lattice
from offtrace.operators.interval import Interval
from offtrace.operators.operator import Operator
from offtrace.traces import AlphaRetrace, HistoryTrace, StepTrace, Trace, VariableLambda

ENOUGH = 1.005
"""A climb stops here: far enough above 1 to leave room for the certificate."""
STALE = 150
"""So many tries without progress end a stage of a climb."""
LATTICES = ((0.5, 2.0), (0.7, 2.1), (0.7, 2.8), (1.0, 2.0), (1.0, 3.0))
"""h, and the largest |log ρ|: where ratios may be extreme, traces are cut, and nothing is left of the trace to study."""


@dataclass(frozen=True, eq=False)
class Falsification:
    """What a search found. `mdp`, `pi`, `mu` are those of the largest radius seen, whether it is above 1 or not."""

    trace: Trace
    mdp: MDP
    """Save it with `mdp.save(path)`. Its rewards make Q^π the direction that grows fastest: start from Q = 0 and watch."""
    pi: np.ndarray
    """The target policy, [S, A]."""
    mu: np.ndarray
    """The behaviour policy, [S, A]."""
    radius: Interval
    """The spectral radius of Z there, by `Operator`: guaranteed, given `assumption` where there is one."""
    contraction: Interval
    """‖Z‖ there."""
    tried: int
    """How many MDPs with policies were evaluated."""
    climbs: int
    """From how many starts."""
    seconds: float
    """How long the search took, without the certificate."""
    method: str
    """How the certificate was computed: `Operator.method`."""
    assumption: str = ""
    """What the certificate rests on beside arithmetic (custom traces only): `Operator.assumption`."""

    @property
    def found(self) -> bool:
        """Whether iterating M diverges on `mdp`: a refutation of convergence for every MDP. False proves nothing."""
        return self.radius.lower > 1.0

    def __str__(self) -> str:
        verdict = "diverges" if self.found else "no divergence found"
        lines = [
            f"{self.trace.title}: {verdict}",
            f"  spectral radius   {self.radius}" + ("" if self.found else "   (the largest seen)"),
            f"  ‖Z‖               {self.contraction}   [{self.method}]",
            f"  MDPs tried        {self.tried:,} in {self.climbs:,} climbs, {self.seconds:.1f} s",
        ]
        if self.assumption:
            lines.append(f"  provided that     {self.assumption}")
        if self.found:
            with np.printoptions(precision=4, suppress=True):
                for s in range(self.mdp.S):
                    lines.append(f"  state {s}: π = {self.pi[s]}, μ = {self.mu[s]}")
                    lines += [f"    action {a} → {self.mdp.dense_P[s, a]}" for a in range(self.mdp.A)]
        return "\n".join(lines)


def falsify(
    trace: Trace,
    *,
    states: int = 3,
    actions: int = 2,
    gamma: float = 0.98,
    budget: float = 60.0,
    seed: int = 0,
    workers: int = 1,
) -> Falsification:
    """Look for an MDP and policies on which iterating M of this trace diverges, for `budget` seconds at most.

    One worker makes a run repeatable up to where the clock stops it. Several are threads that stop at the first find; they pay
    off only where one evaluation is heavy (many states), since the climbing itself is Python.

    >>> import offtrace as ot
    >>> print(falsify(ot.QLambda(1.0), states=2, gamma=0.9, budget=20.0).found)
    True
    """
    _check(trace, states, actions, gamma, budget, workers)
    search = _Search(trace, states, actions, gamma)
    began = time.monotonic()  # after the first evaluation: what is compiled there is no part of the search
    search.deadline = began + budget
    rngs = np.random.default_rng(seed).spawn(workers)
    while True:
        with ThreadPoolExecutor(workers) as pool:
            for climber in [pool.submit(search.run, rng) for rng in rngs]:
                climber.result()
        spent = time.monotonic() - began
        result = search.certified(spent)
        if result.found or search.out_of_time:
            return result
        search.distrust()  # the objective saw a divergence that the certificate does not confirm


def _check(trace: Any, states: int, actions: int, gamma: float, budget: float, workers: int) -> None:
    if not isinstance(trace, Trace):
        raise TypeError(f"falsify needs a trace such as offtrace.Retrace(), got {trace!r}")
    if isinstance(trace, HistoryTrace | VariableLambda):
        raise TypeError(
            f"falsify cannot search with {type(trace).__name__}: "
            + (
                "a function of the whole history is too slow an objective. Write it as a StepTrace"
                if isinstance(trace, HistoryTrace)
                else "its λ belongs to one trajectory. Use a trace with one λ"
            )
        )
    if states < 1 or actions < 1 or workers < 1:
        raise ValueError(f"states, actions and workers must be at least 1, got {states}, {actions}, {workers}")
    if not 0 < gamma < 1:
        raise ValueError(f"gamma must lie in (0, 1), got {gamma!r}")
    if not budget > 0:
        raise ValueError(f"budget must be a number of seconds above 0, got {budget!r}")


class _Search:
    """The climbers' common state: the best so far, the counts, and when to stop."""

    def __init__(self, trace: Trace, states: int, actions: int, gamma: float) -> None:
        self.trace, self.S, self.A, self.gamma = trace, states, actions, gamma
        self.best: tuple[float, np.ndarray, np.ndarray, np.ndarray] = (-1.0, np.empty(0), np.empty(0), np.empty(0))
        self.tried = self.climbs = 0
        self.deadline, self.enough = np.inf, ENOUGH
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._score(np.zeros(states * actions * (states + 2)), *LATTICES[0], 0.0)

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() >= self.deadline

    def distrust(self) -> None:
        """Go on, and ask for more before stopping again."""
        self.enough = self.best[0] + 0.01
        self._stop.clear()

    def run(self, rng: np.random.Generator) -> None:
        """Climb until stopped."""
        while not (self._stop.is_set() or self.out_of_time):
            self._climb(rng)
            self.climbs += 1

    def _climb(self, rng: np.random.Generator) -> None:
        n, crisp = self.S * self.A, bool(rng.random() < 0.75)
        h, reach = LATTICES[int(rng.integers(len(LATTICES)))]
        theta = 3.0 * rng.normal(size=n * (self.S + 2))
        theta[-2 * n : -n] /= 3.0
        theta[-n:] = h * np.round(rng.uniform(-reach, reach, n) / h)
        for row in range(n if crisp else 0):
            self._lead(theta, row, int(rng.integers(self.S)))
        away = float(rng.choice([2.0, 0.5, 0.0, -2.0], p=[0.4, 0.3, 0.15, 0.15]))
        for center in (away,) if crisp else (away, 0.0):
            value, stale = self._score(theta, h, reach, center), 0
            while stale < STALE and not (self._stop.is_set() or self.out_of_time):
                near = self._mutated(theta, h, crisp, rng)
                new = self._score(near, h, reach, center)
                stale = 0 if new > value + 1e-6 else stale + 1
                if new >= value:
                    theta, value = near, new

    def _lead(self, theta: np.ndarray, row: int, state: int) -> None:
        """Pair `row` leads to this state."""
        theta[row * self.S : (row + 1) * self.S] = -lattice.MOST
        theta[row * self.S + state] = lattice.MOST

    def _mutated(self, theta: np.ndarray, h: float, crisp: bool, rng: np.random.Generator) -> np.ndarray:
        """A neighbour: one or two pairs led elsewhere or ratios moved by e^{±h}; if not `crisp`, also a few logits shaken."""
        n, new = self.S * self.A, theta.copy()
        if not crisp and rng.random() < 0.7:
            chosen = rng.random(len(new)) < rng.choice([0.05, 0.1, 0.3])
            new += chosen * rng.normal(size=len(new)) * rng.choice([0.1, 0.5, 2.0])
            return np.clip(new, -lattice.MOST, lattice.MOST, out=new)
        for _ in range(int(rng.integers(1, 3))):
            if rng.random() < 0.5:
                self._lead(new, int(rng.integers(n)), int(rng.integers(self.S)))
            else:
                new[len(new) - n + int(rng.integers(n))] += h * rng.choice([-1.0, 1.0])
        return new

    def _score(self, theta: np.ndarray, h: float, reach: float, center: float) -> float:
        """max |λ − center| over the eigenvalues λ of Z; the largest |λ| is remembered in passing."""
        P, pi, mu = lattice.decode(theta, self.S, self.A, h, reach)
        found = self.eigenvalues(P, pi, mu, h, 10.0)
        size = float(np.abs(found).max())
        if not np.isfinite(size):
            return -np.inf
        with self._lock:
            self.tried += 1
            if size > self.best[0]:
                self.best = (size, P, pi, mu)
                if size > self.enough:
                    self._stop.set()
        return float(np.abs(found - center).max())

    def eigenvalues(self, P: np.ndarray, pi: np.ndarray, mu: np.ndarray, h: float, width: float) -> np.ndarray:
        """Those of Z, with x on the lattice e^{hk}, |hk| ≤ width."""
        trace = self.trace
        if isinstance(trace, StepTrace):
            C = lattice.carried(trace, P, pi, mu, self.gamma)
        else:
            decay, ratio, cap = (
                np.broadcast_to(np.asarray(f, dtype=float), mu.shape) for f in trace.normal_form(np, pi, mu, pi / mu)
            )
            bounds = np.array(trace.lag_bound or (np.inf,))
            linear = not (np.isfinite(cap).any() or np.isfinite(bounds).any())
            C = lattice.discounted(
                P, mu, decay, ratio, cap, trace.recursive, linear, bounds, trace.horizon or 0, self.gamma, h,
                0 if linear else int(width / h),
            )  # fmt: skip
        target = trace.mix * pi + (1 - trace.mix) * mu if isinstance(trace, AlphaRetrace) else pi
        return lattice.eigenvalues(C, P, target, self.gamma)

    def certified(self, seconds: float) -> Falsification:
        """The best so far, tidied, with rewards, and measured again by `Operator`."""
        size, P, pi, mu = self.best
        shape = (self.S, self.A)
        pi, mu = pi.reshape(shape), mu.reshape(shape)
        enough = 0.5 * (1.0 + size) if size > 1.0 else size - 1e-3
        operator = self._operator(P, pi, mu)
        for digits in (1, 2, 3):  # probabilities that a person can read, if they serve as well
            tidy = self._operator(_rounded(P, digits), pi, mu)
            if tidy.spectral_radius.lower > enough:
                operator = tidy
                break
        values, vectors = np.linalg.eig(operator.Z)
        grows = np.real(vectors[:, np.argmax(np.abs(values))])
        grows = grows / np.abs(grows).max()
        P = operator.mdp.P
        rewards = (grows - self.gamma * (operator.mdp.P_pi(operator.setting.target) @ grows)).reshape(shape)
        return Falsification(
            self.trace,
            MDP(P, rewards, self.gamma, terminal=np.zeros(self.S, bool)),
            pi,
            mu,
            operator.spectral_radius,
            operator.contraction,
            self.tried,
            self.climbs,
            seconds,
            operator.method,
            operator.assumption,
        )

    def _operator(self, P: np.ndarray, pi: np.ndarray, mu: np.ndarray) -> Operator:
        ends = np.zeros(self.S, bool)
        mdp = MDP(P.reshape(self.S, self.A, self.S), np.zeros((self.S, self.A)), self.gamma, terminal=ends)
        return Operator(mdp, self.trace, pi=pi, mu=mu, tolerance=1e-5)


def _rounded(P: np.ndarray, digits: int) -> np.ndarray:
    """Rows rounded; what is missing from 1 goes to the largest entry."""
    P = np.round(P, digits)
    rows = np.arange(len(P))
    P[rows, P.argmax(axis=1)] += 1.0 - P.sum(axis=1)
    return P
