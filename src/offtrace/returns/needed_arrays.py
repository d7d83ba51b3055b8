"""Which arrays a rule reads. What it does not read is dropped, and what is missing is an error."""

from __future__ import annotations

from collections.abc import Mapping

from offtrace.arrays import Array
from offtrace.returns.backend import Backend
from offtrace.returns.greedy_policy import log_pi_of_greedy
from offtrace.returns.weight_arrays import Decisions, agreed
from offtrace.traces import Rule, Trace


def needed(backend: Backend[Array], trace: Rule, arrays: Mapping[str, object]) -> dict[str, object]:
    """The arrays that the rule reads, of the kind that came in; None in the place of the others."""
    found = {name: array for name, array in arrays.items() if name != "greedy"}
    reads = trace.reads
    if trace.needs_greedy:
        found["log_pi"] = log_pi_of_greedy(backend, trace, arrays)
    elif not trace.needs_pi:
        found["log_pi"] = None
    elif arrays.get("log_pi") is None:
        raise TypeError(f"log_pi is missing: {trace.title} needs log π(a_t|s_t) of the actions taken")
    if not trace.needs_mu:
        found["log_mu"] = None
    elif arrays.get("log_mu") is None:
        raise TypeError(
            f"log_mu is missing: {trace.title} needs log μ(a_t|s_t) of the actions taken; Tree Backup and Q(λ) need no μ"
        )
    if "pair" not in reads:
        found["pair"] = None
    elif arrays.get("pair") is None:
        raise TypeError(f"pair is missing: {trace.title} needs ids of (s_t, a_t)")
    for name in ("reward", "next_value") if trace.uncorrected else ("reward", "next_value", "q"):
        if name in found and found[name] is None:
            raise TypeError(f"{name} is missing: {trace.title} needs it for every step")
    return found


def needed_on_states(backend: Backend[Array], trace: Trace, arrays: Mapping[str, object]) -> dict[str, object]:
    """The arrays of `state_targets`. δ carries a ratio there: both log-probabilities are read, whatever the rule reads."""
    for name in ("reward", "value", "next_value"):
        if arrays.get(name) is None:
            raise TypeError(f"{name} is missing: {trace.title} needs it for every step")
    for name, policy in (("log_pi", "π"), ("log_mu", "μ")):
        if arrays.get(name) is None:
            raise TypeError(
                f"{name} is missing: on state values every TD error carries π/μ of its action, so {trace.title} needs "
                f"log {policy}(a_t|s_t); where you learn on-policy, give the same array as log_pi and as log_mu"
            )
    found = needed(backend, trace, arrays)
    return found | {name: arrays[name] for name in ("log_pi", "log_mu") if found[name] is None}


def bounded(trace: Rule) -> tuple[str, ...]:
    """The log-probabilities that must not exceed 0, because the rule uses the probability itself."""
    return tuple(f"log_{p}" for p in ("pi", "mu") if p in trace.reads)


def decisions(backend: Backend[Array], trace: Rule, arrays: Mapping[str, object]) -> Decisions[Array]:
    """The arrays of `weights` that the rule reads, checked but for their values."""
    given = agreed(backend, backend.storable, arrays)
    found = needed(backend, trace, {**arrays, "valid": given.mask, "terminated": arrays.get("greedy")})
    log_pi, log_mu = (
        None if found[name] is None else backend.array(name, found[name]) for name in ("log_pi", "log_mu")
    )
    return given._replace(log_pi=log_pi, log_mu=log_mu)
