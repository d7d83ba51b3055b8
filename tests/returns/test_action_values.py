"""From arrays over actions to the arrays of `targets`: by definition on every kind of array and dtype, inside jit and vmap,
with gradients, and never a wrong number in silence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from helpers import KINDS

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")
import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

DTYPES = [
    *(("numpy", d) for d in ("float16", "float32", "float64")),
    *((kind, d) for kind in ("torch", "jax") for d in ("float16", "bfloat16", "float32", "float64")),
]
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
A = 4


def sample(*shape: int) -> dict[str, Any]:
    """Masked actions, in both policies at once; a greedy row; values past an end that are NaN."""
    rng = np.random.default_rng(0)
    q, next_q = rng.normal(size=(2, *shape, A))
    pi, next_pi, mu = rng.dirichlet(np.ones(A), (3, *shape))
    next_q[..., 0, 1] = -np.inf
    next_pi[..., 0, :] = [0.5, 0.0, 0.25, 0.25]
    next_pi[..., 1, :] = [0.0, 1.0, 0.0, 0.0]
    pi[..., 2, :] = [0.0, 0.5, 0.5, 0.0]
    next_q[..., 2, :] = np.nan
    action = rng.integers(0, A, shape)
    action[..., 2] = 3  # which π never takes
    return {"q": q, "next_q": next_q, "pi": pi, "next_pi": next_pi, "mu": mu, "action": action}


def in_kind(given: dict[str, Any], kind: str, dtype: str) -> dict[str, Any]:
    def real(array: Any) -> Any:
        if kind == "numpy":
            return array.astype(dtype)
        return torch.from_numpy(array).to(getattr(torch, dtype)) if kind == "torch" else jnp.asarray(array, dtype)

    return {n: real(a) if a.dtype.kind == "f" else KINDS[kind](a) for n, a in given.items()}


def doubled(array: Any) -> np.ndarray:
    return array.double().numpy() if isinstance(array, torch.Tensor) else np.asarray(array, np.float64)


def by_definition(q: Any, next_q: Any, pi: Any, next_pi: Any, action: Any, **behavior: Any) -> dict[str, np.ndarray]:
    """Step by step, in Python's numbers."""

    def log(p: float) -> float:
        return math.log(p) if p else -math.inf

    found = {name: np.empty(action.shape) for name in ("q", "next_value", "log_pi", *(["log_mu"] if behavior else []))}
    found["greedy"] = np.empty(action.shape, bool)
    for at, a in np.ndenumerate(action):
        pairs = zip(next_pi[at], next_q[at], strict=True)
        found["q"][at], found["log_pi"][at] = q[at][a], log(pi[at][a])
        found["greedy"][at] = q[at][a] == max(q[at])
        found["next_value"][at] = math.fsum(float(p) * float(v) for p, v in pairs if p)
        if "mu" in behavior:
            found["log_mu"][at] = log(behavior["mu"][at][a])
        elif "log_mu" in behavior:
            found["log_mu"][at] = behavior["log_mu"][at]
    return found


