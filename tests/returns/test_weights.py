"""Weights of decisions: the definition on every kind of array, the identities, what must hold on average, and bad input."""

from __future__ import annotations

import math
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import offtrace as ot
from decision_batches import batches, by_rows
from helpers import BUILT_IN, KINDS, name_of
from offtrace.returns import by_definition
from offtrace.returns.numpy import weights as numpy_weights
from offtrace.returns.weights.decisions import LEVELS

REFERENCE = Path(__file__).parents[1] / "reference" / "rollout_weights.npz"
LIMITS = HealthCheck.too_slow, HealthCheck.data_too_large
IS = ot.ImportanceSampling()
OF_RATIOS = [
    IS,
    ot.NonMarkovRetrace(),
    ot.RBIS(),
    ot.TruncatedIS(bound=2.0),
    ot.HistoryBounded(bound=3.0),
    ot.Retrace(),
]


def normalized_weights(
    rows: list[Any], level: str, masks: list[Any], segments: list[Any], groups: Any
) -> list[np.ndarray]:
    """Weights over their mean in the group, which is one over decisions, or over rows where a row has one weight."""
    found = []
    for row, group in zip(rows, groups, strict=True):
        counted: list[float] = []
        for other, mask, segment, theirs in zip(rows, masks, segments, groups, strict=True):
            if theirs != group:
                continue
            of_segments = [
                [w for w, m, s in zip(other, mask, segment, strict=True) if m and s == n] for n in set(segment)
            ]
            for weights in of_segments:
                counted += weights[:1] if level in ("sequence", "geometric") else weights
        mean = math.fsum(counted) / len(counted)
        found.append(np.array(row) / mean if mean else np.array(row))
    return found


@contextmanager
def by_tensors() -> Iterator[None]:
    """Tensors on the CPU are computed with as those on a GPU are, by PyTorch's operations, and no value is looked at."""
    with pytest.MonkeyPatch.context() as patch:
        backend = pytest.importorskip("offtrace.returns.torch.backend").TorchBackend
        patch.setattr(backend, "_by_host", lambda *_: None)
        yield


SOME = [ot.NonMarkovRetrace(lam=0.9), ot.TruncatedIS(bound=2.5, lam=0.9), ot.TruncatedIS(bound=(0.5, 2.0), lam=0.8)]
SOME += [ot.RBIS(lam=0.0), ot.NonMarkovRetrace(lam=0.9, horizon=4), IS, ot.HistoryBounded(0.0), ot.WatkinsQ(0.7)]
"""Between them they have both kinds of cap, bounds by lag, a horizon, and what is 0."""


@settings(max_examples=80, deadline=None, suppress_health_check=LIMITS)
@given(batch=batches(), trace=st.sampled_from(SOME) | st.sampled_from(BUILT_IN), block=st.sampled_from([1, 10**6]))
def test_weights_are_the_definition(batch: dict[str, Any], trace: ot.Trace, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_weights, "BLOCK", block)
        for level in LEVELS:
            found = ot.weights(trace, **batch, level=level)
            np.testing.assert_allclose(found, by_rows(trace, level, batch), rtol=1e-12, atol=0, err_msg=level)


def test_a_rule_with_a_number_for_each_step() -> None:
    rng = np.random.default_rng(0)
    log_pi, log_mu, lam = -rng.random((2, 5)), -rng.random((2, 5)), rng.random((2, 5))
    for level in LEVELS:
        found = ot.weights(ot.VariableLambda(lam), log_pi=log_pi, log_mu=log_mu, level=level)
        for b in range(2):
            wanted = by_definition.weights(ot.VariableLambda(lam[b]), level=level, log_pi=log_pi[b], log_mu=log_mu[b])
            np.testing.assert_allclose(found[b], wanted, rtol=1e-12)


def arrays(kind: str, batch: dict[str, Any]) -> dict[str, Any]:
    return {name: KINDS[kind](a) for name, a in batch.items()}


