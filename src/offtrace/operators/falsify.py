"""Search for an MDP and two policies on which iterating M diverges: the spectral radius of Z above 1, not only its norm.

The search knows no theorem. It climbs: from random transitions and policies it leads a pair elsewhere, moves a ratio or shakes a
few logits, and keeps what pushes an eigenvalue λ of Z outward. A climb on |λ| alone ends where traces are cut and Z ≈ γP_π,
whose radius is γ, with λ = γ. So a climb pushes away from some point of the real line, max |λ − c|; many short climbs from many
starts do the rest. Most are among deterministic transitions. Ratios π/μ are powers of one number e^h, so that the objective
is exact where it matters (`falsify_objective`); its results are certified by `Operator`, which shares no line with it.

`LANES` climbs go side by side, so that their evaluations are one call.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offtrace._shared import notebook
from offtrace._shared.progress_bar import ProgressBar, for_watchers
from offtrace.mdps import MDP
from offtrace.mdps.randomness import Seed, generator
from offtrace.operators import falsify_objective
from offtrace.operators.interval import Interval
from offtrace.operators.operator import Operator
from offtrace.traces import Trace
from offtrace.traces.trace_argument import as_trace

ENOUGH = 1.005
"""A climb stops here: far enough above 1 to leave room for the certificate."""
STALE = 150
"""So many tries without progress end a stage of a climb."""
LANES = 32
"""How many climbs go side by side; of a custom trace, whose evaluations are Python, one."""
LATTICES = ((0.5, 2.0), (0.7, 2.1), (0.7, 2.8), (1.0, 2.0), (1.0, 3.0))
"""h, and the largest |log ρ|: where ratios may be extreme, traces are cut, and nothing is left of the trace to study."""
ONE = np.array([1.0])
WIDTH = 10.0
"""x is kept on nodes with |log x| ≤ WIDTH."""


@dataclass(frozen=True, eq=False)
class Falsification:
    """The result of a search. `mdp`, `target` and `behavior` are those of the largest radius seen, above 1 or not."""

    trace: Trace
    mdp: MDP
    """Save it with `mdp.save(path)`. Its rewards make Q^π the direction that grows fastest: start from Q = 0 and watch."""
    target: np.ndarray
    """The target policy, [S, A]."""
    behavior: np.ndarray
    """The behaviour policy, [S, A]."""
    radius: Interval
    """The spectral radius of Z there, by `Operator`: guaranteed, given `assumption` where there is one."""
    contraction: Interval
    """‖Z‖ there."""
    tried: int
    """How many MDPs with policies were evaluated."""
    climbs: int
    """How many climbs were begun, each from another start."""
    seconds: float
    """How long the search took, without the certificate."""
    method: str
    """How the certificate was computed: `Operator.method`."""
    assumption: str = ""
    """What the certificate rests on besides arithmetic (custom traces only): `Operator.assumption`."""

    @property
    def found(self) -> bool:
        """Whether iterating M diverges on `mdp`: a refutation of convergence for every MDP. False proves nothing."""
        return self.radius.lower > 1.0

    def _head(self) -> str:
        return f"{self.trace.title}: {'diverges' if self.found else 'no divergence found'}"

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("spectral radius", f"{self.radius}" + ("" if self.found else "   (the largest seen)")),
            ("‖Z‖", f"{self.contraction}   [{self.method}]"),
            ("MDPs tried", f"{self.tried:,} in {self.climbs:,} climbs, {self.seconds:.1f} s"),
        ]
        return [*rows, ("provided that", self.assumption)] if self.assumption else rows

    def __str__(self) -> str:
        lines = [self._head(), *(f"  {name:<17} {value}" for name, value in self._rows())]
        if self.found:
            with np.printoptions(precision=4, suppress=True):
                for s in range(self.mdp.S):
                    lines.append(f"  state {s}: π = {self.target[s]}, μ = {self.behavior[s]}")
                    lines += [f"    action {a} → {self.mdp.dense_P[s, a]}" for a in range(self.mdp.A)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = self._rows()
        if self.found:
            policies = zip(self.target.round(4), self.behavior.round(4), strict=True)
            rows += [(f"state {s}", f"π = {pi}, μ = {mu}") for s, (pi, mu) in enumerate(policies)]
        return notebook.table(self._head(), rows)


def falsify(
    trace: Trace,
    *,
    states: int = 3,
    actions: int = 2,
    gamma: float = 0.98,
    budget: float = 60.0,
    tries: int | None = None,
    seed: Seed = 0,
) -> Falsification:
    """Look for an MDP and policies on which iterating M of this trace diverges, for `budget` seconds at most.

    The same arguments find the same MDP, unless the clock stops the search first: with `tries` it ends after so many MDPs. It
    runs on one core; on several, search with several seeds. A custom trace (`StepTrace`) is slow to evaluate unless it has a
    short `horizon`.

    >>> import offtrace as ot
    >>> print(falsify(ot.QLambda(1.0), states=2, gamma=0.9, budget=20.0).found)
    True
    """
    _check(trace, states, actions, gamma, budget)
    if tries is not None and tries < 1:
        raise ValueError(f"tries must be a number of MDPs, at least 1, got {tries!r}")
    search = _Search(trace, states, actions, gamma)
    with for_watchers() as bar:
        search.run(generator(seed), budget, tries, bar)
    return search.result()


def _check(trace: Trace, states: int, actions: int, gamma: float, budget: float) -> None:
    as_trace(trace)
    if trace.form == "history":
        raise TypeError(
            f"falsify cannot search with {trace.title}: a function of the whole history is too slow an objective. Write it as "
            "a StepTrace"
        )
    if trace.shape is not None:
        raise TypeError(
            f"falsify cannot search with {trace.title}: its λ belongs to one trajectory. Use a trace with one λ"
        )
    if trace.needs_greedy:
        raise TypeError(
            f"falsify cannot search with {trace.title}: it is defined by the greedy action, and the search goes over soft "
            "target policies. Certify it on an MDP with a greedy target instead"
        )
    if states < 1 or actions < 1:
        raise ValueError(f"states and actions must be at least 1, got {states} and {actions}")
    if not 0 < gamma < 1:
        raise ValueError(f"gamma must lie in (0, 1), got {gamma!r}")
    if not budget > 0:
        raise ValueError(f"budget must be a number of seconds above 0, got {budget!r}")


class _Search:
    """The largest |λ| seen so far and where; `run` stops when a certificate confirms it to be above 1."""

    def __init__(self, trace: Trace, states: int, actions: int, gamma: float) -> None:
        self.trace, self.S, self.A, self.gamma = trace, states, actions, gamma
        self.size, self.where = -np.inf, (np.empty(0), np.empty(0), np.empty(0))
        self.tried = self.climbs = 0
        self.seconds, self.certificate = 0.0, None
        P, pi, mu = falsify_objective.decode(np.zeros((1, states * actions * (states + 2))), states, actions, ONE, ONE)
        self._eigenvalues(P, pi, mu, ONE)  # compiles

    def run(self, rng: np.random.Generator, budget: float, tries: int | None, bar: ProgressBar) -> None:
        """Climb. What is compiled was compiled before: it is no part of the budget."""
        began, spent, enough = time.monotonic(), 0.0, ENOUGH
        most = np.inf if tries is None else tries
        lanes = _Lanes(1 if self.trace.custom else LANES, self.S, self.A, rng)
        while self.certificate is None and self.tried < most and (self.tried == 0 or spent < budget):
            near = lanes.neighbours()
            P, pi, mu = falsify_objective.decode(near, self.S, self.A, lanes.h, lanes.reach)
            λ = self._eigenvalues(P, pi, mu, lanes.h)
            size = np.nan_to_num(np.abs(λ).max(axis=1), nan=-1.0)
            self.tried += lanes.K
            at = int(np.argmax(size))
            if size[at] > self.size:
                self.size, self.where = float(size[at]), (P[at], pi[at], mu[at])
            if self.size > enough:
                candidate = self._certified()
                if candidate.spectral_radius.lower > 1.0:
                    self.certificate = candidate
                enough = self.size + 0.01  # if the certificate does not confirm what the objective saw
            lanes.move(near, λ)
            spent = time.monotonic() - began
            share = max(spent / budget, self.tried / most)
            bar.show(min(share, 1.0), 1.0, f"{self.tried:,} MDPs tried, largest spectral radius {self.size:.4f}")
        self.climbs, self.seconds = lanes.begun, time.monotonic() - began

    def _eigenvalues(self, P: np.ndarray, pi: np.ndarray, mu: np.ndarray, h: np.ndarray) -> np.ndarray:
        """The eigenvalues of each Z, [K, S·A]."""
        trace, γ = self.trace, self.gamma
        if trace.custom:
            carried = [falsify_objective.carried(trace, *one, γ) for one in zip(P, pi, mu, strict=True)]
            return falsify_objective.eigenvalues(np.stack(carried), P, trace.evaluated(pi, mu), γ)
        bounds = np.array(trace.lag_bound or (np.inf,))
        C = falsify_objective.discounted(
            P, mu, self._factors(pi, mu), trace.recursive, bounds, trace.horizon or 0, γ, h, WIDTH
        )
        return falsify_objective.eigenvalues(C, P, trace.evaluated(pi, mu), γ)

    def _factors(self, pi: np.ndarray, mu: np.ndarray) -> Sequence[np.ndarray]:
        """decay, ratio and cap of each lane, [K, S·A], with the constants of each lane's policies where the rule has such."""
        adapted = [self.trace.for_policies((π, π), (μ, μ)) for π, μ in zip(pi, mu, strict=True)]
        if all(trace is self.trace for trace in adapted):
            return self.trace.normal_form(np, pi, mu, pi / mu)
        each = [t.normal_form(np, π, μ, π / μ) for t, π, μ in zip(adapted, pi, mu, strict=True)]
        return [np.stack([np.broadcast_to(f, pi.shape[1]) for f in factor]) for factor in zip(*each, strict=True)]

    def _certified(self) -> Operator:
        """The best so far by `Operator`; where it diverges, with probabilities that a person can read if those serve as well."""
        P, pi, mu = self.where
        for digits in (1, 2, 3) if self.size > 1.0 else ():
            tidy = self._operator(_rounded(P, digits), pi, mu)
            if tidy.spectral_radius.lower > 0.5 * (1.0 + self.size):
                return tidy
        return self._operator(P, pi, mu)

    def _operator(self, P: np.ndarray, pi: np.ndarray, mu: np.ndarray) -> Operator:
        shape = (self.S, self.A)
        mdp = MDP(P.reshape(*shape, self.S), np.zeros(shape), self.gamma, terminal=np.zeros(self.S, bool))
        return Operator(self.trace, mdp, target=pi.reshape(shape), behavior=mu.reshape(shape), tolerance=1e-5)

    def result(self) -> Falsification:
        """The MDP with the largest radius, with rewards for which Q^π is the direction that grows fastest."""
        op = self.certificate or self._certified()
        values, vectors = np.linalg.eig(op.Z)
        grows = np.real(vectors[:, np.argmax(np.abs(values))])
        grows = grows / np.abs(grows).max()
        rewards = (grows - self.gamma * (op.mdp.P_pi(op.setting.evaluated) @ grows)).reshape(self.S, self.A)
        mdp = MDP(op.mdp.P, rewards, self.gamma, terminal=np.zeros(self.S, bool))
        return Falsification(
            self.trace, mdp, op.setting.pi, op.setting.mu, op.spectral_radius, op.contraction,
            self.tried, self.climbs, self.seconds, op.method, op.assumption,
        )  # fmt: skip


