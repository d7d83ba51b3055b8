"""JAX arrays: every trace against the definition, inside jit, vmap and grad, in every layout."""

from __future__ import annotations

import dataclasses
from decimal import Decimal, localcontext
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import offtrace as ot  # noqa: E402
from helpers import BUILT_IN, CUSTOM, assert_close, correct_by_definition, name_of, trajectories  # noqa: E402
from offtrace.returns import by_definition  # noqa: E402
from offtrace.returns.jax import backend, by_lag, float64_programs, kernels  # noqa: E402
from offtrace.returns.numpy import gradients as by_numba  # noqa: E402
from offtrace.traces import pytrees  # noqa: E402

PROGRAM: Any = float64_programs._program

quick = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
EACH_KERNEL = [
    ot.Retrace(0.9), ot.ImportanceSampling(0.9),
    ot.RBIS(0.9), ot.HistoryBounded(3.0),
    ot.TruncatedIS(1.5, 0.9), ot.TruncatedIS(0.5),
    ot.Retrace(0.9, horizon=3), ot.ImportanceSampling(horizon=10_000),
    ot.NonMarkovRetrace(0.9, horizon=4), ot.TruncatedIS((2.0, 1.0)),
    ot.replacing(0.9), CUSTOM[2],
]  # fmt: skip
"""Two rules for each: no cap, a recursive one, one at read-out, a horizon and no cap, bounds by lag, custom."""
SOME = [ot.Retrace(0.9), ot.RBIS(0.9), ot.TruncatedIS(1.5, 0.9), ot.NonMarkovRetrace(0.9, horizon=3), ot.replacing(0.9)]
B, T = 6, 12


def to_one_shape(batch: dict[str, Any]) -> dict[str, Any]:
    """A drawn batch as [6, 12], the rest of it padding, so that nothing is compiled twice. Nothing there may be read."""
    shape = np.atleast_2d(batch["reward"]).shape
    batch = {"valid": np.ones(shape, bool), **batch}
    batch.pop("time_major", None)
    batch["gamma"] = np.broadcast_to(np.asarray(batch["gamma"], batch["reward"].dtype), batch["reward"].shape)
    made = {}
    for name, array in batch.items():
        full = np.full((B, T), np.nan if array.dtype.kind == "f" else 0).astype(array.dtype)
        full[: shape[0], : shape[1]] = np.atleast_2d(array)
        made[name] = full
    return made


def sample(seed: int = 0, dtype: Any = np.float32, shape: tuple[int, ...] = (B, T)) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    reward, q, next_value = rng.normal(size=(3, *shape)).astype(dtype)
    log_pi, log_mu = np.log(rng.uniform(0.1, 1.0, (2, *shape))).astype(dtype)
    terminated, truncated = rng.random((2, *shape)) < 0.1
    return {
        "reward": reward, "q": q, "next_value": next_value, "log_pi": log_pi, "log_mu": log_mu,
        "terminated": terminated, "truncated": truncated, "pair": rng.integers(0, 3, shape, dtype=np.int32), "gamma": 0.95,
    }  # fmt: skip


def in_jax(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: jnp.asarray(a) if isinstance(a, np.ndarray) else a for name, a in arrays.items()}


@pytest.mark.parametrize(
    ("trace", "dtype"), [*((t, np.float64) for t in EACH_KERNEL), *((t, np.float32) for t in SOME[:2])]
)
@quick
@given(data=st.data())
def test_corrections_are_the_definition(trace: ot.Trace, dtype: Any, data: Any) -> None:
    """Float32 is taken to float64 first: what follows is one and the same for all traces."""
    batch = to_one_shape(data.draw(trajectories(dtype)))
    wanted, scale = correct_by_definition(trace, batch)
    with jax.enable_x64(dtype == np.float64):
        found = ot.corrections(trace, **in_jax(batch), check=False)
        assert isinstance(found, jax.Array)
        assert_close(np.asarray(found), wanted, scale, dtype)


