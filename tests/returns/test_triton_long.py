"""The Triton kernels for long rows, run by Triton's interpreter on rows that are long only because the limits are made small."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import offtrace as ot
import triton_interpreter  # noqa: F401
from helpers import assert_close, correct_by_definition
from offtrace.returns.jax import triton_calls as jax_calls
from offtrace.returns.jax.kernels import in_float64
from triton_oracle import corrections

cuda = pytest.importorskip("offtrace.returns.torch.cuda")
plans = pytest.importorskip("offtrace.returns.triton.plans")


@pytest.fixture
def small(monkeypatch: Any) -> None:
    """A tree of four levels has 4³ leaves, blocks are sorted by 16 steps; rows are swept if traces live for eight steps."""
    sizes = {
        "SWEPT": 64,
        "NEAR": 8,
        "LIFE": 8,
        "FAN": 4,
        "SORTED": 16,
        "CHUNKS": (16,),
        "PART_CHUNKS": 2,
        "WALKED": 256,
        "SMALL": 0,
    }
    for name, value in sizes.items():
        monkeypatch.setattr(plans, name, value)
    monkeypatch.setattr(cuda, "_plans", {})
    monkeypatch.setattr(cuda, "AT_ONCE", 128)  # a row of 128 steps, or of 150, at a time


def factors(case: str, B: int, T: int) -> tuple[np.ndarray, ...]:
    """δ, g, ratio and cap."""
    rng = np.random.default_rng(len(case) + T)
    delta, g = rng.normal(size=(B, T)), rng.uniform(0.9, 1.0, (B, T))
    ratio, cap = np.exp(rng.normal(size=(B, T))), rng.uniform(0.5, 1.5, (B, T))
    match case:
        case "cut":
            g[:, ::9] = ratio[1::2, 5::20] = cap[:, 7::13] = 0.0
        case "cut in every other row":
            g[::2, ::5] = 0.0  # so one row is swept, and the next is not
        case "every step is clipped":
            ratio[:], cap[:] = 1.01, 1.0
        case "no step is clipped":
            ratio[:], cap[:] = 0.97, 1.0
        case "far away and back":
            ratio[:, 40:80], ratio[:, 80:120] = 1e-9, 1e9
        case "drops":
            ratio[:, ::31] *= 1e-35
        case "out of range":
            ratio[0, 3::9] *= 1e-30
            ratio[0, 5::9] *= 1e30
        case "weights that vanish":
            g *= 1e-3
        case _:
            assert case == "plain"
    return delta, g, ratio, cap


CASES = (
    "plain",
    "cut",
    "cut in every other row",
    "every step is clipped",
    "no step is clipped",
    "far away and back",
    "drops",
    "out of range",
    "weights that vanish",
)


DTYPES = ((torch.float32, 1e-6), (torch.float64, 1e-13))


@pytest.mark.parametrize("recursive", [True, False], ids=["recursive", "at read-out"])
@pytest.mark.parametrize("case", CASES)
def test_caps(case: str, recursive: bool, small: None) -> None:
    """Rows that are swept unless traces live long, and rows of several levels."""
    first = (CASES.index(case) + recursive) % 2
    for (B, T), (dtype, bound) in zip(((2, 60), (1, 128)), DTYPES[first:] + DTYPES, strict=False):
        made = [torch.from_numpy(a).to(dtype) for a in factors(case, B, T)]
        wanted, scale = corrections(*made, recursive)
        with np.errstate(all="ignore"):  # what leaves the range is thrown away, and walked
            found = cuda.given(*made, None, per_decision=False, recursive=recursive)
        assert (np.abs(found.numpy() - wanted) <= bound * scale + 1e-300).all()


class Interpreted(jax_calls.Arrays):
    """The kernels under JAX, in Triton's interpreter: what a kernel changes is a copy, and all else is poison at first."""

    def call(self, kernel: Any, programs: int, read: Any, numbers: Any, outs: Any, changed: Any, constants: Any) -> Any:
        def run(*read: Any) -> list[np.ndarray]:
            tensors = [torch.from_numpy(np.array(a)) for a in read]
            written = [torch.full(m.shape, -77, dtype=cuda.DTYPES[m.dtype.name]) for m in outs]
            for given, taken in changed.items():
                written[taken] = tensors[given]
            values = [n.item() if isinstance(n, np.floating) else n for n in numbers]
            with np.errstate(all="ignore"):
                kernel[(programs,)](*tensors, *values, *written, **constants)
            return [w.numpy() for w in written]

        return jax.pure_callback(run, outs, *read)


