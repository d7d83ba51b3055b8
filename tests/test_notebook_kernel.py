"""Long work in a real Jupyter kernel shows a bar that changes in place: `benchmarks/oldest.py extras notebook` runs this."""

import sys
from collections import Counter
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
nbformat = pytest.importorskip("nbformat")

FALSIFY = """
import offtrace as ot
from offtrace import operators
operators.falsify(ot.Retrace(lam=0.9), budget=3.0)
"""
LEARN = """
from offtrace import learners, mdps
walk = mdps.random_walk(19)
both = dict(target=mdps.uniform(walk), behavior=mdps.uniform(walk))
learners.evaluate(ot.RBIS(lam=0.9), walk, **both, alpha=0.1, steps=100_000, seeds=20)
"""


def test_progress_is_seen_and_goes() -> None:
    seen: list[tuple[int, str, dict[str, Any]]] = []

    class Client(nbclient.NotebookClient):
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            seen.append((cell_index, msg["msg_type"], msg["content"]))
            return super().process_message(msg, cell, cell_index)

    cells = [nbformat.v4.new_code_cell(code) for code in (FALSIFY, LEARN)]
    book = nbformat.v4.new_notebook(cells=cells)
    client = Client(book, timeout=None, kernel_name="python3")
    client.create_kernel_manager().kernel_spec.argv[0] = sys.executable
    client.execute()
    for i, cell in enumerate(cells):
        counted = Counter(kind for at, kind, _ in seen if at == i)
        assert counted["display_data"] == 1, counted
        assert counted["update_display_data"] >= 2, counted
        assert counted["stream"] == 0, counted
        first = next(content for at, kind, content in seen if at == i and kind == "display_data")
        assert "<progress" in first["data"]["text/html"]
        assert [out.data["text/html"] for out in cell.outputs if out.output_type == "display_data"] == [""]
