"""Proofs of certificates: JSON files of exact rationals, which `offtrace.operators.check_proof` verifies by itself.

The floats of an `Operator` only propose: each sub- and super-solution is moved by a slack that is far above rounding, and rounded
to a rational. What the checker accepts is what is claimed. docs/proofs.md has the format.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offtrace._shared import whole_files
from offtrace.mdps.mdp import MDP
from offtrace.operators import check_proof
from offtrace.operators.setting import EPS, Setting, setting
from offtrace.operators.solve.chain_of_x import Sweeper
from offtrace.operators.solve.closed_form import Divergent
from offtrace.operators.solve.landing_on_grid import Landing
from offtrace.operators.solve.solutions import Chain
from offtrace.traces import Trace

Proof = dict[str, Any]
"""What is written, as JSON has it."""
SLACK = 1e-9
"""By how much proposed bounds are moved, in shares of their size."""
DENOMINATOR = 10**6
"""Numbers with a smaller denominator are taken for what they stand for: 0.1 is 1/10."""
NODES = 400
"""Nodes of a grid at most."""
MOST_PAIRS = 24
"""The most pairs for which Q^π is solved for in rationals."""


class Unprovable(ValueError):
    """What cannot be put into a proof of this format, and why."""


def exact(x: float) -> Fraction:
    """A number as its user means it: the rational with a small denominator, if it is that but for rounding, else the float."""
    whole = Fraction(float(x))
    simple = whole.limit_denominator(DENOMINATOR)
    return simple if abs(simple - whole) <= 8 * EPS * abs(whole) else whole


def exact_rows(rows: np.ndarray) -> list[list[Fraction]]:
    """Distributions that sum to 1 exactly."""
    fractions: list[list[Fraction]] = []
    for row in rows:
        simple = [exact(p) for p in row]
        total = sum(simple, Fraction(0))
        fractions.append([p / total for p in simple])
    return fractions


def _text(x: Fraction | float | None) -> str:
    if x is None or (isinstance(x, float) and np.isinf(x)):
        return "inf"
    return str(x if isinstance(x, Fraction) else exact(x))


def _texts(numbers: Any) -> Any:
    return [_texts(each) for each in numbers] if isinstance(numbers, list | tuple) else _text(numbers)


def _rounded(x: float) -> str:
    """A rational near a float, with a short spelling."""
    return str(Fraction(round(float(x) * 2**50), 2**50))


def _table(values: np.ndarray) -> Any:
    return [_table(each) for each in values] if np.ndim(values) else _rounded(float(values))


class Proposer:
    """The problem with exact numbers, and the operator of its floats."""

    def __init__(self, trace: Trace, mdp: MDP, target: ArrayLike, behavior: ArrayLike) -> None:
        given = setting(trace, mdp, target, behavior)
        if not given.normal or trace.mixture or given.gamma >= 1:
            why = (
                "γ is 1" if given.gamma >= 1 else "it evaluates a mixture" if trace.mixture else "it is a custom trace"
            )
            raise Unprovable(f"there is no proof for {trace.title} here: {why}")
        self.trace, self.setting = trace, given
        self.gamma = exact(given.gamma)
        ended = np.asarray(mdp.terminal, bool)
        first = np.eye(given.A)[0]
        self.pi, self.mu = (exact_rows(np.where(ended[:, None], first, p)) for p in (given.pi, given.mu))
        P = given.P.toarray()
        whole = np.column_stack([P, 1.0 - P.sum(axis=1)]).clip(0.0)
        whole[whole < 1e-14] = 0.0
        self.P = exact_rows(whole)

    def problem(self) -> Proof:
        """The MDP, the policies and the rule."""
        s, t = self.setting, self.trace
        pairs = [(p, m) for pi, mu in zip(self.pi, self.mu, strict=True) for p, m in zip(pi, mu, strict=True)]
        numbers = {
            f.name: exact(v)
            for f in fields(t)
            if isinstance(v := getattr(t, f.name), float | int) and f.name != "horizon"
        }
        rule = check_proof.RULES.get(type(t).__name__)
        if rule is not None:
            factors = [
                rule(p, p / m, numbers) if m else (Fraction(0), Fraction(1), None, t.recursive) for p, m in pairs
            ]
            decay, ratio, cap = ([f[i] for f in factors] for i in range(3))
        else:
            decay, ratio, cap = (list(map(_or_none, a.ravel())) for a in (s.decay, s.ratio, s.cap))
        return {
            "gamma": _text(self.gamma),
            "target": _texts(self.pi),
            "behavior": _texts(self.mu),
            "transitions": [
                [[-1 if j == s.S else j, str(p)] for j, p in enumerate(row) if p] for row in self.P
            ],
            "rewards": [_text(float(r)) for r in np.asarray(s.mdp.R, float).ravel()],
            "rule": {
                "name": type(t).__name__,
                "numbers": {name: _text(v) for name, v in numbers.items()},
                "decay": _texts(decay), "ratio": _texts(ratio), "cap": _texts(cap), "recursive": t.recursive,
                "lags": [_text(d) for d in s.lags] if s.lags else None, "horizon": s.horizon,
            },
        }  # fmt: skip

    def witness(self, s: Setting) -> Proof:
        """What shows where C lies, of this setting."""
        if s.horizon is not None:
            return {"kind": "sum"}
        if s.lags:
            raise Unprovable("bounds by lag without an end have no witness in this format")
        return self._linear(s) if s.per_decision else self._chain(s)

    def values(self) -> list[Fraction]:
        """Q^π, exactly."""
        n, A = self.setting.pairs, self.setting.A
        π = [p for row in self.pi for p in row]
        rewards = np.ravel(np.asarray(self.setting.mdp.R, float))
        rows = [
            [(z == y) - self.gamma * self.P[z][y // A] * π[y] for y in range(n)] + [exact(float(rewards[z]))]
            for z in range(n)
        ]
        for k in range(n):  # I − γP_π has no pivot of 0: its rows are dominated by their diagonals
            rows[k] = [x / rows[k][k] for x in rows[k]]
            rows = [
                row if i == k else [a - row[k] * b for a, b in zip(row, rows[k], strict=True)]
                for i, row in enumerate(rows)
            ]
        return [row[-1] for row in rows]

    def _linear(self, s: Setting) -> Proof:
        G = s.gamma * s.onto_pairs(s.mu * s.decay * s.ratio).toarray()
        C = np.linalg.inv(np.eye(s.pairs) - G)
        w = C.sum(axis=1)
        slack = SLACK * max(1.0, C.max())
        low, up = C - slack * w[:, None], C + slack * w[:, None]
        return {"kind": "linear", "w": _table(w), "lower": _table(low), "upper": _table(up)}

    def _chain(self, s: Setting) -> Proof:
        solution = Chain(s)
        solution.times(s.loss[:, None], 1e-6, time.monotonic() + 60.0)  # which refines the grid
        grid, closed = np.asarray(solution.grid), solution.method == "exact chain"
        if len(grid) > NODES:
            kept = np.unique(np.linspace(0, len(grid) - 1, NODES).astype(int))
            grid = np.union1d(grid[kept], [0.0, 1.0])
        sweeper = Sweeper(s, np.eye(s.pairs), grid, closed, s.last_bound, True)
        sweeper.settle(1e-12, np.inf)
        κ = s.gamma * float((s.mu * s.decay).sum(axis=1).max())
        if κ >= 1:
            raise Unprovable("γ · decay is not below 1 on average")
        slack = SLACK / (1 - κ)
        nodes = [sweeper.low[:, :, y] - slack for y in range(s.pairs)]
        lines = [_lines(sweeper, y) for y in range(s.pairs)]
        return {
            "kind": "chain", "grid": [_rounded(x) for x in grid], "nodes": [_table(each) for each in nodes], "lines": lines,
        }  # fmt: skip


def _lines(sweeper: Sweeper, y: int) -> dict[str, Any]:
    """Lines above H of one column: those that the upper bound at x = 1 rests on."""
    s, grid, landing = sweeper.setting, sweeper.grid, sweeper.landing
    value, slope = sweeper.high[:, :, y], np.minimum(sweeper.slope[:, :, y], 1e6)
    acting = [[z for z in range(q * s.A, q * s.A + s.A) if s.mu.ravel()[z] > 0] or [q * s.A] for q in range(s.S)]
    P = s.P.toarray()
    best = np.argmin(value + slope * (1.0 - grid), axis=1)
    used: list[list[int]] = [[int(i)] for i in best]
    choices: dict[tuple[int, int], list[tuple[bool, list[tuple[int, int]]]]] = {}
    todo = [(q, int(i)) for q, i in enumerate(best)]
    while todo:
        q, i = todo.pop()
        if (q, i) in choices:
            continue
        rows: list[tuple[bool, list[tuple[int, int]]]] = []
        for z in acting[q]:
            clipped = bool(landing.read_slope[z, i] == 0.0 and np.isfinite(s.cap.ravel()[z]))
            at = landing.to[z, i]
            following: list[tuple[int, int]] = []
            for o in np.flatnonzero(P[z]):
                j = int(np.argmin(value[o] + slope[o] * (at - grid)))
                following.append((int(o), j))
                if j not in used[o]:
                    used[o].append(j)
                todo.append((int(o), j))
            rows.append((clipped, following))
        choices[q, i] = rows
    return _solved_lines(s, acting, used, choices, y, landing)


def _solved_lines(
    s: Setting, acting: list[list[int]], used: list[list[int]], choices: Any, y: int, landing: Landing
) -> dict[str, Any]:
    """Intercepts and slopes of the chosen lines, as the linear systems that they satisfy have them, and some more."""
    place = {(q, i): k for k, (q, i) in enumerate((q, i) for q in range(s.S) for i in used[q])}
    n, μ, decay = len(place), s.mu.ravel(), s.decay.ravel()
    ratio, cap, P = s.ratio.ravel(), s.cap.ravel(), s.P.toarray()
    K_g, K_b, mixed = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    b, g = np.zeros(n), np.zeros(n)
    for (q, i), k in place.items():
        for z, (clipped, following) in zip(acting[q], choices[q, i], strict=True):
            coefficient = μ[z] * decay[z]
            flat = (cap[z], 0.0) if clipped else (0.0, ratio[z])
            onward = flat if s.trace.recursive else (0.0, ratio[z])
            if z == y:
                b[k], g[k] = b[k] + coefficient * flat[0], g[k] + coefficient * flat[1]
            for o, j in following:
                c = coefficient * s.gamma * P[z, o]
                K_b[k, place[o, j]] += c
                mixed[k, place[o, j]] += c * onward[0]
                K_g[k, place[o, j]] += c * onward[1]
    one = np.eye(n)
    slopes = np.linalg.solve(one - K_g, g + SLACK)
    intercepts = np.linalg.solve(one - K_b, b + mixed @ slopes + SLACK)
    if slopes.min() < 0 or intercepts.min() < 0:
        raise Unprovable("the search has no lines above what a trace still reads")
    lines: dict[str, Any] = {str(q): [] for q in range(s.S)}
    at = {(q, i): m for q in range(s.S) for m, i in enumerate(used[q])}
    for (q, i), k in place.items():
        spelt = [[int(clipped), [at[o, j] for o, j in following]] for clipped, following in choices[q, i]]
        lines[str(q)].append([_rounded(intercepts[k]), _rounded(slopes[k]), spelt])
    return lines


def _or_none(x: float) -> Fraction | None:
    return None if np.isinf(x) else exact(x)


def proof(
    trace: Trace,
    mdp: MDP,
    target: ArrayLike,
    behavior: ArrayLike,
    *,
    history: Sequence[int] | None = None,
) -> Proof:
    """What can be shown of M: bounds of ‖Z‖ and of the spectral radius, and whether β_t ≤ β_{t-1}ρ_t holds.

    `history` is one of pairs s · A + a along which that condition fails. Each claim has been checked. `Unprovable` says why there
    is no proof.

    >>> import offtrace as ot
    >>> from offtrace.mdps import alternating
    >>> document = proof(ot.Retrace(), *alternating())
    >>> [claim["claim"] for claim in document["claims"]]
    ['recursive condition holds', 'norm at most', 'norm at least', 'radius at most', 'radius at least']
    """
    of = Proposer(trace, mdp, target, behavior)
    document: Proof = {
        "format": "offtrace proof 1",
        "problem": of.problem(),
        "witness": of.witness(of.setting),
        "claims": [],
    }
    x = check_proof.Problem(document["problem"])
    low, up = check_proof.bounds_of_Z(x, document["witness"])
    claims: list[Proof] = [{"claim": "recursive condition holds"}]
    if history is not None:
        claims.append({"claim": "recursive condition fails", "history": list(map(int, history))})
    for claim in (*claims, *_of_norm(low, up), *_of_radius(low, up)):
        if any(claim["claim"] == other["claim"] for other in document["claims"]):
            continue
        try:
            check_proof.check_claim(x, (low, up), claim)
        except check_proof.Refused:
            continue
        document["claims"].append(claim)
    document["claims"] += _of_variance(of, document["problem"])
    return _sealed(document)


def _of_variance(of: Proposer, problem: Proof) -> list[Proof]:
    """Bounds of the largest variance at Q^π; none where rewards vary too, where nothing does, or where there are many pairs."""
    s = of.setting
    if s.pairs > MOST_PAIRS or getattr(s.mdp, "transition_rewards", None) is not None:
        return []
    v = (s.evaluated * s.mdp.q(s.evaluated + (s.evaluated.sum(axis=1, keepdims=True) == 0) / s.A)).sum(axis=1)
    if np.max(s.P @ v**2 - (s.P @ v) ** 2) < 1e-9 * max(1.0, np.max(v**2)):
        return []
    try:
        witness, Q = of.witness(s.squared), of.values()
        low, up = check_proof.variances(check_proof.Problem(problem), Q, witness)
    except (Unprovable, check_proof.Refused, np.linalg.LinAlgError, Divergent):
        return []
    given = {"values": [str(x) for x in Q], "witness": witness}
    claims: list[Proof] = [{"claim": "variance at most", "number": str(_up(Fraction(max(up)))), **given}]
    if max(low) > 0:
        claims.append({"claim": "variance at least", "number": str(_down(Fraction(max(low)))), **given})
    return claims


def _sealed(document: Proof) -> Proof:
    return {**document, "sha256": check_proof.digest(document)}


def cycle(trace: Trace, mdp: MDP, behavior: ArrayLike, values: Sequence[np.ndarray]) -> Proof:
    """A proof that control with a greedy target ends in this cycle of Q [S, A]: the values are taken for rationals.

    >>> import numpy as np, offtrace as ot
    >>> from offtrace.mdps import switch_or_stay
    >>> mdp, _, mu, _ = switch_or_stay()
    >>> Q = np.array([[-81.0, -199.0], [-109.0, -171.0]]) / 28
    >>> check_proof.check(cycle(ot.Retrace(), mdp, mu, [Q, Q[::-1, ::-1]]))
    ['control cycles with period 2']
    """
    greedy = np.eye(mdp.A)[np.asarray(values[0]).argmax(axis=1)]
    of = Proposer(trace, mdp, greedy, behavior)
    spelt = [[_text(float(x)) for x in np.ravel(Q)] for Q in values]
    claim = {"claim": "control cycle", "values": spelt}
    return _sealed({"format": "offtrace proof 1", "problem": of.problem(), "witness": None, "claims": [claim]})


def write(path: str | Path, document: Proof) -> tuple[str, ...]:
    """Write a proof, and return the sentences that the checker verifies in the file."""
    with whole_files.written_whole(Path(path)) as file:
        file.write((json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
    return tuple(check_proof.check(json.loads(Path(path).read_text(encoding="utf-8"))))


def _down(x: Fraction) -> Fraction:
    return Fraction(int(x * 10**12) - 1, 10**12)


def _up(x: Fraction) -> Fraction:
    return Fraction(int(x * 10**12) + 2, 10**12)


def _of_norm(low: list[list[Fraction]], up: list[list[Fraction]]) -> list[Proof]:
    n = range(len(low))
    most = max(sum(max(abs(low[i][j]), abs(up[i][j])) for j in n) for i in n)
    signs = [[1 if low[i][j] + up[i][j] >= 0 else -1 for j in n] for i in n]
    least = [sum(low[i][j] if signs[i][j] > 0 else -up[i][j] for j in n) for i in n]
    row = max(n, key=lambda i: least[i])
    claims: list[Proof] = [{"claim": "norm at most", "number": str(_up(Fraction(most)))}]
    if least[row] > 0:
        number = str(_down(Fraction(least[row])))
        claims.append({"claim": "norm at least", "number": number, "row": row, "signs": signs[row]})
    return claims


def _of_radius(low: list[list[Fraction]], up: list[list[Fraction]]) -> list[Proof]:
    """Upper bounds by a vector for |Z|; lower ones by a real eigenvalue beyond a number."""
    middle = np.array([[float((a + b) / 2) for a, b in zip(*rows, strict=True)] for rows in zip(low, up, strict=True)])
    n = len(middle)
    most = [[max(abs(low[i][j]), abs(up[i][j])) for j in range(n)] for i in range(n)]
    values, vectors = np.linalg.eig(np.abs(middle) + 1e-9)
    v = [Fraction(round(float(x) * 2**40) + 1, 2**40) for x in np.abs(np.real(vectors[:, np.argmax(np.real(values))]))]
    r = max(sum(most[i][j] * v[j] for j in range(n)) / v[i] for i in range(n))
    claims: list[Proof] = [{"claim": "radius at most", "number": str(_up(Fraction(r))), "vector": [str(x) for x in v]}]
    real = [float(np.real(λ)) for λ in np.linalg.eigvals(middle) if abs(np.imag(λ)) < 1e-12]
    if not real:
        return claims
    furthest = max(real, key=abs)
    for nearer in (1e-7, 1e-5, 1e-3):
        t = furthest * (1 - nearer)
        if abs(t) > 1e-6:
            inverse = np.linalg.inv(t * np.eye(n) - middle)
            beyond = str(Fraction(round(t * 2**40), 2**40))
            number = str(abs(Fraction(beyond)))
            claims.append({"claim": "radius at least", "number": number, "beyond": beyond, "inverse": _table(inverse)})
    return claims
