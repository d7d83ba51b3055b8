"""The rules by hand, by name and by what they say of themselves."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import BUILT_IN, name_of
from offtrace.traces import registry

PI, MU = np.array([1.0, 0.2, 0.8, 0.3]), np.array([1.0, 0.4, 0.2, 0.6])  # the start, then ρ = ½, 4, ½
NO = np.zeros(4, bool)
BY_HAND = [
    (ot.TreeBackup(0.9), (0.18, 0.1296, 0.034992)),
    (ot.Retrace(0.9), (0.45, 0.405, 0.18225)),
    (ot.NonMarkovRetrace(0.9), (0.45, 0.9, 0.405)),
    (ot.RBIS(0.9), (0.5, 0.81, 0.405)),
    (ot.TruncatedIS(1.0, lam=0.9), (0.45, 0.81, 0.729)),
    (ot.QSigma(0.5), (0.35, 0.84, 0.336)),
    (ot.ImportanceSampling(), (0.5, 2.0, 1.0)),
    (ot.QLambda(0.9), (0.9, 0.81, 0.729)),
    (ot.OneStep(), (0.0, 0.0, 0.0)),
    (ot.TruncatedIS((0.0, 1.0, 0.0)), (0.0, 1.0, 0.0)),
    (ot.HistoryBounded(1.5), (0.5, 1.5, 0.75)),
    (ot.AlphaRetrace(mix=0.5), (0.75, 0.75, 0.5625)),
    (ot.ABQ(zeta=0.5, psi0=1.0), (0.2, 0.16, 0.048)),
    (ot.Retrace(0.9, horizon=2), (0.45, 0.0, 0.0)),
]


@pytest.mark.parametrize(("trace", "wanted"), BY_HAND, ids=[name_of(t) for t, _ in BY_HAND])
def test_by_hand(trace: ot.Trace, wanted: tuple[float, ...]) -> None:
    found = ot.coefficients(trace, terminated=NO, truncated=NO, log_pi=np.log(PI), log_mu=np.log(MU))
    np.testing.assert_allclose(found[0, 1:], wanted, rtol=1e-14)


@pytest.mark.parametrize(
    "name", ["NonMarkovRetrace", "non-markov retrace", "Recursive Retrace", "nmr", "non_markov_retrace"]
)
def test_found_by_any_name(name: str) -> None:
    assert ot.trace(name, lam=0.9) == ot.NonMarkovRetrace(lam=0.9)


def test_every_rule_is_found_by_its_title_and_by_repr_name() -> None:
    for cls in ot.rules():
        parameters = {"lam": np.ones(3)} if cls is ot.VariableLambda else {}
        assert type(ot.trace(cls.title, **parameters)) is cls
        assert type(ot.trace(cls.__name__, **parameters)) is cls


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ot.trace("retrac"), "did you mean 'Retrace'"),
        (lambda: ot.trace("tree bakup"), "did you mean 'Tree Backup'"),
        (lambda: ot.trace("zzzzzz"), "no trace named 'zzzzzz'.*Known"),
        (lambda: ot.trace("retrace", lambd=1), "no parameter 'lambd'; did you mean 'lam'"),
        (lambda: ot.Retrace(lam=1.5), r"lam must lie in \[0, 1\], got 1.5"),
        (lambda: ot.Retrace(lam=float("nan")), "lam must lie in"),
        (lambda: ot.PengQ(lam=-1), "lam must lie in"),
        (lambda: ot.NStep(n=0), "n must be an integer of at least 1, got 0"),
        (lambda: ot.Retrace(horizon=0), "horizon must be an integer of at least 1, got 0"),
        (lambda: ot.TruncatedIS(bound=-1.0), "bound must lie in"),
        (lambda: ot.TruncatedIS(bound=()), "non-empty"),
        (lambda: ot.HistoryBounded(bound=float("inf")), "bound must lie in"),
        (lambda: ot.Retrace(lam=np.array(1.5)), "lam must lie in"),  # pyright: ignore[reportArgumentType]
        (lambda: ot.Retrace(lam=np.full(3, 0.5)), "lam must be one number"),  # pyright: ignore[reportArgumentType]
        (lambda: ot.Retrace(lam="0.9"), "lam must be one number"),  # pyright: ignore[reportArgumentType]
        (lambda: ot.RBIS(lam=None), "lam must be one number"),  # pyright: ignore[reportArgumentType]
        (lambda: ot.TruncatedIS("12"), "bound must be one number"),  # pyright: ignore[reportArgumentType]
        (lambda: ot.CTrace(step_size=float("nan")), "step_size must lie in"),
        (lambda: ot.NStep(n=True), "n must be an integer"),
        (lambda: ot.VTrace(rho_bar=-1.0), "rho_bar must lie in"),
        (lambda: ot.StepTrace("abc".join), "step must be a plain function"),  # pyright: ignore[reportArgumentType]
        (lambda: ot.QSigma(sigma=2.0), "sigma must lie in"),
        (lambda: ot.AlphaRetrace(mix=-0.1), "mix must lie in"),
        (lambda: ot.ABQ(psi0=3.0, psi_max=2.0), "psi0 ≤ psi_max"),
        (lambda: ot.VariableLambda(lam=[0.5, 1.2]), r"got 1.2 at index \[1\]"),
        (lambda: ot.StepTrace(lambda xp, carry, now: (carry, carry), reads=("q",)), "reads may hold"),
        (lambda: ot.StepTrace(lambda xp, c, now: (c, c), carry="x"), "carry must be a number"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_wrong_rule_is_refused(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize("trace", BUILT_IN, ids=name_of)
def test_metadata_is_true(trace: ot.Trace) -> None:
    """The recursive condition and per-decision, looked for in random histories rather than believed."""
    assert trace.citation
    trace._check_factors()
    assert trace.title
    assert trace.__doc__ is not None
    assert not trace.__doc__.startswith(type(trace).__name__ + "(")
    rng = np.random.default_rng(0)
    violated = False
    for _ in range(200):
        T = 8
        mu, pi = rng.uniform(0.02, 1, T), rng.uniform(0.02, 1, T)
        no = np.zeros(T, bool)
        logs = {"log_pi": np.log(pi), "log_mu": np.log(mu), "greedy": rng.random(T) < 0.9}
        beta = ot.coefficients(trace, terminated=no, truncated=no, **logs)[0]
        violated |= bool((beta[1:] > beta[:-1] * (pi / mu)[1:] * (1 + 1e-12)).any())
    # λ = 0, a bound of 0 or a short horizon leave nothing that could violate it.
    harmless = trace.horizon or getattr(trace, "lam", 1.0) == 0 or trace == ot.TruncatedIS(bound=0.0)
    assert violated is (not trace.recursive_condition and not harmless)


@pytest.mark.parametrize("trace", [t for t in BUILT_IN if t.per_decision and t.horizon is None], ids=name_of)
def test_per_decision_traces_factor(trace: ot.Trace) -> None:
    """β_{0:t} = β_{0:s} β_{s:t}."""
    rng = np.random.default_rng(1)
    no = np.zeros(6, bool)
    mu, pi = rng.uniform(0.1, 1, 6), rng.uniform(0.1, 1, 6)
    logs = {"log_pi": np.log(pi), "log_mu": np.log(mu), "greedy": np.array([True, True, True, False, True, True])}
    B = ot.coefficients(trace, terminated=no, truncated=no, **logs)
    for s in range(6):
        np.testing.assert_allclose(B[0, s:], B[0, s] * B[s, s:], rtol=1e-12)


def test_traces_are_values() -> None:
    assert ot.Retrace(0.9) == ot.Retrace(lam=0.9)
    assert hash(ot.TruncatedIS((1, 2))) == hash(ot.TruncatedIS(bound=[1.0, 2.0]))
    assert ot.VariableLambda([0.5]) != ot.VariableLambda([0.6])
    with pytest.raises(dataclasses.FrozenInstanceError):
        ot.Retrace(0.9).lam = 0.5  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("held", [np.array(0.5), [0.5], 0.5], ids=["array", "list", "number"])
def test_a_rule_says_whether_it_has_a_hash(held: Any) -> None:
    """What is kept from one call to the next is kept by the rule's hash; one without is computed anew, to the same numbers."""

    @dataclasses.dataclass(frozen=True)
    class Halved(ot.Trace):
        share: Any

        @property
        def parameters(self) -> tuple[float, ...]:
            return (float(np.sum(self.share)),)

        @staticmethod
        def factors(xp: Any, pi: Any, mu: Any, rho: Any, share: Any) -> Any:
            return share, 1.0, ot.INFINITY

    rule = Halved(held)
    assert rule.hashable is isinstance(held, float)
    no, r = np.zeros((2, 3), bool), np.arange(6.0).reshape(2, 3)
    step: dict[str, Any] = {"reward": r, "next_value": r, "q": r, "terminated": no, "truncated": no, "gamma": 0.9}
    for _ in range(2):  # the second one may use what the first one has kept
        np.testing.assert_array_equal(ot.targets(rule, **step), ot.targets(ot.QLambda(lam=0.5), **step))
    assert all(rule.hashable for rule in BUILT_IN)


