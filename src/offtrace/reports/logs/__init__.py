"""The page of an evaluation from logs."""
