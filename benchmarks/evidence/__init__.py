"""Cases whose truth is known, and how every estimator does on them: `python benchmarks/evidence`."""
