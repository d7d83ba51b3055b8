"""offtrace in Stable-Baselines3: a replay buffer of sequences that keeps log μ, and `TraceDQN`, its DQN with any trace.

    SequenceReplayBuffer    in place of ReplayBuffer: samples are [B, T], with log μ of each action as it was when acting
    TraceDQN                in place of DQN: targets of whole sequences, by any trace

Stable-Baselines3 knows `done` and the info "TimeLimit.truncated". Of them the buffer makes `terminated`, where the value of what
follows is 0, and `truncated`, where it is not but the trace ends.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from offtrace._shared.extras import install

try:
    import numpy as np
    import torch
    from gymnasium import spaces
    from stable_baselines3 import DQN  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.buffers import ReplayBuffer  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.vec_env import VecNormalize  # pyright: ignore[reportMissingImports]
    from torch import Tensor
    from torch.nn.functional import one_hot, smooth_l1_loss
except ModuleNotFoundError as error:
    raise ImportError(f"offtrace.adapters.sb3 needs Stable-Baselines3 ({error}): {install('sb3')}") from None

from offtrace.returns import from_action_values, targets
from offtrace.traces import Retrace, Rule
from offtrace.traces import trace as named_trace
from offtrace.traces.trace_argument import as_rule

__all__ = ["SequenceReplayBuffer", "SequenceSamples", "TraceDQN"]


class SequenceSamples(NamedTuple):
    """B sequences of T consecutive steps, each of one environment. A sequence may hold several episodes."""

    observations: Tensor
    """[B, T, …]"""
    actions: Tensor
    """[B, T, …], one index [B, T, 1] where actions are discrete"""
    next_observations: Tensor
    """[B, T, …], the true next ones: the last observation of the episode where it ends"""
    rewards: Tensor
    """[B, T]"""
    terminated: Tensor
    """[B, T], whether the task ended the episode"""
    truncated: Tensor
    """[B, T], whether anything else did: a time limit, or `learn` that started anew"""
    log_mu: Tensor
    """[B, T], log μ of the action when it was taken"""


class SequenceReplayBuffer(ReplayBuffer):
    """The replay buffer of Stable-Baselines3, from which sequences are drawn, and which keeps log μ of every action.

    `add` reads log μ in the info "log_mu" of each environment, where `TraceDQN` puts it. `sequence_length` is T. As long as fewer
    steps are stored, sequences are shorter. `truncate_last_trajectory` says that the next step to come does not follow the last.

    >>> from gymnasium.spaces import Box, Discrete
    >>> buffer = SequenceReplayBuffer(100, Box(-1, 1, (3,)), Discrete(2), sequence_length=4)
    >>> for t in range(6):
    ...     buffer.add(np.zeros((1, 3)), np.zeros((1, 3)), np.array([1]), np.ones(1), np.zeros(1),
    ...                [{"log_mu": -0.7}])
    >>> batch = buffer.sample(8)
    >>> batch.observations.shape, batch.log_mu.shape
    (torch.Size([8, 4, 3]), torch.Size([8, 4]))
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        sequence_length: int = 16,
    ) -> None:
        if isinstance(observation_space, spaces.Dict):
            raise TypeError("SequenceReplayBuffer holds arrays, not dicts of them: flatten the observations")
        if optimize_memory_usage:
            raise ValueError("optimize_memory_usage=True loses the observation at which a time limit ends an episode")
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            handle_timeout_termination=handle_timeout_termination,
        )
        if not 1 <= sequence_length <= self.buffer_size:
            holds = f"{self.buffer_size} steps of each environment"
            raise ValueError(f"sequence_length is {sequence_length}, and the buffer holds {holds}: choose 1 or more")
        self.sequence_length = sequence_length
        self.log_mu = np.zeros((self.buffer_size, n_envs), np.float32)

    def add(
        self,
        obs: np.ndarray,
        next_obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """One step of every environment."""
        if any("log_mu" not in info for info in infos):
            raise KeyError('an info has no "log_mu": put log μ of the action taken there, as TraceDQN does')
        self.log_mu[self.pos] = [info["log_mu"] for info in infos]
        super().add(obs, next_obs, action, reward, done, infos)

    def truncate_last_trajectory(self) -> None:
        """Mark the newest step of each environment as truncated, unless an episode ended there."""
        if self.size():
            newest = (self.pos - 1) % self.buffer_size
            self.timeouts[newest, self.dones[newest] == 0] = 1
            self.dones[newest] = 1

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> SequenceSamples:
        """`batch_size` sequences, uniformly. None runs from the newest step to the oldest."""
        if not self.size():
            raise ValueError("the buffer is empty: add steps before you sample")
        length = min(self.sequence_length, self.size())
        first = np.random.randint(0, self.size() - length + 1, size=batch_size)  # noqa: NPY002 (which SB3 seeds)
        which = np.random.randint(0, high=self.n_envs, size=batch_size)[:, None]  # noqa: NPY002
        oldest = self.pos if self.full else 0
        at = (oldest + first[:, None] + np.arange(length)) % self.buffer_size
        done, timeout = self.dones[at, which] > 0, self.timeouts[at, which] > 0
        return SequenceSamples(
            self.to_torch(self._normalize_obs(self.observations[at, which], env)),
            self.to_torch(self.actions[at, which]),
            self.to_torch(self._normalize_obs(self.next_observations[at, which], env)),
            self.to_torch(self._normalize_reward(self.rewards[at, which], env)),
            self.to_torch(done & ~timeout),
            self.to_torch(done & timeout),
            self.to_torch(self.log_mu[at, which]),
        )


class TraceDQN(DQN):
    """The DQN of Stable-Baselines3 whose targets come from sequences, by any trace.

    Arguments and defaults are those of DQN; `batch_size` counts sequences. Further ones:

    - `trace`: the rule for β, or its name
    - `sequence_length`: steps in a sequence
    - `target_epsilon`: ε of π, the ε-greedy policy that is learned about; 0 is the greedy one
    - `double`: π is greedy in the values of the network, not of its slow copy

    μ is what acts: uniform before `learning_starts`, then ε-greedy with the ε of the schedule. The values in a target are
    those of the slow copy. With `OneStep`, `target_epsilon=0` and `sequence_length=1` it is DQN.

    >>> import offtrace as ot
    >>> model = TraceDQN("MlpPolicy", "CartPole-v1", trace=ot.RBIS(lam=0.9), learning_starts=50)
    >>> model.learn(100).num_timesteps
    100
    """

    def __init__(
        self,
        policy: Any,
        env: Any,
        *arguments: Any,
        trace: Rule | str = Retrace(lam=0.9),  # noqa: B008 (a frozen value)
        sequence_length: int = 16,
        target_epsilon: float = 0.05,
        double: bool = False,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        **named: Any,
    ) -> None:
        if named.get("n_steps", 1) != 1:
            raise ValueError("TraceDQN takes its steps from the trace: for n-step returns pass trace=NStep(n)")
        if not 0 <= target_epsilon <= 1:
            raise ValueError(f"target_epsilon is {target_epsilon}: choose a probability")
        self.trace = named_trace(trace) if isinstance(trace, str) else as_rule(trace)
        self.target_epsilon, self.double = target_epsilon, double
        self._log_mu = np.zeros(0, np.float32)
        buffer = named.setdefault("replay_buffer_class", SequenceReplayBuffer)
        if buffer is None:
            buffer = named["replay_buffer_class"] = SequenceReplayBuffer
        if not issubclass(buffer, SequenceReplayBuffer):
            raise TypeError(
                f"replay_buffer_class is {buffer.__name__}, and TraceDQN needs sequences with log μ: "
                "derive from SequenceReplayBuffer. A HerReplayBuffer cannot be used: "
                "relabelled goals have another log μ, and its samples are single steps"
            )
        of_buffer = {"sequence_length": sequence_length} | (replay_buffer_kwargs or {})
        super().__init__(policy, env, *arguments, replay_buffer_kwargs=of_buffer, **named)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """`gradient_steps` updates, each towards the targets of `batch_size` sequences."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses: list[float] = []
        for _ in range(gradient_steps):
            batch = self._sequences().sample(batch_size, env=self._vec_normalize_env)
            q = _values(self.q_net, batch.observations)
            taken = q.gather(-1, batch.actions.long())[..., 0]
            loss = smooth_l1_loss(taken, self.sequence_targets(batch))
            losses.append(loss.item())
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))

    @torch.no_grad()
    def sequence_targets(self, batch: SequenceSamples) -> Tensor:
        """The targets [B, T] of sequences: values of the slow copy, π ε-greedy, log μ as it was stored."""
        q, next_q = (_values(self.q_net_target, x) for x in (batch.observations, batch.next_observations))
        judged, next_judged = q, next_q
        if self.double:
            judged, next_judged = (_values(self.q_net, x) for x in (batch.observations, batch.next_observations))
        pi, next_pi = self._target_policy(judged), self._target_policy(next_judged)
        action = batch.actions[..., 0].long()
        read = from_action_values(q, next_q, pi, next_pi, action, log_mu=batch.log_mu)
        read["greedy"] = action == judged.argmax(-1)
        ends = {"terminated": batch.terminated, "truncated": batch.truncated}
        return targets(self.trace, reward=batch.rewards, **ends, **read, gamma=self.gamma, time_major=False)

    def _target_policy(self, q: Tensor) -> Tensor:
        number = q.shape[-1]
        greedy = one_hot(q.argmax(-1), number).to(q.dtype)
        return self.target_epsilon / number + (1 - self.target_epsilon) * greedy

    def _sequences(self) -> SequenceReplayBuffer:
        if not isinstance(self.replay_buffer, SequenceReplayBuffer):
            raise TypeError(
                f"TraceDQN needs a SequenceReplayBuffer, its buffer is a {type(self.replay_buffer).__name__}"
            )
        return self.replay_buffer

    def _sample_action(self, learning_starts: int, action_noise: Any = None, n_envs: int = 1) -> Any:
        """Choose actions as DQN does, and keep log μ of them until they are stored."""
        action, stored = super()._sample_action(learning_starts, action_noise, n_envs)
        number = int(self.action_space.n)
        if self.num_timesteps < learning_starts:
            self._log_mu = np.full(n_envs, -math.log(number), np.float32)
        else:
            greedy, _ = self.policy.predict(self._last_obs, deterministic=True)
            epsilon = self.exploration_rate
            self._log_mu = np.log(epsilon / number + (1 - epsilon) * (stored == greedy)).astype(np.float32)
        return action, stored

    def _store_transition(
        self, replay_buffer: Any, buffer_action: Any, new_obs: Any, reward: Any, dones: Any, infos: Any
    ) -> None:
        infos = [{**info, "log_mu": log_mu} for info, log_mu in zip(infos, self._log_mu, strict=True)]
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> Any:
        """As DQN; where the environments start anew, no trace continues what they did before."""
        if reset_num_timesteps or self._last_obs is None:
            self._sequences().truncate_last_trajectory()
        return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)


def _values(network: Any, observations: Tensor) -> Tensor:
    """Q(s, ·) [B, T, A] of observations [B, T, …]; networks of Stable-Baselines3 take one batch axis."""
    return network(observations.flatten(0, 1)).unflatten(0, observations.shape[:2])
