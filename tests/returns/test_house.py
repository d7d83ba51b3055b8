"""How the folder `returns` is built: no import runs in a circle, no rule is named, a backend and a rule come from outside."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import grimp
import numpy as np
import pytest

import offtrace as ot
from offtrace.returns import array_kinds
from offtrace.returns.numpy import linear
from offtrace.returns.numpy.backend import NumPyBackend
from offtrace.returns.numpy.compiling import DIGEST
from offtrace.traces import rules
from offtrace.trajectory import Agreed

FOLDER = Path(array_kinds.__file__).parent


def circle(graph: grimp.ImportGraph, module: str, above: tuple[str, ...], done: set[str]) -> list[str]:
    """The first circle of imports that is found on the way down from a module; imports inside of functions count."""
    if module in above:
        return [*above[above.index(module) :], module]
    if module in done:
        return []
    for other in sorted(graph.find_modules_directly_imported_by(module)):
        found = circle(graph, other, (*above, module), done)
        if found:
            return found
    done.add(module)
    return []


@pytest.mark.parametrize("package", ["offtrace.returns", "offtrace.traces"])
def test_no_import_runs_in_a_circle(package: str) -> None:
    graph = grimp.build_graph("offtrace", cache_dir=None, exclude_type_checking_imports=True)
    done: set[str] = set()
    for module in sorted(graph.find_descendants(package)):
        assert circle(graph, module, (), done) == []


def named(path: Path) -> set[str]:
    """Everything that a file's code names, its imports included; texts and comments do not count."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                found.add(name)
            case _:
                pass
    return found


def test_no_rule_is_named_but_by_the_oracle() -> None:
    classes = {rule.__name__ for rule in rules()} | {"StepTrace", "HistoryTrace"}
    for path in FOLDER.rglob("*.py"):
        if path.name != "by_definition.py":
            assert not named(path) & classes, path


class Labelled(np.ndarray):
    """An array of another kind."""


Labelled.__module__ = "labelled.arrays"


class LabelledBackend(NumPyBackend):
    word, converter = "labelled array", "labelled.array"

    def correct(self, trace: ot.Trace, x: Agreed[np.ndarray], **options: Any) -> Any:
        return tuple(out.view(Labelled) for out in super().correct(trace, x, **options))


def test_a_backend_is_one_class_and_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_kinds, "_loaders", dict(array_kinds._loaders))
    array_kinds.register("labelled", LabelledBackend)
    x: dict[str, Any] = {n: np.arange(4.0) for n in ("reward", "q", "next_value")}
    x |= {n: np.zeros(4, bool) for n in ("terminated", "truncated")}
    wanted = ot.targets(ot.QLambda(0.9), **x, gamma=0.9)
    labelled = {n: a.view(Labelled) for n, a in x.items()}
    found = ot.targets(ot.QLambda(0.9), **labelled, gamma=0.9)
    assert type(found) is Labelled
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(TypeError, match=r"q is a ndarray but reward is a labelled array.*labelled\.array\(q\)"):
        ot.targets(ot.QLambda(0.9), **{**labelled, "q": x["q"]}, gamma=0.9)


def test_numpy_imports_neither_torch_nor_jax_and_a_rule_older_than_it_and_a_first_call_inside_of_jit() -> None:
    pytest.importorskip("jax")
    script = """
from dataclasses import dataclass
import sys
import numpy as np
import offtrace as ot

x = {n: np.ones(3, np.float32) for n in ("reward", "q", "next_value", "log_pi", "log_mu")}
x |= {n: np.zeros(3, bool) for n in ("terminated", "truncated")}
wanted = ot.targets(ot.Retrace(0.9), **x, gamma=0.9)

@dataclass(frozen=True)
class Mine(ot.Trace):
    lam: float = 1.0
    reads = ("rho",)

    @staticmethod
    def factors(xp, pi, mu, rho, lam):
        return lam, xp.minimum(rho, 1.0), ot.INFINITY

mine = Mine(0.9)
assert "torch" not in sys.modules and "jax" not in sys.modules
import jax, jax.numpy as jnp
x = {n: jnp.asarray(a) for n, a in x.items()}
first = jax.jit(lambda x: ot.targets(ot.Retrace(0.9), **x, gamma=0.9))(x)  # the backend is imported inside of jit
found = first, ot.targets(mine, **x, gamma=0.9), jax.jit(lambda rule, x: ot.targets(rule, **x, gamma=0.9))(mine, x)
for made in found:
    assert jnp.allclose(made, wanted), made
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_change_of_any_kernel_compiles_all_of_them_anew() -> None:
    """Numba's cache looks at a kernel's own file only; its name stands for all files."""
    found = [kernel for kernel in vars(linear).values() if hasattr(kernel, "py_func")]
    assert [k.py_func.__name__ for k in found if k.py_func.__qualname__.endswith(f"_{DIGEST}")] == [
        "solve",
        "solve_big_rows",
    ]