@settings(max_examples=80, deadline=None, suppress_health_check=LIMITS)
@given(batch=batches(), trace=st.sampled_from(SOME))
def test_tensors(batch: dict[str, Any], trace: ot.Trace) -> None:
    torch = pytest.importorskip("torch")
    given = arrays("torch", batch)
    for level in LEVELS:
        wanted = by_rows(trace, level, batch)
        for way in (nullcontext, by_tensors):
            with way():
                found = ot.weights(trace, **given, level=level)
            assert found.dtype == torch.float64
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-10, atol=0, err_msg=level)


@pytest.mark.parametrize("trace", SOME[:3], ids=name_of)
def test_jax_arrays(trace: ot.Trace) -> None:
    jax = pytest.importorskip("jax")

    @jax.jit
    def all_levels(taken: dict[str, Any]) -> list[Any]:
        return [ot.weights(trace, **taken, level=level) for level in LEVELS]

    rng = np.random.default_rng(0)
    for scale in (1.0, 300.0):
        batch: dict[str, Any] = {"log_pi": -rng.random((3, 6)) * scale, "log_mu": -rng.random((3, 6)) * scale}
        batch |= {"mask": rng.random((3, 6)) < 0.7, "segment": np.cumsum(rng.random((3, 6)) < 0.3, axis=1)}
        batch["log_pi"][0, 2] = -np.inf
        for name in ("log_pi", "log_mu"):
            batch[name] = np.where(batch["mask"], batch[name], np.nan).astype(np.float32)
        taken = arrays("jax", batch)
        with np.errstate(over="ignore"):
            for level, found in zip(LEVELS, all_levels(taken), strict=True):
                wanted = by_rows(trace, level, batch).astype(np.float32)
                np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-38)
                np.testing.assert_allclose(ot.weights(trace, **taken, level=level), wanted, rtol=1e-6, atol=1e-38)


def test_compiled_and_mapped_by_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    log_pi, log_mu = torch.from_numpy(-rng.random((2, 3, 5))), torch.from_numpy(-rng.random((2, 3, 5)))
    wanted = ot.weights(SOME[0], log_pi=log_pi.reshape(6, 5), log_mu=log_mu.reshape(6, 5)).reshape(2, 3, 5)
    found = torch.vmap(lambda p, m: ot.weights(SOME[0], log_pi=p, log_mu=m))(log_pi, log_mu)
    torch.testing.assert_close(found, wanted)
    nothing = torch.full((2, 3), torch.nan)
    assert ot.weights(IS, log_pi=nothing, log_mu=nothing, check=False).isnan().all()
    once = torch.compile(lambda p, m: ot.weights(SOME[0], log_pi=p, log_mu=m), backend="eager", fullgraph=True)
    torch.testing.assert_close(once(log_pi[0], log_mu[0]), wanted[0])
    assert not ot.weights(IS, log_pi=log_pi[0].requires_grad_(), log_mu=log_mu[0]).requires_grad


@settings(max_examples=40, deadline=None, suppress_health_check=LIMITS)
@given(batch=batches(), trace=st.sampled_from(OF_RATIOS))
def test_levels_agree_with_each_other(batch: dict[str, Any], trace: ot.Trace) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        w = {level: ot.weights(trace, **batch, level=level) for level in LEVELS}
    mask = batch.get("mask", np.ones(w["token"].shape)) != 0
    segment = batch.get("segment", np.zeros(mask.shape, int))
    for b, t in np.argwhere(mask):
        row = mask[b] & (segment[b] == segment[b, t])
        last = np.flatnonzero(row)[-1]
        assert w["sequence"][b, t] == w["prefix"][b, last]
        if row.sum() == 1:
            assert w["token"][b, t] == w["prefix"][b, t] == w["sequence"][b, t]
            assert w["suffix"][b, t] == 1
        if 1e-290 < w["sequence"][b, t] < 1e290:
            assert w["geometric"][b, t] == pytest.approx(w["sequence"][b, t] ** (1 / row.sum()), rel=1e-12)
    each = {name: batch[name].reshape(-1, 1) for name in batch if name != "segment"}
    np.testing.assert_array_equal(ot.weights(trace, **each).reshape(mask.shape), w["token"])
    if trace == IS:
        fits = mask & (w["prefix"] > 1e-150) & (w["suffix"] > 1e-150) & (w["prefix"] < 1e150) & (w["suffix"] < 1e150)
        np.testing.assert_allclose(w["prefix"][fits] * w["suffix"][fits], w["sequence"][fits], rtol=1e-12)


