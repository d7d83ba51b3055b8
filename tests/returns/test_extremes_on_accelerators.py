"""Products of ratios beyond the range of floats, and probabilities that cannot be: the right number or NaN, on every backend."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import offtrace as ot
from helpers import name_of, whole

TRACES: list[ot.Trace] = [
    ot.ImportanceSampling(0.9), ot.ImportanceSampling(1.0, horizon=30), ot.Retrace(0.9), ot.QSigma(0.5),
    ot.TruncatedIS(), ot.TruncatedIS(2.5, 0.9), ot.TruncatedIS(1e-200), ot.TruncatedIS(1e250, 0.9), ot.TruncatedIS((2.0, 1.0)),
    ot.TruncatedIS(1.0, horizon=60), ot.NonMarkovRetrace(0.9), ot.NonMarkovRetrace(1.0), ot.RBIS(0.9), ot.RBIS(1.0),
    ot.HistoryBounded(3.0), ot.NonMarkovRetrace(0.9, horizon=50), ot.RBIS(1e-8),
]  # fmt: skip
SAME_KERNEL = [ot.Retrace(0.9), ot.QSigma(0.5), ot.TruncatedIS(1.0, horizon=60)]
"""As importance sampling, and as bounds by lag: what a rule makes of ratios is no matter of vmap, nor of a gradient."""
CAPPED = [ot.TruncatedIS(), ot.TruncatedIS(1e250, 0.9), ot.RBIS(0.9), ot.NonMarkovRetrace(1.0), ot.HistoryBounded(3.0)]
TWO_OF_EACH = [
    ot.ImportanceSampling(0.9), ot.Retrace(0.9), ot.TruncatedIS(), ot.TruncatedIS(1e250, 0.9), ot.RBIS(0.9),
    ot.NonMarkovRetrace(1.0), ot.TruncatedIS((2.0, 1.0)), ot.ImportanceSampling(1.0, horizon=30),
]  # fmt: skip
"""Two rules for each kind of kernel."""


def some(traces: list[ot.Trace]) -> Any:
    """Two of each kind; the others where everything is tried."""
    cases = [t if t in TWO_OF_EACH else pytest.param(t, marks=pytest.mark.whole) for t in traces]
    return pytest.mark.parametrize("trace", cases, ids=name_of)


@cache
def exact(
    trace: Any, log_ratio: tuple[float, ...], reward: tuple[float, ...], gamma: float
) -> tuple[np.ndarray, np.ndarray]:
    """Δ and Σ|γβδ| of one row by the definition, in decimals of 50 digits and any size; q and next_value are 0."""
    with localcontext(Context(prec=50, Emin=-(10**12), Emax=10**12)):
        ρ = [Decimal(float(x)).exp() for x in log_ratio]
        π = [Decimal(min(float(x), 0.0)).exp() for x in log_ratio]
        r = [Decimal(float(x)) for x in reward]
        γ, λ, one = Decimal(gamma), Decimal(getattr(trace, "lam", 1.0)), Decimal(1)
        power = [λ**n for n in range(len(ρ))]
        bound = getattr(trace, "bound", 1.0)
        bounds = [Decimal(b) for b in (bound if isinstance(bound, tuple) else (bound,))]
        found = []
        for k in range(len(ρ)):
            β = x = weight = one
            terms = [r[k]]
            for t in range(k + 1, min(len(ρ), k + (trace.horizon or len(ρ)))):
                weight *= γ
                match trace:
                    case ot.ImportanceSampling():
                        β *= λ * ρ[t]
                    case ot.Retrace():
                        β *= λ * min(one, ρ[t])
                    case ot.QSigma():
                        β *= (ρ[t] + π[t]) / 2
                    case ot.NonMarkovRetrace():
                        β = λ * min(one, β * ρ[t])
                    case ot.RBIS():
                        β = min(power[t - k], β * ρ[t])
                    case ot.HistoryBounded():
                        β = min(bounds[0], β * ρ[t])
                    case ot.TruncatedIS():
                        x *= ρ[t]
                        β = power[t - k] * min(bounds[min(t - k, len(bounds)) - 1], x)
                if r[t]:
                    terms.append(weight * β * r[t])
            found.append((sum(terms), sum(map(abs, terms))))
        limit = Decimal("1e308")
        made = [[float(min(max(a, -limit), limit)) for a in pair] for pair in found]
    return np.array(made)[:, 0], np.array(made)[:, 1]


def rows() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Log ratios, and rewards."""
    rng = np.random.default_rng(0)
    last = np.zeros(130)
    last[-1] = 1.0
    e30 = 30 * np.log(10)
    return {
        "down and up": (np.r_[0.0, [-e30] * 11, [e30] * 11], last[-23:]),
        "up and down": (np.r_[0.0, [e30] * 11, [-e30] * 12], last[-24:]),
        "sixty ones before": (np.r_[np.zeros(61), [-e30] * 11, [e30] * 11], last[-83:]),
        "slowly": (np.r_[0.0, [-25.0] * 35, [25.0] * 35, 0.0], last[-72:]),
        "a bit at a time": (np.r_[0.0, [-16.0] * 46, [16.0] * 46, 0.0], last[-94:]),
        "wild": (rng.normal(size=60) * 60, rng.normal(size=60)),
        "wild, one reward": (rng.normal(size=60) * 60, last[-60:]),
        "very wild": (rng.uniform(-690, 690, 40), rng.normal(size=40)),
        "lost one by one": (np.r_[-39.0, np.zeros(6), -39.0, np.zeros(8), [-3.0] * 30, [3.0] * 30], last[-76:]),
        "ordinary": (rng.normal(size=60), rng.normal(size=60)),
    }


