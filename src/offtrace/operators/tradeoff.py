"""Contraction against variance, for many traces on one MDP: the picture that a designer of traces wants.

A trace that cuts less contracts faster and varies more. Some buy both with another fixed point: the distance to Q^π is the bias.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace import figures
from offtrace.operators.beside import peng
from offtrace.operators.interval import Interval
from offtrace.operators.operator import Operator
from offtrace.traces import (
    RBIS,
    AlphaRetrace,
    ImportanceSampling,
    NonMarkovRetrace,
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
    contraction: Interval
    """‖Z‖_∞."""
    variance: float
    """Of the sampled correction for the given Q: the mean over pairs that are not terminal; NaN where not known."""
    bias: float
    """max |fixed point − Q^π|; 0 for traces that evaluate π."""


@dataclass(frozen=True)
class Tradeoff:
    """What `tradeoff` returns."""

    points: tuple[Point, ...]

    def __str__(self) -> str:
        head = f"{'trace':<22}{'λ':>6}  {'‖Z‖':<16}{'variance':>12}{'bias':>12}"
        rows = [
            f"{p.family:<22}{p.lam:>6.3g}  {p.contraction!s:<16}{p.variance:>12.4g}{p.bias:>12.4g}" for p in self.points
        ]
        return "\n".join([head, *rows])

    def figure(self) -> Any:
        """Contraction against the standard deviation, a line for each trace, λ growing along it. Needs matplotlib."""
        plt, _ = figures._matplotlib()
        figure, axes = plt.subplots(figsize=(6.5, 4.2), dpi=150)
        for family in dict.fromkeys(p.family for p in self.points):
            shown = [p for p in self.points if p.family == family and np.isfinite(p.variance)]
            if shown:
                x, y = [np.sqrt(p.variance) for p in shown], [p.contraction.midpoint for p in shown]
                axes.plot(x, y, marker="o", markersize=3, linewidth=1, label=family)
        axes.axhline(1.0, color="0.6", linewidth=0.6)
        axes.set_xlabel("standard deviation of the correction")
        axes.set_ylabel("contraction ‖Z‖")
        axes.legend(fontsize=7)
        return figure


def tradeoff(
    mdp: Any,
    pi: Any,
    mu: Any,
    Q: Any,
    *,
    lams: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0),
    families: Iterable[Any] = FAMILIES,
    mixes: Sequence[float] = (0.25, 0.5, 0.75),
    tolerance: float = 1e-4,
) -> Tradeoff:
    """Contraction, variance and bias of each family over λ, of α-Retrace over `mixes` at λ = 1, and of Peng's Q(λ).

    `families` are trace classes with a `lam`. Peng's Q(λ) has no β, so its variance is not computed here.
    """
    Q, live = np.asarray(Q, dtype=float), ~np.asarray(mdp.terminal, dtype=bool)
    wanted = mdp.q(pi)
    points = []
    traces = [(cls.title, lam, cls(lam=lam)) for cls in families for lam in lams]
    traces += [(f"α-Retrace(α = {mix:g})", 1.0, AlphaRetrace(mix=mix)) for mix in mixes]
    for family, lam, trace in traces:
        op = Operator(mdp, trace, pi=pi, mu=mu, tolerance=tolerance)
        target = np.where(live[:, None], op.setting.target, np.asarray(pi, dtype=float))
        bias = float(np.abs(mdp.q(target) - wanted).max())
        points.append(Point(family, lam, op.contraction, float(op.variance(Q)[live].mean()), bias))
    for lam in lams:
        found = peng(mdp, pi, mu, lam)
        bias = float(np.abs(found.fixed_point - wanted)[live].max())
        points.append(Point("Peng's Q(λ)", lam, found.contraction, np.nan, bias))
    return Tradeoff(tuple(points))
