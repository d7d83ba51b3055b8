"""Learning methods beside the traces."""
