"""Adapters: offtrace under the names of other libraries, so that a call there can be replaced line by line."""
