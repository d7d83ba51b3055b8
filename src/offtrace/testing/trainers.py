"""`check_weights` and `check_loss`: hand over your trainer's function, and read which mistake it makes.

The function is called on small random batches: rows that begin with a prompt, end in padding and have a hole, as from a tool. Its
result is compared with ours, and where it differs, with what each known mistake would give. Nothing of the function is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np

from offtrace._shared.extras import install
from offtrace._shared.suggestions import closest, ending
from offtrace.policy import PolicyLoss, loss
from offtrace.policy.policy_loss import LEVELS as RATIO_LEVELS
from offtrace.policy.policy_loss import MEANS, named_loss
from offtrace.returns import weights
from offtrace.returns.weights.decisions import LEVELS
from offtrace.traces import ImportanceSampling, Trace

Batch = dict[str, Any]
"""Arrays by name."""
Results = Sequence[np.ndarray]
"""Weights and a metric; or a loss, its gradient, and both again of micro-batches."""
ROWS, STEPS, BATCHES = 6, 12, 2
GIVEN_TO_WEIGHTS = ("log_pi", "log_mu", "mask")
GIVEN_TO_LOSSES = ("log_pi", "log_prox", "log_mu", "advantage", "mask")
DENOMINATORS = ("tokens", "rows")
COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
HALVES = slice(0, STEPS // 2), slice(STEPS // 2, None)


class Wrong(NamedTuple):
    """What a function with a mistake returns."""

    mistake: str
    explanation: str
    results: Results


@dataclass(frozen=True)
class TrainerCheck:
    """The verdict of `check_weights` or `check_loss`. It is true where the function is right, and prints as a sentence."""

    checked: str
    """What the function was compared with."""
    mistake: str | None
    """The name of the mistake, "unknown" where none of those known fits, or None."""
    explanation: str
    """What the mistake is, or where the result differs."""
    off: float
    """The largest difference, as a share of the largest number."""

    def __bool__(self) -> bool:
        return self.mistake is None

    def __str__(self) -> str:
        if self:
            return f"{self.checked}: right, to {self.off:.0e}."
        return f"{self.checked}: wrong, off by {self.off:.2g}.\n{self.mistake}: {self.explanation}"

    __repr__ = __str__


def check_weights(
    fn: Callable[..., Any],
    trace: Trace | None = None,
    *,
    level: str = "token",
    names: Mapping[str, str] | None = None,
    tolerance: float = 1e-5,
    seed: int = 0,
    **options: Any,
) -> TrainerCheck:
    """Compare your weights π/μ of decisions with `weights(trace, level=level, **options)`; where they differ, name the mistake.

    `fn` is called with tensors [B, T] by the names of its parameters: log_pi, with a gradient, log_mu, mask; `names` says yours,
    {"old_log_probs": "log_pi"}. It returns the weights [B, T], or a tuple of them and a dict of metrics: a metric whose name is
    "mean_ratio" must be the mean of ρ over decisions before truncation. Without a trace it is plain importance sampling.

    >>> def mine(old, rollout, mask):
    ...     return ((old - rollout) * mask).sum(-1, keepdim=True).exp().expand_as(old).detach()
    >>> check_weights(mine, names={"old": "log_pi", "rollout": "log_mu"})
    ImportanceSampling(horizon=None, lam=1.0) at token: wrong, off by 0.89.
    sequence ratio: the weights are those of level "sequence", where "token" was meant.
    """
    rule = trace or ImportanceSampling()
    call = Called(fn, names or {}, GIVEN_TO_WEIGHTS)
    checked = f"{rule!r} at {level}"
    pairs: list[tuple[Results, Results]] = []
    wrong: list[list[Wrong]] = []
    differentiates = False
    for number in range(BATCHES):
        x = batch(seed + number)
        given = {name: x[name] for name in GIVEN_TO_WEIGHTS}
        out: Any = call(given)
        metrics: Mapping[str, Any] = {}
        if isinstance(out, tuple):
            out, metrics = cast("tuple[Any, Mapping[str, Any]]", out)
        differentiates |= bool(getattr(out, "requires_grad", False))
        got = np.where(x["mask"], _numbers(out, x["mask"].shape), 0.0)
        right = weights(rule, **given, level=level, **options)
        ratios = np.exp(x["log_pi"] - x["log_mu"])[x["mask"]]
        results, wanted = [got], [right]
        if "mean_ratio" in metrics:
            results, wanted = [got, np.array(float(metrics["mean_ratio"]))], [right, ratios.mean()]
        pairs.append((results, wanted))
        mistakes = list(_wrong_weights(rule, level, options, given))
        if "mean_ratio" in metrics:
            after = right[x["mask"]].mean()
            mistakes = [w._replace(results=(*w.results, wanted[1])) for w in mistakes]
            says = "the metric is taken of the truncated weights: it no longer shows how far the policies are apart."
            mistakes.append(Wrong("truncation before the metric", says, (right, np.array(after))))
        wrong.append(mistakes)
    verdict = _verdict(checked, pairs, wrong, tolerance)
    if verdict and differentiates:
        says = "the weights carry a gradient: detach them, or the loss has a second term."
        return replace(verdict, mistake="gradient through the weight", explanation=says)
    return verdict


def check_loss(
    fn: Callable[..., Any],
    name: str | PolicyLoss = "ppo",
    *,
    names: Mapping[str, str] | None = None,
    tolerance: float = 1e-5,
    seed: int = 0,
    **options: Any,
) -> TrainerCheck:
    """Compare your loss and its gradient with `policy.loss(name, **options)`, and name the mistake where they differ.

    `fn` is called with tensors by the names of its parameters: log_pi, which carries the gradient, log_prox (the "old" policy),
    log_mu (the one that acted), advantage and mask, all [B, T]; `names` says yours. It returns the loss, one number. If it takes
    tokens or rows, the denominators of the whole batch, it is called on micro-batches, too, which must sum to the whole.

    >>> import torch
    >>> def mine(log_pi, log_prox, advantage, mask):
    ...     ratio = (log_pi - log_prox).exp()
    ...     each = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    ...     return ((each * mask).sum(-1) / mask.sum(-1)).mean()
    >>> check_loss(mine, "ppo")
    ppo: wrong, off by 0.66.
    wrong denominator: the mean is "seq-mean-token-mean", where "token-mean" was meant.
    """
    parts = named_loss(name)
    parts = replace(parts, mean=options.pop("mean", parts.mean))
    call = Called(fn, names or {}, (*GIVEN_TO_LOSSES, *DENOMINATORS))
    by_part = bool(set(DENOMINATORS) & set(call.asked.values()))
    pairs: list[tuple[Results, Results]] = []
    wrong: list[list[Wrong]] = []
    for number in range(BATCHES):
        x = batch(seed + number)
        right = _ours(parts, x, options)
        results, wanted = _theirs(call, x), right
        mistakes = list(_wrong_losses(parts, x, options))
        if by_part:
            results, wanted = (*results, *_theirs(call, x, parts=True)), (*right, *right)
            local = _sum_of_parts(parts, x, options)
            mistakes = [w._replace(results=(*w.results, *w.results)) for w in mistakes]
            says = "each micro-batch is divided by its own number of tokens or rows: parts do not sum to the whole."
            mistakes.append(Wrong("normalisation by micro-batch", says, (*right, *local)))
        pairs.append((results, wanted))
        wrong.append(mistakes)
    return _verdict(parts.name, pairs, wrong, tolerance)


def batch(seed: int) -> Batch:
    """Rows with a prompt, a hole and padding, [B, T]; ratios from a third to three."""
    rng = np.random.default_rng(seed)
    shape = (ROWS, STEPS)
    log_mu = -rng.exponential(size=shape) - 0.1
    log_prox, log_pi = np.array(log_mu), np.array(log_mu)
    log_prox += 0.4 * rng.normal(size=shape)
    log_pi += 0.6 * rng.normal(size=shape)
    begin, end = rng.integers(1, 4, ROWS), rng.integers(7, STEPS + 1, ROWS)
    at = np.arange(STEPS)
    mask = (at >= begin[:, None]) & (at < end[:, None]) & (at != 5)
    return {
        "log_pi": np.minimum(log_pi, -0.01), "log_prox": np.minimum(log_prox, -0.01), "log_mu": np.minimum(log_mu, -0.01),
        "advantage": np.repeat(rng.normal(size=(ROWS, 1)), STEPS, axis=1), "mask": mask,
    }  # fmt: skip


class Called:
    """The user's function, called with tensors by the names of its parameters."""

    def __init__(self, fn: Callable[..., Any], names: Mapping[str, str], known: tuple[str, ...]) -> None:
        self.fn = fn
        parameters = {n: p for n, p in inspect.signature(fn).parameters.items() if p.kind not in COLLECTING}
        self.asked = {theirs: names.get(theirs, theirs) for theirs in parameters if names.get(theirs, theirs) in known}
        for theirs, parameter in parameters.items():
            ours = names.get(theirs, theirs)
            if ours not in known and parameter.default is inspect.Parameter.empty:
                raise TypeError(
                    f"fn has a parameter {theirs!r}, which is not known{ending(closest(ours, known))} "
                    f"Name it by names={{{theirs!r}: …}}. Known: {', '.join(known)}"
                )

    def __call__(self, given: Mapping[str, Any]) -> Any:
        """What the function returns; log_pi has a gradient."""
        torch = _torch()
        tensors: dict[str, Any] = dict(given)
        arrays: dict[str, np.ndarray] = {n: a for n, a in tensors.items() if isinstance(a, np.ndarray)}
        tensors |= {n: torch.from_numpy(a.copy()) for n, a in arrays.items()}
        if "log_pi" in arrays:
            tensors["log_pi"].requires_grad_()
        return self.fn(**{theirs: tensors[ours] for theirs, ours in self.asked.items() if ours in tensors})


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ImportError(f"checks of trainers need PyTorch: {install('torch')}", name="torch") from None
    return torch


