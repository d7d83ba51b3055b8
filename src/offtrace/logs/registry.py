"""The registry of estimators from logs: an entry has a name, an equation, what it needs, and the function that computes it.

`evaluate`, the command line and the page read it. An estimator of one's own is one more entry:

    register_estimator(Estimator("mean return", "V̂ = Σ_e G_e / E", needs=(OWN_STARTS,), function=mean_return))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from offtrace.traces import Trace

if TYPE_CHECKING:
    from offtrace.logs.checks import Checking
    from offtrace.logs.evidence import Evidence
    from offtrace.logs.operator import Sampled

MU, OWN_STARTS, ACTIONS, TRACE = "mu", "own starts", "actions", "trace"
"""What an estimator may need: μ(a|s) of the actions taken, V(π) as the mean over the logs' own first states, which
actions the target policy takes in a state, and a trace with λ above 0."""
NEEDS = {
    MU: "μ",
    OWN_STARTS: "the logs’ own first states",
    ACTIONS: "Σ_a π(a|s) Q(s, a)",
    TRACE: "a trace",
}
"""What an estimator may need, in words."""
LACKING = {
    MU: "it needs μ(a|s) of the actions taken, which is not known",
    OWN_STARTS: "it averages over the logs' own first states, and others were given (initial)",
    ACTIONS: (
        "it needs Σ_a π(a|s) Q(s, a), which a density at the logged actions does not give: say how the target policy draws "
        "actions, Density(log_pi, sample=…)"
    ),
    TRACE: "it needs a trace, such as trace=ot.RBIS(lam=0.95): nothing in these logs asks for λ above 0",
}
"""Why an estimator cannot be computed where that is not so."""

FITTED_VALUES, IMPORTANCE, MODEL = "fitted", "importance sampling", "with a model of Q"
"""Families of estimators, which the page shows alike."""


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
    preference: int = 100
    """The headline is the estimator with the lowest preference of those that pass their checks."""
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
