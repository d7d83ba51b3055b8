"""`offtrace logs describe` and `estimators`; `evaluate` and `sweep` have files of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from offtrace.cli.log_options import POLICY, Reading
from offtrace.cli.log_policies import load_policy
from offtrace.cli.options import with_plain_help


@with_plain_help
@dataclass(frozen=True, kw_only=True)
class Describe(Reading):
    """The options of `describe`."""

    policy: Annotated[str | None, arg(metavar="FILE", help=POLICY)] = None


def describe(options: Annotated[Describe, arg(name="")]) -> int:
    """Say what logs are like, and what they can say about a target policy.

    Example: `offtrace logs describe logs.parquet --columns mu=propensity --policy greedy.npz`
    """
    from offtrace.logs.description import describe

    target = None if options.policy is None else load_policy(options.policy)
    print(describe(options.read(target), None if target is None else target.policy))
    return 0


def estimators() -> int:
    """List the estimators: what each computes, and what it needs.

    Example: `offtrace logs estimators`
    """
    from offtrace.logs.estimators import ESTIMATORS
    from offtrace.logs.registry import NEEDS

    width = max(map(len, ESTIMATORS))
    for name, entry in ESTIMATORS.items():
        needs = f"; needs {' and '.join(NEEDS[need] for need in entry.needs)}" if entry.needs else ""
        print(f"{name:<{width}}  {entry.equation}{needs}")
    return 0
