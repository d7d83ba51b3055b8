"""Deep agents in a study: declared, run in one program for each game, trace and age, resumed, and imported from elsewhere."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from deep.small import LEARNERS, SEEDS
from offtrace.studies import DeclarationError, Study, tasks, traces
from offtrace.studies.environments import GAMES
from offtrace.studies.plan import Job, Plan
from offtrace.studies.tasks import deep as deep_units
from offtrace.studies.tasks.deep import to_columns
from offtrace.studies.traces import configured, make
from studies.forked import Forks
from studies.small import equal, forget

jax = pytest.importorskip("jax")
if not find_spec("gymnax"):
    pytest.skip("it needs gymnax", allow_module_level=True)
ROOT = Path(__file__).parents[2]


def declared(**changes: Any) -> dict[str, Any]:
    """The subset ci, as a study of its own."""
    given = Study.load("minatar").small().given
    small = {**given, **given["subsets"]["ci"], "subsets": {}, "protocol": given["subsets"]["ci"]["protocol"]}
    return {**small, "seeds": {"test": {"first": 0, "count": 2}}, **changes}


def shorter(frames: int, **changes: Any) -> dict[str, Any]:
    """Its protocol with so many frames, which are no part of the program: it is not compiled again."""
    return {**declared()["protocol"], "frames": frames, **changes}


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study.load("minatar", "ci", tmp_path_factory.mktemp("deep")).run(workers=0, progress=False)


def traces_of(job: Job) -> list[Any]:
    """One for each λ."""
    return [make(job.unit.trace, json.loads(job.unit.parameters or "{}"), lam) for lam in job.lams]


def test_a_unit_has_every_lam_and_seed_of_its_trace(study: Study) -> None:
    rows, curves = study.records(), study.curves()
    assert study.status().finished
    assert len(Plan(study).units) == rows["unit"].n_unique() == 2
    assert Plan(study).runs == len(rows) == 8
    runs = [(lam, seed) for lam in (0.5, 0.9) for seed in (0, 1)]
    for trace in ("Retrace", "RBIS"):
        assert rows.filter(trace=trace).select("lam", "seed").rows() == runs
    assert rows["age"].unique().to_list() == [1000.0]
    assert rows["alpha"].null_count() == 8
    assert rows["value"].is_finite().all()
    assert not rows["diverged"].any()
    assert rows["value"].n_unique() > 4  # λ, seed and trace make a difference
    each = curves.group_by("trace", "lam", "seed", maintain_order=True).agg(pl.col("step"), pl.col("mean"))
    assert each.select("lam", "seed").rows() == runs * 2
    assert all(0 < len(steps) <= 50 and steps.is_sorted() and steps[-1] >= 20_000 for steps in each["step"])
    assert curves["mean"].is_between(8, 500).all()  # CartPole's returns


def test_what_was_interrupted_is_run_again_to_the_same_rows(study: Study, tmp_path: Path) -> None:
    again = study.at(tmp_path)
    shutil.copytree(study.folder, again.folder)
    forget(again, keep=1)  # as if it had been killed after the first unit
    assert [done for done, _ in again.status().done.values()] == [1]
    again.run(workers=0, progress=False)
    assert equal(again.records(), study.records())
    assert equal(again.curves(), study.curves())


@pytest.mark.whole
def test_units_that_were_run_elsewhere_are_imported(study: Study, tmp_path: Path) -> None:
    """benchmarks/minatar_gpu.py: from its file to the same records. It refuses the file of another study."""
    rows, curves, plan = study.records(), study.curves(), Plan(study)
    lines: list[Any] = [{"digest": study.digest, "versions": {"offtrace": "1", "jax": "2"}, "machine": "one GPU"}]
    for unit in plan.units.values():
        columns = [("rows", rows, ["seed", "lam", "value", "episodes", "diverged"])]
        columns += [("curve", curves, ["seed", "lam", "step", "mean", "n"])]
        made = {
            name: frame.filter(unit=unit.id).select(wanted).to_dict(as_series=False) for name, frame, wanted in columns
        }
        about = {"score": 1.0, "seconds": 2.0, "worker": "local:1", "finished": datetime.now(UTC).isoformat()}
        lines.append({"unit": asdict(unit), **made, **about})
    file = tmp_path / "units.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + '\n{"unit": {"id"')  # the last line was torn
    script = [sys.executable, str(ROOT / "benchmarks" / "minatar_gpu.py"), "import", "--out", str(tmp_path), str(file)]
    done = subprocess.run([*script, "--subset", "ci"], capture_output=True, text=True, check=True)
    assert "2 new units" in done.stdout
    imported = study.at(tmp_path)
    assert equal(imported.records(), rows)
    assert equal(imported.curves(), curves)
    assert imported.facts()["machine"] == "one GPU"
    refused = subprocess.run([*script, "--subset", "h200"], capture_output=True, text=True, check=False)
    assert "is of another study" in refused.stderr


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks" / "minatar").glob("*.jsonl.gz")), ids=lambda f: f.name)
def test_what_the_gpu_has_computed_is_still_of_the_shipped_study(file: Path) -> None:
    """A renamed key gives a declaration another digest: then the stored files must be given it, too."""
    head, *units = map(json.loads, gzip.decompress(file.read_bytes()).decode().splitlines())
    study = Study.load("minatar", "h200-lambda" if "lambda" in file.name else "h200")
    assert head["digest"] == study.digest
    assert {line["unit"]["id"] for line in units} <= set(Plan(study).units)


def test_a_killed_unit_goes_on_from_its_last_checkpoint(study: Study, tmp_path: Path) -> None:
    """And gives what it would have given; the study removes the checkpoints once the unit's records are written."""
    from offtrace.deep import checkpoints, runs

    plan = Plan(Study.declared(declared(protocol=shorter(2_000))))
    job = replace(plan.job(next(iter(plan.units.values()))), unfinished=str(tmp_path / "unfinished" / "unit"))
    done = Plan(study)
    assert not any(Path(done.job(unit).unfinished).exists() for unit in done.units.values())
    pieces, rounds, save = 0, runs.rounds, checkpoints.save

    class Killed(Exception):
        """In the middle of it."""

    def counted(*given: Any) -> Any:
        nonlocal pieces
        pieces += 1
        return rounds(*given)

    def killed(*given: Any, **named: Any) -> Any:
        if pieces > 4:
            save(*given, **named)
            raise Killed
        return save(*given, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runs, "rounds", counted)
        whole = deep_units.run(replace(job, unfinished=""))
        of_the_whole, pieces = pieces, 0
        patched.setattr(checkpoints, "save", killed)
        patched.setattr(deep_units, "SAVE_EVERY", 0.0)
        with pytest.raises(Killed):
            deep_units.run(job)
        patched.setattr(checkpoints, "save", save)
        (latest, *_) = reversed(checkpoints.in_folder(Path(job.unfinished)))
        latest.write_bytes(latest.read_bytes()[:-1])  # it was damaged, too
        again = deep_units.run(job)
    assert of_the_whole < pieces < 2 * of_the_whole  # some were done again, but not all
    for one, other in zip(whole, again, strict=True):
        assert all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


