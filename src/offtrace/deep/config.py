"""The configurations of runs: one frozen dataclass for each agent, from which the command line is made, too."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, Self

from offtrace._shared.suggestions import did_you_mean
from offtrace.deep.settings import ABOVE_0, AT_LEAST_0, NATURAL, POSITIVE, SHARE, ActsByValues, Settings, checks, one_of
from offtrace.traces import PengQ, Retrace, Rule, WatkinsQ

OF_PQN = PengQ(lam=0.65)
"""The rule of PQN as published."""
OF_ACER = Retrace(lam=1.0)
"""The rule of ACER as published."""

OF_STREAMS = WatkinsQ(lam=0.8)
"""The rule of streams of action values as published."""
OF_ACTORS = Retrace(lam=0.8)
"""That of an actor may be any with this λ, since its ρ is 1."""


@dataclass(frozen=True, kw_only=True)
class WithMemory(Settings):
    """What agents have that draw sequences from a replay memory."""

    checks: ClassVar = {
        **checks(POSITIVE, "every", "batch", "length", "capacity"),
        "warm_up": NATURAL,
        "clip": AT_LEAST_0,
    }

    every: int = 64
    """Frames between two updates: a multiple of `envs`."""
    batch: int = 32
    """Sequences in an update."""
    length: int = 32
    """Steps in a sequence."""
    capacity: int = 100_000
    """Frames that the memory holds, shared evenly by the copies of the game."""
    warm_up: int = 5_000
    """Frames before the first update."""
    clip: float = 10.0
    """The largest norm that a gradient may have; 0 lets it have any."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("every", self.every % self.envs == 0, f"a multiple of envs = {self.envs}, which step together")
        if self.frames <= self.begin:
            raise ValueError(
                f"frames = {self.frames} leave nothing to learn: the first update comes after {self.begin:,} frames "
                f"(warm_up = {self.warm_up}): take more frames, or a smaller warm_up"
            )
        if self.slots < self.window + 1:
            raise ValueError(
                f"the memory is too small: capacity = {self.capacity} frames for envs = {self.envs} leave {self.slots} steps "
                f"for each, but a sequence takes burn_in + length = {self.window - 1}, the observation "
                f"after it, and the step that is being written: take capacity ≥ {self.envs * (self.window + 1)}, a "
                f"shorter length, or fewer envs"
            )

    @property
    def slots(self) -> int:
        """Steps that the memory holds of each copy of the game."""
        return self.capacity // self.envs

    @property
    def window(self) -> int:
        """Observations in a sequence: one more than steps, since the last one's next observation is needed."""
        return self.length + 1

    @property
    def round(self) -> int:
        """Frames between two draws from the memory."""
        return self.every

    @property
    def begin(self) -> int:
        """Frames before the first update: `warm_up`, or as many as a sequence takes, in whole steps of all copies of the game."""
        return -(-max(self.warm_up, self.envs * self.window) // self.envs) * self.envs


@dataclass(frozen=True, kw_only=True)
class Config(WithMemory, ActsByValues):
    """The replay agent: everything that a run depends on, except its seeds. Frames are steps, counted for each seed.

    >>> from offtrace.deep import Config
    >>> config = Config(game="minatar/breakout", frames=60_000)
    >>> config.end  # in whole updates
    60032
    """

    agent: ClassVar = "replay"
    home: ClassVar = "replay:ReplayAgent"
    title: ClassVar = "a Q-network with a target network, which learns from sequences of a replay memory"
    keeps_mu: ClassVar = True
    checks: ClassVar = {
        **checks(POSITIVE, "minibatches", "target_every"),
        **checks(SHARE, "priority", "correction"),
        "target_rate": (lambda x: 0 < x <= 1, "within (0, 1]"),
        "loss": one_of("huber", "squared"),
        "transform": one_of("none", "hyperbolic", "symlog"),
        "choose_lam": one_of("given", "median", "bounded"),
        "error_bound": AT_LEAST_0,
    }

    burn_in: int = 0
    """Steps at a sequence's beginning that are not learned from."""
    minibatches: int = 1
    """Above 1 it is DQN(λ): the targets of `batch` sequences are computed together, and learned from in so many pieces."""
    loss: Literal["huber", "squared"] = "huber"
    """The loss of target − q."""
    double: bool = True
    """Double estimation: π comes from the current network, its values from the target network."""
    target_every: int = 200
    """Updates between two moves of the target network towards the network."""
    target_rate: float = 1.0
    """How far the target network moves: 1 makes it a copy, less an exponential average."""
    priority: float = 0.0
    """Sequences are drawn in proportion to |TD error|^priority of their first step; with 0, uniformly."""
    correction: float = 0.4
    """How much of that preference is taken back in the loss: (N P)^−correction."""
    choose_lam: Literal["given", "median", "bounded"] = "given"
    """The dynamic λ of DQN(λ): the median of the targets over λ, or the largest λ whose errors are below `error_bound`."""
    error_bound: float = 0.01
    """The largest mean squared error of a sequence's targets, with choose_lam = "bounded"."""
    transform: Literal["none", "hyperbolic", "symlog"] = "none"
    """The scale of the network's values: returns, or R2D2's signed hyperbolic or the signed logarithm of them."""

    def __post_init__(self) -> None:
        self.require("burn_in", NATURAL[0](self.burn_in), NATURAL[1])  # before the window that it makes longer
        super().__post_init__()
        if self.choose_lam != "given" and "lam" not in (f.name for f in fields(self.trace)):
            raise ValueError(f"choose_lam = {self.choose_lam!r} chooses a λ, and {self.trace.title} has none")
        steps = self.batch * self.length
        self.require("minibatches", steps % self.minibatches == 0, f"a divisor of batch × length = {steps}")

    @property
    def window(self) -> int:
        """Observations in a sequence: one more than steps, since the last one's next observation is needed."""
        return self.burn_in + self.length + 1

    @property
    def round(self) -> int:
        """Frames between two draws from the memory."""
        return self.every * self.minibatches

    def for_programs(self) -> Self:
        """Leave a rule that evaluates a mixture as it is: what the memory keeps depends on it."""
        return replace(self, frames=self.begin + 1) if self.trace.mixture else super().for_programs()

    @property
    def cures(self) -> str:
        """What to try if the loss is no longer finite."""
        return (
            f"{super().cures}, loss='huber', a larger target_every (it is {self.target_every}), or a trace whose coefficients "
            "are bounded, such as Retrace or RBIS"
        )


@dataclass(frozen=True, kw_only=True)
class Categorical(Config):
    """The replay agent with a categorical critic (C51, Bellemare et al. 2017), whose targets are distributions by any trace.

    >>> from offtrace.deep import Categorical
    >>> Categorical(game="CartPole-v1", most=100.0).atoms
    51
    """

    agent: ClassVar = "categorical"
    home: ClassVar = "categorical:CategoricalAgent"
    title: ClassVar = "the replay agent with a categorical critic, whose targets are distributions"
    checks: ClassVar = {
        "atoms": (lambda x: isinstance(x, int) and x >= 2, "a whole number ≥ 2"),
        "minibatches": (lambda x: x == 1, "1: distributions are learned from at once"),
        **checks((lambda x: x == "given", '"given": its λ is not chosen'), "choose_lam"),
        **checks((lambda x: x == "none", '"none": its atoms are returns'), "transform"),
    }

    atoms: int = 51
    """Atoms of the support, evenly spaced."""
    least: float = -10.0
    """The first atom, in discounted returns."""
    most: float = 10.0
    """The last atom."""
    clip_masses: bool = True
    """Negative masses of a target become 0: their cross-entropy has no lower bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("most", self.most > self.least, f"above least = {self.least}")


@dataclass(frozen=True, kw_only=True)
class PQN(ActsByValues):
    """PQN (Gallici et al. 2025): no memory and no target network; LayerNorm, and targets of fresh steps of many games.

    Each round plays `length` steps of all games, computes their targets once with the current network, and learns from these
    steps in `epochs` × `minibatches` pieces. With `PengQ` and `target_epsilon` = 0, the defaults, it is the algorithm as
    published, but for the step size, which does not fall, and truncated episodes, which bootstrap.

    >>> from offtrace.deep import PQN
    >>> PQN(game="minatar/breakout").round  # frames
    4096
    """

    agent: ClassVar = "pqn"
    home: ClassVar = "pqn:PQNAgent"
    title: ClassVar = "PQN: no memory and no target network, LayerNorm, targets of fresh steps of many games"
    checks: ClassVar = {**checks(POSITIVE, "length", "epochs", "minibatches"), "clip": AT_LEAST_0}

    trace: Rule = OF_PQN
    """The rule that makes the targets."""
    envs: int = 128
    """How many copies of the game are played side by side."""
    length: int = 32
    """Steps of each copy between two rounds of learning."""
    epochs: int = 2
    """How often each step is learned from."""
    minibatches: int = 32
    """Pieces in which an epoch is learned from."""
    learning_rate: float = 5e-4
    """The step size of rectified Adam."""
    clip: float = 10.0
    """The largest norm that a gradient may have; 0 lets it have any."""
    behavior_epsilon: float = 0.05
    """The ε, or the temperature, of the behaviour policy after `explore_frames` frames."""
    target_epsilon: float = 0.0
    """The ε, or the temperature, of the target policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            "minibatches", self.round % self.minibatches == 0, f"a divisor of envs × length = {self.round}, the steps"
        )

    @property
    def round(self) -> int:
        """Frames between two rounds of learning."""
        return self.envs * self.length


