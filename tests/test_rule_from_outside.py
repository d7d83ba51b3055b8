"""A rule is one class: one that is defined outside of the package and listed is taken all the way; nothing else is edited."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from deep.small import configured
from helpers import assert_close, correct_by_definition, rows
from offtrace import learners, logs, mdps, operators, reports, studies
from offtrace.cli import rule_options
from offtrace.learners import EpsilonGreedy
from offtrace.traces import registry
from studies.small import declared

MODULE = "softened_rules_of_a_test"
SOURCE = '''
"""A module of somebody who uses offtrace."""

from dataclasses import dataclass
from typing import ClassVar

import offtrace as ot


@ot.register
@dataclass(frozen=True)
class Softened(ot.Trace):
    """β_t = λ min(1, β_{t-1} ρ_t^power): Non-Markov Retrace with softened ratios."""

    power: float = 0.5
    lam: float = 1.0

    title: ClassVar = "Softened Retrace"
    aliases: ClassVar = ("soft",)
    reads: ClassVar = ("rho",)
    per_decision: ClassVar = False
    recursive: ClassVar = True
    citation: ClassVar = "nobody, yet"

    @staticmethod
    def factors(xp, pi, mu, rho, power, lam):
        return 1.0, lam * rho**power, lam
'''
B, T = 3, 7
Wanted = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def softened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The class, imported from a folder of its own."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / f"{MODULE}.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        cls = importlib.import_module(MODULE).Softened
        yield cls
    registry.unregister(cls)
    del sys.modules[MODULE]  # a worker that comes back to this file imports it, and so lists the rule, anew


@pytest.fixture(scope="module")
def trace(softened: Any) -> Any:
    return softened(power=0.5, lam=0.9)


@pytest.fixture(scope="module")
def batch() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    reward, q, next_value = rng.normal(size=(3, B, T))
    log_pi, log_mu = np.log(rng.uniform(0.05, 1.0, (2, B, T)))
    terminated, truncated = rng.random((2, B, T)) < 0.1
    return {
        "reward": reward, "q": q, "next_value": next_value, "log_pi": log_pi, "log_mu": log_mu,
        "terminated": terminated, "truncated": truncated, "gamma": 0.95,
    }  # fmt: skip


@pytest.fixture(scope="module")
def wanted(trace: Any, batch: dict[str, Any]) -> Wanted:
    """Δ by definition and its scale, [B, T]."""
    return correct_by_definition(trace, batch)


@pytest.fixture(scope="module")
def small() -> tuple[mdps.MDP, np.ndarray, np.ndarray]:
    mdp = mdps.garnet(3, 2, 2, seed=1, gamma=0.8)
    return mdp, mdps.random_policy(mdp, seed=1), mdps.uniform(mdp)


def test_it_is_listed(softened: Any, trace: Any) -> None:
    assert softened in ot.rules()
    assert ot.trace("softened retrace", lam=0.9) == ot.trace("soft", power=0.5, lam=0.9) == trace
    assert {example.lam for example in softened.examples()} == {0.0, 0.7, 1.0}  # what the batteries of tests try
    assert softened.typical() == (softened(),)  # what the audit and the benchmarks take
    with pytest.raises(ValueError, match="'soft' of Other belongs to Softened already"):
        ot.register(type("Other", (ot.Trace,), {"title": "other", "aliases": ("soft",)}))


def test_numpy(trace: Any, batch: dict[str, Any], wanted: Wanted) -> None:
    assert_close(ot.corrections(trace, **batch), *wanted, np.float64)
    row = rows(batch)[0]
    arrays = {name: row[name] for name in ("terminated", "truncated", "log_pi", "log_mu")}
    found, ratio = ot.coefficients(trace, **arrays), np.exp(row["log_pi"] - row["log_mu"])
    ends = row["terminated"] | row["truncated"]
    for k in range(T):
        beta = 1.0
        for t in range(k, T):
            if t > k:
                beta = 0.0 if ends[t - 1] else 0.9 * min(1.0, beta * ratio[t] ** 0.5)
            assert found[k, t] == pytest.approx(beta, rel=1e-12)


def test_stream(trace: Any, batch: dict[str, Any], wanted: Wanted) -> None:
    row, stream, found = rows(batch)[1], ot.Stream(trace, size=T), np.zeros(T)
    for t in range(T):
        found += stream.step(t, **{name: a[t] if isinstance(a, np.ndarray) else a for name, a in row.items()})
    np.testing.assert_allclose(found, wanted[0][1], rtol=1e-12)


def test_torch(trace: Any, batch: dict[str, Any], wanted: Wanted) -> None:
    torch = pytest.importorskip("torch")
    given = {name: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for name, a in batch.items()}
    assert_close(ot.corrections(trace, **given).numpy(), *wanted, np.float64)
    given["reward"] = given["reward"].clone().requires_grad_()
    found = ot.corrections(trace, **given, differentiable=True)
    assert_close(found.detach().numpy(), *wanted, np.float64)
    (slope,) = torch.autograd.grad(found.sum(), given["reward"])
    change = np.zeros((B, T))
    change[0, 3] = 1.0  # corrections are linear in the rewards
    more = ot.corrections(trace, **{**batch, "reward": batch["reward"] + change})
    assert slope[0, 3].item() == pytest.approx((more - wanted[0]).sum())


def test_triton(trace: Any, batch: dict[str, Any], wanted: Wanted) -> None:
    """By Triton's interpreter."""
    torch = pytest.importorskip("torch")
    launch = pytest.importorskip("offtrace.returns.torch.cuda")
    given = {name: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for name, a in batch.items()}
    found = launch.correct(trace, {"valid": None, **given}, trace.bounds_by_lag(T), add_q=False)[0]
    assert_close(found.numpy(), *wanted, np.float64)


