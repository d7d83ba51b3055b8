"""Lets a trained agent play, from the latest checkpoint of a folder, greedily or nearly so, and records a GIF."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from offtrace._shared.extras import from_extra
from offtrace._shared.whole_files import written_whole
from offtrace.deep import agent as agents
from offtrace.deep import checkpoints
from offtrace.deep.checkpoints import CheckpointError
from offtrace.deep.config import configuration
from offtrace.deep.games import Hosted, Stepped, WorldState, compiled
from offtrace.deep.settings import Settings

if TYPE_CHECKING:
    from PIL import Image

PACE = {"minatar": 70, "CartPole-v1": 20}
"""Milliseconds that a picture is shown; 40 where nothing else is known."""


class Stage(NamedTuple):
    """One copy of a game, to be played."""

    reset: Callable[[Array], tuple[WorldState | None, Array | np.ndarray]]
    """key → state, observation"""
    step: Callable[[Array, WorldState | None, Array], Stepped[Array] | Stepped[np.ndarray]]
    """key, state, action → Stepped"""
    shape: tuple[int, ...]
    actions: int
    shown: Callable[[], np.ndarray | None]
    """Returns the game's own current picture, [H, W, 3], if it makes one."""
    pace: int
    """Milliseconds that a picture is shown."""


class Moment(NamedTuple):
    """A moment of an episode: what was seen, and the score so far."""

    observation: np.ndarray
    picture: np.ndarray | None
    """The environment's own picture, [H, W, 3], if it makes one."""
    score: float
    step: int
    ended: bool


@dataclass(frozen=True)
class Game:
    """The episodes that were played: what `play` returns."""

    config: Settings
    rule: str
    """The trace that it was trained with, in words."""
    seed: int
    moments: list[Moment]
    pace: int

    @property
    def returns(self) -> list[float]:
        """The returns of the episodes that ended."""
        return [moment.score for moment in self.moments if moment.ended]

    def save(self, path: str | Path) -> Path:
        """Write a GIF. What is there already is replaced only when the new one is whole."""
        with from_extra("deep", "pictures need"):
            from PIL import Image

            from offtrace.deep.drawing import captioned, picture_of

        path, title = Path(path), self.config.game.rsplit("/", 1)[-1]
        scale = np.abs(np.stack([np.asarray(moment.observation, np.float64) for moment in self.moments])).max(axis=0)

        def drawn(moment: Moment) -> Image.Image:
            shown = moment.observation if moment.picture is None else moment.picture
            facts = f"score {moment.score:g}   step {moment.step}"
            return captioned(picture_of(shown, scale), title, facts).quantize(128, dither=Image.Dither.NONE)

        first, *rest = self.moments
        pauses = [900 if moment.ended else self.pace for moment in self.moments]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(path) as file:
                drawn(first).save(
                    file, "GIF", save_all=True, append_images=map(drawn, rest), duration=pauses, loop=0, disposal=1
                )
        except OSError as error:
            raise OSError(f"{path} cannot be written: {error.strerror or error}") from error
        return path