@pytest.mark.parametrize("behavior", ["mu", "log_mu", None])
@pytest.mark.parametrize("shape", [(5,), (2, 5)])
@pytest.mark.parametrize(("kind", "dtype"), DTYPES)
def test_it_is_the_definition_in_every_kind_and_dtype(
    kind: str, dtype: str, shape: tuple[int, ...], behavior: str | None
) -> None:
    given = sample(*shape) | {"valid": np.ones(shape, bool)}
    given["q"][..., 3, :] = [1.0, 2.0, 2.0, -np.inf]  # two are the best, and a mask
    given["action"][..., 3] = 2
    mu = given.pop("mu")
    if behavior == "mu":
        given["mu"] = mu
    elif behavior == "log_mu":
        given["log_mu"] = np.log(np.take_along_axis(mu, given["action"][..., None], -1)[..., 0])
    with jax.enable_x64(dtype == "float64"):
        arrays = in_kind(given, kind, dtype)
        found = ot.from_action_values(**arrays)
        wanted = by_definition(
            **({n: doubled(a) for n, a in arrays.items() if n != "valid"} | {"action": given["action"]})
        )
        assert set(found) == set(wanted)
        for name, right in wanted.items():
            assert type(found[name]) is type(arrays["q"]), name
            assert found[name].dtype == (arrays["q"].dtype if name != "greedy" else arrays["valid"].dtype), name
            np.testing.assert_allclose(doubled(found[name]), right, rtol=4 * EPS[dtype], atol=4 * EPS[dtype])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_goes_into_targets(kind: str) -> None:
    given = sample(2, 5)
    given["next_q"] = np.nan_to_num(given["next_q"], neginf=-np.inf)
    no = np.zeros((2, 5), bool)
    reward = np.ones((2, 5), np.float32)
    wanted = ot.targets(
        ot.Retrace(0.9), reward=reward, terminated=no, truncated=no, gamma=0.9,
        **ot.from_action_values(**in_kind(given, "numpy", "float32")),
    )  # fmt: skip
    reward, no = KINDS[kind](reward), KINDS[kind](no)
    made = ot.from_action_values(**in_kind(given, kind, "float32"))
    found = ot.targets(ot.Retrace(0.9), reward=reward, terminated=no, truncated=no, gamma=0.9, **made)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)
    best = given["q"].argmax(-1) == given["action"]
    assert 0 < best.sum() < best.size
    watkins = [
        ot.targets(
            ot.WatkinsQ(0.9), reward=reward, terminated=no, truncated=no, gamma=0.9, **(made | {"greedy": flags})
        )
        for flags in (made["greedy"], KINDS[kind](best))
    ]
    np.testing.assert_array_equal(np.asarray(watkins[0]), np.asarray(watkins[1]))


def smooth() -> dict[str, Any]:
    """Where the definition has derivatives: no action taken is of a probability near 0; a mask of −inf stays."""
    given = sample(2, 5)
    given["next_q"] = np.where(np.isnan(given["next_q"]), 1.0, given["next_q"])
    return given | {name: 0.5 * given[name] + 0.5 / A for name in ("pi", "mu")}


NAMES = ("q", "next_q", "pi", "next_pi", "mu")


def test_gradients_of_tensors() -> None:
    given = in_kind(smooth(), "torch", "float64")
    masked = given["next_q"].isneginf()
    given["next_q"][masked] = 0.0
    leaves = [given[n].requires_grad_() for n in NAMES]
    assert not any(a.requires_grad for a in ot.from_action_values(**given).values())

    def made(*values: Any) -> Any:
        arrays = dict(zip(NAMES, values, strict=True))
        arrays["next_q"] = torch.where(masked, -torch.inf, arrays["next_q"])
        found = ot.from_action_values(**arrays, action=given["action"], differentiable=True, check=False)
        return tuple(a for a in found.values() if a.is_floating_point())

    assert torch.autograd.gradcheck(made, [*leaves[:3], leaves[3].detach(), leaves[4]])
    # A step away from π = 0 on a masked action leads to −∞: there is no derivative. It counts as 0, and not as NaN.
    torch.stack(made(*leaves)).sum().backward()
    assert leaves[3].grad.isfinite().all()
    assert (leaves[3].grad[masked] == 0).all()
    torch.testing.assert_close(leaves[3].grad[~masked], given["next_q"].detach()[~masked])


