"""A Q-network without replay or slow copy, in one file in the manner of CleanRL: `python examples/pqn_cleanrl.py --trace rbis`.

After PQN (Gallici et al., 2024): environments side by side, LayerNorm, a few epochs over the newest steps. PQN's λ-return is that
of Peng's Q(λ), `--trace peng-q`; any other trace corrects for exploration, since log μ is kept. As there the learning rate falls
to 0 in a line: at a constant 1e-3 CartPole is solved and forgotten again. Not the authors' code.
"""

import time
from collections import deque
from dataclasses import dataclass, replace

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.nn.functional import one_hot

import offtrace as ot


@dataclass(frozen=True)
class Args:
    """What the command line offers."""

    trace: str = "retrace"  # the rule for β by name: retrace, rbis, tree-backup, peng-q, …
    lam: float = 0.9  # λ of the rule, where it has one
    env_id: str = "CartPole-v1"  # a Gymnasium environment with discrete actions
    seed: int = 1  # of the network, the environments and exploration
    total_timesteps: int = 200_000  # steps, all environments together
    learning_rate: float = 5e-4  # of RAdam, at first
    anneal_lr: bool = True  # let it fall to 0, in a line
    num_envs: int = 8  # environments side by side
    num_steps: int = 32  # steps of each between updates
    num_minibatches: int = 4  # of the newest steps
    update_epochs: int = 4  # passes over them
    gamma: float = 0.99  # the discount
    start_e: float = 1.0  # ε of μ at first
    end_e: float = 0.05  # ε of μ at last, and of π
    exploration_fraction: float = 0.3  # of all steps, over which ε falls
    max_grad_norm: float = 10.0  # of a gradient


def make_network(inputs: int, actions: int) -> nn.Sequential:
    """s → Q(s, ·)"""
    hidden = [layer for a in (inputs, 120) for layer in (nn.Linear(a, 120), nn.LayerNorm(120), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(120, actions))


def epsilon_greedy(q: Tensor, epsilon: float) -> Tensor:
    """π(·|s) [..., A] of Q(s, ·)."""
    return epsilon / q.shape[-1] + (1 - epsilon) * one_hot(q.argmax(-1), q.shape[-1])


def main(args: Args) -> float:
    """Act, compute targets, learn, report; the mean return of the last 100 episodes."""
    trace = ot.trace(args.trace)
    if hasattr(trace, "lam"):
        trace = replace(trace, lam=args.lam)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    same_step = gym.vector.AutoresetMode.SAME_STEP
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(args.env_id)] * args.num_envs, autoreset_mode=same_step)
    shape, space = envs.single_observation_space.shape, envs.single_action_space
    if shape is None or not isinstance(space, gym.spaces.Discrete):
        raise TypeError(f"{args.env_id} has the actions {space}: choose an environment with discrete ones")
    network = make_network(int(np.prod(shape)), int(space.n))
    optimizer = torch.optim.RAdam(network.parameters(), args.learning_rate)

    size = (args.num_steps, args.num_envs)  # time comes first, as in CleanRL
    obs, next_obs = torch.zeros(2, *size, int(np.prod(shape)))
    actions, (rewards, log_mu) = torch.zeros(size, dtype=torch.int64), torch.zeros(2, *size)
    terminated, truncated = torch.zeros(2, *size, dtype=torch.bool)
    now, _ = envs.reset(seed=args.seed)
    total, recent, start, loss = np.zeros(args.num_envs), deque(maxlen=100), time.time(), torch.zeros(())
    updates = args.total_timesteps // (args.num_steps * args.num_envs)
    for update in range(updates):
        epsilon = float(np.interp(update / updates, (0, args.exploration_fraction), (args.start_e, args.end_e)))
        if args.anneal_lr:
            optimizer.param_groups[0]["lr"] = (1 - update / updates) * args.learning_rate
        for t in range(args.num_steps):
            obs[t] = torch.as_tensor(now.reshape(args.num_envs, -1))
            with torch.no_grad():
                mu = epsilon_greedy(network(obs[t]), epsilon)
            explores, anything = rng.random(args.num_envs) < epsilon, rng.integers(space.n, size=args.num_envs)
            actions[t] = torch.as_tensor(np.where(explores, anything, mu.argmax(-1).numpy()))
            log_mu[t] = mu.gather(-1, actions[t][:, None])[:, 0].log()
            now, reward, term, trunc, info = envs.step(actions[t].numpy())
            true_next = now.copy()
            for i in np.flatnonzero(term | trunc):  # `now` is the first observation of the next episode there
                true_next[i] = info["final_obs"][i]
            next_obs[t] = torch.as_tensor(true_next.reshape(args.num_envs, -1))
            rewards[t], terminated[t], truncated[t] = map(torch.as_tensor, (reward, term, trunc))
            total += reward
            recent.extend(total[term | trunc])
            total[term | trunc] = 0

        with torch.no_grad():  # the one place that is not CleanRL's: the return
            q, next_q = network(obs), network(next_obs)
            pi, next_pi = epsilon_greedy(q, args.end_e), epsilon_greedy(next_q, args.end_e)
            made = ot.from_action_values(q, next_q, pi, next_pi, actions, log_mu=log_mu)
            ends = {"terminated": terminated, "truncated": truncated}
            targets = ot.targets(trace, reward=rewards, **ends, **made, gamma=args.gamma, time_major=True)

        for _ in range(args.update_epochs):
            for batch in torch.randperm(targets.numel()).chunk(args.num_minibatches):
                values = network(obs.flatten(0, 1)[batch]).gather(-1, actions.flatten()[batch][:, None])[:, 0]
                loss = nn.functional.mse_loss(values, targets.flatten()[batch])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), args.max_grad_norm)
                optimizer.step()
        if recent and ((update + 1) % 50 == 0 or update + 1 == updates):
            step = (update + 1) * args.num_steps * args.num_envs
            speed = step / (time.time() - start)
            print(
                f"step {step:>8,}  return {np.mean(recent):6.1f}  loss {loss.item():8.3f}  {speed:6,.0f} steps/s",
                flush=True,
            )
    envs.close()
    return float(np.mean(recent)) if recent else float("nan")


if __name__ == "__main__":
    main(tyro.cli(Args))
