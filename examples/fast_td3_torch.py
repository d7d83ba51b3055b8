"""FastTD3 in one file: many environments, a categorical critic, and distributional targets by any trace. PyTorch, Gymnasium.

FastTD3 (Seo et al. 2025) is TD3 with parallel environments, large batches and C51 critics, whose targets are n-step returns of
older policies' actions, uncorrected. Here they come from short sequences by `offtrace.distributional_targets`: `--trace n-step`
is its return, `retrace` and `rbis` correct what the older policies did. π is the actor with TD3's smoothing noise, μ the actor of
that time with the noise of exploration: both are Gaussian, so that ρ = π/μ is known. One seed says little about which is best.

    python examples/fast_td3_torch.py --trace rbis --seed 1
    python examples/fast_td3_torch.py --trace all
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import Tensor, nn

import offtrace as ot

RULES = {"n-step": ot.NStep(n=5), "retrace": ot.Retrace(lam=0.9), "rbis": ot.RBIS(lam=0.9)}


@dataclass(frozen=True)
class Args:
    """The options."""

    trace: Literal["n-step", "retrace", "rbis", "all"] = "all"
    """the rule of the targets; all: one after the other"""
    task: str = "Pendulum-v1"
    """a Gymnasium task with a box of actions"""
    steps: int = 20_000
    """of the environments, all together"""
    envs: int = 8
    batch: int = 128
    """sequences in an update"""
    length: int = 8
    """steps of a sequence"""
    capacity: int = 4_000
    """steps that are kept of each environment"""
    updates: int = 2
    """for each step of all environments"""
    least: float = -1_500.0
    """the first of the atoms, in discounted returns"""
    most: float = 0.0
    """the last of them"""
    atoms: int = 101
    hidden: int = 128
    learning_rate: float = 1e-3
    gamma: float = 0.98
    tau: float = 0.02
    """how far the target networks move with each update"""
    noise: float = 0.3
    """standard deviation of exploration, in units of the range of actions"""
    smoothing: float = 0.2
    """that of the target policy"""
    warm_up: int = 1_000
    seed: int = 1


def layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """A network of two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.LayerNorm(hidden),
        nn.ReLU(), nn.Linear(hidden, outputs),
    )  # fmt: skip