@pytest.mark.parametrize("recursive", [True, False])
def test_factors_of_every_size(recursive: bool) -> None:
    """Cuts, caps of 0 and 1e100, ratios of e^±69, weights of 1e-15; traces lost and found;
    ratios of 1e200 after a cut, and before one in the same eight steps."""
    rng = np.random.default_rng(0)
    delta, g, ratio, cap = rng.uniform(0.2, 1.5, (4, 9, 160))
    delta, g = delta - 0.8, np.minimum(g, 1.0)
    g[0, ::9] = ratio[1, 5::10] = cap[1, 7::13] = 0.0
    ratio[2, 3::9], ratio[2, 5::9] = np.exp(-69), np.exp(69)
    g[3], ratio[4, ::2], cap[4, 3::5] = 1e-15, 1e200, 1e100
    g[5:], ratio[5, 20:80], ratio[5, 80:140] = 0.99, 0.1, 10.0  # 10⁻⁶⁰ and back
    ratio[6, 20:80], ratio[6, 80:140] = 10.0, 0.1
    ratio[7:, 48:60], g[7, 40], g[8, 53] = 1e200, 0.0, 0.0
    no_lags = np.empty(0)
    wanted = by_numba.correct(delta, g, ratio, cap, no_lags, recursive)
    scale = by_numba.correct(np.abs(delta), g, ratio, cap, no_lags, recursive)
    step = np.pad(ratio[:, 1:], ((0, 0), (0, 1)), constant_values=1.0)
    ends = (step == 0) | (g == 0)  # as `on_jax` hands them over
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in (delta, np.where(ends, 0.0, g), np.where(ends, 1.0, step), cap)]
        capped = jax.jit(lambda *arrays: by_lag.capped(*arrays, None, recursive, False))
        together = capped(*arrays)
        alone = [np.asarray(capped(*(a[i : i + 1] for a in arrays)))[0] for i in range(9)]
    for found in (together, np.stack(alone)):
        assert (np.abs(np.asarray(found) - wanted) <= 1e-12 * scale).all()


@pytest.mark.parametrize(
    ("trace", "spread", "dtype"),
    [
        (ot.RBIS(0.9), 0.5, np.float32),
        (ot.NonMarkovRetrace(0.9), 1.0, np.float64),
        (ot.TruncatedIS(1.5, 0.9), 0.5, np.float64),
        (ot.TruncatedIS(0.5), 0.1, np.float32),
    ],
    ids=str,
)
def test_rows_that_end_in_closed_form(trace: Any, spread: float, dtype: Any) -> None:
    """Long rows without an end, in one of which one step alone counts: there nothing is negligible. And gradients' sum."""
    batch, none = sample(10, dtype, (3, 300)), np.zeros((3, 300))
    log_ratio = np.random.default_rng(10).normal(size=(3, 300)) * spread
    batch["log_pi"] = np.minimum(batch["log_mu"] + log_ratio, 0).astype(dtype)
    batch["terminated"][:2] = batch["truncated"][:2] = False
    for name in ("reward", "q", "next_value"):
        batch[name][1, np.arange(300) != 60] = 0.0

    def of_td_errors(delta: Any) -> Any:
        exact = {n: a.astype(float) if np.ndim(a) and a.dtype == dtype else a for n, a in batch.items()}
        return ot.corrections(trace, **{**exact, "reward": delta, "q": none, "next_value": none})

    x = {n: batch[n].astype(float) for n in ("reward", "q", "next_value")}
    delta = x["reward"] + 0.95 * ~batch["terminated"] * x["next_value"] - x["q"]
    with jax.enable_x64(dtype == np.float64):
        call = jax.jit(lambda r, x: ot.corrections(trace, **{**x, "reward": r, "gamma": 0.95}, differentiable=True))
        arrays = in_jax(batch)
        found, pull = jax.vjp(lambda r: call(r, arrays), arrays["reward"])
        gradient = np.asarray(pull(jnp.ones_like(found))[0])
    assert_close(np.asarray(found), of_td_errors(delta), of_td_errors(abs(delta)), dtype)
    np.testing.assert_allclose(gradient.sum(1, dtype=float), of_td_errors(none + 1.0).sum(1), rtol=1e-5)


