"""The audit: every verdict as DESIGN.md section 5 has it, and the three ways to print it."""

import json
from functools import partial

import numpy as np
import pytest

import offtrace as ot
from offtrace.mdps import alternating, garnet, one_state_two_actions, q_lambda_tight, switch_or_stay
from offtrace.operators import check_proof
from offtrace.operators.auditing.audit_table import HOLDS, REFUTED, as_json, as_markdown, as_text, audit
from offtrace.operators.auditing.claims import (
    CLAIMS,
    algorithms,
    common,
    conclusion,
    control,
    online,
    policy_evaluation,
    proofs,
)
from offtrace.operators.falsify import falsify


def search_by_count(patch, tries):
    """Searches end after so many MDPs, not after some time: `test_falsify` searches longer."""
    patch.setattr(algorithms, "SEARCH", 600.0)
    patch.setattr(algorithms, "falsify", partial(falsify, tries=tries))


@pytest.fixture(scope="module")
def calls():
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("proofs")


@pytest.fixture(scope="module")
def rows(calls, folder):
    patch = pytest.MonkeyPatch()
    search_by_count(patch, 1_000)
    made = audit(lambda done, total, statement: calls.append((done, total, statement)), proofs=folder)
    patch.undo()
    return made


def test_counterexamples_have_proofs_that_another_program_verifies(rows, folder):
    verified = {row.where: row.verified for row in rows if row.verified}
    assert {"Theorem 1", "Theorem 2", "Lemma 2", "Section 4.3", "Section 4.1"} <= set(verified)
    assert any("radius of Z is at least 2.43" in sentence for sentence in verified["Theorem 1"])
    assert verified["Theorem 2"] == ("control cycles with period 2",)
    files = sorted(folder.glob("*.json"))
    assert len(files) >= 12
    assert all(check_proof.main(file) is None for file in files)


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
    ("Section 2.2", "variance of Truncated IS is finite, of each term", HOLDS),
    ("Section 2.2", "variance of Truncated IS is finite, of the sum", REFUTED),
    ("Section 3.1, remarks", "rate 0", HOLDS),
    ("Section 3.1, remarks", "includes the examples", REFUTED),
    ("Section 4.2", "recency heuristic", REFUTED),
    ("Section 4.2", "annealed step sizes", REFUTED),
    ("Algorithm 1", "as printed", REFUTED),
    ("Algorithm 1", "the δ of Section 2.1", HOLDS),
    ("Lemma 2, proof", "γ²P_π + ···", REFUTED),
    ("Theorem 2, proof, part 1", "max P_π'Q_k", REFUTED),
    ("Section 4.1", "B_t is independent of t", REFUTED),
    ("its successor, Daley et al. 2023: repository, Counterexamples 5.7 and 5.8", "demonstrate divergence", REFUTED),
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
        ("β_t ≤ ∏ρ makes", "off-policy"),
        ("β_t ≤ ∏ρ makes", "eigenvalue -2.439, ‖Z‖ = 2.439, spectral radius 2.439"),
        ("β_t ≤ ∏ρ makes", "+2.195"),
        ("β_t ≤ ∏ρ makes", "0.3333"),
        ("‖I − C(I − γP_π)‖", "norm 18, spectral radius 0,"),
        ("includes the examples", "β_t ≤ ∏ρ: ‖Z‖ = 18, spectral radius 18;"),
        ("one bound d = 1", "1.0138"),
        ("from any Q_0", "period 2"),
        ("ε_k in [0, 1]", "1.8 = 2γ"),
        ("vary with time", "norm 2.195, spectral radius 2.195"),
        ("any choice of d_t", "‖Z‖ = 2.439, spectral radius 2.439"),
        ("recency heuristic", "‖Z‖ = 1.4797, spectral radius 0.64575"),
        ("demonstrate divergence", "5.7: ‖Z‖ = 1.1401, spectral radius 0.26888; 5.8: ‖Z‖ = 1, spectral radius 0.33333"),
        ("annealed step sizes", "‖Z‖ = 2.195, spectral radius 2.195"),
    ],
)
def test_numbers_of_the_design(rows, part, number):
    (row,) = [row for row in rows if part in row.statement]
    assert number in row.numbers


def test_what_depends_on_the_reading_says_so(rows):
    for part in ("B_t diagonal", "variable discounts", "of each term", "recency", "demonstrate", "γ²P_π + ···",
                 "max P_π'Q_k", "independent of t"):  # fmt: skip
        (row,) = [row for row in rows if part in row.statement]
        assert "ead as " in row.numbers
        assert "holds" in row.numbers


