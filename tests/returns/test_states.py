"""State values with any trace: each backend is the definition, and the definition is what the literature says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import offtrace as ot
from helpers import TRACES, name_of, rows, trajectories
from offtrace.returns import by_definition

FIELDS = ("target", "advantage", "correction")


def quick(examples: int) -> Any:
    return settings(
        max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )


def on_states(arrays: dict[str, Any], trace: Any) -> dict[str, Any]:
    """The arrays of `targets` as those of `state_targets`; π is greedy for a rule that needs a greedy one."""
    made = {"value" if n == "q" else n: a for n, a in arrays.items() if n != "greedy"}
    if trace.needs_greedy:
        made["log_pi"] = np.where(arrays["greedy"], 0.0, -np.inf).astype(made["log_pi"].dtype)
        made["log_mu"] = np.minimum(made["log_mu"], 0.0)
    return made


def by_rows(trace: Any, arrays: dict[str, Any]) -> by_definition.OnStates:
    """The oracle's results in the shape of the batch."""
    found = [by_definition.state_targets(trace, **row) for row in rows(arrays)]
    return by_definition.OnStates(
        *(np.array(part).reshape(arrays["reward"].shape) for part in zip(*found, strict=True))
    )


def assert_right(found: Any, trace: Any, arrays: dict[str, Any]) -> None:
    wanted, dtype = by_rows(trace, arrays), arrays["reward"].dtype
    eps = 2e-12 if dtype == np.float64 else 2e-6
    logs = arrays["log_pi"].astype(float) - arrays["log_mu"]
    weight = trace.delta_ratio(np, np.exp(np.nan_to_num(logs, nan=0.0, neginf=-800.0)))
    size = np.nan_to_num(np.abs(arrays["value"])) + wanted.scale
    ahead = np.concatenate([size[..., 1:], np.zeros_like(size[..., :1])], -1)
    near = np.nan_to_num(np.abs(arrays["reward"])) + np.nan_to_num(np.abs(arrays["next_value"]))
    with np.errstate(over="ignore", invalid="ignore"):
        scales = size, weight * (size + ahead + near), wanted.scale
    for name, scale in zip(FIELDS, scales, strict=True):
        made = np.asarray(getattr(found, name))
        assert made.dtype == dtype, name
        assert made.shape == arrays["reward"].shape, name
        with np.errstate(over="ignore", invalid="ignore"):
            right = getattr(wanted, name).astype(dtype).astype(float)
            least = float(np.finfo(dtype).smallest_subnormal)
            close = (np.abs(made.astype(float) - right) <= eps * scale + least) | (made == right)
        assert close.all(), f"{name_of(trace)}: {name} is {made[~close][0]}, should be {right[~close][0]}"


@quick(8)
@given(data=st.data())
def test_numpy_is_the_definition(data: Any) -> None:
    drawn = data.draw(trajectories(data.draw(st.sampled_from([np.float32, np.float64])), max_steps=8))
    for trace in TRACES:
        arrays = on_states(drawn, trace)
        assert_right(ot.state_targets(trace, **arrays), trace, arrays)


SOME = [ot.VTrace(0.9, 1.2, 1.5), ot.RBIS(0.9), ot.TruncatedIS(1.5, 0.9), ot.AlphaRetrace(0.4, 0.9), ot.replacing(0.9)]
SHAPE = (3, 7)