class _Lanes:
    """K climbs side by side. `theta` [K, S·A·(S+2)] holds what `falsify_objective.decode` reads."""

    def __init__(self, K: int, S: int, A: int, rng: np.random.Generator) -> None:
        self.K, self.S, self.n, self.rng, self.begun = K, S, S * A, rng, 0
        self.theta = np.empty((K, self.n * (S + 2)))
        self.h, self.reach, self.center, self.value = (np.empty(K) for _ in range(4))
        self.crisp, self.stale = np.empty(K, bool), np.empty(K, int)
        self.λ = np.zeros((K, self.n), complex)
        self._begin(np.arange(K))

    def _begin(self, lanes: np.ndarray) -> None:
        """New climbs; whatever they try first becomes their start."""
        rng, n, K = self.rng, self.n, len(lanes)
        self.begun += K
        self.crisp[lanes] = rng.random(K) < 0.75
        self.h[lanes], self.reach[lanes] = np.array(LATTICES)[rng.integers(len(LATTICES), size=K)].T
        theta = 3.0 * rng.normal(size=(K, self.theta.shape[1]))
        theta[:, -2 * n : -n] /= 3.0
        theta[:, -n:] = rng.uniform(-1.0, 1.0, (K, n)) * self.reach[lanes, None]
        self.theta[lanes] = theta
        for row in range(n):
            led = lanes[self.crisp[lanes]]
            self._lead(self.theta, led, np.full(len(led), row))
        self.center[lanes] = rng.choice([2.0, 0.5, 0.0, -2.0], p=[0.4, 0.3, 0.15, 0.15], size=K)
        self.value[lanes], self.stale[lanes] = -np.inf, 0

    def _lead(self, theta: np.ndarray, lanes: np.ndarray, row: np.ndarray) -> None:
        """In these lanes, pair `row` leads to one state, whichever."""
        first = row * self.S
        theta[lanes[:, None], first[:, None] + np.arange(self.S)] = -falsify_objective.MOST
        theta[lanes, first + self.rng.integers(self.S, size=len(lanes))] = falsify_objective.MOST

    def neighbours(self) -> np.ndarray:
        """In each lane one or two pairs led elsewhere or ratios moved by e^{±h}, or, where not `crisp`, a few logits shaken."""
        rng, new, n = self.rng, self.theta.copy(), self.n
        shaken = ~self.crisp & (rng.random(self.K) < 0.7)
        if K := int(shaken.sum()):
            chosen = rng.random((K, new.shape[1])) < rng.choice([0.05, 0.1, 0.3], size=(K, 1))
            new[shaken] += chosen * rng.normal(size=chosen.shape) * rng.choice([0.1, 0.5, 2.0], size=(K, 1))
            np.clip(new, -falsify_objective.MOST, falsify_objective.MOST, out=new)
        changed = ~shaken
        for _ in range(2):
            leads = rng.random(self.K) < 0.5
            lanes = np.flatnonzero(changed & leads)
            self._lead(new, lanes, rng.integers(n, size=len(lanes)))
            lanes = np.flatnonzero(changed & ~leads)
            new[lanes, new.shape[1] - n + rng.integers(n, size=len(lanes))] += self.h[lanes] * rng.choice(
                [-1.0, 1.0], size=len(lanes)
            )
            changed &= rng.random(self.K) < 0.5
        return new

    def move(self, near: np.ndarray, λ: np.ndarray) -> None:
        """Go where max |λ − center| is not smaller. Climbs without progress go on from center 0 if not `crisp`, or end."""
        new = np.nan_to_num(np.abs(λ - self.center[:, None]).max(axis=1), nan=-np.inf)
        self.stale = np.where(new > self.value + 1e-6, 0, self.stale + 1)
        taken = new >= self.value
        self.theta[taken], self.value[taken], self.λ[taken] = near[taken], new[taken], λ[taken]
        tired = self.stale >= STALE
        if tired.any():
            again = tired & ~self.crisp & (self.center != 0.0)
            self.center[again], self.stale[again] = 0.0, 0
            self.value[again] = np.abs(self.λ[again]).max(axis=1)
            if (ended := np.flatnonzero(tired & ~again)).size:
                self._begin(ended)


def _rounded(P: np.ndarray, digits: int) -> np.ndarray:
    """Rows rounded; what is missing from 1 goes to the largest entry."""
    rounded = np.round(P, digits)
    rows = np.arange(len(rounded))
    rounded[rows, rounded.argmax(axis=1)] += 1.0 - rounded.sum(axis=1)
    return rounded