def test_agents_are_an_axis() -> None:
    """Beside a trace stands its agent, with its own settings; `frames` and the like are those of the protocol."""
    wanted, _ = LEARNERS["pqn"]
    names = ("envs", "length", "epochs", "minibatches", "learning_rate", "clip", "explore_frames")
    own = {name: getattr(wanted, name) for name in names}
    pqn = {"name": "Peng's Q(λ)", "agent": ["replay", "pqn"], "label": "{agent}"}
    plan = Plan(Study.declared(declared(traces=[pqn], lams=[0.9])))
    assert [json.loads(unit.parameters)["agent"] for unit in plan.units.values()] == ["replay", "pqn"]
    entry = {"name": "Peng's Q(λ)", "agent": "pqn", "hidden": wanted.hidden[0], **own}
    seeds = {"test": {"first": 0, "count": SEEDS}}  # as many as run together elsewhere: it is the same program
    study = Study.declared(declared(traces=[entry], lams=[0.9], protocol=shorter(1_000), seeds=seeds))
    job = (plan := Plan(study)).job(next(iter(plan.units.values())))
    found = tasks.run(job)
    assert traces.configured(
        job.protocol, "CartPole-v1", traces_of(job)[0], 1_000, json.loads(job.unit.parameters)
    ) == replace(wanted, frames=1_000, sticky=0.0)
    assert found.curve["step"][-1] == 1_024  # whole rounds of 16 games and 16 steps
    assert found.rows["seed"].tolist() == [*range(SEEDS)]
    assert np.isfinite(found.rows["value"]).all()


