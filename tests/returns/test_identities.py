"""What must be equal by theory, on trajectories too long for the oracle."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from offtrace.returns.numpy import passes

LAMS = (0.0, 0.3, 0.9, 1.0)


def made(B: int = 4, T: int = 300, seed: int = 0, spread: float = 0.7, ends: float = 0.02) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    log_mu = -np.abs(rng.normal(size=(B, T))) - 0.5
    given: dict[str, Any] = {name: rng.normal(size=(B, T)) for name in ("reward", "q", "next_value")}
    given |= {"terminated": rng.random((B, T)) < ends, "truncated": rng.random((B, T)) < ends, "gamma": 0.97}
    return given | {"log_mu": log_mu, "log_pi": np.minimum(0, log_mu + spread * rng.normal(size=(B, T)))}


def test_the_reference_of_independent_code() -> None:
    """../shared/reference/traces_50.npz: td errors stand for rewards, q = next_value = 0, `dones` are terminations."""
    data = np.load(Path(__file__).parent.parent / "reference" / "traces_50.npz")
    with np.errstate(divide="ignore"):
        logs = {"log_pi": np.log(data["T50_target_probs"]), "log_mu": np.log(data["T50_behavior_probs"])}
    zero = np.zeros(50)
    rules = {
        "Retrace": ot.Retrace,
        "TruncatedIS": ot.TruncatedIS,
        "RecursiveRetrace": ot.NonMarkovRetrace,
        "RBIS": ot.RBIS,
    }
    for name, cls in rules.items():
        for lam in data["lambdas"]:
            found = ot.corrections(
                cls(lam=float(lam)), reward=data["T50_td_errors"], q=zero, next_value=zero, terminated=data["T50_dones"],
                truncated=zero.astype(bool), gamma=float(data["gamma"]), **logs,
            )  # fmt: skip
            np.testing.assert_allclose(found, data[f"T50_updates_{name}_lambda{lam}"], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "cls",
    [
        ot.QLambda,
        ot.TreeBackup,
        ot.Retrace,
        ot.ImportanceSampling,
        ot.NonMarkovRetrace,
        ot.RBIS,
        ot.TruncatedIS,
        ot.WatkinsQ,
    ],
)
def test_lambda_zero_is_one_step(cls: Any) -> None:
    given = made()
    given["greedy"] = given["reward"] > 0
    np.testing.assert_array_equal(ot.targets(cls(lam=0.0), **given), ot.targets(ot.OneStep(), **given))


@pytest.mark.parametrize("lam", LAMS)
def test_on_policy_they_are_the_lambda_return(lam: float) -> None:
    """π = μ: all but those that read π alone agree with Q(λ), whose closed form is the λ-return on δ."""
    given = made() | {"log_pi": made()["log_mu"]}
    wanted = ot.corrections(ot.QLambda(lam), **given)
    for trace in (
        ot.Retrace(lam),
        ot.ImportanceSampling(lam),
        ot.NonMarkovRetrace(lam),
        ot.RBIS(lam),
        ot.TruncatedIS(1.0, lam),
        ot.AlphaRetrace(0.3, lam),
        ot.QSigma(1.0, lam),
    ):
        np.testing.assert_allclose(ot.corrections(trace, **given), wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("lam", LAMS)
def test_non_markov_retrace_is_importance_sampling_where_no_ratio_exceeds_one(lam: float) -> None:
    given = made()
    given["log_pi"] = np.minimum(given["log_pi"], given["log_mu"])
    wanted = ot.corrections(ot.ImportanceSampling(lam), **given)
    for trace in (ot.NonMarkovRetrace(lam), ot.Retrace(lam)):
        np.testing.assert_allclose(ot.corrections(trace, **given), wanted, rtol=1e-11, atol=1e-13)


def test_special_cases_of_one_another() -> None:
    given = made()
    same = [
        (ot.RBIS(1.0), ot.NonMarkovRetrace(1.0)),
        (ot.HistoryBounded(1.0), ot.RBIS(1.0)),
        (ot.QSigma(1.0, 0.9), ot.ImportanceSampling(0.9)),
        (ot.QSigma(0.0, 0.9), ot.TreeBackup(0.9)),
        (ot.AlphaRetrace(1.0, 0.9), ot.Retrace(0.9)),
        (ot.AlphaRetrace(0.0, 0.9), ot.QLambda(0.9)),
        (ot.CTrace(mix=0.4, lam=0.9, rate=0.5), ot.AlphaRetrace(0.4, 0.9)),
        (ot.TruncatedIS(float("inf"), 0.9), ot.ImportanceSampling(0.9)),
        (ot.TruncatedIS((2.0,), 0.9), ot.TruncatedIS(2.0, 0.9)),
        (ot.Retrace(0.9, horizon=1), ot.OneStep()),
        (ot.Retrace(0.9, horizon=300), ot.Retrace(0.9)),
        (ot.RBIS(0.9, horizon=10**9), ot.RBIS(0.9)),
        (ot.VariableLambda(np.full((4, 300), 0.9)), ot.ImportanceSampling(0.9)),
        (ot.NStep(1), ot.OneStep()),
        (ot.PengQ(0.0), ot.OneStep()),
        (ot.NStep(10**6), ot.PengQ(1.0)),
    ]
    for one, other in same:
        np.testing.assert_allclose(ot.targets(one, **given), ot.targets(other, **given), rtol=1e-9, atol=1e-11)


LONG: list[ot.Trace] = [
    ot.Retrace(0.9),
    ot.NonMarkovRetrace(0.95),
    ot.RBIS(0.95),
    ot.TruncatedIS(1.0, 0.95),
    ot.HistoryBounded(2.0),
    ot.Retrace(horizon=7),
    ot.NonMarkovRetrace(0.99, horizon=90),
    ot.HistoryBounded(1.5, horizon=70),
    ot.TruncatedIS(tuple(2.0 - i % 2 for i in range(60)), 0.99),
    ot.TruncatedIS((0.0, 1.0, 0.0)),
]


@pytest.mark.parametrize("trace", LONG, ids=repr)
def test_split_is_joined(trace: ot.Trace) -> None:
    """Episodes end to end in one row, or each in a padded row of its own: the same."""
    given = made(B=1, T=400, ends=0.03)
    cut = given["terminated"][0] | given["truncated"][0]
    joined = ot.targets(trace, **given)[0]
    edges = [0, *(np.flatnonzero(cut) + 1), 400]
    for start, stop in pairwise(edges):
        piece = {
            name: array[0, start:stop] if isinstance(array, np.ndarray) else array for name, array in given.items()
        }
        if stop > start:
            np.testing.assert_allclose(ot.targets(trace, **piece), joined[start:stop], rtol=1e-11, atol=1e-12)
            padded: dict[str, Any] = {"gamma": piece.pop("gamma")}
            for name, array in piece.items():
                padded[name] = np.pad(array, (3, 5), constant_values=np.nan if array.dtype == float else True)
            padded["valid"] = np.pad(np.ones(stop - start, bool), (3, 5))
            found = ot.targets(trace, **padded)
            np.testing.assert_allclose(found[3:-5], joined[start:stop], rtol=1e-11, atol=1e-12)
            np.testing.assert_array_equal(found[[0, 1, 2, -1, -2, -3, -4, -5]], 0)


@pytest.mark.parametrize("trace", LONG, ids=repr)
def test_threads_and_rows_do_not_matter(trace: ot.Trace) -> None:
    given = made(B=1001, T=501)
    whole = ot.targets(trace, **given)  # large enough to be shared among threads
    for b in (0, 3, 499, 500, 1000):
        row = {name: array[b] if isinstance(array, np.ndarray) else array for name, array in given.items()}
        np.testing.assert_array_equal(ot.targets(trace, **row), whole[b])


@pytest.mark.parametrize("trace", LONG, ids=repr)
def test_long_rows_agree_with_the_matrix_of_coefficients(trace: ot.Trace) -> None:
    given = made(B=1, T=1500, ends=0.0005)
    row = {name: array[0] if isinstance(array, np.ndarray) else array for name, array in given.items()}
    names = ("terminated", "truncated", "log_pi", "log_mu")
    B = ot.coefficients(trace, **{name: row[name] for name in names})
    delta = row["reward"] + 0.97 * ~row["terminated"] * row["next_value"] - row["q"]
    lags = np.maximum(0, np.arange(1500) - np.arange(1500)[:, None])
    weights = B * 0.97**lags
    error = np.abs(ot.corrections(trace, **row) - weights @ delta)
    assert (error <= 1e-12 * (weights @ np.abs(delta))).all()


def test_stretches_of_a_long_row_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of more than passes.LONG steps without a cap is solved in stretches of passes.BLOCK, from its end on."""
    given = made(B=2, T=230, ends=0.01)
    states = {"value" if name == "q" else name: array for name, array in given.items()}

    def results() -> list[np.ndarray]:
        rules = (ot.Retrace(0.9), ot.ImportanceSampling(0.9), ot.VTrace(0.9))
        return [*(ot.targets(rule, **given) for rule in rules), *ot.state_targets(ot.VTrace(0.9), **states)]

    wanted = results()
    monkeypatch.setattr(passes, "LONG", 60)
    monkeypatch.setattr(passes, "BLOCK", 50)
    for found, whole in zip(results(), wanted, strict=True):
        np.testing.assert_allclose(found, whole, rtol=1e-13)


