"""Proofs that are forged by hand, of what does not hold: the checker must refuse them."""

from __future__ import annotations

from typing import Any

import pytest

from offtrace.operators import check_proof


def linear_proof(ratio: str, c: str, w: str, norm: str) -> dict[str, Any]:
    """One state, one action, γ = 0.9, a rule of one's own with this ratio: G = 0.9 · ratio, and C should be 1 / (1 − G)."""
    factors = {"decay": ["1"], "ratio": [ratio], "cap": ["inf"], "recursive": False}
    rule = {"name": "Mine", "numbers": {}, "horizon": None, "lags": None, **factors}
    problem = {
        "gamma": "9/10", "target": [["1"]], "behavior": [["1"]], "rewards": ["0"], "transitions": [[[0, "1"]]], "rule": rule
    }  # fmt: skip
    witness = {"kind": "linear", "lower": [[c]], "upper": [[c]], "w": [w]}
    claims = [{"claim": "norm at most", "number": norm}]
    proof = {"format": "offtrace proof 1", "problem": problem, "witness": witness, "claims": claims}
    return {**proof, "sha256": check_proof.digest(proof)}


def test_a_sum_that_converges_is_verified() -> None:
    """G = 0.45, C = 1 / 0.55, Z = 1 − C (1 − 0.9)."""
    assert check_proof.check(linear_proof("1/2", "20/11", "1", "9/11"))[0].startswith("‖Z‖ is at most 0.818")


def test_a_sum_that_diverges_has_no_witness() -> None:
    """G = 1.8: C = 1 / (1 − G) = −5/4 solves the equation of C, but the sum that C stands for is infinite."""
    for w in ("1", "-1", "0"):
        with pytest.raises(check_proof.Refused, match="no proof that C exists"):
            check_proof.check(linear_proof("2", "-5/4", w, "9/8"))