def test_gradients_of_jax_arrays() -> None:
    with jax.enable_x64(True):
        given = in_kind(smooth(), "jax", "float64")

        def made(*values: Any) -> Any:
            arrays = given | dict(zip(NAMES, values, strict=True)) | {"next_pi": given["next_pi"]}
            return {n: a for n, a in ot.from_action_values(**arrays, differentiable=True).items() if n != "greedy"}

        finite = given | {"next_q": jnp.where(jnp.isfinite(given["next_q"]), given["next_q"], 0.0)}
        check_grads(jax.jit(made), [finite[n] for n in NAMES], order=1, modes=["rev", "fwd"])

        def total(next_pi: Any, **options: Any) -> Any:
            return ot.from_action_values(**{**given, "next_pi": next_pi}, **options)["next_value"].sum()

        slope = jax.grad(lambda p: total(p, differentiable=True))(given["next_pi"])
        np.testing.assert_array_equal(slope, jnp.where(jnp.isneginf(given["next_q"]), 0.0, given["next_q"]))
        assert not jax.grad(total)(given["next_pi"]).any()


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_no_gradient_is_nan(kind: str) -> None:
    """π = 0 of the action taken, −inf masks, and padding full of NaN, on the way of a softmax into a target's gradient."""
    given = sample(2, 5)
    given["next_q"][..., 2, :] = 0.0
    valid = np.ones((2, 5), bool)
    valid[0, 4] = False
    for name in NAMES:
        given[name][0, 4] = np.nan
    given["action"][0, 4] = -1
    rest = in_kind(given | {"valid": valid}, kind, "float32")
    mask = KINDS[kind](given["pi"] == 0)
    no, reward = KINDS[kind](np.zeros((2, 5), bool)), KINDS[kind](np.ones((2, 5), np.float32))

    def loss(logits: Any) -> Any:
        where, softmax = (
            (torch.where, lambda a: a.softmax(-1)) if kind == "torch" else (jnp.where, lambda a: jax.nn.softmax(a))
        )
        π = softmax(where(mask, -math.inf, logits))
        made = ot.from_action_values(**{**rest, "pi": π}, differentiable=True)
        steps = {"reward": reward, "terminated": no, "truncated": no, "valid": rest["valid"], "gamma": 0.9}
        return ot.targets(ot.Retrace(0.9), **steps, **made, differentiable=True).sum()

    logits = np.random.default_rng(1).normal(size=(2, 5, A)).astype(np.float32)
    if kind == "torch":
        leaf = torch.from_numpy(logits).requires_grad_()
        loss(leaf).backward()
        slope = leaf.grad.numpy()
    else:
        slope = np.asarray(jax.grad(loss)(jnp.asarray(logits)))
    assert np.isfinite(slope).all()
    assert slope.any()


def test_a_probability_above_one_by_rounding_is_one_and_keeps_its_gradient() -> None:
    row = torch.tensor([[1.0 + 2**-22, 0.0]], requires_grad=True)
    zero = torch.zeros(1, 2)
    made = ot.from_action_values(zero, zero, row, row.detach(), torch.tensor([0]), differentiable=True)
    assert made["log_pi"].item() == 0.0
    made["log_pi"].sum().backward()
    assert row.grad is not None
    np.testing.assert_allclose(row.grad, [[1.0, 0.0]], rtol=1e-5)


def test_inside_jit_vmap_and_compile() -> None:
    given = sample(2, 5)
    wanted = ot.from_action_values(**in_kind(given, "numpy", "float32"))
    arrays = in_kind(given, "jax", "float32")
    tensors = in_kind(given, "torch", "float32")

    def made(arrays: Any) -> Any:
        return ot.from_action_values(**arrays)

    ways = {
        "jit": jax.jit(made)(arrays),
        "jax.vmap": jax.vmap(made)(arrays),
        "vmap of jit": jax.vmap(jax.jit(made))(arrays),
        "torch.vmap": torch.func.vmap(made)(tensors),
        "compiled": torch.compile(made, fullgraph=True, backend="aot_eager")(tensors),
    }
    for way, found in ways.items():
        assert set(found) == set(wanted)
        for name, right in wanted.items():
            np.testing.assert_allclose(np.asarray(found[name]), right, rtol=1e-6, atol=1e-6, err_msg=f"{way}, {name}")


