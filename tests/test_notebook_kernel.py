"""In a real Jupyter kernel: a bar that changes in place and goes, results as tables, and a figure that is shown once."""

import sys
from collections import Counter
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
nbformat = pytest.importorskip("nbformat")

# Every step is drawn, from the first on: how often it would be depends on how fast the machine is.
SEARCH = """
import numpy as np
import offtrace as ot
from offtrace import operators
from offtrace._shared import progress_bar

progress_bar.FRAMES = 0.0
operators.falsify.__globals__["for_watchers"] = progress_bar.ProgressBar
operators.falsify(ot.Retrace(lam=0.9), states=2, tries=300)
"""
FIGURE = """
no, log_mu = np.zeros(4, bool), np.log(np.full(4, 0.5))
ot.credit_figure([ot.Retrace(lam=0.9)], terminated=no, truncated=no, log_pi=log_mu, log_mu=log_mu)
"""


def test_what_a_notebook_shows() -> None:
    seen: list[tuple[int, str, dict[str, Any]]] = []

    class Client(nbclient.NotebookClient):
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            seen.append((cell_index, msg["msg_type"], msg["content"]))
            return super().process_message(msg, cell, cell_index)

    cells = [nbformat.v4.new_code_cell(code) for code in (SEARCH, FIGURE)]
    book = nbformat.v4.new_notebook(cells=cells)
    client = Client(book, timeout=None, kernel_name="python3")
    client.create_kernel_manager().kernel_spec.argv[0] = sys.executable
    client.execute()
    counted = Counter(kind for at, kind, _ in seen if at == 0)
    assert counted["display_data"] == 1, counted
    assert counted["update_display_data"] >= 2, counted
    assert counted["stream"] == 0, counted
    first = next(content for at, kind, content in seen if at == 0 and kind == "display_data")
    assert "<progress" in first["data"]["text/html"]
    bar, table = cells[0].outputs
    assert bar.data["text/html"] == ""
    assert table.data["text/html"].startswith("<table>")
    assert [sorted(out.data) for out in cells[1].outputs] == [["image/png", "text/plain"]]
