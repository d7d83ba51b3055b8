"""Every public name is in the reference and has an example; the modules that define them are type-checked in strict mode."""

import importlib
import inspect
import re
import sys
import tomllib
from pathlib import Path

import pytest

import offtrace as ot

DOCS = Path(__file__).parents[1] / "docs"
PACKAGES = (
    "mdps",
    "operators",
    "learners",
    "policy",
    "deep",
    "logs",
    "studies",
    "reports",
    "testing",
    "returns.sharded",
)
ADAPTERS = ("adapters.torchrl", "adapters.rlax", "adapters.verl")
NOT_CALLED = {"INFINITY"}  # constants that the pages of rules explain


def documented() -> set[str]:
    """The last part of every name that a page of the reference asks autodoc for, and of every rule, which the list gives."""
    text = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
    named = re.findall(r"\.\. auto(?:function|class|exception|data):: ([\w.]+)", text)
    return {name.rpartition(".")[2] for name in named} | {rule.__name__ for rule in ot.rules()}


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_every_public_name_is_in_the_reference(package: str) -> None:
    module = importlib.import_module(f"offtrace.{package}" if package else "offtrace")
    assert set(module.__all__) - NOT_CALLED - documented() == set()


def made_by_others() -> set[str]:
    """Classes whose page shows no arguments: results, and what only functions of the user see."""
    text = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
    return set(re.findall(r"\.\. autoclass:: (?:[\w.]+\.)?(\w+)\(\)", text))


@pytest.mark.parametrize("package", ["", *PACKAGES, *ADAPTERS])
def test_what_a_user_calls_or_makes_has_an_example(package: str) -> None:
    module = importlib.import_module(f"offtrace.{package}" if package else "offtrace")
    without = []
    for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
        value = getattr(module, name)
        if not getattr(value, "__module__", "").startswith("offtrace") or name in made_by_others():
            continue
        called = inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, Exception))
        if called and ">>> " not in (value.__doc__ or ""):
            without.append(name)
    assert without == []


def test_public_modules_are_checked_in_strict_mode() -> None:
    root = DOCS.parent
    homes = set()
    for package in ("", *(f".{name}" for name in (*PACKAGES, *ADAPTERS))):
        module = importlib.import_module(f"offtrace{package}")
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        defined = {getattr(getattr(module, name), "__module__", "") for name in names}
        homes |= {module.__name__} | {name for name in defined if name.startswith("offtrace.")}
    files = {str(Path(str(inspect.getsourcefile(sys.modules[home]))).relative_to(root)) for home in homes}
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pyright"]
    assert files - set(settings["strict"]) == set()