@settings(max_examples=30, deadline=None, suppress_health_check=LIMITS)
@given(batch=batches(rows=1), trace=st.sampled_from(BUILT_IN), level=st.sampled_from(LEVELS))
def test_packed_is_apart_and_a_hole_is_not_there(batch: dict[str, Any], trace: ot.Trace, level: str) -> None:
    found = ot.weights(trace, **batch, level=level)[0]
    mask = batch.get("mask", np.ones(found.shape)).reshape(-1) != 0
    segment = batch.get("segment", np.zeros((1, len(mask)), int))[0]
    for name in np.unique(segment[mask]):
        of = mask & (segment == name)
        alone = {n: batch[n][0, of] for n in ("log_pi", "log_mu", "greedy")}
        np.testing.assert_array_equal(found[of], ot.weights(trace, **alone, level=level))
    assert not found[~mask].any()


@pytest.mark.parametrize("level", LEVELS)
def test_without_another_policy_every_weight_is_one(level: str) -> None:
    log = -np.random.default_rng(0).random((3, 9))
    for trace in OF_RATIOS:
        np.testing.assert_array_equal(ot.weights(trace, log_pi=log, log_mu=log, level=level), 1.0)


@pytest.fixture
def all_rows() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Every row of three tokens from three, whose policies depend on all tokens before; and its probability under μ."""
    rng = np.random.default_rng(1)
    tables = {
        n: {h: rng.dirichlet(np.full(3, 0.7)) for t in range(3) for h in product(range(3), repeat=t)}
        for n in ("pi", "mu")
    }
    rows = list(product(range(3), repeat=3))
    logs = {f"log_{n}": np.log([[table[r[:t]][r[t]] for t in range(3)] for r in rows]) for n, table in tables.items()}
    return np.exp(logs["log_mu"].sum(axis=1)), logs


def test_what_holds_on_average_by_enumeration(all_rows: Any) -> None:
    probability, logs = all_rows
    for level in ("token", "prefix", "suffix", "sequence"):
        np.testing.assert_allclose(probability @ ot.weights(IS, **logs, level=level), 1.0, rtol=1e-12)
    for trace in OF_RATIOS[1:]:
        assert (probability @ ot.weights(trace, **logs) <= 1 + 1e-12).all()
    assert (probability @ ot.weights(IS, **logs, upper=1.5) <= 1).all()
    assert abs(probability @ ot.weights(ot.FlattenedIS(0.5), **logs) - 1).max() > 0.01  # it is no change of measure


def test_intervals() -> None:
    log = np.log([[0.1, 0.5, 1.0, 3.0]])
    taken: dict[str, Any] = {"log_pi": log, "log_mu": np.zeros((1, 4)), "level": "token"}
    np.testing.assert_allclose(ot.weights(IS, **taken, upper=2.0), [[0.1, 0.5, 1.0, 2.0]])
    np.testing.assert_allclose(ot.weights(IS, **taken, lower=0.5, upper=2.0), [[0.5, 0.5, 1.0, 2.0]])
    np.testing.assert_allclose(ot.weights(IS, **taken, lower=0.5, upper=2.0, outside="mask"), [[0.0, 0.5, 1.0, 0.0]])
    hole = np.array([[1, 0, 1, 1]])
    np.testing.assert_allclose(ot.weights(IS, **taken, mask=hole, lower=0.5, upper=2.0), [[0.5, 0.0, 1.0, 2.0]])


@pytest.mark.parametrize("level", ["prefix", "geometric"])
def test_normalised(level: str) -> None:
    rng = np.random.default_rng(0)
    shape, group = (6, 5), np.array([4, 9, 4, 9, 9, 4])
    batch: dict[str, Any] = {"log_pi": -rng.random(shape), "log_mu": -rng.random(shape)}
    batch["mask"] = rng.random(shape) < 0.7
    batch["segment"] = np.cumsum(rng.random(shape) < 0.3, axis=1)
    rows = list(by_rows(ot.NonMarkovRetrace(), level, batch))
    for normalize, ids in (("batch", np.zeros(6)), ("group", group)):
        wanted = normalized_weights(rows, level, list(batch["mask"]), list(batch["segment"]), ids)
        options: dict[str, Any] = {"level": level, "normalize": normalize}
        more = {"group": group} if normalize == "group" else {}
        for kind in KINDS:
            for check in (None, False):
                with by_tensors() if check is False else nullcontext():
                    found = ot.weights(ot.NonMarkovRetrace(), **arrays(kind, batch | more), **options, check=check)
                tolerance = 1e-6 if kind == "jax" else 1e-12
                np.testing.assert_allclose(found, wanted, rtol=tolerance, err_msg=f"{kind}, check={check}")
    nothing = np.full((2, 3), -np.inf), np.zeros((2, 3))
    np.testing.assert_array_equal(ot.weights(IS, log_pi=nothing[0], log_mu=nothing[1], normalize="batch"), 0)


@pytest.mark.parametrize("level", ["token", "prefix", "suffix"])
def test_a_group_of_one_row_is_normalised_over_its_decisions(level: str) -> None:
    rng = np.random.default_rng(1)
    batch: dict[str, Any] = {"log_pi": -rng.random((3, 4)), "log_mu": -rng.random((3, 4)), "group": np.array([0, 0, 7])}
    plain = ot.weights(IS, log_pi=batch["log_pi"], log_mu=batch["log_mu"], level=level)
    wanted = np.concatenate([plain[:2] / plain[:2].mean(), plain[2:] / plain[2].mean()])
    for kind in KINDS:
        for check in (None, False):
            with by_tensors() if check is False else nullcontext():
                found = ot.weights(IS, **arrays(kind, batch), level=level, normalize="group", check=check)
            np.testing.assert_allclose(found, wanted, rtol=1e-6 if kind == "jax" else 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_without_a_decision_every_weight_is_0(kind: str, level: str) -> None:
    batch: dict[str, Any] = {"log_pi": np.full((2, 3), np.nan), "log_mu": np.zeros((2, 3)), "mask": np.zeros((2, 3))}
    group = np.zeros(2, int)
    for check, options in product((None, False), ({}, {"normalize": "batch"}, {"normalize": "group", "group": group})):
        with by_tensors() if check is False else nullcontext():
            given = arrays(kind, batch | ({"group": group} if "group" in options else {}))
            found = ot.weights(IS, **given, level=level, normalize=options.get("normalize"), check=check)
        np.testing.assert_array_equal(found, 0.0)


def cast(kind: str, array: np.ndarray, dtype: str) -> Any:
    """The array as one of a kind and a dtype."""
    made = KINDS[kind](array)
    return made.to(getattr(pytest.importorskip("torch"), dtype)) if kind == "torch" else made.astype(dtype)


def exactly(array: Any) -> np.ndarray:
    """The numbers of an array of any kind."""
    return np.asarray(array.double().numpy() if hasattr(array, "double") else array, np.float64)


WIDER = {("float16", "float16"): "float16", ("float16", "float32"): "float32", ("float32", "float64"): "float64"}
WIDER_WITH_BFLOAT16 = {("bfloat16", "float32"): "float32", ("bfloat16", "float16"): "float32"}
WIDER_WITH_BFLOAT16 |= {("bfloat16", "bfloat16"): "bfloat16"}


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_beside_each_other(kind: str) -> None:
    logs = -np.random.default_rng(0).random((2, 2, 8))
    for (one, two), result in (WIDER if kind == "numpy" else WIDER_WITH_BFLOAT16).items():
        log_pi, log_mu = cast(kind, logs[0], one), cast(kind, logs[1], two)
        wanted = ot.weights(IS, log_pi=exactly(log_pi), log_mu=exactly(log_mu))
        for check in (None, False):
            with by_tensors() if check is False else nullcontext():
                found = ot.weights(IS, log_pi=log_pi, log_mu=log_mu, check=check)
            assert str(found.dtype).removeprefix("torch.") == result
            tolerance = {"float64": 1e-14, "float32": 1e-7}.get(result, 5e-3)
            np.testing.assert_allclose(exactly(found), wanted, rtol=tolerance)


def test_nothing_is_clamped() -> None:
    up = np.array([[30.0] * 40 + [-30.0] * 40])
    none = np.zeros_like(up)
    prefix = ot.weights(IS, log_pi=up, log_mu=none)[0]
    assert prefix[30] == np.inf
    assert prefix[0] == pytest.approx(np.exp(30.0), rel=1e-14)
    assert prefix[-1] == pytest.approx(1.0, rel=1e-12)
    assert ot.weights(IS, log_pi=up, log_mu=none, level="geometric")[0, 0] == pytest.approx(1.0, rel=1e-12)
    assert ot.weights(IS, log_pi=-up[:, :40], log_mu=none[:, :40], level="geometric")[0, 0] == pytest.approx(
        np.exp(-30)
    )
    half = ot.weights(IS, log_pi=np.full((1, 1), 12.0, np.float16), log_mu=np.zeros((1, 1), np.float16))
    assert half[0, 0] == np.inf  # e¹² is above the largest float16


def test_reference() -> None:
    """Weights of independent code. It divides by n + 1e-8 for a mean over n, which is undone here."""
    stored = np.load(REFERENCE)
    taken: dict[str, Any] = {"log_pi": stored["log_pi"], "log_mu": stored["log_mu"], "mask": stored["valid"]}
    n = stored["valid"].sum(axis=1)
    for level, bound in product(("token", "sequence"), (1.0, 2.0, 5.0)):
        taken["level"] = level
        once = ot.weights(ot.TruncatedIS(bound=bound), **taken)
        np.testing.assert_array_equal(once, ot.weights(IS, **taken, upper=bound))
        np.testing.assert_allclose(once, stored[f"weight:{level}:{bound}"], rtol=1e-12, atol=0)
        found = ot.weights(IS, **taken, upper=bound, normalize="batch")
        of_rows = once.max(axis=1)  # at the level of sequences
        small = n.sum() / (n.sum() + 1e-8) if level == "token" else (of_rows * n / (n + 1e-8)).sum() / of_rows.sum()
        np.testing.assert_allclose(found / small, stored[f"weight_normalised:{level}:{bound}"], rtol=1e-12, atol=0)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"level": "prefixes"}, r"level = 'prefixes' is not known; did you mean 'prefix'"),
    ({"outside": "clip"}, r"outside = 'clip' is not known.*truncate, mask"),
    ({"normalize": "rows"}, r"normalize = 'rows' is not known.*batch, group"),
    ({"mask": np.full((2, 3), 0.5)}, r"mask must hold 0 or 1, got 0\.5 at index \[0, 0\]"),
    ({"mask": np.ones((3, 2))}, r"mask has shape \(3, 2\) but log_pi has shape \(2, 3\).*nothing is broadcast"),
    (
        {"segment": np.array([[1, 2, 1], [0, 0, 0]])},
        r"segment falls along a row: 2 is followed by 1 in row 0 at step 2",
    ),
    ({"segment": np.zeros((2, 3))}, r"segment must hold integer ids, got float64.*segment\.astype\(np\.int64\)"),
    ({"lower": 2.0, "upper": 1.0}, r"lower = 2 is above upper = 1"),
    ({"lower": -1.0}, r"lower must lie in \[0, inf\]"),
    ({"lower": np.array([0.5, 0.6])}, r"lower must be one number, got an array of shape \(2,\)"),
    ({"upper": True}, r"upper must be one number, got True"),
    ({"normalize": "group"}, r"go together"),
    ({"group": np.zeros(2, int)}, r"go together"),
    (
        {"normalize": "group", "group": np.arange(2), "level": "sequence"},
        r"group 0 has one weight to normalise: over its own mean a weight is always 1",
    ),
    ({"normalize": "group", "group": np.arange(2), "mask": np.eye(2, 3)}, r"group 0 has one weight to normalise"),
    ({"normalize": "group", "group": np.zeros(3, int)}, r"group has shape \(3,\).*one id for each row"),
    ({"normalize": "batch", "mask": np.eye(2, 3)[:1].repeat(2, 0) * [[1], [0]]}, r"one weight to normalise"),
    ({"process_group": object()}, r"process_group is that over which"),
    (
        {"log_pi": np.array([[0.0, 0.0, 0.0], [0.0, np.nan, 0.0]])},
        r"log_pi must be finite or -inf: got nan at index \[1, 1\]",
    ),
    ({"log_mu": np.array([[0.0, 0.0, 0.0], [0.0, -np.inf, 0.0]])}, r"log_mu is -inf.*index \[1, 1\].*impossible"),
    ({"log_pi": np.zeros((2, 3), int)}, r"log_pi must be of a floating dtype, got int64"),
    ({"log_pi": None}, r"log_pi is missing: importance sampling needs|log_pi is missing: Importance sampling"),
    ({"trace": ot.TreeBackup(), "log_pi": np.full((2, 3), 0.1)}, r"log_pi is above 0.*not densities"),
    ({"trace": ot.replacing()}, r"has no normal form"),
    ({"trace": ot.PengQ()}, r"not of the operator's form"),
    ({"log_pi": np.full((2, 3), 709.0), "normalize": "batch"}, r"too large|above the largest float"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[m[:30] for _, m in BAD])
@pytest.mark.parametrize("block", [1, 10**6])
def test_bad_input(change: dict[str, Any], message: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_weights, "BLOCK", block)
    given = {"trace": IS, "log_pi": np.zeros((2, 3)), "log_mu": np.zeros((2, 3))} | change
    with pytest.raises((ValueError, TypeError), match=message):
        ot.weights(given.pop("trace"), **given)


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_may_be_arrays_without_axes(kind: str) -> None:
    taken = arrays(kind, {"log_pi": np.log([[0.1, 1.0, 3.0]]), "log_mu": np.zeros((1, 3))})
    bound = KINDS[kind](np.array(2.0))
    np.testing.assert_allclose(ot.weights(IS, **taken, level="token", upper=bound), [[0.1, 1.0, 2.0]], rtol=1e-6)
    two: Any = KINDS[kind](np.array([0.5, 2.0]))
    with pytest.raises(TypeError, match=r"upper must be one number, got an array of shape \(2,\)"):
        ot.weights(IS, **taken, upper=two)
    with pytest.raises(ValueError, match=r"lower must lie in \[0, inf\], got -2.0"):
        ot.weights(IS, **taken, lower=-bound)


def test_lists_of_tensors_are_refused_where_rows_have_values() -> None:
    torch = pytest.importorskip("torch")
    rows = [torch.zeros(3), torch.zeros(3)]
    with pytest.raises(TypeError, match=r"log_pi is a list of tensors: stack them, .* torch.stack, or pad"):
        ot.weights(IS, log_pi=[rows], log_mu=[rows])  # pyright: ignore[reportArgumentType]
    numbers = [[0.0, 0.0], [0.0, 0.0]]  # lists of numbers are NumPy arrays
    np.testing.assert_array_equal(ot.weights(IS, log_pi=numbers, log_mu=numbers), 1.0)  # pyright: ignore


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_targets_refuse_nested_tensors() -> None:
    torch = pytest.importorskip("torch")
    strided = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(3)])
    arrays: dict[str, Any] = dict.fromkeys(("reward", "q", "next_value", "terminated", "truncated"), strided)
    with pytest.raises(TypeError, match="reward is a nested tensor"):
        ot.targets(ot.QLambda(), **arrays, gamma=0.9)


MADE_INSIDE = """
import torch, offtrace as ot

