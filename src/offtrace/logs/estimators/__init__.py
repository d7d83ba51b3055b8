"""Estimators of V(π) from logs."""