def test_a_rule_is_a_few_lines() -> None:
    """The promise of STYLE.md: a new rule is mathematics and metadata, never a loop."""
    for cls in ot.rules():
        if issubclass(cls, ot.Trace):
            body = inspect.getsource(cls.factors)
            assert len(body.splitlines()) <= 4
            assert "for " not in body


def test_a_new_rule_in_normal_form_goes_through_everything() -> None:
    @dataclasses.dataclass(frozen=True)
    class SquareRoot(ot.Trace):
        """β_t = ∏ √ρ_i, capped at `bound` and going on from there."""

        bound: float = 1.0
        reads = ("rho",)
        per_decision = False
        recursive = True

        @staticmethod
        def factors(xp, pi, mu, rho, bound):
            return 1.0, rho**0.5, bound

    T = 100
    rng = np.random.default_rng(2)
    log_pi, log_mu = rng.normal(size=(2, T)), rng.normal(size=(2, T))
    end = rng.random((2, T)) < 0.05
    reward, zero = rng.normal(size=(2, T)), np.zeros((2, T))
    given = {"terminated": end, "truncated": np.zeros((2, T), bool), "log_pi": log_pi, "log_mu": log_mu}
    for trace in (SquareRoot(0.8), SquareRoot(1.7)):
        found = ot.corrections(trace, reward=reward, q=zero, next_value=zero, gamma=0.95, **given)
        for b in range(2):
            B = ot.coefficients(trace, **{name: array[b] for name, array in given.items()})
            lags = np.maximum(0, np.arange(T) - np.arange(T)[:, None])
            np.testing.assert_allclose(found[b], (B * 0.95**lags) @ reward[b], rtol=1e-10, atol=1e-12)