def weigh(rule, log_pi, log_mu):
    return ot.weights(rule(), log_pi=log_pi, log_mu=log_mu)

log_pi, log_mu = -torch.rand(2, 3), -torch.rand(2, 3)
for rule in (lambda: ot.TruncatedIS(bound=2.0), ot.Retrace, ot.RBIS, lambda: ot.TruncatedIS(bound=(0.5, 2.0))):
    torch.compiler.reset()
    once = torch.compile(lambda p, m: weigh(rule, p, m), backend="eager", fullgraph=True)
    torch.testing.assert_close(once(log_pi, log_mu), weigh(rule, log_pi, log_mu))
"""


@pytest.mark.parametrize("rule", [ot.Retrace, ot.TruncatedIS])
def test_a_rule_may_be_made_inside_a_compiled_program(rule: type[ot.Trace]) -> None:
    torch = pytest.importorskip("torch")

    def weigh(log_pi: Any, log_mu: Any) -> Any:
        return ot.weights(rule(), log_pi=log_pi, log_mu=log_mu)

    log_pi, log_mu = -torch.rand(2, 3), -torch.rand(2, 3)
    torch.compiler.reset()
    found = torch.compile(weigh, backend="eager", fullgraph=True)(log_pi, log_mu)
    torch.testing.assert_close(found, weigh(log_pi, log_mu))


@pytest.mark.whole
def test_the_first_rule_may_be_made_inside_a_compiled_program() -> None:
    """In a process of its own: in this one every rule has been made before."""
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", MADE_INSIDE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    found = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "stale_rollouts.py"))
    found["main"].__globals__["ROWS"] = 64
    found["main"]()
    printed = capsys.readouterr().out
    assert all(name in printed for name, _, _ in found["WEIGHTS"])
    assert "1536 decisions in 64 sequences" in printed


PROCESSES = """
import os, sys, numpy as np, torch, torch.distributed as dist
import offtrace as ot
from offtrace.returns.torch.backend import TorchBackend

