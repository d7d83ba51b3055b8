"""The efficient frontier of traces: how little variance a mean contraction costs, among all β that keep the recursive condition.

At Q = Q^π the TD errors are uncorrelated, so that with y_t = γ^t β_t a correction has the variance E Σ_t y_t² σ²(z_t), where
σ² = Var[δ | s, a]. The mean over start pairs of the row sums of Z is 1 − E Σ_t y_t u(z_t), u = (I − γP_π)e (without
termination u = 1 − γ). With a price η on variance,

    maximise  E Σ_{t≥1} [y_t u(z_t) − η/2 y_t² σ²(z_t)]   over   0 ≤ y_t ≤ γ ρ_t y_{t-1}.

The slope in y of what follows a pair with y is convex and decreasing,

    h(z, y) = max(0, u(z) − σ²(z) y + γ Σ_{s'} P(s'|z) Σ_{a'} π(a'|s') h(z', γρ(z') y))

at η = 1, and only ηy enters. So one function of (z, y) is the whole frontier: y_t = min(c(z_t)/η, γρ_t y_{t-1}), c(z) the point
where h(z, ·) reaches 0. Chords of h lie above it, which bounds what *any* β can reach; the rule itself is evaluated by
`Operator`. So the least variance is known from both sides. docs/theory.md has the proof.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from offtrace import figures
from offtrace._shared import notebook
from offtrace.mdps.mdp import MDP
from offtrace.operators.interval import Interval
from offtrace.operators.operator import Operator
from offtrace.operators.setting import Setting, checked, finite_values, named
from offtrace.operators.solve.closed_form import Divergent
from offtrace.operators.solve.solutions import Chain, ClosedForm
from offtrace.operators.variance import TemporalDifferences
from offtrace.traces import DiscountedBound, Trace, rules

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PER_DECADE = 60
"""Values of y for each factor of ten: chords between them are above h by parts in 10⁴."""
FAINT = 1e-12
"""A variance of δ below so much of the largest counts as 0."""
BEYOND = 1e9
"""The bound of a pair that no variance follows, in units of the largest of the other pairs."""
OPTIMUM, CONSTANT = "optimum", "discounted bound, one constant"


@dataclass(frozen=True)
class FrontierPoint:
    """One trace: its mean contraction, its variance at Q^π, and how much of that is due."""

    family: str
    number: float
    """λ, or the first other number of the rule; of the optimum its scale. NaN where there is none."""
    contraction: Interval
    """The mean over start pairs of Σ_y |Z(x, y)|."""
    variance: Interval
    """The mean over start pairs of the variance of the correction at Q^π; infinite where there is no second moment."""
    excess: Interval
    """Its variance over the least with which that contraction can be had."""


@dataclass(frozen=True)
class Frontier:
    """What `frontier` returns."""

    gamma: float
    bounds: np.ndarray
    """c(s, a) at the price 1, [S, A]. Only their ratios matter: `trace` scales them."""
    delta_variance: np.ndarray
    """σ²(s, a) = Var[δ | s, a] at Q^π, [S, A]."""
    optimum: tuple[FrontierPoint, ...]
    """The optimal traces at some scales, from one-step on."""
    points: tuple[FrontierPoint, ...]
    """The rules that were compared."""
    _prices: np.ndarray = field(repr=False)
    _reachable: np.ndarray = field(repr=False)
    """For each price η, no less than what any β reaches of E Σ_{t≥1} [y u − η/2 y² σ²]."""
    _start: tuple[float, float] = field(repr=False)
    """What the first step adds to E Σ y u, and to the variance."""

    def trace(self, scale: float) -> DiscountedBound:
        """The optimal trace with bounds scale · c(s, a): a larger scale contracts more and varies more."""
        return DiscountedBound(bound=scale * self.bounds, gamma=self.gamma)

    def least_variance(self, contraction: Interval | float) -> Interval:
        """The least variance at which the mean contraction can be had: no rule with the recursive condition has less."""
        if not isinstance(contraction, Interval):
            contraction = Interval(contraction, contraction)
        u0, v0 = self._start
        wanted = 1.0 - u0 - contraction.upper  # of E Σ_{t≥1} y u
        least = v0 + max(0.0, float((2.0 / self._prices * (wanted - self._reachable)).max()))
        known = sorted((1.0 - u0 - p.contraction.upper, p.variance.upper) for p in self.optimum)
        x, y = np.array([(0.0, v0), *known]).T
        most = float(np.interp(1.0 - u0 - contraction.lower, x, np.maximum.accumulate(y), right=np.inf))
        return Interval(least, max(least, most))

    def _rows(self) -> list[tuple[str, str, Interval, Interval, Interval]]:
        return [
            (p.family, f"{p.number:.3g}" if p.number == p.number else "", p.contraction, p.variance, p.excess)
            for p in (*self.optimum, *self.points)
        ]

    def __str__(self) -> str:
        rows = [f"{name:<32}{n:>8}  {rate!s:<18}{var!s:<22}{excess}" for name, n, rate, var, excess in self._rows()]
        return "\n".join([f"{'trace':<32}{'number':>8}  {'mean contraction':<18}{'variance':<22}over the least", *rows])

    def _repr_html_(self) -> str:
        head = ("trace", "number", "mean contraction", "variance", "over the least")
        return notebook.table("Variance for contraction", self._rows(), head)

    def figure(self) -> Figure:
        """Mean contraction against the standard deviation, the optimum as a line below all others. Extra `[plot]`."""
        drawn: dict[str, list[tuple[float, float]]] = {}
        for p in (*self.optimum, *self.points):
            if np.isfinite(p.variance.upper):
                drawn.setdefault(p.family, []).append((float(np.sqrt(p.variance.midpoint)), p.contraction.midpoint))
        lines = [("standard deviation of the correction at the true Q", drawn)]
        return figures.line_panels(lines, "mean contraction", level=None, top=1.0)


def frontier(
    mdp: MDP,
    target: ArrayLike,
    behavior: ArrayLike,
    *,
    noise: ArrayLike = 0.0,
    start: ArrayLike | None = None,
    traces: Sequence[Trace] | None = None,
    lams: Sequence[float] = (0.5, 0.8, 0.9, 1.0),
    points: int = 8,
    tolerance: float = 3e-3,
) -> Frontier:
    """The largest mean contraction for each variance, the trace that has it, and what other rules pay for theirs.

    - `target`, `behavior`: policies [S, A]
    - `noise`: the variance of rewards that the MDP does not know, a number or [S, A]
    - `start`: the weight of each start pair [S, A]; None: all pairs that are not terminal alike. c(s, a) does not depend on it
    - `traces`: what is compared, rules that keep the recursive condition; None: every listed one, over `lams` where it has a λ,
      and `DiscountedBound` with one constant
    - `points`: how many optimal traces are computed; `tolerance` is relative: of 1 − contraction, and of variances

    >>> import numpy as np, offtrace as ot
    >>> from offtrace import mdps
    >>> mdp = mdps.garnet(4, 2, 2, seed=0, gamma=0.9)
    >>> target, behavior = np.tile([0.8, 0.2], (4, 1)), mdps.uniform(mdp)
    >>> of = frontier(mdp, target, behavior, traces=[ot.Retrace(0.9)], points=3)
    >>> [(p.family, p.excess > 1.0) for p in of.points]
    [('Retrace', True)]
    >>> of.trace(1.0).shape
    (4, 2)
    """
    s = checked(mdp, target, behavior)
    live = np.repeat(~np.asarray(mdp.terminal, dtype=bool), s.A)
    weight = _weights(start, s, live)
    moments = TemporalDifferences(s, mdp.q(target))
    extra = np.broadcast_to(np.asarray(noise, dtype=float), s.pi.shape)
    if not (np.isfinite(extra).all() and (extra >= 0).all()):
        raise ValueError(f"noise must hold variances of at least 0, got {noise!r}")
    spread, _ = moments.spread(np.zeros(s.S), np.zeros(s.S))  # Var δ: nothing follows
    σ2 = np.where(live, np.maximum(spread, 0.0) + extra.ravel(), 0.0)
    σ2[σ2 < FAINT * σ2.max()] = 0.0
    if not σ2.any():
        raise ValueError(
            "no TD error varies at Q^π: rewards and transitions are certain, so that every trace has variance 0. "
            "Say with noise=… how far rewards vary"
        )
    u = np.where(live, s.loss, 0.0)
    y, h, c = _slopes(s, u, σ2)
    prices = np.concatenate([y[1:], y[-1] * np.geomspace(1.1, 1e4, 200)])
    reachable = weight @ _gain(s, y, h, prices) / prices * (1 + 1e-9)  # more than its rounding
    once = float(weight @ u), float(weight @ σ2)
    bounds = np.where(np.isfinite(c), c, BEYOND * c[np.isfinite(c)].max()).reshape(s.pi.shape)
    known = Frontier(float(mdp.gamma), bounds, σ2.reshape(s.pi.shape), (), (), prices, reachable, once)

    def point(family: str, number: float, trace: Trace) -> FrontierPoint:
        op = Operator(trace, mdp, target=s.pi, behavior=s.mu, tolerance=tolerance * s.loss[live].max())
        if not op.setting.normal or not op.setting.recursive_condition or (op.setting.evaluated != s.pi).any():
            raise ValueError(
                f"{named(trace)} cannot be compared: the frontier is that of rules in normal form that evaluate π and keep "
                "β_t ≤ β_{t-1} ρ_t for every history"
            )
        rate = Interval(*(float(weight @ r) for r in op.rates))
        variance = _variance(op, σ2, weight, tolerance * known.least_variance(rate.upper).lower)
        return FrontierPoint(family, number, rate, variance, Interval(1.0, np.inf))

    scales = _scales(prices, reachable, once[1], points)
    known = replace(known, optimum=tuple(point(OPTIMUM, scale, known.trace(scale)) for scale in scales))
    compared = [point(name, n, t) for name, n, t in (_listed(s, lams, c, scales) if traces is None else _given(traces))]
    return replace(
        known,
        optimum=tuple(replace(p, excess=_over(p, known)) for p in known.optimum),
        points=tuple(replace(p, excess=_over(p, known)) for p in compared),
    )


def _weights(start: ArrayLike | None, s: Setting, live: np.ndarray) -> np.ndarray:
    given = np.ones(s.pairs) if start is None else finite_values("start", start, s.pi.shape, "[S, A]").ravel()
    weight = np.where(live, given, 0.0)
    if (weight < 0).any() or not weight.sum() > 0:
        raise ValueError("start must hold weights of at least 0, some of them above 0 at pairs that are not terminal")
    return weight / weight.sum()


def _slopes(s: Setting, u: np.ndarray, σ2: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values of y, 0 first, [N]; h from above at them, [S·A, N]; and c, [S·A]: infinite where h stays above 0."""
    low, high = 1e-9 / float(σ2.max()), 2.0 / float(σ2[σ2 > 0].min())  # near 0 the slope of h may be infinite
    y = np.append(0.0, np.geomspace(low, high, int(PER_DECADE * np.log10(high / low)) + 2))
    cost, after = u[:, None] - σ2[:, None] * y, [_between(y, s.gamma * ρ * y) for ρ in s.rho.ravel()]
    acted = np.where(s.mu > 0, s.pi, 0.0)
    h = slope = np.ones_like(cost)  # from above: what follows is worth no more than the whole of u
    for _ in range(100_000):
        there = np.stack([(1 - w) * row[i] + w * row[i + 1] for row, (i, w) in zip(h, after, strict=True)])
        slope = cost + s.gamma * (s.P @ (acted[:, :, None] * there.reshape(s.S, s.A, -1)).sum(axis=1))
        new = np.minimum(np.maximum(slope, 0.0), h)
        change, h = np.abs(new - h).max(), new
        if change <= 1e-12:
            break
    # On each stretch h is below its chord, which reaches 0 no earlier than h does.
    left, right = slope[:, :-1], slope[:, 1:]
    falls = (left > 0) & (right <= 0)
    at = np.where(falls, y[:-1] + (y[1:] - y[:-1]) * left / np.where(falls, left - right, 1.0), 0.0).max(axis=1)
    return y, h, np.where(slope[:, -1] > 0, np.inf, at)