ROWS = rows()


LONGEST = max(len(reward) for _, reward in ROWS.values())


SOME = ("up and down", "a bit at a time", "wild, one reward", "lost one by one", "ordinary")
SHORT = ("down and up", "up and down", "wild", "very wild", "ordinary")


def given(names: Any = tuple(ROWS), dtype: Any = np.float64, steps: int = LONGEST) -> dict[str, np.ndarray]:
    """A batch of them, at most so many steps of each; what is not there is padding."""
    log_ratio, reward, valid = np.full((3, len(names), steps), np.nan)
    for b, name in enumerate(names):
        n = min(len(ROWS[name][1]), steps)
        (log_ratio[b, :n], reward[b, :n]), valid[b] = (a[:n] for a in ROWS[name]), np.arange(steps) < n
    log_ratio, reward = log_ratio.astype(dtype), reward.astype(dtype)
    no, zero = np.zeros(reward.shape, bool), np.zeros_like(reward)
    return {
        "reward": reward, "q": zero, "next_value": zero, "log_pi": np.minimum(log_ratio, 0),
        "log_mu": np.minimum(-log_ratio, 0), "terminated": no, "truncated": no, "valid": valid == 1,
    }  # fmt: skip


def check(found: Any, trace: Any, names: Any = tuple(ROWS), dtype: Any = np.float64) -> None:
    arrays = given(names, dtype)
    assert found.dtype == dtype
    for b, name in enumerate(names):
        n = min(len(ROWS[name][1]), found.shape[1])
        log_ratio = arrays["log_pi"][b, :n].astype(float) - arrays["log_mu"][b, :n]
        wanted, scale = exact(trace, tuple(log_ratio), tuple(arrays["reward"][b, :n]), 0.99)
        fits = scale < np.finfo(dtype).max / 2
        error = np.abs(np.where(fits, found[b, :n], 0.0) - np.where(fits, wanted, 0.0))
        least = 1e-300 if dtype == np.float64 else 1e-37
        worst = np.max(error / ((3e-12 if dtype == np.float64 else 3e-6) * scale + least))
        assert worst <= 1, f"{name}: {worst:.3g} times what is allowed"


@cache
def program(call: Any) -> Any:
    """`call(trace, arrays)`, compiled. The trace is an argument: other numbers are not another program."""
    jax = pytest.importorskip("jax")
    import offtrace.returns.jax.backend  # noqa: F401 (traces are pytrees from here on)

    return jax.jit(call)


def run(call: Any, trace: Any, arrays: Any) -> Any:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        return np.asarray(program(call)(trace, {n: jax.numpy.asarray(a) for n, a in arrays.items()}))


def corrections(trace: Any, arrays: Any) -> Any:
    return ot.corrections(trace, **arrays, gamma=0.99)


