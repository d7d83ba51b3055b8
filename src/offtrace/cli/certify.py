"""`offtrace certify` and `offtrace check`: what a trace does on a finite MDP, with a proof that another program checks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.whole_files import read_npz
from offtrace.cli.options import Output
from offtrace.cli.rule_options import named_or_in_file, parameters

EXAMPLES = ("alternating", "one_state_two_actions", "powers_of_two", "q_lambda_tight")
"""Functions of `offtrace.mdps` that return an MDP and two policies."""
ARRAYS = ("P", "R", "gamma", "target", "behavior")


def certify(
    mdp: Positional[str],
    *,
    trace: Annotated[str, arg(metavar="NAME")] = "retrace",
    rule: Annotated[Mapping[str, Any], arg(name="", constructor_factory=lambda: parameters(default_lam=1.0))] = {},
    proof: Output = None,
) -> int:
    """‖Z‖ and the spectral radius of a trace's operator on an MDP, as intervals, and the conditions of the theory.

    Example: `offtrace certify alternating --trace retrace --lam 0.9 --proof retrace.json`

    Args:
        mdp: alternating, one_state_two_actions, powers_of_two or q_lambda_tight; or an .npz file with P [S, A, S], R [S, A],
            gamma, target and behavior [S, A], and terminal [S] where there are such states
        trace: the rule
        proof: write a proof in exact rationals, which `offtrace check` verifies
    """
    from offtrace import operators

    given = problem(mdp)
    print(operators.certify(named_or_in_file(trace, rule, 1.0, given[0].gamma), *given, proof=proof))
    return 0


def problem(name: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """The MDP, the target and the behaviour policy."""
    from offtrace import mdps

    if name in EXAMPLES:
        return getattr(mdps, name)()
    if not name.endswith(".npz"):
        raise ValueError(
            f"there is no example {name!r}{did_you_mean(name, EXAMPLES)}: {', '.join(EXAMPLES)}, or an .npz file"
        )
    try:
        there = read_npz(Path(name))
    except Exception as error:  # a changed byte can lead a reader of ZIP files anywhere
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise ValueError(f"{name} is no .npz file of plain arrays, or it is damaged ({error})") from error
    lacking = [each for each in ARRAYS if each not in there]
    if lacking:
        raise ValueError(
            f"{name} has no array {lacking[0]!r}{did_you_mean(lacking[0], list(there))}: it has {sorted(there)}"
        )
    terminal = there.get("terminal")
    mdp = mdps.MDP(there["P"], there["R"], gamma=float(there["gamma"]), terminal=terminal)
    return mdp, there["target"], there["behavior"]


def check(file: Positional[Path]) -> int:
    """Verify a proof that `certify` has written. The checker is one file that needs nothing but Python, `check_proof.py`.

    Example: `offtrace check retrace.json`

    Args:
        file: the proof
    """
    from offtrace.operators import check_proof

    if not file.exists():
        raise FileNotFoundError(2, "No such file or directory", str(file))
    refused = check_proof.main(file)
    if refused:
        print(refused, file=sys.stderr)
    return 1 if refused else 0