def decide(part):
    (found,) = [c.decide for c in CLAIMS if part in c.statement]
    return found()


def on_policy(gamma=0.9):
    return alternating(gamma, target=(0.5, 0.5))


def calm():
    """β = ∏ρ, importance sampling: Z = 0."""
    return online.after_the_first_action()._replace(keep=np.ones((2, 2)))


def far_too_large(xp, carry, now):
    return carry, xp.where(now.pair >= 0, 10.0, 0.0)


same = [(*one_state_two_actions()[:2], np.array([[0.5, 0.5]]))] * 6
"""P² = P, and π = μ."""
myopic = [(garnet(3, 2, 2, seed=0, gamma=0.0), np.full((3, 2), 0.5), np.full((3, 2), 0.5))]


@pytest.mark.parametrize(
    ("part", "where", "instead"),
    [
        ("fixed point", common, {"beta": lambda *a: 0.5}),
        ("β_t ≤ ∏ρ makes", policy_evaluation, {"SECOND_LAG": ot.OneStep()}),
        ("β_t ≤ ∏ρ makes", policy_evaluation, {"SECOND_LAG": ot.QLambda(1.0, horizon=3)}),
        ("β_t ≤ ∏ρ makes", policy_evaluation, {"alternating": on_policy}),
        ("B_t diagonal", common, {"beta": lambda trace, pi, *a: 1.0 if len(pi) == 1 else pi[-1]}),
        ("Q(λ)", algorithms, {"q_lambda_tight": lambda: q_lambda_tight(distance=0.1, gamma=0.5)}),
        ("d = 1", algorithms, {"powers_of_two": alternating}),
        ("any choice of d_t", algorithms, {"alternating": lambda: alternating(0.5)}),
        ("from any Q_0", control, {"switch_or_stay": lambda: switch_or_stay(stay=0.5)}),
        ("pessimistic", control, {"switch_or_stay": lambda: switch_or_stay(stay=0.5)}),
        ("according to Theorem 2", control, {"switch_or_stay": lambda: switch_or_stay(stay=0.5)}),
        ("increasingly greedy", control, {"switch_or_stay": lambda: switch_or_stay(stay=0.5)}),
        ("vary with time", conclusion, {"alternating": lambda: alternating(0.5)}),
        ("includes the examples", policy_evaluation, {"q_lambda_tight": on_policy, "powers_of_two": on_policy}),
        ("recency heuristic", policy_evaluation, {"RUNNING_MINIMUM": ot.Retrace()}),
        ("recency heuristic", policy_evaluation, {"RUNNING_MINIMUM": ot.TruncatedIS(1.0)}),  # it may grow again
        (
            "demonstrate divergence",
            algorithms,
            {"FIRST_ACTION": ot.StepTrace(far_too_large, reads=("pair",), horizon=2)},
        ),
        ("of each term", algorithms, {"variance_of_truncated_is": lambda *d: float("inf")}),
        ("the δ of Section 2.1", online, {"expected_value": lambda pi, q: float(q.sum())}),
        ("annealed step sizes", online, {"EXAMPLES": (calm,)}),
        ("γ²P_π + ···", proofs, {"battery": lambda: same}),
        ("max P_π'Q_k", proofs, {"battery": lambda: myopic}),
        ("independent of t", proofs, {"battery": lambda: same}),
    ],
)
def test_every_verdict_can_turn(monkeypatch, rows, part, where, instead):
    """Where what decides a claim is replaced by what would decide it otherwise, the verdict is the other one."""
    (row,) = [row for row in rows if part in row.statement]
    for name, value in instead.items():
        assert hasattr(where, name)
        monkeypatch.setattr(where, name, value)
    assert decide(part).refuted != row.refuted


def test_searches_can_find(monkeypatch):
    search_by_count(monkeypatch, 10_000)
    found = algorithms.searched(ot.Retrace(0.9, horizon=2), ot.QLambda(1.0))
    assert found.refuted
    assert "Q(λ), λ = 1: diverges" in found.numbers
    assert "‖Z‖ = " in found.numbers
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
    assert all(line.replace("\\|", "").count("|") == 7 for line in table)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_as_text_fits_the_terminal(rows, width):
    text = as_text(rows, width)
    assert max(map(len, text.splitlines()[:-1])) <= width
    assert "refuted" in text
    assert text.count("refuted ") >= sum(row.refuted for row in rows)
