"""Environments by name, as a declaration writes them: "garnet:states=20,actions=3,branching=3,seed=1".

A name is a registered one, that of a Gymnasium environment that publishes its table, or the path of a file that `MDP.save` wrote;
what follows the colon are the arguments. That of a file is the digest of what it holds, so that
changing a number starts a new study.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path

from offtrace import mdps
from offtrace._shared.suggestions import did_you_mean
from offtrace._shared.type_guards import is_list
from offtrace.deep.config import Config
from offtrace.mdps import MDP
from offtrace.studies.fields import Table, Toml, is_table

GYMNASIUM = re.compile(r".+-v\d+$")
"""What the ids of Gymnasium look like; those that are registered may lack a version."""
SAVED = ".npz"
"""How the names of files with an MDP end."""
DIGITS = 16
"""Of the digest of such a file, in the name of an environment."""


GAMES = (
    *(f"minatar/{game}" for game in ("asterix", "breakout", "freeway", "seaquest", "space-invaders")),
    *("Acrobot-v1", "CartPole-v1", "MountainCar-v0"),
)
"""Games of deep agents that need not be looked up, which takes seconds."""


GALLERY: dict[str, partial[MDP]] = {}
"""The environments that a study can name, besides those of Gymnasium: functions, with the arguments that the name fixes."""


def register_environment(name: str, function: Callable[..., MDP], **fixed: object) -> None:
    """Let studies name an environment: `name` stands for `function(**fixed)`, which returns an MDP.

    A declaration may give the other arguments of the function, as in "maze:size=9". One that has a `seed` which a declaration
    leaves out is another MDP for each seed. Workers must register it too: so a module does it that the study lists in `modules`.

    >>> from offtrace import mdps
    >>> register_environment("short-walk", mdps.random_walk, states=3)  # doctest: +SKIP
    """
    if ":" in name or GYMNASIUM.match(name) or name.endswith(SAVED):
        raise ValueError(
            f"an environment of a study cannot be named {name!r}: a colon, and -v1 or {SAVED} at the end, mean something else"
        )
    entry = partial(function, **fixed)
    if name in GALLERY and _origin(GALLERY[name]) != _origin(entry):
        raise ValueError(f"there is an environment named {name!r} already: give another name")
    GALLERY[name] = entry


def _origin(entry: partial[MDP]) -> tuple[str, str, dict[str, object]]:
    """What tells an environment from others of its name; the function is another one if a module is imported again."""
    return entry.func.__module__, entry.func.__qualname__, entry.keywords


def _parameters(name: str) -> list[str]:
    """The arguments that a declaration may give to an environment of the gallery."""
    entry = GALLERY[name]
    return [argument for argument in inspect.signature(entry.func).parameters if argument not in entry.keywords]


for _number in (1, 2, 3, 4):
    register_environment(f"bifurcation-{_number}", mdps.bifurcation, number=_number)
register_environment("cliff", mdps.cliff)
register_environment("garnet", mdps.garnet)
register_environment("random-walk", mdps.random_walk)


def split(given: object) -> tuple[str, Table]:
    """Split "name:a=1,b=2", or a table with `name`, into the name and the arguments; a ValueError says what is allowed.

    >>> split("garnet:states=20,seed=1")
    ('garnet', {'states': 20, 'seed': 1})
    """
    if is_table(given):
        arguments = dict(given)
        name = arguments.pop("name", None)
        if not isinstance(name, str):
            raise ValueError("a table with a name")
    elif isinstance(given, str) and given.strip():
        name, _, rest = given.partition(":")
        arguments: Table = {}
        for piece in filter(None, (p.strip() for p in rest.split(","))):
            argument, equals, value = piece.partition("=")
            if not equals or not value.strip():
                raise ValueError(f"arguments as name=value, which {piece!r} is not")
            arguments[argument.strip()] = _value(value.strip())
    else:
        raise ValueError('a name such as "bifurcation-1" or "garnet:states=20,actions=3,branching=3"')
    if ":" in f"{name} {[value for argument, value in arguments.items() if argument != 'protocol']}":
        # Workers would not know the module, nor would the hash of the modules cover it.
        raise ValueError("names without a colon: list its module in `modules`")
    return name.strip(), arguments


def _value(spelt: str) -> bool | int | float | str:
    if spelt.lower() in ("true", "false"):
        return spelt.lower() == "true"
    for kind in (int, float):
        try:
            return kind(spelt)
        except ValueError:
            pass
    return spelt


def join(name: str, arguments: Toml) -> str:
    """Spell a name and its arguments in the one way that records carry.

    >>> join(*split("garnet: states=20, actions=3"))
    'garnet:states=20,actions=3'
    """
    spelt = ",".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in arguments.items())
    return f"{name}:{spelt}" if spelt else name


def grid(arguments: Toml) -> list[Table]:
    """Return all combinations, where some arguments are lists.

    >>> grid({"states": 20, "seed": [0, 1]})
    [{'states': 20, 'seed': 0}, {'states': 20, 'seed': 1}]
    """
    choices: list[Sequence[object]] = [v if is_list(v) else [v] for v in arguments.values()]
    return [dict(zip(arguments, picked, strict=True)) for picked in itertools.product(*choices)]


def checked_label(name: str, arguments: Toml, seeded: bool) -> str:
    """Check that an environment can be created, and return its label; a ValueError says what is allowed.

    With `seeded`, an environment whose `seed` is not given is another one for each seed of the study.
    """
    if name not in GALLERY and not _of_gymnasium(name) and not name.endswith(SAVED):
        names = ", ".join(GALLERY)
        raise ValueError(
            f"{names}, a Gymnasium id such as 'FrozenLake-v1', or a file of an MDP such as 'maze{SAVED}'"
            f"{did_you_mean(name, GALLERY)}"
        )
    allowed = _parameters(name) if name in GALLERY else list(arguments)
    for argument in arguments:
        if argument not in allowed:
            raise ValueError(f"arguments {', '.join(allowed)}{did_you_mean(argument, allowed)}")
    try:
        label = _with_content(join(name, arguments))
        mdp(label, 0 if seeded else None)
    except ImportError as error:
        raise ValueError(f"what is installed: {error}") from error
    except Exception as error:  # Gymnasium's own errors have no common class
        raise ValueError(f"arguments that make an MDP: {error}") from error
    return label


def check_game(game: str) -> None:
    """Check that a game can be created; a ValueError says what is allowed."""
    if game in GAMES:
        return
    try:
        from offtrace.deep import games

        config = Config(game=game)
        games.Hosted(config, 1, 0) if game.startswith("gym/") else games.compiled(config)
    except ImportError as error:
        raise ValueError(f"what is installed: {error}") from error
    except (ValueError, TypeError) as error:
        what = f"a game such as {GAMES[0]!r}, a gymnax environment, or gym/ID{did_you_mean(game, GAMES)}: {error}"
        raise ValueError(what) from error


def _of_gymnasium(name: str) -> bool:
    """Whether this is an id of Gymnasium: it looks like one, or a module of the study has registered it."""
    registry = getattr(sys.modules.get("gymnasium"), "registry", {})
    return bool(GYMNASIUM.match(name)) or name in registry


def _with_content(label: str) -> str:
    """The label; that of a file gets the digest of what it holds, which is compared if the label has one already."""
    name, arguments = split(label)
    if not name.endswith(SAVED):
        return label
    content = f"sha256-{hashlib.sha256(_file_of_mdp(name).read_bytes()).hexdigest()[:DIGITS]}"
    declared = arguments.pop("content", content)
    if arguments:
        raise ValueError(f"a file takes no arguments, got {', '.join(arguments)}")
    if declared != content:
        raise ValueError(f"{name} holds another MDP ({content}) than the study was declared with ({declared})")
    return join(name, {"content": content})


def file_named(name: str) -> Path | None:
    """Where a file lies: as it is named, or in the folder of the declaration, which is in Python's path then."""
    places = [Path(), *(Path(folder) for folder in sys.path)]
    try:
        return next((place / name for place in places if (place / name).is_file()), None)
    except (OSError, ValueError):  # its name is too long, or holds a null byte
        return None