def _numbers(out: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The result as an array [B, T]; one for each row is spread."""
    array = np.asarray(out.detach().cpu().double().numpy() if hasattr(out, "detach") else out, np.float64)
    if array.shape not in (shape, (shape[0], 1)):
        raise ValueError(f"fn returned weights of shape {array.shape}: they must be {shape}, one for each step")
    return np.broadcast_to(array, shape)


def _verdict(
    checked: str, pairs: list[tuple[Results, Results]], wrong: list[list[Wrong]], tolerance: float
) -> TrainerCheck:
    """Right, or the first mistake that gives what the function gave on all batches."""
    off = max(_distance(got, right) for got, right in pairs)
    if off <= tolerance:
        return TrainerCheck(checked, None, "", off)
    for each in zip(*wrong, strict=True):
        if all(_distance(pair[0], w.results) <= tolerance for pair, w in zip(pairs, each, strict=True)):
            return TrainerCheck(checked, each[0].mistake, each[0].explanation, off)
    got, right = pairs[0]
    if len(got) > 1 and _distance(got[:1], right[:1]) <= tolerance:
        says = "the first number is right, the gradient or metric is not: a stop-gradient is missing, or one too many."
        return TrainerCheck(checked, "wrong gradient", says, off)
    at = np.unravel_index(int(np.argmax(np.abs(got[0] - right[0]))), np.shape(got[0]))
    where = f"at {list(map(int, at))} it is {got[0][at]:.6g}, and should be {right[0][at]:.6g}"
    says = f"{where}. No known mistake gives these numbers."
    return TrainerCheck(checked, "unknown", says, off)


def _distance(got: Results, wanted: Results) -> float:
    """The largest difference, as a share of the largest number of each result."""
    shares = (
        float(np.max(np.abs(g - w)) / max(1e-12, np.max(np.abs(w)), np.max(np.abs(g))))
        for g, w in zip(got, wanted, strict=True)
    )
    return max(shares)


def _shifted(a: np.ndarray, by: int) -> np.ndarray:
    return np.roll(a, by, axis=1)


def _wrong_inputs(x: Batch, old: str) -> Iterator[tuple[str, str, Batch]]:
    """Mistakes that are the right computation of wrong arrays; `old` is what the policy is compared with."""
    for by, where in ((1, "earlier"), (-1, "later")):
        yield "token shift", f"{old} is that of the token one {where}.", {**x, old: _shifted(x[old], by)}
    everything = np.ones_like(x["mask"])
    says = "tokens that are no decisions, such as the prompt, are counted."
    yield "prompt tokens counted", says, {**x, "mask": everything}
    prompt = x["mask"] | (np.cumsum(x["mask"], axis=1) == 0)
    yield "prompt tokens counted", "the tokens of the prompt are counted, padding is not.", {**x, "mask": prompt}
    same = {**x, old: x["log_pi"]}
    yield "old policy is the current one", f"{old} is log_pi itself, so that all ratios are 1.", same
    yield "ratio upside down", f"the ratio is that of {old} to log_pi.", {**x, "log_pi": x[old], old: x["log_pi"]}


def _wrong_weights(rule: Trace, level: str, options: dict[str, Any], x: Batch) -> Iterator[Wrong]:
    mask = x["mask"]

    def of(given: Batch, at: str = level) -> np.ndarray:
        return np.where(mask, weights(rule, **given, level=at, **options), 0.0)

    for mistake, says, given in _wrong_inputs(x, "log_mu"):
        yield Wrong(mistake, says, (of(given),))
    for other in LEVELS:
        if other != level:
            says = f'the weights are those of level "{other}", where "{level}" was meant.'
            yield Wrong(f"{other} ratio", says, (of(x, at=other),))
    plain = weights(ImportanceSampling(), **x, level=level)
    yield Wrong("not truncated", "no bound acts: the weights are plain ratios.", (plain,))
    parts = [weights(rule, **{n: a[:, part] for n, a in x.items()}, level=level, **options) for part in HALVES]
    says = "each half of a row is weighed by itself, as on shards that do not hear of each other."
    yield Wrong("a shard ignores the others", says, (np.where(mask, np.concatenate(parts, axis=1), 0.0),))
    if level == "geometric":
        total = np.where(mask, x["log_pi"] - x["log_mu"], 0.0).sum(1, keepdims=True)
        root = np.where(mask, np.exp(total / mask.shape[1]), 0.0)
        yield Wrong(
            "wrong denominator", "the root is by the length of the array, not by the number of decisions.", (root,)
        )


def _ours(parts: PolicyLoss, x: Batch, options: dict[str, Any], **more: Any) -> tuple[np.ndarray, np.ndarray]:
    """Our loss and its gradient by log_pi."""
    torch = _torch()
    tensors = {name: torch.from_numpy(np.array(a)) for name, a in x.items()}
    tensors["log_pi"].requires_grad_()
    result: Any = loss(parts, **tensors, **{**options, **more})
    return _with_gradient(result.loss, tensors["log_pi"])


def _with_gradient(result: Any, log_pi: Any) -> tuple[Any, Any]:
    torch = _torch()
    if not result.requires_grad:
        return result.detach().double().numpy(), np.zeros(log_pi.shape)
    gradient: Any = torch.autograd.grad(result, log_pi, allow_unused=True)[0]
    gradient = torch.zeros_like(log_pi) if gradient is None else gradient
    return result.detach().double().numpy(), gradient.double().numpy()


def _theirs(call: Called, x: Batch, *, parts: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The user's loss and its gradient: of the whole batch, or summed over micro-batches with the denominators of the whole."""
    torch = _torch()
    whole = {"tokens": float(x["mask"].sum()), "rows": float(x["mask"].any(1).sum())}
    log_pi = torch.from_numpy(np.array(x["log_pi"])).requires_grad_()
    total: Any = 0.0
    for rows in (slice(0, 1), slice(1, None)) if parts else (slice(None),):
        given = {**{n: a[rows] for n, a in x.items()}, **whole, "log_pi": log_pi[rows]}
        out: Any = call(given)
        if isinstance(out, tuple):
            out = cast(Any, out[0])
        if getattr(out, "ndim", 1):
            raise ValueError(f"fn returned {type(out).__name__}: it must return one number, a tensor without axes")
        total = total + out
    return _with_gradient(total, log_pi)


def _sum_of_parts(parts: PolicyLoss, x: Batch, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Our losses of micro-batches, each by its own denominators."""
    of_parts = [_ours(parts, {n: a[rows] for n, a in x.items()}, options) for rows in (slice(0, 1), slice(1, None))]
    return sum(value for value, _ in of_parts), np.concatenate([g for _, g in of_parts])  # pyright: ignore


def _wrong_losses(parts: PolicyLoss, x: Batch, options: dict[str, Any]) -> Iterator[Wrong]:
    def of(given: Batch = x, loss_of: PolicyLoss = parts, **more: Any) -> Results:
        return _ours(loss_of, given, options, **more)

    right = of()
    tokens, cells = float(x["mask"].sum()), float(x["mask"].size)
    for mean in MEANS:
        if mean != parts.mean:
            says = f'the mean is "{mean}", where "{parts.mean}" was meant.'
            yield Wrong("wrong denominator", says, of(loss_of=replace(parts, mean=mean)))
    if parts.mean == "token-mean":
        says = "the sum is divided by the number of all tokens, padding and prompt too."
        yield Wrong("wrong denominator", says, tuple(a * tokens / cells for a in right))
        yield Wrong("wrong denominator", "the sum is not divided.", tuple(a * tokens for a in right))
    yield Wrong("wrong sign", "the loss is that which is to be maximised.", tuple(-a for a in right))
    for level in RATIO_LEVELS:
        if level != parts.level:
            says = f'the ratio is taken at "{level}", where "{parts.level}" was meant.'
            yield Wrong(f"{level} ratio", says, of(loss_of=replace(parts, level=level)))
    for mistake, says, given in _wrong_inputs(x, "log_prox"):
        yield Wrong(mistake, says, of(given))
    if parts.weight is not None:
        says = "π_prox/μ is left out."
        yield Wrong("weight missing", says, of(loss_of=replace(parts, weight=None, weight_options={})))
        for mistake, words, given in _wrong_inputs(x, "log_mu"):
            if "shift" in mistake:
                yield Wrong(mistake, words, of(given))
    else:
        says = "log_mu is taken for log_prox: the ratio is π/μ."
        yield Wrong("old policy is the one that acted", says, of({**x, "log_prox": x["log_mu"]}))
    yield Wrong("no gradient", "the loss is detached from log_pi.", (right[0], np.zeros_like(right[1])))
    yield from _wrong_clips(parts, x, right)


def _wrong_clips(parts: PolicyLoss, x: Batch, right: Results) -> Iterator[Wrong]:
    """Mistakes of PPO's minimum under A < 0, of token-means, and of a weight that is not detached."""
    low, high = getattr(parts.shape, "low", None), getattr(parts.shape, "high", None)
    if parts.level != "token" or parts.mean != "token-mean" or low is None or high is None or parts.weight is not None:
        return
    mask, A, n = x["mask"], x["advantage"], x["mask"].sum()
    r = np.exp(x["log_pi"] - x["log_prox"])
    bound = np.clip(r, 1.0 - low, 1.0 + high)
    inside = bound == r

    def mean(value: np.ndarray, slope: np.ndarray) -> Results:
        return -np.where(mask, value, 0.0).sum() / n, -np.where(mask, slope, 0.0) / n

    says = "the ratio is clipped on both sides whatever the sign of A: where A < 0 the minimum lets large ratios be corrected."
    yield Wrong("wrong sign under A < 0", says, mean(bound * A, np.where(inside, r * A, 0.0)))
    least = np.abs(A) * np.minimum(r, bound) * np.sign(A)
    keeps = np.minimum(r, bound) == r
    says = "the minimum is taken of the ratios, and then multiplied by A: it must be taken of the products."
    yield Wrong("wrong sign under A < 0", says, mean(least, np.where(keeps, r * A, 0.0)))
    if parts.shape.formula.startswith("sg["):
        log = x["log_pi"]
        says = "the ratio that weighs A log π carries a gradient: detach it."
        through = np.where(inside, r * A * log, 0.0) + bound * A
        yield Wrong("gradient through the weight", says, (right[0], mean(np.zeros_like(r), through)[1]))
