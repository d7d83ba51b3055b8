"""Every trace × every kernel × both dtypes, against the definition, over nasty trajectories, which all rules share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import offtrace as ot
from helpers import TRACES, assert_close, correct_by_definition, name_of, rows, trajectories
from offtrace.returns import by_definition
from offtrace.returns.numpy import passes

quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
CALLS = ("reward", "q", "next_value", "terminated", "truncated", "gamma", "log_pi", "log_mu", "valid", "pair", "greedy")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@quick
@given(data=st.data())
def test_corrections_are_the_definition(dtype: Any, data: Any) -> None:
    given = data.draw(trajectories(dtype))
    for trace in TRACES:
        wanted, scale = correct_by_definition(trace, given)
        assert_close(ot.corrections(trace, **given), wanted, scale, dtype, name_of(trace))


@quick
@given(given=trajectories(max_steps=20))
def test_long_row_kernels_are_the_definition_on_short_rows_too(given: dict[str, Any]) -> None:
    for trace in (t for t in TRACES if not t.per_decision and t.horizon is None):
        wanted, scale = correct_by_definition(trace, given)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(passes, "FEW_STEPS", 0)
            patch.setattr(passes, "_cached_plan", passes._cached_plan.__wrapped__)
            assert_close(ot.corrections(trace, **given), wanted, scale, np.float64, name_of(trace))


@quick
@given(data=st.data())
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_variable_lambda(dtype: Any, data: Any) -> None:
    given = data.draw(trajectories(dtype))
    lam = np.random.default_rng(data.draw(st.integers(0, 99))).choice([0.0, 0.5, 1.0], given["reward"].shape)
    trace = ot.VariableLambda(lam=lam, horizon=data.draw(st.sampled_from([None, 2])))
    wanted, scale = correct_by_definition(trace, given)
    assert_close(ot.corrections(trace, **given), wanted, scale, dtype)


@quick
@given(given=trajectories(batch=False))
def test_coefficients_are_the_definition(given: dict[str, Any]) -> None:
    row = {name: rows(given)[0][name] for name in given if name in CALLS[3:5] + CALLS[6:]}
    for trace in TRACES:
        found, wanted = ot.coefficients(trace, **row), by_definition.coefficients(trace, **row)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=0, err_msg=name_of(trace))


@quick
@given(given=trajectories())
def test_targets_add_q_and_padding_is_zero(given: dict[str, Any]) -> None:
    valid = given.get("valid", np.ones(given["reward"].shape, bool))
    for trace in TRACES:
        target, correction = ot.targets(trace, **given), ot.corrections(trace, **given)
        assert not target[~valid].any(), name_of(trace)
        assert not correction[~valid].any(), name_of(trace)
        wanted = (given["q"] + correction)[valid]
        np.testing.assert_allclose(target[valid], wanted, rtol=1e-15, err_msg=name_of(trace))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@quick
@given(data=st.data())
def test_peng_and_n_step_are_their_definitions(dtype: Any, data: Any) -> None:
    given = data.draw(trajectories(dtype))
    given = {name: given[name] for name in given if name not in ("q", "log_pi", "log_mu", "pair", "greedy")}
    lam, n = data.draw(st.sampled_from([0.0, 0.6, 1.0])), data.draw(st.integers(1, 20))
    for rule, oracle in ((ot.PengQ(lam), by_definition.peng), (ot.NStep(n), by_definition.n_step)):
        found = ot.targets(rule, **given)
        parameter = lam if isinstance(rule, ot.PengQ) else n
        wanted = np.array([oracle(parameter, **row) for row in rows(given)]).reshape(found.shape)
        assert found.dtype == dtype
        np.testing.assert_allclose(
            found, wanted, rtol=1e-11 if dtype == np.float64 else 1e-5, atol=1e-4 if dtype == np.float32 else 1e-12
        )
