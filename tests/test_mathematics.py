"""The formulas of the documentation: what in prose is one, and what becomes of it."""

import importlib
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import offtrace as ot

pytest.importorskip("sphinx")
DOCS = str(Path(__file__).parents[1] / "docs")
sys.path.insert(0, DOCS)
mathematics, mathml = map(importlib.import_module, ("mathematics", "mathml"))
sys.path.remove(DOCS)


def found(text):
    return [text[start:end] for start, end in mathematics.runs(text)]


@pytest.mark.parametrize(
    ("prose", "formulas"),
    [
        ("β_t ≤ β_{t-1} ρ_t for every history", ["β_t ≤ β_{t-1} ρ_t"]),
        ("a contraction, and a faster one", []),
        ("(see β_t ≤ 1) and n-step returns", ["β_t ≤ 1"]),
        ("pass log_pi and next_value of T_{π_k}Q_k", ["T_{π_k}Q_k"]),
        ("‖Z‖ = max_x [γ − (1−γ)S(x)] ≤ γ: a contraction", ["‖Z‖ = max_x [γ − (1−γ)S(x)] ≤ γ"]),
        ("in step 2 β_t is 1; the data are μ's", ["β_t", "μ"]),
        ("its fixed point, and M Q − Q^π = Z(Q − Q*) for π*, so", ["M Q − Q^π = Z(Q − Q*)", "π*"]),
        ("10⁴ steps, below 2^64", ["2^64"]),
        ("z = ρ(γλz + mx); w += α δ z", ["z = ρ(γλz + mx)", "w += α δ z"]),
        ("largest |MQ^π − Q^π| = 8.9e-16, ‖Z‖ = 1 on all", ["|MQ^π − Q^π| = 8.9e-16", "‖Z‖ = 1"]),
        ("where Σ_a' π(a'|s') is 1, so", ["Σ_a' π(a'|s')"]),
    ],
)
def test_formulas_in_prose(prose, formulas):
    assert found(prose) == formulas


def test_scripts_are_scripts():
    assert mathml.row("β_{k:t}") == "<msub><mi>β</mi><mrow><mi>k</mi><mtext>:</mtext><mi>t</mi></mrow></msub>"
    assert mathml.row("P_μ^t") == "<msubsup><mi>P</mi><mrow><mi>μ</mi></mrow><mrow><mi>t</mi></mrow></msubsup>"
    assert mathml.row("Xᵀ") == "<msup><mi>X</mi><mrow><mi>T</mi></mrow></msup>"
    assert mathml.row("Q*") == "<msup><mi>Q</mi><mrow><mo>*</mo></mrow></msup>"
    assert mathml.row("ρ̄") == '<mover accent="true"><mi>ρ</mi><mo stretchy="false">¯</mo></mover>'
    assert mathml.row("+=") == "<mo>+=</mo>"
    assert mathml.row("s'") == "<msup><mi>s</mi><mrow><mo>′</mo></mrow></msup>"
    assert "<munder><mo>∑</mo>" in mathml.mathml("Σ_{t≥0} γ^t", display=True)
    assert "<msub><mo>∑</mo>" in mathml.mathml("Σ_{t≥0} γ^t")


@pytest.mark.parametrize("rule", ot.rules(), ids=lambda rule: rule.__name__)
def test_every_rule_is_well_formed(rule):
    """Each formula of the registry becomes XML in which nothing is lost."""
    tree = ElementTree.fromstring(mathml.mathml(rule.formula))
    shown = "".join(tree.itertext())
    letters = set(re.findall(r"[A-Za-zα-ω]", rule.formula))
    assert letters <= set(re.findall(r"[A-Za-zα-ω]", shown))