def _between(grid: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The node to the left of each point and the share of the next one. Beyond the grid it is the last node."""
    i = np.clip(np.searchsorted(grid, at, side="right") - 1, 0, len(grid) - 2)
    return i, np.minimum((at - grid[i]) / (grid[i + 1] - grid[i]), 1.0)


def _gain(s: Setting, y: np.ndarray, h: np.ndarray, first: np.ndarray) -> np.ndarray:
    """max E Σ_{t≥1} [y_t u − y_t² σ²/2] from each pair for each y_0 of `first`, [S·A, len(first)], and no less."""
    whole = np.concatenate(
        [np.zeros((s.pairs, 1)), np.cumsum(0.5 * (h[:, 1:] + h[:, :-1]) * np.diff(y), axis=1)], axis=1
    )
    reached = np.zeros((s.pairs, len(first)))
    for z, ρ in enumerate(s.rho.ravel()):
        to = s.gamma * ρ * first
        i, w = _between(y, to)
        part = np.maximum(to - y[i], 0.0)  # beyond the last node h is no more than there
        reached[z] = whole[z, i] + part * (h[z, i] - 0.5 * w * (h[z, i] - h[z, i + 1]))
    return s.P @ (s.mu[:, :, None] * reached.reshape(s.S, s.A, -1)).sum(axis=1)


def _scales(prices: np.ndarray, reachable: np.ndarray, once: float, points: int) -> np.ndarray:
    """Scales 1/η at which the variance is that of one-step times 1.05 … 12, so far as it can be had."""
    after = -2.0 * np.gradient(reachable, prices)  # E Σ_{t≥1} y² σ², by the envelope
    after = np.maximum.accumulate(after[::-1])
    wanted = once * (np.geomspace(1.05, 12.0, points) - 1.0)
    return np.interp(wanted[wanted < after[-1]], after, 1.0 / prices[::-1])


def _variance(op: Operator, σ2: np.ndarray, weight: np.ndarray, gap: float) -> Interval:
    """The mean variance at Q^π: E Σ y² σ² is C·σ² of the trace whose factors, and γ, are squared."""
    s = op.setting
    try:
        solution = ClosedForm(s.squared) if s.per_decision else Chain(s.squared)
        low, high = solution.times(σ2[:, None], gap, time.monotonic() + op.budget)
    except Divergent:
        return Interval(float(weight @ σ2), np.inf)
    return Interval(float(weight @ low[:, 0]), float(weight @ high[:, 0]))


def _over(point: FrontierPoint, known: Frontier) -> Interval:
    least = known.least_variance(point.contraction)
    low = point.variance.lower / least.upper if np.isfinite(least.upper) else 1.0
    return Interval(max(1.0, low), max(1.0, low, point.variance.upper / least.lower))


def _listed(s: Setting, lams: Sequence[float], c: np.ndarray, scales: np.ndarray) -> Iterator[tuple[str, float, Trace]]:
    """Every listed rule that keeps the recursive condition and evaluates π, over λ; then one constant bound."""
    for rule in rules():
        if not issubclass(rule, Trace) or rule.per_step or rule.mixture or rule.needs_greedy or not rule.sweep:
            continue
        if rule.recursive_condition and rule.sweep.parameter in {f.name for f in fields(rule)}:
            for number in lams:
                given: dict[str, Any] = {rule.sweep.parameter: number}
                yield rule.title, number, rule(**given)
    middle = float(np.median(c[np.isfinite(c) & (s.mu.ravel() > 0)]))
    for scale in scales:
        yield CONSTANT, scale * middle, DiscountedBound(bound=scale * middle, gamma=s.gamma)


def _given(traces: Sequence[Trace]) -> Iterator[tuple[str, float, Trace]]:
    for trace in traces:
        numbers = (getattr(trace, f.name) for f in fields(trace))
        yield trace.title, next((number for number in numbers if isinstance(number, float)), np.nan), trace
