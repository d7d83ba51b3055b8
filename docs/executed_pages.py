"""Tutorials: pages whose Python is executed when the documentation is built, and which can be downloaded as notebooks.

In a page of `tutorials/` every block of Python runs, one after the other, in one namespace and in an empty folder. What it
prints, the value of its last line, the figures that it makes, and the HTML pages that it writes stand below it. A block that
raises ends the build. Beside the page lies `NAME.ipynb` with the same text, code and results; the page links to it.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import re
import shutil
import sys
import tempfile
import types
import warnings
from pathlib import Path

import offtrace
from offtrace.traces.registry import unregister

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")
FOLDER = "tutorials/"


class Output:
    """What a block leaves behind: text, and figures as PNG."""

    def __init__(self, text: str, figures: list[bytes]) -> None:
        self.text, self.figures = text, figures


def executed(code: str, names: dict[str, object], file: str) -> Output:
    """Run a block: statements, and the value of the last line if it is an expression."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tree, said = ast.parse(code, file), io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")  # `plt.show()`: figures are taken below
        exec(compile(tree, file, "exec"), names)
        value = eval(compile(ast.Expression(last.value), file, "eval"), names) if isinstance(last, ast.Expr) else None
    figures = [plt.figure(number) for number in plt.get_fignums()]
    if hasattr(value, "savefig") and value not in figures:
        figures.append(value)
    drawn = [_png(figure) for figure in figures]
    plt.close("all")
    silent = value is None or hasattr(value, "savefig") or code.rstrip().endswith(";")
    text = said.getvalue() + ("" if silent else f"{value}\n")
    return Output(text, drawn)


def _png(figure: object) -> bytes:
    made = io.BytesIO()
    figure.savefig(made, format="png", dpi=110, bbox_inches="tight")
    return made.getvalue()


def read(app, docname, source):
    """Put results below the blocks of a tutorial, and write its notebook."""
    if not docname.startswith(FOLDER) or docname == FOLDER + "index":
        return
    module = sys.modules["tutorial"] = types.ModuleType(
        "tutorial"
    )  # dataclasses look for the module that they are made in
    text, names, page, cells = source[0], vars(module), [], []
    folder = Path(app.outdir) / "_tutorials"
    folder.mkdir(parents=True, exist_ok=True)
    at, short = 0, docname.removeprefix(FOLDER)
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        for number, block in enumerate(BLOCK.finditer(text)):
            output = executed(block[1], names, f"{docname}, block {number + 1}")
            prose = text[at : block.start()]
            page += [prose, block[0], *_shown(output, folder, f"{short}-{number}"), *_moved(Path(work), folder)]
            cells += [_markdown(prose), _code(block[1], output)]
            at = block.end()
    for rule in offtrace.rules():
        if rule.__module__ == "tutorial":
            unregister(rule)  # the tables of rules are those of the package
    cells.append(_markdown(text[at:]))
    page.append(text[at:])
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    book = {"cells": [c for c in cells if c["source"]], "metadata": kernel, "nbformat": 4, "nbformat_minor": 4}
    (folder / f"{short}.ipynb").write_text(json.dumps(book, ensure_ascii=False, indent=1), encoding="utf-8")
    title, _, rest = "".join(page).partition("\n")
    source[0] = (
        f'{title}\n\n<a href="../_tutorials/{short}.ipynb" download>Download this page as a notebook</a>\n{rest}'
    )


def _shown(output: Output, folder: Path, name: str) -> list[str]:
    parts = [f"\n\n```text\n{output.text.rstrip()}\n```\n"] if output.text.strip() else []
    for i, png in enumerate(output.figures):
        (folder / f"{name}-{i}.png").write_bytes(png)
        parts.append(
            f'\n\n<img src="../_tutorials/{name}-{i}.png" alt="The figure of the code above" style="max-width: 100%">\n'
        )
    return parts


def _moved(work: Path, folder: Path) -> list[str]:
    parts = []
    for html in work.glob("*.html"):
        shutil.move(html, folder / html.name)
        at = f"../_tutorials/{html.name}"
        parts.append(f'\n\n<iframe src="{at}" title="{html.name}" class="made"></iframe>\n')
        parts.append(f'\n<a href="{at}">Open {html.name} by itself</a>\n')
    return parts


def _markdown(text: str) -> dict:
    text = LINK.sub(r"\1", text)  # the other pages are not where the notebook is
    return {"cell_type": "markdown", "metadata": {}, "source": text.strip().splitlines(keepends=True)}


def _code(code: str, output: Output) -> dict:
    said = (
        [{"output_type": "stream", "name": "stdout", "text": output.text.splitlines(keepends=True)}]
        if output.text
        else []
    )
    for png in output.figures:
        data = {"image/png": base64.b64encode(png).decode()}
        said.append({"output_type": "display_data", "metadata": {}, "data": data})
    source = code.rstrip().splitlines(keepends=True)
    return {"cell_type": "code", "metadata": {}, "execution_count": None, "source": source, "outputs": said}