@pytest.mark.parametrize("way", [kernels.linear_by_steps, kernels.linear_by_doubling])
def test_the_reverse_recursion_on_every_platform(way: Any) -> None:
    """Products that come back from 10^±400, a weight of 0 after an overflow, and rows of ordinary size, alone and together.

    In the last row a sum overflows, though no product of weights leaves the range, and the weight before it is 0.
    """
    rng = np.random.default_rng(0)
    delta, weight = rng.normal(size=(6, 120)), rng.uniform(0.2, 1.2, (6, 120))
    weight[0, 20:60], weight[0, 60:100] = 1e-10, 1e10
    weight[1, 20:60], weight[1, 60:100] = 1e10, 1e-10
    delta[:2, :-1] = 0.0
    weight[2, ::7] = 0.0
    weight[3, 20:60], weight[3, 19] = 1e10, 0.0
    delta[5, 51], weight[5, 50], weight[5, 49] = 1e300, 1e10, 0.0  # a scan joins 51 with 50, and then both with 49
    exact = np.zeros((6, 121), object)
    with localcontext(prec=60, Emax=10**6, Emin=-(10**6)):
        for b, k in product(range(6), range(119, -1, -1)):
            exact[b, k] = Decimal(delta[b, k]) + Decimal(weight[b, k]) * exact[b, k + 1]
    wanted = exact[:, :-1].astype(float)
    with jax.enable_x64(True):
        for rows in (slice(None), *(slice(b, b + 1) for b in range(6))):
            found = np.asarray(jax.jit(way)(delta[rows], weight[rows]))
            np.testing.assert_allclose(found, wanted[rows], rtol=1e-12, atol=1e-15)


def test_caps_inside_vmap_and_grad() -> None:
    batch = sample(8, np.float64, (3, 10))
    gamma, trace = batch.pop("gamma"), ot.RBIS(0.9)

    def loss(reward: Any, arrays: Any) -> Any:
        targets = ot.targets(trace, **{**arrays, "reward": reward}, gamma=gamma, differentiable=True)
        return (targets**2).sum(), targets

    arrays = in_jax({n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in batch.items()})
    gradient, found = jax.vmap(jax.jit(jax.grad(loss, has_aux=True)))(arrays["reward"], arrays)
    wanted = ot.targets(trace, **batch, gamma=gamma)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    for k in range(10):  # targets are linear in the rewards
        more = ot.targets(trace, **{**batch, "reward": batch["reward"] + np.eye(10)[k]}, gamma=gamma)
        np.testing.assert_allclose(gradient[:, k], (2 * wanted * (more - wanted)).sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", [ot.PengQ(0.6), ot.NStep(3), ot.NStep(20)])
@quick
@given(data=st.data())
def test_peng_and_n_step_are_their_definitions(rule: Any, data: Any) -> None:
    batch = to_one_shape(data.draw(trajectories()))
    oracle: Any = by_definition.peng if isinstance(rule, ot.PengQ) else by_definition.n_step
    parameter = rule.lam if isinstance(rule, ot.PengQ) else rule.n
    batch = {n: a for n, a in batch.items() if n not in ("q", "log_pi", "log_mu", "pair", "greedy")}
    wanted = [oracle(parameter, **{n: a[b] for n, a in batch.items()}) for b in range(B)]
    with jax.enable_x64(True):
        found = ot.targets(rule, **in_jax(batch), check=False)
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("trace", [*SOME, ot.PengQ(0.6)], ids=name_of)
def test_the_same_however_it_is_called(trace: Any) -> None:
    batch = sample(shape=(3, 7))
    arrays, wanted = in_jax(batch), ot.targets(trace, **batch)

    def call(arrays: Any) -> Any:
        return ot.targets(trace, **arrays)

    mapped = {name: None if name == "gamma" else 0 for name in arrays}
    ways = {
        "eagerly": call(arrays),
        "jit": jax.jit(call)(arrays),
        "vmap": jax.vmap(call, in_axes=(mapped,))(arrays),
        "vmap of jit": jax.vmap(jax.jit(call), in_axes=(mapped,))(arrays),
        "trace as argument": jax.jit(lambda trace, arrays: ot.targets(trace, **arrays))(trace, arrays),
    }
    for way, found in ways.items():
        assert found.dtype == np.float32, way
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5, err_msg=way)


