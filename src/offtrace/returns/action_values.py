"""From full arrays over actions to the arrays that `targets` takes: NumPy, PyTorch and JAX by the same lines."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from offtrace.arrays import Array
from offtrace.returns.array_kinds import backend_of
from offtrace.returns.backend import Backend
from offtrace.returns.transforms import Transform, to_returns, to_values
from offtrace.trajectory import ROW_TOLERANCE, first_index, spell

POLICIES = ("pi", "next_pi", "mu")
OVER_ACTIONS = ("q", "next_q", *POLICIES)


def from_action_values(
    q: Array,
    next_q: Array,
    pi: Array,
    next_pi: Array,
    action: Array,
    mu: Array | None = None,
    valid: Array | None = None,
    *,
    log_mu: Array | None = None,
    transform: Transform | None = None,
    differentiable: bool = False,
    check: bool | None = None,
) -> dict[str, Array]:
    """q, next_value, log_pi, greedy (and log_mu, where μ is given) of the actions taken, for `targets(trace, **arrays, …)`.

    q, next_q, pi, next_pi, mu: [T, A] or [B, T, A], at s_t and at the true next state; action: integers [T] or [B, T]. μ is given
    by `mu`, or by `log_mu` of the actions taken [T] or [B, T]. `valid`, if given, says where a step is padding, say of action −1:
    nothing is read there, and 0 comes out.

    next_value = Σ_a next_pi · next_q, where an action of probability 0 counts 0 whatever its value (−inf masks too). `greedy`
    says whether the action taken has the highest q, alone or with others, which Watkins' Q(λ) goes by. The kind of array and the
    dtype are those that come in: float32 or float64, and float16 and bfloat16, which are summed in float32.
    With a `transform` h, next_value = h(Σ_a next_pi · h⁻¹(next_q)), as `targets(transform=h)` takes it.
    `differentiable` lets gradients through; where there is no derivative, of log π at π = 0 and of π · q at 0 · (−inf), it is 0.
    `check` is that of `targets`. Where nothing is looked at, an action that there is none of gives NaN.

    >>> import numpy as np
    >>> arrays = from_action_values(q=np.array([[1.0, 2.0]]), next_q=np.array([[3.0, 5.0]]),
    ...                           pi=np.array([[0.5, 0.5]]),
    ...                           next_pi=np.array([[0.5, 0.5]]), action=np.array([1]))
    >>> {name: array.tolist() for name, array in arrays.items()}
    {'q': [2.0], 'next_value': [4.0], 'log_pi': [-0.6931471805599453], 'greedy': [True]}
    """
    given = {"q": q, "next_q": next_q, "pi": pi, "next_pi": next_pi, "action": action}
    for name, array in given.items():
        if array is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise TypeError(f"{name} is missing: pass an array over {'steps' if name == 'action' else 'actions'}")
    if mu is not None and log_mu is not None:
        raise TypeError("mu and log_mu are both given: pass mu of all actions, or log_mu of the actions taken")
    given |= {n: a for n, a in (("mu", mu), ("log_mu", log_mu), ("valid", valid)) if a is not None}
    do = backend_of(given, differentiable)
    given = {name: do.array(name, array) for name, array in given.items()}
    _agree(do, given)
    if do.looks(check, given):
        _check_values(do.all_as_numpy(given), max(ROW_TOLERANCE, float(do.xp.finfo(given["q"].dtype).eps)))
    if not differentiable:
        given = {name: do.constant(array) for name, array in given.items()}
    with np.errstate(all="ignore") if do.xp is np else nullcontext():
        if transform is not None:
            given["next_q"] = to_returns(do, transform, {"next_value": given["next_q"]})["next_value"]
        arrays = do.at_once(_arrays, given)
        return arrays if transform is None else arrays | {"next_value": to_values(do, transform, arrays["next_value"])}


def _agree(do: Backend[Array], given: dict[str, Array]) -> None:
    """Check shapes, dtypes and devices, which tracers have as well."""
    q = given["q"]
    shape = tuple(q.shape)
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueError(f"q must be [T, A] or [B, T, A] and not empty, got shape {shape}")
    for name, array in given.items():
        its_shape = tuple(array.shape)
        fits, letter = its_shape == (shape if name in OVER_ACTIONS else shape[:-1]), do.letter(array.dtype)
        if name == "action" and not (fits and letter in "iu"):
            raise (TypeError if fits else ValueError)(
                f"action must hold integers of shape {shape[:-1]}, got {array.dtype} of shape {its_shape}"
            )
        if not fits:
            raise ValueError(f"{name} has shape {its_shape} but q has shape {shape}: nothing is broadcast")
        if name == "valid" and letter not in "biu":
            raise TypeError(f"valid must be boolean or 0/1 integers, got {array.dtype}: convert it")
        if name not in ("action", "valid") and array.dtype not in do.reals:
            raise TypeError(f"{name} is {array.dtype}: it must be of a real dtype, such as float32")
        if name not in ("action", "valid") and array.dtype != q.dtype:
            raise TypeError(f"{name} is {array.dtype} but q is {q.dtype}: give all in one dtype")
        if do.has_devices and array.device != q.device:
            raise ValueError(f"{name} is on {array.device} but q is on {q.device}: move it there")


def _check_values(given: dict[str, np.ndarray], tolerance: float) -> None:
    """Raise on the first row that is no distribution, and on the first action that there is none of.

    A row of NaN, as past an end, is let through: `targets` refuses it where it is read.
    """
    read = given["valid"] != 0 if "valid" in given else np.True_
    for name in filter(given.__contains__, POLICIES):
        array = given[name]
        bad = (np.abs(array.sum(axis=-1, dtype=np.float64) - 1) > tolerance) | (array < 0).any(axis=-1)
        if (bad & read).any():
            at = first_index(bad & read)
            raise ValueError(
                f"{name} must hold probabilities that sum to 1 over actions, got {array[at]} at index {spell(at)}"
            )
    action, actions = given["action"], given["q"].shape[-1]
    outside = ((action < 0) | (action >= actions)) & read
    if outside.any():
        at = first_index(outside)
        raise ValueError(f"action must lie in [0, {actions}), got {action[at]} at index {spell(at)}")


def _arrays(
    do: Backend[Array],
    *,
    q: Array,
    next_q: Array,
    pi: Array,
    next_pi: Array,
    action: Array,
    mu: Array | None = None,
    log_mu: Array | None = None,
    valid: Array | None = None,
) -> dict[str, Array]:
    """What `from_action_values` returns.

    Bad values are taken out before they are multiplied or their logarithm is taken, and not only after: the gradient would be
    0 · ∞ = NaN else.
    """
    xp, dtype = do.xp, q.dtype
    wide = xp.float32 if dtype.itemsize < 4 else dtype
    outside = (action < 0) | (action >= q.shape[-1])
    index = xp.where(outside, 0, action)[..., None]

    def read(array: Array, at_padding: float = 0.0) -> Array:
        return array if valid is None else xp.where(valid != 0, array, at_padding)

    def taken(array: Array, at_padding: float = 0.0) -> Array:
        return read(xp.where(outside, np.nan, do.take(array, index)[..., 0]), at_padding)

    def log_taken(policy: Array) -> Array:
        p = do.cast(taken(policy, 1.0), wide)
        p = p - do.constant(xp.where(p > 1, p - 1, 0.0))  # rounding may leave [0, 1]
        never = p == 0
        return read(do.cast(xp.where(never, -np.inf, xp.log(xp.where(never, 1.0, p))), dtype))

    next_q, next_pi = do.cast(next_q, wide), do.cast(next_pi, wide)
    ignored = (next_pi == 0) & ~xp.isfinite(next_q)
    if valid is not None:
        ignored = ignored | (valid == 0)[..., None]
    next_value = (next_pi * xp.where(ignored, 0.0, next_q)).sum(-1)
    arrays = {"q": taken(q), "next_value": do.cast(read(next_value), dtype), "log_pi": log_taken(pi)}
    greedy = xp.all(q <= taken(q)[..., None], -1)
    arrays["greedy"] = greedy if valid is None else greedy & (valid != 0)
    if mu is not None:
        arrays["log_mu"] = log_taken(mu)
    elif log_mu is not None:
        arrays["log_mu"] = read(log_mu)
    return arrays
