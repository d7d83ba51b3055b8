"""Input that was accepted in silence, or refused in words that did not name the mistake. Each clause is a case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import offtrace as ot
from offtrace import mdps, operators, trajectory
from offtrace.learners import EpsilonGreedy, Linear, Softmax, control, evaluate

B, T = 2, 4


def given(**changed: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {name: rng.normal(size=(B, T)) for name in ("reward", "q", "next_value")}
    made |= {name: np.log(rng.uniform(0.2, 0.8, (B, T))) for name in ("log_pi", "log_mu")}
    return made | {"terminated": np.zeros((B, T), bool), "truncated": np.zeros((B, T), bool), "gamma": 0.9} | changed


def on_states(**changed: Any) -> dict[str, Any]:
    made = given(**changed)
    return made | {"value": made.pop("q")}


def of_kind(kind: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays as those of another library, in float32."""
    if kind == "numpy":
        return arrays
    module = pytest.importorskip(kind if kind == "torch" else "jax.numpy")
    make = module.from_numpy if kind == "torch" else module.asarray
    return {
        n: make(a.astype(np.float32) if a.dtype == float else a) if isinstance(a, np.ndarray) and a.ndim else a
        for n, a in arrays.items()
    }


# The discount ----------------------------------------------------------------------------------------------------------------

NO_DISCOUNTS = ["0.9", b"0.9", True, np.True_, np.array(True), np.array("0.9"), None]


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("gamma", NO_DISCOUNTS, ids=repr)
def test_a_discount_that_is_no_number(gamma: Any, kind: str) -> None:
    says = "gamma is missing" if gamma is None else "gamma must be a number"
    with pytest.raises(TypeError, match=says):
        ot.targets(ot.Retrace(), **of_kind(kind, given(gamma=gamma)))
    with pytest.raises(TypeError, match=says):
        ot.state_targets(**of_kind(kind, on_states(gamma=gamma)))


def test_a_discount_that_is_a_flag_of_another_library() -> None:
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    for kind, flag in (("torch", torch.tensor(True)), ("jax", jnp.asarray(True))):
        with pytest.raises(TypeError, match="gamma must be a number"):
            ot.targets(ot.Retrace(), **of_kind(kind, given()) | {"gamma": flag})


@pytest.mark.parametrize("gamma", NO_DISCOUNTS, ids=repr)
def test_a_discount_of_an_mdp_that_is_no_number(gamma: Any) -> None:
    with pytest.raises(TypeError, match="gamma must be a number"):
        mdps.MDP(P=[[[0, 1]], [[0, 0]]], R=[[5.0], [0.0]], gamma=gamma)


@pytest.mark.parametrize("gamma", [0.9, 1, np.float32(0.5), np.array(0.9)], ids=repr)
def test_discounts_that_are_numbers(gamma: Any) -> None:
    assert np.isfinite(ot.targets(ot.Retrace(), **given(gamma=gamma))).all()
    assert mdps.MDP(P=[[[0, 1]], [[0, 0]]], R=[[5.0], [0.0]], gamma=gamma).gamma == float(gamma)


# Log-probabilities -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_log_probabilities_that_are_all_above_0_are_told_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probabilities, or logits, were passed; densities of continuous actions may be so too, hence no error."""
    monkeypatch.setattr(trajectory, "_told", set())
    chances = {name: np.exp(given()[name]) for name in ("log_pi", "log_mu")}
    with pytest.warns(UserWarning, match="above 0 at every step.*pass their logarithms"):
        ot.targets(ot.Retrace(), **of_kind(kind, given(**chances)))
    ot.targets(ot.Retrace(), **of_kind(kind, given(**chances)))  # warnings are errors, but this is said once


def test_they_are_told_by_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory, "_told", set())
    with pytest.warns(UserWarning, match="above 0 at every step"):
        ot.weights(ot.ImportanceSampling(), log_pi=np.full((B, T), 0.4), log_mu=np.full((B, T), 0.5))


@pytest.mark.parametrize("rows", ["usual", "flat", "padded"])
def test_they_are_told_on_state_values_and_whatever_the_layout(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory, "_told", set())
    arrays = on_states(log_pi=np.full((B, T), 0.4), log_mu=np.full((B, T), 0.5))
    if rows == "flat":
        arrays = {n: a[0] if isinstance(a, np.ndarray) else a for n, a in arrays.items()}
    if rows == "padded":
        arrays["valid"] = np.arange(T) < np.array([[T], [2]])
        arrays["log_mu"] = np.where(arrays["valid"], arrays["log_mu"], np.nan)
    with pytest.warns(UserWarning, match="above 0 at every step"):
        ot.state_targets(**arrays)


