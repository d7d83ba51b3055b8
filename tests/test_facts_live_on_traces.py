"""Outside of `traces/` no code asks which class a rule is, and none lists rules: what it wants to know is a fact of the class.

The oracles (`by_definition.py`) print each rule as its source does, and the claims of the audit are about named rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import offtrace
from offtrace.traces import Rule, Trace, custom, given_coefficients, registry  # noqa: F401

SOURCE = Path(offtrace.__file__).parent
ORACLES = {"returns/by_definition.py", "operators/check_proof.py"}  # which share nothing with what they check
CLAIMS = "operators/auditing/claims/"
ALLOWED: set[str] = set()
"""Files that still ask. It stays empty."""


def derived(cls: type[Rule]) -> Iterator[type[Rule]]:
    """All rules of the package."""
    for sub in cls.__subclasses__():
        if sub.__module__.startswith("offtrace."):
            yield sub
        yield from derived(sub)


CLASSES = {cls.__name__ for cls in derived(Rule)} - {Rule.__name__, Trace.__name__}
TITLES = {cls.title for cls in derived(Rule) if isinstance(cls.title, str) and cls.title} | CLASSES
DISPLAYS = (ast.List, ast.Tuple, ast.Set)


def named(node: ast.AST | None) -> set[str]:
    """The rules that an expression is, or calls: Retrace, ot.Retrace, Retrace(0.9), and those of (A, B) and A | B."""
    if isinstance(node, ast.Call):
        return named(node.func)
    if isinstance(node, DISPLAYS):
        return set().union(*map(named, node.elts))
    if isinstance(node, ast.BinOp):
        return named(node.left) | named(node.right)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return {name} & CLASSES


def asks(node: ast.AST) -> set[str]:
    """The rules that are asked for: isinstance(x, Retrace), case Retrace(), type(x) is Retrace."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
        return named(node.args[1])
    if isinstance(node, ast.MatchClass):
        return named(node.cls)
    if isinstance(node, ast.Compare):
        plain = [part for part in (node.left, *node.comparators) if not isinstance(part, ast.Call)]
        return set().union(*map(named, plain))
    return set()


def lists(node: ast.AST) -> set[str]:
    """The rules of a list of several, by class or by name."""
    parts = (
        node.elts if isinstance(node, DISPLAYS) else [*node.keys, *node.values] if isinstance(node, ast.Dict) else []
    )
    found = set().union(*map(named, parts))
    found |= {p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)} & TITLES
    return found if len(found) > 1 else set()


def tellings(text: str, claims: bool = False) -> list[str]:
    """What a module tells that is a fact of a rule, line by line."""
    found = []
    for node in ast.walk(ast.parse(text)):
        line = getattr(node, "lineno", 0)
        if asked := asks(node):
            found.append(f"{line}: asks for {', '.join(sorted(asked))}")
        if not claims and (listed := lists(node)):
            found.append(f"{line}: lists {', '.join(sorted(listed))}")
    return found


def test_no_module_asks_for_a_rule_or_lists_rules() -> None:
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        path = file.relative_to(SOURCE).as_posix()
        if path.startswith("traces/") or path in ORACLES:
            continue
        if told := tellings(file.read_text(), claims=path.startswith(CLAIMS)):
            found[path] = told
    assert {path: told for path, told in found.items() if path not in ALLOWED} == {}
    assert set(found) >= ALLOWED, "a file is clean now: take it from the list"


BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CHOSEN = {
    "learners.py": "the peers, which it holds too, print four rules themselves",
    "evaluation_cobs.py": "the peer has three rules",
    "jitted.py": "one rule for each kind of kernel, beside rlax",
    "host.py": "the host's time depends on how many kernels a rule launches, not on the rule",
    "gpu_distributions.py": "one rule of each kind of kernel",
    "gpu_losses.py": "one rule for each kind of weight, beside plain PyTorch",
    "gpu.py": "corners of two rules, beside all that are listed",
    "gpu_report.py": "limits of speed that were promised for four rules",
    "against_tianshou.py": "the peer does the work of two rules",
    "policy_table.py": "the published table is of weights that trainers use",
    "stability_table.py": "the published table is of chosen traces at chosen λ",
}


def test_benchmarks_take_rules_from_the_list() -> None:
    found = {file.name for file in BENCHMARKS.glob("*.py") if tellings(file.read_text())}
    assert found == set(CHOSEN)


def test_the_tables_that_people_read_name_every_rule() -> None:
    """`docs/traces.md` prints the rules of each kind; tests/test_documentation.py reads their names on the page that is built."""
    traces, theory = (BENCHMARKS.parent / "docs" / name for name in ("traces.md", "theory.md"))
    kinds = set(re.findall(r"^```{rules-table} (.*)$", traces.read_text(), re.MULTILINE))
    assert kinds == {"per-decision", "trajectory-aware", "uncorrected"}
    ours = [
        r for r in registry.rules() if issubclass(r, Trace) and getattr(offtrace, r.__name__, None) is r
    ]  # no test's own
    table = theory.read_text().partition("| rule | decay |")[2].partition("\n\n")[0]
    first = " ".join(line.split("|")[1] for line in table.splitlines()[2:]).casefold()
    assert [rule.title for rule in ours if rule.title.casefold() not in first] == []


@pytest.mark.parametrize(
    "text",
    [
        "isinstance(x, Retrace)",
        "isinstance(x, (ot.Retrace, int))",
        "isinstance(x, StepTrace | HistoryTrace)",
        "type(x) is RBIS",
        "x.__class__ in (RBIS, PengQ)",
        "match x:\n    case tr.NStep():\n        pass",
        "FAMILIES = (Retrace, RBIS)",
        "rules = [ot.Retrace(0.9), ot.RBIS(0.9)]",
        "ORDER = ('Retrace', 'Non-Markov Retrace')",
        "codes = {'Retrace': 1, 'RBIS': 2}",
    ],
)
def test_what_is_found(text: str) -> None:
    assert tellings(text)


@pytest.mark.parametrize(
    "text",
    ["isinstance(x, Trace)", "isinstance(x, ot.Rule)", "Retrace(0.9)", "replace(x, trace=OneStep())", "[RBIS()]"],
)
def test_what_is_not(text: str) -> None:
    assert not tellings(text)