def test_a_cap_that_would_be_ignored_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Forgetful(ot.Trace):
        reads = ("rho",)

        @staticmethod
        def factors(xp, pi, mu, rho):
            return 1.0, rho, 1.0

    with pytest.raises(TypeError, match="Forgetful has a cap, so it is not per-decision: set per_decision = False"):
        Forgetful()


def test_what_a_rule_uses_must_stand_in_reads() -> None:
    @dataclasses.dataclass(frozen=True)
    class Blind(ot.Trace):
        @staticmethod
        def factors(xp, pi, mu, rho):
            return 1.0, xp.minimum(rho, 1.0), ot.INFINITY

    with pytest.raises(TypeError, match=r"what it uses must stand in `reads`, which is \(\)"):
        Blind()

    @dataclasses.dataclass(frozen=True)
    class Bound(ot.Trace):
        def factors(self, xp, pi, mu, rho):  # pyright: ignore[reportIncompatibleMethodOverride]
            return 1.0, 1.0, ot.INFINITY

    with pytest.raises(TypeError, match="must be a @staticmethod"):
        Bound()

    @dataclasses.dataclass(frozen=True)
    class Negative(ot.Trace):
        reads = ("rho",)

        @staticmethod
        def factors(xp, pi, mu, rho):
            return 1.0, rho - 1.0, ot.INFINITY

    with pytest.raises(ValueError, match="none may be negative"):
        Negative()


def test_an_unread_pair_equals_no_other() -> None:
    def same(xp, carry, now):
        return carry, xp.where(now.pair == now.start_pair, 0.0, 1.0)

    no = np.zeros(4, bool)
    B = ot.coefficients(ot.StepTrace(same, reads=()), terminated=no, truncated=no)
    np.testing.assert_array_equal(B, np.triu(np.ones((4, 4))))


def test_names_do_not_collide() -> None:
    names: dict[str, type] = {}
    for cls in ot.rules():
        for name in {registry.key(n) for n in (cls.__name__, cls.title, *cls.aliases)}:
            assert names.setdefault(name, cls) is cls
