"""Contraction against variance, for many traces on one MDP: the picture that a designer of traces wants.

A trace that cuts less contracts faster and varies more. Some buy both with another fixed point: the distance to Q^π is the bias.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from offtrace import figures
from offtrace._shared import notebook
from offtrace.mdps.mdp import MDP
from offtrace.operators.interval import Interval
from offtrace.operators.operator import Operator
from offtrace.operators.setting import EPS, checked
from offtrace.operators.solve import closed_form
from offtrace.operators.uncorrected_operators import uncorrected, uncorrected_variance, v_trace
from offtrace.traces import Rule, Trace, rules
from offtrace.traces.base import LAMBDA, Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Family = type[Rule] | Rule
"""A class of rules, or a trace, such as a `StepTrace`, whose λ is then replaced."""


def _swept(rule: Family) -> Sweep | None:
    """What is swept of this rule: None where it has no such number."""
    return rule.sweep if rule.sweep and rule.sweep.parameter in {f.name for f in fields(rule)} else None


def _checked_families(families: Iterable[Family]) -> list[Family]:
    """Classes of rules and traces that have a number to sweep; else an error that says what is lacking."""
    if isinstance(families, Rule | type) or not isinstance(families, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"families must be a list of rules, such as [offtrace.Retrace], got {families!r}")
    given = list(families)
    for rule in given:
        if not isinstance(rule, Rule) and not (isinstance(rule, type) and issubclass(rule, Rule)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"families must hold classes of rules, such as offtrace.Retrace, or traces, such as offtrace.replacing(), got "
                f"{rule!r}"
            )
        if isinstance(rule, type) and issubclass(rule, Trace) and rule.form != "normal":
            raise TypeError(
                f"{rule.__name__} is no rule before it is given its function: give the trace itself, {rule.__name__}(…)"
            )
        step = rule.step_form if isinstance(rule, Trace) else None
        if step is not None and not step.traced.lines.uses("lam"):
            raise TypeError(
                f"the step of {rule.title} does not use now.lam: all its points would be the same. Let it multiply by now.lam"
            )
        if _swept(rule) is None:
            raise TypeError(
                f"{rule.title} has no number to sweep: tradeoff varies λ, or what plays its part. "
                "operators.Operator(trace, mdp, …) has the contraction and the variance of one trace"
            )
    return given


@dataclass(frozen=True)
class Point:
    """One trace at one λ."""

    family: str
    lam: float
    """λ, or what the family's name says it goes over; for V-trace its bound ρ̄ = c̄."""
    contraction: Interval
    """‖Z‖_∞."""
    variance: Interval | None
    """The variance of the sampled correction for the given Q, averaged over pairs that are not terminal; None where it is
    not computed."""
    bias: Interval
    """max |fixed point − Q^π|; 0 for traces that evaluate π."""


@dataclass(frozen=True)
class Tradeoff:
    """What `tradeoff` returns."""

    points: tuple[Point, ...]

    def _rows(self) -> list[tuple[str, float, Interval, Interval | str, Interval]]:
        return [(p.family, p.lam, p.contraction, "" if p.variance is None else p.variance, p.bias) for p in self.points]

    def __str__(self) -> str:
        rows = [f"{name:<22}{λ:>6.3g}  {norm!s:<18}{var!s:<18}{bias}" for name, λ, norm, var, bias in self._rows()]
        return "\n".join([f"{'trace':<22}{'λ':>6}  {'‖Z‖':<18}{'variance':<18}bias", *rows])

    def _repr_html_(self) -> str:
        rows = [(name, f"{λ:.3g}", *more) for name, λ, *more in self._rows()]
        return notebook.table("Contraction, variance and bias", rows, ("trace", "λ", "‖Z‖", "variance", "bias"))

    def figure(self) -> Figure:
        """Contraction against the standard deviation, against the bias, and V-trace in a separate panel. Extra `[plot]`."""
        swept, biased = [p for p in self.points if p.family != V_TRACE], {p.family for p in self.points if p.bias > 0}
        panels = (
            ("standard deviation of the correction", swept, _deviation),
            ("bias of the fixed point", [p for p in swept if p.family in biased], _bias),
            ("bias of V-trace, on state values", [p for p in self.points if p.family == V_TRACE], _bias),
        )
        lines: list[tuple[str, dict[str, list[tuple[float, float]]]]] = []
        for label, points, across in panels:
            drawn: dict[str, list[tuple[float, float]]] = {}
            for p in points:
                drawn.setdefault(p.family, []).append((across(p), p.contraction.midpoint))
            if drawn:
                lines.append((label, drawn))
        return figures.line_panels(lines, "contraction ‖Z‖ (above 1: none)", level=1.0, top=1.3)


V_TRACE = "V-trace"


def _deviation(point: Point) -> float:
    """The standard deviation of the correction; NaN, which figures leave out, where the variance is not computed."""
    return float("nan") if point.variance is None else float(np.sqrt(point.variance.midpoint))


def _bias(point: Point) -> float:
    return point.bias.midpoint


