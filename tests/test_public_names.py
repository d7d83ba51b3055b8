"""Only public names of other libraries are used: what is private there may change with any release."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "offtrace"
PRIVATE = (
    "numba.core",
    "numba.np",
    "llvmlite",
    "jax.core",
    "jax.interpreters",
    "jaxlib",
    "triton.compiler",
    "triton.runtime",
    "triton.backends",
    "ctypes.CDLL",
    "ctypes.PyDLL",
    "ctypes.pythonapi",
)
"""Without an underscore, but no part of what these libraries promise; and C functions called from Python."""
ALLOWED = {
    "jax.core.Tracer": "JAX documents it as the way to ask whether a value is traced",
    "torchrl.objectives.value.ValueEstimatorBase._AcceptedKeys": "torchrl documents it as what an estimator overrides",
}


def names_of_others(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name of another library that a file uses, as a dotted path, and its line."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    modules[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    modules[alias.asname or alias.name] = f"{module}.{alias.name}"
                    yield node.lineno, f"{module}.{alias.name}"
            case _:
                pass
    for node in ast.walk(tree):
        parts: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in modules:
            yield getattr(node, "lineno", 0), ".".join([modules[inner.id], *reversed(parts)])


def is_private(path: str) -> bool:
    package, *parts = path.split(".")
    if path in ALLOWED:
        return False
    if package in ("offtrace", "__future__") or (package in sys.stdlib_module_names and package != "ctypes"):
        return False
    hidden = any(part.startswith("_") and not part.endswith("__") for part in parts)
    return hidden or any(path == p or path.startswith(p + ".") for p in PRIVATE)


@pytest.mark.parametrize(
    ("line", "private"),
    [
        ("from numba.core import cgutils", True),
        ("import numba\nnumba.core.types", True),
        ("import jax._src.core", True),
        ("import torch\ntorch._C._get()", True),
        ("import ctypes\nctypes.CDLL('libcuda.so')", True),
        ("from numba import njit\nimport jax.numpy as jnp\njnp.where", False),
        ("import numpy as np\nnp.core_of_this", False),
    ],
)
def test_the_test(line: str, private: bool) -> None:
    assert any(is_private(path) for _, path in names_of_others(ast.parse(line))) == private


def test_no_private_name_of_another_library_is_used() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line} {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, name in names_of_others(ast.parse(path.read_text()))
        if is_private(name)
    ]
    assert not found, "\n".join(found)


def test_nothing_of_another_library_is_replaced() -> None:
    """No attribute is set on a module or class of another library, and no object changes its class."""
    found: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        others = {
            alias.asname or alias.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name.partition(".")[0] not in sys.stdlib_module_names
        }
        targets = [t for node in ast.walk(tree) if isinstance(node, ast.Assign) for t in node.targets]
        found += [
            f"{path.relative_to(SOURCE)}:{target.lineno} {ast.unparse(target)}"
            for target in targets
            if isinstance(target, ast.Attribute)
            and (target.attr == "__class__" or (isinstance(target.value, ast.Name) and target.value.id in others))
        ]
    assert not found, "\n".join(found)
