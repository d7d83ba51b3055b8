"""`offtrace deep train` and `play`, as a person has them: a real process, a real Ctrl-C, files for which there is no room."""

from __future__ import annotations

import dataclasses
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import offtrace as ot
from deep.small import CONFIG, configured
from helpers import whole
from offtrace import cli
from offtrace._shared.whole_files import read_npz
from offtrace.cli import errors
from offtrace.deep import CheckpointError, Config, DivergedError, checkpoints, drawing, play, train

ARGUMENTS = [
    *(
        "deep",
        "train",
        "CartPole-v1",
        "--trace",
        "rbis",
        "--lam",
        "0.9",
        "--seeds",
        "2",
        "--envs",
        "4",
        "--every",
        "16",
    ),
    *("--batch", "4", "--length", "8", "--warm-up", "100", "--capacity", "800", "--hidden", "16", "--priority", "0.5"),
    *("--explore-frames", "1000"),
]
"""`small.CONFIG`, in words."""
# As `python -m offtrace`; Ctrl-C reaches it also where the tests run with SIGINT ignored, which a child inherits. Its pieces,
# the last of which is finished when it is interrupted, are short.
LISTENING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from offtrace.deep import training
training.REPORT = 512
import offtrace.__main__
"""
PROGRAM = [sys.executable, "-c", LISTENING]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: Any) -> Path:
    """Of a run that was interrupted by Ctrl-C, went on, and finished."""
    folder = tmp_path_factory.mktemp("runs") / "with spaces"
    command = [*ARGUMENTS, "--out", str(folder), "--frames"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*PROGRAM, *command, "1e9"], **pipes) as process:
        rounded, first = (process.stderr.readline() if process.stderr else "" for _ in range(2))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert rounded.startswith("training ends after 1,000,000,004 frames, not 1,000,000,000")
    assert " of 1e+03M frames " in first
    assert process.returncode == 130
    assert "its state is saved, and the same command resumes" in err
    assert "interrupted after" in out
    (held,) = checkpoints.in_folder(folder)
    frames = int(held.stem.split("-")[1])

    with redirect_stdout(StringIO()) as said, redirect_stderr(StringIO()) as complained:
        assert cli.main([*command, str(frames + 2_000), "--quiet"]) == 0
    assert complained.getvalue() == ""
    assert "Return over the last 10% of frames:" in said.getvalue()
    assert "offtrace deep play '" in said.getvalue()
    assert len(checkpoints.in_folder(folder)) == 2
    return folder


def of(folder: Path, frames: int = 0) -> Config:
    """The configuration of that run."""
    frames = frames or checkpoints.about(checkpoints.in_folder(folder)[-1])["frames"]
    config = configured([*ARGUMENTS[2:], "--frames", str(frames)])
    assert isinstance(config, Config)
    return config


def test_the_words_are_those_of_the_small_agent(folder: Path) -> None:
    assert of(folder, CONFIG.frames) == CONFIG


def test_the_curve_has_both_parts(folder: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shutil.copytree(folder, tmp_path / "copy")
    trained = train(of(folder), 2, tmp_path / "copy", progress=False)
    curve = trained.curve[trained.curve["seed"] == 1]
    assert (np.diff(curve["frames"]) > 0).all()
    logs = EventAccumulator(str(folder / "seed-1")).Reload()
    logged = {event.step: event.value for event in logs.Scalars("loss")}
    np.testing.assert_allclose([logged[frames] for frames in curve["frames"]], curve["loss"], rtol=1e-6)


def test_play_is_the_greedy_policy_of_the_network(folder: Path, tmp_path: Path) -> None:
    """Every step is one of Gymnasium's own CartPole, with the best action of the seed's network."""
    import gymnasium

    shutil.copytree(folder, tmp_path / "copy")
    trained = train(of(folder), 2, tmp_path / "copy", progress=False)
    cart: Any = gymnasium.make("CartPole-v1").unwrapped
    for seed in (0, 1):
        game = play(folder, seed=seed, episodes=2, steps=600)
        for now, after in zip(game.moments, game.moments[1:], strict=False):
            if not now.ended:
                cart.reset()
                cart.state = tuple(map(float, now.observation))
                seen, *_ = cart.step(int(trained.values(now.observation[None], seed).argmax()))
                np.testing.assert_allclose(after.observation, seen, rtol=1e-4, atol=1e-5)
        assert game.returns == [moment.step for moment in game.moments if moment.ended]
        assert len(game.returns) == 2 or len(game.moments) > 600
    assert game.moments[0].observation.tolist() != play(folder, seed=0, steps=1).moments[0].observation.tolist()


def test_the_gif(folder: Path, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "new" / "play.gif"
    assert cli.main(["deep", "play", str(folder), "--seed", "1", "--steps", "30", "-o", str(path)]) == 0
    out = capsys.readouterr().out
    game = play(folder, seed=1, steps=30)
    score = game.moments[-1].score
    assert f"{score:g}" in out.splitlines()[0]
    scale = np.abs([moment.observation for moment in game.moments]).max(axis=0)
    with Image.open(path) as gif:
        assert getattr(gif, "n_frames", 1) == len(game.moments)
        for at in (0, len(game.moments) - 1):
            gif.seek(at)
            moment = game.moments[at]
            facts = f"score {moment.score:g}   step {moment.step}"
            wanted = drawing.captioned(drawing.picture_of(moment.observation, scale), "CartPole-v1", facts)
            assert np.abs(np.asarray(gif.convert("RGB"), float) - np.asarray(wanted)).mean() < 1.0
    assert list(path.parent.iterdir()) == [path]


def test_every_field_is_an_option() -> None:
    assert configured(["a"]) == Config(game="a")
    words = {
        "hidden": "64,32",
        "loss": "squared",
        "transform": "symlog",
        "policies": "softmax",
        "choose_lam": "median",
        "every": "128",
        "sticky": "0.25",
        "limit": "9",
    }
    fields: Any = dataclasses.fields(Config)
    for field in fields:
        if field.name in ("game", "trace"):
            continue
        flag = "--" + field.name.replace("_", "-")
        if field.name == "double":
            given, wanted = ["--no-double"], False
        else:
            text = words.get(field.name) or (str(field.default * 2) if field.type == "int" else "0.5")
            if field.name in ("burn_in", "envs"):
                text = "4"
            given, wanted = [flag, text], None
        made = getattr(configured(["a", *given]), field.name)
        assert made != field.default
        assert wanted is None or made is wanted
        assert type(made) is type(field.default) or field.default is None
    assert Config(game="a", hidden=(64, 32)) == configured(["a", "--hidden", "64,32"])


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ([], ot.Retrace(lam=0.9)),
        (["--trace", "one-step"], ot.OneStep()),
        (["--trace", "n-step", "--n", "5"], ot.NStep(n=5)),
        (["--trace", "rbis"], ot.RBIS(lam=0.9)),
        (["--trace", "Q(λ)", "--lam", "0", "--horizon", "4"], ot.QLambda(lam=0.0, horizon=4)),
        (["--trace", "truncated is", "--bound", "0,1,0", "--lam", "0.5"], ot.TruncatedIS(bound=(0, 1, 0), lam=0.5)),
        (["--trace", "history-bounded", "--bound", "2"], ot.HistoryBounded(bound=2.0)),
        (["--trace", "q(sigma)", "--sigma", "0.1"], ot.QSigma(sigma=0.1, lam=0.9)),
        (["--trace", "abq", "--zeta", "0.7", "--psi0", "1", "--psi-max", "2"], ot.ABQ(0.7, 1.0, 2.0)),
    ],
)
def test_any_rule_with_its_parameters(given: list[str], made: Any) -> None:
    assert configured(["a", *given]).trace == made


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["minatar/brekout"], "did you mean 'minatar/breakout'?"),
        (["gym/NoSuchThing-v1"], "Gymnasium cannot make 'NoSuchThing-v1'"),
        (["gym/no_such_module:Game-v1"], "No module named 'no_such_module'"),
        (["Pendulum-v1"], "continuous actions"),
        (["CartPole-v1", "--length", "5000"], "the memory is too small"),
        (["CartPole-v1", "--trace", "retrase"], "did you mean 'Retrace'?"),
        (["CartPole-v1", "--trace", "n-step", "--lam", "0.9"], "NStep has no parameter 'lam'. It takes: n"),
        (["CartPole-v1", "--trace", "rbis", "--lam", "1.5"], "lam must lie in [0, 1], got 1.5"),
        (["CartPole-v1", "--trace", "c-trace", "--agent", "pqn"], "needs μ of all actions"),
        (
            ["CartPole-v1", "--agent", "pqn", "--batch", "8"],
            "--batch is an option of replay, categorical, acer, not of pqn",
        ),
        (["CartPole-v1", "--keep", "0"], "keep must be at least 1"),
        (["CartPole-v1", "--seeds", "0"], "seeds is empty"),
        (["CartPole-v1", "--every", "3"], "every must be a multiple of envs = 64"),
    ],
)
def test_bad_input_is_answered_in_words(given: list[str], words: str, tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["deep", "train", *given, "--out", str(tmp_path / "run")]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert (out, err.count("\n")) == ("", 1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", [["--frames", "many"], ["--hidden", "3,x"], ["--bound", "a"], ["--lamda", "1"]])
def test_bad_options(given: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["deep", "train", "CartPole-v1", *given])
    assert stop.value.code == 2
    assert given[0] in capsys.readouterr().err


def test_a_folder_of_another_run_is_left_alone(folder: Path, capsys: Any) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert cli.main([*ARGUMENTS, "--gamma", "0.5", "--out", str(folder)]) == 2
    assert "gamma is 0.99 there and 0.5 here. Give another folder" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_play_has_nothing_to_play(folder: Path, tmp_path: Path, capsys: Any) -> None:
    for given, words in [
        ([str(tmp_path)], "there is no checkpoint in"),
        ([str(folder), "--seed", "2"], "there is no seed 2"),
        ([str(folder), "--epsilon", "2"], "epsilon within [0, 1]"),
    ]:
        assert cli.main(["deep", "play", *given]) == 2
        assert words in capsys.readouterr().err


def test_a_damaged_checkpoint_is_never_used(folder: Path, tmp_path: Path, capsys: Any) -> None:
    """Wherever a bit is flipped, one error names the file, or what is read is the same."""
    shutil.copytree(folder, tmp_path / "copy")
    before, path = checkpoints.in_folder(tmp_path / "copy")
    whole, arrays = path.read_bytes(), read_npz(path)
    rng, said = np.random.default_rng(0), list[str]()
    for at in np.linspace(0, len(whole) - 1, 150).astype(int):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << rng.integers(8))]) + whole[at + 1 :])
        try:
            checkpoints.require_whole(path)
        except CheckpointError as error:
            said.append(str(error))
        else:  # a bit that means nothing, as one of the time of writing
            assert all(array.tobytes() == arrays[name].tobytes() for name, array in read_npz(path).items())
    assert len(said) > 100
    assert all(f"{path.name} is damaged" in text for text in said)
    path.write_bytes(whole[:-100])
    assert cli.main(["deep", "play", str(tmp_path / "copy")]) == 2
    assert f"{path} is damaged" in capsys.readouterr().err
    path.unlink()
    assert cli.main(["deep", "play", str(tmp_path / "copy"), "--steps", "2"]) == 0
    assert before.exists()


@contextmanager
def no_room_for_files() -> Iterator[None]:
    """No file may become longer than a kilobyte: the system refuses what is more, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk(folder: Path, tmp_path: Path, capsys: Any) -> None:
    """One line says so; nothing is lost, and nothing half-written stays."""
    run, frames = tmp_path / "run", str(of(folder).frames + 500)
    shutil.copytree(folder, run)
    before = {path.name: path.read_bytes() for path in checkpoints.in_folder(run)}
    there = sorted(path.name for path in run.iterdir())
    with no_room_for_files():
        assert cli.main([*ARGUMENTS, "--frames", frames, "--out", str(run), "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert "cannot be written: " in err.splitlines()[-1]
    assert "the last checkpoint is" in err.splitlines()[-1]
    assert out == ""
    assert {path.name: path.read_bytes() for path in checkpoints.in_folder(run)} == before
    assert sorted(path.name for path in run.iterdir()) == there


def test_what_each_error_becomes(capsys: Any) -> None:
    def status_of(error: BaseException) -> int:
        with errors.as_sentences("deep train") as status:
            raise error
        return status.code

    for error in (CheckpointError("words"), DivergedError("words"), OSError("words"), ImportError("words")):
        assert status_of(error) == 2
        assert capsys.readouterr().err == "offtrace: words\n"
    assert status_of(KeyboardInterrupt()) == 130
    with pytest.raises(RuntimeError, match="a bug"):
        status_of(RuntimeError("a bug"))


@pytest.mark.parametrize("package", ["flax", *whole(["optax"])])
def test_without_a_package_it_says_how_to_install_it(package: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from offtrace import cli; sys.exit(cli.main(sys.argv[1:]))"
    given = ["deep", "train", "CartPole-v1", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", code, *given], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"offtrace: deep agents need {package}: pip install '.[deep]'")
    assert done.stderr.count("\n") == 1


def test_the_command_line_does_not_wait_for_jax() -> None:
    code = (
        "import sys, contextlib, offtrace.cli as cli\n"
        "with contextlib.suppress(SystemExit): cli.main(['deep', 'train', '--help'])\n"
        "sys.exit('jax' in sys.modules or 'PIL' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


GAME = '''
import gymnasium, numpy as np

class Corridor(gymnasium.Env):
    """Two cells to the goal; the picture is as green as the cell is near."""
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space, action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(2)
    def __init__(self, render_mode=None):
        self.render_mode = render_mode
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.at, {}
    def step(self, action):
        self.at = min(self.at + 1, 2) if action else max(self.at - 1, 0)
        return self.at, float(self.at == 2), self.at == 2, False, {}
    def render(self):
        return np.full((20, 30, 3), (0, 100 * self.at, 0), np.uint8)

gymnasium.register("Corridor-v0", Corridor, max_episode_steps=9)
'''


def test_a_gymnasium_game_shows_its_own_pictures(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "corridor_game.py").write_text(GAME, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    small = ["--frames", "300", "--envs", "2", "--every", "8", "--batch", "4", "--length", "4", "--warm-up", "50"]
    small += ["--trace", "peng-q", "--hidden", "16"]
    run = str(tmp_path / "run")
    assert cli.main(["deep", "train", "gym/corridor_game:Corridor-v0", *small, "--out", run, "--quiet"]) == 0
    assert cli.main(["deep", "play", run, "--epsilon", "0.5", "--episodes", "3", "--module", "corridor_game"]) == 0
    assert capsys.readouterr().err == ""
    module = sys.modules.pop("corridor_game")
    assert cli.main(["deep", "play", run]) == 2  # whose folder it is does not matter
    assert "the Python module 'corridor_game' would be imported and run" in capsys.readouterr().err
    assert "corridor_game" not in sys.modules
    sys.modules["corridor_game"] = module
    game = play(run, epsilon=0.5, episodes=3, trust=True)
    assert len(game.returns) == 3
    assert game.pace == 100
    for moment in game.moments:
        cell = int(moment.observation.argmax())
        if not moment.ended:  # what Gymnasium shows then is the next episode
            assert (moment.picture == (0, 100 * cell, 0)).all()
    with Image.open(Path(run) / "play-seed-0.gif") as gif:
        assert max(np.asarray(gif.convert("RGB"))[-30, gif.width // 2]) < 10


def test_things_of_minatar_are_seen() -> None:
    """Each channel alone changes the picture of its cell and no other; the first channel is on top."""
    for channels in (4, 7, 10):
        nothing = np.zeros((10, 10, channels), bool)
        empty = np.asarray(drawing.picture_of(nothing), int)
        for channel in range(channels):
            one = nothing.copy()
            one[4, 7, channel] = True
            rows, columns = np.nonzero(np.abs(np.asarray(drawing.picture_of(one), int) - empty).sum(axis=-1))
            assert ({*(rows // drawing.CELL)}, {*(columns // drawing.CELL)}) == ({4}, {7})
    both = np.zeros((10, 10, 4), bool)
    both[0, 0, [1, 3]] = True
    assert drawing.board(both).getpixel((drawing.CELL // 2, drawing.CELL // 2)) == (255, 255, 255)


@pytest.mark.parametrize("shape", [(3,), (400,), (8, 8), (5, 5, 2), (30, 40, 3)])
def test_any_observation_can_be_drawn(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=shape)
    scale = np.abs(numbers)
    pictures = [np.asarray(drawing.captioned(drawing.picture_of(sign * numbers, scale), "", "")) for sign in (1, -1, 0)]
    assert (pictures[0] != pictures[2]).any()
    if len(shape) == 3 and shape[2] == 3:
        image = rng.integers(256, size=shape).astype(np.uint8)
        assert image[0, 0].tolist() in np.asarray(drawing.picture_of(image)).reshape(-1, 3).tolist()
    assert (pictures[0] != pictures[1]).any() == (len(shape) == 1)  # bars have a sign, cells have not
