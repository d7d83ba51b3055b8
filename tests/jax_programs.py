"""Programs of JAX with a constant of ours changed, beside those without: no test throws away what others have compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import jax
import pytest

changes = jax.make_user_context(())
"""What is changed now. JAX keeps a program with this value, and takes it for no other."""


@contextmanager
def changed(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """A constant that a program is made with has another value in here."""
    before = changes.value
    with pytest.MonkeyPatch.context() as patch, changes((*before, (module.__name__, name, value))):
        patch.setattr(module, name, value)
        yield
