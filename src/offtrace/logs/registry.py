"""The registry of estimators from logs: an entry has a name, an equation, what it needs, and the function that computes it.

`evaluate`, the command line and the page read it. An estimator of one's own is one more entry:

    register_estimator(Estimator("mean return", "V̂ = Σ_e G_e / E", needs=(OWN_STARTS,), function=mean_return))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from offtrace.logs.container import Logs
from offtrace.logs.policies import Policy
from offtrace.logs.starts import Starts
from offtrace.traces import Trace

if TYPE_CHECKING:
    from offtrace.logs.checks import Checking
    from offtrace.logs.doubly_robust import Direct
    from offtrace.logs.fit import Fit, Model, Regressed
    from offtrace.logs.horizon import WithStep
    from offtrace.logs.importance import Weights
    from offtrace.logs.intervals import Range
    from offtrace.logs.marginalised import Densities
    from offtrace.logs.markov_test import HiddenStates
    from offtrace.logs.on_policy import Observed
    from offtrace.logs.operator import Sampled

MU, OWN_STARTS, TABLE, ACTIONS, TRACE = "mu", "own starts", "ids", "actions", "trace"
"""What an estimator may need: μ(a|s) of the actions taken, V(π) as the mean over the logs' own first states, ids of states, which
actions the target policy takes in a state, and a trace with λ above 0."""
NEEDS = {
    MU: "μ",
    OWN_STARTS: "the logs’ own first states",
    TABLE: "states that are ids",
    ACTIONS: "Σ_a π(a|s) Q(s, a)",
    TRACE: "a trace",
}
"""What an estimator may need, in words."""
LACKING = {
    MU: "it needs μ(a|s) of the actions taken, which is not known",
    OWN_STARTS: "it averages over the logs' own first states, and others were given (initial)",
    TABLE: "it needs states that are ids, and these logs have features",
    ACTIONS: (
        "it needs Σ_a π(a|s) Q(s, a), which a density at the logged actions does not give: say how the target policy draws "
        "actions, Density(log_pi, sample=…)"
    ),
    TRACE: "it needs a trace, such as trace=ot.RBIS(lam=0.95): nothing in these logs asks for λ above 0",
}
"""Why an estimator cannot be computed where that is not so."""

FITTED_VALUES, IMPORTANCE, MODEL = "fitted", "importance sampling", "with a model of Q"
"""Families of estimators, which the page shows alike."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What an estimator may compute from."""

    logs: Logs
    policy: Policy
    """The target policy."""
    gamma: float
    starts: Starts
    """The first states over which V(π) is the mean."""
    sampled: Sampled
    """The operator of the trace, as the logs sample it; of one step where there is no trace."""
    direct: Direct
    """The one-step fixed point, fitted when it is first needed."""
    weights: Weights | None
    """The products of ratios; None where μ is not known."""
    observed: Observed
    """V(μ) as the logs have it."""
    allowed: Range
    """What rewards and horizon allow."""
    model: Model
    """The model of Q; None: a table."""
    log_pi: NDArray[np.float64]
    """log π(a|s) of the actions taken [N]."""
    step: WithStep | None = None
    """The logs as fits see them, where the number of the step is a part of the state."""
    cluster: NDArray[np.int64] | None = None
    """Which episodes belong together [E], 0 … C − 1; None: each is by itself."""

    @property
    def independent(self) -> int:
        """How many episodes, or clusters of them, are independent of each other."""
        return self.logs.episodes if self.cluster is None else int(self.cluster.max()) + 1

    def values(self, found: Fit | Regressed, states: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
        """V(s) [n] of a fit; where the step is a part of the state, at the first step."""
        return found.values(states if self.step is None else self.step.states(states))

    @cached_property
    def fit(self) -> Fit | Regressed:
        """The fixed point of `sampled`, fitted when it is first needed."""
        from offtrace.logs.fit import fit  # which takes long to import

        return self.direct.fit if self.sampled is self.direct.sampled else fit(self.sampled, self.model)

    @cached_property
    def narrower(self) -> Evidence | None:
        """The same with a narrower kernel, which shows its bias; None where the target policy has none."""
        from offtrace.logs.importance import weights  # which reads the registry

        policy, w = self.policy.narrower(), self.weights
        if policy is None or w is None or self.logs.log_mu is None:
            return None
        log_pi = policy.log_taken(self.logs, slice(0, len(self.logs)))
        return replace(
            self,
            policy=policy,
            log_pi=log_pi,
            weights=weights(self.logs, log_pi, self.logs.log_mu, self.gamma, w.bound),
        )

    @cached_property
    def hidden_states(self) -> HiddenStates | None:
        """Whether the states hide something, tested when it is first asked for; None where they are no ids."""
        from offtrace.logs.markov_test import hidden_states  # which reads the registry

        return hidden_states(self.logs, self.gamma, timed=self.step is not None)

    @cached_property
    def densities(self) -> Densities:
        """Density ratios of states, solved for when they are first needed."""
        from offtrace.logs.marginalised import densities  # which reads the registry

        return densities(self)


def named(trace: Trace) -> str:
    """The title of a trace, with its λ."""
    lam = getattr(trace, "lam", None)
    return trace.title + (f", λ = {lam:g}" if isinstance(lam, float) else "")


@dataclass(frozen=True)
class Estimator:
    """An entry of the registry.

    >>> def zero(evidence):  # V̂ and what each episode contributes to it [E]
    ...     return 0.0, np.zeros(evidence.logs.episodes)
    >>> Estimator("zero", "V̂ = 0", zero).needs
    ()
    """

    name: str
    """The name by which `evaluate` takes it."""
    equation: str
    """What it computes, in one line."""
    function: Callable[[Evidence], tuple[float, NDArray[np.float64]]]
    """From the evidence V̂(π), and what each episode contributes to it [E]: the mean of that is V̂, its spread the error."""
    needs: tuple[str, ...] = ()
    """What must be there, such as `MU` and `OWN_STARTS`."""
    title: str = ""
    """The name to print, the same if empty; `{trace}` in it stands for the trace."""
    family: str = MODEL
    """What it is shown together with."""
    operator: Callable[[Evidence], Sampled] | None = None
    """For a fit: the operator whose fixed point it is. A regressor is refitted to it, for an interval."""
    preference: int | None = 100
    """The headline is the estimator with the lowest preference of those that pass their checks; None: it never is."""
    checks: tuple[Checking, ...] = ()
    """What can go wrong with it: each gets the evidence and what was found, and gives a `Check`, or None."""

    def titled(self, trace: Trace) -> str:
        """The name to print."""
        return (self.title or self.name).replace("{trace}", named(trace))


_registered: dict[str, Estimator] = {}
ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(_registered)
"""All estimators that `evaluate` takes, by their names."""

E = TypeVar("E", bound=Estimator)


def register_estimator(estimator: E) -> E:
    """Add an estimator to those that `evaluate` takes, and return it.

    >>> def zero(evidence):  # V̂ and what each episode contributes to it [E]
    ...     return 0.0, np.zeros(evidence.logs.episodes)
    >>> register_estimator(Estimator("zero", "V̂ = 0", zero))  # doctest: +SKIP
    """
    if estimator.name in _registered:
        raise ValueError(f"there is an estimator named {estimator.name!r} already: give another name")
    unknown = [need for need in estimator.needs if need not in LACKING]
    if unknown:
        raise ValueError(
            f"{estimator.name} cannot need {unknown[0]!r}: known needs are {', '.join(map(repr, LACKING))}"
        )
    _registered[estimator.name] = estimator
    return estimator
