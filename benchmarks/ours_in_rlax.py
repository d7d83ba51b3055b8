"""A plugin of pytest for peer_suites.py: functions of rlax are those of `offtrace.adapters.rlax`.

Each function that the adapter has is replaced in rlax's own modules before the test files are imported. A test applies if it
calls at least one of those, so that none can pass without us.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from absl import flags
from chex import set_n_cpu_devices

from offtrace.adapters import rlax as adapter

TRANSFORMED = {  # what rlax makes out of a function of multistep.py when it is imported, and which argument it transforms
    "transformed_lambda_returns": ("lambda_returns", 2),
    "transformed_n_step_returns": ("n_step_bootstrapped_returns", 2),
    "transformed_general_off_policy_returns_from_action_values": ("general_off_policy_returns_from_action_values", 0),
}
TRANSITION = "read one transition: there is no trace"
TRANSFORM = "transform values, and compute no return"
REASONS = {
    **dict.fromkeys(("td_learning", "sarsa", "expected_sarsa", "q_learning", "double_q_learning"), TRANSITION),
    **dict.fromkeys(("persistent_q_learning", "qv_learning", "qv_max"), TRANSITION),
    **dict.fromkeys(("compose_tx", "muzero_pair", "twohot_pair", "unbiased_transform_pair"), TRANSFORM),
}
CALLED: set[str] = set()
OURS: set[str] = set()


def _recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        CALLED.add(name)
        return function(*arguments, **named)

    return wrapped


def replace() -> None:
    """Put the adapter's functions in the place of rlax's, and record which functions are called."""
    names = ("multistep", "vtrace", "value_learning", "nonlinear_bellman")
    modules = [importlib.import_module(f"rlax._src.{name}") for name in names]
    transform = modules[-1].transform_values
    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("_") or name == "transform_values":
                continue
            if name in TRANSFORMED and hasattr(adapter, TRANSFORMED[name][0]):
                function = transform(getattr(adapter, TRANSFORMED[name][0]), TRANSFORMED[name][1])
                OURS.add(name)
            elif hasattr(adapter, name):
                function = getattr(adapter, name)
                OURS.add(name)
            setattr(module, name, _recorded(name, function))


def pytest_runtest_setup() -> None:
    """Forget what the test before this one called."""
    CALLED.clear()


def did_not_apply(item: Any) -> str | None:
    """Why a test that called none of ours does not apply."""
    if CALLED & OURS:
        return None
    reasons = {REASONS.get(name, "call what the adapter should have") for name in CALLED} or {TRANSFORM}
    return "; ".join(sorted(reasons))


if not flags.FLAGS.is_parsed():
    flags.FLAGS(sys.argv[:1])
set_n_cpu_devices(2)  # with one device, chex skips its variants with pmap
replace()
