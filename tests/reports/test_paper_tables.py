"""Tables for a paper: the page's own numbers as CSV, LaTeX and BibTeX."""

from __future__ import annotations

import re

import polars as pl

import offtrace as ot
from offtrace.reports.study import paper_tables, views
from reports import synthetic


def test_the_tables_hold_what_the_page_shows(tmp_path) -> None:
    shown = views.Views(*synthetic.records(seeds=5))
    paper_tables.write(shown, tmp_path)
    read = pl.read_csv(tmp_path / "table.csv")
    best = shown.best
    assert read["method"].to_list() == best["method"].to_list()
    assert read["mean"].to_list() == best["mean"].to_list()
    tex = (tmp_path / "table.tex").read_text()
    body = tex.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == len(shown.summary.methods)
    assert {line.count("&") for line in body} == {len(shown.summary.environments)}
    assert tex.count(r"\mathbf") == best.filter(mark="best").height
    assert tex.isascii() or set(re.sub(r"%.*", "", tex)) <= set(map(chr, range(128)))


def test_every_listed_rule_is_cited() -> None:
    text = paper_tables.bibtex([rule.title for rule in ot.rules()])
    keys = re.findall(r"@misc\{(.+?),", text)
    assert len(keys) == len(set(keys))
    works = {work for rule in ot.rules() for work in rule.citation.split("; ") if work}
    years = {year for work in works for year in re.findall(r"\((\d{4})\)", work)}
    assert years == set(re.findall(r"year = \{(\d{4})\}", text))
    assert text.count("{") == text.count("}")
    assert text.count("title = ") == len(keys)
    retrace = paper_tables.bibtex(["Retrace"])
    assert "author = {Munos and Stepleton and Harutyunyan and Bellemare}" in retrace
    assert paper_tables.bibtex(["my own rule"]) == ""
