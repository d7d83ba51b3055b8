"""One compiled pass from the user's arrays to corrections, built around a rule and a kernel.

For a block of four rows at a time, in scratch that stays in the cache:

    δ and discount      from `rows`
    g_t = discount_t decay_{t+1},  ratio_t,  cap_t      from the rule
    Δ                   from the kernel
    out = q + Δ, or Δ

Bad values are noticed on the way, at one comparison each; `trajectory.explain_bad_value` then finds them. Memory: O(T) for
each thread.

Numba keeps compiled code on disk under a key made of the closure. Rule and kernel are plain functions there, which pickle by
name, and `fingerprint` stands for their code and for that of all kernels, which call each other, so that an edited kernel is
compiled anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import numpy as np
from numba import njit
from numba.extending import register_jitable

from offtrace.returns.numpy import (
    cap_at_readout,
    cap_at_readout_by_halves,
    cap_at_readout_lanes,
    every_pair,
    recursive_cap,
    reverse_recursion,
    rule_math,
    scalar_math,
    scaled_numbers,
    td_error_rows,
)
from offtrace.returns.numpy.scalar_math import LARGEST_LOG, at_each, exp
from offtrace.returns.numpy.td_error_rows import td_errors
from offtrace.trajectory import TOLERANCE

KERNELS = (
    every_pair,
    scalar_math,
    cap_at_readout_by_halves,
    reverse_recursion,
    cap_at_readout,
    recursive_cap,
    rule_math,
    td_error_rows,
    scaled_numbers,
    cap_at_readout_lanes,
)
Kernel = Callable[..., bool]
"""A function that Numba compiles, which finds the types of arguments and results itself."""
Pass = Callable[..., bool]
"""A compiled pass over rows; it returns whether a value was bad."""
ROWS = 4
SCRATCH = 7  # arrays of rows × width that a thread needs


def width(T: int) -> int:
    """T rounded up to an odd number of cache lines: rows at a power of two would evict each other from the cache."""
    return (-(-T // 8) | 1) * 8


def _code(code: CodeType) -> str:
    """What a function does, without where it stands."""
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return repr((code.co_code, constants, code.co_names, code.co_varnames))


def fingerprint_of(*parts: ModuleType | FunctionType) -> str:
    """What stands for the code of functions and modules, and of the kernels, in the key of a compiled function on disk."""
    sources = []
    for part in (*KERNELS, *parts):
        if isinstance(part, ModuleType):
            sources.append(Path(str(part.__file__)).read_bytes())
        else:
            sources.append(_code(part.__code__).encode())
    return hashlib.sha256(b"".join(sources)).hexdigest()


@cache
def compiled(kernel: Kernel, *modules: ModuleType) -> Callable[..., bool]:
    """A kernel by itself, compiled; `modules` are those that it needs beside the kernels'."""
    fingerprint = fingerprint_of(*modules)

    @njit(cache=True, nogil=True, error_model="numpy")
    def run(*arguments):
        _ = fingerprint  # part of the key on disk
        return kernel(*arguments)

    return run


@cache
def build(rule: FunctionType, lines: FunctionType, reads: tuple[str, ...], kernel: Kernel) -> Pass:
    """The compiled pass for a rule (`Trace.factors`), for what it reads, and for a kernel.

    Of a user's rule the printed lines are compiled: they call no function that Numba does not know. A printed function has no
    name under which Numba would find it again on disk, so our own rules are compiled as they stand.
    """
    ours = rule.__module__.startswith("offtrace.")
    rule = rule if ours else lines
    fingerprint = fingerprint_of(rule)
    factors = register_jitable(error_model="numpy", fastmath={"contract"})(rule)
    reads_pi, reads_mu, reads_rho = "pi" in reads, "mu" in reads, "rho" in reads

    @njit(cache=ours, nogil=True, error_model="numpy", fastmath={"contract"})
    def run(
        first, stop, parameters, lags, add_q, reward, q, next_value, terminated, truncated,
        gamma, gammas, log_pi, log_mu, valid, scratch, out,
    ):  # fmt: skip
        _ = fingerprint  # part of the key on disk
        T = reward.shape[1]
        delta, g, ratio, cap, correction = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
        γ, decay, ok = scratch[5], scratch[6, 0], np.ones((scratch.shape[1], T), np.bool_)
        γ[:] = gamma
        for i in range(delta.shape[0]):  # nothing happens in the columns beyond T
            delta[i, T:], g[i, T:], ratio[i, T:], cap[i, T:] = 0.0, 0.0, 1.0, 1.0
        bad = False
        for b0 in range(first, stop, ROWS):
            n = min(ROWS, stop - b0)
            bad |= td_errors(
                b0, n, reward, q, next_value, terminated, truncated, gammas, valid, γ, ok, delta, g
            )  # fmt: skip
            for i in range(n):
                b = b0 + i
                for t in range(T):
                    π = μ = ρ = np.nan
                    if reads_rho:
                        log_μ = np.float64(log_mu[b, t])
                        log_ρ = np.float64(log_pi[b, t]) - log_μ
                        ρ = exp(log_ρ if ok[i, t] else 0.0)
                        bad |= ok[i, t] & ~((log_ρ < LARGEST_LOG) & (log_μ < np.inf))
                    if reads_pi:
                        log_π = np.float64(log_pi[b, t])
                        π = exp(log_π if ok[i, t] else 0.0)
                        bad |= ok[i, t] & ~(log_π <= TOLERANCE)
                    if reads_mu:
                        log_μ = np.float64(log_mu[b, t])
                        μ = exp(log_μ if ok[i, t] else 0.0)
                        bad |= ok[i, t] & ~((log_μ <= TOLERANCE) & (log_μ > -np.inf))
                    decay[t], ratio[i, t], cap[i, t] = factors(rule_math, π, μ, ρ, *at_each(parameters, b, t))
                for t in range(1, T):
                    g[i, t - 1] *= decay[t]
            if bad:
                break
            kernel(delta[:n], g[:n], ratio[:n], cap[:n], lags, correction[:n])
            for i in range(n):
                b = b0 + i
                if add_q:
                    for t in range(T):
                        out[b, t] = np.float64(q[b, t]) + correction[i, t]
                else:
                    out[b] = correction[i, :T]
        return bad

    return run