@pytest.mark.parametrize("trace", SOME[:2], ids=name_of)
def test_layouts(trace: ot.Trace) -> None:
    batch = to_one_shape(sample(2))  # the program of `test_corrections_are_the_definition` serves here too
    wanted = ot.corrections(trace, **in_jax(batch), check=False)
    turned = {n: jnp.asarray(a.T) for n, a in batch.items()}
    np.testing.assert_array_equal(ot.corrections(trace, **turned, time_major=True, check=False).T, wanted)
    trailing = {n: jnp.asarray(a[..., None]) for n, a in batch.items()}
    np.testing.assert_array_equal(ot.corrections(trace, **trailing, check=False)[..., 0], wanted)


def test_another_number_is_not_another_program() -> None:
    arrays = in_jax({name: a for name, a in sample().items() if name != "gamma"})
    traced = []

    @jax.jit
    def call(trace: Any, gamma: Any) -> Any:
        traced.append(trace)
        return ot.targets(trace, **arrays, gamma=gamma)

    for lam in (0.2, 0.5, 0.9):
        call(ot.RBIS(lam), lam)
        call(ot.TruncatedIS(1 + lam, lam), lam)
    assert len(traced) == 2
    call(ot.RBIS(0.2, horizon=3), 0.2)
    assert len(traced) == 3
    before = PROGRAM._cache_size()
    for lam in (0.2, 0.5, 0.9):  # nor outside of jit
        ot.targets(ot.RBIS(lam), **arrays, gamma=lam, check=False)
    assert PROGRAM._cache_size() <= before + 1


@pytest.mark.parametrize("trace", [ot.RBIS(0.9), ot.TruncatedIS(1.5, 0.9, horizon=4), ot.PengQ(0.7)], ids=name_of)
def test_another_length_is_rarely_another_program(trace: Any) -> None:
    before = PROGRAM._cache_size()
    for T in (17, 19, 23, 24):
        batch = sample(T, np.float32, (2, T))
        found = ot.targets(trace, **in_jax(batch), check=False)
        np.testing.assert_allclose(found, ot.targets(trace, **batch), rtol=1e-5, atol=1e-5)
    assert PROGRAM._cache_size() <= before + 2  # one with padding, one without


def test_state_targets_of_another_length(monkeypatch: Any) -> None:
    monkeypatch.setattr(backend, "where_from", lambda *trees: (False, False))  # as on a GPU
    batch = {n: a for n, a in sample(3, np.float32, (2, 21)).items() if n != "pair"}
    batch["value"] = batch.pop("q")
    for found, wanted in zip(ot.state_targets(**in_jax(batch)), ot.state_targets(**batch), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "trace", [*BUILT_IN, *CUSTOM[:3], ot.PengQ(), ot.NStep(2), ot.VariableLambda(np.ones(3))], ids=name_of
)
def test_traces_are_pytrees(trace: Any) -> None:
    leaves, structure = jax.tree.flatten(trace)
    back = jax.tree.unflatten(structure, leaves)
    assert type(back) is type(trace)
    assert all(isinstance(leaf, float | int | np.ndarray) for leaf in leaves)
    assert jax.tree.structure(back) == structure
    assert hash(structure) == hash(jax.tree.structure(back))


@dataclasses.dataclass(frozen=True)
class Named(ot.Trace):
    """Its fields have the names that are static elsewhere."""

    n: float = 1.0
    beta: float = 1.0
    step: float = 1.0
    size: int = dataclasses.field(default=3, metadata=pytrees.STATIC)

    reads: ClassVar = ("rho",)

    @property
    def parameters(self) -> tuple[Any, ...]:
        return self.n, self.beta, self.step

    @staticmethod
    def factors(xp, pi, mu, rho, n, beta, step):
        return n * beta * step, xp.minimum(rho, 1.0), ot.INFINITY