@pytest.mark.filterwarnings("error")
def test_densities_some_of_which_are_below_1_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory, "_told", set())
    high = np.full((B, T), 0.4)
    high[1, 2] = -0.1
    ot.targets(ot.Retrace(), **given(log_pi=np.full((B, T), 0.4), log_mu=high))
    ot.targets(ot.Retrace(), **given(log_pi=high, log_mu=np.full((B, T), 0.4)))


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("states", [False, True])
def test_a_ratio_that_is_too_large_is_named(states: bool, kind: str) -> None:
    log_pi, log_mu = (np.where(np.arange(T) == 2, x, 0.0) * np.array([[0.0], [1.0]]) for x in (400.0, -400.0))
    arrays = of_kind(kind, (on_states if states else given)(log_pi=log_pi, log_mu=log_mu))
    with pytest.raises(ValueError, match=r"log_pi - log_mu is 800 at index \[1, 2\] \(400 and -400\)"):
        ot.state_targets(**arrays) if states else ot.targets(ot.Retrace(), **arrays)


@pytest.mark.parametrize("name", ["log_pi", "log_mu"])
def test_log_probabilities_of_all_actions(name: str) -> None:
    every = np.log(np.full((B, T, 3), 1 / 3))
    says = rf"{name} has shape \(2, 4, 3\), as if it were of all 3 actions"
    with pytest.raises(ValueError, match=says):
        ot.policy.vtrace(**on_states(**{name: every}))
    with pytest.raises(ValueError, match=says):
        ot.targets(ot.Retrace(), **given(**{name: every}))
    with pytest.raises(ValueError, match=says):
        ot.state_targets(**on_states(**{name: every}))


# Other arrays ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("T", [4, 300])  # a long row is summed in another way
def test_a_sum_that_exceeds_the_floats_is_told(kind: str, T: int) -> None:
    huge = {"reward": np.full((2, T), 3e38 if kind == "torch" else 1e308), "next_value": np.zeros((2, T))}
    huge |= {"q": np.zeros((2, T)), "terminated": np.zeros((2, T), bool), "truncated": np.zeros((2, T), bool)}
    with pytest.warns(RuntimeWarning, match=r"the result at index \[0, 0\] is inf, though every input is finite"):
        made = ot.targets(ot.QLambda(), gamma=1.0, **of_kind(kind, huge))
    assert np.isinf(np.asarray(made)[0, 0])


def test_a_td_error_that_is_too_large_is_named() -> None:
    at = np.arange(B * T).reshape(B, T) == 5
    with pytest.raises(
        ValueError, match=r"TD error at index \[1, 1\] is too large.*reward is 1e\+308, next_value 1e\+308"
    ):
        ot.targets(ot.QLambda(), **given(reward=at * 1e308, next_value=at * 1e308, gamma=1.0))


