"""rlax's own unit tests, run against `offtrace.adapters.rlax`: how many pass, and which cannot apply.

    .venv/bin/python benchmarks/compatibility_rlax.py                    the tests that come with the installed rlax
    .venv/bin/python benchmarks/compatibility_rlax.py --tests CHECKOUT   those of a checkout

Each function of rlax that the adapter has too is replaced by the adapter's, in rlax's own modules, before the test files are
imported. A test applies if it calls at least one of those while it runs, so none can pass without us. Each file is run twice, the
second time with jax_numpy_rank_promotion="raise", as rlax's authors run it. The exit status is 1 where a test that applies fails.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import inspect
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = ("multistep", "vtrace", "value_learning", "nonlinear_bellman")
TRANSFORMED = {  # what rlax makes out of a function of multistep.py when it is imported, and which argument it transforms
    "transformed_lambda_returns": ("lambda_returns", 2),
    "transformed_n_step_returns": ("n_step_bootstrapped_returns", 2),
    "transformed_general_off_policy_returns_from_action_values": ("general_off_policy_returns_from_action_values", 0),
}
DISTRIBUTION = "learns a distribution of returns, not a value"
TRANSITION = "reads one transition: there is no trace"
TRANSFORM = "transforms values, and computes no return"
REASONS = {
    **dict.fromkeys(("categorical_l2_project", "categorical_td_learning", "categorical_q_learning"), DISTRIBUTION),
    **dict.fromkeys(("categorical_double_q_learning", "quantile_regression_loss"), DISTRIBUTION),
    **dict.fromkeys(("quantile_q_learning", "quantile_expected_sarsa"), DISTRIBUTION),
    **dict.fromkeys(("td_learning", "sarsa", "expected_sarsa", "q_learning", "double_q_learning"), TRANSITION),
    **dict.fromkeys(("persistent_q_learning", "qv_learning", "qv_max"), TRANSITION),
    **dict.fromkeys(("compose_tx", "muzero_pair", "twohot_pair", "unbiased_transform_pair"), TRANSFORM),
}


class Outcome(unittest.TestResult):
    """Which tests passed, and what each of them called."""

    def __init__(self, called: set[str]) -> None:
        super().__init__()
        self.called = called
        self.calls: dict[str, set[str]] = {}
        self.verdicts: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        """Forget what the test before this one called."""
        super().startTest(test)
        self.called.clear()

    def stopTest(self, test: unittest.TestCase) -> None:
        """Keep what it called."""
        super().stopTest(test)
        self.calls[test.id()] = set(self.called)
        self.verdicts.setdefault(test.id(), "passed")

    def addError(self, test: Any, err: Any) -> None:
        """An error is a failure too."""
        super().addError(test, err)
        self.verdicts[test.id()] = f"{err[0].__name__}: {err[1]}"

    def addFailure(self, test: Any, err: Any) -> None:
        """Keep the reason."""
        super().addFailure(test, err)
        self.verdicts[test.id()] = f"{err[0].__name__}: {err[1]}"

    def addSkip(self, test: Any, reason: str) -> None:
        """A skipped test is neither passed nor failed."""
        super().addSkip(test, reason)
        self.verdicts[test.id()] = "skipped"


def replace(adapter: Any, called: set[str]) -> set[str]:
    """Put the adapter's functions in the place of rlax's, and let each function note that it was called."""
    modules = {name: importlib.import_module(f"rlax._src.{name}") for name in MODULES}
    transform = modules["nonlinear_bellman"].transform_values
    ours = set()
    for module in modules.values():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("_") or name == "transform_values":
                continue
            if name in TRANSFORMED and hasattr(adapter, TRANSFORMED[name][0]):
                function = transform(getattr(adapter, TRANSFORMED[name][0]), TRANSFORMED[name][1])
                ours.add(name)
            elif hasattr(adapter, name):
                function = getattr(adapter, name)
                ours.add(name)
            setattr(module, name, _noted(name, function, called))
    return ours


def _noted(name: str, function: Callable[..., Any], called: set[str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        called.add(name)
        return function(*arguments, **named)

    return wrapped


def test_files(path: Path) -> list[Path]:
    """The test files of the four modules, below a checkout or a folder that holds them."""
    found = [next(iter(sorted(path.rglob(f"{name}_test.py"))), None) for name in MODULES]
    missing = [name for name, file in zip(MODULES, found, strict=True) if file is None]
    if missing:
        raise SystemExit(
            f"no {', '.join(f'{name}_test.py' for name in missing)} below {path}: pass --tests a checkout of rlax"
        )
    return [file for file in found if file is not None]


def load(file: Path) -> ModuleType:
    """A test file as a module."""
    spec = importlib.util.spec_from_file_location(f"rlax_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def why_not(called: set[str]) -> str:
    """Why a test that called these functions, and none of ours, does not apply."""
    reasons = {REASONS.get(name, "the adapter should have it") for name in called} or {TRANSFORM}
    return f"{', '.join(sorted(called)) or 'the pairs themselves'}: {'; '.join(sorted(reasons))}"


def report(outcome: Outcome, ours: set[str], title: str) -> bool:
    """Print the figures and what failed; whether all that apply passed."""
    applies = {test for test, called in outcome.calls.items() if called & ours}
    ran = {test for test in applies if outcome.verdicts[test] != "skipped"}
    failed = sorted(test for test in ran if outcome.verdicts[test] != "passed")
    print(f"{title}: {len(ran) - len(failed)} of {len(ran)} tests that apply pass")
    by_class: Counter[str] = Counter(test.split(".")[1] for test in ran)
    wrong: Counter[str] = Counter(test.split(".")[1] for test in failed)
    for name, count in sorted(by_class.items()):
        print(f"  {name}: {count - wrong[name]} of {count}")
    for test in failed:
        print(f"  FAILED {test}: {outcome.verdicts[test].strip().splitlines()[0][:200]}")
    return not failed


def main() -> int:
    """Run both passes and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tests", type=Path, help="a checkout of rlax; otherwise the installed package's own test files"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import jax
    import rlax  # pyright: ignore[reportMissingImports]
    from absl import flags
    from chex import set_n_cpu_devices

    from offtrace.adapters import rlax as adapter

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(sys.argv[:1])
    set_n_cpu_devices(2)  # with one alone, chex skips its variants with pmap
    called: set[str] = set()
    ours = replace(adapter, called)
    files = test_files(options.tests or Path(str(rlax.__file__)).parent)
    suites = [unittest.defaultTestLoader.loadTestsFromModule(load(file)) for file in files]
    outcome, good = Outcome(called), True
    for title, promotion in (("as JAX comes", "allow"), ('jax_numpy_rank_promotion="raise"', "raise")):
        jax.config.update("jax_numpy_rank_promotion", promotion)
        outcome = Outcome(called)
        for test in (test for suite in suites for test in _each(suite)):
            test.run(outcome)
        good &= report(outcome, ours, title)
    skipped = {test for test, verdict in outcome.verdicts.items() if verdict == "skipped"}
    others = {test: called for test, called in outcome.calls.items() if not called & ours and test not in skipped}
    print(f"do not apply: {len(others)} tests")
    for name, why in sorted({(test.split(".")[1], why_not(called)) for test, called in others.items()}):
        print(f"  {name}: {why}")
    print(f"skipped by chex on this machine: {len(skipped)}")
    return 0 if good else 1


def _each(suite: Any) -> Any:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _each(test)
        else:
            yield test


if __name__ == "__main__":
    sys.exit(main())
