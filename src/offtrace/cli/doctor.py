"""`offtrace doctor`: backends and devices, each compared with the definition, and the extras of the package."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from packaging.requirements import Requirement

import offtrace
from offtrace._shared.compile_cache import cached_njit
from offtrace._shared.cores import cores
from offtrace._shared.extras import install
from offtrace.returns import by_definition
from offtrace.traces import Trace, rules

MARKS = {True: "✓", False: "✗", None: "–"}
Convert = Callable[[np.ndarray], Any]
"""From a NumPy array to an array of a backend, on a device."""


class Finding(NamedTuple):
    """One line of the report."""

    good: bool | None
    """False: it does not work. None: it is not there."""
    name: str
    says: str
    remedy: str = ""
    """What to do about it."""


def doctor() -> int:
    """Backends, devices and extras: each backend computes a few targets, which are compared with the definition.

    The exit status is 1 if something that is here does not work.

    Example: `offtrace doctor`
    """
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "numba", "scipy"))
    print(f"offtrace {offtrace.__version__}, Python {platform.python_version()}, {versions}")
    print(f"{platform.system()} on {platform.machine()}, {cores()} cores")
    broken = 0
    for title, findings in {"Compiled code": compiled(), "Backends": backends(), "Extras": extras()}.items():
        print(f"\n{title}")
        for each in findings:
            print(
                f"  {MARKS[each.good]} {each.name}: {each.says}" + f"\n      {each.remedy}" * bool(each.remedy),
                flush=True,
            )
            broken += each.good is False
    print(f"\n{broken} of these do not work." if broken else "\nAll that is there works.")
    return 1 if broken else 0


def chosen_rules() -> list[Trace]:
    """One rule for each kind of kernel: without a cap, with a recursive one, with one at read-out."""
    listed = [rule for rule in rules() if issubclass(rule, Trace) and rule.form == "normal" and rule.typical()]
    kinds = {(rule.per_decision, rule.recursive): rule for rule in reversed(listed) if "rho" in rule.reads}
    return [rule.typical()[0] for _, rule in sorted(kinds.items())]


def row(T: int = 40) -> dict[str, np.ndarray]:
    """A trajectory of two episodes, of which the first is cut by a limit."""
    rng = np.random.default_rng(0)
    reward, q, next_value = rng.normal(size=(3, T))
    log_pi, log_mu = np.log(rng.uniform(0.1, 1.0, (2, T)))
    steps = np.arange(T)
    flags = {"terminated": steps == T - 1, "truncated": steps == T // 2}
    return {"reward": reward, "q": q, "next_value": next_value, "log_pi": log_pi, "log_mu": log_mu, **flags}


def checked(name: str, convert: Convert) -> Finding:
    """The targets of a backend against the definition."""
    given = row()
    started = time.perf_counter()
    try:
        arrays = {key: convert(array) for key, array in given.items()}
        worst = 0.0
        for trace in chosen_rules():
            targets: Any = offtrace.targets(trace, **arrays, gamma=0.97)
            computed = np.asarray(targets.cpu() if hasattr(targets, "cpu") else targets, np.float64)
            wanted, scale = by_definition.corrections(trace, **given, gamma=0.97)
            worst = max(worst, float(np.max(np.abs(computed - given["q"] - wanted) / (1 + scale))))
    except Exception as error:  # whatever a broken installation raises is what the reader must see
        return Finding(False, name, f"{type(error).__name__}: {error}".splitlines()[0], "reinstall it")
    if not worst < 1e-4:  # JAX computes in float32 by default
        return Finding(False, name, f"targets differ from the definition by {worst:.1g}", "report it, with this output")
    seconds = time.perf_counter() - started
    return Finding(True, name, f"targets are the definition's, to {worst:.0e}, in {seconds:.1f} s with compiling")


def compiled() -> Iterator[Finding]:
    """Where compiled code is cached, so that the next process need not compile it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the finding says the same
        function: Any = cached_njit()(_nothing)
    if folder := function.stats.cache_path:
        yield Finding(True, "it is cached", f"in {folder} and other folders there")
    else:
        remedy = "set NUMBA_CACHE_DIR to a folder that can be written"
        yield Finding(None, "no folder can be written", "each process compiles anew", remedy)


def _nothing(x: float) -> float:
    return x


def backends() -> Iterator[Finding]:
    """Each backend on each of its devices."""
    yield checked("NumPy", np.asarray)
    for name, extra, devices in (("PyTorch", "torch", _torch), ("JAX", "jax", _jax)):
        if find_spec(extra) is None:
            yield Finding(None, name, "it is not installed", install(extra))
            continue
        try:
            conversions = devices()
        except Exception as error:
            yield Finding(False, name, f"it is there, but {type(error).__name__}: {error}", "reinstall it")
            continue
        for device, convert in conversions.items():
            yield checked(f"{name} on {device}", convert)
        if len(conversions) == 1:
            yield Finding(None, f"{name} on a GPU", f"{name} sees no device but the CPU")
        elif name == "JAX" and find_spec("jax_triton") is None:
            yield Finding(None, "Triton's kernels in JAX", "jax-triton is not installed", install("jax-gpu"))


def _torch() -> dict[str, Convert]:
    import torch

    devices = {"the CPU": "cpu"}
    devices |= {torch.cuda.get_device_name(i): f"cuda:{i}" for i in range(torch.cuda.device_count())}
    return {name: lambda array, to=device: torch.from_numpy(array).to(to) for name, device in devices.items()}


def _jax() -> dict[str, Convert]:
    import jax

    devices = {"the CPU": jax.devices("cpu")[0]} | {d.device_kind: d for d in jax.devices() if d.platform != "cpu"}
    return {name: lambda array, to=device: jax.device_put(array, to) for name, device in devices.items()}


def extras() -> Iterator[Finding]:
    """Each extra of the package, with what it lacks."""
    try:
        about = metadata.metadata("offtrace")
    except metadata.PackageNotFoundError:
        yield Finding(None, "extras", "offtrace runs from its source and is not installed", "pip install .")
        return
    wanted = [Requirement(line) for line in about.get_all("Requires-Dist", [])]
    for extra in sorted(about.get_all("Provides-Extra", [])):
        own = [each for each in wanted if each.marker and each.marker.evaluate({"extra": extra})]
        lacking = sorted({lack for each in own if (lack := lacks(each))})
        if lacking:
            yield Finding(None, extra, f"lacks {', '.join(lacking)}", install(extra))
        else:
            yield Finding(True, extra, "complete")


def lacks(wanted: Requirement) -> str:
    """What is missing of a requirement such as "jax>=0.8" or "pandas>=2.2,<3"; nothing if it is met.

    >>> other = lacks(Requirement("numpy>=1.0,<2")).partition(" (")[0]
    >>> lacks(Requirement("numpy>=1.0")), lacks(Requirement("no-such-package-anywhere>=2")), other
    ('', 'no-such-package-anywhere', 'numpy<2,>=1.0')
    """
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return wanted.name
    met = wanted.specifier.contains(version, prereleases=True)
    return "" if met else f"{wanted.name}{wanted.specifier} ({version} is installed)"
