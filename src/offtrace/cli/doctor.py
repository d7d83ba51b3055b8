"""`offtrace doctor`: backends and devices, each compared with the definition, and the extras of the package."""

from __future__ import annotations

import platform
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

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
    parts = {"Compiled code": [compiled()], "Backends": backends(), "Extras": extras()}
    broken = sum(_shown(title, lines) for title, lines in parts.items())
    print(f"\n{broken} of these do not work." if broken else "\nAll that is there works.")
    return 1 if broken else 0


def _shown(title: str, lines: Iterable[Finding]) -> int:
    """Print the findings as they come; return how many of them do not work."""
    print(f"\n{title}")
    broken = 0
    for one in lines:
        print(f"  {MARKS[one.good]} {one.name}: {one.says}", flush=True)
        if one.remedy:
            print(f"      {one.remedy}")
        broken += one.good is False
    return broken


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
            computed = np.asarray(_on_host(offtrace.targets(trace, **arrays, gamma=0.97)), np.float64)
            wanted, scale = by_definition.corrections(trace, **given, gamma=0.97)
            worst = max(worst, float(np.max(np.abs(computed - given["q"] - wanted) / (1 + scale))))
    except Exception as error:  # whatever a broken installation raises is what the reader must see
        return Finding(
            False, name, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", "reinstall it"
        )
    took = f"in {time.perf_counter() - started:.1f} s with compiling"
    if not worst < 1e-4:  # JAX computes in float32 by default
        return Finding(False, name, f"targets differ from the definition by {worst:.1g}", "report it, with this output")
    return Finding(True, name, f"targets are the definition's, to {worst:.0e}, {took}")


def _on_host(array: Any) -> Any:
    return array.cpu() if hasattr(array, "cpu") else array


def compiled() -> Finding:
    """Where compiled code is kept, so that the next process need not compile it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it would say is said here
        function: Any = cached_njit()(_nothing)
    folder = function.stats.cache_path
    if folder is None:
        return Finding(
            None,
            "no folder can be written",
            "each process compiles anew",
            "set NUMBA_CACHE_DIR to a folder that can be written",
        )
    return Finding(True, "it is cached", f"in {folder} and other folders there")


def _nothing(x: float) -> float:
    return x


def backends() -> Iterator[Finding]:
    """Each backend on each of its devices."""
    yield checked("NumPy", np.asarray)
    for name, extra, devices in (("PyTorch", "torch", _torch), ("JAX", "jax", _jax)):
        if find_spec(extra) is None:
            yield missing(name, extra)
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
    return {name: lambda array, to=device: jax.device_put(_float32(array), to) for name, device in devices.items()}


def _float32(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype == np.float64 else array


def missing(name: str, extra: str) -> Finding:
    """A backend that is not installed."""
    return Finding(None, name, "it is not installed", install(extra))


def extras() -> Iterator[Finding]:
    """Each extra of the package, with what it lacks."""
    try:
        wanted = metadata.requires("offtrace") or []
    except metadata.PackageNotFoundError:
        yield Finding(None, "extras", "offtrace runs from its source and is not installed", "pip install .")
        return
    needs: dict[str, list[str]] = {}
    for line in wanted:
        what, _, marker = line.partition(";")
        extra = re.search(r"""extra\s*==\s*['"]([\w-]+)['"]""", marker)
        if extra and not what.startswith("offtrace["):
            needs.setdefault(extra[1], []).append(what.strip())
    for extra, requirements in sorted(needs.items()):
        lacking = sorted({said for requirement in requirements if (said := lacks(requirement))})
        yield Finding(
            None if lacking else True,
            extra,
            f"lacks {', '.join(lacking)}" if lacking else "complete",
            install(extra) if lacking else "",
        )


def lacks(requirement: str) -> str:
    """What is missing of a requirement such as "jax>=0.8" or "pandas>=2.2,<3"; nothing if it is met.

    >>> other = lacks("numpy>=1.0,<2").partition(" (")[0]
    >>> lacks("numpy>=1.0"), lacks("no-such-package-anywhere>=2"), other
    ('', 'no-such-package-anywhere', 'numpy>=1.0,<2')
    """
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    try:
        version = metadata.version(name[0])
    except metadata.PackageNotFoundError:
        return name[0]
    least, below = (re.search(rf"{sign}\s*([\d.]+)", requirement) for sign in (">=", "<"))
    old = least is not None and _numbers(version) < _numbers(least[1])
    new = below is not None and _numbers(version) >= _numbers(below[1])
    return f"{requirement} ({version} is installed)" if old or new else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