def _file_of_mdp(name: str) -> Path:
    if path := file_named(name):
        return path
    raise FileNotFoundError(
        f"there is no file {name}, neither here nor beside the declaration: mdp.save({Path(name).name!r}) writes one"
    )


def mdp(label: str, seed: int | None = None) -> MDP:
    """Make the MDP of a label. Where the environment has a seed that the label leaves out, it is `seed`.

    >>> mdp("bifurcation-1")
    MDP(S=15, A=4, gamma=0.9, terminal=1, nonzeros=56)
    """
    return _cached_mdp(_with_content(label), seed)


@lru_cache(maxsize=64)
def _cached_mdp(label: str, seed: int | None) -> MDP:
    name, arguments = split(label)
    if name.endswith(SAVED):
        return MDP.load(_file_of_mdp(name))
    if name not in GALLERY:
        return mdps.from_gymnasium(name, **arguments)
    if seed is not None and "seed" in _parameters(name):
        arguments.setdefault("seed", seed)
    return GALLERY[name](**arguments)


def varies(label: str) -> bool:
    """Whether the environment is another one for each seed.

    >>> varies("garnet:states=20,actions=3,branching=3"), varies("cliff")
    (True, False)
    """
    name, arguments = split(label)
    return name in GALLERY and "seed" in _parameters(name) and "seed" not in arguments
