"""Rows of unequal length, flat, in lists and nested, against the same rows padded: the numbers are the same to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import KINDS
from offtrace import policy

LENGTHS = 3, 1, 5, 0, 4
CU = np.cumsum([0, *LENGTHS])
THERE = np.arange(5) < np.array(LENGTHS)[:, None]
TOKENS = ("log_pi", "log_mu", "log_prox", "mask", "advantage", "log_ref")
FORMS = [(kind, form) for kind in KINDS for form in ("flat", "list")] + [("torch", "jagged"), ("torch", "strided")]
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def batch() -> dict[str, np.ndarray]:
    """Padded rows with holes; what is padding is NaN."""
    rng = np.random.default_rng(0)
    arrays = {name: np.log(rng.uniform(0.1, 0.9, THERE.shape)) for name in ("log_pi", "log_mu", "log_prox", "log_ref")}
    arrays["advantage"] = rng.normal(size=THERE.shape)
    arrays = {name: np.where(THERE, a, np.nan) for name, a in arrays.items()}
    arrays["mask"] = THERE & (rng.random(THERE.shape) < 0.8)
    arrays["group"] = np.array([3, 7, 3, 7, 7])
    return arrays


def in_form(kind: str, form: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The same rows in another form."""
    convert = KINDS[kind]
    tokens = {name: a for name, a in arrays.items() if a.shape[1:]}
    if form == "flat":
        flat: dict[str, Any] = {name: convert(a[THERE]) for name, a in tokens.items()}
        flat |= {"cu_seqlens": convert(CU)}
    else:
        flat = {name: [convert(row[there]) for row, there in zip(a, THERE, strict=True)] for name, a in tokens.items()}
    if form in ("jagged", "strided"):
        torch = pytest.importorskip("torch")
        layout = getattr(torch, form)
        flat = {name: torch.nested.as_nested_tensor(rows, layout=layout) for name, rows in flat.items()}
    return flat | {name: convert(a) for name, a in arrays.items() if name not in tokens}


def entries(result: Any) -> np.ndarray:
    """A result in any form, as its tokens in their order."""
    if isinstance(result, list):
        return np.concatenate([np.asarray(row) for row in result])
    if getattr(result, "is_nested", False):
        return np.concatenate([row.detach().numpy() for row in result.unbind()])
    result = result.detach() if hasattr(result, "detach") else result
    return np.asarray(result)


def named(*names: str) -> dict[str, np.ndarray]:
    return {name: batch()[name] for name in names}


WEIGHTS: list[dict[str, Any]] = [
    {"trace": ot.NonMarkovRetrace(lam=0.9)},
    {"trace": ot.ImportanceSampling(), "level": "geometric", "normalize": "batch"},
    {"trace": ot.TruncatedIS(bound=1.5), "level": "suffix", "outside": "mask", "upper": 1.2},
    {"trace": ot.Retrace(), "level": "sequence", "normalize": "group"},
]


@pytest.mark.parametrize(("kind", "form"), FORMS)
@pytest.mark.parametrize("options", WEIGHTS, ids=["prefix", "geometric", "suffix", "group"])
def test_weights(kind: str, form: str, options: dict[str, Any]) -> None:
    names = (
        ("log_pi", "log_mu", "mask", "group") if options.get("normalize") == "group" else ("log_pi", "log_mu", "mask")
    )
    wanted = np.asarray(ot.weights(**options, **{n: KINDS[kind](a) for n, a in named(*names).items()}))
    result: Any = ot.weights(**options, **in_form(kind, form, named(*names)))
    np.testing.assert_array_equal(entries(result), wanted[THERE])
    if form == "list":
        assert [len(row) for row in result] == list(LENGTHS)
    elif form != "flat":
        assert [len(row) for row in result.unbind()] == list(LENGTHS)