def on_jax(trace: Any, arrays: Any) -> Any:
    """All in one shape, with padding: so there is one program for all rules that differ by numbers only."""
    shape = np.atleast_2d(arrays["reward"]).shape
    rest = [(0, all_ - some) for all_, some in zip((len(ROWS), LONGEST), shape, strict=True)]
    whole = {"valid": np.ones(shape, bool)} | {n: np.atleast_2d(a) for n, a in arrays.items()}
    if "pair" not in trace.reads:
        whole.pop("pair", None)
    found = run(corrections, trace, {n: np.pad(a, rest) for n, a in whole.items()})
    return found[: shape[0], : shape[1]].reshape(arrays["reward"].shape)


def by_gradients(trace: Any, made: Any) -> Any:
    """By vmap; the first start's Δ by the gradient that it has with respect to all rewards."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    call = jax.vmap(lambda a: ot.corrections(trace, **a, gamma=0.99, differentiable=True))
    found, pull = jax.vjp(lambda r: call({**made, "reward": r}), made["reward"])
    (weights,) = pull(jnp.zeros_like(found).at[:, 0].set(1.0))
    first = jnp.where(made["valid"] & (made["reward"] != 0), weights * made["reward"], 0.0).sum(1)
    return found.at[:, 0].set(first)


@dataclass(frozen=True)
class Scaled(ot.Trace):
    """All recursive rules of this file: their classes would be a program each, of which the kernel for caps is nearly all."""

    decay: float = 1.0
    scale: float = 1.0
    cap: float = 1.0

    reads: ClassVar = ("rho",)
    per_decision: ClassVar = False
    recursive: ClassVar = True

    @staticmethod
    def factors(xp, pi, mu, rho, decay, scale, cap):
        return decay, scale * rho, cap


def as_one_class(trace: Any) -> Any:
    """The same numbers; each class by itself is tried by `on_jax`, and inside of vmap and grad in `test_jax`."""
    if not trace.recursive or trace.horizon is not None:
        return trace
    return Scaled(*map(float, trace.factors(np, 1.0, 1.0, 1.0, *trace.parameters)))


def check_both_branches(call: Any, trace: Any) -> None:
    """The branch of a program for rows that float64 holds, and that for all others.

    Of so many steps that a row is halved twice: more of them would be more to compile, and nothing new."""
    for names in (SHORT, ("ordinary",)):
        arrays = given(SHORT, steps=33)
        arrays["valid"][[name not in names for name in SHORT]] = False
        found = run(call, as_one_class(trace), arrays)[[SHORT.index(name) for name in names]]
        check(found, trace, names)


def on_triton(trace: Any, arrays: Any) -> Any:
    """The interpreter takes as long for many numbers as for one: so all starts of a program are walked at once."""
    torch = pytest.importorskip("torch")
    plans = pytest.importorskip("offtrace.returns.triton.plans")
    cuda = pytest.importorskip("offtrace.returns.torch.cuda")
    import triton_interpreter  # noqa: F401

    x = {n: torch.from_numpy(np.atleast_2d(a)) for n, a in arrays.items()}
    x = {"gamma": 0.99, "valid": None, **x}
    lags = None
    if not isinstance(trace, ot.StepTrace):
        lags = trace.bounds_by_lag(x["reward"].shape[1])
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:  # what leaves the range is thrown away
        patch.setattr(plans, "WALKED", 128)
        patch.setattr(cuda, "_plans", {})
        return cuda.correct(trace, x, lags, add_q=False)[0].numpy().reshape(arrays["reward"].shape)


@some(TRACES)
def test_products_of_any_size(trace: Any) -> None:
    check(on_jax(trace, given()), trace)


@some([t for t in TRACES if t not in SAME_KERNEL])
def test_products_of_any_size_inside_vmap_and_grad(trace: Any) -> None:
    near = replace(trace, horizon=20) if trace.horizon else trace  # which is less than the steps that there are
    check_both_branches(by_gradients, near)


@some([t for t in TRACES if t not in CAPPED])
def test_products_of_any_size_on_triton(trace: Any) -> None:
    """The rules without a kernel for caps; `test_kernels_for_gpus` has the others."""
    check(on_triton(trace, given()), trace)


OPTIMISED = [
    (corrections, ot.ImportanceSampling(0.9)),
    (corrections, ot.TruncatedIS(2.5, 0.9)),
    (corrections, ot.TruncatedIS((2.0, 1.0))),
    (by_gradients, ot.RBIS(0.9)),
]
"""The program with a gradient has its rule's kernel in it as well, so that there is none without."""


