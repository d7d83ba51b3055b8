"""An actor-critic on CartPole whose data come from a lagged copy of the actor: what do the corrections do? PyTorch, one file.

A learner of IMPALA's kind: actors play with an older policy μ, and the learner's π is some updates ahead. `--correction` says
how the difference is taken into account: `vtrace` clips each ratio and cuts for good, `non-markov-retrace` caps the product of
ratios, so that it recovers after a small one, and `none` takes the data as if π had made them. One seed says little about which
is best.

    python examples/actor_critic_torch.py --correction vtrace --lag 16 --seed 1
    python examples/actor_critic_torch.py --correction all
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import Tensor, nn

import offtrace as ot
from offtrace import policy

CORRECTIONS = ("vtrace", "non-markov-retrace", "none")


@dataclass(frozen=True)
class Args:
    """The options."""

    correction: Literal["vtrace", "non-markov-retrace", "none", "all"] = "all"
    """how data of the older policy are corrected; all: one after the other"""
    lam: float = 0.95
    """λ of the traces"""
    lag: int = 16
    """updates between two copies of the learner's policy to the actors; 1 is nearly on-policy"""
    steps: int = 100_000
    """of the environments, all together"""
    envs: int = 8
    """copies of the environment"""
    length: int = 32
    """steps of a batch"""
    learning_rate: float = 1e-3
    entropy_cost: float = 0.01
    gamma: float = 0.99
    seed: int = 1


class ActorCritic(nn.Module):
    """s → logits of π(·|s) and V(s)."""

    def __init__(self, observations: int, actions: int, hidden: int = 64) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(observations, hidden), nn.Tanh(), nn.Linear(hidden, actions))
        self.critic = nn.Sequential(nn.Linear(observations, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def log_policy(self, observation: Tensor) -> Tensor:
        """log π of all actions."""
        return self.actor(observation).log_softmax(-1)

    def value(self, observation: Tensor) -> Tensor:
        """V(s)."""
        return self.critic(observation)[..., 0]


class Actors:
    """Copies of CartPole that are played by μ, with log μ as it was when acting and the true next observation."""

    def __init__(self, args: Args) -> None:
        mode = gym.vector.AutoresetMode.SAME_STEP
        self.envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * args.envs, autoreset_mode=mode)
        self.observation, _ = self.envs.reset(seed=args.seed)
        self.running, self.returns = np.zeros(args.envs), [0.0]

    def batch(self, mu: ActorCritic, length: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Steps [B, T] of all copies."""
        columns: dict[str, list[np.ndarray]] = {}
        for _ in range(length):
            with torch.no_grad():
                log_mu = mu.log_policy(torch.as_tensor(self.observation))
            action = torch.multinomial(log_mu.exp(), 1, generator=generator)
            after, reward, terminated, truncated, info = self.envs.step(action[:, 0].numpy())
            ended, true = terminated | truncated, after.copy()
            for i in np.flatnonzero(ended):  # `after` is already the first observation of the next episode
                true[i] = info["final_obs"][i]
            step = {
                "observation": self.observation, "action": action[:, 0].numpy(), "log_mu": log_mu.gather(1, action)[:, 0].numpy(),
                "reward": reward.astype(np.float32), "next_observation": true, "terminated": terminated, "truncated": truncated,
            }  # fmt: skip
            for name, column in step.items():
                columns.setdefault(name, []).append(column)
            self.running += reward
            self.returns += self.running[ended].tolist()
            self.running[ended], self.observation = 0.0, after
        return {name: torch.as_tensor(np.stack(column, 1)) for name, column in columns.items()}


def loss_of(args: Args, learner: ActorCritic, data: dict[str, Tensor]) -> Tensor:
    """The loss of one batch: the same function for all corrections."""
    every = learner.log_policy(data["observation"])
    log_pi = every.gather(-1, data["action"][..., None])[..., 0]
    trace = {"non-markov-retrace": ot.NonMarkovRetrace(lam=args.lam)}.get(args.correction)  # None: V-trace
    found = policy.vtrace(
        trace,
        reward=data["reward"],
        value=learner.value(data["observation"]),
        next_value=learner.value(data["next_observation"]),
        terminated=data["terminated"],
        truncated=data["truncated"],
        log_pi=log_pi,
        log_mu=log_pi.detach() if args.correction == "none" else data["log_mu"],  # none: as if π had made the data
        gamma=args.gamma,
        lam=args.lam if trace is None else None,
        entropy=-(every.exp() * every).sum(-1),
        entropy_cost=args.entropy_cost,
    )
    return found.loss


def train(args: Args) -> float:
    """Train, print where it stands, and return the mean return of the last 100 episodes of the actors."""
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    actors, learner = Actors(args), ActorCritic(4, 2)
    older = ActorCritic(4, 2)
    optimizer = torch.optim.Adam(learner.parameters(), args.learning_rate)
    updates = max(1, args.steps // (args.envs * args.length))
    for update in range(updates):
        if update % args.lag == 0:
            older.load_state_dict(learner.state_dict())
        loss = loss_of(args, learner, actors.batch(older, args.length, generator))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        if (update + 1) % max(1, updates // 5) == 0:
            step, mean = (update + 1) * args.envs * args.length, np.mean(actors.returns[-100:])
            print(f"{args.correction:<20}{step:>9,} steps   return of the last 100 episodes {mean:6.1f}", flush=True)
    return float(np.mean(actors.returns[-100:]))


def main(args: Args) -> dict[str, float]:
    """Train with one correction, or with each of them; the last returns."""
    chosen = CORRECTIONS if args.correction == "all" else (args.correction,)
    return {name: train(replace(args, correction=name)) for name in chosen}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(tyro.cli(Args))
