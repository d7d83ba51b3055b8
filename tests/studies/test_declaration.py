"""What a declaration may say, and what is said to one that may not be."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offtrace.studies import (
    DeclarationError,
    Study,
    StudyError,
    environments,
    policies,
    shipped,
)
from offtrace.studies.plan import Plan
from studies.small import declared

MAP = {"task": "map", "metric": "contraction", "seeds": {"map": {"first": 0, "count": 2}}, "protocol": {}}


def control(**changes: Any) -> dict[str, Any]:
    return declared(task="control", metric="auc", protocol={"steps": 100}, **changes)


WRONG = {
    "unknown key": (declared(alpha=[0.1]), r"alpha: got \[0.1\]; allowed: no such key \(did you mean 'alphas'\?\)"),
    "task": (declared(task="contrl"), r"task: got 'contrl'; allowed: .*did you mean 'control'"),
    "metric": (declared(metric="auc"), r"metric: got 'auc'; allowed: 'rms error', 'mean rms error'"),
    "no question": ({k: v for k, v in declared().items() if k != "question"}, "question: got None; allowed: a value"),
    "name": (declared(name="a/b"), "name: got 'a/b'; allowed: letters"),
    "trace": (declared(traces=["Retrase"]), r"traces\[0\]: got 'Retrase'.*did you mean 'Retrace'"),
    "lam": (declared(traces=["Retrace", {"name": "RBIS", "lam": [0.5, 1.5]}]), r"traces\[1\]\.lam\[1\]: got 1\.5"),
    "lam of none": (declared(traces=[{"name": "One-step", "lam": 0.5}]), r"traces\[0\]\.lam.*One-step takes horizon"),
    "parameter": (
        declared(traces=[{"name": "RBIS", "bound": 1}]),
        r"traces\[0\]\.bound: got 1; allowed: no such param",
    ),
    "value": (declared(traces=[{"name": "Q(σ)", "sigma": [0.5, 2]}]), r"traces\[0\]\.sigma: .*must lie in \[0, 1\]"),
    "an array": (
        declared(traces=["Variable λ"]),
        r"traces\[0\]: got 'Variable λ'; allowed: traces whose parameters are num",
    ),
    "no trace": (
        declared(traces=["n-stop"]),
        r"traces\[0\]: got 'n-stop'; allowed: a trace, or a learning method: there is no",
    ),
    "no parameter": (
        declared(traces=[{"name": "gtd", "etta": 1.0}]),
        r"traces\[0\]\.etta: got 1.0; .*did you mean 'eta'",
    ),
    "twice": (declared(traces=["RBIS", "rbis"]), r"traces\[1\]: got 'rbis'; allowed: each trace"),
    "no traces": (declared(traces=[]), r"traces: got \[\]; allowed: a list that is not empty"),
    "empty grid": (declared(traces=[{"name": "Q(σ)", "sigma": []}]), r"traces\[0\]\.sigma: got \[\]"),
    "no lams": (
        {k: v for k, v in declared().items() if k != "lams"},
        "lams: got None; allowed: a list of λ, which Retr",
    ),
    "no alphas": (declared(alphas=[]), r"alphas: got \[\]; allowed: a list that is not empty"),
    "alpha": (declared(alphas=[0.1, 0]), r"alphas\[1\]: got 0; allowed: a number above 0"),
    "alpha twice": (declared(alphas=[0.1, 0.1]), r"alphas: got \[0.1, 0.1\]; allowed: each value once"),
    "infinite": (declared(alphas=[float("inf")]), r"alphas\[0\]: got inf"),
    "environment": (declared(environments=["bifurcaton-1"]), r"environments\[0\].*did you mean 'bifurcation-1'"),
    "argument": (declared(environments=["garnet:stats=3"]), r"environments\[0\]: .*did you mean 'states'"),
    "no MDP": (declared(environments=["random-walk:states=0"]), r"environments\[0\].*at least one state"),
    "no seed": (declared(environments=["garnet:states=3,actions=2,branching=2"]), r"environments\[0\].*'seed'"),
    "gymnasium": (declared(environments=["CartPole-v1"]), r"environments\[0\]: got 'CartPole-v1'"),
    "spelling": (declared(environments=["random-walk:19"]), r"environments\[0\].*name=value, which '19' is not"),
    "same place": (declared(environments=["cliff", "cliff"]), r"environments\[1\]: got 'cliff'; allowed: each env"),
    "none": (declared(environments=[]), r"environments: got \[\]"),
    "overlap": (
        declared(seeds={"tuning": {"first": 0, "count": 10}, "test": {"first": 9, "count": 5}}),
        r"seeds\.test: .*seeds that tuning does not use: it uses 0 to 9",
    ),
    "no test": (declared(seeds={"tuning": {"first": 0, "count": 10}}), r"seeds\.test: got None"),
    "no seeds": (
        declared(seeds={"tuning": {"first": 0, "count": 0}}),
        r"seeds\.tuning\.count: got 0; allowed: an integer",
    ),
    "phase": (declared(seeds={"tune": {"first": 0, "count": 1}}), r"seeds\.tune.*did you mean 'tuning'"),
    "steps": (declared(protocol={"behavior": "uniform", "target": "uniform"}), r"protocol\.steps: got None"),
    "bool": (declared(protocol={"steps": True}), r"protocol\.steps: got True; allowed: an integer"),
    "protocol key": (
        declared(protocol={"step": 3}),
        r"protocol\.step: got 3; allowed: no such key \(did you mean 'steps'",
    ),
    "of another task": (
        control(lams=[0.5]) | {"protocol": {"updates": 3}},
        r"protocol\.updates: got 3; allowed: no such",
    ),
    "ε": (
        control() | {"protocol": {"steps": 3, "behavior": 2}},
        r"protocol\.behavior: got 2; allowed: a number of at most 1",
    ),
    "its own": (
        declared(environments=[{"name": "cliff", "protocol": {"steps": -1}}]),
        r"environments\[0\]\.protocol\.steps: got -1",
    ),
    "policy": (
        declared(protocol={"steps": 1, "behavior": "unifrom", "target": [1, 0]}),
        r"protocol\.behavior.*'uniform'\?",
    ),
    "actions": (
        declared(protocol={"steps": 1, "behavior": "uniform", "target": [0.5, 0.25, 0.25]}),
        r"protocol\.target: .*there are 2 actions, and 3 probabilities",
    ),
    "sum": (
        declared(protocol={"steps": 1, "behavior": "uniform", "target": [0.5, 0.6]}),
        r"protocol\.target.*sum to 1\.1",
    ),
    "alphas of a map": (declared(**MAP), "alphas: got .* no such key"),
    "ages": (declared(ages=[1]), r"ages: got \[1\]; allowed: no such key"),
    "too old": (
        declared(task="replay", ages=[60], protocol={"steps": 10, "updates": 50}),
        r"ages: got \[60\]; allowed: ages of at most protocol.updates = 50",
    ),
    "modules": (declared(modules=["no_such_module"]), r"modules\[0\]: got 'no_such_module'"),
    "subset": (declared(subsets={"ci": {"lams": [2]}}), r"with subsets\.ci: lams\[0\]: got 2"),
}


@pytest.mark.parametrize(("given", "message"), WRONG.values(), ids=WRONG)
def test_an_error_names_the_key(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Study.declared(given)


EXTREMES = {
    "a number beyond floats": (
        "alphas = [0.1]",
        f"alphas = [1{'0' * 400}]",
        r"alphas\[0\]: got 1000.*… \(401 characters\); allowed: a number that is not beyond all floats",
    ),
    "a number of too many digits": ("alphas = [0.1]", f"alphas = [1{'0' * 5000}]", "a TOML file, which it is not"),
    "steps": (
        "steps = 10",
        f"steps = {2**70}",
        r"protocol\.steps: got \d+; allowed: an integer below 2\^63",
    ),
    "a relative module": (
        "lams",
        'modules = ["..x"]\nlams',
        r"modules\[0\]: got '\.\.x'; allowed: a module that can be",
    ),
    "a module that fails": ("lams", 'modules = ["failing_module"]\nlams', "can be imported: ZeroDivisionError"),
    "a module that exits": ("lams", 'modules = ["exiting_module"]\nlams', "can be imported: SystemExit"),
    "a long name": ("question", f'name = "{"x" * 5000}"\nquestion', "name: got 'xxx.*at most 100: it becomes"),
    "a long trace": ('"Retrace"', f'"{"x" * 5000}"', r"traces\[0\]: got 'xxx.*a trace, or a learning method"),
    "a long environment": ("random-walk:", f"{'x' * 5000}:", r"environments\[0\]: got 'xxx"),
    "nested lists": ("lams = [0.5]", f"lams = {'[' * 5000}{']' * 5000}", "nested less deeply"),
    "nested tables": ("steps = 10", f"steps = 10\na{'.a' * 3000} = 1", "nested less deeply"),
    "a date": ("lams = [0.5]", "lams = [2020-01-01]", r"lams\[0\]: got .*no date or time"),
    "no task": ('task = "evaluation"', "", "task: got None; allowed: 'control'"),
    "a list for a task": ('task = "evaluation"', 'task = ["x"]', r"task: got \['x'\]"),
    "a file that is not there": ("lams", 'files = ["no.csv"]\nlams', r"files\[0\]: got 'no\.csv'; allowed: a file"),
}
PLAIN = """
question = "q?"
task = "evaluation"
metric = "rms error"
environments = ["random-walk:states=5"]
traces = ["Retrace"]
lams = [0.5]
alphas = [0.1]
seeds.test = { first = 0, count = 1 }
[protocol]
behavior = "uniform"
target = "uniform"
steps = 10
"""


@pytest.mark.parametrize(("old", "new", "message"), EXTREMES.values(), ids=EXTREMES)
def test_extremes_of_toml_are_one_clear_error(
    old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "failing_module.py").write_text("1 / 0")
    (tmp_path / "exiting_module.py").write_text("raise SystemExit")
    file = tmp_path / "extreme.toml"
    file.write_text(PLAIN.replace(old, new))
    with pytest.raises(DeclarationError, match=message) as error:
        Study.load(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 3000


def test_all_errors_are_named_at_once() -> None:
    with pytest.raises(DeclarationError) as error:
        Study.declared(declared(alphas=[-1], lams=[2], metric="auc"))
    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == ["lams[0]", "metric", "alphas[0]"]


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"did you mean 'bifurcation'\?"):
        Study.load("bifurcatoin")
    with pytest.raises(DeclarationError, match="no such file"):
        Study.load(tmp_path / "none.toml")
    with pytest.raises(DeclarationError, match="no study of that name"):
        Study.load("x" * 5000)
    with pytest.raises(DeclarationError, match=r"subset: got 'cl'; allowed: ci.*did you mean 'ci'"):
        Study.load("replay", "cl")
    (tmp_path / "bad.toml").write_text("name = \n")
    with pytest.raises(DeclarationError, match="a TOML file, which it is not"):
        Study.load(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("wrong", "message"), [({"on": "slurm"}, "on"), ({"workers": -1}, "workers"), ({"address": "a:1"}, "addr")]
)
def test_how_to_run(wrong: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=message):
        Study.declared(declared()).run(**wrong, out=tmp_path)


@pytest.mark.parametrize("name", shipped())
def test_shipped_studies_have_a_small_subset(name: str) -> None:
    study = Study.load(name)
    assert Plan(study.small()).total <= 60
    assert study.small().name == f"{name}-ci"
    assert study.question.endswith("?")
    assert study.about
    assert name in str(study)
    assert re.search(r"<table>.*</table>", study._repr_html_(), re.DOTALL)


def test_the_digest_is_that_of_what_is_run(tmp_path: Path) -> None:
    study = Study.declared(declared())
    # of this very declaration, for ever: by it, records that other code made are known
    assert study.digest.startswith("d1f9e55c0441ee82")
    for same in (declared(question="Another?", about="Words.", name="other"), declared(alphas=[0.10, 0.30, 0.50])):
        assert Study.declared(same).digest == study.digest
    reordered = dict(reversed(declared().items()))
    assert Study.declared(reordered).digest == study.digest
    protocol = {"steps": 200, "behavior": "uniform", "target": [0.3, 0.7], "q0": 0}  # 0 is what it is anyway
    assert Study.declared(declared(protocol=protocol)).digest == study.digest
    for other in (
        declared(lams=[0.6]),
        declared(metric="mean rms error"),
        declared(environments=["random-walk:states=5"]),
    ):
        assert Study.declared(other).digest != study.digest
        assert Study.declared(other).folder != study.folder


@pytest.mark.parametrize("name", shipped())
def test_a_study_written_is_the_study_read(name: str, tmp_path: Path) -> None:
    for study in (Study.load(name), Study.load(name, "ci")):
        file = tmp_path / f"{study.name}.toml"
        file.write_text(study.as_toml(), encoding="utf-8")
        again = Study.load(file)
        assert (again.digest, again.name, again.about) == (study.digest, study.name, study.about)


def test_subsets_merge_tables_and_replace_lists() -> None:
    changes = {"seeds": {"test": {"count": 2}}, "lams": [0.1], "protocol": {"steps": 7}}
    study = Study.declared(declared(subsets={"tiny": changes}), "tiny")
    assert (study.seeds["tuning"].count, study.seeds["test"].first, study.seeds["test"].count) == (3, 3, 2)
    assert study.environments[0].protocol.steps == 7
    assert study.environments[0].protocol.behavior == "uniform"
    assert study.traces[0].lams == (0.1,)


def test_grids() -> None:
    places = [
        {"name": "garnet", "states": [3, 4], "actions": 2, "branching": 2, "seed": [0, 1]},
        "FrozenLake-v1:gamma=0.9",
    ]
    pytest.importorskip("gymnasium")
    given = control(environments=places, traces=[{"name": "Q(σ)", "sigma": [0.1, 0.9], "lam": 0.5}, "One-step"])
    plan = Plan(Study.declared(given))
    assert len(plan.study.environments) == 5
    assert [t.spelt for t in plan.study.traces] == ['{"sigma": 0.1}', '{"sigma": 0.9}', ""]
    assert plan.sizes() == {"tuning": (0, 5 * 3 * 3), "test": (0, 5 * 3)}
    assert plan.study.traces[-1].lams == (None,)


def test_one_step_size_needs_no_tuning() -> None:
    plan = Plan(Study.declared(declared(alphas=[0.1], seeds={"test": {"first": 0, "count": 2}})))
    assert plan.sizes() == {"test": (0, 8)}


def test_tuning_chooses_the_best_mean_and_the_smaller_of_equals() -> None:
    for metric, task, scores, best in (
        ("rms error", "evaluation", [2.0, 1.0, 1.0], 0.3),
        ("rms error", "evaluation", [float("nan"), float("inf"), 5.0], 0.5),
        ("return", "control", [2.0, 1.0, 2.0], 0.1),
    ):
        given = declared() if task == "evaluation" else control()
        plan = Plan(Study.declared(given | {"metric": metric}))
        group = next(iter(plan.groups.values()))
        found = [plan.mark(unit, score) for unit, score in zip(group, scores, strict=True)]
        assert found[:-1] == [None, None]
        assert found[-1] is not None
        assert (found[-1].phase, found[-1].alpha) == ("test", best)


def test_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "study.toml").write_text(Study.declared(declared()).as_toml(), encoding="utf-8")
    with pytest.raises(StudyError, match="is not the folder of the study in it"):
        Study.load(folder)


def test_the_policy_of_old() -> None:
    label = "garnet:states=6,actions=3,branching=2,seed=1,gamma=0.9"
    old = [policies.ageing(label, 50, 0.1, 0.1, age) for age in (0, 10, 30, 50)]
    assert np.array_equal(old[-1], np.full((6, 3), 1 / 3))
    away = [np.abs(p - old[0]).sum(axis=1).mean() for p in old]
    assert away == sorted(away)
    Q = np.zeros((6, 3))
    mdp = environments.mdp(label)
    for _ in range(20):
        Q = 0.9 * Q + 0.1 * (mdp.R + 0.9 * np.einsum("sat,t->sa", mdp.dense_P, Q.max(axis=1)))
    weights = np.exp(Q / 0.1)
    assert np.allclose(old[2], weights / weights.sum(axis=1, keepdims=True), atol=1e-12)
