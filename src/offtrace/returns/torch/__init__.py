"""PyTorch tensors: NumPy's kernels on the CPU, Triton's on CUDA, and operators that autograd knows."""
