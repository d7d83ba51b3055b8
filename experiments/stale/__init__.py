"""The experiment `stale`: see README.md."""
