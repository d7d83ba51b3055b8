"""The explorer's page in a tab, its engine, and the MDPs and policies of it as the library takes them."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any
from urllib.parse import parse_qs

import numpy as np

import offtrace as ot
from offtrace.mdps import MDP
from offtrace.operators import Operator
from offtrace.operators.conditions import product_condition, recursive_condition
from offtrace.reports.explorer import explorer_page, javascript

NEAR = 1e-9
RULES = explorer_page.shown()
GALLERY = {m["key"]: m for m in explorer_page.data()["mdps"]}
SHOWN = "(rows) => rows.map((r) => [...r.querySelectorAll('[data-v]')].map((c) => Number(c.dataset.v)))"
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
HELD = "(rows) => rows.map((r) => [...r.querySelectorAll('[data-holds]')].map((c) => c.dataset.holds))"


def settled(tab: Any, what: str = "known") -> None:
    """Wait for the tables ("known"), or for the curves too ("settled"), and until they are drawn."""
    tab.wait_for_selector(f'html[data-{what}="true"]')
    tab.evaluate(TWO_FRAMES)


def near(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= NEAR * max(1.0, abs(b))


def spelled(value: Any) -> str:
    """A number of a rule, or a list by lag, as a link spells it."""
    if isinstance(value, tuple | list):
        return ",".join(map(spelled, value))
    return "inf" if math.isinf(value) else repr(float(value))


def of_page(trace: ot.Trace) -> dict[str, Any]:
    """A trace as the engine takes it; infinite numbers are spelled."""
    _, names = javascript.printed(type(trace))
    shown = {name: np.ravel(v)[0] if trace.per_step else v for name in names for v in [getattr(trace, name)]}
    return {
        "name": type(trace).__name__,
        "numbers": {k: list(v) if isinstance(v, tuple) else v for k, v in shown.items()},
    }


INFINITE = """(x) => JSON.parse(JSON.stringify(x), (_, v) => v === "inf" ? Infinity : v)"""
MDP_OF = "JSON.parse(document.getElementById('data').textContent).mdps.find((m) => m.key === b)"


def engine(tab: Any, call: str, *given: Any) -> Any:
    """A call of the page's engine; infinite numbers travel as words."""

    def plain(x: Any) -> Any:
        if isinstance(x, dict):
            return {key: plain(part) for key, part in x.items()}
        if isinstance(x, list | tuple | np.ndarray):
            return [plain(part) for part in x]
        return "inf" if isinstance(x, float) and math.isinf(x) else x

    return tab.evaluate(f"(given) => {{ const [a, b, c, d] = ({INFINITE})(given); return {call}; }}", plain(given))


def examples(shape: Any) -> list[ot.Trace]:
    """All examples of all rules, and one of each with some λ; those with a λ for each step have the same at all."""
    rng = np.random.default_rng(3)
    found: list[ot.Trace] = [trace for rule in RULES for trace in rule.examples()]
    for rule in RULES:
        lam: Any = float(rng.uniform())
        if "lam" in (f.name for f in fields(rule)):
            found.append(rule(lam=np.full(shape, lam) if rule.per_step else lam))  # pyright: ignore[reportCallIssue]
    return found


def built(key: str, gamma: float) -> MDP:
    """The MDP of the page again, with a terminal state for what ends, from the numbers that the page has."""
    m = GALLERY[key]
    S, A = m["S"], m["A"]
    P = np.zeros((S + 1, A, S + 1))
    for z, row in enumerate(m["P"]):
        for to, p in row:
            P[z // A, z % A, to] = p
    P[:S, :, S] = np.reshape(m["ends"], (S, A))
    R = np.zeros((S + 1, A))
    R[:S] = np.reshape(m["R"], (S, A))
    return MDP(P, R, gamma, terminal=np.arange(S + 1) == S)


def tables(key: str, p: float, m: float) -> list[np.ndarray]:
    """π and μ on the page's MDP, [S + 1, A]."""
    mdp = GALLERY[key]
    S, A = mdp["S"], mdp["A"]
    if mdp["tables"]:
        found = [np.reshape(table, (S, A)) for table in mdp["tables"]]
    else:
        found = [np.where(np.arange(A) == np.array(mdp["marked"])[:, None], q, (1 - q) / (A - 1)) for q in (p, m)]
    return [np.vstack([table, np.full((1, A), 1 / A)]) for table in found]


def compute(tab: Any, kind: str, trace: Any, key: str, pi: np.ndarray, mu: np.ndarray, gamma: float) -> Any:
    """What the page's worker would answer."""
    described = trace if isinstance(trace, dict) else of_page(trace)
    given = {"kind": kind, "rule": described, "pi": pi[:-1].ravel(), "mu": mu[:-1].ravel(), "gamma": gamma}
    return engine(tab, f"engine.compute({{ ...a, mdp: {MDP_OF} }})", given, key)


def check_operator(
    trace: ot.Trace,
    said: dict[str, Any],
    key: str,
    pi: np.ndarray,
    mu: np.ndarray,
    gamma: float,
    tolerance: float = 1e-10,
) -> None:
    """Held to `Operator`, whose intervals are guaranteed, and to the conditions of `certify`."""
    mdp = built(key, gamma)
    op = Operator(trace, mdp, target=pi, behavior=mu, tolerance=tolerance, budget=20.0)

    def inside(name: str, low: float, high: float) -> None:
        slack = NEAR * max(1.0, abs(high))
        assert low - slack <= said[name] <= high + slack, (trace, name, said[name], low, high)

    inside("contraction", op.contraction.lower, op.contraction.upper)
    inside("radius", op.spectral_radius.lower, op.spectral_radius.upper)
    inside("magnitude", op.magnitude.mean.lower, op.magnitude.mean.upper)
    Q = np.vstack([np.reshape(GALLERY[key]["Q"], (-1, mdp.A)), np.zeros((1, mdp.A))])
    inside("variance", *(float(v[:-1].mean()) for v in op.variance_bounds(Q)))
    wanted = {"recursive": recursive_condition(op.setting), "product": product_condition(op.setting)}
    for name, condition in wanted.items():
        assert said[name]["holds"] == condition.holds, (trace, name)
        if (v := condition.violation) is not None:
            assert len(said[name]["pairs"]) == len(v.pairs)
            assert near(said[name]["beta"] - said[name]["bound"], v.beta - v.bound)


def ratios(tab: Any) -> list[float]:
    """Those of the link, which follows the state when there is rest."""
    tab.wait_for_selector('html[data-linked="true"]')
    tab.evaluate(TWO_FRAMES)
    return [float(x) for x in parse_qs(tab.evaluate("location.hash")[1:])["rho"][0].split(",")]
