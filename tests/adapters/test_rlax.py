"""The adapter beside the real rlax: equal where rlax is right, and where it is not, right."""

from __future__ import annotations

import warnings
from functools import cache
from inspect import Parameter, signature
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.extend.core import jaxpr_as_fun  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    rlax: Any = pytest.importorskip("rlax")
    from rlax._src import multistep  # not all of it is exported

import offtrace as ot  # noqa: E402
from helpers import whole  # noqa: E402
from offtrace.adapters import rlax as adapter  # noqa: E402

K, A = 9, 3
RNG = np.random.default_rng(0)


def real(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def in_jax(arrays: dict[str, Any]) -> dict[str, Any]:
    """Every array in JAX. NumPy makes them, since JAX would compile each operation, in each process that reads this file."""
    return {name: jnp.asarray(a) if isinstance(a, np.ndarray) else a for name, a in arrays.items()}


def policy() -> np.ndarray:
    """π [K, A], at one step without a choice."""
    made = np.exp(real(K, A))
    made /= made.sum(axis=1, keepdims=True)
    made[5] = np.eye(A)[0]
    return made


v, discount = real(K + 1), np.array([0.9, 0.9, 0.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9], np.float32)
rho, lam = np.exp(real(K)), RNG.uniform(0.2, 1, K).astype(np.float32)
rho[5] = lam[6] = 0.0
V, DISCOUNT, RHO, LAMBDA = map(jnp.asarray, (v, discount, rho, lam))
MASK = jnp.asarray(np.array([True, False, True, True, True, False, False, True, False]))
Q = in_jax({
    "q_tm1": real(K, A), "q_t": real(K, A), "a_tm1": RNG.integers(0, A, K), "a_t": RNG.integers(0, A, K),
    "r_t": real(K), "discount_t": discount, "pi_t": policy(), "mu_t": RNG.uniform(0.1, 1, K).astype(np.float32),
    "lambda_": 0.9,
})  # fmt: skip
CONTINUOUS = in_jax({
    "q_tm1": real(K), "q_t": real(K - 1), "v_t": real(K), "r_t": real(K), "discount_t": discount, "log_rhos": real(K - 1),
    "lambda_": 0.8,
})  # fmt: skip
GIVEN = in_jax({"q_t": real(K - 1), "v_t": real(K), "r_t": real(K), "discount_t": discount, "c_t": rho[1:]})
STATES = in_jax({
    "v_tm1": v[:-1], "v_t": v[1:], "r_t": real(K), "discount_t": discount, "rho_tm1": rho, "lambda_": 0.9,
    "clip_rho_threshold": 1.5,
})  # fmt: skip
APART = in_jax({**STATES, "v_t": real(K)})  # v_t of another network than v_tm1
RETURNS = in_jax({"r_t": real(K), "discount_t": discount, "v_t": v[1:]})
CORRECTED = in_jax({"r_t": real(K), "discount_t": discount, "rho_tm1": rho, "lambda_": lam, "values": v})
ADVANTAGES = in_jax({"r_t": real(K), "discount_t": discount, "lambda_": lam, "values": v})
ACTIONS = {**{name: Q[name] for name in ("q_t", "a_t", "r_t", "discount_t")}, "c_t": RHO, "pi_t": Q["pi_t"]}


def leaky(arguments: dict[str, Any], name: str) -> dict[str, Any]:
    """V-trace's arguments with α in its place."""
    items = list(arguments.items())
    return dict([*items[:5], (name, 0.3), *items[5:]])


def by_step(arguments: dict[str, Any], length: int = K) -> dict[str, Any]:
    return {**arguments, "lambda_": jnp.asarray(lam[:length])}


CASES = [
    ("retrace", Q),
    ("retrace", by_step(Q)),
    ("retrace", {**Q, "eps": 1e-2}),
    ("retrace_continuous", CONTINUOUS),
    ("retrace_continuous", by_step(CONTINUOUS, K - 1)),
    ("general_off_policy_returns_from_q_and_v", GIVEN),
    ("general_off_policy_returns_from_action_values", ACTIONS),
    ("vtrace", STATES),
    ("vtrace", by_step(APART)),
    ("vtrace", {**STATES, "stop_target_gradients": True, "sample_mask": MASK}),
    ("vtrace_td_error_and_advantage", STATES),
    ("vtrace_td_error_and_advantage", by_step(APART)),
    (
        "vtrace_td_error_and_advantage",
        {**by_step(STATES), "clip_pg_rho_threshold": 2.0, "stop_target_gradients": False, "sample_mask": MASK},
    ),
    ("leaky_vtrace", leaky(STATES, "alpha_")),
    ("leaky_vtrace", {**leaky(by_step(APART), "alpha_"), "stop_target_gradients": False, "sample_mask": MASK}),
    ("leaky_vtrace_td_error_and_advantage", leaky(by_step(STATES), "alpha")),
    ("lambda_returns", RETURNS),
    ("lambda_returns", {**RETURNS, "lambda_": 0.9}),
    ("lambda_returns", {**RETURNS, "lambda_": LAMBDA}),
    ("lambda_returns", {**RETURNS, "lambda_": RHO}),
    ("discounted_returns", RETURNS),
    ("discounted_returns", {**RETURNS, "v_t": jnp.asarray(v[-1])}),
    *(("n_step_bootstrapped_returns", {**RETURNS, "n": n, "lambda_t": LAMBDA}) for n in (1, 3, K, K + 4)),
    ("n_step_bootstrapped_returns", {**RETURNS, "n": 4}),
    ("importance_corrected_td_errors", CORRECTED),
    ("importance_corrected_td_errors", {**CORRECTED, "lambda_": 0.9}),
    ("truncated_generalized_advantage_estimation", ADVANTAGES),
    ("truncated_generalized_advantage_estimation", {**ADVANTAGES, "lambda_": 0.9}),
    ("td_lambda", {"v_tm1": jnp.asarray(v[:-1]), **RETURNS, "lambda_": LAMBDA}),
    (
        "sarsa_lambda",
        {name: by_step(Q)[name] for name in ("q_tm1", "a_tm1", "r_t", "discount_t", "q_t", "a_t", "lambda_")},
    ),
    ("q_lambda", {name: by_step(Q)[name] for name in ("q_tm1", "a_tm1", "r_t", "discount_t", "q_t", "lambda_")}),
]
IDS = [f"{name}-{case}" for case, (name, _) in enumerate(CASES)]
NAMES = sorted({name for name, _ in CASES})


def theirs(name: str) -> Any:
    return getattr(rlax, name, None) or getattr(multistep, name)


def close(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    found, wanted = jax.tree.leaves(found), jax.tree.leaves(wanted)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def traced(function: Any, values: list[Any]) -> Any:
    """The function as jit sees it, with what shapes the program held fast: n. JAX then runs what it saw, one operation at a time.

    To compile it is XLA's business, and takes longer than all else; each kernel is compiled under jit in `test_jax`.
    """
    at = [i for i, value in enumerate(values) if not isinstance(value, int) or isinstance(value, bool)]

    def call(given: list[Any]) -> Any:
        return function(*(given[at.index(i)] if i in at else value for i, value in enumerate(values)))

    program, shape = jax.make_jaxpr(call, return_shape=True)([values[i] for i in at])
    found = jaxpr_as_fun(program)(*(values[i] for i in at))
    return jax.tree.unflatten(jax.tree.structure(shape), found)


@cache
def loss_of(case: int, stop: bool) -> tuple[Any, dict[str, Any]]:
    """Gradients of a weighted sum of the squares of all outputs, and the outputs, of any function; and what to call it with."""
    name, arguments = CASES[case]
    real = {
        n: jnp.asarray(a)
        for n, a in arguments.items()
        if isinstance(a, float) or getattr(a, "dtype", None) == jnp.float32
    }
    fixed = {n: a for n, a in arguments.items() if n not in real} | {"stop_target_gradients": stop}
    weights = real_like(jax.eval_shape(lambda: theirs(name)(**arguments)))

    def loss(function: Any, given: dict[str, Any]) -> Any:
        out = function(**given, **fixed)
        return sum((w * o**2).sum() for w, o in zip(weights, jax.tree.leaves(out), strict=True)), out

    return jax.grad(loss, argnums=1, has_aux=True), real


@cache
def by_rlax(case: int, stop: bool = False) -> tuple[dict[str, Any], Any]:
    """Gradients and outputs of rlax, in one program."""
    gradients, real = loss_of(case, stop)
    return jax.jit(lambda given: gradients(theirs(CASES[case][0]), given))(real)


@pytest.mark.parametrize("case", range(len(CASES)), ids=IDS)
def test_the_same_as_rlax(case: int) -> None:
    name, arguments = CASES[case]
    values = list(arguments.values())  # by position: the order is rlax's
    wanted, function = by_rlax(case)[1], getattr(adapter, name)
    close(function(*values), wanted)
    close(traced(function, values), wanted)
    close(function(*(np.asarray(v) if isinstance(v, jax.Array) else v for v in values)), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_mapped_and_the_rank_of_arrays_never_promoted(name: str) -> None:
    arguments = next(given for named, given in CASES if named == name)
    arrays = {n: a for n, a in arguments.items() if isinstance(a, jax.Array)}
    batch = {n: jnp.stack([a, a[::-1]]) if a.ndim else jnp.stack([a, a]) for n, a in arrays.items()}
    numbers = {n: a for n, a in arguments.items() if n not in arrays}

    def mapped(function: Any) -> Any:
        return jax.vmap(lambda x: function(**x, **numbers))(batch)

    with jax.numpy_rank_promotion("raise"):
        close(mapped(getattr(adapter, name)), jax.jit(lambda: mapped(theirs(name)))())


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_those_of_rlax_and_what_is_added_goes_by_name_only(name: str) -> None:
    ours, other = (list(signature(f).parameters.values()) for f in (getattr(adapter, name), theirs(name)))
    shared, added = ours[: len(other)], ours[len(other) :]
    assert [p.name for p in shared] == [p.name for p in other]
    assert all(p.kind is Parameter.KEYWORD_ONLY for p in added)
    for ourselves, p in zip(shared, other, strict=True):
        assert ourselves.default == p.default or p.name == "eps"  # no ε is added in silence


STOPPED = {name: case for case, (name, _) in enumerate(CASES)}
"""The last case of each function: whether gradients stop is decided at its end, whatever came in."""


@pytest.mark.parametrize(
    "case", [*STOPPED.values(), *whole(sorted({*range(len(CASES))} - {*STOPPED.values()}))], ids=IDS.__getitem__
)
def test_gradients_are_those_of_rlax(case: int) -> None:
    """With respect to every array and every number, also where a discount, a λ, a ratio or a probability is 0."""
    name = CASES[case][0]
    for stop in (False, True) if STOPPED[name] == case else (False,):
        gradients, real = loss_of(case, stop)
        found, wanted = gradients(getattr(adapter, name), real)[0], by_rlax(case, stop)[0]
        for n in real:
            np.testing.assert_allclose(found[n], wanted[n], rtol=2e-4, atol=2e-4, err_msg=n)


def real_like(outputs: Any) -> list[Any]:
    """A weight for every number of some outputs."""
    return [real(*a.shape) for a in jax.tree.leaves(outputs)]


def test_whether_gradients_stop_may_be_an_argument_of_jit() -> None:
    for name, given in (("lambda_returns", RETURNS), ("vtrace", STATES)):
        for stop in (True, False):
            values, out = list(given.values()), getattr(adapter, name)(*given.values(), stop_target_gradients=stop)
            found = jax.jit(lambda s, v, name=name: getattr(adapter, name)(*v, stop_target_gradients=s))(stop, values)
            close(found, out)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_comes_out_as_it_came_in(dtype: Any) -> None:
    given = {name: a.astype(dtype) for name, a in RETURNS.items()}
    found = adapter.lambda_returns(**given, lambda_=0.5)
    assert found.dtype == rlax.lambda_returns(**given, lambda_=0.5).dtype == dtype
    wide = {name: a.astype(jnp.float32) for name, a in given.items()}
    np.testing.assert_array_equal(found, adapter.lambda_returns(**wide, lambda_=0.5).astype(dtype))


def test_one_step() -> None:
    given = {name: a[:1] for name, a in RETURNS.items()}
    close(adapter.lambda_returns(**given), rlax.lambda_returns(**given))
    continuous = {
        n: a[:0] if n in ("q_t", "log_rhos") else a[:1] for n, a in CONTINUOUS.items() if isinstance(a, jax.Array)
    }
    close(adapter.retrace_continuous(**continuous, lambda_=0.8), rlax.retrace_continuous(**continuous, lambda_=0.8))


def test_what_cannot_be_is_refused_and_nan_under_jit() -> None:
    def refused(match: str, function: Any, arguments: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=match):
            function(**arguments)
        assert np.isnan(jax.jit(lambda x: function(**{**arguments, **x}))(dict(arguments))[0])

    refused(
        "mu_t is 0.0 at index 3",
        adapter.retrace,
        {**Q, "discount_t": DISCOUNT.at[2].set(1), "mu_t": Q["mu_t"].at[3].set(0)},
    )
    refused("rho_tm1 is inf at index 0", adapter.vtrace, {**STATES, "rho_tm1": RHO.at[0].set(jnp.inf)})
    refused("rho_tm1 is -1.0 at index 0", adapter.leaky_vtrace, {**STATES, "rho_tm1": RHO.at[0].set(-1)})
    refused(
        "log_rhos is inf at index 0",
        adapter.retrace_continuous,
        {**CONTINUOUS, "log_rhos": CONTINUOUS["log_rhos"].at[0].set(jnp.inf)},
    )


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"v_tm1 has shape \(9, 1\).*jax.vmap"):
        adapter.vtrace(**{**STATES, "v_tm1": V[:-1, None]})
    with pytest.raises(ValueError, match=r"rho_tm1 \(1,\).*nothing is broadcast"):
        adapter.vtrace(**{**STATES, "rho_tm1": RHO[:1]})
    with pytest.raises(ValueError, match=r"lambda_ has shape \(8,\).*\(9,\)"):
        adapter.lambda_returns(**RETURNS, lambda_=LAMBDA[1:])
    with pytest.raises(ValueError, match="lengths that belong together"):
        adapter.general_off_policy_returns_from_q_and_v(**{**GIVEN, "c_t": RHO})
    with pytest.raises(ValueError, match=r"must be \[K, actions\] and \[K\]"):
        adapter.retrace(**{**Q, "a_t": Q["a_t"][1:]})
    with pytest.raises(ValueError, match="pi_t has shape"):
        adapter.general_off_policy_returns_from_action_values(**{**ACTIONS, "pi_t": Q["pi_t"][:, :1]})
    with pytest.raises(TypeError, match=r"sample_mask must be boolean.*truncated_t"):
        adapter.vtrace(**STATES, sample_mask=jnp.zeros(K))
    with pytest.raises(ValueError, match="horizon must be an integer of at least 1"):
        adapter.n_step_bootstrapped_returns(**RETURNS, n=0)


PARTED = [name for name in NAMES if "truncated_t" in signature(getattr(adapter, name)).parameters]
ONE_LESS = ("retrace_continuous", "general_off_policy_returns_from_q_and_v")  # some of their arrays are shorter


@pytest.mark.parametrize("name", [name for name in PARTED if name not in ONE_LESS])
def test_a_truncation_parts_a_sequence_in_two(name: str) -> None:
    cut = 4
    arguments = next(given for named, given in CASES if named == name)
    arrays = {n: a for n, a in arguments.items() if jnp.ndim(a)}
    numbers = {n: 3 if n == "n" else a for n, a in arguments.items() if n not in arrays}
    function = getattr(adapter, name)
    halves = [
        function(**{n: a[part] for n, a in arrays.items()}, **numbers)
        for part in (slice(0, cut + 1), slice(cut + 1, None))
    ]
    wanted = jax.tree.map(lambda *parts: jnp.concatenate(parts), *halves)
    truncated = jnp.arange(K) == cut
    close(function(**arrays, **numbers, truncated_t=truncated), wanted)
    mapped = jax.vmap(lambda x, t: function(**x, **numbers, truncated_t=t))(arrays_of_one(arrays), truncated[None])
    close(jax.tree.map(lambda a: a[0], mapped), wanted)


def arrays_of_one(arrays: dict[str, Any]) -> dict[str, Any]:
    """A batch of one sequence."""
    return {name: array[None] for name, array in arrays.items()}


def test_any_trace_takes_the_place_of_retrace() -> None:
    arguments = {name: value for name, value in Q.items() if name != "lambda_"}
    close(adapter.q_errors(ot.Retrace(0.9), **arguments), adapter.retrace(**Q), 1e-6)
    assert not np.allclose(adapter.q_errors(ot.NonMarkovRetrace(0.9), **arguments), adapter.retrace(**Q))
    without_mu = {name: value for name, value in arguments.items() if name != "mu_t"}
    greedy = jnp.argmax(Q["q_t"], axis=-1) == Q["a_t"]
    assert greedy.any()
    assert not greedy.all()
    given = rlax.general_off_policy_returns_from_action_values(**{**ACTIONS, "c_t": jnp.where(greedy, 0.9, 0.0)})
    wanted = given - jnp.take_along_axis(Q["q_tm1"], Q["a_tm1"][:, None], axis=1)[:, 0]
    close(adapter.q_errors(ot.WatkinsQ(0.9), **without_mu), wanted)
    close(jax.jit(lambda x: adapter.q_errors(ot.WatkinsQ(0.9), **x))(without_mu), wanted)
    assert adapter.q_errors(ot.TreeBackup(0.9), **without_mu).shape == (K,)


@pytest.mark.parametrize(
    "trace", [ot.NonMarkovRetrace(0.9), ot.TruncatedIS(1.5, 0.9), ot.TruncatedIS((2.0, 1.0)), ot.replacing(0.9)]
)
def test_no_trace_promotes_the_rank_of_arrays(trace: Any) -> None:
    """JAX would say so while it traces: nothing need be compiled."""
    steps = 40
    q, pi, action = jnp.asarray(real(2, steps, A)), jax.nn.softmax(real(2, steps, A)), jnp.zeros((2, steps), int)
    arrays = {"reward": q[..., 0], "q": q[..., 1], "next_value": q[..., 2], "log_pi": jnp.log(pi[..., 0])}
    arrays |= {"log_mu": jnp.log(pi[..., 1]), "terminated": action, "truncated": action, "pair": action}

    def loss(q: Any) -> Any:
        target = jax.vmap(lambda x: ot.targets(trace, **x, gamma=0.9, differentiable=True))({**arrays, "q": q})
        return target.sum(), target

    with jax.numpy_rank_promotion("raise"):
        with pytest.raises(ValueError, match="rank_promotion"):
            jax.eval_shape(lambda q: q + jnp.ones(steps), arrays["q"])
        gradient, target = jax.eval_shape(jax.grad(loss, has_aux=True), arrays["q"])
    assert gradient.shape == target.shape == arrays["q"].shape


def test_a_truncation_ends_the_trace_and_the_advantage_keeps_to_its_episode() -> None:
    """rlax's advantage at a cut inside the sequence bootstraps from the next episode; two halves show what is right."""
    cut = 4
    apart = V.at[cut + 1].set(100.0)  # the next episode's first value, while v_t at the cut is the true next state's
    whole = {**STATES, "v_tm1": apart[:-1]}
    truncated = jnp.arange(K) == cut
    found = adapter.vtrace_td_error_and_advantage(**whole, truncated_t=truncated)
    arrays = {name: value for name, value in whole.items() if jnp.ndim(value)}
    numbers = {name: value for name, value in whole.items() if not jnp.ndim(value)}
    halves = [
        adapter.vtrace_td_error_and_advantage(**{n: a[part] for n, a in arrays.items()}, **numbers)
        for part in (slice(0, cut + 1), slice(cut + 1, None))
    ]
    for i in range(3):
        np.testing.assert_allclose(found[i], jnp.concatenate([h[i] for h in halves]), rtol=1e-5, atol=1e-5)
    theirs = rlax.vtrace_td_error_and_advantage(**whole)
    assert abs(float(theirs.pg_advantage[cut] - found.pg_advantage[cut])) > 1.0


def test_targets_from_c_are_those_of_importance_sampling_with_these_ratios() -> None:
    rng = np.random.default_rng(1)
    given: dict[str, Any]
    reward, q, next_value = rng.normal(size=(3, 4, 7))
    terminated, truncated = rng.random((2, 4, 7)) < 0.1
    c = rng.uniform(0, 2, (4, 7))
    given = {
        "reward": reward,
        "q": q,
        "next_value": next_value,
        "terminated": terminated,
        "truncated": truncated,
        "gamma": 0.9,
    }
    wanted = ot.targets(ot.ImportanceSampling(), **given, log_pi=np.log(c), log_mu=np.zeros_like(c))
    np.testing.assert_allclose(ot.targets_from_c(c, **given), wanted, rtol=1e-12)
    turned: dict[str, Any] = {
        name: value.T if isinstance(value, np.ndarray) else value for name, value in given.items()
    }
    np.testing.assert_allclose(ot.targets_from_c(c.T, **turned, time_major=True), wanted.T, rtol=1e-12)
    with pytest.raises(ValueError, match="at least 0"):
        ot.targets_from_c(-c, **given)
    near = ot.targets(ot.ImportanceSampling(horizon=2), **given, log_pi=np.log(c), log_mu=np.zeros_like(c))
    np.testing.assert_allclose(ot.targets_from_c(c, **given, horizon=2), near, rtol=1e-12)
    with pytest.raises(TypeError, match="c is given"):
        ot.targets_from_c(c, **given, log_pi=c)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("retrace", Q), ("retrace_continuous", CONTINUOUS), ("vtrace_td_error_and_advantage", STATES)],
)
def test_numpy_arrays_are_taken_as_rlax_takes_them(name: str, arguments: dict[str, Any]) -> None:
    """Beside JAX arrays too: which of them are NumPy's is all the same."""
    function = getattr(adapter, name)
    wanted = tuple(function(**arguments))
    arrays = [n for n, a in arguments.items() if jnp.ndim(a)]
    for some in (arrays, arrays[::2], arrays[1::2]):
        found = tuple(function(**{n: np.asarray(a) if n in some else a for n, a in arguments.items()}))
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