def test_a_class_declares_what_is_static_and_no_name_does() -> None:
    assert jax.tree.leaves(Named(0.9, 0.8, 0.7)) == [0.9, 0.8, 0.7]
    assert jax.tree.leaves(dataclasses.replace(Named(), size=4)) == [1.0, 1.0, 1.0]
    batch = sample(9)
    found = jax.jit(lambda trace, arrays: ot.targets(trace, **arrays))(Named(0.5, 0.9, 0.8), in_jax(batch))
    np.testing.assert_allclose(found, ot.targets(ot.Retrace(0.36), **batch), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trace", [*SOME, ot.PengQ(0.6)], ids=name_of)
def test_gradients(trace: Any) -> None:
    with jax.enable_x64(True):
        arrays = in_jax(sample(3, np.float64, (2, 7)))
        names = ("reward", "q", "next_value", *(("log_pi",) if isinstance(trace, ot.Retrace) else ()))

        @jax.jit
        def targets(values: Any) -> Any:
            return ot.targets(trace, **{**arrays, **values}, differentiable=True)

        @jax.jit  # one program, of which differences take the one half, and what they are compared with is the other
        def both(values: Any, weights: Any) -> Any:
            found, pull = jax.vjp(targets, values)
            return (weights * found).sum(), pull(weights)[0]

        rng = np.random.default_rng(0)
        values, weights = {n: arrays[n] for n in names}, rng.normal(size=(2, 7))
        way = {n: 1e-5 * rng.normal(size=(2, 7)) for n in names}
        there, back = (both({n: values[n] + sign * way[n] for n in names}, weights)[0] for sign in (1, -1))
        gradient = both(values, weights)[1]
        np.testing.assert_allclose(sum((gradient[n] * way[n]).sum() for n in names), (there - back) / 2, rtol=1e-6)


@pytest.mark.parametrize("horizon", [None, 3])
def test_gradients_where_a_discount_or_a_coefficient_is_zero(horizon: int | None) -> None:
    """Targets are linear in each γ_t and in each λ_t, so that a derivative is what 1 makes there less what 0 makes."""
    arrays, rng = sample(6, np.float64, (9,)), np.random.default_rng(6)
    weights = rng.normal(size=9)
    numbers = {"gamma": rng.uniform(size=9), "lam": rng.uniform(size=9)}
    numbers["gamma"][2] = numbers["lam"][4] = 0.0

    def total(numbers: Any, **options: Any) -> Any:
        trace = ot.VariableLambda(numbers["lam"], horizon=horizon)
        return (weights * ot.targets(trace, **{**arrays, "gamma": numbers["gamma"]}, **options)).sum()

    def with_one(name: str, t: int, value: float) -> Any:
        changed = numbers[name].copy()
        changed[t] = value
        return total({**numbers, name: changed})

    wanted = {n: np.array([with_one(n, t, 1.0) - with_one(n, t, 0.0) for t in range(9)]) for n in numbers}
    with jax.enable_x64(True):
        arrays = in_jax(arrays)
        found = jax.grad(lambda x: total(x, differentiable=True))(in_jax(numbers))
    for name in numbers:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-9, atol=1e-12)


def test_there_is_no_gradient_unless_asked_for() -> None:
    arrays = in_jax(sample(3))
    for trace in (ot.Retrace(0.9), ot.RBIS(0.9)):
        gradient = jax.grad(lambda r, t=trace: ot.targets(t, **{**arrays, "reward": r}).sum())(arrays["reward"])
        assert not gradient.any()


def test_gradients_in_float32_through_vmap_and_jit_in_any_order() -> None:
    arrays = in_jax(sample(4))
    gamma = arrays.pop("gamma")

    def loss(reward: Any, arrays: Any) -> Any:
        return (
            ot.targets(ot.Retrace(0.9), **{**arrays, "reward": reward}, gamma=gamma, differentiable=True) ** 2
        ).sum()

    wanted = jax.grad(loss)(arrays["reward"], arrays)
    ways = (
        jax.vmap(jax.grad(loss))(arrays["reward"], arrays),
        jax.vmap(jax.jit(jax.grad(jax.jit(loss))))(arrays["reward"], arrays),
        jax.grad(lambda r: jax.vmap(jax.jit(loss))(r, arrays).sum())(arrays["reward"]),
    )
    for found in ways:
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_vmap_over_numpy_arrays_of_float64() -> None:
    batch = {name: a for name, a in sample(4, np.float64).items() if name not in ("pair", "gamma")}
    found = jax.vmap(lambda x: ot.targets(ot.Retrace(0.9), **x, gamma=0.95))(batch)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, ot.targets(ot.Retrace(0.9), **batch, gamma=0.95), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "rule", [ot.Retrace(0.9), ot.RBIS(0.9), ot.TruncatedIS(1.0, 0.9), ot.Retrace(0.9, horizon=3), ot.PengQ(0.5)]
)
def test_vmap_over_no_rows(rule: Any) -> None:
    """As rlax's own tests do, which map over arrays [0, 8]."""
    batch = {n: a for n, a in in_jax(sample(4)).items() if n not in ("pair", "gamma")}

    def loss(reward: Any, arrays: Any) -> Any:
        targets = ot.targets(rule, **{**arrays, "reward": reward}, gamma=0.9, differentiable=True)
        return targets.sum(), targets

    for shape in ((0,), (0, 3)):  # one row in each call, and several
        none = {n: jnp.zeros((*shape, T), a.dtype) for n, a in batch.items()}
        gradient, targets = jax.vmap(jax.grad(loss, has_aux=True))(none["reward"], none)
        assert gradient.shape == targets.shape == (*shape, T)
        assert targets.dtype == none["reward"].dtype