def test_v_trace_on_policy_is_the_lambda_return() -> None:
    given = made() | {"log_pi": made()["log_mu"]}
    for lam in LAMS:
        wanted = ot.targets(ot.QLambda(lam), **given)
        state = {"value" if name == "q" else name: array for name, array in given.items()}
        np.testing.assert_allclose(ot.state_targets(lam=lam, **state).target, wanted, rtol=1e-11, atol=1e-12)


def test_v_trace_does_not_read_the_next_episode() -> None:
    """Where an episode is truncated inside a row, rlax (and torchrl before #4210) read the next episode's value."""
    given = made(B=1, T=6, ends=0.0)
    given["truncated"][0, 2] = True
    state = {"value" if name == "q" else name: array for name, array in given.items()}
    calm, wild = state, state | {"value": state["value"].copy()}
    wild["value"][0, 3:] = 1e9
    for a, b in zip(ot.state_targets(**calm), ot.state_targets(**wild), strict=True):
        np.testing.assert_array_equal(a[0, :3], b[0, :3])


def test_peng_closed_form() -> None:
    """One episode without end: G_0 = Σ (λγ)^t (r_t + γ (1−λ) v_{t+1}), the last step bootstrapping in full."""
    given = made(B=1, T=50, ends=0.0)
    r, v = given["reward"][0], given["next_value"][0]
    terms = r + 0.97 * 0.2 * v
    terms[-1] = r[-1] + 0.97 * v[-1]
    wanted = ((0.8 * 0.97) ** np.arange(50) * terms).sum()
    assert ot.targets(ot.PengQ(0.8), **given)[0, 0] == pytest.approx(wanted, rel=1e-12)