def test_a_run_that_diverges_is_a_row() -> None:
    """Peng's Q(λ) with a step size that overflows in one update: no error, and the rows say so."""
    plan = Plan(Study.declared(declared(traces=["Peng's Q(λ)"], protocol=shorter(1_000, learning_rate=1e38))))
    found = tasks.run(plan.job(next(iter(plan.units.values()))))
    assert found.rows["diverged"].all()
    assert np.isnan(found.rows["value"]).all()
    assert np.isnan(found.curve["mean"].reshape(4, -1)[:, -1]).all()
    assert np.isnan(found.score)
    assert (found.rows["episodes"] > 0).all()


@pytest.mark.whole
def test_every_trace_of_the_study_can_be_compiled() -> None:
    from offtrace.deep.runs import _stacked
    from offtrace.deep.training import trainer

    plan = Plan(Study.load("minatar"))
    jobs = [plan.job(unit) for unit in plan.units.values() if unit.environment == GAMES[0] and unit.age == 10_000]
    assert len(jobs) == 8
    keys = jax.vmap(jax.random.PRNGKey)(np.arange(6, dtype=np.uint32))
    for i, job in enumerate(jobs):
        traces = [trace for trace in traces_of(job) for _ in range(6 // len(job.lams))]
        game = job.unit.environment if not i else "CartPole-v1"  # the trace does not see the game
        config = configured(job.protocol, game, traces[0], 10_000, {})
        made = trainer(config, list(range(6)))
        first, stacked = jax.eval_shape(made.first, keys), _stacked(traces, config, 6)
        if i:  # the rest of `advance` does not see the trace
            given = stacked, first.learner, first.memory, first.key
            loss, credit = (jax.eval_shape(jax.vmap(f), *given) for f in (made.agent.learn, made.agent.credit))
            found = loss[2], credit.length
        else:
            _, tally = jax.eval_shape(made.advance, stacked, first, 3)
            found = tally.loss, tally.length
        assert [number.shape for number in found] == [(6,), (6,)]


def reports(returns: list[list[float]], episodes: list[list[int]], loss: list[list[float]] | None = None) -> np.ndarray:
    """[times, runs] as `deep.train` reports them, 100 frames apart."""
    from offtrace.deep.runs import CURVE

    made = np.zeros(np.shape(returns), CURVE)
    made["frames"] = 100 * np.arange(1, len(returns) + 1)[:, None]
    made["return"], made["episodes"], made["loss"] = returns, episodes, 0.0 if loss is None else loss
    return made


def test_returns_and_curves_by_definition() -> None:
    nan = float("nan")
    lam, seed = np.array([0.5, 0.5]), np.array([3, 4])
    returns = [[nan, 2.0], [1.0, 4.0], [3.0, nan], [nan, nan]] + [[5.0, nan]] * 15 + [[9.0, nan]]
    episodes = [[0, 1], [2, 1], [1, 0], [0, 0]] + [[1, 0]] * 15 + [[3, 0]]
    made = reports(returns, episodes)
    rows, curve = to_columns(made, lam, seed, "return")
    # The last tenth of 2,000 frames is the reports at 1,900 and 2,000: one episode of 5 and three of 9. The other run had none.
    assert rows["value"].tolist() == [(5 + 3 * 9) / 4, 4.0]
    assert rows["episodes"].tolist() == [2 + 1 + 15 + 3, 2]
    assert curve["step"].tolist() == [*range(100, 2001, 100)] * 2
    assert curve["mean"][:5].tolist() == [1.0, 1.0, 3.0, 3.0, 5.0]
    assert curve["mean"][20:].tolist() == [2.0] + [4.0] * 19
    mean = to_columns(made, lam, seed, "mean return")[0]["value"]
    assert mean.tolist() == pytest.approx([curve["mean"][:20].mean(), curve["mean"][20:].mean()])
    # Many reports are thinned by blocks of whole reports, each the mean over its episodes.
    many = reports([[float(i), 1.0] for i in range(120)], [[1 + i % 2, 1] for i in range(120)])
    _, thin = to_columns(many, lam, seed, "return")
    assert len(thin["step"]) == 100
    assert thin["step"][:2].tolist() == [300, 600]
    assert thin["mean"][0] == pytest.approx((0 * 1 + 1 * 2 + 2 * 1) / 4)


def test_a_diverged_run_has_no_value_from_there_on() -> None:
    loss = [[0.1, 0.1], [float("inf"), 0.2], [0.1, 0.2]]
    rows, curve = to_columns(
        reports([[1.0, 1.0]] * 3, [[1, 1]] * 3, loss), np.array([np.nan] * 2), np.arange(2), "return"
    )
    assert rows["diverged"].tolist() == [True, False]
    assert np.isnan(curve["mean"]).tolist() == [False, True, True, False, False, False]
    assert np.isnan(rows["value"]).tolist() == [True, False]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "game": ({"environments": ["minatar/breakot"]}, r"environments\[0\].*did you mean 'minatar/breakout'"),
    "an MDP": ({"environments": ["bifurcation-1"]}, r"environments\[0\]: got 'bifurcation-1'; allowed: a game such as"),
    "alphas": ({"alphas": [0.1]}, r"alphas: got \[0\.1\]; allowed: no such key"),
    "no ages": ({"ages": []}, r"ages: got \[\]; allowed: a list that is not empty"),
    "too young": ({"ages": [20]}, r"protocol: got \{.*with the age 20: the memory is too small"),
    "every": ({"protocol": {"every": 7}}, r"protocol: got \{'every': 7\}.*every must be a multiple of envs"),
    "key": ({"protocol": {"frame": 7}}, r"protocol\.frame: .*did you mean 'frames'"),
    "kind": ({"protocol": {"frames": 1.5}}, r"protocol\.frames: got 1\.5; allowed: an integer"),
    "bool": ({"protocol": {"double": 1}}, r"protocol\.double: got 1; allowed: true or false"),
    "hidden": ({"protocol": {"hidden": [0]}}, r"protocol: got \{.*hidden must be whole numbers ≥ 1, got \(0,\)"),
    "tuning": ({"seeds": {"tuning": {"first": 0, "count": 1}}}, r"seeds\.tuning: .*no such key"),
    "agent": (
        {"traces": [{"name": "RBIS", "agent": "pqm"}]},
        r"traces\[0\]: .*there is no agent 'pqm' \(did you mean 'pqn'",
    ),
    "its setting": (
        {"traces": [{"name": "RBIS", "agent": "pqn", "batch": 3}]},
        r"the agent 'pqn' has no setting 'batch'",
    ),
    "its ages": (
        {"traces": [{"name": "RBIS", "agent": "pqn"}], "ages": [900, 1_000]},
        r"ages: .*'pqn' has no memory",
    ),
    "metric": ({"metric": "auc"}, "metric: got 'auc'; allowed: 'return' or 'mean return'"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_an_error_names_the_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Study.declared(declared(**changes))


def test_a_declaration_needs_no_jax(forks: Forks) -> None:
    assert not forks.ask({"imported": "jax"})  # where units were declared and run
    assert forks.run("study", "status", "minatar")[0] == 0
    assert not forks.ask({"imported": "jax"})


def test_the_games_are_those_of_the_agents() -> None:
    from offtrace.deep import Config, games

    assert [game for game in GAMES if game.startswith("minatar/")] == list(games.MINATAR)
    for game in GAMES[len(games.MINATAR) :]:
        games.compiled(Config(game=game))


def test_the_memory_is_as_long_as_the_data_are_old() -> None:
    plan = Plan(Study.declared(declared(ages=[2_000])))
    job = plan.job(next(iter(plan.units.values())))
    assert job.lams == (0.5, 0.9)
    assert job.unit.age is not None
    config: Any = configured(job.protocol, "CartPole-v1", traces_of(job)[0], job.unit.age, {})
    assert config.capacity == 2_000
    assert plan.runs == 2 * 2 * 2  # traces, λ and seeds
