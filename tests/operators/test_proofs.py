"""Proofs: what is claimed is what the operator computes, another program verifies it, and what is wrong is refused."""

import ast
import copy
import json
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from offtrace import cli, mdps
from offtrace.operators import Operator, certify, check_proof, control_iterates, proofs
from offtrace.operators.check_proof import Refused, check

FAR = mdps.one_state_two_actions(target=(0.6, 0.4), gamma=0.94)
CASES: list[tuple[Any, Any, str]] = [
    (ot.Retrace(), mdps.alternating(), "linear"),
    (ot.TreeBackup(0.9), mdps.alternating(), "linear"),
    (ot.QLambda(), mdps.q_lambda_tight(), "linear"),
    (ot.OneStep(), mdps.alternating(), "sum"),
    (ot.TruncatedIS(bound=(0.0, np.inf, 0.0)), mdps.alternating(), "sum"),
    (ot.RBIS(0.5, horizon=4), mdps.alternating(), "sum"),
    (ot.NonMarkovRetrace(0.5), FAR, "chain"),
    (ot.RBIS(0.8), FAR, "chain"),
    (ot.TruncatedIS(1.0), mdps.powers_of_two(), "chain"),
]


def made(trace: Any, problem: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return proofs.proof(trace, *problem)


def resealed(proof: dict[str, Any]) -> dict[str, Any]:
    """With a right checksum, so that only the mathematics can refuse it."""
    return {**proof, "sha256": check_proof.digest(proof)}


@pytest.mark.parametrize(("trace", "problem", "kind"), CASES, ids=[f"{t.title} {k}" for t, _, k in CASES])
def test_claims_hold_what_the_operator_computes(trace: Any, problem: Any, kind: str) -> None:
    proof = made(trace, problem)
    assert proof["witness"]["kind"] == kind
    assert len(check(json.loads(json.dumps(proof)))) == len(proof["claims"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operator = Operator(trace, problem[0], target=problem[1], behavior=problem[2])
    numbers = {claim["claim"]: float(Fraction(claim["number"])) for claim in proof["claims"] if "number" in claim}
    norm, radius = operator.contraction, operator.spectral_radius
    assert numbers["norm at least"] <= norm.upper
    assert numbers["norm at most"] >= norm.lower
    assert numbers["norm at most"] - numbers["norm at least"] < 1e-2
    assert numbers["radius at most"] >= radius.lower
    assert numbers.get("radius at least", 0.0) <= radius.upper
    holds = any(claim["claim"] == "recursive condition holds" for claim in proof["claims"])
    assert holds == operator.setting.recursive_condition or trace.horizon is not None


def test_a_divergence_is_proven() -> None:
    numbers = {c["claim"]: Fraction(c["number"]) for c in made(ot.TruncatedIS(1.0), mdps.powers_of_two())["claims"]}
    assert numbers["radius at least"] > Fraction(1013, 1000)


@pytest.mark.parametrize("trace", [ot.Retrace(0.9), ot.RBIS(0.5, horizon=3)], ids=["linear", "sum"])
def test_the_variance_at_the_true_values_is_proven(trace: Any) -> None:
    mdp = mdps.garnet(3, 2, 2, seed=1, gamma=0.9)
    problem = mdp, mdps.random_policy(mdp, seed=1), mdps.uniform(mdp)
    proof = made(trace, problem)
    numbers = {c["claim"]: float(Fraction(c["number"])) for c in proof["claims"] if "number" in c}
    _, high = Operator(trace, mdp, target=problem[1], behavior=problem[2]).variance_bounds(mdp.q(problem[1]))
    assert numbers["variance at least"] <= high.max() <= numbers["variance at most"] * (1 + 1e-9)
    assert numbers["variance at most"] < numbers["variance at least"] * 1.001
    for claim in proof["claims"]:
        if claim["claim"] == "variance at most":
            claim["number"] = str(Fraction(claim["number"]) * Fraction(99, 100))
    with pytest.raises(Refused, match="do not show this variance"):
        check(resealed(proof))
    changed = made(trace, problem)
    changed["claims"][-1]["values"][0] = "1"
    with pytest.raises(Refused, match="not Q"):
        check(resealed(changed))


@pytest.mark.parametrize("case", [0, 4, 6], ids=["linear", "sum", "chain"])
def test_a_stronger_claim_is_refused(case: int) -> None:
    proof = made(*CASES[case][:2])
    for i, claim in enumerate(proof["claims"]):
        if "number" not in claim:
            continue
        stronger = copy.deepcopy(proof)
        by = Fraction(101, 100) if "at least" in claim["claim"] else Fraction(99, 100)
        stronger["claims"][i]["number"] = str(Fraction(claim["number"]) * by)
        with pytest.raises(Refused):
            check(resealed(stronger))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where numbers stand that are spelt as text."""
    if isinstance(value, dict):
        return [
            p
            for key, each in value.items()
            if key not in ("format", "sha256", "name", "kind", "claim")
            for p in places(each, (*path, key))
        ]
    if isinstance(value, list):
        return [p for i, each in enumerate(value) for p in places(each, (*path, i))]
    return [path] if isinstance(value, str) and value != "inf" else []


@pytest.mark.parametrize("case", [0, 4, 6], ids=["linear", "sum", "chain"])
def test_a_number_of_the_problem_or_the_witness_that_is_changed_much_is_refused(case: int) -> None:
    """Whatever the checksum says: 0.01 more or less, one number at a time."""
    proof, rng, refused, tried = made(*CASES[case][:2]), np.random.default_rng(0), 0, 0
    where = [p for p in places(proof) if p[0] != "claims"]
    for i in rng.permutation(len(where))[:40]:
        changed = copy.deepcopy(proof)
        *path, last = where[i]
        holder: Any = changed
        for key in path:
            holder = holder[key]
        holder[last] = str(Fraction(holder[last]) + Fraction(int(rng.choice([-1, 1])), 100))
        tried += 1
        try:
            check(resealed(changed))
        except (Refused, ZeroDivisionError):
            refused += 1
    # a bound that is moved outwards may still be a bound, and rewards have no part in Z
    assert refused >= 0.5 * tried


def test_a_flipped_digit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "proof.json"
    proofs.write(path, made(ot.Retrace(), mdps.alternating()))
    text = path.read_text()
    rng = np.random.default_rng(1)
    digits = [i for i, letter in enumerate(text) if letter.isdigit()]
    for i in rng.permutation(digits)[:60]:
        other = str((int(text[i]) + int(rng.integers(1, 10))) % 10)
        path.write_text(text[:i] + other + text[i + 1 :])
        assert str(check_proof.main(path)).startswith("REFUSED")
    path.write_text(text[:-50])
    assert "damaged" in str(check_proof.main(path))
    capsys.readouterr()


def test_the_checker_is_one_file_that_needs_python_alone(tmp_path: Path) -> None:
    source = Path(check_proof.__file__).read_text()
    assert len(source.splitlines()) <= 300
    imported = {
        n for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for n in (a.name for a in node.names)
    }
    imported |= {str(node.module) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    assert imported == {"json", "sys", "bisect", "fractions", "hashlib", "typing"}
    alone, path = tmp_path / "alone.py", tmp_path / "proof.json"
    alone.write_text(source)
    proofs.write(path, made(ot.QLambda(), mdps.q_lambda_tight()))
    done = subprocess.run([sys.executable, "-I", alone, path], capture_output=True, text=True, check=True)
    assert "the spectral radius of Z is at least 17.99" in done.stdout


def test_certify_takes_its_intervals_from_the_proof(tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    found = certify(ot.TruncatedIS(1.0), *mdps.powers_of_two(), proof=path)
    assert (found.verdict, found.converges) == ("expands", False)
    assert any("fails along" in sentence for sentence in found.verified)
    assert "verified: ‖Z‖ is at least 1.97" in str(found)
    numbers = {
        c["claim"]: float(Fraction(c["number"])) for c in json.loads(path.read_text())["claims"] if "number" in c
    }
    assert found.contraction.lower == numbers["norm at least"]
    assert found.spectral_radius.upper == numbers["radius at most"]


@pytest.mark.parametrize(
    ("trace", "words"),
    [(ot.CTrace(0.5), "evaluates a mixture"), (ot.replacing(0.9), "custom trace")],
    ids=["mixture", "custom"],
)
def test_what_has_no_proof_is_said(trace: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(proofs.Unprovable, match=words):
        certify(trace, *mdps.alternating(), proof=tmp_path / "x.json")


@pytest.mark.parametrize("trace", [ot.Retrace(), ot.TreeBackup()], ids=repr)
def test_cycles_of_control(trace: Any) -> None:
    mdp, _, mu, q0 = mdps.switch_or_stay()
    run = control_iterates(trace, mdp, behavior=mu, q0=q0)
    values = [np.vectorize(lambda x: float(Fraction(x).limit_denominator(10_000)))(q) for q in np.asarray(run.cycle)]
    proof = proofs.cycle(trace, mdp, mu, values)
    assert check(proof) == [f"control cycles with period {len(values)}"]
    proof["claims"][0]["values"][0][0] = "-3"
    with pytest.raises(Refused, match="is not M Q"):
        check(resealed(proof))


def test_terminal_states_and_random_mdps() -> None:
    rng = np.random.default_rng(3)
    mdp = mdps.garnet(3, 2, 2, seed=4, gamma=0.9, terminal=1)
    problem = mdp, mdps.random_policy(mdp, rng, 1.0), mdps.uniform(mdp)
    for trace in (ot.Retrace(0.9), ot.ImportanceSampling(0.9)):
        proof = made(trace, problem)
        operator = Operator(trace, mdp, target=problem[1], behavior=problem[2])
        number = next(float(Fraction(c["number"])) for c in proof["claims"] if c["claim"] == "norm at most")
        assert number == pytest.approx(operator.contraction.upper, abs=1e-5)
        assert check(proof)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "proof.json"
    assert cli.main(["certify", "alternating", "--trace", "retrace", "--lam", "0.9", "--proof", str(path)]) == 0
    assert cli.main(["check", str(path)]) == 0
    assert capsys.readouterr().out.count("verified: ‖Z‖ is at most 0.7452") == 2
    mdp, pi, mu = mdps.alternating()
    P = np.asarray(mdp.dense_P).reshape(mdp.S, mdp.A, mdp.S)
    np.savez(tmp_path / "mdp.npz", P=P, R=mdp.R, gamma=mdp.gamma, target=pi, behavior=mu)
    assert cli.main(["certify", str(tmp_path / "mdp.npz"), "--trace", "retrace", "--lam", "0.9"]) == 0
    assert "contraction ‖Z‖    0.74522292" in capsys.readouterr().out
    path.write_text(path.read_text().replace("9/10", "8/10", 1))
    assert cli.main(["check", str(path)]) == 1
    assert "REFUSED: the checksum is another" in capsys.readouterr().err
    assert cli.main(["certify", "alternatin"]) == 2
    assert "did you mean 'alternating'" in capsys.readouterr().err
