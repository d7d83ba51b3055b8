"""Per-decision targets against tianshou's GAE, a Numba loop over the flattened rows.

GAE is Q(λ) on state values: the same recursion with c = λ. It reads no log-probabilities, takes no exponential and
checks nothing, so it does LESS work than Retrace; `QLambda` is the like for like, and both are reported. Twice:

- `tianshou GAE`: what its `compute_episodic_return` does to arrays around the loop: mask the next values of terminated
  steps, join the flags, mark the rows' ends, then the loop, then add the values.
- `tianshou GAE, loop alone`: `_gae` on masked, flagged and flattened inputs: less work again.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
from batches import FAR, NEAR, Batch, Setting, draw
from peers import SHAPES, TOLERANCE
from timing import Competitor, emit, interleave, ratio

import offtrace as ot

RETRACE, Q_LAMBDA = "Retrace", "QLambda"


def without_policy(x: Batch) -> dict:
    return {name: a for name, a in x.for_targets().items() if name not in ("log_pi", "log_mu")}


def flat(x: Batch) -> tuple:
    return x.q.ravel(), x.next_value.ravel(), x.reward.ravel(), x.terminated.ravel(), x.truncated.ravel(), x.q.shape[1]


def flat_and_masked(x: Batch) -> tuple:
    end = x.terminated | x.truncated
    end[:, -1] = True
    return x.q.ravel(), (x.next_value * ~x.terminated).ravel(), x.reward.ravel(), end.ravel()


def competitors(setting: Setting) -> dict[str, Competitor]:
    from tianshou.algorithm.algorithm_base import _gae  # pyright: ignore[reportMissingImports]

    retrace, q_lambda = ot.Retrace(lam=setting.lam), ot.QLambda(lam=setting.lam)

    def whole(x: tuple) -> np.ndarray:
        q, next_value, reward, terminated, truncated, T = x
        end = terminated | truncated
        end[T - 1 :: T] = True
        return q + _gae(q, next_value * ~terminated, reward, end, setting.gamma, setting.lam)

    return {
        RETRACE: Competitor(Batch.for_targets, lambda x: ot.targets(retrace, **x)),
        Q_LAMBDA: Competitor(without_policy, lambda x: ot.targets(q_lambda, **x)),
        "tianshou GAE": Competitor(flat, whole),
        "tianshou GAE, loop alone": Competitor(flat_and_masked, lambda x: _gae(*x, setting.gamma, setting.lam)),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    seconds = parser.parse_args().seconds
    for setting in (NEAR, FAR):
        try:
            them = competitors(setting)
        except ImportError as error:
            emit("missing", peer="tianshou", reason=f"import failed ({type(error).__name__}: {error.name})")
            break
        batch = draw(np.random.default_rng(1), setting, 16, 200)
        mine, theirs = (them[name].call(them[name].prepare(batch)).ravel() for name in (Q_LAMBDA, "tianshou GAE"))
        difference = float(np.abs(mine - theirs).max())
        if not difference < TOLERANCE:
            raise AssertionError(f"tianshou's GAE differs from QLambda by {difference}")
        for B, T in SHAPES:
            times = interleave(them, partial(draw, setting=setting, B=B, T=T), seconds=seconds)
            for peer in list(them)[2:]:
                for name in (Q_LAMBDA, RETRACE):
                    about = {"shape": [B, T], "setting": setting.name, "cores": "all", "peer": peer}
                    about["difference"] = difference
                    emit("per-decision", ours=name, **about, **ratio(times, peer, name))
