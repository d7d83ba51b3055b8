"""The paper's claims, each decided by computation."""
