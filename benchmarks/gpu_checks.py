"""What only a real GPU can show: prints a line PASS or FAIL for each check, and exits with the number of failures.

    python benchmarks/gpu_checks.py

Operations of rules under Triton; rows of 2^20 steps; NaN for an impossible action; products beyond the range of floats, through
PyTorch and through JAX; losses of policies. Everything is compared with the NumPy backend in float64, and calls that are planned
already with the same calls that are planned anew.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from listed_rules import complete, trajectory_aware

import offtrace as ot

OPERATIONS: dict[str, Callable[..., Any]] = {
    "** 0.5": lambda xp, pi, mu, rho, c: xp.minimum(rho, 1.0) ** 0.5,
    "** -0.5": lambda xp, pi, mu, rho, c: (1.0 + rho) ** -0.5,
    "** 2, 3": lambda xp, pi, mu, rho, c: pi**2 + pi**3,
    "** c": lambda xp, pi, mu, rho, c: rho**c,
    "c **": lambda xp, pi, mu, rho, c: c ** (pi - 0.5),
    "/": lambda xp, pi, mu, rho, c: 0.3 / (rho + 0.5) + rho / (2.0 + c),
    "abs": lambda xp, pi, mu, rho, c: abs(pi - mu) + xp.abs(mu - 0.5),
    "negative": lambda xp, pi, mu, rho, c: 1.5 + -pi,
    "sqrt": lambda xp, pi, mu, rho, c: xp.sqrt(pi),
    "exp": lambda xp, pi, mu, rho, c: xp.exp(-rho),
    "log": lambda xp, pi, mu, rho, c: xp.log(1.0 + rho),
    "minimum, maximum": lambda xp, pi, mu, rho, c: xp.maximum(0.2, xp.minimum(rho, mu + c)),
    "comparisons": lambda xp, pi, mu, rho, c: 0.3 * (rho < c) + (pi >= mu) * 0.2 + xp.where(pi == mu, 0.3, 0.1),
    "and, or, not": lambda xp, pi, mu, rho, c: xp.where(((rho > c) & (pi < 0.7)) | ~(mu > 0.5), 0.3, c),
}


def mean_of(formulas: list[Callable[..., Any]]) -> Callable[..., Any]:
    return lambda *arguments: sum(formula(*arguments) for formula in formulas) * (1.0 / len(formulas))


def rule_of(formula: Callable[..., Any]) -> ot.Trace:
    @dataclass(frozen=True)
    class Formula(ot.Trace):
        c: float = 0.8
        reads: ClassVar = ("pi", "mu", "rho")

        @staticmethod
        def factors(xp, pi, mu, rho, c):
            return 0.9, formula(xp, pi, mu, rho, c), ot.INFINITY

    return Formula()


def step_of(formula: Callable[..., Any]) -> ot.Trace:
    def step(xp: Any, carry: Any, now: Any) -> Any:
        carry = carry * 0.9 * formula(xp, now.pi, now.mu, now.rho, now.lam)
        return carry, carry

    return ot.StepTrace(step, lam=0.8, reads=("pi", "mu", "rho"))


def batch(shape: tuple[int, ...], dtype: Any, log_ratio: Any = None, ends: float = 0.0) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    reward, q, next_value = rng.normal(size=(3, *shape))
    log_pi, log_mu = np.log(rng.uniform(0.2, 1.0, (2, *shape)))
    if log_ratio is not None:
        log_pi, log_mu = np.minimum(log_ratio, 0.0), np.minimum(-log_ratio, 0.0)
    made = {"reward": reward, "q": q, "next_value": next_value, "log_pi": log_pi, "log_mu": log_mu}
    terminated = rng.random(shape) < ends
    made = {n: a.astype(dtype) for n, a in made.items()}
    return {**made, "terminated": terminated, "truncated": np.zeros(shape, bool)}


def by_torch(trace: Any, x: dict[str, Any], **options: Any) -> np.ndarray:
    import torch

    tensors = {n: torch.from_numpy(a).cuda() for n, a in x.items()}
    return ot.corrections(trace, **tensors, gamma=0.99, **options).detach().cpu().numpy()


def by_jax(trace: Any, x: dict[str, Any]) -> np.ndarray:
    import jax

    with jax.enable_x64(x["reward"].dtype == np.float64):
        arrays = {n: jax.numpy.asarray(a) for n, a in x.items()}
        return np.asarray(jax.jit(lambda a: ot.corrections(trace, **a, gamma=0.99))(arrays))


def error(found: np.ndarray, trace: Any, x: dict[str, Any]) -> float:
    """Relative to Σ|γβδ|, which is Δ of |δ|."""
    wide = {n: a.astype(float) if a.dtype.kind == "f" else a for n, a in x.items()}
    wanted = ot.corrections(trace, **wide, gamma=0.99)
    delta = wide["reward"] + 0.99 * np.where(wide["terminated"], 0.0, wide["next_value"]) - wide["q"]
    none = np.zeros_like(delta)
    scale = ot.corrections(trace, **{**wide, "reward": np.abs(delta), "q": none, "next_value": none}, gamma=0.99)
    least = 1e-300 if x["reward"].dtype == np.float64 else 1e-36
    fits = scale < np.finfo(x["reward"].dtype).max / 2
    with np.errstate(invalid="ignore"):
        return float(np.max(np.where(fits, np.abs(found - wanted) / (scale + least), 0.0)))


BOUND = {np.dtype(np.float32): 3e-6, np.dtype(np.float64): 3e-12}
BACKENDS = {"torch": by_torch, "jax": by_jax}


def close(backend: str, trace: Any, x: dict[str, Any]) -> Callable[[], str]:
    def check() -> str:
        found = BACKENDS[backend](trace, x)
        off = error(found, trace, x)
        return "" if off <= BOUND[x["reward"].dtype] else f"error {off:.2g}"

    return check


def nan_where_it_must_be(backend: str, trace: Any) -> Callable[[], str]:
    def check() -> str:
        x = batch((3, 40), np.float64)
        x["terminated"][:, 19] = True
        x["log_mu"][1, 30] = -np.inf
        found = BACKENDS[backend](trace, x)
        wanted = np.zeros((3, 40), bool)
        if trace.needs_mu:
            wanted[1, max(20, 31 - (trace.horizon or 40)) : 30] = True
        return "" if (np.isnan(found) == wanted).all() else f"NaN at {np.argwhere(np.isnan(found)).tolist()}"

    return check


def losses() -> dict[str, Callable[..., Any]]:
    """Losses of `offtrace.policy`, of π's logits [B, T, A]."""
    from offtrace import policy

    def one(x: dict[str, Any], *names: str) -> dict[str, Any]:
        return {n: x[n].gather(-1, x["action"][..., None])[..., 0] if x[n].ndim == 3 else x[n] for n in names}

    ends = ("reward", "next_value", "terminated", "truncated")
    return {
        "vtrace": lambda x: policy.vtrace(**one(x, *ends, "log_pi", "log_mu"), value=x["reward"] / 2, gamma=0.9),
        "acer": lambda x: policy.acer(ot.Retrace(), **x, gamma=0.9, bound=0.7),
        "reactor": lambda x: policy.reactor(ot.RBIS(), **{**x, **one(x, "log_mu")}, gamma=0.9, bound=2.0),
        "weighted": lambda x: policy.weighted(
            ot.HistoryBounded(2.0), **one(x, "log_pi", "log_mu"), advantage=x["reward"]
        ),
        "clipped": lambda x: policy.clipped(
            **one(x, "log_pi", "log_mu"), log_prox=one(x, "log_mu")["log_mu"] - 0.1, advantage=x["reward"]
        ),
        "group": lambda x: policy.weighted(
            ot.QLambda(),
            **one(x, "log_pi", "log_mu"),
            advantage=policy.group_advantages(x["reward"][:, 0], x["action"][:, 0]),
        ),
    }


