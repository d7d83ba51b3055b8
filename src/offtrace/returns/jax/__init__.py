"""JAX arrays: XLA's kernels, and Triton's on a GPU."""
