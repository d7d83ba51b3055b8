"""The exact mean and variance of policy gradients, weighed in any way, by all rows of a small token MDP.

A row is T tokens; what comes next depends on all tokens before it. π is log-linear in features of the prefix and the token, and μ
is the same policy with other parameters, as of some updates ago:

    π(a|h) ∝ exp(θ·φ(h, a)),      μ(a|h) ∝ exp((θ + Δ)·φ(h, a))

One row of μ gives the estimate g = Σ_t w_t A_t ∇log π(a_t|h_t) of ∇J = ∇E_π[R]. All rows are listed, each with its probability
under μ: nothing is sampled. So the mean and the variance of g are exact for any weights w and advantages A.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple, TypedDict

import numpy as np

from offtrace._shared.extras import install
from offtrace.policy.policy_loss import PolicyLoss, loss
from offtrace.returns import weights
from offtrace.traces import ImportanceSampling
from offtrace.traces.base import number

MOST_ROWS = 2**20
"""As many rows as there may be: beyond that the scores take gigabytes."""


class Taken(TypedDict):
    """What `weights` and `reject` take."""

    log_pi: np.ndarray
    log_mu: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class TokenRows:
    """All N rows of a token MDP, arrays [N, T] unless said otherwise. `token_rows` makes one."""

    chance: np.ndarray
    """The probability of each row under μ, [N]."""
    log_pi: np.ndarray
    log_mu: np.ndarray
    log_prox: np.ndarray
    """Of a policy between both, as the "old" one of a trainer is."""
    score: np.ndarray
    """∇log π(a_t|h_t) by the parameters, [N, T, F]."""
    reward: np.ndarray
    """r(h_t, a_t); J is the expected sum over a row."""
    q: np.ndarray
    """Q^π(h_t, a_t)."""
    value: np.ndarray
    """V^π(h_t)."""
    prefix: np.ndarray
    """An id of (h_t, a_t): rows that agree so far have the same."""

    def __repr__(self) -> str:
        N, T, F = self.score.shape
        return f"TokenRows(rows={N}, steps={T}, parameters={F})"

    @property
    def taken(self) -> Taken:
        """What `weights` and `reject` take: log_pi and log_mu."""
        return {"log_pi": self.log_pi, "log_mu": self.log_mu}

    @cached_property
    def gradient(self) -> np.ndarray:
        """∇J, [F]: Σ_h d_π(h) Σ_a ∇π(a|h) Q^π(h, a)."""
        weight = weights(ImportanceSampling(), **self.taken, level="prefix")
        return self.chance @ np.einsum("nt,ntf->nf", weight * (self.q - self.value), self.score)

    @property
    def drift(self) -> float:
        """The standard deviation of log ∏ρ over rows of μ: how far π has gone from μ."""
        total = (self.log_pi - self.log_mu).sum(axis=1)
        return float(np.sqrt(self.chance @ (total - self.chance @ total) ** 2))

    @property
    def effective_share(self) -> float:
        """The effective sample size of the weights ∏ρ, as a share of the rows: 1 / E_μ[(∏ρ)²]."""
        return float(1 / (self.chance @ np.exp(2 * (self.log_pi - self.log_mu).sum(axis=1))))

    def advantages(self, of: str = "critic", *, error: float = 0.0, seed: int = 0) -> np.ndarray:
        """A_t, [N, T].

        "critic": Q − V, where Q is Q^π with an `error` for each prefix and token, normal and `error` times as large as the
        standard deviation of Q^π − V^π, and V = Σ_a π Q. "return": the return of the row less its mean over rows of μ, as
        a large group has it; what μ does later is in it, so that on average it is Q^μ − J(μ).
        """
        if of == "return":
            total = self.reward.sum(axis=1)
            return np.repeat((total - self.chance @ total)[:, None], self.log_pi.shape[1], axis=1)
        if of != "critic":
            raise ValueError(f"of = {of!r} is not known. It is one of: critic, return")
        right = self.q - self.value
        if error == 0.0:
            return right
        size = error * np.sqrt((self.chance[:, None] * right**2).sum() / right.shape[1])
        noise = size * np.random.default_rng(seed).normal(size=int(self.prefix.max()) + 1)[self.prefix]
        return right + noise - _over_next_token(np.exp(self.log_pi), noise)


class GradientMoments(NamedTuple):
    """What one row's estimate of ∇J is off by."""

    mean: np.ndarray
    """E_μ[g], [F]."""
    variance: float
    """E_μ‖g − E g‖²."""
    gradient: np.ndarray
    """∇J, [F]."""

    @property
    def bias(self) -> float:
        """‖E g − ∇J‖ / ‖∇J‖."""
        return float(np.linalg.norm(self.mean - self.gradient) / np.linalg.norm(self.gradient))

    @property
    def spread(self) -> float:
        """√variance / ‖∇J‖, of one row; the mean of n rows has 1/√n of it."""
        return float(np.sqrt(self.variance) / np.linalg.norm(self.gradient))

    @property
    def angle(self) -> float:
        """By how many degrees E g is turned from ∇J: what no step size mends."""
        lengths = np.linalg.norm(self.mean) * np.linalg.norm(self.gradient)
        return float(np.degrees(np.arccos(np.clip(self.mean @ self.gradient / lengths, -1.0, 1.0))))

    def alignment(self, rows: int) -> float:
        """The cosine that a batch makes with ∇J, between −1 and 1: E[ḡ]·∇J / (‖∇J‖ √E‖ḡ‖²), where ḡ is the mean of so many rows.

        Bias that turns the gradient lowers it, and so does variance; a factor before all weights does not change it, as it does
        not change what an optimiser such as Adam does.
        """
        length = np.sqrt(self.mean @ self.mean + self.variance / rows)
        return float(self.mean @ self.gradient / np.linalg.norm(self.gradient) / length)