by_host = TorchBackend._by_host

def work(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    rng = np.random.default_rng(0)
    log_pi, log_mu = -rng.random((6, 5)), -rng.random((6, 5))
    mask, group = rng.random((6, 5)) < 0.7, np.array([4, 9, 4, 4, 9, 4])
    whole = {"log_pi": log_pi, "log_mu": log_mu, "mask": mask}
    mine = slice(0, 4) if rank == 0 else slice(4, 6)
    for level in ("prefix", "sequence"):
        for options in ({"normalize": "batch"}, {"normalize": "group", "group": group}):
            wanted = ot.weights(ot.RBIS(), **whole, level=level, **options)[mine]
            options = {n: torch.from_numpy(v[mine]) if n == "group" else v for n, v in options.items()}
            part = {n: torch.from_numpy(a[mine]) for n, a in whole.items()}
            for way in (by_host, lambda *_: None):
                TorchBackend._by_host = way
                found = ot.weights(ot.RBIS(), **part, level=level, **options, process_group=dist.group.WORLD)
                np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)
    # A process without a decision takes part, so that the others need not wait.
    empty = torch.zeros(2, 3, dtype=torch.bool)
    some = empty if rank else ~empty
    zero = torch.zeros(2, 3)
    ot.weights(ot.RBIS(), log_pi=zero, log_mu=zero, mask=some, normalize="batch", process_group=dist.group.WORLD)
    dist.destroy_process_group()

child = os.fork()
work(int(child == 0), sys.argv[1])
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_normalised_over_a_process_group(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", PROCESSES, str(tmp_path / "store")], check=True, timeout=600)
