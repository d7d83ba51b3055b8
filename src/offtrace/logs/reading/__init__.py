"""Logs of any source into checked arrays."""