@pytest.mark.parametrize(
    ("reward", "says"),
    [(np.ones((B, T), complex), "reward is complex"), (np.full((B, T), "1"), "not an array of numbers.*dtype <U1")],
)
def test_rewards_that_are_not_real(reward: np.ndarray, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        ot.targets(ot.Retrace(), **given(reward=reward))


@pytest.mark.parametrize("call", [ot.targets, ot.corrections, ot.coefficients, ot.state_targets])
def test_one_flag_for_both_ends(call: Any) -> None:
    arrays = on_states() if call is ot.state_targets else given()
    arrays["done"] = arrays.pop("terminated") | arrays.pop("truncated")
    with pytest.raises(TypeError, match=f"{call.__name__} has no parameter 'done': give terminated.*and truncated"):
        call(ot.Retrace(), **arrays)


# Traces ----------------------------------------------------------------------------------------------------------------------


def test_a_product_of_ratios_that_exceeds_the_floats_is_not_blamed_on_reads() -> None:
    T = 40
    arrays: dict[str, Any] = {name: np.zeros((1, T)) for name in ("reward", "q", "next_value", "log_pi")}
    arrays |= {"terminated": np.zeros((1, T), bool), "truncated": np.zeros((1, T), bool), "pair": np.arange(T)[None]}
    with pytest.raises(ValueError, match="'replacing' returned a β that is infinite: a product of its ratios"):
        ot.targets(ot.replacing(), log_mu=np.full((1, T), -20.0), gamma=1.0, **arrays)


@pytest.mark.parametrize(
    ("beta", "says"),
    [
        (lambda history: history.rho, r"returned an array of shape \(2,\): it must return one number"),
        (lambda history: None, "returned None: it must return one number"),
        (lambda history: "0.5", "returned '0.5': it must return one number"),
    ],
)
def test_a_history_trace_that_returns_no_number(beta: Any, says: str) -> None:
    trace, mdp = ot.HistoryTrace(beta), mdps.garnet(3, 2, 2, gamma=0.9, seed=0)
    with pytest.raises(TypeError, match=says):
        ot.targets(trace, **given())
    with pytest.raises(TypeError, match=r"it must return one number"):
        _ = operators.Operator(trace, mdp, target=mdps.uniform(mdp), behavior=mdps.uniform(mdp)).contraction


def test_a_history_trace_may_return_an_array_of_no_dimension() -> None:
    half = ot.targets(ot.HistoryTrace(lambda history: 0.5), **given())
    np.testing.assert_array_equal(ot.targets(ot.HistoryTrace(lambda history: np.array(0.5)), **given()), half)  # pyright: ignore[reportArgumentType]


def test_a_rule_whose_dataclass_was_forgotten() -> None:
    class Mine(ot.Trace):
        lam: float = 1.0

        @staticmethod
        def factors(xp: Any, pi: Any, mu: Any, rho: Any, lam: Any) -> Any:
            return lam, rho, float("inf")

    with pytest.raises(TypeError, match=r"Mine declares lam but is no dataclass: write @dataclass\(frozen=True\)"):
        Mine()


# Operators and learners ------------------------------------------------------------------------------------------------------

MDP = mdps.garnet(4, 2, 2, gamma=0.9, seed=0)
UNIFORM = mdps.uniform(MDP)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("call", ["apply", "variance", "variance_bounds", "bellman", "iterate"])
def test_values_that_are_not_finite(call: str, bad: float) -> None:
    op = operators.Operator(ot.Retrace(0.9), MDP, target=UNIFORM, behavior=UNIFORM)
    Q = np.zeros((4, 2))
    Q[1, 1] = bad
    with pytest.raises(ValueError, match=rf"Q must be finite, got {bad} at index \[1, 1\]"):
        getattr(op, call)(Q)


def test_values_whose_squares_overflow() -> None:
    op = operators.Operator(ot.Retrace(0.9), MDP, target=UNIFORM, behavior=UNIFORM)
    with pytest.raises(ValueError, match=r"values up to 1e\+200 were given, whose squares exceed the largest float"):
        op.variance(np.full((4, 2), 1e200))
    assert np.isfinite(op.variance(np.full((4, 2), 1e140))).all()


def test_values_of_other_operators() -> None:
    on_states = operators.StateOperator(ot.Retrace(0.9), MDP, target=UNIFORM, behavior=UNIFORM)
    with pytest.raises(ValueError, match=r"V must be finite, got nan at index \[2\]"):
        on_states.apply([0.0, 0.0, np.nan, 0.0])
    uncorrected = operators.uncorrected(ot.PengQ(0.5), MDP, UNIFORM, UNIFORM)
    with pytest.raises(ValueError, match="X must be finite"):
        uncorrected.apply(np.full((4, 2), np.nan))
    with pytest.raises(ValueError, match=r"X must be an array \[4, 2\], got shape \[2, 4\]"):
        uncorrected.apply(np.zeros((2, 4)))
    np.testing.assert_array_equal(uncorrected.apply(np.zeros(8)), uncorrected.apply(np.zeros((4, 2))))
    with pytest.raises(TypeError, match="Q must hold real numbers, got dtype complex128"):
        operators.Operator(ot.Retrace(0.9), MDP, target=UNIFORM, behavior=UNIFORM).apply(np.zeros((4, 2), complex))


@pytest.mark.parametrize("n", [-1, 1.5, True])
def test_a_number_of_applications_that_is_none(n: Any) -> None:
    op = operators.Operator(ot.Retrace(0.9), MDP, target=UNIFORM, behavior=UNIFORM)
    with pytest.raises(ValueError, match="n must be a whole number of applications, 0 or more"):
        op.iterate(np.zeros((4, 2)), n)


def test_iterates_that_leave_the_floats() -> None:
    """β = (1, 0, 1, 0, …) on two states that alternate: the spectral radius is 2.4."""
    mdp, π, μ = mdps.alternating(gamma=0.9)
    second = ot.StepTrace(lambda xp, carry, now: (carry, xp.where(now.lag == 2.0, 1.0, 0.0)), horizon=3)
    op = operators.Operator(second, mdp, target=π, behavior=μ)
    with pytest.raises(OverflowError, match="the iterates leave the range of floats after"):
        op.iterate(np.arange(4.0).reshape(2, 2)[:, : mdp.A], 10_000)


@pytest.mark.parametrize("behavior", [EpsilonGreedy(0.0), Softmax(0.0)], ids=repr)
@pytest.mark.parametrize("target", [EpsilonGreedy(0.1), Softmax(1.0), UNIFORM], ids=["ε", "softmax", "table"])
def test_a_behaviour_that_never_explores_cannot_serve_a_target_that_does(behavior: Any, target: Any) -> None:
    for learn in (control, evaluate):
        with pytest.raises(
            ValueError, match="behavior is greedy in Q at every step, but target may take other actions"
        ):
            learn(ot.Retrace(0.9), MDP, behavior=behavior, target=target, steps=10)


@pytest.mark.parametrize(
    ("behavior", "target"),
    [
        (EpsilonGreedy(0.0), None),
        (EpsilonGreedy(0.0), EpsilonGreedy(0.0)),
        (EpsilonGreedy(Linear(1.0, 0.0, over=5)), EpsilonGreedy(0.1)),
        (EpsilonGreedy(0.0).exploring(3), EpsilonGreedy(0.1)),
    ],
)
def test_behaviours_that_serve(behavior: Any, target: Any) -> None:
    assert control(ot.Retrace(0.9), MDP, behavior=behavior, target=target, steps=10).Q.shape == (4, 2)


def test_features_that_are_not_finite() -> None:
    features = np.ones((4, 2))
    features[2, 1] = np.nan
    with pytest.raises(ValueError, match="features must be finite, got nan for state 2, feature 1"):
        evaluate(ot.Retrace(), MDP, behavior=UNIFORM, target=UNIFORM, features=features, steps=10)