def test_c_trace_reaches_the_wanted_rate() -> None:
    rng = np.random.default_rng(0)
    trace = ot.CTrace(mix=1.0, rate=0.60)
    rates = []
    for _ in range(60):
        log_mu = np.log(rng.dirichlet(np.ones(3), (16, 400)))
        log_pi = np.log(rng.dirichlet(np.ones(3), (16, 400)))
        action = (np.exp(log_mu).cumsum(-1) > rng.random((16, 400, 1))).argmax(-1)[..., None]
        taken = {
            "log_pi": np.take_along_axis(log_pi, action, -1)[..., 0],
            "log_mu": np.take_along_axis(log_mu, action, -1)[..., 0],
        }
        no = np.zeros((16, 400), bool)
        trace = ot.adapt(trace, terminated=no, truncated=no, gamma=0.9, **taken)
        rates.append(1 - 0.1 * ot.diagnose(trace, terminated=no, truncated=no, gamma=0.9, **taken).pooled.magnitude)
    assert trace.adapted == 60
    assert 0 < trace.mix < 1
    assert np.mean(rates[-10:]) == pytest.approx(0.60, abs=0.01)


def _large_batch() -> np.ndarray:
    return ot.targets(ot.Retrace(0.9), **made(B=64, T=10_000))


def fork_and_compare() -> None:
    """Exit with 0 if a forked child computes what its parent did."""
    wanted = _large_batch()
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(_large_batch(), wanted) else 1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_threads_after_a_fork() -> None:
    """A forked worker, as data loaders make them, has no threads of its parent: it must make its own.

    In a process of its own: here other tests may have started JAX, which must not be forked.
    """
    code = "from returns.test_identities import fork_and_compare; fork_and_compare()"
    tests = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=tests, timeout=600, check=False).returncode == 0