def sample(dtype: Any = np.float64, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> dict[str, Any]:
    """A batch with ends and padding inside its rows."""
    rng = np.random.default_rng(seed)
    values = dict(zip(("reward", "value", "next_value"), rng.normal(size=(3, *shape)), strict=True))
    values |= dict(zip(("log_pi", "log_mu"), np.log(rng.uniform(0.1, 1.0, (2, *shape))), strict=True))
    valid = rng.random(shape) < 0.9
    for array in values.values():
        array[~valid] = np.nan
    terminated, truncated = rng.random((2, *shape)) < 0.12
    flags = {"terminated": terminated, "truncated": truncated, "valid": valid, "pair": rng.integers(0, 3, shape)}
    return {n: a.astype(dtype) for n, a in values.items()} | flags | {"gamma": 0.95}


def in_jax(arrays: dict[str, Any]) -> dict[str, Any]:
    jnp = pytest.importorskip("jax.numpy")
    return {n: jnp.asarray(a) if isinstance(a, np.ndarray) else a for n, a in arrays.items()}


def in_torch(arrays: dict[str, Any]) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    return {n: torch.from_numpy(np.array(a)) if isinstance(a, np.ndarray) else a for n, a in arrays.items()}


def by_step(arrays: dict[str, Any]) -> Any:
    """A λ for each step, NaN at padding."""
    lam = np.random.default_rng(1).random(arrays["reward"].shape)
    return np.where(arrays["valid"], lam, np.nan)


def test_a_lambda_for_each_step_and_layouts() -> None:
    arrays = sample()
    lam = by_step(arrays)
    rule = ot.VariableLambda(lam)
    found = ot.state_targets(rule, **arrays)
    for b, row in enumerate(rows(arrays)):
        wanted = by_definition.state_targets(ot.VariableLambda(lam[b]), **row)
        for name in FIELDS:
            np.testing.assert_allclose(getattr(found, name)[b], getattr(wanted, name), rtol=1e-12, atol=1e-12)
    turned = {n: a.T if isinstance(a, np.ndarray) else a for n, a in arrays.items()}
    for kind in (dict, in_torch, in_jax):
        again = ot.state_targets(ot.VariableLambda(lam.T), **kind(turned), time_major=True)
        np.testing.assert_allclose(np.asarray(again.advantage).T, found.advantage, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("trace", TRACES, ids=name_of)
def test_torch_is_the_definition(trace: Any) -> None:
    torch = pytest.importorskip("torch")
    from offtrace.returns.torch import tensor_ops
    from offtrace.returns.torch.backend import BACKEND
    from offtrace.trajectory import agree

    arrays = greedy(sample(), trace)
    on_host = ot.state_targets(trace, **in_torch(arrays))
    for found, wanted in zip(on_host, ot.state_targets(trace, **arrays), strict=True):
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(found, wanted)
    made = tensor_ops.in_tensors(trace, agree(BACKEND, in_torch(arrays)), None)
    assert_right(ot.StateTargets(*made), trace, arrays)


def greedy(arrays: dict[str, Any], trace: Any) -> dict[str, Any]:
    log_pi = arrays["log_pi"]
    return arrays | {"log_pi": np.where(log_pi > -1.0, 0.0, -np.inf) if trace.needs_greedy else log_pi}


@pytest.mark.parametrize("trace", SOME, ids=name_of)
def test_triton_is_the_definition(trace: Any) -> None:
    """By the kernels for GPUs, run by Triton's interpreter."""
    import triton_interpreter  # noqa: F401
    from offtrace.returns.torch import backend
    from offtrace.trajectory import agree

    arrays = sample(np.float32)
    with np.errstate(all="ignore"):  # what leaves the range is thrown away, and walked
        made = backend.by_triton(trace, agree(backend.BACKEND, in_torch(arrays)), None)
    assert_right(ot.StateTargets(*made), trace, arrays)


@pytest.mark.parametrize("trace", SOME, ids=name_of)
def test_jax_is_the_definition(trace: Any) -> None:
    jax = pytest.importorskip("jax")
    arrays = sample(np.float32)
    call: Any = jax.jit(lambda trace, arrays: ot.state_targets(trace, **arrays))
    assert_right(ot.state_targets(trace, **in_jax(arrays)), trace, arrays)  # first: it makes traces pytrees
    assert_right(call(trace, in_jax(arrays)), trace, arrays)


@pytest.mark.parametrize("trace", [ot.TreeBackup(0.9), ot.TreeBackup(0.9, horizon=2), ot.RBIS(0.9)], ids=name_of)
def test_gradients_are_those_of_targets(trace: ot.Trace) -> None:
    """A per-decision rule has all of them; with a cap or a horizon, coefficients and ratios are constants."""
    torch = pytest.importorskip("torch")
    arrays = in_torch({n: a for n, a in sample(shape=(2, 4)).items() if n != "valid"})
    everywhere = trace.per_decision and trace.horizon is None
    names = ("reward", "value", "next_value", *(("log_pi", "log_mu") if everywhere else ()))
    given = tuple(arrays[name].nan_to_num(-1.0).requires_grad_() for name in names)
    arrays = {n: a.nan_to_num(-1.0) if isinstance(a, torch.Tensor) else a for n, a in arrays.items()}

    def call(*given: Any) -> Any:
        return tuple(ot.state_targets(trace, **(arrays | dict(zip(names, given, strict=True))), differentiable=True))

    assert torch.autograd.gradcheck(call, given)
    if not everywhere:
        logs = {n: arrays[n].requires_grad_() for n in ("log_pi", "log_mu")}
        assert not any(made.requires_grad for made in ot.state_targets(trace, **(arrays | logs), differentiable=True))


def test_on_policy_both_advantages_are_gae() -> None:
    """With next_value[k] = value[k+1] inside an episode, as GAE (Schulman et al. 2016) has it."""
    arrays = {n: a for n, a in sample(shape=(2, 9)).items() if n not in ("valid", "pair")}
    arrays |= {n: np.nan_to_num(a) for n, a in arrays.items() if n in ("reward", "value", "next_value", "log_pi")}
    ends = arrays["terminated"] | arrays["truncated"]
    arrays["next_value"][:, :-1] = np.where(ends[:, :-1], arrays["next_value"][:, :-1], arrays["value"][:, 1:])
    arrays["log_mu"] = arrays["log_pi"]
    γ, λ, wanted = 0.95, 0.8, np.zeros((2, 10))
    δ = arrays["reward"] + γ * np.where(arrays["terminated"], 0.0, arrays["next_value"]) - arrays["value"]
    for t in reversed(range(9)):
        wanted[:, t] = δ[:, t] + γ * λ * np.where(ends[:, t], 0.0, wanted[:, t + 1])
    rules = ot.ImportanceSampling(λ), ot.QLambda(λ), ot.Retrace(λ), ot.VTrace(λ), ot.NonMarkovRetrace(λ), ot.RBIS(λ)
    for trace in (*rules, ot.TruncatedIS(lam=λ)):
        found = ot.state_targets(trace, **arrays)
        np.testing.assert_allclose(found.correction, wanted[:, :9], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found.advantage, wanted[:, :9], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [dict, in_torch, in_jax])
def test_holes_and_rows_apart(kind: Any) -> None:
    """A skipped step is not there; episodes that stand in one row are the same in rows of their own."""
    arrays = {n: a for n, a in sample(np.float32, shape=(1, 8)).items() if n != "valid"}
    arrays |= {
        n: np.nan_to_num(a) for n, a in arrays.items() if n in ("reward", "value", "next_value", "log_pi", "log_mu")
    }
    skip = np.array([[0, 1, 0, 0, 1, 1, 0, 0]], bool)
    arrays["terminated"], arrays["truncated"] = np.zeros((1, 8), bool), np.arange(8)[None] == 3
    apart = [np.flatnonzero(~skip[0] & part) for part in (np.arange(8) <= 3, np.arange(8) > 3)]
    for trace in SOME:
        found = ot.state_targets(trace, **kind(arrays | {"skip": skip}))
        for steps in apart:
            row = {n: a[:, steps] if isinstance(a, np.ndarray) else a for n, a in arrays.items()}
            alone = ot.state_targets(trace, **row)
            for name in FIELDS:
                made = np.asarray(getattr(found, name))
                np.testing.assert_allclose(made[:, steps], getattr(alone, name), rtol=1e-5, atol=1e-6)
                assert not made[skip].any()


def test_an_old_call_is_v_trace() -> None:
    arrays: Any = {n: a for n, a in sample().items() if n != "pair"}
    options: Any = {"lam": 0.8, "rho_bar": 0.9, "c_bar": 0.7}
    for found, wanted in zip(
        ot.state_targets(**arrays, **options), ot.state_targets(ot.VTrace(**options), **arrays), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)
    assert ot.trace("impala") == ot.VTrace()
    assert ot.trace("abtd", zeta=0.2) == ot.ABQ(zeta=0.2)


@pytest.mark.parametrize(
    ("trace", "changed", "message"),
    [
        (ot.RBIS(), {"lam": 0.9}, "lam is of V-trace only"),
        (ot.PengQ(), {}, "offtrace.targets, without q"),
        ("retrace", {}, "offtrace.trace"),
        (ot.OneStep(), {"log_mu": None}, "log_mu is missing.*carries π/μ.*on-policy"),
        (ot.RBIS(), {"value": None}, "value is missing"),
        (ot.RBIS(), {"value": np.full(SHAPE, np.inf)}, "value must be finite"),
        (ot.TreeBackup(), {"log_pi": np.full(SHAPE, 0.5)}, "log_pi is above 0"),
        (ot.QLambda(), {"log_mu": np.full(SHAPE, -np.inf)}, "log_mu is -inf"),
        (ot.WatkinsQ(), {}, "soft policy"),
        (ot.replacing(), {"pair": None}, "pair is missing"),
        (ot.HistoryTrace(lambda history: history.rho.prod()), {}, "is not a number: does it list all that it uses"),
        (ot.VariableLambda(np.ones(3)), {}, "holds an array of shape"),
    ],
)
def test_bad_input(trace: Any, changed: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ot.state_targets(trace, **(sample() | changed))


def steps_of(arrays: dict[str, Any]) -> list[dict[str, Any]]:
    names = [n for n, a in arrays.items() if isinstance(a, np.ndarray)]
    rest = {n: a for n, a in arrays.items() if n not in names}
    return [{n: arrays[n][t] for n in names} | rest for t in range(len(arrays["reward"]))]


@pytest.mark.parametrize("trace", [*TRACES, "by step"], ids=str)
def test_a_stream_sums_to_the_corrections(trace: Any) -> None:
    """The backward view is the forward view: with a place for each step, the updates sum to Δ."""
    T = 14
    trace = ot.VariableLambda(np.random.default_rng(1).random(T)) if trace == "by step" else trace
    arrays = greedy({n: a for n, a in sample(shape=(1, T), seed=3).items() if n != "valid"}, trace)
    row = {n: np.nan_to_num(a[0], neginf=-np.inf) if isinstance(a, np.ndarray) else a for n, a in arrays.items()}
    row["log_mu"] = np.where(row["log_mu"] == 0.0, -0.5, row["log_mu"])
    stream = ot.Stream(trace, T, values="state")
    total = sum(stream.step(t, **step) for t, step in enumerate(steps_of(row)))
    np.testing.assert_allclose(total, ot.state_targets(trace, **row).correction, rtol=1e-11, atol=1e-12)


REFERENCE = dict(np.load(Path(__file__).parents[1] / "reference" / "offpolicy_td.npz"))


@pytest.mark.parametrize("lam", [0.0, 0.9])
@pytest.mark.parametrize("name", ["TD", "TB", "Vtrace", "ABTD"])
def test_streams_learn_what_independent_code_learns(name: str, lam: float) -> None:
    """Weights step by step: linear features, α = 0.02; V-trace without ρ̄; ABTD with ψ0 = 1 and ψ_max = 2."""
    f = REFERENCE
    trace = {
        "TD": ot.ImportanceSampling(lam),
        "TB": ot.TreeBackup(lam),
        "Vtrace": ot.VTrace(lam, rho_bar=np.inf),
        "ABTD": ot.ABQ(lam, psi0=1.0, psi_max=2.0),
    }[name]
    X, s, a, after = f["X"], f["state"], f["action"], f["next_state"]
    with np.errstate(divide="ignore"):
        log_pi, log_mu = np.log(f["pi"])[s, a], np.log(f["mu"])[s, a]
    w, found = np.zeros(X.shape[1]), []
    stream = ot.Stream(trace, X.shape[1], values="state")
    for t in range(int(f["marks"][-1])):
        w = w + 0.02 * stream.step(
            X[s[t]], reward=f["reward"][t], value=X[s[t]] @ w, next_value=X[after[t]] @ w, terminated=f["terminated"][t],
            truncated=False, gamma=f["gamma"], log_pi=log_pi[t], log_mu=log_mu[t],
        )  # fmt: skip
        if t + 1 in f["marks"]:
            found.append(w)
    np.testing.assert_allclose(found, f[f"w:{name}|alpha=0.02|lam={lam}"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("values", "changed", "message"),
    [
        ("states", {}, 'values must be "action" or "state"'),
        ("action", {}, "value has no part in a stream of action values: give q"),
        ("state", {"value": None, "q": 1.0}, "q has no part in a stream of state values: give value"),
        ("state", {"greedy": True}, "greedy has no part"),
        ("state", {"value": None}, "value must be one number"),
        ("state", {"log_mu": None}, "log_mu is missing"),
    ],
)
def test_bad_input_of_a_stream(values: Any, changed: dict[str, Any], message: str) -> None:
    step = {"reward": 1.0, "value": 0.0, "next_value": 0.0, "terminated": False, "truncated": False, "gamma": 0.9}
    with pytest.raises((TypeError, ValueError), match=message):
        ot.Stream(ot.TreeBackup(), 3, values=values).step(0, **(step | {"log_pi": -1.0, "log_mu": -1.0} | changed))
