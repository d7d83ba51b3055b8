"""A rule's own lines as a C function that goes along a row: decay, ratio and cap of each step from π, μ, ρ and the parameters.

Only these few lines are compiled for a rule, in a tenth of a second. They are printed for this, without a call where an operation
will do, and without the constants: rules that differ in these only are one function. Numba keeps it on disk under a key in which
the printed text stands.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from offtrace.returns.numpy.by_address import DONE, FLOATS, compiled_at
from offtrace.traces.symbols import Lines, NumbersApart

INPUTS = ("pi", "mu", "rho")
ARGUMENTS = (*INPUTS, "numbers", "by_step", "decay", "ratio", "cap", "T", "apart")
"""`numbers` holds constants and parameters, `by_step` the parameters that are arrays, `apart` elements from each other."""
SIGNATURE = types.int64(*[FLOATS] * 8, *[types.int64] * 2)


class _NumbaPrinter(NumbersApart):
    """Scalars: NumPy's functions would make 0-d arrays of them, or are slower."""

    def operation(self, operation: str, *parts: str) -> str:
        """One operation."""
        if operation == "where":
            return f"({parts[1]} if {parts[0]} else {parts[2]})"
        if operation == "minimum":
            return f"({parts[0]} if {parts[0]} < {parts[1]} else {parts[1]})"
        if operation == "maximum":
            return f"({parts[0]} if {parts[0]} > {parts[1]} else {parts[1]})"
        return super().operation(operation, *parts)

    def function(self, name: str) -> str:
        """NumPy's, of one number."""
        return f"np.{name}"


def source(
    lines: Lines, reads: tuple[str, ...], are_arrays: tuple[bool, ...], product: bool
) -> tuple[str, list[float]]:
    """The text of a rule's function, for what it reads and for parameters of which some are arrays; and its constants.

    They stand in `numbers` before the parameters. The `product` decay · ratio, in the place of the decay, is all that a rule
    without a cap is asked for.
    """
    names = {name: f"{name}_t" if name in reads else "np.nan" for name in INPUTS}
    printer = _NumbaPrinter(names)
    results = [printer.text(symbol) for symbol in lines.results]
    constants = len(printer.numbers)
    before = [f"k{i} = numbers[{i}]" for i in range(constants)]
    within = [f"{name}_t = {name}[t]" for name in reads if name in INPUTS]
    for i, is_array in enumerate(are_arrays):
        place = sum(is_array == other for other in are_arrays[:i])
        if is_array:
            within.append(f"p{i} = by_step[{place} * apart + t]")
        else:
            before.append(f"p{i} = numbers[{constants + place}]")
    within += printer.lines
    if product:
        within.append(f"decay[t] = {results[0]} * {results[1]}")
    else:
        within += [f"{name}[t] = {made}" for name, made in zip(("decay", "ratio", "cap"), results, strict=True)]
    body = [*before, "for t in range(T):", *(f"    {line}" for line in within), f"return {DONE}"]
    text = [
        "def making(text):",
        f"    def factors_of_row({', '.join(ARGUMENTS)}):",
        "        _ = text",  # part of the key on disk
        *(f"        {line}" for line in body),
        "    return factors_of_row",
    ]
    return "\n".join(text), printer.numbers


BEYOND = 10_000
"""More lines than this file has."""


@cache
def compiled(text: str) -> int:
    """The address of the function of this text."""
    space: dict[str, Any] = {"np": np, "__name__": __name__}
    # Numba keeps compiled code beside the file that is named here. It also looks up the function's lines in it, and Python 3.13
    # fails where these are something else; it does not look for lines beyond the end of the file.
    exec(compile("\n" * BEYOND + text, __file__, "exec"), space)
    return compiled_at(SIGNATURE, space["making"](text))
