"""How Sphinx builds these pages: MyST for prose, autodoc for the reference. Neither the build nor a reader fetches anything."""

import gc
import re
import sys
from dataclasses import fields
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import offtrace
from offtrace.learners.methods import registry

sys.path.insert(0, str(Path(__file__).parent))
import executed_pages

# Pages are trees whose nodes know their parents, and they live until all is written: searching them for garbage, again and
# again, takes a tenth of the time.
gc.set_threshold(100_000, 50, 1000)

project = "offtrace"
author = "The offtrace authors"
copyright = "The offtrace authors"
version = release = offtrace.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "mathematics"]
html_math_renderer = "unicode"
exclude_patterns = ["_build"]
highlight_language = "none"  # code says that it is Python
default_role = "literal"  # docstrings write names in single backticks
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    name: name for name in ("ArrayLike", "Seed", "Names", "Environments", "StepSize", "Toml", "Table")
}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100  # a longer signature has a line for each parameter
add_module_names = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_js_files = ["offline.js"]
html_title = f"offtrace {version}"
html_show_sphinx = False
html_copy_source = False

log = logging.getLogger(__name__)
COLUMNS = 100  # of code: what a laptop shows without scrolling, see _static/wide.css


def setup(app):
    """Connect what follows."""
    app.add_directive("rules-table", RulesTable)
    app.add_directive("rules-reference", RulesReference)
    app.add_directive("methods-table", MethodsTable)
    app.connect("autodoc-process-docstring", keep_stars)
    app.connect("autodoc-process-signature", plain_aliases)
    app.connect("doctree-read", strip_blocks)
    app.connect("source-read", executed_pages.read)
    app.connect("build-finished", write_explorer)


def write_explorer(app, exception):
    """The explorer is in the same folder as the page about it."""
    if exception is None and app.builder.format == "html":
        from offtrace import reports

        reports.write_explorer(Path(app.outdir) / "explore.html")


def keep_stars(app, what, name, obj, options, lines):
    """Docstrings write mathematics: |x| and Q*. A bar is a bar, and a star with no partner on its line is a star."""
    lines[:] = [escaped(line) for line in lines]


def plain_aliases(app, what, name, obj, options, signature, returned):
    """Sphinx prints an alias inside a union as the call that refers to it: its name is enough."""
    return tuple(text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text) for text in (signature, returned))


def escaped(line):
    """A line as reStructuredText, but for literals and code, which stay as they are."""
    if line.startswith((" ", ">>>", "...")):
        return line
    parts = line.split("`")  # what stands between backticks has an odd place
    parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
    if sum(part.count("*") for part in parts[::2]) % 2:
        parts[::2] = [part.replace("*", r"\*") for part in parts[::2]]
    return "`".join(parts)


def strip_blocks(app, doctree):
    """Doctest needs a blank line between an output and the end of its block; a reader does not. No line is too long."""
    for block in doctree.findall(nodes.literal_block):
        text = block.astext().rstrip()
        for line in too_long(text):
            log.warning("a line of code has %d characters, %d fit: %s", len(line), COLUMNS, line, location=block)
        block.rawsource = text
        block.children = []
        block += nodes.Text(text)


def too_long(text):
    """The lines of code in a block that a reader would have to scroll. What code prints may be longer: wide.css breaks it."""
    lines = text.splitlines()
    if any(line.startswith(">>>") for line in lines):
        lines = [line for line in lines if line.startswith((">>>", "..."))]
    return [line for line in lines if len(line) > COLUMNS]


def kind_of(rule):
    """The section in which a rule stands."""
    return "uncorrected" if rule.uncorrected else "per-decision" if rule.per_decision else "trajectory-aware"


class RulesOfAKind(SphinxDirective):
    """What is made from the list of rules: a new rule stands there without being written down again."""

    required_arguments = 1

    def run(self):
        """The lines of all rules of the kind that is named, as Markdown."""
        rules = [rule for rule in offtrace.rules() if kind_of(rule) == self.arguments[0]]
        parent = nodes.container()
        self.state.nested_parse(StringList(self.lines(rules), "rules"), self.content_offset, parent)
        return parent.children


class RulesTable(RulesOfAKind):
    """A row for each rule: how it is made, β, what it reads, what is proven, from where it is."""

    def lines(self, rules):
        """A table."""
        of_return = all(rule.uncorrected for rule in rules)
        head = ["class", "return", "from"] if of_return else ["class", "β_t", "reads", "recursive condition", "from"]
        return [
            f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *(self.row(r, of_return) for r in rules))
        ]

    def row(self, rule, of_return):
        """The cells."""
        parameters = ", ".join(field.name for field in fields(rule) if field.init and field.name != "horizon")
        cited = "; ".join(re.sub(r" \((\d{4})\).*", r" \1", part) for part in rule.citation.split("; ") if "(" in part)
        cells = [f"`{rule.__name__}({parameters})`", rule.formula.replace("*", r"\*").replace("|", r"\|")]
        if not of_return:
            letters = {"pi": "π", "mu": "μ", "rho": "ρ"}
            condition = {True: "holds", False: "fails", None: "not known"}[rule.recursive_condition]
            cells += ["greedy π" if rule.needs_greedy else ", ".join(letters[r] for r in rule.reads) or "–"]
            cells += [f"{condition}; {rule.proven}" if rule.proven else condition]
        return [*cells, cited]


class MethodsTable(SphinxDirective):
    """All learning methods, as `offtrace methods --markdown` prints them."""

    def run(self):
        """The table."""
        parent = nodes.container()
        self.state.nested_parse(
            StringList(registry.as_markdown(registry.rows()).splitlines()), self.content_offset, parent
        )
        return parent.children


class RulesReference(RulesOfAKind):
    """The documentation of each rule, with what it has of its own."""

    def lines(self, rules):
        """An `autoclass` each."""
        made = ["```{eval-rst}", ".. currentmodule:: offtrace"]
        for rule in rules:
            own = [name for name in vars(rule) if not name.startswith("_") and not hasattr(offtrace.Trace, name)]
            made += [
                f".. autoclass:: {rule.__module__}.{rule.__name__}",
                *([f"   :members: {', '.join(own)}"] if own else []),
            ]
        return [*made, "```"]
