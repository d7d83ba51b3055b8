"""How Sphinx builds these pages: MyST for prose, autodoc for the reference. Neither the build nor a reader fetches anything."""

from docutils import nodes

import offtrace

project = "offtrace"
author = "The offtrace authors"
copyright = "The offtrace authors"
version = release = offtrace.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
highlight_language = "none"  # formulas stand in plain blocks; code says that it is Python
default_role = "literal"  # docstrings write names in single backticks
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # nearly all would be Any: what an array means is told in the contract
add_module_names = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_title = f"offtrace {version}"
html_show_sphinx = False
html_copy_source = False


def setup(app):
    """Connect what follows."""
    app.connect("autodoc-process-docstring", keep_stars)
    app.connect("doctree-read", strip_blocks)


def keep_stars(app, what, name, obj, options, lines):
    """Docstrings write mathematics: |x| and Q*. A bar is a bar, and a star with no partner on its line is a star."""
    lines[:] = [escaped(line) for line in lines]


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
    """Doctest needs a blank line between an output and the end of its block; a reader does not."""
    for block in doctree.findall(nodes.literal_block):
        text = block.astext().rstrip()
        block.rawsource = text
        block.children = []
        block += nodes.Text(text)