@pytest.mark.parametrize(("kind", "form"), FORMS)
@pytest.mark.parametrize("of_rows", [False, True])
def test_reject(kind: str, form: str, of_rows: bool) -> None:
    given = named("log_pi", "log_mu", "mask", "advantage")
    if of_rows:
        given["advantage"] = np.array([1.0, -1.0, 0.5, 0.0, -2.0])
    how: dict[str, Any] = {"by": ["sequence mean ratio", "prefix sum k1"], "upper": [1.05, 1.0], "lower": [0.8, None]}
    wanted = np.asarray(ot.reject(**{n: KINDS[kind](a) for n, a in given.items()}, **how))
    assert 0 < wanted.sum() < given["mask"].sum()
    np.testing.assert_array_equal(entries(ot.reject(**in_form(kind, form, given), **how)), wanted[THERE])


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_diagnosis(kind: str, form: str) -> None:
    given = named("log_pi", "log_mu", "mask")
    wanted = ot.diagnose_weights(ot.Retrace(), **{n: KINDS[kind](a) for n, a in given.items()})
    result = ot.diagnose_weights(ot.Retrace(), **in_form(kind, form, given))
    assert result == wanted
    np.testing.assert_array_equal(result.ess_by_position, wanted.ess_by_position)


@pytest.mark.parametrize(("kind", "form"), FORMS)
@pytest.mark.parametrize("name", ["gspo", "mis", "ctpo", "opsm", "gmpo"])
def test_losses(kind: str, form: str, name: str) -> None:
    given = named("log_pi", "log_mu", "log_prox", "mask", "log_ref") | {"advantage": np.arange(5) - 2.0}
    how: dict[str, Any] = {"kl_cost": 0.1, "mean": "seq-mean-token-mean"}
    wanted = policy.loss(name, **{n: KINDS[kind](a) for n, a in given.items()}, **how)
    result: Any = policy.loss(name, **in_form(kind, form, given), **how)
    assert float(result.loss) == float(wanted.loss)
    for part in ("terms", "arrays"):
        for key, array in getattr(wanted, part).items():
            np.testing.assert_array_equal(entries(getattr(result, part)[key]), entries(array)[THERE], err_msg=key)
    for key, mean in wanted.means.items():
        assert float(result.means[key]) == pytest.approx(float(mean), rel=1e-6)


@pytest.mark.parametrize("form", ["flat", "list", "jagged"])
def test_gradients_of_tensors(form: str) -> None:
    torch = pytest.importorskip("torch")
    given = named("log_pi", "log_prox", "mask", "advantage")
    padded = {name: torch.as_tensor(a) for name, a in given.items()}
    padded["log_pi"].requires_grad_()
    policy.loss("gspo", **padded).loss.backward()
    leaf = torch.as_tensor(given["log_pi"][THERE]).requires_grad_()
    ragged = in_form("torch", form, given)
    rows = torch.split(leaf, LENGTHS)
    ragged["log_pi"] = {
        "flat": lambda: leaf,
        "list": lambda: list(rows),
        "jagged": lambda: torch.nested.as_nested_tensor(list(rows), layout=torch.jagged),
    }[form]()
    policy.loss("gspo", **ragged).loss.backward()
    np.testing.assert_array_equal(leaf.grad, padded["log_pi"].grad[torch.as_tensor(THERE)])


def test_inside_jit_the_longest_row_is_given() -> None:
    jax = pytest.importorskip("jax")
    given = in_form("jax", "flat", named("log_pi", "log_mu", "mask"))

    def weigh(**arrays: Any) -> Any:
        return ot.weights(ot.Retrace(), **arrays)

    with pytest.raises(TypeError, match=r"cu_seqlens is traced.*pass max_seqlen"):
        jax.jit(weigh)(**given)
    compiled = jax.jit(lambda **arrays: ot.weights(ot.Retrace(), **arrays, max_seqlen=5))(**given)
    np.testing.assert_allclose(compiled, weigh(**given), rtol=1e-6)
    short = jax.jit(lambda **arrays: ot.weights(ot.Retrace(), **arrays, max_seqlen=4))(**given)
    np.testing.assert_array_equal(np.isnan(short), np.arange(13) == 8)  # what did not fit is no number


