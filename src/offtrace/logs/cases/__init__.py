"""Cases whose truth is known, on which traces are tried against the other estimators: `offtrace logs evidence`."""