def as_on_the_host(loss: Callable[..., Any]) -> Callable[[], str]:
    """The loss and its gradient on the GPU against those on the CPU."""

    def check() -> str:
        import torch

        rng = np.random.default_rng(2)
        made = batch((64, 50), np.float64, ends=0.05)
        x = {n: torch.from_numpy(a) for n, a in made.items() if n not in ("q", "log_pi", "log_mu")}
        logits = torch.from_numpy(rng.normal(size=(3, 64, 50, 4)))
        x |= {
            "q": logits[0],
            "log_mu": logits[1].log_softmax(-1),
            "action": torch.from_numpy(rng.integers(4, size=(64, 50))),
        }
        found = []
        for device in ("cpu", "cuda"):
            variable = logits[2].to(device).requires_grad_()
            made_there = {n: a.to(device) for n, a in x.items()} | {"log_pi": variable.log_softmax(-1)}
            value = loss(made_there).loss
            (slope,) = torch.autograd.grad(value, variable)
            found.append((value.detach().cpu(), slope.cpu()))
        off = max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))
        return "" if off < 1e-12 else f"error {off:.2g}"

    return check


def extremes() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    tens = 30 * np.log(10)
    return {
        "down and up": np.r_[0.0, [-tens] * 11, [tens] * 11, np.zeros(100)],
        "up and down": np.r_[0.0, [tens] * 11, [-tens] * 12, np.zeros(99)],
        "slopes": np.r_[np.zeros(3), [-16.0] * 60, [16.0] * 60],
        "wild": rng.normal(size=123) * 60,
        "ordinary": rng.normal(size=123),
    }


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    for name, loss in losses().items():
        yield f"loss, {name}", as_on_the_host(loss)
    for trace in (ot.Retrace(0.9), *trajectory_aware(0.9)):
        yield f"distributions, {trace!r}", partial(distributions, trace)
    for trace in (ot.Retrace(0.9), *trajectory_aware(0.9)):
        for shape in ((4096, 256), (512, 1024), (64, 5000)):
            yield f"repeated, {shape}, {trace!r}", partial(repeated, trace, shape)
    small = batch((5, 70), np.float64, ends=0.02)
    names = list(OPERATIONS)
    for part in (names[:5], names[5:10], names[10:]):  # few rules, since each is compiled
        formula = mean_of([OPERATIONS[name] for name in part])
        yield f"rule, {'; '.join(part)}", close("torch", rule_of(formula), small)
        yield f"step, {'; '.join(part)}", close("torch", step_of(formula), small)
    long = [ot.Retrace(0.9), *trajectory_aware(0.9), *(replace(rule, horizon=5) for rule in trajectory_aware(0.9))]
    for dtype, ends in ((np.float32, 0.001), (np.float32, 0.0), (np.float64, 0.001)):
        row = batch((1, 1 << 20), dtype, ends=ends)
        for trace in long:
            yield f"2^20 steps, ends {ends}, {np.dtype(dtype)}, {trace!r}", close("torch", trace, row)
    many = batch((70_000, 64), np.float32)  # more rows than a grid has blocks along its second axis
    for trace in (ot.Retrace(0.9), *{rule.recursive: rule for rule in trajectory_aware(0.9)}.values()):
        yield f"70000 rows, {trace!r}", close("torch", trace, many)
    row = batch((1, 1 << 20), np.float32, ends=0.001)
    for trace in (ot.Retrace(0.9), *(rule for rule in trajectory_aware(0.9) if rule.recursive)):
        yield f"2^20 steps, JAX, {trace!r}", close("jax", trace, row)
    rules = [
        *complete(), ot.TruncatedIS((2.0, 1.0)), ot.TruncatedIS(horizon=60), ot.TruncatedIS(1e-200),
    ]  # fmt: skip
    for backend in BACKENDS:
        for trace in rules:
            yield f"μ = 0, {backend}, {trace!r}", nan_where_it_must_be(backend, trace)
            for dtype in (np.float32, np.float64):
                # A program of JAX is compiled for each shape and rule: there the rows of one batch are enough.
                for name, log_ratio in extremes().items() if backend == "torch" else ():
                    x = batch((1, 123), dtype, log_ratio[None])
                    x["q"][:], x["next_value"][:] = 0.0, 0.0
                    x["reward"][:, :-1] *= name in ("wild", "ordinary")
                    yield f"{name}, {backend}, {np.dtype(dtype)}, {trace!r}", close(backend, trace, x)
                together = batch((5, 123), dtype, np.stack(list(extremes().values())))
                yield f"all together, {backend}, {np.dtype(dtype)}, {trace!r}", close(backend, trace, together)


