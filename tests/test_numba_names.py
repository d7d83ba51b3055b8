"""Which names of Numba that are not public the package uses, and where. pyproject.toml pins the versions that have them."""

from __future__ import annotations

import ast
from pathlib import Path

import offtrace

SOURCE = Path(offtrace.__file__).parent
PUBLIC = {"numba", "numba.extending"}
"""The modules that Numba's reference documents."""
IMPORTED = {
    "_shared/compile_cache.py": {"caching.FunctionCache", "caching.IndexDataCacheFile", "types.Type"},
    "_shared/compiled_parts.py": {"codegen.JITCodeLibrary", "compiler.CompilerBase", "compiler.DefaultPassBuilder"},
    "_shared/typed_first.py": {"typing.arraydecl", "typing.builtins", "typing.templates"},
    "returns/numpy/by_address.py": {
        "cgutils",
        "ccallback.CFunc",
        "typing.templates.Signature",
        "np.numpy_support.carray",
    },
}
OPTIONS = {
    "pipeline_class": {"_shared/compiled_parts.py"},
    "no_cpython_wrapper": {"_shared/compiled_parts.py"},
}
"""Options of `numba.njit` that are not documented."""


def imported(text: str) -> set[str]:
    """The names of Numba's inner modules that a file imports, less "numba." and "core."."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "numba":
            if node.module not in PUBLIC:
                found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {n.name for n in node.names if n.name.startswith("numba.") and n.name not in PUBLIC}
    return {name.removeprefix("numba.").removeprefix("core.") for name in found}


def named(text: str) -> set[str]:
    """The options that a file passes on, as keywords or as keys."""
    nodes = list(ast.walk(ast.parse(text)))
    keys = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return OPTIONS.keys() & (keys | {node.arg for node in nodes if isinstance(node, ast.keyword)})


def test_no_other_name_is_used() -> None:
    files = {file.relative_to(SOURCE).as_posix(): file.read_text() for file in SOURCE.rglob("*.py")}
    assert {file: found for file, text in files.items() if (found := imported(text))} == IMPORTED
    assert {option: {file for file, text in files.items() if option in named(text)} for option in OPTIONS} == OPTIONS
