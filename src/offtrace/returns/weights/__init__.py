"""Weights of decisions and rejection, for trainers that correct off-policy data."""
