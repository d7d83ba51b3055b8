"""Episodes of Minari datasets, and lists of episodes in the same form.

An episode of T steps, as Minari's EpisodeData or as a mapping:

    observations    [T + 1], the last one after the last step: integers or strings are ids, numbers and vectors are features
    actions         [T] ids, or [T, k] real numbers
    rewards, terminations, truncations    [T]
    infos           optional; under the key that `Columns` names, [T + 1] as Gymnasium gives them, the first from `reset`, or [T]

so that every step has its true next state. μ(a_t|s_t) is looked for in the info that came back from `step(a_t)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offtrace._shared.extras import install
from offtrace._shared.suggestions import did_you_mean
from offtrace.logs.reading.columns import NO_FLAG, NUMBERS, Columns, Names
from offtrace.logs.reading.problems import LogsError
from offtrace.logs.reading.tables import Table, pl

if TYPE_CHECKING:
    from minari import MinariDataset

FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")
FLAGS = {"terminated": "terminations", "truncated": "truncations"}


def table(
    source: Any, columns: Columns, truncated: str | None, states: Names, actions: Names
) -> tuple[Table, Columns, Names, Names]:
    """The steps of a dataset, of its folder or id, or of a list of episodes, as a table; its columns; its states and actions."""
    if truncated == "never":
        raise ValueError(
            'episodes of Minari and Gymnasium say whether they were truncated: leave out truncated="never"'
        )
    if isinstance(source, str | Path):
        source = _minari(source)
    if hasattr(source, "iterate_episodes"):
        name, n, episodes = f"Minari dataset {source.spec.dataset_id}", source.total_steps, source.iterate_episodes()
        states = _of_space("observation", source.spec.observation_space, states)
        actions = _of_space("action", source.spec.action_space, actions)
    else:
        name, n, episodes = "the list of episodes", None, _listed(source)
    infos = {what: key for what in ("mu", "log_mu", "log_pi") if (key := getattr(columns, what)) is not None}
    parts: list[dict[str, np.ndarray]] = []
    ids: list[object] = []
    for i, episode in enumerate(episodes):
        parts.append(_arrays(episode, i, infos, actions == NUMBERS))
        ids.append(_field(episode, "id", i, default=i))
        if (shape := parts[-1]["state"].shape[1:]) != (first := parts[0]["state"].shape[1:]):
            raise LogsError(f"observations of episode {i} have shape {shape}, those of the first episode {first}")
    lengths = [len(part["reward"]) for part in parts]
    if n is not None and sum(lengths) != n:
        there = "more" if sum(lengths) > n else f"only {sum(lengths):,}"
        raise LogsError(f"{name} says that it has {n:,} steps, but its episodes have {there}: it is damaged")
    if not parts:
        raise LogsError(f"{name} has no steps")
    episode = np.repeat(np.arange(len(parts)), lengths)
    step = np.concatenate([np.arange(length) for length in lengths])
    frame = pl.DataFrame({"episode": episode} | {w: np.concatenate([part[w] for part in parts]) for w in parts[0]})
    called = Columns(step=None, next_state="next_state", **{what: what for what in infos})
    words = lambda row: f"{row:,} (episode {ids[episode[row]]}, step {step[row]})"  # noqa: E731
    return Table(frame.lazy(), name, in_words=words), called, states, actions


def _arrays(episode: object, i: int, infos: Mapping[str, str], real_actions: bool) -> dict[str, np.ndarray]:
    """The columns of an episode."""
    reward = np.asarray(_field(episode, "rewards", i), dtype=np.float64)
    seen, taken = _observations(episode, i), _exact(_field(episode, "actions", i), i)
    flags = {what: np.asarray(_field(episode, key, i)) for what, key in FLAGS.items()}
    arrays = {
        "reward": reward,
        "state": seen[:-1],
        "next_state": seen[1:],
        "action": taken.reshape(len(taken), -1).astype(np.float64) if real_actions else taken,
        **{what: np.where((flag == 0) | (flag == 1), flag, NO_FLAG).astype(np.uint8) for what, flag in flags.items()},
        **{what: _info(episode, key, i, len(reward)) for what, key in infos.items()},
    }
    wide = {"state", "next_state", "action"}
    if wrong := {
        name: a.shape for name, a in arrays.items() if len(a) != len(reward) or a.ndim > (2 if name in wide else 1)
    }:
        raise LogsError(
            f"episode {i} has {len(reward)} rewards, but {wrong}: there must be as many of each, and one observation more, "
            "the last one after the last step"
        )
    if not len(reward):
        raise LogsError(f"episode {i} has no steps")
    return arrays


def _field(episode: object, name: str, i: int, default: object = None) -> Any:
    value = episode.get(name, default) if isinstance(episode, Mapping) else getattr(episode, name, default)
    if value is None:
        raise LogsError(f"episode {i} has no {name}: it must have {', '.join(FIELDS)}")
    return value


def _observations(episode: object, i: int) -> np.ndarray:
    """[T + 1] ids, or [T + 1, d] features."""
    seen = _exact(_field(episode, "observations", i), i)
    if seen.ndim == 1 and seen.dtype.kind in "iubUT":
        return seen
    if seen.dtype.kind not in "iubf" or not len(seen):
        raise LogsError(
            f"observations of episode {i} are neither ids nor arrays of numbers: they have dtype {seen.dtype}"
        )
    return seen.reshape(len(seen), -1).astype(np.float64, copy=False)


def _exact(values: Sequence[object] | np.ndarray, i: int) -> np.ndarray:
    """As an array; a list with integers of 2^63 and more would become one of floats."""
    array = np.asarray(values)
    if array is not values and array.dtype.kind in "fO" and any(type(v) is int and abs(v) >= 2**63 for v in values):
        raise LogsError(f"episode {i} has ids of 2^63 or more, which int64 does not hold: give them as strings")
    return array


def _info(episode: object, key: str, i: int, steps: int) -> np.ndarray:
    """[T] numbers; a key may lead into nested infos, as "policy/mu"."""
    infos: object = _field(episode, "infos", i, default={})
    for part in key.split("/"):
        if not isinstance(infos, Mapping) or part not in infos:
            there = list(infos) if isinstance(infos, Mapping) else []
            raise LogsError(
                f"infos of episode {i} have no {key!r}{did_you_mean(part, there)}: they have {there}. Minari records them with "
                "DataCollector(record_infos=True)"
            )
        infos = infos[part]
    values = np.asarray(infos, dtype=np.float64)
    return values[1:] if len(values) == steps + 1 else values


def _of_space(what: str, space: Any, given: Names) -> Names:
    """The ids of a Discrete space, unless others are given."""
    kind = type(space).__name__
    if kind == "Discrete":
        n, start = int(space.n), int(space.start)
        return given or (tuple(range(start, start + n)) if start else n)
    if kind != "Box":
        raise LogsError(f"{what}s of {space} cannot be read: the space must be Discrete or Box")
    return NUMBERS if what == "action" else given


def _listed(source: object) -> Sequence[object]:
    if isinstance(source, Sequence) and not isinstance(source, str | bytes) and len(source):
        if all(isinstance(each, Mapping) or hasattr(each, "observations") for each in source):
            return source
    raise TypeError(
        f"logs cannot be read from {type(source).__name__}: give a path, a frame of polars or pandas, an Arrow table, a Minari "
        f"dataset, or a list of episodes, each a mapping with {', '.join(FIELDS)} and, for μ, infos"
    )


def _minari(source: str | Path) -> MinariDataset:
    """The dataset in a folder, or of an id, on this machine."""
    folder = Path(source)
    if not folder.is_dir() and not re.fullmatch(r"[-\w/]+-v\d+", str(source)):
        raise FileNotFoundError(f"{source} is no file or folder, matches no file, and is no id of a Minari dataset")
    try:
        import minari
    except ImportError:
        raise ImportError(f"Minari datasets need minari: {install('logs')}", name="minari") from None
    if folder.is_dir():
        return minari.MinariDataset(folder / "data" if (folder / "data").is_dir() else folder)
    try:
        return minari.load_dataset(str(source))
    except FileNotFoundError:
        there = list(minari.list_local_datasets())
        raise FileNotFoundError(
            f"{source} is no file, and no Minari dataset of this id is on this machine{did_you_mean(str(source), there)}: "
            f"there {f'are {there}' if there else 'is none'}; `minari download {source}` may fetch it"
        ) from None
