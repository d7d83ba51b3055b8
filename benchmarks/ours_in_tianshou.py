"""A plugin of pytest for peer_suites.py: the returns of tianshou's `Algorithm` are ours."""

from tianshou.algorithm import Algorithm  # pyright: ignore[reportMissingImports]

from offtrace.adapters import tianshou

Algorithm.compute_episodic_return = staticmethod(tianshou.compute_episodic_return)
Algorithm.compute_nstep_return = staticmethod(tianshou.compute_nstep_return)
