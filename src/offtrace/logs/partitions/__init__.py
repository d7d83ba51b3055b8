"""Logs that are larger than a machine's memory: files of whole episodes, one after the other, here or on a Ray cluster."""
