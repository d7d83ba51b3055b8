"""NumPy arrays: one compiled pass for each rule and kernel."""