def play(
    folder: str | Path,
    *,
    seed: int | None = None,
    episodes: int = 1,
    steps: int = 1_000,
    epsilon: float = 0.0,
    trust: bool = False,
    modules: Sequence[str] = (),
) -> Game:
    """Play episodes with the latest checkpoint in a folder, by the network of one of its seeds (the first, if none is given).

    With the chance `epsilon` an action is drawn from all. The game ends after `episodes` episodes, or `steps` steps in all.
    A checkpoint may name a Python module that registers its game, as "gym/my_games:Corridor-v0" does. Importing it runs it, so it
    is imported only if it is one of `modules`, or with `trust`.

    >>> game = play("runs/cartpole", seed=1, episodes=3)  # doctest: +SKIP
    >>> game.returns  # doctest: +SKIP
    """
    if episodes < 1 or steps < 1 or not 0 <= epsilon <= 1:
        raise ValueError(
            f"episodes and steps must be at least 1 and epsilon within [0, 1], got {episodes}, {steps}, {epsilon}"
        )
    path = _latest(Path(folder))
    config, rule, seeds = _of(path)
    _require_trust(path, config.game, trust, modules)
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise ValueError(f"there is no seed {seed} in {folder}: it has {', '.join(map(str, seeds))}")
    stage = _hosted(config, seed) if config.game.startswith("gym/") else _compiled(config)
    agent = agents.make(config, stage.shape, stage.actions)
    like = jax.eval_shape(jax.vmap(agent.first), jax.random.split(jax.random.PRNGKey(0), len(seeds)))
    learner = jax.tree.map(itemgetter(seeds.index(seed)), checkpoints.filled(path, like))

    @jax.jit
    def act(observation: Array, key: Array) -> Array:
        π = agents.probabilities("epsilon", agent.values(learner, observation[None])[0], epsilon)
        return jax.random.categorical(key, jnp.log(π))

    key, to_reset = jax.random.split(jax.random.PRNGKey(seed))
    state, now = stage.reset(to_reset)
    moments = [Moment(np.asarray(now), stage.shown(), 0.0, 0, False)]
    for _ in range(steps):
        key, to_act, to_step = jax.random.split(key, 3)
        seen = stage.step(to_step, state, act(jnp.asarray(now), to_act))
        state, now, last = seen.state, seen.now, moments[-1]
        ended = bool(seen.terminated | seen.truncated)
        picture = last.picture if ended else stage.shown()  # after an end, the new episode is shown already
        score = last.score + float(seen.reward)
        moments.append(Moment(np.asarray(seen.after), picture, score, last.step + 1, ended))
        if ended:
            episodes -= 1
            if not episodes:
                break
            moments.append(Moment(np.asarray(now), stage.shown(), 0.0, 0, False))
    return Game(config, rule, seed, moments, stage.pace)


def _require_trust(path: Path, game: str, trust: bool, modules: Sequence[str]) -> None:
    """Refuse a game for which a module would be imported that the user has not named."""
    module, colon, _ = game.removeprefix("gym/").partition(":")
    if colon and not trust and module not in modules:
        raise CheckpointError(
            f"{path} is of the game {game!r}, for which the Python module {module!r} would be imported and run: if you trust it, "
            f"give --module {module} or --trust (in Python, modules=[{module!r}] or trust=True)"
        )


def _latest(folder: Path) -> Path:
    held = checkpoints.in_folder(folder)
    if not held:
        raise CheckpointError(f"there is no checkpoint in {folder}: give the folder of a run of offtrace deep train")
    return held[-1]


def _of(path: Path) -> tuple[Settings, str, list[int]]:
    """Return the configuration of a checkpoint, whose trace is the default, that trace in words, and the seeds."""
    about = checkpoints.about(path)
    try:
        seeds, rule, hidden, traces = (about.pop(n) for n in ("seeds", "trace", "hidden", "traces"))
        kind = configuration(about.pop("agent"))
        if not seeds or not all(isinstance(seed, int) for seed in seeds):
            raise ValueError(f"its seeds are {seeds!r}")
        return kind(**about, hidden=tuple(hidden)), ", ".join(traces) if traces else rule, seeds
    except (TypeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} was written by another version ({error})") from error


def _compiled(config: Settings) -> Stage:
    world = compiled(config)
    pace = PACE.get(config.game.split("/")[0], 40)
    return Stage(jax.jit(world.reset), jax.jit(world.step), world.shape, world.actions, lambda: None, pace)


def _hosted(config: Settings, seed: int) -> Stage:
    """Make one Gymnasium environment, with its own pictures if it can make them."""
    import gymnasium

    world, why = Hosted(config, 1, seed), "it has no render mode 'rgb_array'"
    pictured = "rgb_array" in world.vector.metadata.get("render_modes", ())
    if pictured:
        try:
            world = Hosted(config, 1, seed, render_mode="rgb_array")
            world.vector.render()
        except (gymnasium.error.Error, ImportError) as error:
            world, why, pictured = Hosted(config, 1, seed), str(error), False
    if not pictured:
        print(f"Gymnasium cannot draw {config.game}: {why}; its observations are drawn instead", file=sys.stderr)

    def reset(key: Array) -> tuple[None, np.ndarray]:
        return None, world.first[0]

    def step(key: Array, state: WorldState | None, action: Array) -> Stepped[np.ndarray]:
        return Stepped(None, *(part[0] for part in world.step(np.asarray(action)[None])[1:]))

    def shown() -> np.ndarray | None:
        frames = world.vector.render() if pictured else None
        picture = None if frames is None else frames[0]
        return picture if isinstance(picture, np.ndarray) else None

    pace = max(20, 1000 // world.vector.metadata.get("render_fps", 25))
    return Stage(reset, step, world.shape, world.actions, shown, pace)
