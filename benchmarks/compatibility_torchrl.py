"""torchrl's own tests of GAE and V-trace (`TestAdv`), run with our `StateEstimator` in their place.

    python benchmarks/compatibility_torchrl.py CHECKOUT

CHECKOUT is a clone of github.com/pytorch/rl, near the version of torchrl that is installed. Nothing of it is copied: its test
module is imported after `GAE` and `VTrace` of torchrl have been replaced, and pytest runs those tests that take one of the two.

torchrl's V-trace draws an action of its own, so that its tests give a batch without the action that was taken. Ours refuses such
a batch: it has no ρ. These tests cannot apply as they stand. They run once more with an action, drawn by the actor, put in.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.objectives.value import advantages

from offtrace.adapters.torchrl import StateEstimator

TESTS = Path("test/objectives/test_values.py")
CLASS = "TestAdv"


class OurGAE(StateEstimator):
    """Ours, without an actor."""


class OurVTrace(StateEstimator):
    """Ours, with an actor."""

    gives_action = False

    def __call__(self, *batch: Any, **entries: Any) -> Any:
        """As ours; with `gives_action` the batch first gets an action."""
        if self.gives_action:
            if batch:
                batch[0].set("action", self._drawn(batch[0]))
            else:
                entries["action"] = self._drawn(TensorDict({"obs": entries["obs"]}, entries["obs"].shape[:-1]))
        return super().__call__(*batch, **entries)

    def _drawn(self, batch: Any) -> Any:
        with torch.no_grad():
            actor: Any = self.actor_network
            return actor(batch.select("obs"))["action"]


NAMES: dict[Any, str] = {OurGAE: "GAE", OurVTrace: "VTrace"}


class Report:
    """A plugin of pytest: it keeps the tests of our two classes, and what became of them."""

    def __init__(self) -> None:
        self.outcomes: dict[str, tuple[str, str]] = {}
        self.names: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep the tests that take one of our classes."""
        ours = []
        for item in items:
            params = dict(item.callspec.params) if hasattr(item, "callspec") else {}
            estimator = NAMES.get(params.pop("adv", None))
            if estimator is not None:
                params.pop("kwargs", None)
                options = ", ".join(f"{name}={value!r}" for name, value in params.items())
                self.names[item.nodeid] = f"{item.originalname}[{estimator}{', ' * bool(options)}{options}]"
                ours.append(item)
        items[:] = ours

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note what became of a test."""
        if report.when == "call" or report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash is not None else str(report.longrepr or "")
            self.outcomes[self.names[report.nodeid]] = (report.outcome, message)


def has_no_action(message: str) -> bool:
    """Whether ours refused the batch since it lacks the action."""
    return message.replace("\\", "").startswith("KeyError: 'the tensordict has no entry 'action'")


def run(tests: Path) -> dict[str, tuple[str, str]]:
    """What became of each test: (outcome, message)."""
    report = Report()
    options = ["-q", "--no-header", "--tb=no", "--noconftest", "--capture=sys", "-p", "no:cacheprovider"]
    alone = ["-c", "/dev/null", "--rootdir", str(tests.parent), "-W", "ignore", "--show-capture=no", "-rN"]
    pytest.main([f"{tests}::{CLASS}", *options, *alone], plugins=[report])
    return report.outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a clone of github.com/pytorch/rl")
    tests = parser.parse_args().checkout / TESTS
    if not tests.exists():
        parser.error(f"{tests} does not exist: give the root of a clone of github.com/pytorch/rl")
    advantages.GAE, advantages.VTrace = OurGAE, OurVTrace  # pyright: ignore[reportAttributeAccessIssue]

    outcomes = run(tests)
    passed = [name for name, (outcome, _) in outcomes.items() if outcome == "passed"]
    cannot = [name for name, (_, message) in outcomes.items() if has_no_action(message)]
    OurVTrace.gives_action = True
    again = run(tests)
    mended = [name for name in cannot if again[name][0] == "passed"]
    failed = {name: message for name, (_, message) in outcomes.items() if name not in {*passed, *cannot}}
    failed |= {name: again[name][1] for name in cannot if name not in mended}

    print(f"\n{CLASS} with GAE and V-trace: {len(passed)} of {len(outcomes)} pass as they stand")
    print(
        f"{len(cannot)} cannot apply, since their batch holds no action; with one put into it {len(mended)} of them pass:"
    )
    for test, number in Counter(name.partition("[")[0] for name in cannot).items():
        print(f"    {test}[VTrace]: {number}")
    print(f"{len(failed)} fail" + ":" * bool(failed))
    for name, message in failed.items():
        print(f"    {name}: {message.splitlines()[0][:200] if message else ''}")
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
