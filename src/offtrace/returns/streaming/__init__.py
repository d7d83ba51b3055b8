"""Eligibility traces, fed step by step."""