def tradeoff(
    mdp: MDP,
    target: ArrayLike,
    behavior: ArrayLike,
    Q: ArrayLike,
    *,
    lams: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0),
    families: Iterable[Family] | None = None,
    mixes: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    bounds: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
    tolerance: float = 1e-4,
) -> Tradeoff:
    """Contraction, variance and bias of many rules over λ, of others over their own number, and of V-trace over its bounds.

    - `target`, `behavior`: policies [S, A]
    - `Q`: the action values [S, A] for which the variance of the sampled correction is computed
    - `families`: classes of rules with a number to sweep, those of `traces.rules()` if None; or traces, of which λ is replaced,
      such as a `StepTrace` that uses `now.lam`
    - `lams`: the values of λ, or of what plays its part; `mixes` are those of α-Retrace's α
    - `bounds`: ρ̄ = c̄ of V-trace, which acts on state values, and whose variance is not computed

    >>> import numpy as np, offtrace as ot
    >>> from offtrace import mdps
    >>> mdp = mdps.garnet(3, 2, 2, seed=0, gamma=0.9)
    >>> target, behavior = np.tile([0.75, 0.25], (3, 1)), mdps.uniform(mdp)
    >>> swept = tradeoff(mdp, target, behavior, np.zeros((3, 2)), lams=(0.0, 1.0),
    ...                  families=[ot.Retrace], mixes=(), bounds=())
    >>> [(point.family, round(point.contraction.midpoint, 3)) for point in swept.points]
    [('Retrace', 0.9), ('Retrace', 0.692)]
    """
    q, π, live = np.asarray(Q, dtype=float), np.asarray(target, dtype=float), ~np.asarray(mdp.terminal, dtype=bool)
    wanted, off = _known_values(mdp, π, live)
    points: list[Point] = []
    swept = [rule for rule in rules() if _swept(rule) is not None]
    for rule in swept if families is None else _checked_families(families):
        sweep = rule.sweep or LAMBDA
        name = rule.title if sweep is LAMBDA else f"{rule.title}, over {sweep.symbol}"
        for value in mixes if rule.mixture else lams:
            number = {sweep.parameter: value}
            trace = rule(**number) if isinstance(rule, type) else replace(rule, **number)
            if isinstance(trace, Trace):
                op = Operator(trace, mdp, target=target, behavior=behavior, tolerance=tolerance)
                contraction, variance, reached, error = _of_operator(op, π, q)
            else:
                contraction, variance, reached, error = _of_uncorrected(trace, mdp, target, behavior, q)
            bias = Interval(0.0, 0.0) if reached is None else _distance(reached[live], wanted[live], off + error)
            points.append(Point(name, value, contraction, variance and _mean(variance, live), bias))
    values = (π * wanted).sum(axis=1)
    for bound in bounds:
        operator = v_trace(mdp, target, behavior, rho_bar=bound, c_bar=bound)
        bias = _distance(operator.fixed_point[live], values[live], off + operator.fixed_point_error)
        points.append(Point(V_TRACE, bound, operator.contraction, None, bias))
    return Tradeoff(tuple(points))


Measured = tuple[Interval, tuple[np.ndarray, np.ndarray] | None, np.ndarray | None, float]
"""‖Z‖, bounds of the variance, the fixed point (None where it is Q^π itself) and a bound on its error."""


def _of_operator(op: Operator, π: np.ndarray, Q: np.ndarray) -> Measured:
    live = ~np.asarray(op.mdp.terminal, dtype=bool)
    evaluated = np.where(live[:, None], op.setting.evaluated, π)
    if np.array_equal(evaluated, π):
        return op.contraction, op.variance_bounds(Q), None, 0.0
    return op.contraction, op.variance_bounds(Q), *_known_values(op.mdp, evaluated, live)


def _of_uncorrected(rule: Rule, mdp: MDP, target: ArrayLike, behavior: ArrayLike, Q: np.ndarray) -> Measured:
    operator = uncorrected(rule, mdp, target, behavior)
    variance = uncorrected_variance(rule, mdp, target, behavior, Q)
    return operator.contraction, variance, operator.fixed_point, operator.fixed_point_error


def _known_values(mdp: MDP, policy: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, float]:
    """Q of a policy and a bound on its error, ‖T Q − Q‖ · ‖(I − γP)⁻¹‖."""
    s, Q = checked(mdp, policy, policy), mdp.q(policy)
    next_value = s.gamma * (s.P @ (s.evaluated * Q).sum(axis=1)).reshape(Q.shape)
    size = np.abs(mdp.R) + np.abs(next_value) + np.abs(Q)
    off = np.abs(mdp.R + next_value - Q) + (s.S + s.A + 8) * EPS * size.max()
    return Q, float(off[live].max()) * closed_form.length(s, s.evaluated)


def _distance(one: np.ndarray, other: np.ndarray, off: float) -> Interval:
    distance = float(np.abs(one - other).max(initial=0.0))
    return Interval(max(0.0, distance - off), distance + off)


def _mean(bounds: tuple[np.ndarray, np.ndarray], live: np.ndarray) -> Interval:
    return Interval(float(bounds[0][live].mean()), float(bounds[1][live].mean()))
