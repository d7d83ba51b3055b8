"""Kernels for NVIDIA GPUs, in Triton: what they compute, and which of them are launched. PyTorch and JAX share them."""