def test_a_high_cap_with_a_deep_stack_takes_leaps() -> None:
    """Ratios a little above 1 climb slowly to the cap: the walk down the stack is long, and pointers must take over."""
    T = 1200
    given = made(B=1, T=T, ends=0.0)
    given["log_pi"] = given["log_mu"] + 0.01 * (1 + np.arange(T) % 3)
    row = {name: array[0] if isinstance(array, np.ndarray) else array for name, array in given.items()}
    names = ("terminated", "truncated", "log_pi", "log_mu")
    trace = ot.HistoryBounded(50.0)
    B = ot.coefficients(trace, **{name: row[name] for name in names})
    delta = row["reward"] + 0.97 * row["next_value"] - row["q"]
    weights = B * 0.97 ** np.maximum(0, np.arange(T) - np.arange(T)[:, None])
    error = np.abs(ot.corrections(trace, **row) - weights @ delta)
    assert (error <= 1e-12 * (weights @ np.abs(delta))).all()


@pytest.mark.parametrize(
    "trace", [ot.ImportanceSampling(), ot.VariableLambda(np.ones((1, 3000))), ot.ImportanceSampling(horizon=2000)]
)
def test_an_overflow_stays_in_its_episode(trace: ot.Trace) -> None:
    """Three thousand ratios of e overflow; what ended before, by an end or by a ratio of 0, must not hear of it."""
    given = made(B=1, T=3000, ends=0.0)
    given["log_pi"] = given["log_mu"] + 1.0
    given["terminated"][0, 10] = True
    given["log_pi"][0, 20] = -np.inf
    with pytest.warns(
        RuntimeWarning, match=r"the result at index \[0, 20\] is -?(inf|nan), though every input is finite"
    ):
        found = ot.corrections(trace, **given)
    short = {name: array[:, :20] if isinstance(array, np.ndarray) else array for name, array in given.items()}
    wanted = ot.corrections(ot.ImportanceSampling(), **short)
    np.testing.assert_allclose(found[0, :20], wanted[0], rtol=1e-12)
    assert not np.isnan(found[0, :20]).any()


def test_a_stream_recovers_from_an_overflow() -> None:
    stream = ot.Stream(ot.ImportanceSampling(), size=1)
    step = {
        "reward": 1.0,
        "q": 0.0,
        "next_value": 0.0,
        "terminated": False,
        "truncated": False,
        "gamma": 1.0,
        "log_mu": 0.0,
    }
    stream.step(0, log_pi=0.0, **step)
    stream.step(0, log_pi=700.0, **step)
    with pytest.raises(OverflowError):
        stream.step(0, log_pi=700.0, **step)
    np.testing.assert_array_equal(stream.step(0, log_pi=-np.inf, **step), [1.0])
