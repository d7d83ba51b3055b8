"""`offtrace doctor`: what is there is held to the definition, and what is missing or wrong is said with what to do."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import offtrace
from offtrace.cli import doctor, main

ROOT = Path(__file__).resolve().parents[2]


def test_a_rule_of_each_kind_is_tried() -> None:
    kinds = {(trace.per_decision, trace.recursive) for trace in doctor.chosen_rules()}
    assert kinds == {(True, False), (False, True), (False, False)}


def test_what_works_and_what_does_not() -> None:
    assert doctor.checked("NumPy", np.asarray).good
    wrong = doctor.checked("off by a bit", lambda array: array if array.dtype == bool else array + 0.01)
    assert wrong.good is False
    assert "differ from the definition" in wrong.says

    def broken(array: np.ndarray) -> np.ndarray:
        raise RuntimeError("the driver is too old\nand more")

    found = doctor.checked("broken", broken)
    assert (found.good, found.says) == (False, "RuntimeError: the driver is too old")


def test_every_extra_is_looked_at() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = {one.name for one in doctor.extras()}
    assert found <= set(stated)
    assert {"plot", "torch", "jax"} <= found


def test_the_command_without_other_backends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert f"offtrace {offtrace.__version__}" in said
    assert "✓ NumPy: targets are the definition's" in said
    assert "– JAX: it is not installed\n      pip install '.[jax]'" in said
    assert said.endswith("All that is there works.\n")


@pytest.mark.parametrize("group", [[], ["study"], ["deep"], ["logs"]])
def test_who_names_no_command_reads_which_there_are(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(group) == 2
    assert "\ncommands:\n  " in capsys.readouterr().out


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.+)$", text, re.M)[1] == offtrace.__version__  # pyright: ignore[reportOptionalSubscript]
