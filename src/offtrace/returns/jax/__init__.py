"""JAX arrays: XLA's kernels, and Pallas' on a GPU."""