@pytest.mark.parametrize("recursive", [True, False], ids=["recursive", "at read-out"])
def test_caps_under_jax(recursive: bool, small: None, monkeypatch: Any) -> None:
    """Every launch takes what the one before has made: nothing is changed behind JAX's back."""
    monkeypatch.setattr(jax_calls, "LIBRARY", Interpreted())
    with in_float64():
        for single, T in ((True, 50), (False, 100)):
            delta, g, ratio, cap = factors("drops", 2, T)
            step = np.pad(ratio[:, 1:], ((0, 0), (0, 1)))
            program = jax.jit(partial(jax_calls.capped, recursive=recursive, single=single))
            found = np.asarray(program(*map(jnp.asarray, (delta, g, step, cap))))
            wanted, scale = corrections(delta, g, ratio, cap, recursive)
            assert (np.abs(found - wanted) <= (1e-6 if single else 1e-13) * scale).all()


@pytest.mark.parametrize("trace", [ot.RBIS(0.9), ot.TruncatedIS(1.5)], ids=lambda t: type(t).__name__)
def test_a_rule_in_long_rows(trace: Any, small: None) -> None:
    """From the user's arrays: ends, padding, a γ for each step, an action that π never takes."""
    rng = np.random.default_rng(3)
    B, T = 2, 150
    arrays = {n: rng.normal(size=(B, T)) for n in ("reward", "q", "next_value")}
    arrays |= {n: np.log(rng.uniform(0.05, 1.0, (B, T))) for n in ("log_pi", "log_mu")}
    arrays |= {"terminated": rng.random((B, T)) < 0.01, "truncated": rng.random((B, T)) < 0.01}
    arrays |= {"valid": np.arange(T) < np.array([[T], [141]]), "gamma": rng.uniform(0.9, 1.0, (B, T))}
    arrays["log_pi"][0, 77] = -np.inf
    wanted, scale = correct_by_definition(trace, arrays)
    tensors = {name: torch.from_numpy(a) for name, a in arrays.items()}
    with np.errstate(all="ignore"):
        assert_close(cuda.correct(trace, tensors, None, add_q=False)[0].numpy(), wanted, scale, np.float64)


@pytest.mark.parametrize("recursive", [True, False], ids=["recursive", "at read-out"])
def test_what_is_not_known_spreads_as_far_as_its_traces_reach(recursive: bool, small: None) -> None:
    delta, g, ratio, cap = factors("plain", 2, 140)
    ratio[0, 90], g[0, 30], g[0, 120] = np.nan, 0.0, 0.0
    made = [torch.from_numpy(a) for a in (delta, g, ratio, cap)]
    with np.errstate(all="ignore"):
        found = cuda.given(*made, None, per_decision=False, recursive=recursive).isnan().numpy()
    assert found[0, 31:90].all()
    assert not found[0, :31].any()
    assert not found[0, 90:].any()
    assert not found[1].any()


@pytest.mark.parametrize("case", ["plain", "cut", "out of range"])
def test_rows_without_a_cap_in_parts(case: str, small: None) -> None:
    """Rows of one part, of several, and with a part that ends where the row does."""
    for T in (64, 100):
        delta, g, ratio, _ = factors(case, 5, T)
        c = np.where(g > 0, g * ratio, 0.0)
        made = [torch.from_numpy(a) for a in (delta, c)]
        one = torch.ones_like(made[0])
        with np.errstate(all="ignore"):
            found = cuda.given(*made, one, one, None, per_decision=True, recursive=False).numpy()
        wanted, scale = corrections(delta, c, one, np.inf * one, False)
        assert (np.abs(found - wanted) <= 1e-13 * scale).all()
