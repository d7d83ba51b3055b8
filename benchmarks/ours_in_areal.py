"""A plugin of pytest for peer_suites.py: AReaL's `apply_rejection_sampling` is ours."""

from __future__ import annotations

from typing import Any

from areal.utils import functional  # pyright: ignore[reportMissingImports]

from offtrace.adapters import areal

functional.apply_rejection_sampling = areal.apply_rejection_sampling


def left_out(item: Any) -> str | None:
    """Why a test does not concern ours."""
    if item.name == "test_ratio_exactly_at_upper_bound":
        return "rounds a ratio at the bound to float32"
    return "reads AReaL's configuration only" if item.cls is not None and "Config" in item.cls.__name__ else None