def test_jax(softened: Any, batch: dict[str, Any]) -> None:
    """The rule is a pytree: another λ is not another program."""
    jax = pytest.importorskip("jax")
    compiled, trace = [], softened(power=0.5, lam=0.9)

    @jax.jit
    def corrections(trace: Any, arrays: Any) -> Any:
        compiled.append(trace)
        return ot.corrections(trace, **arrays)

    assert sorted(jax.tree.leaves(trace)) == [0.5, 0.9]
    with jax.enable_x64(True):
        for rule in (trace, softened(power=1.0, lam=0.8)):
            found = np.asarray(corrections(rule, batch))
            assert_close(found, *correct_by_definition(rule, batch), np.float64)
        assert len(compiled) == 1


def test_operators(trace: Any, softened: Any, small: Any) -> None:
    mdp, target, behavior = small
    found = operators.certify(trace, mdp, target, behavior, tolerance=1e-4)
    assert found.verdict == "contracts"
    assert str(found).startswith("Softened Retrace(power=0.5, lam=0.9): contracts")
    op = operators.Operator(softened(power=1.0, lam=0.9), mdp, target=target, behavior=behavior)
    same = operators.Operator(ot.NonMarkovRetrace(lam=0.9), mdp, target=target, behavior=behavior)
    np.testing.assert_allclose(op.C, same.C, atol=1e-12)
    assert operators.falsify(trace, states=2, budget=0.1).tried > 0
    swept = operators.tradeoff(
        mdp, target, behavior, np.zeros((3, 2)), lams=(0.5,), mixes=(), bounds=(), tolerance=1e-2
    )
    assert "Softened Retrace" in {point.family for point in swept.points}


def test_learners(softened: Any, small: Any) -> None:
    """In the compiled loop; at power 1 it is Non-Markov Retrace."""
    policies: dict[str, Any] = {"behavior": EpsilonGreedy(0.3), "target": EpsilonGreedy(0.1)}
    found, same = (
        learners.control(rule, small[0], **policies, alpha=0.1, steps=200, progress=False).Q
        for rule in (softened(power=1.0, lam=0.9), ot.NonMarkovRetrace(lam=0.9))
    )
    np.testing.assert_allclose(found, same, rtol=1e-12)


def test_logs(trace: Any, small: Any) -> None:
    mdp, target, behavior = small
    seen = logs.simulate(mdp, behavior, seed=0, steps=60, limit=5)
    result = logs.evaluate(seen, target, trace=trace, gamma=mdp.gamma, resamples=20)
    assert np.isfinite([row["estimate"] for row in result.rows() if row["estimator"] == "fitted"]).all()
    assert "Softened Retrace" in str(result)


def test_deep(trace: Any) -> None:
    pytest.importorskip("jax")
    from deep.small import CONFIG
    from offtrace.deep import train

    assert len(train(replace(CONFIG, trace=trace, frames=160), seeds=2, progress=False).curve)


def test_study_and_report(softened: Any, tmp_path: Path) -> None:
    entry = {"name": "Softened Retrace", "power": [0.5]}
    study = studies.Study.declared(
        declared(
            modules=[MODULE], traces=["Retrace", entry], environments=["random-walk:states=5"], alphas=[0.1, 0.3],
            seeds={"tuning": {"first": 0, "count": 2}, "test": {"first": 2, "count": 2}},
        ),
        out=tmp_path,
    )  # fmt: skip
    study.run(workers=0, progress=False)  # that a worker, too, finds the module is tried in test_running.py
    page = reports.write(study, figures=False).read_text(encoding="utf-8")
    assert "Softened Retrace" in page
    from offtrace.reports.study import method_names

    methods = method_names.in_order(["Softened Retrace", "Retrace"])
    assert methods == ["Retrace", "Softened Retrace"]
    looks = method_names.styles(methods)
    assert looks[0] == ot.Retrace.look
    assert len(set(looks)) == 2  # a colour of its own
    spelt = re.sub(r"\s", "", page)
    for method, look in zip(methods, looks, strict=True):
        assert f'{{"name":{json.dumps(method).replace(" ", "")},"style":{look}}}' in spelt


def test_command_line(softened: Any) -> None:
    typed = ["deep", "train", "CartPole-v1", "--trace", "softened-retrace", "--power", "0.25", "--lam", "0.5"]
    assert configured(typed[2:]).trace == softened(power=0.25, lam=0.5)


def test_a_name_may_say_which_module_lists_it(softened: Any) -> None:
    registry.unregister(softened)
    module = sys.modules.pop(MODULE)
    typed = ["deep", "train", "CartPole-v1", "--trace", f"{MODULE}:soft", "--power", "0.25"]
    rule_options.import_rules(typed)
    anew = sys.modules[MODULE].Softened
    assert configured(typed[2:]).trace == anew(power=0.25, lam=0.9)
    assert ot.trace(f"{MODULE}:softened", lam=0.5) == anew(lam=0.5)
    sys.modules[MODULE] = module
    ot.register(softened)