@pytest.mark.whole
def test_optimised_programs() -> None:
    """A rule for each kernel, by what XLA makes of it for users; the other tests run programs as they are written."""
    pytest.importorskip("jax")
    script = """
import test_extremes_on_accelerators as these
for call, trace in these.OPTIMISED:
    these.check_both_branches(call, trace)
"""
    as_for_users = {n: v for n, v in os.environ.items() if n not in ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")}
    as_for_users["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    subprocess.run([sys.executable, "-c", script], env=as_for_users, check=True)


@some(CAPPED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kernels_for_gpus(dtype: Any, trace: Any) -> None:
    check(on_triton(trace, given(dtype=dtype)), trace, dtype=dtype)


@pytest.mark.parametrize("dtype", [np.float32, *whole([np.float64])])
def test_rows_alone_on_kernels_for_gpus(dtype: Any) -> None:
    """A row that leaves the range takes its neighbours with it: here it has none."""
    for name in SOME:
        alone = given((name,), dtype, len(ROWS[name][1]))
        check(on_triton(ot.RBIS(0.9), alone), ot.RBIS(0.9), (name,), dtype)


@pytest.mark.parametrize("trace", [ot.TruncatedIS(2.5, 0.9), ot.RBIS(0.9), ot.TruncatedIS((2.0, 1.0))], ids=name_of)
@pytest.mark.parametrize("name", ["wild", "a bit at a time"])
def test_the_transpose_on_triton(trace: Any, name: str) -> None:
    """⟨G, M δ⟩ = ⟨Mᵀ G, δ⟩."""
    torch = pytest.importorskip("torch")
    cuda = pytest.importorskip("offtrace.returns.torch.cuda")
    import triton_interpreter  # noqa: F401

    T = len(ROWS[name][1])
    decay, ratio, cap = trace.normal_form(np, None, None, np.exp(ROWS[name][0]))
    g, ratio, cap = (torch.from_numpy(np.array(np.broadcast_to(f, (1, T)))) for f in (0.99 * decay, ratio, cap))
    rng = np.random.default_rng(0)
    delta, gradient = (torch.from_numpy(rng.uniform(0.5, 1.0, (1, T))) for _ in range(2))
    lags = torch.tensor(trace.bounds_by_lag(T) or [], dtype=torch.float64)
    how: dict[str, Any] = {"per_decision": False, "recursive": trace.recursive}
    back = cuda.given(gradient, g, ratio, cap, lags, **how, transposed=True)
    with np.errstate(all="ignore"):
        there = cuda.given(delta, g, ratio, cap, lags, per_decision=False, recursive=trace.recursive)
    np.testing.assert_allclose((back * delta).sum(), (there * gradient).sum(), rtol=1e-12)


# μ = 0 on an action that was taken.

IMPOSSIBLE = [
    *TRACES,
    ot.ABQ(0.9, 0.9, 3.0),
    ot.replacing(0.9),
    ot.QLambda(0.9),
    ot.TreeBackup(0.9),
    ot.AlphaRetrace(0.5),
    ot.TruncatedIS(0.0),
]
T, EPISODE, BAD = 24, 12, 17


def impossible(log_pi: float) -> dict[str, np.ndarray]:
    """Two episodes; in the second an action is taken that μ never takes."""
    rng = np.random.default_rng(0)
    reward = rng.normal(size=T)
    logs = np.log(rng.uniform(0.2, 1.0, (2, T)))
    end = np.arange(T) == EPISODE - 1
    logs[0, BAD], logs[1, BAD] = log_pi, -np.inf
    zero = np.zeros(T)
    made = {"reward": reward, "q": zero, "next_value": zero, "log_pi": logs[0], "log_mu": logs[1], "terminated": end}
    return {**made, "truncated": np.zeros(T, bool), "pair": np.arange(T)}


def on_torch(trace: Any, arrays: Any) -> Any:
    torch = pytest.importorskip("torch")
    made = {n: torch.from_numpy(a) for n, a in arrays.items()}
    return ot.corrections(trace, **made, gamma=0.99, check=False).numpy()


@pytest.mark.parametrize("log_pi", [-1.0, -np.inf])
@some(IMPOSSIBLE)
@pytest.mark.parametrize("backend", [on_jax, on_torch, on_triton], ids=lambda b: b.__name__)
def test_an_impossible_action_gives_nan(backend: Any, trace: Any, log_pi: float) -> None:
    """To all starts whose sum has its ratio in it, and to no other."""
    arrays = impossible(log_pi)
    if isinstance(trace, ot.StepTrace) and backend is on_torch:  # its β come from the host, which refuses
        with pytest.raises(ValueError, match="log_mu"):
            backend(trace, arrays)
        return
    found = backend(trace, arrays)
    fine = {**arrays, "log_mu": np.where(np.isinf(arrays["log_mu"]), -1.0, arrays["log_mu"])}
    fine["log_pi"] = np.where(np.isinf(arrays["log_pi"]), -1.0, arrays["log_pi"])
    wanted = ot.corrections(trace, **fine, gamma=0.99)
    if trace.needs_mu:
        reach = trace.horizon or T
        wanted[max(EPISODE, BAD - reach + 1) : BAD] = np.nan
    elif np.isinf(log_pi):
        return
    np.testing.assert_allclose(found, wanted, rtol=1e-11)


def test_a_first_action_is_not_asked_for_its_ratio() -> None:
    """The start's own ratio is in no sum: μ = 0 at an episode's first step is the business of no trace."""
    arrays = impossible(-1.0)
    arrays["log_mu"] = np.roll(arrays["log_mu"], EPISODE - BAD)
    arrays["log_pi"] = np.roll(arrays["log_pi"], EPISODE - BAD)
    for trace in (ot.Retrace(0.9), ot.RBIS(0.9), ot.TruncatedIS(), ot.TruncatedIS((2.0, 1.0)), ot.ImportanceSampling()):
        for backend in (on_jax, on_torch, on_triton):
            assert np.isfinite(backend(trace, arrays)).all()


def test_v_trace_of_an_impossible_action() -> None:
    arrays = impossible(-1.0)
    arrays["value"] = arrays.pop("q")
    del arrays["pair"]
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    in_jax = jax.jit(lambda a: ot.state_targets(**a, gamma=0.99))({n: jax.numpy.asarray(a) for n, a in arrays.items()})
    in_torch = ot.state_targets(**{n: torch.from_numpy(a) for n, a in arrays.items()}, gamma=0.99, check=False)
    for found in (in_jax, in_torch):
        target, advantage, _ = map(np.asarray, found)
        np.testing.assert_array_equal(np.isnan(target), (np.arange(T) >= EPISODE) & (np.arange(T) <= BAD))
        assert np.isnan(advantage[BAD])


@pytest.mark.parametrize("trace", [ot.RBIS(0.9), ot.replacing(0.9), ot.QLambda(0.9)], ids=name_of)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_coefficients_have_the_dtype_of_the_log_probabilities(trace: Any, dtype: Any) -> None:
    """On all kinds of arrays; where none is read, that which the kind makes of a Python float."""
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    names = ("log_pi", "log_mu", "terminated", "truncated", "pair")
    row = {n: a.astype(dtype) if n.startswith("log") else a for n, a in impossible(-1.0).items() if n in names}
    row["log_mu"] = np.maximum(row["log_mu"], dtype(-3.0))
    wanted = ot.coefficients(trace, **row)
    found = ot.coefficients(trace, **{n: torch.from_numpy(a) for n, a in row.items()})
    with jax.enable_x64(dtype == np.float64):
        given = {n: jax.numpy.asarray(a) for n, a in row.items()}
        ways = [ot.coefficients(trace, **given), jax.jit(lambda row: ot.coefficients(trace, **row))(given)]
        kinds = [(np.asarray(a), jax.numpy.asarray(1.0).dtype) for a in ways]
    kinds += [(wanted, np.asarray(1.0).dtype), (found.numpy(), torch.tensor(1.0).numpy().dtype)]
    for matrix, default in kinds:
        assert matrix.dtype == (dtype if trace.needs_mu else default)
        np.testing.assert_allclose(matrix, wanted, rtol=2e-6)
