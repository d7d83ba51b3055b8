"""No kernel's result depends on what the memory that it asks for held before."""

from __future__ import annotations
