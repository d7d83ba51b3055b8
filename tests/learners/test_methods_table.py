"""The list of learning methods, its page and its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offtrace.cli import main
from offtrace.learners import GQ, Method, listed_methods, method, register_method
from offtrace.learners.methods import registry as table
from offtrace.learners.methods.registry import method_named

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_page_has_the_table() -> None:
    """`offtrace methods --markdown` makes it; it stands at the end of docs/methods.md."""
    assert PAGE.read_text(encoding="utf-8").endswith("\n\n" + table.as_markdown(table.rows()) + "\n")


TITLES = """
Sarsa(0.9)  TD(0.9)  ABTD(0.5)  GTD(0.9)  GTD2(0.9)  PGTD2(0.9)  TDRC(0.9)  HTD(0.9)  GQ(0.9)  Gradient ABQ(0.5)  ETD(0.9)
ETD(0.9, 0.8)  PTD(0.9)  PQ(0.9)  True online TD(0.9)  True online Sarsa(0.9)  Expected Sarsa(0.9)  V-trace(0.9)
Tree Backup(0.9) on states  TD with ‖e‖ ≤ 2
"""


def test_titles_have_the_numbers_of_a_method() -> None:
    calls = [row.call for row in table.rows() if method_named(row.name) and "," not in row.values]
    titles = {eval(call, {"method": method}).title for call in calls}
    assert titles == set(TITLES.strip().replace("\n", "  ").split("  "))


def test_every_line_of_code_makes_its_method() -> None:
    for row in table.rows():
        made = eval(row.call, {"method": method})
        assert isinstance(made, Method)
        assert made.values in row.values
        assert all(row[:3])
        assert row.citation
        assert row.needs


def test_every_method_tells_its_facts() -> None:
    for m in listed_methods():
        assert m.equation
        assert m.citation
        assert m.proven
        assert m.needs
        assert all(method_named(name) is m for name in (m.name, m.__name__, *m.aliases))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "gtd2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("GTD2(λ)")
    assert 'method("gtd2", alpha=0.1, lam=0.9, eta=1.0)' in out
    assert main(["methods", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(table.rows())
    assert main(["methods", "gtdd"]) == 2
    assert "did you mean 'GTD" in capsys.readouterr().err


def test_names() -> None:
    with pytest.raises(ValueError, match=r"no learning method named 'gtdd'; did you mean 'GTD\(λ\)'\?.* Known: .*TDRC"):
        method("gtdd")
    with pytest.raises(
        TypeError, match=r"GTD2 has no parameter 'lamb'; did you mean 'lam'\? It takes: alpha, lam, eta, trace"
    ):
        method("gtd2", lamb=0.5)
    with pytest.raises(TypeError, match="Retrace has no parameter 'eta'"):
        method("retrace", eta=0.5)
    with pytest.raises(ValueError, match="alpha must be above 0"):
        method("td", alpha=0.0)
    with pytest.raises(ValueError, match="eta must be above 0, got -1"):
        method("gtd", eta=-1.0)
    with pytest.raises(TypeError, match="give lam or a trace"):
        method("gtd", lam=0.5, trace=method("rbis", lam=0.9).trace)
    assert register_method(GQ) is GQ

    class Other(GQ):
        pass

    with pytest.raises(ValueError, match="belongs to GQ already"):
        register_method(Other)