def token_rows(
    steps: int,
    *,
    drift: float = 0.3,
    tokens: int = 2,
    features: int = 12,
    sharpness: float = 1.0,
    prox: float = 0.25,
    seed: int = 0,
) -> TokenRows:
    """A random token MDP with all its tokens**steps rows.

    Features φ(h, a) are normal, drawn for each prefix and token. `sharpness` is the standard deviation of the logits θ·φ, `drift`
    that of Δ·φ, and π_prox has the parameters θ + prox · Δ. In each prefix one token, drawn at random, is right; the reward of a
    row is the share of its tokens that are.

    >>> rows = token_rows(4, drift=0.5)
    >>> rows, round(rows.drift, 2), round(rows.effective_share, 2)
    (TokenRows(rows=16, steps=4, parameters=12), 0.51, 0.84)
    """
    if tokens < 2 or steps < 1 or tokens**steps > MOST_ROWS:
        raise ValueError(
            f"there would be {tokens}^{steps} rows: take 2 tokens or more, at least one step, and at most {MOST_ROWS} rows"
        )
    drift, sharpness = number("drift", drift, 0.0, np.inf), number("sharpness", sharpness, 0.0, np.inf)
    rng = np.random.default_rng(seed)
    token = np.array(list(product(range(tokens), repeat=steps)))
    before = _prefixes(token, tokens)
    phi = rng.normal(size=(int(before.max()) + 1, tokens, features))
    directions = rng.normal(size=(2, features))
    theta, moved = directions / np.linalg.norm(directions, axis=1, keepdims=True) * [[sharpness], [drift]]
    log_pi, log_mu, log_prox = (_log_softmax(phi @ at) for at in (theta, theta + moved, theta + prox * moved))
    score = phi - (np.exp(log_pi)[..., None] * phi).sum(axis=1, keepdims=True)
    right = rng.integers(tokens, size=len(phi))
    reward = (token == right[before]) / steps
    taken = log_pi[before, token]
    q, value = _action_values(np.exp(taken), reward)
    log_mu = log_mu[before, token]
    return TokenRows(
        np.exp(log_mu.sum(axis=1)),
        taken,
        log_mu,
        log_prox[before, token],
        score[before, token],
        reward,
        q,
        value,
        before * tokens + token,
    )


