"""Small things that several layers need, stated once. This is the lowest layer: it knows nothing of traces, and is private."""
