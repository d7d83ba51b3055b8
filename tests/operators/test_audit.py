"""The audit: every verdict as DESIGN.md section 5 has it, and the three ways to print it."""

import json

import pytest

import offtrace as ot
from offtrace.mdps import alternating, q_lambda_tight, switch_or_stay
from offtrace.operators import claims, claims_further
from offtrace.operators.auditing import HOLDS, REFUTED, as_json, as_markdown, as_text, audit


@pytest.fixture(scope="module")
def calls():
    return []


@pytest.fixture(scope="module")
def rows(calls):
    patch = pytest.MonkeyPatch()
    patch.setattr(claims, "SEARCH", 0.5)
    made = audit(lambda done, total, statement: calls.append((done, total, statement)))
    patch.undo()
    return made


VERDICTS = [
    ("Lemma 1", "fixed point", HOLDS),
    ("equation 4", "B_t diagonal", REFUTED),
    ("Theorem 1", "β_t ≤ ∏ρ makes", REFUTED),
    ("Theorem 1, its proof", "β_t ≤ β_{t-1}ρ_t", HOLDS),
    ("Lemma 2", "‖I − C(I − γP_π)‖", REFUTED),
    ("Lemma 2 and Theorem 2, proofs", "‖C‖ ≤ 1/(1 − γ)", HOLDS),
    ("Theorem 2", "from any Q_0", REFUTED),
    ("Theorem 2", "ε_k in [0, 1]", REFUTED),
    ("Section 4.1", "pessimistic", REFUTED),
    ("Section 4.1", "increasingly greedy", REFUTED),
    ("Section 4.3", "any choice of d_t", REFUTED),
    ("Section 4.3", "one bound d = 1", REFUTED),
    ("Section 4.3", "Non-Markov Retrace converges (evaluation)", HOLDS),
    ("Section 4.3", "according to Theorem 2", REFUTED),
    ("Section 2.2", "Tree Backup and Retrace", HOLDS),
    ("Section 2.2", "Q(λ)", HOLDS),
    ("Section 2.2", "on-policy", HOLDS),
    ("Section 2.2", "variance", REFUTED),
    ("Section 3.1, remarks", "rate 0", HOLDS),
    ("Algorithm 1", "as printed", REFUTED),
    ("Conclusion", "history-dependent γ(F_k) and λ(F_k)", HOLDS),
    ("Conclusion", "variable discounts", REFUTED),
    ("Conclusion", "vary with time", REFUTED),
]


@pytest.mark.parametrize(("where", "part", "verdict"), VERDICTS)
def test_verdicts(rows, where, part, verdict):
    (row,) = [row for row in rows if row.where == where and part in row.statement]
    assert row.verdict == verdict, row
    assert row.numbers
    assert row.decided_by


@pytest.mark.parametrize(
    ("part", "number"),
    [
        ("β_t ≤ ∏ρ makes", "-2.439"),
        ("β_t ≤ ∏ρ makes", "+2.195"),
        ("β_t ≤ ∏ρ makes", "0.3333"),
        ("‖I − C(I − γP_π)‖", ": 18,"),
        ("one bound d = 1", "1.0138"),
        ("from any Q_0", "period 2"),
        ("ε_k in [0, 1]", "1.8 = 2γ"),
        ("vary with time", "2.195"),
    ],
)
def test_numbers_of_the_design(rows, part, number):
    (row,) = [row for row in rows if part in row.statement]
    assert number in row.numbers


def test_what_depends_on_the_reading_says_so(rows):
    for part in ("B_t diagonal", "variable discounts"):
        (row,) = [row for row in rows if part in row.statement]
        assert "ead as " in row.numbers
        assert "holds" in row.numbers


def decide(part):
    (found,) = [c.decide for c in claims.CLAIMS if part in c.statement]
    return found()


@pytest.mark.parametrize(
    ("part", "where", "name", "instead"),
    [
        ("fixed point", claims, "beta", lambda *a: 0.5),
        ("β_t ≤ ∏ρ makes", claims, "SECOND_LAG", ot.OneStep()),
        ("β_t ≤ ∏ρ makes", claims, "SECOND_LAG", ot.QLambda(1.0, horizon=3)),
        ("B_t diagonal", claims, "beta", lambda trace, pi, *a: 1.0 if len(pi) == 1 else pi[-1]),
        ("Q(λ)", claims, "q_lambda_tight", lambda: q_lambda_tight(distance=0.1, gamma=0.5)),
        ("d = 1", claims_further, "powers_of_two", alternating),
        ("any choice of d_t", claims_further, "alternating", lambda: alternating(0.5)),
        ("from any Q_0", claims_further, "switch_or_stay", lambda: switch_or_stay(stay=0.5)),
        ("pessimistic", claims_further, "switch_or_stay", lambda: switch_or_stay(stay=0.5)),
        ("according to Theorem 2", claims_further, "switch_or_stay", lambda: switch_or_stay(stay=0.5)),
        ("increasingly greedy", claims_further, "switch_or_stay", lambda: switch_or_stay(stay=0.5)),
        ("vary with time", claims_further, "alternating", lambda: alternating(0.5)),
    ],
)
def test_every_verdict_can_turn(monkeypatch, rows, part, where, name, instead):
    """Where what decides a claim is replaced by what would decide it otherwise, the verdict is the other one."""
    (row,) = [row for row in rows if part in row.statement]
    monkeypatch.setattr(where, name, instead)
    assert decide(part).refuted != row.refuted


def test_searches_can_find():
    found = claims.searched(ot.Retrace(0.9, horizon=2), ot.QLambda(1.0))
    assert found.refuted
    assert "Q(λ), λ = 1: diverges" in found.numbers
    assert "Retrace, λ = 0.9: largest radius" in found.numbers


def test_progress_is_told(rows, calls):
    assert [done for done, _, _ in calls] == list(range(len(rows) + 1))
    assert {total for _, total, _ in calls} == {len(rows)}


def test_as_json(rows):
    read = json.loads(as_json(rows))
    assert [r["statement"] for r in read] == [row.statement for row in rows]
    assert {r["verdict"] for r in read} == {HOLDS, REFUTED}


def test_as_markdown(rows):
    lines = as_markdown(rows).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == len(rows) + 2
    assert all(line.replace("\\|", "").count("|") == 6 for line in table)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_as_text_fits_the_terminal(rows, width):
    text = as_text(rows, width)
    assert max(map(len, text.splitlines()[:-1])) <= width
    assert "refuted" in text
    assert text.count("refuted ") >= sum(row.refuted for row in rows)
