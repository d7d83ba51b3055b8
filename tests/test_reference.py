"""The reference has every public name."""

import importlib
import re
from pathlib import Path

import pytest

import offtrace as ot

DOCS = Path(__file__).parents[1] / "docs"
PACKAGES = ("mdps", "operators", "learners", "deep", "logs", "studies", "reports")
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
