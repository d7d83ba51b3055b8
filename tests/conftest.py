"""What must be set before a library is first imported, by whichever test."""

import os
from pathlib import Path

# Triton's kernels are run by its interpreter, on the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")
# What one test, worker or subprocess has compiled with JAX, the others need not compile again.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