def distributions(trace: ot.Rule) -> str:
    """Distributional targets on the GPU against those on the CPU."""
    import torch

    rng = np.random.default_rng(3)
    x = batch((32, 20), np.float64, ends=0.05)
    x |= dict(zip(("probabilities", "next_probabilities"), rng.dirichlet(np.ones(51), (2, 32, 20)), strict=True))
    x["support"] = np.linspace(-5, 5, 51)
    given = {n: torch.from_numpy(a) for n, a in x.items() if n not in ("q", "next_value")}
    here, there = (
        ot.distributional_targets(trace, **{n: a.to(device) for n, a in given.items()}, gamma=0.9).probabilities.cpu()
        for device in ("cpu", "cuda")
    )
    off = float((here - there).abs().max())
    return "" if off < 1e-12 else f"error {off:.2g}"


def repeated(trace: ot.Trace, shape: tuple[int, int]) -> str:
    """A call that is planned already, on other data, in threads and streams of their own, and while a graph is captured."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from offtrace.returns.torch import cuda

    def drawn(seed: int) -> dict[str, Any]:
        x = batch(shape, np.float32, np.random.default_rng(seed).normal(size=shape))
        return {n: torch.as_tensor(a).cuda() for n, a in x.items()} | {"gamma": 0.99}

    def planned_anew(x: dict[str, Any]) -> Any:
        cuda._plans.clear()
        return ot.targets(trace, **x)

    given = [drawn(seed) for seed in range(8)]
    wanted = [planned_anew(x) for x in given]
    found = [ot.targets(trace, **x) for x in given]

    def in_own_stream(i: int) -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):
            made = [ot.targets(trace, **given[i]) for _ in range(50)][-1]
            torch.cuda.current_stream().synchronize()
        return made

    torch.cuda.synchronize()
    with ThreadPoolExecutor(8) as pool:
        found += pool.map(in_own_stream, range(8))
    static, captured = (
        {n: a.clone() if isinstance(a, torch.Tensor) else a for n, a in given[0].items()},
        torch.cuda.CUDAGraph(),
    )
    with torch.cuda.graph(captured):
        out = ot.targets(trace, **static)
    for x in given:
        for name, array in static.items():
            if isinstance(array, torch.Tensor):
                array.copy_(x[name])
        captured.replay()
        found.append(out.clone())
    wrong = [i for i, (a, b) in enumerate(zip(found, 3 * wanted, strict=True)) if not torch.equal(a, b)]
    return f"calls {wrong} of {len(found)} differ" if wrong else ""


def main() -> int:
    failures = 0
    wanted = sys.argv[1:]
    for name, check in checks():
        if not all(word in name for word in wanted):
            continue
        try:
            wrong = check()
        except Exception as problem:
            traceback.print_exc()
            wrong = f"{type(problem).__name__}: {problem}"
        failures += bool(wrong)
        print("FAIL" if wrong else "PASS", name, wrong, flush=True)
    print(f"{failures} failures")
    return min(failures, 100)


if __name__ == "__main__":
    sys.exit(main())