def test_where_nothing_is_looked_at_an_action_that_is_none_makes_nan() -> None:
    given = sample(5) | {"action": np.array([-1, A, 0, 1, 2])}
    made = {
        "jax": jax.jit(lambda a: ot.from_action_values(**a))(in_kind(given, "jax", "float32")),
        "torch": ot.from_action_values(**in_kind(given, "torch", "float32"), check=False),
    }
    for kind, found in made.items():
        for name in ("q", "log_pi", "log_mu"):
            np.testing.assert_array_equal(
                np.isnan(np.asarray(found[name])), [True, True, False, False, False], err_msg=kind
            )
        with pytest.raises(ValueError, match=r"action must lie in \[0, 4\), got -1 at index \[0\]"):
            ot.from_action_values(**in_kind(given, kind, "float32"))
    with pytest.raises(ValueError, match="check=True"):
        jax.jit(lambda a: ot.from_action_values(**a, check=True))(in_kind(given, "jax", "float32"))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_not_looked_at_and_is_zero(kind: str) -> None:
    given = sample(2, 5)
    valid = np.ones((2, 5), bool)
    valid[1, 3] = valid[1, 4] = False
    spoiled = {name: array.copy() for name, array in given.items()}
    for name in NAMES:
        spoiled[name][1, 3], spoiled[name][1, 4] = np.nan, 0.0  # rows of zeros, as buffers are filled with
    spoiled["action"][1, 3:] = -1
    wanted = ot.from_action_values(**in_kind(given, kind, "float32"))
    for flags in (valid, valid.astype(np.int32)):
        found = ot.from_action_values(**in_kind(spoiled | {"valid": flags}, kind, "float32"))
        for name, right in wanted.items():
            np.testing.assert_array_equal(
                np.asarray(found[name]), np.where(valid, np.asarray(right), 0.0), err_msg=name
            )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_is_said(kind: str) -> None:
    arrays = in_kind(sample(2, 5), kind, "float32")
    taken = arrays["q"][..., 0] * 0
    negative = in_kind({"pi": np.full((2, 5, A), [1.1, -0.1, 0.0, 0.0])}, kind, "float32")["pi"]
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"pi": arrays["pi"] * 1.0001}, ValueError, "pi must hold probabilities that sum to 1"),
        ({"next_pi": negative}, ValueError, r"next_pi must hold probabilities.*at index \[0, 0\]"),
        ({"mu": arrays["mu"] * 2}, ValueError, "mu must hold probabilities"),
        ({"action": arrays["action"] + A}, ValueError, r"action must lie in \[0, 4\), got"),
        ({"action": arrays["action"][0]}, ValueError, "action must hold integers of shape"),
        ({"action": taken}, TypeError, "action must hold integers of shape"),
        ({"next_q": arrays["next_q"][:, :2]}, ValueError, r"next_q has shape \(2, 2, 4\) but q has shape \(2, 5, 4\)"),
        ({"q": arrays["q"][0, 0]}, ValueError, r"q must be \[T, A\] or \[B, T, A\]"),
        ({"q": None}, TypeError, "q is missing"),
        ({"action": None}, TypeError, "action is missing"),
        ({"log_mu": taken}, TypeError, "mu and log_mu"),
        ({"log_mu": arrays["mu"], "mu": None}, ValueError, r"log_mu has shape \(2, 5, 4\)"),
        ({"valid": taken}, TypeError, "valid must be boolean"),
        ({"pi": in_kind({"pi": np.full((2, 5, A), 0.25)}, kind, "float16")["pi"]}, TypeError, "one dtype"),
        ({"q": KINDS[kind](np.zeros((2, 5, A), np.int32))}, TypeError, "q is .*int32: it must be of a real dtype"),
        ({"pi": KINDS["numpy" if kind != "numpy" else "torch"](np.zeros((2, 5, A)))}, TypeError, "pass .* only"),
    ]
    for change, error, words in wrong:
        with pytest.raises(error, match=words):
            ot.from_action_values(**{**arrays, **change})


def test_tensors_stay_on_their_device_and_numpy_has_no_gradients() -> None:
    arrays = in_kind(sample(5), "torch", "float32")
    with pytest.raises(ValueError, match="pi is on meta but q is on cpu"):
        ot.from_action_values(**{**arrays, "pi": arrays["pi"].to("meta")})
    far = {n: a.to("meta") for n, a in arrays.items()}
    assert all(a.device.type == "meta" for a in ot.from_action_values(**far).values())
    host = in_kind(sample(5), "numpy", "float32")
    with pytest.raises(TypeError, match="pi is a masked array"):
        ot.from_action_values(**{**host, "pi": np.ma.masked_array(host["pi"])})
    with pytest.raises(TypeError, match="NumPy has no gradients"):
        ot.from_action_values(**in_kind(sample(5), "numpy", "float32"), differentiable=True)


def test_rows_in_half_precision_are_as_near_to_one_as_they_can_be() -> None:
    """The error of rounding each probability to eight bits, and no more than that."""
    logits = torch.randn(50, 18, generator=torch.Generator().manual_seed(0))
    π, zero = logits.softmax(-1).bfloat16(), torch.zeros(50, 18, dtype=torch.bfloat16)
    assert (π.float().sum(-1) - 1).abs().max() > 1e-4
    action = torch.zeros(50, dtype=torch.long)
    assert ot.from_action_values(zero, zero, π, π, action)["log_pi"].isfinite().all()
    with pytest.raises(ValueError, match="sum to 1"):
        ot.from_action_values(zero, zero, (π.float() * 0.98).bfloat16(), π, action)