@dataclass(frozen=True, kw_only=True)
class ACER(WithMemory):
    """ACER (Wang et al. 2017): an actor and a critic of action values, which learn from fresh sequences and from a replay memory.

    The loss is that of `offtrace.policy.acer`. The trust region of the paper is not part of it.

    >>> from offtrace.deep import ACER
    >>> ACER(game="CartPole-v1").truncation
    10.0
    """

    agent: ClassVar = "acer"
    home: ClassVar = "acer:ACERAgent"
    title: ClassVar = "ACER: an actor and a critic that learn from fresh sequences and from a replay memory"
    checks: ClassVar = checks(AT_LEAST_0, "truncation", "value_cost", "entropy_cost")

    trace: Rule = OF_ACER
    """The rule that makes the targets."""
    truncation: float = 10.0
    """c: ratios above it are truncated, and what is cut off is corrected for by the critic."""
    value_cost: float = 0.5
    """How much the critic's loss counts."""
    entropy_cost: float = 0.01
    """How much the actor's entropy counts."""


@dataclass(frozen=True, kw_only=True)
class Streaming(Settings):
    """What agents have that learn in a stream: from every step once, as it comes, with eligibility traces of gradients."""

    learns_online: ClassVar = True
    checks: ClassVar = {
        "envs": (lambda x: x == 1, "1: a stream is one copy of the game; several seeds run side by side"),
        "groups": POSITIVE,
        "sparsity": (lambda x: 0 <= x < 1, "within [0, 1)"),
    }

    trace: Rule = OF_STREAMS
    """The rule that makes the eligibility traces."""
    envs: int = 1
    """How many copies of the game are played side by side: one, since a stream is one."""
    learning_rate: float = 1.0
    """The largest step size: ObGD takes it, or less."""
    sparsity: float = 0.9
    """The share of the weights into each unit that begin at 0."""
    normalize: bool = True
    """Observations and rewards are normalised by their running moments."""
    groups: int = 128
    """Gradients that are kept apart where the rule has a cap or a horizon: each takes as much memory as the network."""

    def for_programs(self) -> Self:
        """Leave the kind of the rule, on which depends what is kept, and take out its λ, which is an argument of programs."""
        has_lam = "lam" in (f.name for f in fields(self.trace))
        return replace(self, trace=replace(self.trace, lam=0.9) if has_lam else self.trace, frames=1)


