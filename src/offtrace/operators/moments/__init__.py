"""The variance of the sampled correction."""