def test_variable_lambda_inside_jit() -> None:
    batch, lam = sample(5), np.random.default_rng(5).uniform(size=(B, T))
    wanted = ot.targets(ot.VariableLambda(lam), **batch)
    call = jax.jit(lambda lam, arrays: ot.targets(ot.VariableLambda(lam), **arrays))
    np.testing.assert_allclose(call(jnp.asarray(lam, jnp.float32), in_jax(batch)), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trace", SOME, ids=name_of)
def test_coefficients(trace: ot.Trace) -> None:
    names = ("terminated", "truncated", "log_pi", "log_mu", "pair")
    row = {n: a[0] for n, a in sample(6).items() if n in names}
    wanted = ot.coefficients(trace, **row)
    np.testing.assert_allclose(ot.coefficients(trace, **in_jax(row)), wanted, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda row: ot.coefficients(trace, **row))(in_jax(row)), wanted, rtol=1e-5)


def test_v_trace_has_gradients_where_asked() -> None:
    batch = sample(7)
    batch["value"] = batch.pop("q")
    del batch["pair"]
    weights = np.random.default_rng(0).normal(size=(3, *batch["reward"].shape))

    def loss(value: Any, differentiable: bool = True) -> Any:
        made = ot.state_targets(**(in_jax(batch) | {"value": value}), lam=0.9, differentiable=differentiable)
        return sum(jnp.sum(w * a) for w, a in zip(weights, made, strict=True))

    def moved(by: np.ndarray) -> Any:
        exact = {n: a.astype(float) if np.ndim(a) and a.dtype.kind == "f" else a for n, a in batch.items()}
        made = ot.state_targets(**(exact | {"value": exact["value"] + by}), lam=0.9)
        return sum(np.sum(w * a) for w, a in zip(weights, made, strict=True))

    value = jnp.asarray(batch["value"], jnp.float32)
    wanted = np.zeros(value.shape)
    for place in np.ndindex(value.shape):  # the result is linear in the values
        one = np.zeros(value.shape)
        one[place] = 1.0
        wanted[place] = moved(one) - moved(-one)
    np.testing.assert_allclose(jax.grad(loss)(value), wanted / 2, rtol=1e-4, atol=1e-5)
    assert not jax.grad(loss)(value, differentiable=False).any()


def test_bad_input_is_named() -> None:
    trace, arrays = ot.Retrace(0.9), in_jax(sample())
    with pytest.raises(ValueError, match="nothing is broadcast"):
        jax.jit(lambda a: ot.targets(trace, **{**arrays, "q": a}))(arrays["q"][:1])
    with pytest.raises(TypeError, match="convert it"):
        ot.targets(trace, **{**arrays, "q": arrays["q"].astype(jnp.int32)})
    with pytest.raises(TypeError, match="boolean"):
        ot.targets(trace, **{**arrays, "terminated": arrays["reward"]})
    with pytest.raises(ValueError, match=r"reward must be finite.*\[1, 2\]"):
        ot.targets(trace, **{**arrays, "reward": arrays["reward"].at[1, 2].set(jnp.nan)})
    with pytest.raises(ValueError, match="check=True"):
        jax.jit(lambda a: ot.targets(trace, **a, gamma=0.9, check=True))(
            {n: a for n, a in arrays.items() if n != "gamma"}
        )
    with pytest.raises(ValueError, match="gamma must lie"):
        ot.targets(trace, **{**arrays, "gamma": 1.5}, check=False)
    with pytest.raises(TypeError, match="HistoryTrace"):
        ot.targets(CUSTOM[3], **arrays)