@dataclass(frozen=True, kw_only=True)
class StreamingValues(Streaming, ActsByValues):
    """What agents have that learn action values in a stream."""

    behavior_epsilon: float = 0.01
    """The ε, or the temperature, of the behaviour policy after `explore_frames` frames."""
    target_epsilon: float = 0.0
    """The ε, or the temperature, of the target policy."""


@dataclass(frozen=True, kw_only=True)
class StreamQ(StreamingValues):
    """Stream Q(λ) (Elsayed et al. 2024), with any rule that has a β: the trajectory-aware ones are exact, too.

    >>> from offtrace.deep import StreamQ
    >>> StreamQ(game="CartPole-v1").trace.title
    "Watkins' Q(λ)"
    """

    agent: ClassVar = "stream-q"
    home: ClassVar = "streaming:StreamQAgent"
    title: ClassVar = "Stream Q(λ): learns from each step as it comes, with eligibility traces of gradients and ObGD"
    checks: ClassVar = {"overshooting": ABOVE_0}

    overshooting: float = 2.0
    """κ of ObGD: the larger, the smaller the steps."""


@dataclass(frozen=True, kw_only=True)
class StreamAC(Streaming):
    """Stream AC(λ) (Elsayed et al. 2024): an actor and a critic of state values. It acts by its own policy, so that ρ = 1.

    >>> from offtrace.deep import StreamAC
    >>> StreamAC(game="CartPole-v1").entropy_cost
    0.01
    """

    agent: ClassVar = "stream-ac"
    home: ClassVar = "streaming:StreamACAgent"
    title: ClassVar = "Stream AC(λ): an actor and a critic that learn from each step as it comes"
    checks: ClassVar = {**checks(ABOVE_0, "overshooting", "actor_overshooting"), "entropy_cost": AT_LEAST_0}

    trace: Rule = OF_ACTORS
    """The rule that makes the eligibility traces."""
    overshooting: float = 2.0
    """κ of ObGD: the larger, the smaller the steps."""
    actor_overshooting: float = 3.0
    """κ of the actor's ObGD."""
    entropy_cost: float = 0.01
    """τ: how much the actor's entropy counts."""