def test_compiled_by_torch() -> None:
    torch = pytest.importorskip("torch")
    given = in_form("torch", "flat", named("log_pi", "log_mu", "mask"))
    compiled: Callable[..., Any] = torch.compile(
        lambda **arrays: ot.weights(ot.Retrace(), **arrays, max_seqlen=5), backend="eager", fullgraph=True
    )
    np.testing.assert_allclose(compiled(**given), ot.weights(ot.Retrace(), **given), rtol=1e-12)


def rows(*lengths: int) -> list[np.ndarray]:
    return [np.zeros(n) for n in lengths]


FLAT = {"log_pi": np.zeros(4), "log_mu": np.zeros(4)}
BAD: list[tuple[dict[str, Any], str]] = [
    (FLAT | {"cu_seqlens": [0, 3, 2, 4]}, "cu_seqlens falls at row 1, from 3 to 2"),
    (FLAT | {"cu_seqlens": [0, 2, 5]}, "cu_seqlens goes from 0 to 5, but log_pi has the entries 0 to 4"),
    (FLAT | {"cu_seqlens": [1, 4]}, "cu_seqlens goes from 1 to 4"),
    (FLAT | {"cu_seqlens": np.array([0.0, 4.0])}, "cu_seqlens must hold integers"),
    (FLAT | {"cu_seqlens": [0, 1, 4], "max_seqlen": 2}, "max_seqlen is 2, but row 1 has 3 entries"),
    (FLAT | {"max_seqlen": 2}, "max_seqlen is given without cu_seqlens"),
    (FLAT | {"cu_seqlens": [0, 4], "segment": np.zeros(4, int)}, "segment says where rows begin"),
    (FLAT | {"cu_seqlens": [0, 4], "mask": np.array([1, 2, 1, 1])}, r"mask must hold 0 or 1, got 2 at index \[1\]"),
    ({"log_pi": np.zeros((2, 2)), "log_mu": np.zeros((2, 2)), "cu_seqlens": [0, 4]}, "packed rows are flat arrays"),
    (FLAT | {"log_mu": np.zeros(5), "cu_seqlens": [0, 4]}, r"log_mu has shape \(5,\) and log_pi \(4,\)"),
    ({"log_pi": rows(3, 2), "log_mu": rows(3, 1)}, "log_mu has 1 entries in row 1, but log_pi has 2"),
    ({"log_pi": rows(3, 2), "log_mu": rows(3)}, "log_mu must be a list of 2 rows, as log_pi is"),
    ({"log_pi": rows(3, 2), "log_mu": np.zeros((2, 3))}, "log_mu must be a list of 2 rows, as log_pi is"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_input(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ot.weights(ot.Retrace(), **arguments)


def test_a_bad_value_is_named_by_its_row() -> None:
    given = in_form("numpy", "flat", named("log_pi", "log_mu", "log_prox"))
    given["log_pi"][7] = np.nan
    with pytest.raises(ValueError, match=r"log_pi must be finite.*index \[2, 3\]"):
        ot.weights(ot.Retrace(), log_pi=given["log_pi"], log_mu=given["log_mu"], cu_seqlens=CU)
    advantage = np.zeros(13)
    advantage[7] = np.nan
    given = in_form("numpy", "flat", named("log_pi", "log_prox"))
    with pytest.raises(ValueError, match=r"advantage .*\[2, 3\]"):
        policy.loss("ppo", **given, advantage=advantage)
    with pytest.raises(TypeError, match="packed rows do not show: give length"):
        policy.loss("ppo", **given, advantage=np.zeros(13), mean="seq-mean-token-sum-norm")