def gradient_moments(
    rows: TokenRows,
    weight: np.ndarray | str | PolicyLoss,
    *,
    advantage: np.ndarray | None = None,
    keep: np.ndarray | None = None,
) -> GradientMoments:
    """The mean and variance of g = Σ_t w_t A_t ∇log π(a_t|h_t) of one row of μ, exactly.

    `weight` [N, T] is made by `weights(trace, **rows.taken, level=…)`, or in any other way, but not normalised over the batch:
    here are all rows, of unequal probability. Or it is the name of a loss, or a `PolicyLoss`: then g is minus the gradient of its
    sum over a row, with π, π_prox and μ apart, which PyTorch computes. `advantage` [N, T] is that of `rows.advantages()`, with
    the right critic, unless it is given. `keep` [N, T], as `reject` gives it, leaves decisions out, and g is divided by the share
    that is kept on average, as a mean over what is kept is in a large batch.

    >>> import offtrace as ot
    >>> rows = token_rows(6, drift=0.8)
    >>> for level in ("token", "prefix"):
    ...     weight = ot.weights(ot.ImportanceSampling(), **rows.taken, level=level)
    ...     moments = gradient_moments(rows, weight)
    ...     aligned = moments.alignment(64)
    ...     print(f"{level}: bias {moments.bias:.2f}, spread {moments.spread:.1f}, alignment {aligned:.2f}")
    token: bias 0.25, spread 1.3, alignment 0.95
    prefix: bias 0.00, spread 2.3, alignment 0.96
    """
    advantage = rows.advantages() if advantage is None else advantage
    if isinstance(weight, str | PolicyLoss):
        return _moments(rows, _of_loss(rows, weight, advantage))
    for name, array in {"weight": weight, "advantage": advantage, "keep": keep}.items():
        if array is not None and np.shape(array) != rows.log_pi.shape:
            raise ValueError(
                f"{name} has shape {np.shape(array)}: there are {rows.log_pi.shape[0]} rows of {rows.log_pi.shape[1]} tokens"
            )
        if array is not None and not np.all(np.isfinite(array)):
            row, t = np.argwhere(~np.isfinite(array))[0]
            raise ValueError(f"{name} must be finite, got {array[row, t]} in row {row} at token {t}")
    factor = weight * advantage
    if keep is not None:
        if not np.any(keep):
            raise ValueError("keep is False everywhere, so that there is no gradient: reject less")
        factor = np.where(keep, factor, 0.0) / (rows.chance @ np.mean(keep, axis=1))
    return _moments(rows, factor)


def _moments(rows: TokenRows, factor: np.ndarray) -> GradientMoments:
    of_rows = np.einsum("nt,ntf->nf", factor, rows.score)
    mean = rows.chance @ of_rows
    return GradientMoments(mean, float(rows.chance @ ((of_rows - mean) ** 2).sum(axis=1)), rows.gradient)


def _of_loss(rows: TokenRows, name: str | PolicyLoss, advantage: np.ndarray) -> np.ndarray:
    """By what each ∇log π(a_t|h_t) counts in minus the gradient of a loss, [N, T]."""
    try:
        import torch
    except ImportError:
        raise ImportError(f"the gradient of a loss needs PyTorch: {install('torch')}", name="torch") from None
    log_pi = torch.tensor(rows.log_pi, requires_grad=True)
    log_prox, log_mu, given = (torch.tensor(array) for array in (rows.log_prox, rows.log_mu, advantage))
    result = loss(name, log_pi=log_pi, log_prox=log_prox, log_mu=log_mu, advantage=given)
    (gradient,) = torch.autograd.grad(result.terms["policy"].sum(), log_pi)
    return -gradient.numpy()


def _prefixes(token: np.ndarray, tokens: int) -> np.ndarray:
    """The number of the prefix before each token, [N, T]: prefixes are numbered by length, and then in order."""
    prefixes = np.zeros_like(token)
    for t in range(1, token.shape[1]):
        prefixes[:, t] = prefixes[:, t - 1] * tokens + token[:, t - 1] + 1
    return prefixes


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def _over_next_token(pi: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Σ_a π(a|h_t) times the value of (h_t, a), [N, T]. Rows stand in order: those with a common prefix, together."""
    N, T = values.shape
    tokens = round(N ** (1 / T))
    expected = np.empty_like(values)
    for t in range(T):
        after = tokens ** (T - t - 1)
        of_prefix = (pi[:, t] * values[:, t])[::after].reshape(-1, tokens).sum(axis=1)
        expected[:, t] = np.repeat(of_prefix, tokens * after)
    return expected


def _action_values(pi: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q^π and V^π along the rows, backward."""
    q, value = reward.copy(), np.zeros_like(reward)
    for t in reversed(range(reward.shape[1])):
        if t + 1 < reward.shape[1]:
            q[:, t] += value[:, t + 1]
        value[:, t] = _over_next_token(pi, q)[:, t]
    return q, value
