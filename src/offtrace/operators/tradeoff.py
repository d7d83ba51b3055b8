"""Contraction against variance, for many traces on one MDP: the picture that a designer of traces wants.

A trace that cuts less contracts faster and varies more. Some buy both with another fixed point: the distance to Q^π is the bias.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace import figures
from offtrace._renamed import renamed
from offtrace.mdps.mdp import MDP
from offtrace.operators.interval import Interval
from offtrace.operators.operator import Operator
from offtrace.operators.setting import EPS, checked
from offtrace.operators.solve import closed_form
from offtrace.operators.uncorrected_operators import uncorrected, uncorrected_variance, v_trace
from offtrace.traces import (
    RBIS,
    AlphaRetrace,
    ImportanceSampling,
    NonMarkovRetrace,
    PengQ,
    QLambda,
    Retrace,
    TreeBackup,
    TruncatedIS,
)

FAMILIES = (ImportanceSampling, QLambda, TreeBackup, Retrace, NonMarkovRetrace, RBIS, TruncatedIS)


@dataclass(frozen=True)
class Point:
    """One trace at one λ."""

    family: str
    lam: float
    """λ; for α-Retrace its α, for V-trace its bound ρ̄ = c̄."""
    contraction: Interval
    """‖Z‖_∞."""
    variance: Interval | None
    """Of the sampled correction for the given Q: the mean over pairs that are not terminal; None where it is not computed."""
    bias: Interval
    """max |fixed point − Q^π|; 0 for traces that evaluate π."""


@dataclass(frozen=True)
class Tradeoff:
    """What `tradeoff` returns."""

    points: tuple[Point, ...]

    def __str__(self) -> str:
        head = f"{'trace':<22}{'λ':>6}  {'‖Z‖':<18}{'variance':<18}bias"
        rows = [
            f"{p.family:<22}{p.lam:>6.3g}  {p.contraction!s:<18}{'' if p.variance is None else p.variance!s:<18}{p.bias}"
            for p in self.points
        ]
        return "\n".join([head, *rows])

    def figure(self) -> Any:
        """Contraction against the standard deviation, against the bias, and V-trace in a panel of its own. Extra `[plot]`."""
        panels = {
            "standard deviation of the correction": [p for p in self.points if p.family != V_TRACE],
            "bias of the fixed point": [p for p in self.points if p.family != V_TRACE and p.family in self._biased()],
            "bias of V-trace, on state values": [p for p in self.points if p.family == V_TRACE],
        }
        lines = []
        for label, points in panels.items():
            of = (
                (lambda p: np.sqrt(p.variance.midpoint))
                if label.startswith("standard")
                else (lambda p: p.bias.midpoint)
            )
            families = dict.fromkeys(p.family for p in points)
            drawn = {f: [(of(p), p.contraction.midpoint) for p in points if p.family == f] for f in families}
            lines.append((label, drawn))
        return figures.line_panels(lines, "contraction ‖Z‖ (above 1: none)", level=1.0, top=1.3)

    def _biased(self) -> set[str]:
        return {p.family for p in self.points if p.bias > 0}


V_TRACE = "V-trace"


@renamed(pi="target", mu="behavior")
def tradeoff(
    mdp: MDP,
    target: Any,
    behavior: Any,
    Q: Any,
    *,
    lams: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0),
    families: Iterable[Any] = FAMILIES,
    mixes: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    bounds: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
    tolerance: float = 1e-4,
) -> Tradeoff:
    """Contraction, variance and bias of each family over λ, of α-Retrace over `mixes` at λ = 1, of Peng's Q(λ), of V-trace.

    `families` are trace classes with a `lam`. V-trace runs over `bounds`, its ρ̄ = c̄, on state values; its variance is not
    computed.
    """
    Q, π, live = np.asarray(Q, dtype=float), np.asarray(target, dtype=float), ~np.asarray(mdp.terminal, dtype=bool)
    wanted, off = _known_values(mdp, π, live)
    points = []
    traces = [(cls.title, lam, cls(lam=lam)) for cls in families for lam in lams]
    traces += [("α-Retrace, over α", mix, AlphaRetrace(mix=mix)) for mix in mixes]
    for family, lam, trace in traces:
        op = Operator(trace, mdp, target=target, behavior=behavior, tolerance=tolerance)
        bias, evaluated = Interval(0.0, 0.0), np.where(live[:, None], op.setting.evaluated, π)
        if not np.array_equal(evaluated, π):
            other, other_off = _known_values(mdp, evaluated, live)
            bias = _distance(other, wanted, off + other_off)
        points.append(Point(family, lam, op.contraction, _mean(op.variance_bounds(Q), live), bias))
    for lam in lams:
        found = uncorrected(PengQ(lam), mdp, target, behavior)
        bias = _distance(found.fixed_point[live], wanted[live], off + found.fixed_point_error)
        spread = uncorrected_variance(PengQ(lam), mdp, target, behavior, Q)
        points.append(Point(PengQ.title, lam, found.contraction, spread and _mean(spread, live), bias))
    values = (π * wanted).sum(axis=1)
    for bound in bounds:
        found = v_trace(mdp, target, behavior, rho_bar=bound, c_bar=bound)
        bias = _distance(found.fixed_point[live], values[live], off + found.fixed_point_error)
        points.append(Point(V_TRACE, bound, found.contraction, None, bias))
    return Tradeoff(tuple(points))


def _known_values(mdp: Any, policy: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, float]:
    """Q of a policy and a bound on its error, ‖T Q − Q‖ · ‖(I − γP)⁻¹‖."""
    s, Q = checked(mdp, policy, policy), mdp.q(policy)
    next_value = s.gamma * (s.P @ (s.evaluated * Q).sum(axis=1)).reshape(Q.shape)
    size = np.abs(mdp.R) + np.abs(next_value) + np.abs(Q)
    off = np.abs(mdp.R + next_value - Q) + (s.S + s.A + 8) * EPS * size.max()
    return Q, float(off[live].max()) * closed_form.length(s, s.evaluated)


def _distance(one: np.ndarray, other: np.ndarray, off: float) -> Interval:
    found = float(np.abs(one - other).max(initial=0.0))
    return Interval(max(0.0, found - off), found + off)


def _mean(bounds: tuple[np.ndarray, np.ndarray], live: np.ndarray) -> Interval:
    return Interval(float(bounds[0][live].mean()), float(bounds[1][live].mean()))
