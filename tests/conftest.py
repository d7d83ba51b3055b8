"""Triton looks at this when it is first imported, by whichever test: its kernels are then run by its interpreter, on the CPU."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