@dataclass(frozen=True, kw_only=True)
class QRC(StreamingValues):
    """QRC(λ) (Elelimy et al. 2025): gradient TD in a stream. A second network h estimates δ, and corrects the gradient.

    >>> from offtrace.deep import QRC
    >>> QRC(game="CartPole-v1").regularization
    1.0
    """

    agent: ClassVar = "qrc"
    home: ClassVar = "qrc:QRCAgent"
    title: ClassVar = "QRC(λ): gradient TD in a stream, with a second network and traces of its values and gradients"
    checks: ClassVar = {"h_rate": ABOVE_0, "regularization": AT_LEAST_0}

    learning_rate: float = 1e-3
    """The step size of Adam for the network of values."""
    h_rate: float = 1.0
    """The step size of the second network h, as a multiple of `learning_rate`."""
    regularization: float = 1.0
    """How strongly the weights of h are drawn to 0; with 0 it is QC(λ)."""


AGENTS: dict[str, type[Settings]] = {cls.agent: cls for cls in (Config, Categorical, PQN, StreamQ, StreamAC, QRC, ACER)}
"""The configurations by the names of their agents."""


def configuration(agent: str) -> type[Settings]:
    """Return the class of the configurations of an agent.

    >>> configuration("replay").__name__
    'Config'
    """
    if agent not in AGENTS:
        raise ValueError(f"there is no agent {agent!r}{did_you_mean(agent, AGENTS)}; there are {', '.join(AGENTS)}")
    return AGENTS[agent]
