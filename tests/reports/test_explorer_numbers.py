"""The explorer in a real browser: every number is the library's, for every rule, every preset, and rules of one's own."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import offtrace as ot
from offtrace import mdps
from offtrace.operators import Operator, control_iterates
from offtrace.operators.conditions import product_condition, recursive_condition
from offtrace.reports.explorer import explorer_page
from reports.explorer_page import (
    HELD,
    NEAR,
    RULES,
    SHOWN,
    built,
    check_operator,
    compute,
    engine,
    examples,
    near,
    of_page,
    ratios,
    settled,
    tables,
)  # fmt: skip


def test_every_rule_of_the_registry_is_there() -> None:
    listed = [rule for rule in ot.rules() if not rule.uncorrected]
    assert listed == RULES
    assert {r["name"] for r in explorer_page.data()["rules"]} == {rule.__name__ for rule in listed}


def test_credit_of_every_rule_is_the_librarys(explorer_engine: Any) -> None:
    tab, rng = explorer_engine, np.random.default_rng(0)
    for T, gamma in ((1, 0.9), (17, 0.0), (24, 0.97)):
        traces, mu = examples(T), rng.uniform(0.05, 1.0, T)
        rho = np.where(rng.random(T) < 0.1, 0.0, np.minimum(2 ** rng.normal(size=T), 1 / mu))
        pi = np.minimum(1.0, rho * mu)
        rho = pi / mu
        call = """a.map((rule) => {
            const made = engine.made(rule), form = engine.factorsOf(made, b, c, b.map((p, t) => p / c[t]));
            const beta = engine.coefficients(made, form);
            return [[...beta], engine.diagnose(beta, b.length, d)];
        })"""
        shown = engine(tab, call, [of_page(trace) for trace in traces], pi, mu, gamma)
        with np.errstate(divide="ignore"):
            logs = {"log_pi": np.log(pi), "log_mu": np.log(mu)}
        ends = {"terminated": np.zeros(T, bool), "truncated": np.zeros(T, bool)}
        for trace, (beta, measures) in zip(traces, shown, strict=True):
            greedy = {"greedy": pi > 0.5} if trace.needs_greedy else {}
            wanted = ot.coefficients(trace, **logs, **ends, **greedy)
            np.testing.assert_allclose(np.reshape(beta, (T, T)), wanted, NEAR, NEAR, err_msg=repr(trace))
            said = ot.diagnose(trace, **logs, **ends, **greedy, gamma=gamma).pooled
            for name in ("magnitude", "largest_magnitude", "horizon", "cut", "largest", "effective"):
                assert near(measures[name], getattr(said, name)), (trace, name)


def test_operators_of_every_rule_are_the_librarys(explorer_engine: Any) -> None:
    tab, rng = explorer_engine, np.random.default_rng(1)
    for i, trace in enumerate(examples((3, 2))):
        key = ("switch", "alternating", "one", "walk", "garnet", "cliff")[0 if trace.per_step else i % 6]
        gamma = float(rng.uniform(0.3, 0.6))
        pi, mu = tables(key, 1.0 if trace.needs_greedy else float(rng.uniform()), float(rng.uniform(0.1, 0.9)))
        said = compute(tab, "all", trace, key, pi, mu, gamma)
        check_operator(trace, said, key, pi, mu, gamma)


def test_a_soft_target_and_a_sum_without_end_are_said(explorer_engine: Any) -> None:
    tab = explorer_engine
    pi, mu = tables("one", 0.5, 0.5)
    assert "greedy" in compute(tab, "all", ot.WatkinsQ(), "one", pi, mu, 0.9)["failed"]
    own = {"name": "Own", "numbers": {"lam": 1.0}, "own": {"decay": "1", "ratio": "2", "cap": "∞", "recursive": False}}
    assert "infinite mean" in compute(tab, "all", own, "one", pi, mu, 0.9)["failed"]


def test_presets_show_the_numbers_of_the_library(opened_explorer: Any) -> None:
    tab = opened_explorer()
    for preset in explorer_page.presets():
        tab.locator(f'[data-preset="{preset["key"]}"]').click()
        settled(tab)
        tab.wait_for_selector(f'[data-preset="{preset["key"]}"][aria-pressed="true"]')
        rows = tab.locator("#operators tbody tr").evaluate_all(SHOWN)
        holds = tab.locator("#conditions tbody tr").evaluate_all(HELD)
        pi, mu = tables(preset["mdp"], preset["p"], preset["m"])
        mdp = built(preset["mdp"], preset["gamma"])
        for described, (contraction, radius, *_), held in zip(preset["rules"], rows, holds, strict=True):
            given = described["numbers"].items()
            numbers = {k: tuple(map(float, v)) if isinstance(v, list) else float(v) for k, v in given}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one preset is about a μ that never takes π's action
                trace = ot.trace(described["name"], **numbers)
                op = Operator(trace, mdp, target=pi, behavior=mu, tolerance=1e-5, budget=20.0)
            for found, shown in ((op.contraction, contraction), (op.spectral_radius, radius)):
                assert found.lower - NEAR <= shown <= found.upper + NEAR, (preset["key"], trace)
            conditions = recursive_condition(op.setting), product_condition(op.setting)
            assert held == [str(c.holds).lower() for c in conditions]
    assert tab.said == []


def test_the_sentences_of_the_presets_hold(opened_explorer: Any) -> None:
    tab = opened_explorer()

    def shown(key: str) -> list[list[float]]:
        tab.locator(f'[data-preset="{key}"]').click()
        settled(tab)
        return tab.locator("#operators tbody tr").evaluate_all(SHOWN)

    γ = 0.9
    assert near(shown("theorem-1")[0][1], γ + γ**2 + γ**3)
    assert near(shown("theorem-1")[1][1], γ**2 + γ**3 + γ**4)
    assert round(shown("truncated")[0][1], 7) == 1.0137615
    assert [round(x, 3) for x in shown("not-divergence")[0][:2]] == [1.14, 0.269]
    far = shown("q-lambda")[0]
    assert near(far[0], γ * (1 + 0.9) / (1 - 0.9 * γ))
    assert near(far[1], far[0])
    shown("theorem-2")
    errors = tab.evaluate("document.querySelector('#control').drawn.lines[0].y")
    mdp, _, behavior, q0 = mdps.switch_or_stay()
    run = control_iterates(ot.Retrace(), mdp, behavior=behavior, q0=q0, n=40, tolerance=1e-11)
    np.testing.assert_allclose(errors, run.errors, NEAR, NEAR)
    assert run.errors[-1] > 1
    settled(tab, "settled")
    curve = tab.evaluate("document.querySelector('#curve-radius').drawn.lines.map((l) => [l.name, [...l.x], [...l.y]])")
    title, lams, radii = curve[0]
    assert (title, len(lams)) == ("Retrace", 21)
    pi, mu = tables("switch", 1.0, 0.1)
    for lam, radius in zip(lams, radii, strict=True):
        assert near(
            radius, Operator(ot.Retrace(lam), built("switch", γ), target=pi, behavior=mu).spectral_radius.midpoint
        )


OWN = (
    ("1", "lam * rho ** 0.5", "lam", True),
    ("λ", "min(1, ρ)", "∞", False),
    (
        "lam",
        "where((rho > 1) & (pi >= .25) | ~(mu != 0.2), rho, rho * sqrt(pi) / max(mu, 0.5))",
        "1 + abs(-lam)",
        False,
    ),
    ("exp(-1e-1)", "rho - (rho > 1) * (rho - 1)", "2 - log(1 + mu)", True),
)


def test_a_rule_of_ones_own_is_the_python_that_the_page_prints(opened_explorer: Any) -> None:
    tab = opened_explorer("#rules=Own+lam:0.85&mdp=one")
    for own in OWN:
        for part, text in zip(("decay", "ratio", "cap"), own, strict=False):
            tab.locator(f'[data-part="{part}"]').fill(text)
        tab.locator("#recursive").set_checked(own[3])
        settled(tab)
        assert tab.locator('.fields [aria-invalid="true"]').count() == 0
        space: dict[str, Any] = {}
        exec(tab.locator("#python").inner_text(), space)
        trace = space["Own"]()
        assert trace.lam == 0.85
        rho = np.array(ratios(tab))
        given = {"log_pi": np.log(rho * 0.2), "log_mu": np.full(len(rho), np.log(0.2))}
        no = np.zeros(len(rho), bool)
        said = ot.diagnose(trace, **given, terminated=no, truncated=no, gamma=0.9).pooled
        shown = tab.locator("#measures [data-v]").evaluate_all("(c) => c.map((x) => Number(x.dataset.v))")
        wanted = [said.magnitude, said.largest_magnitude, said.horizon, said.cut, said.largest, said.effective]
        np.testing.assert_allclose(shown, wanted, NEAR, NEAR, err_msg=own[1])
        described = {
            "name": "Own",
            "numbers": {"lam": 0.85},
            "own": dict(zip(("decay", "ratio", "cap", "recursive"), own, strict=True)),
        }
        pi, mu = tables("one", 0.6, 0.4)
        check_operator(trace, compute(tab, "all", described, "one", pi, mu, 0.5), "one", pi, mu, 0.5)