class Critics(nn.Module):
    """Two categorical critics: (s, a) → logits [2, …, atoms]."""

    def __init__(self, inputs: int, hidden: int, atoms: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(layers(inputs, hidden, atoms) for _ in range(2))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """The logits."""
        x = torch.cat([observation, action], -1)
        return torch.stack([critic(x) for critic in self.each])


class Memory:
    """The last steps of all environments, in rings: arrays [envs, slots, …]."""

    def __init__(self, args: Args, observations: int, actions: int) -> None:
        shape = args.envs, args.capacity
        self.arrays = {
            "observation": torch.zeros(*shape, observations), "next_observation": torch.zeros(*shape, observations),
            "action": torch.zeros(*shape, actions), "log_mu": torch.zeros(shape), "reward": torch.zeros(shape),
            "terminated": torch.zeros(shape, dtype=torch.bool), "truncated": torch.zeros(shape, dtype=torch.bool),
        }  # fmt: skip
        self.written = 0

    def write(self, **step: Tensor) -> None:
        """Write one step of all environments."""
        for name, array in step.items():
            self.arrays[name][:, self.written % self.arrays[name].shape[1]] = array
        self.written += 1

    def draw(self, args: Args) -> dict[str, Tensor]:
        """Sequences [batch, length] of steps that follow each other."""
        held = min(self.written, args.capacity)
        env = torch.randint(args.envs, (args.batch, 1))
        first = self.written - held + torch.randint(held - args.length + 1, (args.batch, 1))
        at = (first + torch.arange(args.length)) % args.capacity
        return {name: array[env, at] for name, array in self.arrays.items()}


class Agent:
    """An actor, two critics, and slow copies of the critics."""

    def __init__(self, args: Args, space: gym.spaces.Box, observations: int) -> None:
        self.args, self.rule = args, RULES[args.trace]
        self.middle = torch.as_tensor((space.high + space.low) / 2)
        self.range = torch.as_tensor((space.high - space.low) / 2)
        n = len(self.range)
        self.actor = layers(observations, args.hidden, n)
        self.critics = Critics(observations + n, args.hidden, args.atoms)
        self.slow = copy.deepcopy(self.critics)
        self.support = torch.linspace(args.least, args.most, args.atoms)
        self.of_actor = torch.optim.Adam(self.actor.parameters(), args.learning_rate)
        self.of_critics = torch.optim.Adam(self.critics.parameters(), args.learning_rate)

    def mean(self, observation: Tensor) -> Tensor:
        """The actor's action in [−1, 1]."""
        return self.actor(observation).tanh()

    def around(self, observation: Tensor, deviation: float) -> torch.distributions.Normal:
        """The actor with noise; what leaves [−1, 1] is clipped by the task alone, so that densities are known."""
        return torch.distributions.Normal(self.mean(observation), deviation)

    def masses(self, observation: Tensor, action: Tensor) -> Tensor:
        """The distribution of the slow critics, the mean of both, [..., atoms]."""
        return self.slow(observation, action.clamp(-1, 1)).softmax(-1).mean(0)

    def target(self, x: dict[str, Tensor]) -> Tensor:
        """The distributional targets of sequences [B, T, atoms]."""
        after = self.around(x["next_observation"], self.args.smoothing).sample()
        here = self.around(x["observation"], self.args.smoothing)
        return ot.distributional_targets(
            self.rule,
            probabilities=self.masses(x["observation"], x["action"]),
            next_probabilities=self.masses(x["next_observation"], after),
            support=self.support,
            log_pi=here.log_prob(x["action"]).sum(-1),
            gamma=self.args.gamma,
            clip=True,
            **{name: x[name] for name in ("reward", "terminated", "truncated", "log_mu")},
        ).probabilities

    def learn(self, x: dict[str, Tensor]) -> None:
        """One update of the critics, the actor and the slow critics."""
        with torch.no_grad():
            target = self.target(x)
        log_p = self.critics(x["observation"], x["action"].clamp(-1, 1)).log_softmax(-1)
        loss = -(target * log_p).sum(-1).mean()
        self.of_critics.zero_grad()
        loss.backward()
        self.of_critics.step()
        q = self.critics(x["observation"], self.mean(x["observation"])).softmax(-1) @ self.support
        self.of_actor.zero_grad()
        (-q.mean() / (self.args.most - self.args.least)).backward()
        self.of_actor.step()
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(fast, self.args.tau)


def train(args: Args) -> float:
    """Train, print where it stands, and return the mean return of the last 20 episodes."""
    torch.manual_seed(args.seed)
    mode = gym.vector.AutoresetMode.SAME_STEP
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(args.task)] * args.envs, autoreset_mode=mode)
    space = envs.single_action_space
    if not isinstance(space, gym.spaces.Box):
        raise TypeError(f"{args.task} has actions that are no box: {space}")
    seen, _ = envs.reset(seed=args.seed)
    agent, memory = Agent(args, space, seen.shape[1]), Memory(args, seen.shape[1], space.shape[0])
    running, returns, rounds = np.zeros(args.envs), [0.0], args.steps // args.envs
    for i in range(rounds):
        now = torch.as_tensor(seen, dtype=torch.float32)
        with torch.no_grad():
            μ = agent.around(now, 1.0 if i * args.envs < args.warm_up else args.noise)
            action = μ.sample()
        played = (agent.middle + agent.range * action.clamp(-1, 1)).numpy()
        after, reward, terminated, truncated, info = envs.step(played)
        ended, true = terminated | truncated, after.copy()
        for e in np.flatnonzero(ended):  # `after` is already the first observation of the next episode
            true[e] = info["final_obs"][e]
        memory.write(
            observation=now, next_observation=torch.as_tensor(true, dtype=torch.float32), action=action,
            log_mu=μ.log_prob(action).sum(-1), reward=torch.as_tensor(reward, dtype=torch.float32),
            terminated=torch.as_tensor(terminated), truncated=torch.as_tensor(truncated),
        )  # fmt: skip
        running += reward
        returns += running[ended].tolist()
        running[ended], seen = 0.0, after
        if (i + 1) * args.envs >= args.warm_up and memory.written > args.length:
            for _ in range(args.updates):
                agent.learn(memory.draw(args))
        if (i + 1) % max(1, rounds // 5) == 0:
            mean = np.mean(returns[-20:])
            print(
                f"{args.trace:<8}{(i + 1) * args.envs:>8,} steps   return of the last 20 episodes {mean:8.1f}",
                flush=True,
            )
    return float(np.mean(returns[-20:]))


def main(args: Args) -> dict[str, float]:
    """Train with one rule, or with each of them; the last returns."""
    chosen = tuple(RULES) if args.trace == "all" else (args.trace,)
    return {name: train(replace(args, trace=name)) for name in chosen}


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
